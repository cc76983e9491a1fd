"""PyTorchFileWriter: the same bytes as torch's, record by record."""

import ctypes
import io
import os
import zipfile

import numpy
import pytest
import torch

import haulway
from haulway.archive import PyTorchFileReader, PyTorchFileWriter

KIB = 1 << 10


def write_records(writer):
    writer.write_record("data.pkl", b"\x80\x02N.", 4)
    writer.write_record("data/0", bytes(range(256)) * 40, 256 * 40)
    writer.write_record("empty", b"", 0)
    writer.write_record("text", "h\xe9", 3)
    # torch's writer takes this for a descriptor when it computes the id.
    writer.write_record("trap", b"PK\x07\x08" + bytes(range(60)), 64)
    storage = torch.arange(1000.0).untyped_storage()
    writer.write_record("data/1", storage, storage.nbytes())
    writer.write_record(".data/serialization_id", b"mine", 4)
    writer.write_end_of_file()


@pytest.mark.parametrize("crc32", [True, False])
@pytest.mark.parametrize("alignment", [1, 64, 512, 32768])
def test_files_are_torchs_byte_for_byte(crc32, alignment, tmp_path):
    found = []
    for name, make in (
        ("torch", torch._C.PyTorchFileWriter), ("ours", PyTorchFileWriter),
    ):
        folder = tmp_path / name
        folder.mkdir()
        writer = make(str(folder / "records.pt"), crc32, alignment)
        write_records(writer)
        found.append((
            (folder / "records.pt").read_bytes(),
            writer.archive_name(),
            writer.serialization_id(),
            writer.get_all_written_records(),
        ))
    assert found[0] == found[1]


def test_streams_are_torchs_byte_for_byte():
    streams = []
    for make in (torch._C.PyTorchFileWriter, PyTorchFileWriter):
        stream = io.BytesIO()
        write_records(make(stream, True, 64))
        streams.append(stream.getvalue())
    assert streams[0] == streams[1]


@pytest.mark.parametrize("options", [
    {}, {"compute_crc32": False}, {"storage_alignment": 4096},
    {"compute_crc32": True, "storage_alignment": 1},
])
@pytest.mark.parametrize("target", ["file_name", "buffer"])
def test_keywords_are_torchs(target, options, tmp_path):
    written = []
    for make in (torch._C.PyTorchFileWriter, PyTorchFileWriter):
        path = tmp_path / "x.pt"
        stream = io.BytesIO()
        writer = make(**{target: str(path) if target == "file_name" else stream},
                      **options)
        write_records(writer)
        written.append(stream.getvalue() or path.read_bytes())
    assert written[0] == written[1]


def writer_func_into(stream, calls):
    address_of = ctypes.pythonapi.PyCapsule_GetPointer
    address_of.restype = ctypes.c_void_p
    address_of.argtypes = [ctypes.py_object, ctypes.c_char_p]

    def write(capsule, size):
        calls.append(size)
        stream.write(
            bytes(size) if capsule is None
            else ctypes.string_at(address_of(capsule, None), size)
        )
        return size

    return write


def test_a_function_that_writes_gets_what_torch_gives_it():
    written = []
    for make in (torch._C.PyTorchFileWriter, PyTorchFileWriter):
        stream, calls = io.BytesIO(), []
        writer = make(writer_func=writer_func_into(stream, calls),
                      storage_alignment=512)
        writer.write_record_metadata("hole", 5000)
        write_records(writer)
        assert writer.archive_name() == "archive"
        assert sum(calls) == len(stream.getvalue())
        written.append(stream.getvalue())
    assert written[0] == written[1]


def test_a_function_that_takes_too_little_fails():
    writer = PyTorchFileWriter(writer_func=lambda address, size: size - 1)
    with pytest.raises(OSError, match="writer_func took"):
        writer.write_record("a", b"abc", 3)
        writer.write_end_of_file()


@pytest.mark.parametrize("version", [0, 5, 6, 10])
def test_the_version_record(version):
    streams = []
    for make in (torch._C.PyTorchFileWriter, PyTorchFileWriter):
        stream = io.BytesIO()
        writer = make(stream, True, 64)
        writer.set_min_version(version)
        writer.write_end_of_file()
        streams.append(stream.getvalue())
    assert streams[0] == streams[1]


@pytest.mark.parametrize("size", [
    1, 0xFFFFFFFE, 0xFFFFFFFF, 0x100000000, 0x100000001,
])
def test_zip64_as_torch_does(size, tmp_path):
    """Records at and beyond 4 GiB, as sparse files."""
    ends = []
    for make in (torch._C.PyTorchFileWriter, PyTorchFileWriter):
        path = tmp_path / "x.pt"
        with haulway.config(durability="none"):
            writer = make(str(path), True, 64)
        writer.write_record_metadata("hole", size)
        writer.write_record("after", b"0123456789", 10)
        writer.write_record("empty", b"", 0)
        writer.write_end_of_file()
        del writer
        with open(path, "rb") as file:
            head = file.read(64 * KIB)
            file.seek(max(0, path.stat().st_size - 64 * KIB))
            ends.append((head, file.read(), path.stat().st_size))
        assert path.stat().st_blocks < 1000
        reader = PyTorchFileReader(path)
        assert reader.get_record_size("hole") == size
        assert reader.get_record("after") == b"0123456789"
        os.unlink(path)
    assert ends[0] == ends[1]


def test_deflated_records_are_read_by_all():
    stream = io.BytesIO()
    text = b"again and " * 10_000
    with PyTorchFileWriter(stream) as writer:
        writer.write_record("text", text, compress=True)
        writer.write_record("tiny", b"abc", compress=True)
    assert len(stream.getvalue()) < 3000
    stream.seek(0)
    assert torch._C.PyTorchFileReader(stream).get_record("text") == text
    assert zipfile.ZipFile(stream).read("archive/tiny") == b"abc"
    stream.seek(0)
    assert PyTorchFileReader(stream).get_record("text") == text


def test_addresses_and_parts():
    stream = io.BytesIO()
    tensor = torch.arange(100, dtype=torch.uint8)
    with PyTorchFileWriter(stream) as writer:
        writer.write_record("address", tensor.data_ptr(), 100)
        writer.write_record("part", tensor.numpy(), 10)
        writer.write_record("typed", torch.arange(3).storage())
        with pytest.raises(ValueError, match="100"):
            writer.write_record("more", tensor.numpy(), 101)
        with pytest.raises(ValueError, match="size"):
            writer.write_record("no size", tensor.data_ptr())
    stream.seek(0)
    reader = PyTorchFileReader(stream)
    assert reader.get_record("address") == bytes(range(100))
    assert reader.get_record("part") == bytes(range(10))
    assert len(reader.get_record("typed")) == 24
    assert not reader.has_record("more")


def test_an_unfinished_file_is_never_seen(tmp_path):
    path = tmp_path / "x.pt"
    writer = PyTorchFileWriter(path)
    writer.write_record("a", b"abc")
    assert os.listdir(tmp_path) == []
    del writer
    assert os.listdir(tmp_path) == []
    with pytest.raises(KeyError):
        with PyTorchFileWriter(path) as writer:
            writer.write_record("a", b"abc")
            raise KeyError
    assert os.listdir(tmp_path) == []
    with PyTorchFileWriter(path) as writer:
        writer.write_record("a", b"abc")
    assert os.listdir(tmp_path) == ["x.pt"]


def test_misuse_is_an_error(tmp_path):
    writer = PyTorchFileWriter(tmp_path / "x.pt")
    writer.write_record("a", b"abc")
    with pytest.raises(ValueError, match="twice"):
        writer.write_record("a", b"abc")
    with pytest.raises(ValueError, match="too long"):
        writer.write_record("n" * 65_536, b"")
    writer.write_end_of_file()
    with pytest.raises(ValueError, match="finished"):
        writer.write_end_of_file()
    with pytest.raises(ValueError, match="finished"):
        writer.write_record("b", b"")
    with pytest.raises(ValueError, match="power of two"):
        PyTorchFileWriter(tmp_path / "y.pt", True, 131_072)
    with pytest.raises(FileNotFoundError):
        PyTorchFileWriter(tmp_path / "none" / "y.pt")
    with pytest.raises(ValueError, match="invalid file name"):
        PyTorchFileWriter(tmp_path / ".pt")
    with pytest.raises(TypeError):
        PyTorchFileWriter(3)
    with pytest.raises(TypeError, match="found 2"):
        PyTorchFileWriter("a.pt", buffer=io.BytesIO())
    with pytest.raises(TypeError, match="found 0"):
        PyTorchFileWriter()
    with pytest.raises(TypeError, match="expected a function"):
        PyTorchFileWriter(writer_func=3)


@pytest.mark.parametrize("data", [
    numpy.arange(12, dtype=numpy.uint8).reshape(3, 4)[:, ::2],
    numpy.arange(12, dtype=numpy.int16).reshape(3, 4).T,
    numpy.zeros((0, 4)), numpy.float32(3), memoryview(b"abc"),
], ids=["strided", "turned", "empty", "scalar", "view"])
def test_every_buffer_is_a_record(tmp_path, data):
    path = tmp_path / "a.pt"
    with PyTorchFileWriter(path) as writer:
        writer.write_record("x", data)
    found = PyTorchFileReader(path).get_record("x")
    assert found == memoryview(data).tobytes()


@pytest.mark.parametrize("method", [
    "get_record", "has_record", "get_record_size", "get_record_offset",
    "get_record_header_offset",
])
def test_a_name_that_is_no_text_is_refused(small, method):
    with pytest.raises(haulway.ArgumentTypeError,
                       match="name is int: expected a str"):
        getattr(PyTorchFileReader(small), method)(3)
