#!/usr/bin/env python3
"""Uses arenas for a long time, with faults; see scripts/soak."""

import argparse
import ctypes
import functools
import gc
import os
import random
import resource
import signal
import sys
import time

import numpy

from haulway import ipc

MAKES = {
    "arena": lambda: ipc.SharedMemoryArena(1 << 22),
    "tight arena": lambda: ipc.SharedMemoryArena(1 << 18),
    "pool": lambda: ipc.SharedMemorySegmentPool(1 << 17, 6),
    "ring": lambda: ipc.SharedMemoryRingBuffer(1 << 19),
    "none": lambda: None,
}
# Probability of each event per item or pass.
KILL, FAIL, BREAK, HOLD, ABANDON = 0.0005, 0.0005, 0.002, 0.05, 0.1


class Source:
    """Items with known content; fails and dies now and then."""

    def __init__(self, seed):
        self.chance = random.Random(seed)

    def __iter__(self):
        chance = self.chance
        for n in range(chance.randrange(1, 2000)):
            if chance.random() < KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            if chance.random() < FAIL:
                raise ValueError("as it should now and then")
            words = int(8 * 2 ** (chance.random() * 15))
            yield n, numpy.full(words, n), bytes([n % 251]) * words


def check(n, item):
    number, array, data = item
    if not (number == n and (array == n).all()
            and bytes(data) == bytes([n % 251]) * len(array)):
        raise SystemExit(f"item {n} is torn")


def one_source(chance, counts):
    kind = chance.choice(list(MAKES))
    source = ipc.iterate_in_subprocess(
        functools.partial(Source, chance.randrange(1 << 30)),
        arena=MAKES[kind](), buffer_size=chance.choice([1, 3, 16]),
    )
    held = []
    try:
        for _ in range(chance.randrange(1, 6)):
            n = 0
            for item in source:
                check(n, item)
                n += 1
                counts["items"] += 1
                if chance.random() < HOLD:
                    held.append((item[0], item[1]))
                if len(held) > 20:
                    held.pop(chance.randrange(len(held)))
                if chance.random() < BREAK:
                    counts["breaks"] += 1
                    break
            counts["passes"] += 1
            if chance.random() < ABANDON:
                counts["abandoned"] += 1
                break
    except ipc.WorkerDied:
        counts["killed"] += 1
    except ipc.WorkerError:
        counts["failed"] += 1
    for n, array in held:
        if not (array == n).all():
            raise SystemExit("a view has changed")


def memory_kib():
    """Returns the memory in use, without memory that the C library caches."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS"):
                return int(line.split()[1])
    return 0


def state():
    gc.collect()
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        processes = len(children.read().split())
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "processes": processes,
        "names in /dev/shm": len(os.listdir("/dev/shm")),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    counts = dict.fromkeys(
        ("items", "passes", "breaks", "abandoned", "killed", "failed"), 0
    )
    for _ in range(20):
        one_source(chance, counts)
    before, memory_before = state(), memory_kib()
    deadline = time.monotonic() + 60 * options.minutes
    shown = time.monotonic()
    sources = 0
    while time.monotonic() < deadline:
        one_source(chance, counts)
        sources += 1
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            print(f"{sources} sources, {counts}, {memory_kib()} KiB",
                  flush=True)
    after = state()
    grown = memory_kib() - memory_before
    print(", ".join(f"{name}: {n}" for name, n in counts.items()))
    print(f"{sources} sources; memory grew by {grown} KiB; "
          + ", ".join(f"{k} {before[k]} -> {after[k]}" for k in after))
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    print(f"CPU of the parent {cpu.ru_utime + cpu.ru_stime:.0f} s")
    leaks = any(after[name] > before[name] for name in after)
    return 1 if leaks or grown > 50_000 else 0


if __name__ == "__main__":
    sys.exit(main())
