"""Folders of DTensor rank files are checkpoints."""

import json
import os
import subprocess
import sys

import numpy
import pytest
import torch

import haulway
from rank_files import Storage, dtensor, mesh, plain, shard, write_all
from rank_goldens import copy, expected, folder, found

KINDS = [("fsdp2_4", "model"), ("fsdp2_4", "optim"), ("tpfsdp_4", "model"),
         ("tpfsdp_4", "optim"), ("place_4", "model")]


@pytest.mark.parametrize(("kind", "part"), KINDS)
def test_tensors_are_those_of_full_tensor(kind, part):
    assert found(folder(kind), part=part) == expected(kind, part)
    state = haulway.load(folder(kind), part=part, verify=True)
    if part == "optim":
        assert state["param_groups"][0]["params"]
        state = {f"state.{i}.{name}": value for i, one in
                 state["state"].items() for name, value in one.items()}
    assert state.keys() == expected(kind, part).keys()
    with haulway.open(folder(kind), part=part) as opened:
        assert opened.format == "torch-ranks"
        for name, value in state.items():
            assert str(opened[name]) == str(value), name
            for row in range(value.shape[0] if value.ndim else 0):
                part = opened.get_slice(name)[row:row + 1]
                assert str(part) == str(value[row:row + 1])


@pytest.mark.parametrize(("kind", "part"), KINDS)
@pytest.mark.parametrize("to", ["safetensors", "pt"])
def test_converted_files_hold_the_same(kind, part, to, tmp_path):
    path = tmp_path / f"out.{to}"
    how = {"ties": "copy"} if to == "safetensors" else {}
    report = haulway.convert(folder(kind), path, part=part, proof=True, **how)
    assert len(report.proof) == len(expected(kind, part))
    assert found(path) == expected(kind, part)


def test_ties_are_kept():
    state = haulway.load(folder("fsdp2_4"))
    assert (state["emb.weight"].data_ptr() == state["head.weight"].data_ptr())
    assert haulway.diff(folder("fsdp2_4"), folder("fsdp2_4"))


def test_load_into_shard_and_iterate():
    want = haulway.load(folder("tpfsdp_4"))
    target = {name: torch.zeros_like(value) for name, value in want.items()}
    haulway.load_into(target, folder("tpfsdp_4"))
    for name, value in haulway.iterate(folder("tpfsdp_4")):
        assert torch.equal(value, want[name]) and torch.equal(value,
                                                              target[name])
    part = haulway.shard(folder("tpfsdp_4"), 1, 2)
    assert torch.equal(part["a.weight"], want["a.weight"][5:])


def test_ls_and_info(run):
    rank = folder("tpfsdp_4") / "model_world_size_4_rank_3.pt"
    rows = {row["name"]: row for row in
            json.loads(run("ls", "--json", rank).stdout)["tensors"]}
    assert rows.keys() == expected("tpfsdp_4").keys()
    row = rows["a.weight"]
    assert row["global_shape"] == [10, 6] and row["shape"] == [2, 6]
    assert row["placements"] == ["_S(0, 2)", "S(0)"]
    assert rows["five"]["placements"] == ["S(0)"]
    # Uneven parts are padded, and the padding is saved.
    assert rows["five"]["storage_bytes"] > rows["five"]["nbytes"]
    assert "global_shape" not in rows["inv_freq"]
    info = json.loads(run("info", "--json", folder("tpfsdp_4")).stdout)
    assert info["format"] == "torch-ranks"
    container = info["container"]
    assert container["world_size"] == 4 and container["part"] == "model"
    assert container["mesh"] == {"shape": [2, 2], "names": ["fsdp", "tp"]}
    assert container["placements"]["b.weight"] == ["S(0)", "S(1)"]
    opened = haulway.open(folder("tpfsdp_4"))
    assert opened.info("a.weight").shape == (10, 6)


def test_verify(run, tmp_path):
    run("verify", folder("fsdp2_4"))
    report = haulway.verify(folder("place_4"))
    assert report and report.checked_bytes > 0
    broken = copy("fsdp2_4", tmp_path / "broken")
    path = broken / "optim_world_size_4_rank_2.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    report = haulway.verify(broken)
    assert not report
    assert "optim_world_size_4_rank_2.pt" in report.findings[0].message
    run("verify", broken, code=1)


def test_verify_reads_only_what_has_replicas(tmp_path, run):
    # One element, shown as more than could be read.
    one = Storage(numpy.ones(1, "f4"))
    write_all(tmp_path / "run", 1, lambda rank: {
        "w": plain(None, shape=(1 << 45,), strides=(0,), storage=one)})
    run("verify", tmp_path / "run", timeout=60)


def test_extra_state_has_its_values(tmp_path):
    with pytest.raises(haulway.MismatchError, match="rank 1 of 4 is missing"):
        haulway.open(folder("fsdp2_4"), part="extra_state")
    opened = haulway.open(folder("fsdp2_4"), part="extra_state", lenient=True)
    assert opened.tree()


@pytest.mark.parametrize("part", ["model", "optim"])
def test_damage_is_an_error_and_never_a_wrong_tensor(part, tmp_path):
    """Each file cut, and bits of it flipped: refused, or the same tensors."""
    work = copy("fsdp2_4", tmp_path / "work")
    path = work / f"{part}_world_size_4_rank_1.pt"
    good = path.read_bytes()
    random = numpy.random.default_rng(7)
    for size in random.integers(0, len(good), 40):
        path.write_bytes(good[:size])
        with pytest.raises(haulway.Error):
            haulway.load(work, part=part, verify=True)
    for _ in range(150):
        data = bytearray(good)
        data[random.integers(len(data))] ^= 1 << random.integers(8)
        path.write_bytes(data)
        try:
            assert found(work, part=part) == expected("fsdp2_4", part)
            haulway.load(work, part=part, verify=True)
        except haulway.Error:
            continue
        except AssertionError:
            # The manifest checks no checksums; verify does.
            assert not haulway.verify(work, part=part)


WRITE = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore
whole = {"a": torch.arange(77.).view(11, 7), "b": torch.arange(5.),
         "c": torch.arange(24).view(2, 3, 4)}
places = {"a": [_StridedShard(0, split_factor=2), Shard(0)],
          "b": [Shard(0), Replicate()], "c": [Replicate(), Shard(2)]}
for rank in range(4):
    if os.fork():
        assert os.wait()[1] == 0
        continue
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    def part(name):
        tensor, spec = whole[name], places[name]
        if name == "a":  # As FSDP shards what TP sharded before.
            tensor = tensor.chunk(2)[mesh.get_local_rank(1)].chunk(2)
            tensor = tensor[mesh.get_local_rank(0)].clone()
        else:
            for dim, one in enumerate(spec):
                if one.is_shard():
                    tensor = tensor.chunk(2, one.dim)[
                        mesh.get_local_rank(dim)].clone()
        return DTensor.from_local(tensor, mesh, spec, run_check=False,
                                  shape=whole[name].shape,
                                  stride=whole[name].stride())
    torch.save({name: part(name) for name in whole},
               f"{sys.argv[1]}/model_world_size_4_rank_{rank}.pt")
    os._exit(0)
"""


def test_what_this_torch_writes(tmp_path):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", WRITE,
                           tmp_path], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    state = haulway.load(tmp_path)
    assert torch.equal(state["a"], torch.arange(77.).view(11, 7))
    assert torch.equal(state["b"], torch.arange(5.))
    assert torch.equal(state["c"], torch.arange(24).view(2, 3, 4))


def test_a_row_of_many_ranks_is_read_alone(tmp_path):
    whole = numpy.arange(64 * 4096, dtype="f4").reshape(64, 4096)
    write_all(tmp_path / "run", 64, lambda rank: {"w": dtensor(
        whole[rank:rank + 1], whole.shape, [shard(0)],
        mesh(numpy.arange(64), rank))})
    with haulway.open(tmp_path / "run", "numpy", mmap=False) as opened:
        for rank in set(range(64)) - {17}:
            os.truncate(
                tmp_path / f"run/model_world_size_64_rank_{rank}.pt", 0)
        assert (opened.get_slice("w")[17:18] == whole[17:18]).all()
        assert (opened.get_slice("w")[17] == whole[17]).all()
        with pytest.raises(haulway.TruncatedError, match="rank_18.pt"):
            opened.get_slice("w")[17:19]


def test_convert_needs_little_memory(tmp_path, run):
    """64 MiB in 4 files, with a budget of 8 MiB."""
    whole = numpy.random.default_rng(1).random((4096, 4096), "f4")
    write_all(tmp_path / "run", 4, lambda rank: {
        "rows": dtensor(whole[rank * 1024:][:1024], whole.shape, [shard(0)],
                        mesh(numpy.arange(4), rank)),
        "columns": dtensor(
            numpy.ascontiguousarray(whole[:, rank * 1024:][:, :1024]),
            whole.shape, [shard(1)], mesh(numpy.arange(4), rank))})
    code = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], "
            "check=True); print(resource.getrusage("
            "resource.RUSAGE_CHILDREN).ru_maxrss)")
    command = os.environ.get("HAULWAY_COMMAND", "haulway")
    done = subprocess.run(
        [sys.executable, "-c", code, command, "convert", tmp_path / "run",
         tmp_path / "out.safetensors", "--memory-budget", "8MiB"],
        capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) <= (8 + 60) * 1024
    out = haulway.load(tmp_path / "out.safetensors", "numpy")
    assert (out["rows"] == whole).all() and (out["columns"] == whole).all()
