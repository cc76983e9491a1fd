"""The record of figures: a file of bench/results/ for each benchmark.

A record says where the figures were measured ("where"), and has tables. A table
has an optional "title", "columns", and "rows" with a cell for each column. A
cell is a text, a number, null, or [median, minimum, maximum] of several rounds.
A column "ratio" is a contender's time divided by Haulway's; a number in a
column "to reach" is the ratio that was the goal.

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
    """Formats a number with three digits, or all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def measured(values):
    """Returns a cell: the median; of several values, with the minimum and
    maximum."""
    kept = [float(f"{value:.4g}")
            for value in (statistics.median(values), min(values), max(values))]
    return kept[0] if len(values) == 1 else kept


def middle(cell):
    """Returns the number of a cell, or its median."""
    return cell[0] if isinstance(cell, list) else cell


def compared(rows):
    """Returns the table of contenders that ran in alternation. `rows` are
    those of side_by_side.report(); the others are compared with the first of
    a case."""
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
    """Returns a cell as text."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        median, least, most = map(text, value)
        return f"{median}{unit} [{least} - {most}]"
    return text(value) + unit


def cells(columns, row):
    """Returns the cells of a row as texts."""
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
    """Returns the lines of a Markdown table. `rows` are texts."""
    yield "| " + " | ".join(columns) + " |"
    yield "|---" * len(columns) + "|"
    before = None
    for row in rows:
        first = "" if columns[0] == "case" and row[0] == before else row[0]
        before = row[0]
        yield "| " + " | ".join([first, *row[1:]]) + " |"


def markdown(tables):
    """Returns lines of Markdown; the last one is empty."""
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
    """Returns the text of a file: one line per row."""
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
    """Records the results of benchmark `name` and renews the pages."""
    RESULTS.mkdir(exist_ok=True)
    record = {"where": where, "tables": tables}
    (RESULTS / f"{name}.json").write_text(dump(record))
    subprocess.run([sys.executable, ROOT / "tools" / "make_figures.py"],
                   check=True)
