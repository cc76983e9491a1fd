#!/usr/bin/env python3
"""Tries to show that `haulway scan` is wrong, for longer than the tests do.

Random streams of opcodes are given to both of Python's unpicklers: scan must
list every name that one of them looks up, in that order. Then every hostile
file of python/tests/scan_cases.py, scan_bypasses.py and scan_foreign.py, and
the same files with random changes, are given to the readers that scan covers,
in separate processes: a file that runs code there must not be SAFE.

    scripts/scan-campaign --streams 100000 --files 500

With --harmless it prints the verdicts on scan_harmless.py's files, and the
reasons.
"""

import argparse
import collections
import pathlib
import random
import sys
import tempfile
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]
                       / "python" / "tests"))
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]
                       / "python" / "tests" / "scanning"))

import test_scan

import haulway
import scan_cases
import scan_foreign
import scan_harmless
import scan_readers
import scan_tricks


def try_streams(first, count):
    """Returns the number of streams of which scan lists fewer names than Python
    looks up."""
    wrong = 0
    for seed in range(first, first + count):
        data = scan_cases.odd_pickle(seed)
        found = test_scan.disagreement(data)
        if found is not None:
            wrong += 1
            print(f"stream {seed}: {data!r}: {found}")
    print(f"{count} streams: {wrong} of which scan lists too little")
    return wrong


def try_file(ground, name, data, readers):
    """Returns (whether it runs code in a reader, whether scan's verdict is
    wrong)."""
    path = ground.path / "file"
    path.write_bytes(data)
    ran = ground.ran(path, readers)
    report = haulway.scan(data)
    if ran and report.safe:
        print(f"{name}: SAFE, but runs code in {', '.join(ran)}")
    return bool(ran), bool(ran) and report.safe


def mutated(data, chance):
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(changed))
        kind = chance.randrange(3)
        if kind == 0:
            changed[at] = chance.randrange(256)
        elif kind == 1:
            changed[at] ^= 1 << chance.randrange(8)
        else:
            changed[at:at] = changed[at : at + chance.randrange(1, 9)]
    return bytes(changed)


def try_foreign(ground, count, seed):
    """Returns the number of SAFE files that run code because of their type or
    name, unchanged or with random changes."""
    rows = scan_foreign.rows()
    chance = random.Random(seed)
    ran = wrong = 0
    for i in range(len(rows) + count):
        label, name, data, readers = rows[i] if i < len(rows) \
            else chance.choice(rows)
        if i >= len(rows):
            data = scan_foreign.changed(data, chance)
            label = f"{label} changed ({seed}, {i})"
        path = ground.path / name
        path.write_bytes(data)
        found = ground.ran(path, {*readers, *scan_readers.FOREIGN} if readers
                           else scan_readers.FOREIGN)
        safe = bool(haulway.scan(path))
        path.unlink()
        if found and safe:
            print(f"{label}: SAFE, but runs code in {', '.join(found)}")
        ran += bool(found)
        wrong += bool(found) and safe
    print(f"{len(rows) + count} foreign files: {ran} run code in some reader, "
          f"{wrong} of them SAFE")
    return wrong


def try_files(count, seed):
    ground = scan_readers.Ground()
    cases = [*scan_cases.evil_files(),
             *((row[0], row[2]) for row in test_scan.WAYS)]
    results = [try_file(ground, name, data, scan_readers.READERS)
               for name, data in cases]
    dead = [name for (name, _), (ran, _) in zip(cases, results) if not ran]
    print(f"{len(cases)} hostile files: {sum(ran for ran, _ in results)} run "
          f"code in some reader, {sum(bad for _, bad in results)} of them SAFE")
    if dead:
        print(f"  no reader here ran: {', '.join(dead)}")
    chance = random.Random(seed)
    more = []
    for i in range(count):
        name, data = chance.choice(cases)
        more.append(try_file(ground, f"{name} changed ({seed}, {i})",
                             mutated(data, chance), scan_readers.QUICK))
    print(f"{count} changed files: {sum(ran for ran, _ in more)} run code, "
          f"{sum(bad for _, bad in more)} of them SAFE")
    odd = []
    for i in range(count):
        data = scan_tricks.odd_file(seed + i)
        if chance.random() < 0.3:
            data = mutated(data, chance)
        # A file that is not SAFE need not be tried.
        if haulway.scan(data).safe:
            odd.append(try_file(ground, f"odd file {seed + i}", data,
                                scan_readers.ON))
    print(f"{count} odd files: {len(odd)} SAFE, {sum(bad for _, bad in odd)} "
          "of those run code")
    foreign = try_foreign(ground, count, seed)
    ground.close()
    return sum(bad for _, bad in results + more + odd) + foreign


def show_harmless():
    """Returns the number of harmless files with a wrong verdict; prints all
    that are not SAFE."""
    warnings.simplefilter("ignore")
    verdicts = collections.Counter()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, report, verdict in scan_harmless.reports(
                pathlib.Path(folder)):
            verdicts[report.verdict] += 1
            wrong += report.verdict != verdict
            if not report.safe or report.verdict != verdict:
                print(f"{report.verdict:8} {name}: {report.reason}"
                      + (f" (expected {verdict})"
                         if report.verdict != verdict else ""))
    print(f"{verdicts.total()} harmless files: "
          + ", ".join(f"{verdicts[one]} {one}"
                      for one in ("SAFE", "UNSAFE", "UNKNOWN"))
          + f"; {wrong} of them wrongly")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1_000_000)
    parser.add_argument("--harmless", action="store_true",
                        help="only show what scan says of harmless files")
    given = parser.parse_args()
    if given.harmless:
        return 1 if show_harmless() else 0
    wrong = try_streams(given.seed, given.streams)
    wrong += try_files(given.files, given.seed)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
