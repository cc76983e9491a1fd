"""The C ABI: a program in C, the library's symbols, and calls through
ctypes."""

import ctypes
import json
import pathlib
import re
import struct
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


def open_file(library, path):
    file = ctypes.c_void_p()
    assert library.haulway_open(bytes(path), ctypes.byref(file)) == 0
    return file


def described(library, file, number):
    tensor = Tensor()
    assert library.haulway_describe(file, ctypes.c_size_t(number),
                                    ctypes.byref(tensor)) == 0
    return tensor


def read(library, file, name):
    """Returns the code and the bytes of a tensor."""
    number = ctypes.c_size_t()
    assert library.haulway_find(file, name, ctypes.byref(number)) == 0
    size = described(library, file, number.value).bytes
    out = ctypes.create_string_buffer(size)
    code = library.haulway_read(file, number, out, ctypes.c_uint64(size))
    return code, out.raw


def test_elements_are_the_numbers_that_torch_shows(library, tmp_path):
    complex_ = torch.tensor([[1 + 2j, -3 - 4j], [5j, 6 + 0j]])
    tensors = {
        "conj": complex_.conj(), "neg": complex_.clone().conj().imag,
        "both": torch._neg_view(complex_.clone().conj()),
        "half": torch._neg_view(torch.arange(5).half()),
        "int": torch._neg_view(torch.tensor([1, -2, -2**63])),
        "byte": torch._neg_view(torch.tensor([0, 1, 255], dtype=torch.uint8)),
    }
    torch.save(tensors, tmp_path / "x.pt")
    file = open_file(library, tmp_path / "x.pt")
    for name, tensor in tensors.items():
        dense = tensor.resolve_conj().resolve_neg().contiguous()
        assert read(library, file, name.encode()) == (
            0, dense.numpy().tobytes()), name
    library.haulway_close(file)


def test_a_sign_that_a_dtype_lacks_is_not_changed(library, tmp_path):
    torch.save({"f": torch._neg_view(torch.tensor([True]))}, tmp_path / "x.pt")
    file = open_file(library, tmp_path / "x.pt")
    assert read(library, file, b"f")[0] == 13
    assert library.haulway_last_error() == (
        b"cannot change the sign of dtype BOOL; in 'f'")
    library.haulway_close(file)


def test_names_with_nul_bytes_are_told_apart(library, tmp_path):
    names = ["a\0b", "a\0c", "a"]
    header = json.dumps({
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
        for i, name in enumerate(names)}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header
                     + struct.pack("<3f", 1, 2, 3))
    file = open_file(library, path)
    assert [described(library, file, i).name for i in range(3)] == [
        b"a\\x00b", b"a\\x00c", b"a"]
    for value, name in enumerate([b"a\\x00b", b"a\\x00c", b"a"], 1):
        assert read(library, file, name) == (0, struct.pack("<f", value))
    library.haulway_close(file)


def test_nothing_is_mapped(library, tmp_path):
    # A file that is cut would end a program that reads a mapping.
    path = tmp_path / "named.safetensors"
    haulway.save({"w": torch.ones(100_000)}, path)
    file = open_file(library, path)
    assert path.name not in pathlib.Path("/proc/self/maps").read_text()
    with path.open("r+b") as cut:
        cut.truncate(100)
    number = ctypes.c_size_t(0)
    out = ctypes.create_string_buffer(400_000)
    assert library.haulway_read(file, number, out, ctypes.c_uint64(400_000)) == 7
    library.haulway_close(file)


def test_wrong_numbers_are_refused(library, opened, tmp_path):
    for threads in -1, -2**31, 2**16:
        assert library.haulway_load_into(opened, None, ctypes.c_size_t(0),
                                         threads, 0) == 1
        assert library.haulway_last_error() == (
            f"threads {threads}: expected 0 to 65535".encode())
    shape = (ctypes.c_int64 * 2)(1, 1)
    held = (ctypes.c_float * 1)()
    path = bytes(tmp_path / "new.safetensors")
    for rank in 65, 1 << 61, 2**64 - 1:
        source = Source(b"w", b"F32", rank, shape, ctypes.addressof(held), 4)
        assert library.haulway_save(path, None, ctypes.byref(source),
                                    ctypes.c_size_t(1)) == 1
        assert library.haulway_last_error() == (
            f"rank {rank}: expected at most 64; in 'w'".encode())
    assert not (tmp_path / "new.safetensors").exists()


def test_a_failure_of_many_names_the_tensor(library, opened, tmp_path):
    number = ctypes.c_size_t()
    assert library.haulway_find(opened, b"w", ctypes.byref(number)) == 0
    out = (ctypes.c_float * 24)()
    slices = (Range * 2)(Range(0, 5, 1), Range(0, 6, 1))
    place = f"; in 'w'; of {tmp_path}/x.pt".encode()
    for wanted, why in (
        (Destination(number.value, None, ctypes.addressof(out), 95),
         b"memory for the tensor: expected 96 bytes, found 95" + place),
        (Destination(number.value, slices, ctypes.addressof(out), 120),
         b"slice 0:5:1 of dimension 0 leaves it: expected indices of 4 elements"
         + place),
        (Destination(number.value, None, None, 96), b"memory is NULL; in 'w'"),
    ):
        assert library.haulway_load_into(
            opened, ctypes.byref(wanted), ctypes.c_size_t(1), 0, 0) == 1
        assert library.haulway_last_error() == why
    shape = (ctypes.c_int64 * 1)(1)
    held = (ctypes.c_float * 1)()
    sources = [Source(b"first", b"F32", 1, shape, ctypes.addressof(held), 4)]
    for wrong, why in (
        (Source(None, b"F32", 1, shape, ctypes.addressof(held), 4),
         b"name of tensor 1 is NULL"),
        (Source(b"w", None, 1, shape, ctypes.addressof(held), 4),
         b"dtype is NULL; in 'w'"),
        (Source(b"w", b"F32", 1, None, ctypes.addressof(held), 4),
         b"shape is NULL; in 'w'"),
        (Source(b"w", b"F32", 1, shape, None, 4), b"memory is NULL; in 'w'"),
        (Source(b"w", b"f32", 1, shape, ctypes.addressof(held), 4),
         b"no dtype is called 'f32'; in 'w'"),
    ):
        both = (Source * 2)(*sources, wrong)
        assert library.haulway_save(bytes(tmp_path / "new.pt"), None, both,
                                    ctypes.c_size_t(2)) == 1
        assert library.haulway_last_error() == why
