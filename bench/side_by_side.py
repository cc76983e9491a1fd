"""Runs contenders in alternation; shared by all benchmarks here.

A benchmark yields cases: a name, contenders (name, function), Haulway first,
and targets by contender. Each contender runs once per round, in alternation,
after a first call that is not counted. Ratios are formed per round: the
contender's seconds / Haulway's seconds.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import record

MIB = 1 << 20
LIBC = ctypes.CDLL(None)


class Fact(NamedTuple):
    """A result other than a contender's time: a size, a share, peak memory."""

    what: str
    told: str
    wanted: str
    reached: bool

    def verdict(self):
        return f"{self.wanted}: " + ("reached" if self.reached else "NOT reached")


class Measured(float):
    """Seconds by the contender's own clock, used instead of the call's."""


def in_two_threads(work, pieces):
    """Calls work(piece) for each piece, every other one on a second thread."""
    halves = [pieces[0::2], pieces[1::2]]
    threads = [
        threading.Thread(target=lambda half=half: [work(p) for p in half])
        for half in halves
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def seconds_in_a_child(function, before, calls=3):
    """Returns the time of a call in its own process: the median of `calls`,
    after one more that is not counted.

    A virtual machine may report free pages to its host within a second. The
    next access to such a page needs the host to allocate it again, which took
    up to 2.6 s per GiB in measurements, compared with 0.05 s for a page that
    the guest still has. So calls follow each other at once, with the result of
    the previous call freed and malloc's memory returned: memory is new to each
    call, but not to the machine.
    """
    gc.collect()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            def prepare():
                if before is not None:
                    before()
                LIBC.malloc_trim(0)

            times = [seconds_here(function, prepare) for _ in range(calls + 1)]
            os.write(writer, repr(statistics.median(times[1:])).encode())
        except BaseException:  # The child must not continue as a second parent.
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError("a contender failed; its error is above")
    return float(text)


def seconds_here(function, before):
    gc.collect()
    if before is not None:
        before()
    start = time.perf_counter()
    result = function()
    elapsed = time.perf_counter() - start
    if isinstance(result, Measured):
        elapsed = float(result)
    del result
    return elapsed


def measure(contenders, rounds, fresh=False, before=None):
    """Returns seconds by contender, one list entry per round.

    fresh: make the calls in a row in their own process (seconds_in_a_child).
    before: called before each call, outside the measured time.
    """
    seconds_of = seconds_in_a_child if fresh else seconds_here
    seconds = {name: [] for name, _ in contenders}
    for _, function in contenders if not fresh else ():
        # A separate process makes its own first call.
        seconds_of(function, before)
    for _ in range(rounds):
        for name, function in contenders:
            seconds[name].append(seconds_of(function, before))
    return seconds


def spread(values, digits):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f} - {high:.{digits}f}]"


def report(case, seconds, targets, size=None):
    """Prints one case of `size` bytes; returns its rows."""
    print(f"\n{case}")
    print(f"  {'':<24} {'ms, median [min - max]':>30} "
          f"{'ratio to haulway':>26}  target")
    rows = []
    ours = seconds["haulway"]
    for name, times in seconds.items():
        ratios = [theirs / own for theirs, own in zip(times, ours)]
        ratio = statistics.median(ratios)
        target = targets.get(name)
        verdict = ""
        if size is not None:
            speed = size / statistics.median(times) / 1e9
            verdict = f"{speed:6.2f} GB/s  "
        if target is not None:
            verdict += f"{target:g}x " + (
                "reached" if ratio >= target else "NOT reached"
            )
        print(
            f"  {name:<24} {spread([t * 1e3 for t in times], 1):>30} "
            f"{spread(ratios, 2) if name != 'haulway' else '':>26}  {verdict}",
            flush=True,
        )
        rows.append(
            {
                "case": case,
                "contender": name,
                "seconds": times,
                "ratios": ratios,
                "target": target,
            }
        )
    return rows


def plot(rows, path):
    """Draws a bar for each peer: its time divided by Haulway's. The file's
    extension selects the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = [r for r in rows if not r["contender"].startswith("haulway")]
    labels = [f'{r["case"]} - {r["contender"]}' for r in bars]
    middles = [statistics.median(r["ratios"]) for r in bars]
    low = [m - min(r["ratios"]) for m, r in zip(middles, bars)]
    high = [max(r["ratios"]) - m for m, r in zip(middles, bars)]
    colours = [
        "#999999" if r["contender"].startswith(("ceiling", "limit"))
        else "#2b6cb0"
        for r in bars
    ]
    figure, axes = pyplot.subplots(figsize=(11, 0.28 * len(bars) + 1.2))
    axes.barh(labels, middles, xerr=[low, high], color=colours,
              error_kw={"ecolor": "#444444", "lw": 0.8})
    for label, middle, above in zip(labels, middles, high):
        axes.annotate(f"{middle:.2g}x" if middle < 10 else f"{middle:.0f}x",
                      (middle + above, label), xytext=(4, 0),
                      textcoords="offset points", va="center", fontsize=8)
    axes.axvline(1, color="black", lw=0.8)
    axes.invert_yaxis()
    if middles and max(middles) > 30:
        axes.set_xscale("log")
    axes.set_xlabel("time relative to Haulway (1 = the same, more = Haulway is "
                    "faster); median, least and most")
    axes.tick_params(axis="y", labelsize=8)
    axes.margins(x=0.08)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"


def describe():
    """Describes the machine and its software."""
    return (
        f"{processor()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, "
        f"Linux {platform.release()}, Python {platform.python_version()}"
    )


def write_down(name, rows, facts, options):
    """Writes the record of a benchmark, and the pages that show it."""
    tables = [record.compared(rows)]
    if facts:
        tables.append({
            "columns": ["fact", "measured", record.TO_REACH],
            "rows": [[fact.what, fact.told,
                      fact.verdict().replace("NOT reached", "**not reached**")]
                     for fact in facts]})
    record.write(name, f"{describe()}; {options.gib:g} GiB, {options.rounds} "
                 "rounds in alternation, first calls not counted.", tables)


def main(what, cases, *, fresh=lambda case: False, before=None, name=None,
         rounds=5, facts=None):
    """Runs the cases that cases(directory, options) yields.

    fresh: whether the calls of a case get their own process.
    before: called before each call, outside the measured time.
    name: the name of the record in bench/results/, if there is one.
    facts: facts(directory, options) yields results that are measured after the
    cases.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--only", default="", help="cases whose name holds it")
    parser.add_argument("--gib", type=float, default=1, help="of large files")
    parser.add_argument("--directory", help="where files are written")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="a .png or .svg file")
    if name is not None:
        parser.add_argument("--record", action="store_true",
                            help="write the figures to bench/results/ and docs/")
    options = parser.parse_args()
    print(
        f"{what}\n{describe()}; "
        f"{options.rounds} rounds in alternation, first calls not counted"
    )
    rows, told = [], []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for case, contenders, targets in cases(Path(directory), options):
            if options.only not in case:
                continue
            seconds = measure(contenders, options.rounds, fresh(case), before)
            rows += report(case, seconds, targets)
        for fact in facts(Path(directory), options) if facts is not None else ():
            told.append(fact)
            print(f"\n{fact.what}\n  {fact.told}; {fact.verdict()}", flush=True)
    if name is not None and options.record:
        write_down(name, rows, told, options)
    if options.json:
        options.json.write_text(json.dumps(
            rows + [fact._asdict() for fact in told], indent=1) + "\n")
    if options.plot:
        plot(rows, options.plot)
    return 0
