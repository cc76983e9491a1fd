"""Contenders in turn: what every benchmark here shares.

A benchmark yields cases: a name, contenders (name, function), Haulway first,
and targets, by contender. Each contender runs once per round, in alternation,
after one round that is not counted. Ratios are formed round by round: the
contender's seconds / Haulway's seconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import tempfile
import threading
import time
from pathlib import Path

MIB = 1 << 20


def in_two_threads(work, pieces):
    """Calls work(piece) for each, every other one in a second thread."""
    halves = [pieces[0::2], pieces[1::2]]
    threads = [
        threading.Thread(target=lambda half=half: [work(p) for p in half])
        for half in halves
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def seconds_in_a_child(function):
    """The time one call takes in a fresh process, which has no memory to
    reuse from an earlier one, as when a program loads its model."""
    gc.collect()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        start = time.perf_counter()
        result = function()
        elapsed = time.perf_counter() - start
        os.write(writer, repr(elapsed).encode())
        os._exit(0 if result is not NotImplemented else 1)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError("a contender failed; its error is above")
    return float(text)


def seconds_here(function):
    gc.collect()
    start = time.perf_counter()
    result = function()
    elapsed = time.perf_counter() - start
    del result
    return elapsed


def measure(contenders, rounds, fresh=False, before=None):
    """Seconds by contender, one list entry a round.

    fresh: each call in a process of its own.
    before: called before each call, outside of its time.
    """
    seconds_of = seconds_in_a_child if fresh else seconds_here
    seconds = {name: [] for name, _ in contenders}
    for round_number in range(rounds + 1):
        for name, function in contenders:
            if before is not None:
                before()
            elapsed = seconds_of(function)
            if round_number > 0:
                seconds[name].append(elapsed)
    return seconds


def spread(values, digits):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f} - {high:.{digits}f}]"


def report(case, seconds, targets):
    """Prints one case; returns its rows."""
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
        if target is not None:
            verdict = f"{target:g}x " + (
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
    """A bar for each peer: how many times Haulway's time it took."""
    bars = [r for r in rows if r["contender"] != "haulway"]
    height = 26 * len(bars) + 60
    largest = max(statistics.median(r["ratios"]) for r in bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="900" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        '<text x="10" y="20" font-size="15">Time taken relative to Haulway '
        "(1 = the same, more = Haulway is faster)</text>",
    ]
    for i, row in enumerate(bars):
        ratio = statistics.median(row["ratios"])
        y = 40 + 26 * i
        width = max(2, 380 * ratio / largest)
        ceiling = row["contender"].startswith("ceiling")
        colour = "#999" if ceiling else "#2b6cb0"
        lines.append(
            f'<text x="440" y="{y + 13}" text-anchor="end">{row["case"]} - '
            f'{row["contender"]}</text>'
            f'<rect x="450" y="{y}" width="{width:.0f}" height="18" '
            f'fill="{colour}"/>'
            f'<text x="{455 + width:.0f}" y="{y + 13}">{ratio:.1f}x</text>'
        )
    lines.append("</svg>")
    Path(path).write_text("\n".join(lines) + "\n")


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"


def main(what, cases, *, fresh=lambda case: False, before=None):
    """Runs the cases that cases(directory, options) yields.

    fresh: whether the calls of a case each get a process of their own.
    before: called before each call, outside of its time.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name holds it")
    parser.add_argument("--gib", type=float, default=1, help="of large files")
    parser.add_argument("--directory", help="where files are written")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="an .svg file")
    options = parser.parse_args()
    print(
        f"{what}\n{processor()}, {os.cpu_count()} CPUs, Linux "
        f"{platform.release()}, Python {platform.python_version()}; "
        f"{options.rounds} rounds in alternation after one uncounted"
    )
    rows = []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for case, contenders, targets in cases(Path(directory), options):
            if options.only not in case:
                continue
            seconds = measure(contenders, options.rounds, fresh(case), before)
            rows += report(case, seconds, targets)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.plot:
        plot(rows, options.plot)
    return 0
