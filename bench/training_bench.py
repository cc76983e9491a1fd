"""haulway.torch.dcp and torch's own reader and writer, in turn; and ranks that
load together from a server of limited bandwidth.

    scripts/bench training [--rounds N] [--only CASE] [--gib N] [--json FILE]
                           [--directory FOLDER]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import haulway
from haulway.torch.dcp import LoadPlanner, Reader, Writer
from side_by_side import MIB, Fact, main

PROGRAM = Path(__file__).resolve().parent / "training_together.py"
BYTES_A_SECOND = 100 * MIB


def many():
    return {f"w{i}": torch.randn(16, 256) for i in range(5000)}


def large(gib):
    return {f"w{i}": torch.randn(int(gib * (1 << 22))) for i in range(64)}


def loading(folder, state):
    """Both into the same memory, from what torch's writer wrote."""
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    into = {name: torch.empty_like(one) for name, one in state.items()}
    return [
        ("haulway", lambda: dcp.load(
            into, storage_reader=Reader(folder), planner=LoadPlanner(),
            no_dist=True)),
        ("torch", lambda: dcp.load(into, checkpoint_id=folder, no_dist=True)),
    ]


def saving(folder, state):
    """Both durable, each over its last."""
    return [
        ("haulway", lambda: dcp.save(
            state, storage_writer=Writer(folder / "ours", durability="full"),
            no_dist=True)),
        ("torch", lambda: dcp.save(
            state, storage_writer=dcp.FileSystemWriter(folder / "theirs"),
            no_dist=True)),
    ]


def cases(directory: Path, options):
    for what, state, size in (
        ("5,000 tensors of 16 KiB", many(), 4),
        (f"{options.gib:g} GiB in 64", large(options.gib), 3),
    ):
        folder = directory / str(size)
        yield f"dcp.load, {what}", loading(folder, state), {"torch": size}
        yield f"dcp.save, durable, {what}", saving(folder, state), {"torch": 2}


def seconds_together(url, folder, world):
    """The longest that a rank took."""
    store = folder / f"store-{world}"
    store.unlink(missing_ok=True)
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, "rank", url, store, str(rank),
             str(world)], stdout=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    said = [json.loads(rank.communicate()[0]) for rank in ranks]
    size = sum(one["read_bytes"] for one in said)
    return max(one["seconds"] for one in said), size


def together(directory: Path, options):
    """4 ranks, and one, from a server that sends 100 MiB a second in all."""
    file = directory / "model.safetensors"
    haulway.save({f"w{i}": torch.randn(1 << 20) for i in range(64)}, file)
    server = subprocess.Popen(
        [sys.executable, PROGRAM, "serve", file, str(BYTES_A_SECOND)],
        stdout=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/model"
        ratios = []
        for _ in range(options.rounds):
            one, _ = seconds_together(url, directory, 1)
            four, read = seconds_together(url, directory, 4)
            ratios.append((four / one, one, four, read))
    finally:
        server.kill()
        server.wait()
    ratio, one, four, read = sorted(ratios)[len(ratios) // 2]
    yield Fact(
        "4 ranks together, 256 MiB from a server of 100 MiB/s",
        f"{four:.2f} s, one rank {one:.2f} s: {ratio:.2f}x; read "
        f"{read / MIB:.0f} MiB in all",
        "1.2x at most", ratio <= 1.2,
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    sys.exit(main(
        f"haulway.torch.dcp, warm page cache, torch {torch.__version__}",
        cases, facts=together, name="training",
    ))
