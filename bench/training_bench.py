"""haulway.torch.dcp and torch's own reader and writer, in alternation; ranks
that load together from a server of limited bandwidth; rank files, and steps of
a run.

    scripts/bench training [--rounds N] [--only CASE] [--gib N] [--json FILE]
                           [--directory FOLDER]
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import haulway
import training_state
from haulway.torch.dcp import LoadPlanner, Reader, Writer
from side_by_side import MIB, Measured, main

PROGRAM = Path(__file__).resolve().parent / "training_together.py"
BYTES_A_SECOND = 100 * MIB


def many():
    return {f"w{i}": torch.randn(16, 256) for i in range(5000)}


def large(gib):
    return {f"w{i}": torch.randn(int(gib * (1 << 22))) for i in range(64)}


def loading(folder, state):
    """Compares loads into the same memory from files of torch's writer."""
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    into = {name: torch.empty_like(one) for name, one in state.items()}
    return [
        ("haulway", lambda: dcp.load(
            into, storage_reader=Reader(folder), planner=LoadPlanner(),
            no_dist=True)),
        ("torch", lambda: dcp.load(into, checkpoint_id=folder, no_dist=True)),
    ]


def saving(folder, state):
    """Compares durable saves, each over its previous save."""
    return [
        ("haulway", lambda: dcp.save(
            state, storage_writer=Writer(folder / "ours", durability="full"),
            no_dist=True)),
        ("torch", lambda: dcp.save(
            state, storage_writer=dcp.FileSystemWriter(folder / "theirs"),
            no_dist=True)),
    ]


def cold(folder, contenders):
    """Measures the same for files that are not in the page cache."""

    def timed(function):
        for file in folder.iterdir():
            with open(file, "rb") as data:
                os.posix_fadvise(data.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        function()
        return Measured(time.perf_counter() - start)

    return [(name, lambda function=function: timed(function))
            for name, function in contenders]


def opening(folder):
    """Lists a directory's content; for the peer, pickle runs the code in its
    .metadata."""
    dcp.save({f"layers.{i // 10}.w{i % 10}": torch.zeros(1) for i in range(100_000)},
             checkpoint_id=folder, no_dist=True)

    def stock():
        with open(folder / ".metadata", "rb") as file:
            return pickle.load(file)

    return [("haulway", lambda: haulway.open(folder).close()), ("pickle", stock)]


def converting(folder, gib):
    """Converts a third of the tensors, those of the model, to a safetensors
    file."""
    state = {
        f"{'optimizer' if i % 3 else 'model'}.w{i}": torch.randn(int(gib * (1 << 22)))
        for i in range(64)
    }
    dcp.save(state, storage_writer=dcp.FileSystemWriter(
        folder, single_file_per_rank=False), no_dist=True)
    out = folder.parent / "model.safetensors"

    def stock():
        whole = folder.parent / "whole.pt"
        dcp_to_torch_save(folder, whole)
        tensors = torch.load(whole, mmap=True, weights_only=True)
        save_file({name: one for name, one in tensors.items()
                   if name.startswith("model.")}, out)

    return [
        ("haulway", lambda: haulway.convert(
            folder, out, include="model.*", durability="none")),
        ("dcp_to_torch_save and save_file", stock),
    ]


def cases(directory: Path, options):
    large_ones = f"{options.gib:g} GiB in 64"
    for what, state, size in (
        ("5,000 tensors of 16 KiB", many(), 4),
        (large_ones, large(options.gib), 3),
    ):
        folder = directory / str(size)
        yield f"dcp.load, {what}", loading(folder, state), {"torch": size}
        if what == large_ones:
            yield (f"dcp.load, cold, {what}", cold(folder, loading(folder, state)),
                   {"torch": 1.5})
        yield f"dcp.save, durable, {what}", saving(folder, state), {"torch": 2}
    yield "open .metadata of 100,000 tensors", opening(directory / "many"), {
        "pickle": 10}
    yield (f"convert a third of {4 * options.gib:g} GiB in 64 files",
           converting(directory / "large", 4 * options.gib),
           {"dcp_to_torch_save and save_file": 3})
    yield from training_state.cases(directory, options.gib)
    yield from together(directory)


def seconds_together(url, folder, world):
    """Returns the longest load time of a rank; together they read the file
    once."""
    store = folder / f"store-{world}"
    store.unlink(missing_ok=True)
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, "rank", url, store, str(rank),
             str(world)], stdout=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    said = [json.loads(rank.communicate()[0]) for rank in ranks]
    assert sum(one["read_bytes"] for one in said) < 257 * MIB
    return Measured(max(one["seconds"] for one in said))


def together(directory: Path):
    """Measures 4 ranks, and one, with a server that sends 100 MiB per second in
    total."""
    file = directory / "served.safetensors"
    haulway.save({f"w{i}": torch.randn(1 << 20) for i in range(64)}, file)
    server = subprocess.Popen(
        [sys.executable, PROGRAM, "serve", file, str(BYTES_A_SECOND)],
        stdout=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/model"
        yield (
            "4 ranks load 256 MiB from a server of 100 MiB/s",
            [("haulway", lambda: seconds_together(url, directory, 4)),
             ("one rank alone", lambda: seconds_together(url, directory, 1))],
            {"one rank alone": 1 / 1.2},
        )
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    sys.exit(main(
        f"haulway.torch.dcp, warm page cache, torch {torch.__version__}",
        cases, name="training",
        facts=lambda directory, _: training_state.facts(directory),
    ))
