#!/usr/bin/env python3
"""Compares haulway.safetensors with the package for longer than the tests.

Random files, most of them broken, are given to both as bytes and by name:
result, message and tensors must be equal. Slices of tensors with random indices
must also give equal results.

    scripts/safetensors-campaign --files 200000 --slices 50000
"""

import argparse
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]
                       / "python" / "tests"))

import safetensors_chance


def tried(what, disagreement, seeds, path):
    """Returns the number of seeds for which the two differ."""
    wrong = 0
    for seed in seeds:
        found = disagreement(seed, path)
        if found is None:
            continue
        wrong += 1
        if wrong <= 20:
            print(f"{what} {seed}: {found[0]}: expected {found[1]}, "
                  f"found {found[2]}")
    print(f"{len(seeds)} {what}s: {wrong} are not as the package's")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--slices", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "file"
        wrong = tried("file", safetensors_chance.disagreement,
                      range(given.seed, given.seed + given.files), path)
        wrong += tried("slice", safetensors_chance.slice_disagreement,
                       range(given.seed, given.seed + given.slices), path)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
