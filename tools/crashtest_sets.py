#!/usr/bin/env python3
"""Kills those who write sets of files; see scripts/crashtest.

Each run begins with a whole set. One process writes another model over it, or
two at once, and gets SIGKILL or SIGTERM at a random moment, or at a random call
that changes files, while another process reads the set again and again. Then
the set must be the old or the new one, or an error, and the next writer must
leave nothing else behind.
"""

import argparse
import collections
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python/tests"))

import sets_of_files as sets  # noqa: E402

_READER = """
import collections, pathlib, sys
sys.path.insert(0, sys.argv[1])
import sets_of_files as sets
kind = next(one for one in sets.kinds() if one.name == sys.argv[2])
seen = collections.Counter()
out, stop = pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4])
while not stop.exists():
    seen[sets.found(kind, out)] += 1
print(*(f"{what}={count}" for what, count in seen.items()))
"""
SIGNALS = (signal.SIGKILL, signal.SIGTERM)


class Campaign:
    """The runs of one kind of set.

    command: the program.
    """

    def __init__(self, kind, command, folder):
        self.kind, self.command, self.work = kind, command, folder
        self.out = folder / "out"
        self.out.mkdir()
        self.counts = collections.Counter()
        self.read = collections.Counter()

    def run(self, runs):
        self._write(1)
        began = time.monotonic()
        self._write(2)
        self.longest = time.monotonic() - began
        self.calls = sets.calls(self.kind, self.command, self.work, self.out, 1)
        stop = self.work / "stop"
        reader = subprocess.Popen(
            [sys.executable, "-c", _READER, ROOT / "python/tests",
             self.kind.name, self.out, stop], stdout=subprocess.PIPE, text=True)
        try:
            for _ in range(runs):
                self._run_one()
        finally:
            stop.touch()
            told = reader.communicate()[0]
        for one in told.split():
            what, _, count = one.partition("=")
            self.read[what] += int(count)

    def _write(self, number):
        if self.kind.write(self.command, self.work, self.out, number) != 0:
            sys.exit(f"{self.kind}: a writer failed")

    def _run_one(self):
        numbers = random.choice([(1,), (2,), (1, 2)])
        how = random.choice(SIGNALS)
        at_call = random.random() < 0.5
        stopping = {
            "LD_PRELOAD": str(sets.library(self.work)),
            "KILL_AT": str(random.randrange(self.calls)),
            "KILL_WITH": str(int(how)),
        } if at_call else {}
        writers = [self.kind.start(self.command, self.work, self.out, number,
                                   **stopping) for number in numbers]
        if not at_call:
            time.sleep(random.uniform(0, 1.1 * self.longest))
            for writer in writers:
                if writer.poll() is None:
                    writer.send_signal(how)
        ended = {writer.wait(120) for writer in writers}
        self.counts[how.name if ended - {0} else "ended before"] += 1
        found = sets.found(self.kind, self.out)
        by_names = sets.found_by_names(self.out)
        if sets.MIXTURE in (found, by_names):
            self.counts["mixtures"] += 1
            print(f"{self.kind}: a mixture after {how.name}", flush=True)
        self.counts["an error" if found == sets.ERROR else "a whole set"] += 1
        self._write(random.choice((1, 2)))
        left = sets.hidden(self.out)
        if left:
            self.counts["left behind"] += len(left)
            print(f"{self.kind}: left behind {left}", flush=True)

    def told(self):
        counts = self.counts
        mixtures = counts["mixtures"] + self.read[sets.MIXTURE]
        return (f"{self.kind.name:<32} {counts['SIGKILL']:>4} SIGKILL, "
                f"{counts['SIGTERM']:>4} SIGTERM, {counts['ended before']:>4} "
                f"ended before: then {counts['a whole set']} whole, "
                f"{counts['an error']} errors; read beside "
                f"{self.read.total()} times, {self.read[sets.ERROR]} errors; "
                f"{mixtures} mixtures, {counts['left behind']} left behind")

    @property
    def is_right(self):
        return not (self.counts["mixtures"] or self.counts["left behind"]
                    or self.read[sets.MIXTURE])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=200,
                        help="of each kind of set (200)")
    parser.add_argument("--kind", default="", help="only kinds with this name")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    random.seed(options.seed)
    is_right = True
    for kind in sets.kinds():
        if options.kind not in kind.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            campaign = Campaign(kind, options.command.resolve(),
                                pathlib.Path(folder))
            campaign.run(options.runs)
            print(campaign.told(), flush=True)
            is_right = is_right and campaign.is_right
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
