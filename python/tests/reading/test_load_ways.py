"""haulway.load and haulway.iterate: I/O modes, budgets, statistics."""

import contextlib
import gc
import os

import numpy as np
import pytest
import torch

import haulway
from haulway import _haulway

WAYS = ["auto", "mmap", "pread", "direct", "uring", "snapshot"]
FORMATS = ["model.pt", "model.safetensors", "model.tensors"]


def tensors():
    rng = np.random.default_rng(1)
    return {
        f"layer.{i}.weight": torch.from_numpy(
            rng.integers(0, 255, (i + 1, 30_001), dtype=np.uint8)
        )
        for i in range(12)
    } | {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 4)}


@pytest.fixture(scope="module", params=FORMATS)
def saved(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("ways") / request.param
    data = tensors()
    if path.suffix == ".pt":
        torch.save(data, path)
    else:
        haulway.save(data, path)
    return path, data


@contextlib.contextmanager
def allowed(io):
    """Leaves the test out where the machine does not allow this way."""
    try:
        yield
    except NotImplementedError as error:
        assert io in ("direct", "uring", "snapshot")
        pytest.skip(str(error).split("; of ")[0])


def assert_same(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert torch.equal(found, expected)


@pytest.mark.parametrize("io", WAYS)
def test_every_way_loads_the_same(saved, io):
    path, expected = saved
    stats = {}
    with allowed(io):
        loaded = haulway.load(path, "torch", io=io, verify=True, stats=stats)
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_same(loaded[name], tensor)
    if stats["reason"] == "nothing of it is handed out as it is":
        assert io == "snapshot" and path.suffix == ".tensors"
    else:
        assert stats["io"] == io or io == "auto"
    assert stats["reason"] and stats["seconds"] > 0
    assert stats["tensor_bytes"] == sum(t.nbytes for t in expected.values())
    assert stats["file_system"]
    assert 0 <= stats["resident"] <= 1


@pytest.mark.parametrize("io", ["auto", "pread", "mmap"])
def test_torch_load_takes_a_way_and_tells(saved, io):
    path, expected = saved
    if path.suffix == ".tensors":
        path = path.with_suffix(".pt")
        torch.save(expected, path)
    import haulway.torch

    stats = {}
    loaded = haulway.torch.load(path, io=io, stats=stats)
    for name, tensor in expected.items():
        assert_same(loaded[name], tensor)
    assert stats["io"] in (("snapshot", "pread") if io == "auto" else (io,))


def test_a_way_that_is_none_is_refused(saved):
    path, _ = saved
    with pytest.raises(ValueError, match="io: expected 'auto' or .*found 'fast'"):
        haulway.load(path, io="fast")
    with pytest.raises(NotImplementedError, match="no local file"):
        haulway.load(path.read_bytes(), io="direct")
    with pytest.raises(TypeError, match="stats is int"):
        haulway.load(path, stats=1)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("order", ["plan", "completion"])
def test_iterate_yields_all_within_its_budget(saved, framework, order):
    path, expected = saved
    stats = {}
    found = {}
    for name, tensor in haulway.iterate(
        path, framework, order=order, memory_budget=500_000, stats=stats,
        verify=True,
    ):
        found[name] = torch.as_tensor(tensor).clone()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_same(found[name], tensor)
    assert stats["tensor_bytes"] == sum(t.nbytes for t in expected.values())


def test_iterate_goes_by_the_order_of_the_file(saved):
    path, expected = saved
    names = [name for name, _ in haulway.iterate(path, memory_budget=200_000)]
    offsets = haulway.open(path)
    assert sorted(names) == sorted(expected)
    large = [name for name in names if name.startswith("layer")]
    if path.suffix == ".pt":
        assert large == [name for name in offsets if name.startswith("layer")]


def test_iterate_only_what_is_included(saved):
    path, expected = saved
    found = dict(haulway.iterate(path, include=["layer.1*", "scalar"]))
    assert sorted(found) == [
        "layer.1.weight", "layer.10.weight", "layer.11.weight", "scalar",
    ]
    for name, tensor in found.items():
        assert_same(tensor, expected[name])


def test_iterate_can_be_left_early(saved):
    path, expected = saved
    stats = {}
    iterator = haulway.iterate(path, memory_budget=100_000, stats=stats)
    name, tensor = next(iterator)
    iterator.close()
    del iterator
    gc.collect()
    assert_same(tensor, expected[name])
    assert "reason" in stats


def test_iterate_raises_what_it_meets(saved, tmp_path):
    path, _ = saved
    with pytest.raises(ValueError, match="order: expected .* found .late"):
        haulway.iterate(path, order="late")
    with pytest.raises(FileNotFoundError):
        haulway.iterate(tmp_path / "none")

    def fail(done, total):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        list(haulway.iterate(path, progress=fail))


@pytest.mark.parametrize("io", ["auto", "mmap", "pread", "direct"])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_file_that_shrinks_is_truncated_in_every_way(tmp_path, io, mapped):
    path = tmp_path / "cut.pt"
    torch.save({"a": torch.zeros(1 << 20, dtype=torch.uint8)}, path)
    core = _haulway.open_checkpoint(_haulway.open_source(str(path), mapped))
    os.truncate(path, 8192)
    with pytest.raises((haulway.TruncatedError, NotImplementedError)):
        core.load_storages([0], {"io": io, "verify": True}, None)


def test_memory_stays_within_the_budget(tmp_path):
    """Measured: a child that reads 256 MiB grows by far less."""
    import subprocess
    import sys

    path = tmp_path / "large.safetensors"
    haulway.save(
        {f"t{i}": np.full(4 << 20, i, np.uint8) for i in range(64)}, path
    )
    code = """
import resource, sys
import haulway
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
next(haulway.iterate(sys.argv[1], "numpy", memory_budget=1 << 20))
before = peak()
total = 0
for name, array in haulway.iterate(
        sys.argv[1], "numpy", io="pread", memory_budget=32 << 20):
    total += array.nbytes
    assert array[-1] == int(name[1:])
print(total, peak() - before)
"""
    told = subprocess.run(
        [sys.executable, "-c", code, str(path)], text=True,
        capture_output=True, check=True,
    ).stdout.split()
    assert int(told[0]) == 256 << 20
    # The budget, plus the tensors that the consumer holds.
    assert int(told[1]) < (32 + 16) << 20


LOADS = {
    "load": lambda path: haulway.load(path, "numpy"),
    "include": lambda path: haulway.load(path, "numpy", include="a"),
    "iterate": lambda path: list(haulway.iterate(path, "numpy")),
    "shard": lambda path: haulway.shard(path, 0, 1, framework="numpy"),
}


@pytest.mark.alone  # All reads of the process are counted.
@pytest.mark.parametrize("load", LOADS)
def test_little_is_loaded_without_asking_for_memory(load, tmp_path):
    """Querying the available memory takes longer than reading so little."""

    def bytes_read_by(call, path):
        counts = []
        for _ in range(3):  # The last one imports nothing.
            call(path)
            with open("/proc/self/io") as io:
                counts.append(int(io.readline().split()[1]))
        return counts[2] - counts[1]

    little, much = tmp_path / "little.safetensors", tmp_path / "much.safetensors"
    haulway.save({"a": np.ones(16, np.float32)}, little)
    haulway.save({"a": np.ones(1 << 20, np.float32)}, much)
    counting = bytes_read_by(lambda path: None, little)
    asked = len(open("/proc/meminfo").read())
    assert bytes_read_by(LOADS[load], little) - counting < asked
    assert bytes_read_by(LOADS[load], much) - counting > asked


@pytest.mark.parametrize("io", ["auto", "pread", "mmap", "direct", "uring"])
@pytest.mark.parametrize("dtype", ["complex32", "complex64", "complex128"])
def test_complex_numbers_are_where_torch_may_use_them(tmp_path, dtype, io):
    """Its instructions fault on complex numbers that are aligned only as their
    parts are."""
    dtype = getattr(torch, dtype)
    made = {}
    for i in range(40):
        made[f"odd{i}"] = torch.ones(i, dtype=torch.int8)
        made[f"c{i}"] = torch.ones(1 + i % 3, dtype=dtype)
    path = tmp_path / "x.tensors"
    haulway.save(made, path)
    with allowed(io):
        found = haulway.load(path, "torch", io=io)
    for name, tensor in made.items():
        assert found[name].data_ptr() % tensor.element_size() == 0
        assert torch.equal(found[name].clone().view(torch.int8),
                           tensor.view(torch.int8))
