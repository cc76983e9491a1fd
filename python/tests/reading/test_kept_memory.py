"""Freed memory of a load serves the next load, and is then returned to the
system."""

import contextlib
import gc
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import haulway
from haulway import _haulway

MIB = 1 << 20


@pytest.fixture
def saved(tmp_path):
    """Returns the path of a file with 12 MiB in three arrays."""
    _haulway.clear_memory_pool()
    path = tmp_path / "model.safetensors"
    haulway.save(
        {str(i): np.full(4 * MIB, i, dtype=np.uint8) for i in range(3)}, path
    )
    yield path
    _haulway.clear_memory_pool()


def load(path):
    stats = {}
    arrays = haulway.load(path, "numpy", io="pread", stats=stats)
    assert [int(arrays[str(i)].min()) for i in range(3)] == [0, 1, 2]
    return arrays, stats["pages"]


def address(arrays):
    return min(array.ctypes.data for array in arrays.values())


def test_the_next_load_takes_the_memory_of_the_last(saved):
    arrays, pages = load(saved)
    assert "earlier load" not in pages
    place = address(arrays)
    del arrays
    assert 12 * MIB <= _haulway.kept_bytes() < 13 * MIB
    arrays, pages = load(saved)
    assert pages == "memory of an earlier load"
    assert address(arrays) == place
    assert _haulway.kept_bytes() == 0


def test_arrays_in_use_keep_their_memory(saved):
    first, _ = load(saved)
    kept = first["1"]
    del first
    second, pages = load(saved)
    assert "earlier load" not in pages
    for i in range(3):
        second[str(i)][:] = 7
    assert kept.min() == kept.max() == 1


def test_memory_goes_back_after_seconds(saved):
    load(saved)
    gc.collect()
    assert _haulway.kept_bytes() >= 12 * MIB
    until = time.monotonic() + 60
    while _haulway.kept_bytes() or "haulway-pool" in threads():
        assert time.monotonic() < until
        time.sleep(0.01)


def threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):  # It has ended.
            names.append(open(f"/proc/self/task/{task}/comm").read().strip())
    return names


def test_a_fork_finds_no_thread_and_no_memory(saved):
    load(saved)
    assert _haulway.kept_bytes() >= 12 * MIB
    child = os.fork()
    if child == 0:
        try:
            load(saved)
            arrays, pages = load(saved)
            os._exit(0 if "earlier load" not in pages else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert _haulway.kept_bytes() == 0
    assert "haulway-pool" not in threads()


SHORT = """
import resource, sys
import haulway
from haulway import _haulway
MIB = 1 << 20
haulway.load(sys.argv[1], "numpy", io="pread")
assert _haulway.kept_bytes() >= 64 * MIB
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 110 * MIB, now + 110 * MIB))
arrays = haulway.load(sys.argv[2], "numpy", io="pread", threads=1)
assert int(arrays["a"].min()) == 2 and _haulway.kept_bytes() == 0
"""


def test_kept_memory_goes_back_if_there_is_no_other(tmp_path):
    paths = [tmp_path / "small.safetensors", tmp_path / "large.safetensors"]
    for path, mebibytes, value in zip(paths, (64, 140), (1, 2)):
        haulway.save({"a": np.full(mebibytes * MIB, value, np.uint8)}, path)
    done = subprocess.run(
        [sys.executable, "-c", SHORT, *paths], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
