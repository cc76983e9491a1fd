"""What bench/first_bench.py measured: verdicts, and the part of a page."""

from __future__ import annotations

import statistics
from pathlib import Path

from load_report import number, spread

PAGE = Path(__file__).resolve().parent.parent / "docs" / "figures.md"
BEGIN, END = "<!-- first: figures -->", "<!-- first: end -->"


class Target:
    """Our first call against the fastest of others: `least` times as fast.

    whom: what the others are. ours, others: contenders. Only those that were
    measured count; without both there is no verdict.
    """

    def __init__(self, whom, ours, others, least):
        self.whom, self.ours, self.others = whom, ours, others
        self.least = least

    def verdicts(self, seconds):
        """(our contender, the best other, the ratio, whether it is reached)."""
        others = [name for name in self.others if name in seconds]
        for ours in self.ours:
            if ours not in seconds or not others:
                continue
            best = min(others, key=lambda name: first(seconds[name]))
            ratio = first(seconds[best]) / first(seconds[ours])
            yield ours, best, ratio, ratio >= self.least


def first(times):
    return statistics.median(times["load"])


def lines(rows):
    """Markdown: each case with its contenders, then its verdicts."""
    for row in rows:
        seconds = row["seconds"]
        columns = [("first call, ms", "load"), ("ratio", None),
                   ("exec to last byte, ms", "process"),
                   ("second call, ms", "second")]
        kept = [column for column in columns if column[1] is None
                or any(column[1] in times for times in seconds.values())]
        yield f"**{row['case']}**"
        yield ""
        yield "| | " + " | ".join(title for title, _ in kept) + " |"
        yield "|---" * (len(kept) + 1) + "|"
        base = next(iter(seconds.values()))
        for name, times in seconds.items():
            cells = []
            for _, key in kept:
                if key is None:
                    ratio = first(times) / first(base)
                    cells.append("" if times is base else f"{ratio:.2g}x")
                elif key in times:
                    cells.append(spread([1e3 * t for t in times[key]], number))
                else:
                    cells.append("")
            yield f"| {name} | " + " | ".join(cells) + " |"
        yield ""
        for verdict in row["verdicts"]:
            yield f"- {verdict}"
        if row["verdicts"]:
            yield ""


def verdict_lines(targets, seconds):
    for target in targets:
        for ours, best, ratio, reached in target.verdicts(seconds):
            whom = target.whom
            if best != whom:
                whom = f"{whom} ({best})"
            yield (
                f"{ours}: {ratio:.2f} times as fast as {whom}, of "
                f"{target.least:.2g} wanted "
                f"({'reached' if reached else 'not reached'})"
            )


def record(where, rows, page=PAGE):
    """Renews the part of the page between marks."""
    before, rest = page.read_text().split(BEGIN)
    after = rest.split(END)[1]
    text = "\n".join([where, "", *lines(rows)])
    page.write_text(f"{before}{BEGIN}\n{text}{END}{after}")
