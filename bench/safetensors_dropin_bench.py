"""haulway.safetensors and the package whose API it has, in alternation.

The same calls of both on the same files in the page cache. At the end, the
loaded bytes are in the process's memory, or touched there: a byte of every page
of a mapped tensor is read.

    scripts/bench safetensors-dropin [--rounds N] [--only CASE] [--json FILE]
                                     [--plot FILE.svg]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import haulway.safetensors as ours
from safetensors_read_bench import write_large, write_many
from side_by_side import main


def keys(module, path, framework="pt"):
    with module.safe_open(path, framework) as file:
        return file.keys()


def touched(tensors):
    for tensor in tensors.values():
        tensor.reshape(-1).view(torch.uint8)[::4096].sum()
    return tensors


def touched_arrays(arrays):
    for array in arrays.values():
        array.reshape(-1).view(numpy.uint8)[::4096].sum()
    return arrays


def rows_of_all(module, path, plan):
    """Reads the first half of every tensor's elements."""
    parts = {}
    with module.safe_open(path, "pt", backend="pread") as file:
        if plan:
            file.read_ahead({
                name: slice(0, file.get_slice(name).get_shape()[0] // 2)
                for name in file.keys()
            })
        for name in file.keys():
            part = file.get_slice(name)
            parts[name] = part[: part.get_shape()[0] // 2]
    return parts


def whole_tensors(module, path, framework, backend):
    """Reads every tensor by its name."""
    with module.safe_open(path, framework, backend=backend) as file:
        for name in file.keys():
            file.get_tensor(name)


def small_parts(module, path, framework, backend):
    """Reads a row of every tensor."""
    with module.safe_open(path, framework, backend=backend) as file:
        for name in file.keys():
            file.get_slice(name)[0:1]


def pair(function, *arguments, peer="safetensors"):
    return [
        ("haulway", lambda: function(ours, *arguments)),
        (peer, lambda: function(safetensors, *arguments)),
    ]


def opening(directory: Path):
    """Yields (case, [(contender, function), ...], targets); Haulway first."""
    for count in (10_000, 100_000, 1_000_000):
        path = write_many(directory / f"{count}.safetensors", count, 1)
        yield (
            f"safe_open, keys: {count:,} tensors", pair(keys, path),
            {"safetensors": 8},
        )


def loading(directory: Path, options):
    large = write_large(directory / "large.safetensors", options.gib)
    size = f"{options.gib:g} GiB in 256"
    yield (
        f"load_file, mapped and touched, {size}",
        pair(lambda module: touched(module.torch.load_file(large))),
        {"safetensors": 1},
    )
    yield (
        f"load_file to owned memory, {size}",
        pair(lambda module: module.torch.load_file(large, backend="pread")),
        {"safetensors": 3},
    )
    yield (
        f"numpy.load_file, {size}",
        pair(lambda module: touched_arrays(module.numpy.load_file(large))),
        {"safetensors": 3},
    )


def cases(directory: Path, options):
    yield from opening(directory)
    many = directory / "100000.safetensors"
    yield (
        "load_file, 100,000 tensors",
        pair(lambda module: module.torch.load_file(many)), {},
    )
    small = directory / "small.safetensors"
    safetensors.torch.save_file(
        {f"w{i:04}": torch.ones(64, 64) for i in range(1000)}, small
    )
    for framework, backend in (("np", "mmap"), ("pt", "mmap"), ("pt", "pread")):
        for function, what in (
            (whole_tensors, "get_tensor"), (small_parts, "get_slice, a row"),
        ):
            yield (
                f"{what}, {framework} by {backend}, 1,000 of 16 KiB",
                pair(function, small, framework, backend), {},
            )
    yield from loading(directory, options)
    large = directory / "large.safetensors"
    yield (
        f"half of every tensor, planned, {options.gib:g} GiB in 256",
        [
            ("haulway", lambda: rows_of_all(ours, large, True)),
            ("haulway, no plan", lambda: rows_of_all(ours, large, False)),
            ("safetensors", lambda: rows_of_all(safetensors, large, False)),
        ],
        {"safetensors": 3},
    )


if __name__ == "__main__":
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    sys.exit(
        main(
            "haulway.safetensors, warm page cache, safetensors "
            f"{safetensors.__version__}",
            cases,
            fresh=lambda case: "GiB" in case,
        )
    )
