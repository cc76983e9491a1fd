#!/usr/bin/env python3
"""Kills those who write versions of weights at random moments; see
scripts/crashtest.

publisher: after each kill every version must be whole and right, or absent, and
the next publisher must go on and leave nothing behind. apply: the folder must
hold the version that it states or, if it states none, be refused until the next
call has ended the update.
"""

import argparse
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python/tests"))

from killed_apply import KilledApply  # noqa: E402
from killed_publisher import KilledPublisher  # noqa: E402

KINDS = {"apply": KilledApply, "publisher": KilledPublisher}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        killed = KINDS[options.kind](pathlib.Path(folder), options.seed)
        counts = killed.kill(options.runs)
    for name, count in counts.items():
        print(f"{name}: {count}")
    print(f"no fault, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
