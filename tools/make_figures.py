#!/usr/bin/env python3
"""Makes the tables of figures in docs/ and README.md from bench/results/.

    tools/make_figures.py            rewrites them
    tools/make_figures.py --check    fails if a page differs

A page has a place for each record: a line `<!-- NAME: figures -->`, and a line
`<!-- NAME: end -->`. docs/figures.md has the records themselves, as
`scripts/bench NAME --record` wrote them. docs/performance.md has the tables of
bench/results/summary.json: each row names the contenders and records to
compare. Every ratio and share there is computed from the records. README.md has
the rows marked "readme", without the last column, and the chart of first loads.
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from record import RATIO, RESULTS, lines_of, load, markdown, middle  # noqa: E402

PLACE = re.compile(r"(<!-- (\S+): figures -->\n).*?(<!-- \2: end -->)", re.DOTALL)
SUMMARY = RESULTS / "summary.json"


def record_lines(name):
    """Returns a record in Markdown."""
    if not (RESULTS / f"{name}.json").exists():
        yield (f"Not recorded yet: `scripts/bench {name} --record` on a machine "
               "with nothing else running writes the figures.")
        yield ""
        return
    record = load(name)
    yield from (record["where"], "", *markdown(record["tables"]))


class Part:
    """One comparison of a summary row: a case of a record."""

    def __init__(self, words):
        self.words = words
        self.rows = {}  # From contender to cells by column.
        for table in load(words["record"])["tables"]:
            for row in table["rows"]:
                named = dict(zip(table["columns"], row, strict=True))
                if "contender" in named:
                    if words["case"] in (table.get("title"), named.get("case")):
                        self.rows[named["contender"]] = named
                elif row[0] == words["case"]:  # The contenders are columns.
                    self.rows |= {title: {words["column"]: value}
                                  for title, value in named.items()}
        self.ours = self.value(words["ours"])

    def row(self, contender):
        if contender not in self.rows:
            raise SystemExit(f"{SUMMARY.name}: {self.words['record']}.json has no "
                             f"{contender!r} in {self.words['case']!r}")
        return self.rows[contender]

    def value(self, contender):
        cell = self.row(contender)[self.words["column"]]
        least = contender == self.words.get("least")
        return (cell[1] if least else middle(cell)) / self.words.get("per", 1)

    def ratio(self, contender):
        """Returns the time of `contender` divided by ours."""
        recorded = self.row(contender).get(RATIO)
        is_base = next(iter(self.rows)) == self.words["ours"]
        if is_base and recorded is not None:
            return middle(recorded)  # Formed from times of the same round.
        return self.value(contender) / self.ours


def short(value):
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"


def times(ratio):
    text = f"{ratio:.1f}x" if ratio < 10 else f"{ratio:.0f}x"
    return f"**{ratio:.2f}x**" if round(ratio, 2) < 1 else text


def peer_text(parts, unit):
    text, before = "", None
    for part in parts:
        name = part.words.get("name", part.words["peer"])
        text += "; " if text else ""
        text += "" if name == before else f"{name} "
        text += short(part.value(part.words["peer"]))
        before = name
    return f"{text} {unit}"


def summary_row(row, unit):
    """Returns a summary row as texts: what, ours, the peer, ratio, share."""
    parts = [Part({"column": "ms", "ours": "haulway", **row, **words})
             for words in row["of"]]
    ours = "; ".join(short(part.ours) for part in parts)
    ratio = "; ".join(times(part.ratio(part.words["peer"])) for part in parts)
    share = row.get("share", "")
    limits = [part for part in parts if "limit" in part.words]
    if limits:
        share = "; ".join(f"{part.ratio(part.words['limit']):.2f}"
                          for part in limits) + f" of {row['limit_is']}"
    return [row["what"], f"{ours} {unit}", peer_text(parts, unit), ratio, share]


def summary_table(name):
    """Returns the columns and rows of a table of the summary."""
    table = json.loads(SUMMARY.read_text())[name]
    return table["columns"], table["rows"]


def texts(rows):
    return [summary_row(row, row.get("unit", "ms")) for row in rows]


def summary_lines(name):
    """Returns a table of the summary in Markdown."""
    columns, rows = summary_table(name)
    yield from lines_of(columns, texts(rows))
    yield ""


def readme_lines(name):
    """Returns README.md's part of that table."""
    columns, rows = summary_table(name)
    rows = texts(row for row in rows if row.get("readme"))
    yield from lines_of(columns[:-1], [row[:-1] for row in rows])
    yield ""


# The chart's rows: the contender in bench/results/first.json, and what it does.
CHART_CASE = "load 1 GiB, warm, idle 3 s"
CHART = (
    ("haulway .pt", "Haulway: .pt, mapped"),
    ("torch.load mmap", "torch.load: .pt, mapped"),
    ("haulway", "Haulway: .safetensors, mapped"),
    ("safetensors mmap", "safetensors: mapped"),
    ("haulway .pt pread", "Haulway: .pt, private memory"),
    ("torch.load", "torch.load: .pt"),
    ("haulway pread", "Haulway: .safetensors, private memory"),
    ("safetensors pread", "safetensors: read"),
    ("haulway .tensors", "Haulway: .tensors"),
    ("tensorizer", "tensorizer: .tensors"),
    ("fastsafetensors", "fastsafetensors"),
    ("Run:ai streamer", "Run:ai streamer"),
)
# Legible on light and dark pages.
STYLE = (
    "text{font:13px sans-serif;fill:#1f2328}.ours{fill:#2b6cb0}"
    ".peer{fill:#9aa4af}@media(prefers-color-scheme:dark)"
    "{text{fill:#e6edf3}.ours{fill:#58a6ff}.peer{fill:#6e7681}}"
)


def chart():
    """Returns the chart of first loads, an SVG image."""
    part = Part({"record": "first", "case": CHART_CASE, "ours": "haulway",
                 "column": "first call, ms"})
    times = [part.value(contender) for contender, _ in CHART]
    row, left, wide = 24, 270, 420
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 80}" '
           f'height="{row * len(CHART) + 40}">')
    yield f"<style>{STYLE}</style>"
    yield ('<text x="8" y="20">The first load of 1 GiB in a new process, file in '
           "the page cache, ms (median)</text>")
    for i, ((_, what), ms) in enumerate(zip(CHART, times, strict=True)):
        top = 34 + row * i
        kind = "ours" if what.startswith("Haulway") else "peer"
        bar = max(1, round(ms / max(times) * wide))
        yield (f'<text x="{left - 8}" y="{top + 13}" text-anchor="end">{what}</text>'
               f'<rect class="{kind}" x="{left}" y="{top}" width="{bar}" '
               f'height="17" rx="2"/>'
               f'<text x="{left + bar + 6}" y="{top + 13}">{short(ms)}</text>')
    yield "</svg>"


def make(page, lines):
    """Returns the text of a page with its tables."""

    def place(match):
        return "\n".join([match[1], *lines(match[2]), match[3]])

    return PLACE.sub(place, page.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true",
                        help="write nothing, and fail if a page differs")
    options = parser.parse_args()
    wrong = 0
    made = {ROOT / "docs/figures/first.svg": "\n".join([*chart(), ""])}
    for name, lines in (("docs/figures.md", record_lines),
                        ("docs/benchmarks.md", record_lines),
                        ("docs/hosts.md", record_lines),
                        ("docs/performance.md", summary_lines),
                        ("README.md", readme_lines)):
        made[ROOT / name] = make(ROOT / name, lines)
    for page, text in made.items():
        name = page.relative_to(ROOT)
        if page.exists() and text == page.read_text():
            continue
        wrong += 1
        if options.check:
            print(f"{name} differs from the records in bench/results/: "
                  "run tools/make_figures.py")
        else:
            page.write_text(text)
    return 1 if options.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
