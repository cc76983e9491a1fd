"""A file that shrinks while it is read causes an error, never a signal."""

import subprocess
import sys

import numpy
import pytest
import torch

import haulway

# Loads a file, and truncates it as soon as part of it was loaded.
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


# Reads everything in an index after the file is gone.
LOOKER = """
import os, sys
import haulway

path = sys.argv[1]
checkpoint = haulway.open(path, "numpy", io="mmap")
before = repr((list(checkpoint), checkpoint.container))
os.truncate(path, 0)
assert repr((list(checkpoint), checkpoint.container)) == before
print(len(repr(checkpoint.tree())) > 1000, checkpoint.info("w0").shape)
core = checkpoint._core
print({core.storage(row).location for row in range(core.storage_count())})
try:
    checkpoint["w0"]
except haulway.TruncatedError:
    print("TruncatedError")
"""


@pytest.mark.parametrize("kind", ["zip", "stacked", "package", "safetensors"])
def test_an_index_stays_when_its_file_is_cut(tmp_path, kind):
    """Names and places are never read from a mapping."""
    path = tmp_path / "x"
    tensors = {f"w{i}": torch.full((4096,), i) for i in range(64)}
    if kind == "safetensors":
        path = tmp_path / "x.safetensors"
        haulway.save(tensors, path)
    elif kind == "package":
        from torch.package import PackageExporter

        with PackageExporter(str(path)) as package:
            package.save_pickle("p", "a.pkl", tensors["w0"])
    else:
        torch.save(tensors, path,
                   _use_new_zipfile_serialization=kind == "zip")
    looker = LOOKER
    if kind == "package":
        looker = looker.replace('"w0"', "next(iter(checkpoint))")
        looker = looker.replace("> 1000", "> 10")
    done = subprocess.run(
        [sys.executable, "-c", looker, str(path)], capture_output=True,
        text=True, timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "TruncatedError"


# Reads a tensor in each way from a file that was truncated after opening.
TAKER = """
import os, sys
import haulway
from haulway.safetensors import safe_open

path, io = sys.argv[1:]
ours = haulway.open(path, "torch", io=io)
theirs = safe_open(path, "pt")
os.truncate(path, 8192)
for take in (lambda: ours["w"][0].item(),
             lambda: theirs.get_tensor("w")[0].item(),
             lambda: theirs.get_tensors()["w"][0].item(),
             lambda: theirs.get_slice("w")[5:6].item()):
    try:
        take()
        print("taken")
    except haulway.Error as error:
        print(error.code)
"""


@pytest.mark.parametrize("io", ["auto", "mmap", "pread"])
def test_taking_a_tensor_that_was_cut_off_raises(tmp_path, io):
    path = tmp_path / "w.safetensors"
    haulway.save({"w": numpy.ones(1 << 20, numpy.float32)}, path)
    done = subprocess.run(
        [sys.executable, "-c", TAKER, str(path), io], capture_output=True,
        text=True, timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["kTruncated"] * 4, done.stdout
