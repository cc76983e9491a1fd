"""Bulk work: haulway.bulk in two processes, and the verb in one, in
alternation.

    scripts/bench bulk [--rounds N] [--only CASE] [--json FILE] [--record]

The files are in the page cache. The time of a run of bulk() includes the start
of its workers.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path

import numpy

import haulway
from side_by_side import MIB, Fact, main

LARGE, LARGE_COUNT = MIB, 2_000
TINY_COUNT = 20_000


def make(folder: Path, count, nbytes):
    """Makes copies of a checkpoint; returns their paths."""
    folder.mkdir()
    first = folder / "0.pt"
    values = numpy.random.default_rng(0).integers(0, 256, nbytes, numpy.uint8)
    haulway.save({"weight": values}, first, durability="none")
    paths = [first, *(folder / f"{i}.pt" for i in range(1, count))]
    for path in paths[1:]:
        shutil.copyfile(first, path)
    return [str(path) for path in paths]


def in_one_process(paths):
    for path in paths:
        assert haulway.verify(path, threads=1)


def in_bulk(paths, **options):
    report = haulway.bulk("verify", paths, **options)
    assert report.done == len(paths)


def cases(directory: Path, options):
    """Yields (case, [(contender, function), ...], targets); Haulway first."""
    paths = make(directory / "large", LARGE_COUNT, LARGE)
    yield (f"verify {LARGE_COUNT:,} files of 1 MiB",
           [("haulway", lambda: in_bulk(paths)),
            ("one process", lambda: in_one_process(paths))],
           {"one process": 1.8})
    shutil.rmtree(directory / "large")


def facts(directory: Path, options):
    paths = make(directory / "tiny", TINY_COUNT, 16)

    def seconds(work, **more):
        start = time.perf_counter()
        work(paths, **more)
        return time.perf_counter() - start

    in_one_process(paths)
    beyond = []
    for _ in range(options.rounds):
        alone = seconds(in_one_process)
        journal = directory / "run.jsonl"
        told = seconds(in_bulk, jobs=1, journal=journal)
        os.remove(journal)
        beyond.append((told - alone) / TINY_COUNT * 1e3)
    middle = statistics.median(beyond)
    yield Fact(
        f"{TINY_COUNT:,} tiny files, one worker and a journal: time beyond the "
        "verb's",
        f"{middle:.3f} ms a file [{min(beyond):.3f} - {max(beyond):.3f}]",
        "at most 1 ms", middle <= 1,
    )


if __name__ == "__main__":
    raise SystemExit(main(__doc__.split("\n")[0], cases, name="bulk",
                          facts=facts))
