"""Items from a worker process: Haulway and SPDL in turn, in the same run.

Payloads are random; four of them take turns. Each transport keeps its worker;
a round makes a short and a long pass with each, so that the time of an item is
a slope, free of what a pass costs as a whole, which is given beside it. The
processor time of both processes is counted. The least of all rounds is shown:
what else the machine does can only add to it.

    scripts/bench arena [--rounds N] [--only CASE] [--json FILE] [--plot FILE]
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import pickle
import platform
import statistics
import sys
import time

import numpy

import haulway
from haulway import ipc

try:
    import spdl.pipeline as spdl
except ImportError:
    spdl = None

KIB, MIB = 1 << 10, 1 << 20

# Name, bytes, items of a short and of a long pass.
SIZES = [
    ("100 B", 100, 500, 4000),
    ("5 kB", 5000, 500, 4000),
    ("64 KiB", 64 * KIB, 200, 1500),
    ("256 KiB", 256 * KIB, 100, 600),
    ("1 MiB", MIB, 40, 240),
    ("4 MiB", 4 * MIB, 10, 60),
    ("16 MiB", 16 * MIB, 4, 20),
]
# Goals: how many times the best of the peer's three, and with what.
GOALS = {
    "100 B": (5, "arena"),
    "5 kB": (5, "arena"),
    "64 KiB": (4, "arena"),
    "1 MiB": (1.5, "arena"),
    "16 MiB": (2, "arena"),
}


class Payloads:
    """`count` items of random bytes, or NumPy arrays of them."""

    def __init__(self, size, kind, count, arena=None):
        self.size, self.kind, self.count, self.arena = size, kind, count, arena
        random = numpy.random.default_rng(1)
        arrays = [random.integers(0, 256, size, numpy.uint8) for _ in range(4)]
        self.items = (
            [a.tobytes() for a in arrays] if kind == "bytes" else arrays
        )

    def __iter__(self):
        items = self.items
        for i in range(self.count.value):
            if self.kind == "loan":
                loan = self.arena.empty((self.size,), "uint8")
                loan[:64] = i & 255  # What makes it is not the subject.
                yield loan
            else:
                yield items[i & 3]


class ManyAtoms:
    def __init__(self, count):
        self.count = count
        self.items = [list(range(n, n + 100_000)) for n in range(2)]

    def __iter__(self):
        for i in range(self.count.value):
            yield self.items[i & 1]


class Contender:
    """A transport with its worker, and what was measured of it."""

    def __init__(self, name, iterate, make_arena, make_source):
        self.name = name
        # How long a pass is, in memory that the worker has too.
        self.count = multiprocessing.get_context("fork").Value("q", 0, lock=False)
        arena = make_arena()
        before = set(multiprocessing.active_children())
        self.source = iterate(
            functools.partial(make_source, self.count, arena), arena=arena
        )
        (self.worker,) = set(multiprocessing.active_children()) - before
        self.brief, self.whole, self.cpu, self.latencies = [], [], [], []

    def worker_cpu(self):
        """Seconds that the worker's threads have run."""
        total = 0
        folder = f"/proc/{self.worker.pid}/task"
        for task in os.listdir(folder):
            with open(f"{folder}/{task}/schedstat") as file:
                total += int(file.read().split()[0])
        return total / 1e9

    def pass_of(self, count, latencies=None):
        self.count.value = count
        start = last = time.perf_counter()
        if latencies is None:
            for _ in self.source:
                pass
        else:
            for _ in self.source:
                now = time.perf_counter()
                latencies.append(now - last)
                last = now
        return time.perf_counter() - start

    def round(self, short, long):
        self.brief += [self.pass_of(short) for _ in range(3)]
        cpu = time.process_time() + self.worker_cpu()
        self.whole.append(self.pass_of(long))
        self.cpu.append(
            (time.process_time() + self.worker_cpu() - cpu) / long
        )
        self.pass_of(long, self.latencies)

    def close(self):
        for name in ("_finalizer", "_shutdown"):
            finalizer = getattr(self.source, name, None)
            if finalizer is not None:
                finalizer()
                return


def plain_peer(fn, *, arena):
    return spdl.iterate_in_subprocess(fn)


def contenders(size, kind):
    room = 8 * max(size, 4 * KIB)

    def source(count, arena):
        return Payloads(size, kind, count, arena)

    ours = ipc.iterate_in_subprocess
    if spdl is not None and kind != "loan":
        theirs = spdl.iterate_in_subprocess
        yield "spdl queue", plain_peer, lambda: None, source
        yield ("spdl ring", theirs,
               lambda: spdl.SharedMemoryRingBuffer(room), source)
        yield ("spdl pool", theirs,
               lambda: spdl.SharedMemorySegmentPool(max(size, 4 * KIB), 8),
               source)
    if kind != "loan":
        yield "none", ours, lambda: None, source
        yield "ring", ours, lambda: ipc.SharedMemoryRingBuffer(room), source
        yield ("pool", ours,
               lambda: ipc.SharedMemorySegmentPool(max(size, 4 * KIB), 8),
               source)
    name = "loan" if kind == "loan" else "arena"
    # The peer's pool hands out bytes as views: like with like.
    yield (name, ours,
           lambda: ipc.SharedMemoryArena(room, bytes_as="memoryview"), source)


def copy_seconds(size):
    """What one copy of so many bytes takes at least."""
    source = numpy.random.default_rng(0).integers(0, 256, size, numpy.uint8)
    target = numpy.empty_like(source)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        target[:] = source
        times.append(time.perf_counter() - start)
    return min(times)


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def measure(case, entries, short, long, rounds, size):
    fleet = [Contender(*entry) for entry in entries]
    try:
        for one in fleet:
            one.pass_of(long)
        for _ in range(rounds):
            for one in fleet:
                one.round(short, long)
    finally:
        for one in fleet:
            one.close()
    rows = []
    for one in fleet:
        item = (min(one.whole) - min(one.brief)) / (long - short)
        rows.append({
            "case": case, "contender": one.name, "bytes": size,
            "item_us": item * 1e6,
            "item_us_median": statistics.median(one.whole) / long * 1e6,
            "p50_us": percentile(one.latencies, 0.5) * 1e6,
            "p99_us": percentile(one.latencies, 0.99) * 1e6,
            "fixed_us": max(0.0, min(one.brief) - item * short) * 1e6,
            "cpu_us": min(one.cpu) * 1e6,
        })
    return rows


def show(rows, size):
    peers = [r["item_us"] for r in rows if r["contender"].startswith("spdl")]
    best = min(peers) if peers else None
    copy = copy_seconds(size) * 1e6 if size >= 64 * KIB else None
    case = rows[0]["case"]
    print(f"\n{case}" + (f"   (a copy: {copy:.0f} us)" if copy else ""))
    print(f"  {'':<11} {'us an item':>10} {'median':>9} {'p50':>8} {'p99':>9}"
          f" {'cpu us':>9} {'pass us':>8}  against the best of SPDL")
    for row in rows:
        ratio = best / row["item_us"] if best else float("nan")
        row["ratio"] = ratio
        verdict = ""
        name = row["contender"]
        factor, subject = GOALS.get(case.rsplit(" of ", 1)[0], (0, ""))
        if name == subject and best:
            reached = "reached" if ratio >= factor else "NOT reached"
            verdict = f", goal {factor}x {reached}"
        text = "" if name.startswith("spdl") or not best else f"{ratio:.2f}x"
        print(f"  {name:<11} {row['item_us']:>10.1f} "
              f"{row['item_us_median']:>9.1f} {row['p50_us']:>8.1f} "
              f"{row['p99_us']:>9.1f} {row['cpu_us']:>9.1f} "
              f"{row['fixed_us']:>8.0f}  {text}{verdict}", flush=True)


def plot(rows, path):
    """Time of an item over its size, for each transport."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(13, 5), sharey=True)
    for axis, kind in zip(axes, ("bytes", "arrays")):
        chosen = [r for r in rows if r["case"].endswith(f" of {kind}")]
        for name in dict.fromkeys(r["contender"] for r in chosen):
            line = [r for r in chosen if r["contender"] == name]
            axis.loglog(
                [r["bytes"] for r in line], [r["item_us"] for r in line],
                marker="o", label=name,
                linestyle="--" if name.startswith("spdl") else "-",
            )
        axis.set_title(f"items of {kind}")
        axis.set_xlabel("bytes of an item")
        axis.grid(True, which="both", alpha=0.2)
    axes[0].set_ylabel("us an item, least of all rounds")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases that hold this text")
    parser.add_argument("--json")
    parser.add_argument("--plot", help="a PNG file")
    options = parser.parse_args()
    peer = "without spdl-core" if spdl is None else "spdl-core 0.8.0"
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} CPUs, load "
          f"{os.getloadavg()[0]:.1f}, Python {platform.python_version()}, "
          f"haulway {haulway.__version__}, {peer}; {options.rounds} rounds in "
          f"turn after one pass that is not counted")
    rows = []
    for name, size, short, long in SIZES:
        for kind, word in (("bytes", "bytes"), ("numpy", "arrays"),
                           ("loan", "a loan")):
            case = f"{name} of {word}"
            if options.only not in case:
                continue
            if kind == "loan" and size < 64 * KIB:
                continue
            found = measure(case, contenders(size, kind), short, long,
                            options.rounds, size)
            show(found, size)
            rows += found
    case = "a list of 100,000 ints"
    if options.only in case:
        item = list(range(100_000))
        start = time.perf_counter()
        for _ in range(20):
            pickle.loads(pickle.dumps(item, 5))
        both = (time.perf_counter() - start) / 20
        entries = [
            ("none", ipc.iterate_in_subprocess, lambda: None),
            ("arena", ipc.iterate_in_subprocess,
             lambda: ipc.SharedMemoryArena(MIB)),
        ]
        if spdl is not None:
            entries.insert(0, ("spdl queue", plain_peer, lambda: None))
            entries.insert(1, ("spdl pool", spdl.iterate_in_subprocess,
                               lambda: spdl.SharedMemorySegmentPool(MIB, 8)))
        found = measure(
            case, [(*e, lambda count, arena: ManyAtoms(count)) for e in entries],
            2, 12, max(1, options.rounds // 2), 0,
        )
        show(found, 0)
        print(f"  pickling and unpickling it here: {both * 1e6:.0f} us")
        rows += found
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    if options.plot:
        plot(rows, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
