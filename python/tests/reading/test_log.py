"""The logger "haulway": choices and their reasons."""

import io
import logging
import subprocess
import sys

import numpy as np
import pytest

import haulway
from needed_metadata import needed


@pytest.fixture
def said(caplog):
    """Returns the messages since the last call."""
    caplog.set_level(logging.DEBUG, "haulway")

    def said():
        lines = [record.getMessage() for record in caplog.records
                 if record.name == "haulway"]
        caplog.clear()
        return lines

    return said


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    haulway.save({"w": np.arange(12.0)}, path)
    return path


def one(lines, *words):
    """Returns the only line that contains all words."""
    (found,) = [line for line in lines if all(word in line for word in words)]
    return found


def test_a_load_says_format_way_threads_and_reason(path, said):
    stats = {}
    haulway.load(path, "numpy", io="pread", verify=True, threads=1, stats=stats)
    lines = said()
    one(lines, str(path), "format safetensors", "1 tensors", "pread",
        "io by call")
    one(lines, str(path), "read 96 bytes", "by pread", "1 threads",
        "checksums checked")
    haulway.load(path, "numpy", stats=stats)
    read = one(said(), "read 96 bytes", "checksums not checked")
    assert stats["io"] in read and stats["reason"] in read and stats["reason"]


def test_an_open_checkpoint_says_what_it_is_read_by(path, said):
    with haulway.open(path, "numpy") as checkpoint:
        one(said(), "format safetensors", "mmap (not asked for)")
        checkpoint["w"]
        one(said(), str(path), "by mmap")
    with haulway.config(load={"io": "pread"}), haulway.open(path, "numpy"):
        one(said(), "io by context")


def test_a_framework_that_nobody_named_is_explained(path, said):
    haulway.open(path)
    one(said(), "framework torch: torch is installed")


def test_saving_says_format_and_reason(tmp_path, said):
    state = {"w": np.zeros(3)}
    haulway.save(state, tmp_path / "a.gguf", durability="none", **needed("gguf"))
    lines = said()
    one(lines, "a.gguf", "format gguf, as its name ends")
    one(lines, "save: wrote", "durability none")
    haulway.save(state, tmp_path / "a.bin", "npz")
    one(said(), "a.bin", "format npz, as asked for")
    haulway.save(state, io.BytesIO())
    one(said(), "format torch, a file object has no ending")
    haulway.convert(tmp_path / "a.gguf", tmp_path / "a.safetensors")
    one(said(), "convert: wrote")


class Pipe(io.RawIOBase):
    """A stream that cannot seek."""

    def __init__(self, data):
        self._data = io.BytesIO(data)

    def readable(self):
        return True

    def read(self, size=-1):
        return self._data.read(size)


def test_how_a_file_object_is_read_is_said(path, said):
    data = path.read_bytes()
    haulway.load(Pipe(data), "numpy")
    one(said(), "a file object that cannot seek; it is read whole")

    class Ranges(io.BytesIO):
        read_by_ranges = True

    with open(path, "rb") as file:
        haulway.load(io.BufferedReader(Ranges(data)), "numpy")
        one(said(), "a file object that is read by ranges")
        haulway.load(file, "numpy")
        assert not any("file object" in line for line in said())


def test_no_secret_is_said(tmp_path, said):
    path = tmp_path / "x.tensors"
    haulway.save({"w": np.zeros(3)}, path, passphrase="opensesame")
    haulway.load(path, "numpy", passphrase="opensesame")
    with pytest.raises(haulway.Error):
        haulway.load("http://me:opensesame@localhost:1/x?token=opensesame",
                     "numpy", retries=0)
    text = "\n".join(said())
    assert "tensorizer" in text and "opensesame" not in text


def test_it_is_silent_unless_asked(path, caplog, capfd):
    caplog.set_level(logging.INFO, "haulway")
    haulway.load(path, "numpy")
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_a_program_without_logging_is_not_made_to_import_it(path):
    subprocess.run(
        [sys.executable, "-c",
         "import haulway, sys\n"
         f"path = {str(path)!r}\n"
         "haulway.load(path, 'numpy')\n"
         "haulway.open(path, 'numpy')['w']\n"
         "assert 'logging' not in sys.modules\n"
         "import logging\n"
         "logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)\n"
         "haulway.load(path, 'numpy')\n"],
        check=True, stdout=subprocess.PIPE,
    ).stdout.index(b"DEBUG:haulway:")
