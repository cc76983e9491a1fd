"""Items from a worker process: Haulway and SPDL in alternation, in one run.

Payloads are random, four of them in rotation. Each transport keeps its worker.
A round makes short passes and a long one with each transport, so that the time
per item is a slope without the fixed cost of a pass, which is measured
separately. Processor time is that of all threads of both processes. The minimum
over all rounds is shown, since other work on the machine can only add time.

    scripts/bench arena [--rounds N] [--only CASE] [--json FILE] [--plot FILE]
    scripts/bench arena --record    renews its record, the pages and the figure
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import pickle
import platform
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from pathlib import Path

import numpy

import haulway
from arena_report import evaluate, plot, show, show_goals, write_down
from haulway import ipc
from side_by_side import MIB, processor

try:
    import spdl.pipeline as spdl
except ImportError:
    spdl = None

KIB = 1 << 10
PIECE = 512 * KIB

# Name, bytes per item, items of a short and of a long pass.
SIZES = [
    ("100 B", 100, 500, 4000),
    ("5 kB", 5000, 500, 4000),
    ("16 KiB", 16 * KIB, 300, 2400),
    ("64 KiB", 64 * KIB, 200, 1500),
    ("256 KiB", 256 * KIB, 100, 600),
    ("1 MiB", MIB, 40, 240),
    ("4 MiB", 4 * MIB, 10, 60),
    ("16 MiB", 16 * MIB, 4, 20),
]
SHORT_PASSES = 3  # Per round.
ONE_ITEM_PASSES = 100


class Payloads:
    """As many items as the pass has: bytes, arrays, or loans of an arena."""

    def __init__(self, size, kind, count, arena):
        self.size, self.kind, self.count, self.arena = size, kind, count, arena
        random = numpy.random.default_rng(1)
        arrays = [random.integers(0, 256, size, numpy.uint8) for _ in range(4)]
        self.items = (
            [a.tobytes() for a in arrays] if kind == "bytes" else arrays
        )

    def __iter__(self):
        items = self.items
        for i in range(self.count.value):
            if self.kind == "loans":
                loan = self.arena.empty((self.size,), "uint8")
                loan[:64] = i & 255  # Keep the cost of making the data low.
                yield loan
            else:
                yield items[i & 3]


class ManyAtoms:
    """Lists of 100,000 ints."""

    def __init__(self, count):
        self.count = count
        self.items = [list(range(n, n + 100_000)) for n in range(2)]

    def __iter__(self):
        for i in range(self.count.value):
            yield self.items[i & 1]


class Contender:
    """A transport with its worker and its measurements."""

    def __init__(self, name, iterate, make_arena, make_source):
        self.name = name
        # The length of a pass, in memory that the worker shares.
        self.count = multiprocessing.get_context("fork").Value(
            "q", 0, lock=False
        )
        arena = make_arena()
        before = set(multiprocessing.active_children())
        self.source = iterate(
            functools.partial(make_source, self.count, arena), arena=arena
        )
        (self.worker,) = set(multiprocessing.active_children()) - before
        self.first, self.brief, self.whole = 0.0, [], []
        self.cpu, self.latencies = [], []

    def cpu_seconds(self):
        """Returns the processor time of all threads of both processes."""
        total = time.process_time()
        folder = f"/proc/{self.worker.pid}/task"
        for task in os.listdir(folder):
            with open(f"{folder}/{task}/schedstat") as file:
                total += int(file.read().split()[0]) / 1e9
        return total

    def pass_of(self, count, latencies=None):
        """Returns the seconds of a pass; appends the times between its
        items."""
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
        self.brief += [self.pass_of(short) for _ in range(SHORT_PASSES)]
        cpu = self.cpu_seconds()
        self.whole.append(self.pass_of(long))
        self.cpu.append((self.cpu_seconds() - cpu) / long)
        self.pass_of(long, self.latencies)

    def close(self):
        for name in ("_finalizer", "_shutdown"):
            finalizer = getattr(self.source, name, None)
            if finalizer is not None:
                finalizer()
                return


def plain_peer(fn, *, arena):
    return spdl.iterate_in_subprocess(fn)


def transports(size, arena_bytes=None):
    """Yields name, function and arena of each transport; Haulway's have short
    names."""
    segment = max(size, 4 * KIB)
    room = arena_bytes or 8 * segment
    if spdl is not None:
        theirs = spdl.iterate_in_subprocess
        yield "spdl queue", plain_peer, lambda: None
        yield ("spdl ring", theirs, lambda: spdl.SharedMemoryRingBuffer(room))
        yield ("spdl pool", theirs,
               lambda: spdl.SharedMemorySegmentPool(segment, 8))
    ours = ipc.iterate_in_subprocess
    yield "plain", ours, lambda: None
    yield "ring", ours, lambda: ipc.SharedMemoryRingBuffer(room)
    yield "pool", ours, lambda: ipc.SharedMemorySegmentPool(segment, 8)
    # The peer's pool returns bytes as views, so Haulway does the same.
    yield ("arena", ours,
           lambda: ipc.SharedMemoryArena(room, bytes_as="memoryview"))


def payload_contenders(size, kind):
    for name, iterate, make_arena in transports(size):
        if kind == "loans" and name != "arena":
            continue
        yield (
            "loan" if kind == "loans" else name, iterate, make_arena,
            lambda count, arena: Payloads(size, kind, count, arena),
        )


@contextlib.contextmanager
def fleet_of(entries):
    fleet = []
    try:
        for entry in entries:
            fleet.append(Contender(*entry))
        yield fleet
    finally:
        for one in fleet:
            one.close()


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def measure(case, kind, size, entries, short, long, rounds):
    """Returns the rows of one case, one per contender."""
    with fleet_of(entries) as fleet:
        for one in fleet:
            one.first = one.pass_of(long) / long
        for _ in range(rounds):
            for one in fleet:
                one.round(short, long)
    rows = []
    for one in fleet:
        item = (min(one.whole) - min(one.brief)) / (long - short)
        rows.append({
            "case": case, "kind": kind, "contender": one.name, "bytes": size,
            "item_us": item * 1e6,
            "median_us": statistics.median(one.whole) / long * 1e6,
            "p50_us": percentile(one.latencies, 0.5) * 1e6,
            "p99_us": percentile(one.latencies, 0.99) * 1e6,
            "first_us": one.first * 1e6,
            "cpu_us": min(one.cpu) * 1e6,
        })
    return rows


def measure_passes(rounds):
    """Measures a pass with a single item of 10 bytes."""
    rows = []
    with fleet_of(payload_contenders(10, "bytes")) as fleet:
        seconds = {one.name: [] for one in fleet}
        for number in range(rounds + 1):
            for one in fleet:
                times = [one.pass_of(1) for _ in range(ONE_ITEM_PASSES)]
                if number > 0:
                    seconds[one.name] += times
    for name, times in seconds.items():
        rows.append({
            "case": "a pass of one item", "kind": "pass", "contender": name,
            "bytes": 10,
            "item_us": min(times) * 1e6,
            "median_us": statistics.median(times) * 1e6,
            "p50_us": percentile(times, 0.5) * 1e6,
            "p99_us": percentile(times, 0.99) * 1e6,
        })
    return rows


def least_seconds(function, repeats=20):
    least = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        least = min(least, time.perf_counter() - start)
    return least


def copy_us(size):
    """Measures a copy of `size` bytes; sources and targets are in rotation,
    too."""
    random = numpy.random.default_rng(0)
    sources = [random.integers(0, 256, size, numpy.uint8) for _ in range(4)]
    targets = [numpy.zeros_like(sources[0]) for _ in range(2)]

    def copies():
        for i in range(8):
            targets[i & 1][:] = sources[i & 3]

    copies()
    return least_seconds(copies) / 8 * 1e6


def bare_copy_us(size, threads):
    """Measures the arena's own copy alone: four sources, copied alternately
    into the two ranges that a consumer which keeps up leaves free, on one or
    several threads."""
    random = numpy.random.default_rng(0)
    sources = [random.integers(0, 256, size, numpy.uint8) for _ in range(4)]
    arena = ipc.SharedMemoryArena(2 * size)
    targets = [arena.empty((size,), "uint8") for _ in range(2)]
    for target in targets:
        target[:] = 0
    # The piece size that the C library copies fastest; the arena uses it, too.
    pieces = [(i & 1, i & 3, slice(at, min(at + PIECE, size)))
              for i in range(8) for at in range(0, size, PIECE)]

    def copy(part):
        for target, source, piece in pieces[part::threads]:
            targets[target][piece] = sources[source][piece]

    if threads == 1:
        return least_seconds(lambda: copy(0)) / 8 * 1e6
    with ThreadPoolExecutor(threads) as pool:
        return least_seconds(
            lambda: list(pool.map(copy, range(threads)))
        ) / 8 * 1e6


def bare_copies(name, kind, size):
    for contender, threads in (("bare copy", 1), ("on 2 threads", 2)):
        yield {"case": name, "kind": kind, "contender": contender,
               "bytes": size, "item_us": bare_copy_us(size, threads)}


def measure_ints(rounds):
    def entries():
        for name, iterate, make_arena in transports(0, MIB):
            if not name.endswith("ring"):
                yield (name, iterate, make_arena,
                       lambda count, arena: ManyAtoms(count))

    case = "100,000 ints"
    rows = measure(case, "ints", 0, entries(), 2, 12, max(1, rounds // 2))
    item = list(range(100_000))
    arena = ipc.SharedMemoryArena(MIB)
    writer, reader = arena.open_writer(), arena.open_reader()
    here = {
        "pickle, here": lambda: pickle.loads(pickle.dumps(item, 5)),
        "offload, here": lambda: ipc.restore(ipc.offload(item, writer), reader),
    }
    for name, function in here.items():
        rows.append({"case": case, "kind": "ints", "contender": name,
                     "bytes": 0, "item_us": least_seconds(function) * 1e6})
    return rows


def silence_tracker():
    """Starts the standard library's shared-memory tracker with its output
    discarded: the peer makes it print a traceback for each segment."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            resource_tracker.ensure_running()
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def run(options):
    rows = []

    def wanted(case):
        return options.only in case

    for name, size, short, long in SIZES:
        for kind in ("bytes", "arrays", "loans"):
            case = f"{name} of {kind}"
            if not wanted(case) or (kind == "loans" and size < 64 * KIB):
                continue
            found = measure(name, kind, size, payload_contenders(size, kind),
                            short, long, options.rounds)
            if kind != "loans" and size >= 64 * KIB:
                found.append({"case": name, "kind": kind, "contender": "copy",
                              "bytes": size, "item_us": copy_us(size)})
            if kind != "loans" and size >= MIB:
                found += bare_copies(name, kind, size)
            show(case, found)
            rows += found
    for case, function in (("100,000 ints", measure_ints),
                           ("a pass of one item", measure_passes)):
        if wanted(case):
            found = function(options.rounds)
            show(case, found)
            rows += found
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name holds it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="a .png file")
    parser.add_argument("--record", action="store_true",
                        help="write the figures to bench/results/ and docs/")
    options = parser.parse_args()
    if spdl is not None:
        silence_tracker()
    peer = "without spdl-core" if spdl is None else "spdl-core 0.8.0"
    where = (
        f"{processor()}, {len(os.sched_getaffinity(0))} CPUs, load "
        f"{os.getloadavg()[0]:.1f}, Linux {platform.release()}, Python "
        f"{platform.python_version()}, haulway {haulway.__version__}, {peer}; "
        f"{options.rounds} rounds in alternation after one uncounted"
    )
    print(where)
    rows = run(options)
    goals = evaluate(rows)
    show_goals(goals)
    if options.json:
        options.json.write_text(
            json.dumps({"where": where, "rows": rows, "goals": goals}, indent=1)
            + "\n"
        )
    if options.plot:
        plot(rows, options.plot)
    if options.record:
        write_down(where, rows, goals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
