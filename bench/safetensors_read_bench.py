"""Reading safetensors: Haulway and the safetensors package in alternation.

Each contender runs once per round, after one round that is not counted, on the
same files in the page cache. At the end, every loaded byte is in the process's
memory, or touched there. Ratios are formed per round: peer seconds / Haulway
seconds.

    scripts/bench safetensors-read [--rounds N] [--only CASE] [--json FILE]
                                   [--plot FILE.svg]
"""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from safetensors import safe_open

import haulway
from load_ceilings import pread_fresh
from side_by_side import MIB, main


def write_many(path: Path, count: int, elements: int):
    """Writes `count` float32 tensors of zeros with names as in models; a
    million of them with shorter names, so that the header stays within its
    limit."""
    size = 4 * elements
    module = "block.{}.self_attn.q_proj" if count < 1_000_000 else "q.{}"
    header = json.dumps(
        {
            f"model.layers.{i // 12}.{module.format(i % 12)}.weight": {
                "dtype": "F32",
                "shape": [elements],
                "data_offsets": [i * size, (i + 1) * size],
            }
            for i in range(count)
        },
        separators=(",", ":"),
    ).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + count * size)
    return path


def write_large(path: Path, gibibytes: float):
    elements = int(gibibytes * 1024 * MIB / 256 / 4)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        f"layer.{i}.weight": torch.rand(elements, generator=generator)
        for i in range(256)
    }
    safetensors.torch.save_file(tensors, path)
    return path


def list_haulway(path):
    with haulway.open(path, framework="torch") as checkpoint:
        return list(checkpoint.keys())


def list_safetensors(path, backend="mmap"):
    with safe_open(path, framework="pt", backend=backend) as checkpoint:
        return list(checkpoint.keys())


def load_touched(path):
    """Loads with load_file, which maps the file by default, and reads a byte of
    every page."""
    tensors = safetensors.torch.load_file(path)
    for tensor in tensors.values():
        tensor.view(torch.uint8)[::4096].sum()
    return tensors


def cases(directory: Path, options):
    """Yields (case, [(contender, function), ...], targets); Haulway first."""
    for count in (10_000, 100_000):
        path = write_many(directory / f"{count}.safetensors", count, 16)
        yield (
            f"open, list: {count:,} tensors",
            [
                ("haulway", lambda path=path: list_haulway(path)),
                ("safe_open", lambda path=path: list_safetensors(path)),
                (
                    "safe_open pread",
                    lambda path=path: list_safetensors(path, "pread"),
                ),
            ],
            {"safe_open": 8, "safe_open pread": 8},
        )
    small = write_many(directory / "small.safetensors", 10_000, 1024)
    large = write_large(directory / "large.safetensors", options.gib)
    for case, path, targets in (
        ("load to owned memory, 10,000 x 4 KiB", small, {}),
        (
            f"load to owned memory, {options.gib:g} GiB in 256",
            large,
            {"ceiling: pread": 0.85, "load_file": 3, "load_file pread": 3},
        ),
    ):
        yield (
            case,
            [
                ("haulway", lambda path=path: haulway.load(path, "torch")),
                ("load_file", lambda path=path: load_touched(path)),
                (
                    "load_file pread",
                    lambda path=path: safetensors.torch.load_file(
                        path, backend="pread"
                    ),
                ),
                ("ceiling: pread", lambda path=path: pread_fresh(path)),
            ],
            targets,
        )


if __name__ == "__main__":
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    sys.exit(
        main(
            "Reading safetensors files, warm page cache, safetensors "
            f"{safetensors.__version__}",
            cases,
            fresh=lambda case: case.startswith("load to owned memory"),
        )
    )
