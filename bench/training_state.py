"""What the processes of a training leave on disk: the cases of
bench/training_bench.py for compressed directories, rank files and steps of a
run.

    python bench/training_state.py merge FOLDER OUT
    python bench/training_state.py write FOLDER RANKS TENSORS ROWS

The first is the usual merge of rank files, the second writes such files.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint._extension import ZStandard

import haulway
from haulway.torch.dcp import LoadPlanner, Reader, Writer
from side_by_side import Fact

COLUMNS = 1024


def weights(gib):
    torch.manual_seed(0)
    return {f"w{i}": (torch.randn(int(gib * (1 << 23))) * 0.02).bfloat16()
            for i in range(64)}


def compressed(folder, state):
    """Yields loads and durable saves of weights that zstd compresses."""
    def theirs(target):
        dcp.save(state, no_dist=True, storage_writer=dcp.FileSystemWriter(
            target, _extensions=[ZStandard()]))

    def ours(target):
        dcp.save(state, no_dist=True,
                 storage_writer=Writer(target, compress="zstd"))

    into = {name: torch.empty_like(one) for name, one in state.items()}
    theirs(folder / "read")
    yield "dcp.load, zstd", [
        ("haulway", lambda: dcp.load(
            into, storage_reader=Reader(folder / "read"),
            planner=LoadPlanner(), no_dist=True)),
        ("torch", lambda: dcp.load(
            into, checkpoint_id=folder / "read", no_dist=True)),
    ]
    yield "dcp.save, zstd, durable", [
        ("haulway", lambda: ours(folder / "ours")),
        ("torch", lambda: theirs(folder / "theirs")),
    ]


def write_ranks(folder, world, tensors, rows):
    """Writes rank files of DTensors of `rows` rows, cut along the rows."""
    folder.mkdir()
    subprocess.run([sys.executable, __file__, "write", folder, str(world),
                    str(tensors), str(rows)], check=True)


def write(folder, world, tensors, rows):
    """Writes the files of all ranks, each in a group that only seems to be."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for rank in range(world):
        dist.init_process_group("fake", store=FakeStore(), rank=rank,
                                world_size=world)
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
        torch.save(
            {f"w{i}": DTensor.from_local(torch.randn(rows // world, COLUMNS),
                                         mesh, [Shard(0)])
             for i in range(tensors)},
            f"{folder}/model_world_size_{world}_rank_{rank}.pt")
        dist.destroy_process_group()


def merge(folder, out):
    """Merges rank files as the scripts of many projects do."""
    import torch.distributed.tensor  # noqa: F401

    states = [torch.load(path, weights_only=True) for path in
              sorted(Path(folder).glob("model_world_size_*.pt"))]
    save_file({name: torch.cat([one[name]._local_tensor for one in states])
               for name in states[0]}, out)


def merging(folder, gib):
    """Returns the merge of 4 rank files, both as commands."""
    write_ranks(folder, 4, 64, int(gib * (1 << 30) / 64 / COLUMNS / 4))
    out = folder.parent
    command = Path(sys.executable).with_name("haulway")
    return [
        ("haulway", lambda: subprocess.run(
            [command, "convert", folder, out / "ours.safetensors",
             "--overwrite", "--no-sync"], check=True,
            stdout=subprocess.DEVNULL)),
        ("torch.load, cat, save_file", lambda: subprocess.run(
            [sys.executable, __file__, "merge", folder,
             out / "theirs.safetensors"], check=True)),
    ]


def one_row(folder):
    """Returns what is read of 64 rank files for one row of one tensor."""
    def read_so_far():
        with open("/proc/self/io") as file:
            return int(file.readline().split()[1])

    write_ranks(folder, 64, 4, 640)
    row = COLUMNS * 4
    with haulway.open(folder, mmap=False) as checkpoint:
        part = checkpoint.get_slice("w2")
        before = read_so_far()
        part[77:78]
        read = read_so_far() - before
    # The frame of its record is read too, once, and /proc/self/io itself.
    return Fact("one row of a tensor of 64 rank files, of 4,096 bytes",
                f"{read:,} bytes", "its bytes and a frame",
                row <= read < row + 1024)


def saving_steps(folder, gib):
    """Compares durable saves of steps of a run with those of files."""
    state = {f"w{i}": torch.randn(int(gib * (1 << 22))) for i in range(64)}
    run = haulway.Checkpoints(folder / "run", keep=2)
    steps = iter(range(1_000_000))
    return [
        ("haulway", lambda: run.save(state, next(steps))),
        ("haulway.save", lambda: haulway.save(state, folder / "plain.pt")),
    ]


def cases(directory, gib):
    for what, contenders in compressed(directory / "zstd", weights(gib / 4)):
        yield (f"{what}, {gib / 4:g} GiB of BF16 in 64", contenders,
               {"torch": 2})
    yield (f"merge 4 rank files of {gib:g} GiB, as a command",
           merging(directory / "ranks", gib),
           {"torch.load, cat, save_file": 10})
    (directory / "steps").mkdir()
    yield (f"save of a step, durable, {gib:g} GiB",
           saving_steps(directory / "steps", gib),
           {"haulway.save": 1 / 1.05})


def facts(directory):
    yield one_row(directory / "many_ranks")


if __name__ == "__main__":
    if sys.argv[1] == "merge":
        merge(*sys.argv[2:])
    else:
        write(sys.argv[2], *map(int, sys.argv[3:]))
