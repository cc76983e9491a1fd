"""The C ABI: a program in C, the library's symbols, and calls through
ctypes."""

import ctypes
import pathlib
import re
import subprocess

import pytest
import torch

import haulway

ROOT = pathlib.Path(__file__).resolve().parents[3]
HEADER = ROOT / "include" / "haulway" / "haulway_c.h"


class Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
                ("rank", ctypes.c_size_t),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("bytes", ctypes.c_uint64)]


class Range(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("begin", "end", "step")]


class Destination(ctypes.Structure):
    _fields_ = [("tensor", ctypes.c_size_t), ("slice", ctypes.POINTER(Range)),
                ("memory", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


class Source(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
                ("rank", ctypes.c_size_t),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("memory", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


@pytest.fixture(scope="module")
def library(examples):
    c = ctypes.CDLL(str(examples.parent / "libhaulway_c.so"))
    c.haulway_last_error.restype = ctypes.c_char_p
    c.haulway_format.restype = ctypes.c_char_p
    c.haulway_count.restype = ctypes.c_size_t
    return c


@pytest.fixture
def opened(library, tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"w": torch.arange(24.0).reshape(4, 6), "empty": torch.ones(0)},
               path)
    file = ctypes.c_void_p()
    assert library.haulway_open(bytes(path), ctypes.byref(file)) == 0
    yield file
    library.haulway_close(file)


def declared():
    return set(re.findall(r"\b(haulway_\w+)\(", HEADER.read_text()))


def test_only_what_the_header_declares_is_seen_each_with_a_version(examples):
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", "--with-symbol-versions",
         examples.parent / "libhaulway_c.so"],
        check=True, capture_output=True, text=True).stdout
    symbols = {line.split()[2] for line in listed.splitlines()}
    assert len(declared()) == 12
    assert symbols == {f"{name}@@HAULWAY_C_1" for name in declared()} | {
        "HAULWAY_C_1"}


@pytest.mark.parametrize("standard", ["c99", "c11"])
def test_the_header_and_the_program_are_plain_c(standard, tmp_path):
    program = ROOT / "examples" / "summary.c"
    subprocess.run(
        ["cc", f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror",
         f"-I{ROOT / 'include'}", "-c", program, "-o", tmp_path / "x.o"],
        check=True)
    assert len(program.read_text().splitlines()) <= 40


def test_the_program(examples, tmp_path):
    torch.save({"w": torch.arange(6.0).reshape(2, 3)}, tmp_path / "x.pt")
    out = tmp_path / "out.safetensors"
    done = subprocess.run([examples / "summary", tmp_path / "x.pt", out],
                          capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "w F32 rank 2, 24 bytes\n")
    assert torch.equal(haulway.load(out)["w"], torch.arange(6.0).reshape(2, 3))
    (tmp_path / "x.pt").write_bytes(b"nothing of the kind")
    done = subprocess.run([examples / "summary", tmp_path / "x.pt", out],
                          capture_output=True, text=True)
    assert done.returncode == 1 and "x.pt" in done.stderr


def test_listing_and_slices(library, opened):
    assert library.haulway_count(opened) == 2
    assert library.haulway_format(opened) == b"torch"
    number = ctypes.c_size_t()
    assert library.haulway_find(opened, b"w", ctypes.byref(number)) == 0
    tensor = Tensor()
    assert library.haulway_describe(opened, number, ctypes.byref(tensor)) == 0
    assert (tensor.name, tensor.dtype, tensor.rank, tensor.bytes) == (
        b"w", b"F32", 2, 96)
    assert tensor.shape[:2] == [4, 6]
    slices = (Range * 2)(Range(1, 4, 2), Range(0, 6, 3))
    out = (ctypes.c_float * 4)()
    assert library.haulway_read_slice(opened, number, slices, out,
                                      ctypes.c_uint64(16)) == 0
    assert list(out) == [6, 9, 18, 21]
    whole = (ctypes.c_float * 24)()
    wanted = (Destination * 1)(Destination(
        number.value, None, ctypes.addressof(whole), 96))
    assert library.haulway_load_into(opened, wanted, ctypes.c_size_t(1), 0,
                                     1) == 0
    assert list(whole) == list(range(24))


def test_the_header_names_dtypes_as_they_are(library, tmp_path):
    line = re.search(r"dtype; /\* (.*) \*/", HEADER.read_text()).group(1)
    sizes = dict(zip(re.findall(r'"(\w+)"', line), (4, 2, 8), strict=True))
    shape = (ctypes.c_int64 * 1)(1)
    held = (ctypes.c_char * 8)()
    sources = (Source * 3)(*[
        Source(name.encode(), name.encode(), 1, shape,
               ctypes.addressof(held), size) for name, size in sizes.items()])
    path = bytes(tmp_path / "x.safetensors")
    assert library.haulway_save(path, None, sources, ctypes.c_size_t(3)) == 0
    assert haulway.load(tmp_path / "x.safetensors").keys() == sizes.keys()


def test_no_file_has_no_tensors(library):
    assert library.haulway_format(None) == b""
    assert library.haulway_count(None) == 0
    library.haulway_close(None)


def test_failures_say_why(library, opened, tmp_path):
    number = ctypes.c_size_t()
    assert library.haulway_find(opened, b"z", ctypes.byref(number)) == 2
    assert library.haulway_last_error() == b"no tensor 'z'"
    out = (ctypes.c_float * 4)()
    assert library.haulway_read(opened, ctypes.c_size_t(0), out,
                                ctypes.c_uint64(16)) == 1
    assert library.haulway_read(opened, ctypes.c_size_t(9), out,
                                ctypes.c_uint64(16)) == 2
    assert library.haulway_read(opened, ctypes.c_size_t(0), None,
                                ctypes.c_uint64(96)) == 1
    assert b"NULL" in library.haulway_last_error()
    slices = (Range * 2)(Range(0, 4, 0), Range(0, 6, 1))
    assert library.haulway_read_slice(opened, ctypes.c_size_t(0), slices, out,
                                      ctypes.c_uint64(16)) == 1
    assert b"at least 1" in library.haulway_last_error()
    file = ctypes.c_void_p()
    missing = bytes(tmp_path / "missing.pt")
    assert library.haulway_open(missing, ctypes.byref(file)) == 2
    assert file.value is None
    assert library.haulway_open(None, ctypes.byref(file)) == 1
    assert library.haulway_verify(missing) == 2
    library.haulway_close(None)


def test_damage_is_found(library, tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"w": torch.arange(1000.0)}, path)
    assert library.haulway_verify(bytes(path)) == 0
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    assert library.haulway_verify(bytes(path)) == 8
    assert library.haulway_last_error() != b""
