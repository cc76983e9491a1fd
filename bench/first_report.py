"""Verdicts and the record for the results of bench/first_bench.py."""

from __future__ import annotations

import statistics

import record


class Target:
    """A goal: our first call is `least` times as fast as the fastest of others.

    whom: what the others are called. ours, others: contenders. Only measured
    ones count; if either group has none, there is no verdict.
    """

    def __init__(self, whom, ours, others, least):
        self.whom, self.ours, self.others = whom, ours, others
        self.least = least

    def ratios(self, seconds):
        """Yields (our contender, the best other, the ratio)."""
        others = [name for name in self.others if name in seconds]
        for ours in self.ours:
            if ours not in seconds or not others:
                continue
            best = min(others, key=lambda name: first(seconds[name]))
            ratio = first(seconds[best]) / first(seconds[ours])
            yield ours, best, ratio


def first(times):
    return statistics.median(times["load"])


def tables(row):
    """Yields the record's tables for a case: its contenders, and its
    verdicts."""
    seconds = row["seconds"]
    columns = [("first call, ms", "load"), (record.RATIO, None),
               ("exec to last byte, ms", "process"), ("second call, ms", "second")]
    kept = [column for column in columns if column[1] is None
            or any(column[1] in times for times in seconds.values())]
    base = next(iter(seconds.values()))
    rows = []
    for name, times in seconds.items():
        cells = []
        for _, key in kept:
            if key is None:
                ratio = record.measured([first(times) / first(base)])
                cells.append(None if times is base else ratio)
            elif key in times:
                cells.append(record.measured([1e3 * t for t in times[key]]))
            else:
                cells.append(None)
        rows.append([name, *cells])
    yield {"title": row["case"], "rows": rows,
           "columns": ["contender", *(title for title, _ in kept)]}
    if row["verdicts"]:
        yield {"columns": ["our contender", "against", record.RATIO,
                           record.TO_REACH], "rows": row["verdicts"]}


def verdicts(targets, seconds):
    """Returns the rows of the table of verdicts."""
    return [
        [ours, whom if best == whom else f"{whom} ({best})",
         record.measured([ratio]), least]
        for target in targets
        for whom, least in [(target.whom, target.least)]
        for ours, best, ratio in target.ratios(seconds)
    ]


def write_down(where, rows):
    record.write("first", where, [table for row in rows for table in tables(row)])
