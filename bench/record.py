"""The record of figures: a file of bench/results/ for each benchmark.

A record says where the figures were measured ("where"), and has tables. A table
has a "title" or none, "columns", and "rows" with a cell for each column. A cell
is a text, a number, null, or [median, least, most] of several rounds. A column
"ratio" counts how many times Haulway's time a contender took; a number in a
column "to reach" is the ratio that was aimed at.

tools/make_figures.py makes the tables of the pages from these files.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
RATIO, TO_REACH = "ratio", "to reach"


def number(value):
    """Three digits, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def measured(values):
    """A cell: the median; of several values, with the least and the most."""
    kept = [float(f"{value:.4g}")
            for value in (statistics.median(values), min(values), max(values))]
    return kept[0] if len(values) == 1 else kept


def middle(cell):
    """The number of a cell, or its median."""
    return cell[0] if isinstance(cell, list) else cell


def compared(rows):
    """The table of contenders that ran in turn. `rows` are those of
    side_by_side.report(); the first of a case is the one that the others are
    compared with."""
    lines, case = [], None
    for row in rows:
        ratio = None if row["case"] != case else measured(row["ratios"])
        case = row["case"]
        lines.append([case, row["contender"],
                      measured([1e3 * second for second in row["seconds"]]),
                      ratio, row["target"]])
    return {"columns": ["case", "contender", "ms", RATIO, TO_REACH],
            "rows": lines}


def shown(value, text=number, unit=""):
    """A cell as text."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        median, least, most = map(text, value)
        return f"{median}{unit} [{least} - {most}]"
    return text(value) + unit


def cells(columns, row):
    """The cells of a row as texts."""
    ratio = middle(row[columns.index(RATIO)]) if RATIO in columns else None
    for title, value in zip(columns, row, strict=True):
        if title == TO_REACH and isinstance(value, (int, float)):
            reached = "reached" if ratio >= value else "**not reached**"
            yield f"{number(value)}x: {reached}"
        elif title == RATIO:
            yield shown(value, "{:.4g}".format, "x")
        else:
            yield shown(value)


def lines_of(columns, rows):
    """A table in Markdown. `rows` are texts."""
    yield "| " + " | ".join(columns) + " |"
    yield "|---" * len(columns) + "|"
    before = None
    for row in rows:
        first = "" if columns[0] == "case" and row[0] == before else row[0]
        before = row[0]
        yield "| " + " | ".join([first, *row[1:]]) + " |"


def markdown(tables):
    """Lines of Markdown, the last one empty."""
    for table in tables:
        if "title" in table:
            yield from (f"**{table['title']}**", "")
        columns = table["columns"]
        yield from lines_of(columns, [list(cells(columns, row))
                                      for row in table["rows"]])
        yield ""


def load(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def dump(record):
    """The text of a file: a line for each row."""
    rows = []

    def keep(table):
        rows.append([json.dumps(row, ensure_ascii=False)
                     for row in table["rows"]])
        return {**table, "rows": f"rows {len(rows) - 1}"}

    text = json.dumps(
        {**record, "tables": [keep(table) for table in record["tables"]]},
        indent=1, ensure_ascii=False)
    text = re.sub(r'"columns": \[[^]]*\]',
                  lambda found: " ".join(found[0].split()), text)
    for at, lines in enumerate(rows):
        text = text.replace(f'"rows {at}"', "[\n   " + ",\n   ".join(lines)
                            + "\n  ]")
    return text + "\n"


def write(name, where, tables):
    """Writes down what benchmark `name` measured, and renews the pages."""
    RESULTS.mkdir(exist_ok=True)
    record = {"where": where, "tables": tables}
    (RESULTS / f"{name}.json").write_text(dump(record))
    subprocess.run([sys.executable, ROOT / "tools" / "make_figures.py"],
                   check=True)
