"""Reading PyTorch checkpoints: Haulway and its peers in turn, on the same
files.

Each contender of a case runs once per round, in alternation, after one round
that is not counted, so the files are in the page cache (warm) throughout. If
memory allocation dominates, each call is made in its own process. Ratios are
formed per round: peer seconds / Haulway seconds.

    scripts/bench torch-read [--rounds N] [--only CASE] [--json FILE]
                             [--plot FILE.svg] [--record]
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
import zipfile
from pathlib import Path

import safetensors.torch
import torch
from safetensors import safe_open

import haulway
import haulway.torch
from load_ceilings import pread_fresh
from side_by_side import MIB, in_two_threads, main


def write_tensors(directory: Path, name: str, count: int, elements: int):
    """Writes `count` float32 tensors as .pt and .safetensors; returns both."""
    pt = directory / f"{name}.pt"
    st = directory / f"{name}.safetensors"
    generator = torch.Generator().manual_seed(1)
    tensors = {
        f"layer.{i}.weight": torch.rand(elements, generator=generator)
        for i in range(count)
    }
    torch.save(tensors, pt)
    safetensors.torch.save_file(tensors, st)
    return pt, st


class Crc:
    """Computes CRC-32 of memory with two threads and Haulway's library."""

    def __init__(self, path: Path):
        library = ctypes.CDLL("libdeflate.so.0")
        self.crc32 = library.libdeflate_crc32
        self.crc32.restype = ctypes.c_uint32
        self.crc32.argtypes = [
            ctypes.c_uint32,
            ctypes.c_void_p,
            ctypes.c_size_t,
        ]
        self.data = ctypes.create_string_buffer(path.read_bytes())

    def __call__(self):
        base = ctypes.addressof(self.data)
        size = len(self.data)
        step = 4 * MIB
        in_two_threads(
            lambda at: self.crc32(0, base + at, min(step, size - at)),
            list(range(0, size, step)),
        )


def open_haulway(path):
    with haulway.open(path, framework="torch", mmap=True) as checkpoint:
        names = list(checkpoint.keys())
        return checkpoint[names[0]]


def open_torch(path):
    tensors = torch.load(path, mmap=True)
    return next(iter(tensors.values()))


def open_safetensors(path):
    with safe_open(path, framework="pt") as checkpoint:
        names = list(checkpoint.keys())
        return checkpoint.get_tensor(names[0])


def test_zip(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


def verify(path):
    report = haulway.verify(path)
    assert report.ok, report.findings
    return report


def cases(directory: Path, options):
    """Yields (case, [(contender, function), ...], targets); Haulway first."""
    gibibytes = options.gib
    many = {}
    for count in (10_000, 100_000):
        many[count] = write_tensors(directory, f"tiny{count}", count, 16)
        pt, st = many[count]
        yield (
            f"open, list, first tensor: {count:,} x 64 B",
            [
                ("haulway", lambda pt=pt: open_haulway(pt)),
                ("torch mmap", lambda pt=pt: open_torch(pt)),
                ("safetensors", lambda st=st: open_safetensors(st)),
            ],
            {"torch mmap": 50, "safetensors": 1},
        )
    pt, st = many[100_000]
    yield (
        "load 100,000 x 64 B",
        [
            ("haulway", lambda: haulway.torch.load(pt)),
            ("torch", lambda: torch.load(pt)),
        ],
        {"torch": 15},
    )
    pt4, st4 = write_tensors(directory, "small", 10_000, 1024)
    yield (
        "load 10,000 x 4 KiB",
        [
            ("haulway", lambda: haulway.torch.load(pt4)),
            ("torch", lambda: torch.load(pt4)),
            ("safetensors", lambda: safetensors.torch.load_file(st4)),
        ],
        {"torch": 8, "safetensors": 1},
    )
    elements = int(gibibytes * 1024 * MIB / 256 / 4)
    big, _ = write_tensors(directory, "big", 256, elements)
    yield (
        f"load to owned memory, {gibibytes:g} GiB in 256",
        [
            ("haulway", lambda: haulway.torch.load(big)),
            ("torch", lambda: torch.load(big)),
            ("ceiling: pread", lambda: pread_fresh(big)),
        ],
        {"torch": 4, "ceiling: pread": 0.8},
    )
    yield (
        f"mmap open + first tensor, {gibibytes:g} GiB in 256",
        [
            ("haulway", lambda: open_haulway(big)),
            ("torch mmap", lambda: open_torch(big)),
        ],
        {"torch mmap": 10},
    )
    yield (
        f"verify all CRCs, {gibibytes:g} GiB in 256",
        [
            ("haulway", lambda: verify(big)),
            ("zipfile.testzip", lambda: test_zip(big)),
            ("ceiling: crc32", Crc(big)),
        ],
        {"zipfile.testzip": 5, "ceiling: crc32": 0.6},
    )


if __name__ == "__main__":
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    sys.exit(
        main(
            "Reading PyTorch checkpoints, warm page cache, torch "
            f"{torch.__version__}",
            cases,
            fresh=lambda case: case.startswith("load to owned memory"),
            name="torch-read",
        )
    )
