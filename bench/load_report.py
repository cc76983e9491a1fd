"""Draws and records the results of bench/load_bench.py."""

from __future__ import annotations

import statistics
from pathlib import Path

from record import compared, number, write

DOCS = Path(__file__).resolve().parent.parent / "docs"
OURS, PEER, LIMIT = "#c2410c", "#2b6cb0", "#9ca3af"


def by_case(rows):
    """Returns rows by case, in the order in which they were measured."""
    cases = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    return cases


def is_limit(row):
    return row["contender"].startswith(("ceiling", "limit"))


def milliseconds(row):
    return [1e3 * second for second in row["seconds"]]


def plot(rows, path):
    """Draws bars of milliseconds, one panel per case."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = by_case(rows)
    heights = [len(case) + 1.6 for case in cases.values()]
    figure, panels = pyplot.subplots(
        len(cases), 1, figsize=(9, 0.26 * sum(heights) + 0.4), squeeze=False,
        gridspec_kw={"height_ratios": heights},
    )
    for (name, contenders), axes in zip(cases.items(), panels[:, 0]):
        middles = [statistics.median(milliseconds(row)) for row in contenders]
        for at, (row, middle) in enumerate(zip(contenders, middles)):
            times = milliseconds(row)
            ours = row["contender"].startswith("haulway")
            axes.barh(
                at, middle, height=0.72,
                color=OURS if ours else LIMIT if is_limit(row) else PEER,
                xerr=[[middle - min(times)], [max(times) - middle]],
                error_kw={"ecolor": "#444444", "lw": 0.8},
            )
            text = f" {number(middle)} ms"
            if not ours:
                text += f"  ({statistics.median(row['ratios']):.2g}x)"
            axes.annotate(text, (max(times), at), va="center", fontsize=8)
        axes.set_yticks(range(len(contenders)),
                        [row["contender"] for row in contenders], fontsize=8)
        axes.set_title(name, loc="left", fontsize=9, fontweight="bold", pad=3)
        axes.set_xlim(0, 1.3 * max(max(milliseconds(row)) for row in contenders))
        axes.invert_yaxis()
        axes.tick_params(axis="x", labelsize=7, length=2)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.supxlabel(
        "ms, median with least and most; in brackets how many times Haulway's "
        "first bar; grey: what the machine can do at best", fontsize=8,
    )
    figure.tight_layout(h_pad=0.4)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def write_down(where, rows):
    """Writes the record and renews the figure."""
    plot(rows, DOCS / "figures" / "load.png")
    rounds = len(rows[0]["seconds"])
    write("load", f"{where}; {rounds} round{'s' if rounds > 1 else ''} of three "
          "calls; medians.", [compared(rows)])
