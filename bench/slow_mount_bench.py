"""Files on a mount that takes a millisecond a request: Haulway and its peers.

The mount is a program (FUSE) whose requests have 128 KiB at most, as mounts of
networks and object stores behave. Before each call the kernel forgets what it has
read; each reads a byte of all pages. The limits are eight threads that read
pieces of 4 MiB each, and one that reads the file from its begin to its end.

    scripts/bench slow-mount [--rounds N] [--only CASE] [--gib N] [--json FILE]
                             [--record]
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import safetensors.torch
import torch

import haulway
import haulway.safetensors.torch
from side_by_side import MIB, main

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python/tests"))
from slow_mount import SlowMount  # noqa: E402

PIECE = 4 * MIB
mounts = []  # The one that cases() made.
# What a load may take of the limit.
LARGE, SMALL = 1 / 1.2, 1 / 1.2


def in_order(path):
    memory = bytearray(path.stat().st_size)
    with open(path, "rb", buffering=0) as file:
        for offset in range(0, len(memory), PIECE):
            file.readinto(memoryview(memory)[offset:offset + PIECE])
    return memory


def eight_threads(path):
    memory = memoryview(bytearray(path.stat().st_size))
    file = os.open(path, os.O_RDONLY)

    def read(offset):
        end = min(offset + PIECE, len(memory))
        while offset < end:
            offset += os.preadv(file, [memory[offset:end]], offset)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(read, range(0, len(memory), PIECE)))
    os.close(file)
    return memory


def touched(tensors):
    """Reads a byte of each page, as a mapping reads only what is touched."""
    for tensor in tensors.values():
        tensor.flatten().view(torch.uint8)[::4096].sum()
    return tensors


def cases(directory: Path, options):
    mount = SlowMount(directory)
    mounts.append(mount)
    try:
        rows = int(options.gib * 1024)
        haulway.save({f"w{i}": torch.full((rows, 1 << 8), float(i))
                      for i in range(32)}, mount.files / "large.safetensors")
        haulway.save({f"w{i}": torch.full((2, 256), float(i))
                      for i in range(2000)}, mount.files / "small.safetensors")
        large, small = mount.at / "large.safetensors", mount.at / "small.safetensors"
        for name, path, limit, wanted in (
                (f"{options.gib * 32:g} MiB in 32 tensors", large,
                 ("limit: eight threads", lambda: eight_threads(large)), LARGE),
                ("2,000 tensors of 2 KiB", small,
                 ("limit: in order", lambda: in_order(small)), SMALL)):
            yield (f"load, {name}",
                   [("haulway", lambda path=path: touched(haulway.load(path))),
                    ("safetensors", lambda path=path: touched(
                        safetensors.torch.load_file(path))), limit],
                   {limit[0]: wanted})
            yield (f"load_file, {name}",
                   [("haulway", lambda path=path: touched(
                       haulway.safetensors.torch.load_file(path))),
                    ("safetensors", lambda path=path: touched(
                        safetensors.torch.load_file(path))), limit],
                   {limit[0]: wanted})
    finally:
        mount.stop()


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], cases, name="slow-mount",
                  before=lambda: mounts[-1].asked()))
