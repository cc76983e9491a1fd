"""Statistics and progress of saving, the same for every format."""

import numpy as np
import pytest
import torch

import haulway
import haulway.torch

SUFFIXES = (".pt", ".safetensors", ".tensors")
COUNTS = ("bytes", "tensor_bytes", "written_bytes", "copied_bytes", "direct_bytes",
          "requests", "threads")
SECONDS = (
    "seconds", "allocate_seconds", "digest_seconds", "encode_seconds",
    "write_seconds", "commit_seconds",
)


def tensors(count=8, elements=1 << 18):
    return {f"layer.{i}": np.full(elements, i, "<f4") for i in range(count)}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("durability", ["none", "full"])
def test_every_format_says_what_it_did(suffix, durability, tmp_path):
    obj, path, stats = tensors(), tmp_path / f"x{suffix}", {}
    done = haulway.save(obj, path, durability=durability, stats=stats)
    assert stats == done
    assert set(stats) == {*COUNTS, *SECONDS, "direct"}
    data = sum(array.nbytes for array in obj.values())
    assert stats["bytes"] == path.stat().st_size
    # A pickle is a payload, too.
    assert data <= stats["tensor_bytes"] <= data + 4096
    assert data <= stats["written_bytes"] <= stats["bytes"] + 4096
    assert stats["requests"] > 0 and stats["threads"] > 0
    assert stats["direct_bytes"] <= stats["written_bytes"]
    assert stats["direct"] == (stats["direct_bytes"] > 0)
    for name in SECONDS:
        assert 0 <= stats[name] <= stats["seconds"] * stats["threads"], name
    assert stats["write_seconds"] > 0
    has_digests = suffix != ".safetensors"
    assert (stats["digest_seconds"] > 0) == has_digests
    assert stats["encode_seconds"] == 0


def test_encrypting_is_told_apart(tmp_path):
    stats = haulway.save(tensors(), tmp_path / "x.tensors", key=bytes(range(32)))
    for name in ("digest_seconds", "encode_seconds", "write_seconds"):
        assert 0 < stats[name] <= stats["seconds"] * stats["threads"], name


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_small_budget_means_fewer_threads_and_the_same_file(suffix, tmp_path):
    obj, stats = tensors(), {}
    haulway.save(obj, tmp_path / f"a{suffix}", threads=4)
    haulway.save(obj, tmp_path / f"b{suffix}", threads=4,
                 memory_budget=17 << 20, stats=stats)
    assert stats["threads"] == 2
    haulway.save(obj, tmp_path / f"c{suffix}", threads=4, memory_budget=1,
                 stats=stats)
    assert stats["threads"] == 1
    for name in "bc":
        loaded = haulway.load(tmp_path / f"{name}{suffix}", "numpy")
        for key, array in obj.items():
            np.testing.assert_array_equal(loaded[key], array)


@pytest.mark.parametrize("suffix", (".pt", ".tensors"))
def test_saving_asynchronously_fills_them_before_the_future_is_done(
    suffix, tmp_path
):
    stats, seen = {}, []
    future = haulway.save_async(
        tensors(), tmp_path / f"x{suffix}", stats=stats, memory_budget=1 << 20,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert future.result() == stats
    assert stats["threads"] == 1
    assert seen == sorted(seen) and seen[-1][0] > 0


def test_torchs_signature_takes_them_too(tmp_path):
    stats, seen = {}, []
    made = {"w": torch.arange(1 << 20)}
    assert haulway.torch.save(
        made, tmp_path / "x.pt", stats=stats,
        progress=lambda done, total: seen.append((done, total)),
    ) is None
    assert stats["bytes"] == (tmp_path / "x.pt").stat().st_size
    assert seen[-1][0] == seen[-1][1] == stats["bytes"]


@pytest.mark.parametrize("save", [
    haulway.save, haulway.save_async, haulway.torch.save,
])
def test_what_is_no_dict_is_refused_before_anything_is_written(save, tmp_path):
    with pytest.raises(TypeError, match="stats is list: expected a dict"):
        save({}, tmp_path / "x.pt", stats=[])
    assert not (tmp_path / "x.pt").exists()
