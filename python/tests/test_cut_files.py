"""Files that shrink while they are read: an error, never a signal."""

import subprocess
import sys

import numpy
import pytest

import haulway

# Loads the file it is given; cuts it as soon as anything of it was loaded.
CHILD = """
import os, sys
import haulway

path, io = sys.argv[1:]
try:
    haulway.load(
        path, framework="numpy", io=io, verify=True, threads=1,
        progress=lambda *_: os.truncate(path, 8192))
except haulway.TruncatedError:
    print("TruncatedError")
"""


@pytest.mark.parametrize("io", ["auto", "mmap", "pread"])
def test_a_file_that_is_cut_while_it_is_loaded_raises(tmp_path, io):
    path = tmp_path / "w.pt"
    tensors = {str(i): numpy.ones(1 << 20, numpy.float32) for i in range(8)}
    haulway.save(tensors, str(path))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), io],
        capture_output=True, text=True, timeout=60, check=False,
    )
    assert done.stdout.strip() == "TruncatedError", (done.returncode, done.stderr)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_loading_a_file_that_was_cut_after_it_was_opened_raises(
    tmp_path, suffix
):
    path = tmp_path / f"w.{suffix}"
    haulway.save({"w": numpy.ones(1 << 20, numpy.float32)}, str(path))
    path.write_bytes(path.read_bytes()[:8192])
    with pytest.raises(haulway.TruncatedError):
        haulway.load(str(path), framework="numpy")
