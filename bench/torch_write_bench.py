"""Writing PyTorch checkpoints: Haulway and its peers in turn, the same tensors.

Every save has a new name in one folder. Before each call, outside the measured
time, the output of the previous round is removed and dirty pages are written
out. "durable" means that the bytes are on the disk when the call returns
(fsync).

    scripts/bench torch-write [--rounds N] [--only CASE] [--directory DIR]
                              [--json FILE] [--plot FILE.svg] [--record]
"""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import safetensors.torch
import torch

import haulway
import haulway.torch
from side_by_side import MIB, in_two_threads, main


def tensors_of(count: int, elements: int):
    generator = torch.Generator().manual_seed(1)
    return {
        f"layer.{i}.weight": torch.rand(elements, generator=generator)
        for i in range(count)
    }


class Writers:
    """All contenders for one set of tensors and one folder."""

    def __init__(self, directory: Path, tensors):
        self.path = directory / "saved"
        self.tensors = tensors

    def haulway(self, **settings):
        with haulway.config(save=settings):
            haulway.torch.save(self.tensors, self.path)

    def torch(self, durable=False):
        torch.save(self.tensors, self.path)
        if durable:
            self.sync()

    def safetensors(self, durable=False):
        safetensors.torch.save_file(self.tensors, self.path)
        if durable:
            self.sync()

    def sync(self):
        fd = os.open(self.path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def plain(self, direct=False):
        """Writes the same bytes from one buffer, with two threads."""
        size = sum(t.nbytes for t in self.tensors.values())
        if not hasattr(self, "memory"):
            self.memory = mmap.mmap(-1, size)
            self.memory.madvise(mmap.MADV_HUGEPAGE)
            for at in range(0, size, 4096):
                self.memory[at : at + 8] = at.to_bytes(8, "little")
        view = memoryview(self.memory)
        flags = os.O_DIRECT if direct else 0
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
        if direct:
            os.posix_fallocate(fd, 0, size)
        step = 4 * MIB if direct else MIB

        def write(at):
            os.pwrite(fd, view[at : at + step], at)

        in_two_threads(write, list(range(0, size, step)))
        if direct:
            os.fsync(fd)
        os.close(fd)

    def memcpy(self):
        """Copies with two threads into new huge pages."""
        size = sum(t.nbytes for t in self.tensors.values())
        memory = mmap.mmap(-1, size + 2 * MIB)
        memory.madvise(mmap.MADV_HUGEPAGE)
        target = torch.frombuffer(memory, dtype=torch.uint8)
        start = -target.data_ptr() % (2 * MIB)
        parts, at = [], start
        for tensor in self.tensors.values():
            parts.append((target[at : at + tensor.nbytes], tensor))
            at += tensor.nbytes
        in_two_threads(
            lambda part: part[0].copy_(part[1].view(torch.uint8).view(-1)),
            parts,
        )


def blocked(directory, tensors):
    """Measures how long save_async() blocks its caller."""
    state = {}

    def start():
        state["future"] = haulway.save_async(
            tensors, directory / "behind", durability="none"
        )
        return state

    return state, start


def cases(directory: Path, options):
    """Yields (case, [(contender, function), ...], targets); Haulway first."""
    global before
    elements = int(options.gib * 1024 * MIB / 256 / 4)
    size = f"{options.gib:g} GiB in 256"
    big = Writers(directory, tensors_of(256, elements))

    def clear():
        big.path.unlink(missing_ok=True)
        os.sync()

    before = clear
    yield (
        f"save to the page cache, {size}",
        [
            ("haulway", lambda: big.haulway(durability="none")),
            ("torch.save", big.torch),
            ("safetensors", big.safetensors),
            ("ceiling: two writers", big.plain),
        ],
        {"torch.save": 2.5, "safetensors": 1, "ceiling: two writers": 0.8},
    )
    yield (
        f"durable save, {size}",
        [
            ("haulway", lambda: big.haulway(durability="full")),
            ("torch.save + fsync", lambda: big.torch(durable=True)),
            ("safetensors + fsync", lambda: big.safetensors(durable=True)),
            ("ceiling: O_DIRECT", lambda: big.plain(direct=True)),
        ],
        {"torch.save + fsync": 3, "ceiling: O_DIRECT": 0.75},
    )
    yield (
        f"CRC-32 against none, page cache, {size}",
        [
            ("haulway", lambda: big.haulway(durability="none")),
            (
                "haulway, no CRC",
                lambda: big.haulway(durability="none", compute_crc32=False),
            ),
        ],
        {"haulway, no CRC": 0.95},
    )
    state, start = blocked(directory, big.tensors)

    def finish():
        if "future" in state:
            state.pop("future").result()
        clear()

    before = finish
    yield (
        f"save_async: time the caller waits, {size}",
        [("haulway", start), ("ceiling: memcpy", big.memcpy)],
        {"ceiling: memcpy": 1},
    )
    finish()
    del big
    for count, elements, factor in ((10_000, 1024, 6), (100_000, 16, 8)):
        many = Writers(directory, tensors_of(count, elements))

        def clear_many(many=many):
            many.path.unlink(missing_ok=True)
            os.sync()

        before = clear_many
        yield (
            f"save {count:,} x {elements * 4:,} B",
            [
                ("haulway", lambda m=many: m.haulway(durability="none")),
                ("haulway .safetensors",
                 lambda m=many: haulway.save(m.tensors, m.path,
                                             format="safetensors",
                                             durability="none")),
                ("torch.save", many.torch),
                ("safetensors", many.safetensors),
            ],
            {"torch.save": factor},
        )


def before():
    """Calls the function that cases() set for the current case."""


if __name__ == "__main__":
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    sys.exit(
        main(
            f"Writing PyTorch checkpoints, torch {torch.__version__}",
            cases,
            before=lambda: before(),
            name="torch-write",
        )
    )
