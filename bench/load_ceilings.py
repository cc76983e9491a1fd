"""The limits of the machine, measured in the same run."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import subprocess
import time
from pathlib import Path

from side_by_side import MIB, Measured, in_two_threads

STEP = 4 * MIB


class FreshMemory:
    """Pages that were never written: huge pages, or pages of 4 KiB."""

    def __init__(self, size, huge=True):
        # Shared memory, mmap's default, would not use huge pages.
        self.map = mmap.mmap(
            -1, size + 2 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        self.map.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.start = -address % (2 * MIB)
        self.address = address + self.start
        self.view = memoryview(self.map)[self.start : self.start + size]


def pread_fresh(path: Path, huge=True, flags=0):
    """Measures two threads of pread(2) into new pages."""
    size = path.stat().st_size
    if flags & os.O_DIRECT:
        size = size // 4096 * 4096
    memory = FreshMemory(size, huge)
    fd = os.open(path, os.O_RDONLY | flags)

    def read(offset):
        end = min(offset + STEP, size)
        while offset < end:
            offset += os.preadv(fd, [memory.view[offset:end]], offset)

    in_two_threads(read, list(range(0, size, STEP)))
    os.close(fd)
    return memory


def direct_fresh(path: Path, huge=True):
    """Measures the same without the page cache."""
    return pread_fresh(path, huge, os.O_DIRECT)


def fio(path: Path):
    """Measures fio's direct read of the whole file, 32 requests of 1 MiB in
    flight, by its own clock; it reuses its memory."""
    run = subprocess.run(
        [
            "fio", "--name=read", f"--filename={path}", "--readonly",
            "--rw=read", "--bs=1M", "--direct=1", "--ioengine=io_uring",
            "--iodepth=32", "--output-format=json",
        ],
        capture_output=True, text=True, check=True,
    )
    text = run.stdout
    read = json.loads(text[text.index("{") :])["jobs"][0]["read"]
    # fio leaves out a last partial block.
    return Measured(path.stat().st_size / read["bw_bytes"])


def has_fio():
    return shutil.which("fio") is not None


def copy(size, fresh):
    """Measures memcpy with two threads, from a source of at most 1 GiB, into
    new or previously written memory."""
    source = FreshMemory(min(size, 1024 * MIB))
    ctypes.memset(source.address, 1, len(source.view))
    target = FreshMemory(size if fresh else len(source.view))
    if not fresh:
        ctypes.memset(target.address, 1, len(target.view))

    def work(offset):
        length = min(STEP, size - offset)
        ctypes.memmove(
            target.address + offset % len(target.view),
            source.address + offset % len(source.view),
            length,
        )

    start = time.perf_counter()
    in_two_threads(work, list(range(0, size, STEP)))
    return Measured(time.perf_counter() - start)
