#!/usr/bin/env python3
"""Fails if a long source file does not begin by saying how it works.

A file of more than 250 lines begins with at least six lines on how it works and
which alternatives were tried or rejected: before its first line of code, in one
comment, or in a module's docstring. Tests are exempt.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONG = 250
LEAST = 6

# Lines that may surround the comment: they have no effect.
PASSED = {
    "cc": re.compile(r"#(include|pragma|if|ifdef|endif|define)\b|$"),
    "py": re.compile(r"$|from __future__|import |from .* import|[)\]]|    "),
}


def head_of(path):
    """Returns the length of the longest comment before the first line of
    code."""
    text = path.read_text()
    if path.suffix == ".py":
        docstring = re.match(r'\s*"""(.*?)"""', text, re.DOTALL)
        lines = docstring.group(1).strip().count("\n") + 1 if docstring else 0
        text = text[docstring.end():] if docstring else text
        mark, passed = "#", PASSED["py"]
    else:
        lines, mark, passed = 0, "//", PASSED["cc"]
    run = 0
    for line in text.splitlines():
        if line.startswith(mark):
            run += 1
            lines = max(lines, run)
        elif passed.match(line):
            run = 0
        else:
            break
    return lines


def sources():
    for pattern in ("include/haulway/*.h", "src/**/*.h", "src/**/*.cc",
                    "cli/*.h", "cli/*.cc", "python/*/*.h", "python/*/*.cc",
                    "python/haulway/**/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            if not path.name.endswith("_test.cc") and (
                path.parent.name != "testing"
            ):
                yield path


def main():
    faults = 0
    for path in sources():
        lines = len(path.read_text().splitlines())
        if lines > LONG and head_of(path) < LEAST:
            faults += 1
            print(f"{path.relative_to(ROOT)}: {lines} lines, and {LEAST} at "
                  f"its start on how it works were expected, "
                  f"{head_of(path)} found")
    print(f"heads: {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
