#!/usr/bin/env python3
"""Fails if a file includes what its layer may not, or breaks a house rule."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Folder -> folders of src/ it may include. include/haulway/ is open to all.
ALLOWED = {
    "base": set(),
    "tensor": {"base"},
    "io": {"base", "tensor"},
    "zip": {"base", "io"},
    "pickle": {"base"},
    "torch": {"base", "tensor", "io", "zip", "pickle"},
    "tensorizer": {"base", "tensor", "io"},
    "safetensors": {"base", "tensor", "io"},
    "checkpoint": {
        "base", "tensor", "io", "zip", "pickle", "torch", "tensorizer",
        "safetensors",
    },
    "save": {"base", "tensor", "io"},
    "device": {"base", "tensor"},
    "load": {"base", "tensor", "io", "checkpoint", "device"},
    "convert": {
        "base", "tensor", "io", "zip", "pickle", "tensorizer", "checkpoint",
        "save", "load",
    },
    "arena": {"base", "tensor"},
}
INCLUDE = re.compile(r'^\s*#include "([^"]+)"')
# Pattern, what is wrong, and the files that may.
RULES = [
    (re.compile(r"::preadv?\("), "pread outside base/posix", {"base/posix.cc"}),
    (
        re.compile(r"reinterpret_cast<(const )?u?int(16|32|64)_t\s*\*>"),
        "a pointer cast to a wider integer: read through ByteCursor",
        set(),
    ),
]


def check_source(path):
    """Yields what is wrong with a file of src/."""
    name = path.relative_to(ROOT / "src").as_posix()
    folder = name.split("/")[0]
    is_test = name.endswith("_test.cc") or folder == "testing"
    for number, line in enumerate(path.read_text().splitlines(), 1):
        place = f"src/{name}:{number}"
        found = INCLUDE.match(line)
        if found and not is_test:
            target = found.group(1).split("/")[0]
            may = ALLOWED.get(folder, set()) | {folder, "haulway"}
            if target not in may:
                yield f"{place}: {folder}/ may not include {found.group(1)}"
        for pattern, wrong, exempt in RULES:
            if not is_test and name not in exempt and pattern.search(line):
                yield f"{place}: {wrong}"


def check_user(path):
    """Yields what is wrong with a file above the public API."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = INCLUDE.match(line)
        if not found or found.group(1).startswith("haulway/"):
            continue
        if "/" in found.group(1):
            place = f"{path.relative_to(ROOT).as_posix()}:{number}"
            yield f"{place}: only include/haulway/ is open to {path.parent.name}/"


def main():
    faults = []
    for pattern in ("*.h", "*.cc"):
        for path in sorted((ROOT / "src").rglob(pattern)):
            faults += check_source(path)
        for folder in ("cli", "python", "bench"):
            for path in sorted((ROOT / folder).rglob(pattern)):
                faults += check_user(path)
    for fault in faults:
        print(fault)
    print(f"layers: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
