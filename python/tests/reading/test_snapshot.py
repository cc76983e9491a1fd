"""Tensors in the page cache: mapped, but unchanged since the load."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import haulway
import haulway.torch

FORMATS = ["model.pt", "model.safetensors", "model.tensors"]


def tensors():
    rng = np.random.default_rng(2)
    return {
        f"layer.{i}": torch.from_numpy(
            rng.standard_normal((600, 257), dtype=np.float32)
        )
        for i in range(6)
    }


def write(path, data=None):
    data = tensors() if data is None else data
    if path.suffix == ".pt":
        torch.save(data, path)
    else:
        haulway.save(data, path)
    return path


@pytest.fixture(params=FORMATS)
def path(request, tmp_path):
    return write(tmp_path / request.param)


@pytest.fixture
def safetensors(tmp_path):
    return write(tmp_path / "model.safetensors")


def snapshot(path, framework="torch", **options):
    stats = {}
    try:
        loaded = haulway.load(
            path, framework, io="snapshot", stats=stats, **options
        )
    except NotImplementedError as error:
        pytest.skip(str(error))
    if stats["io"] != "snapshot":
        # Payloads of Tensorizer files may start at any offset.
        assert path.suffix == ".tensors"
        assert stats["reason"] == "nothing of it is handed out as it is"
    return loaded


def assert_unchanged(loaded):
    for name, tensor in tensors().items():
        assert torch.equal(torch.as_tensor(loaded[name]), tensor)


def truncate(path):
    os.truncate(path, 10)


def overwrite(path):
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.write(b"\xff" * size)


def write_anew(path):
    path.write_bytes(b"something else")


def save_with_torch(path):
    torch.save({"other": torch.zeros(1_000_000)}, path)


def save_with_haulway(path):
    haulway.torch.save({"other": torch.zeros(1_000_000)}, path)


def delete(path):
    path.unlink()


CHANGES = [
    truncate, overwrite, write_anew, save_with_torch, save_with_haulway, delete
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_no_change_of_the_file_shows(path, framework, change):
    loaded = snapshot(path, framework)
    change(path)
    assert_unchanged(loaded)


@pytest.mark.parametrize("verify", [False, True])
def test_auto_chooses_it_where_it_can(path, verify):
    stats = {}
    loaded = haulway.load(path, "torch", verify=verify, stats=stats)
    if path.suffix == ".tensors" and stats["io"] != "snapshot":
        return  # Payloads start at odd offsets.
    if stats["file_system"] not in ("ext4", "xfs", "btrfs", "tmpfs"):
        return
    assert stats["io"] == "snapshot", stats["reason"]
    assert stats["reason"] == (
        "100 % of it is in the page cache, mapped under a lease"
    )
    truncate(path)
    assert_unchanged(loaded)


def test_auto_says_why_it_does_not(safetensors):
    stats = {}
    with open(safetensors, "r+b"):
        loaded = haulway.load(safetensors, "torch", stats=stats)
    assert stats["io"] != "snapshot"
    assert "open for writing" in stats["reason"] or (
        "has no leases" in stats["reason"]
    )
    assert_unchanged(loaded)


def test_torch_load_is_a_snapshot(tmp_path):
    path = write(tmp_path / "model.pt")
    stats = {}
    loaded = haulway.torch.load(path, stats=stats)
    truncate(path)
    assert_unchanged(loaded)
    stats.clear()
    with pytest.raises(haulway.Error):
        haulway.torch.load(path, stats=stats)


def test_tensors_are_writable_shareable_and_apart(safetensors):
    one, two = snapshot(safetensors), snapshot(safetensors)
    one["layer.0"].add_(1)
    one["layer.1"].share_memory_()
    one["layer.1"].zero_()
    assert_unchanged(two)
    truncate(safetensors)
    assert torch.equal(one["layer.0"], tensors()["layer.0"] + 1)
    assert one["layer.1"].count_nonzero() == 0
    one["layer.0"].sub_(1)
    assert_unchanged(two)


def test_one_tensor_that_is_left_keeps_its_bytes(safetensors):
    loaded = snapshot(safetensors)
    left = loaded.pop("layer.4")
    del loaded
    gc.collect()
    truncate(safetensors)
    assert torch.equal(left, tensors()["layer.4"])


def test_nobody_waits_when_all_are_gone(safetensors):
    loaded = snapshot(safetensors)
    del loaded
    gc.collect()
    # A lease would make this fail with EWOULDBLOCK.
    os.close(os.open(safetensors, os.O_WRONLY | os.O_NONBLOCK))


def test_iterate_gives_snapshots(safetensors):
    stats = {}
    try:
        found = dict(
            haulway.iterate(safetensors, "torch", io="snapshot", stats=stats)
        )
    except NotImplementedError as error:
        pytest.skip(str(error))
    truncate(safetensors)
    assert_unchanged(found)


def test_writers_of_training_lose_nothing(safetensors):
    """Threads modify tensors while the file is rewritten."""
    loaded = snapshot(safetensors)
    counts = dict.fromkeys(loaded, 0)
    stop = threading.Event()

    def work(name):
        while not stop.is_set():
            loaded[name].add_(1)
            counts[name] += 1

    threads = [
        threading.Thread(target=work, args=(name,))
        for name in list(loaded)[:3]
    ]
    for thread in threads:
        thread.start()
    while min(counts[name] for name in list(loaded)[:3]) < 3:
        pass
    overwrite(safetensors)
    stop.set()
    for thread in threads:
        thread.join()
    for name, tensor in tensors().items():
        for _ in range(counts[name]):
            tensor.add_(1)
        assert torch.equal(loaded[name], tensor)


# With "signals", no further signal can be queued.
@pytest.mark.parametrize("limit", ["", "signals"])
def test_a_child_has_the_tensors_too(safetensors, limit):
    script = """
import os, resource, sys, warnings
import haulway
warnings.simplefilter("error")
path = sys.argv[1]
stats = {}
loaded = haulway.load(path, "numpy", stats=stats)
before = {name: array.copy() for name, array in loaded.items()}
if sys.argv[2]:
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))
child = os.fork()
if child == 0:
    os.truncate(path, 0)
    same = all((loaded[name] == before[name]).all() for name in loaded)
    os._exit(0 if same else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert all((loaded[name] == before[name]).all() for name in loaded)
print(stats["io"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(safetensors), limit],
        capture_output=True, text=True, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("snapshot", "pread", "uring", "direct")


def test_the_program_ends_with_tensors_alive(safetensors):
    script = """
import sys, threading, time
import haulway
loaded = haulway.load(sys.argv[1], "numpy")
threading.Thread(target=time.sleep, args=(0.1,), daemon=True).start()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(safetensors)],
        capture_output=True, text=True, timeout=120,
    )
    assert done.returncode == 0 and done.stderr == ""
