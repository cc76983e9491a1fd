"""Calls of haulway.delta.apply that are killed at random moments, and what must
be left."""

import collections
import json
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest

import haulway
import haulway.delta

ENCODINGS = ("xor", "overwrite")


class KilledApply:
    """Runs of both encodings. From one to four calls are killed, one after
    another, before one ends what they began."""

    VERSIONS = 3
    TENSORS, SIZE = 6, 400_000

    def __init__(self, folder, seed):
        self.draw = random.Random(seed)
        self.folder = folder
        self.base, self.target = folder / "base", folder / "target"
        self.start = folder / "start"
        draw = np.random.default_rng(seed)
        self.states = [{f"layer.{i}": draw.integers(0, 1 << 16, self.SIZE, "u2")
                        for i in range(self.TENSORS)}]
        self.base.mkdir()
        haulway.save(self.states[0], self.base / "model.safetensors")
        for _ in range(self.VERSIONS):
            self.states.append(state := {})
            for name, value in self.states[-2].items():
                state[name] = value.copy()
                chosen = draw.integers(0, value.size, value.size // 50)
                state[name][chosen] ^= 1
        for encoding in ENCODINGS:
            with haulway.delta.publisher(
                    folder / encoding, self.base, encoding=encoding) as publisher:
                for state in self.states[1:]:
                    publisher.publish(state)
        haulway.delta.apply(self.start, folder / "xor", to=0, base=self.base)
        # What a call that nobody kills leaves, and how long it takes.
        shutil.copytree(self.start, self.target)
        began = time.monotonic()
        self.apply(folder / "xor")
        self.longest = 1.2 * (time.monotonic() - began)
        self.end = self.files()
        self.counts = collections.Counter()

    def apply(self, run):
        return haulway.delta.apply(self.target, run, threads=2, durability="none")

    def files(self):
        return {path.name: path.read_bytes() for path in self.target.iterdir()
                if path.is_file()}

    def version(self):
        """Returns the version that the target states, None without one."""
        try:
            text = (self.target / ".weight_sync" / "state.json").read_text()
        except FileNotFoundError:
            return None
        return int(json.loads(text)["version"])

    def is_applied_until_killed(self, run):
        """Applies in a child that is killed at a random moment, half of the
        times after it began to change tensors. Returns whether it was killed."""
        child = os.fork()
        if child == 0:
            try:
                self.apply(run)
                os._exit(0)
            finally:
                os._exit(1)
        wait = self.draw.uniform(0, self.longest)
        if self.draw.random() < 0.5:
            wait /= 4 * self.VERSIONS
            end = time.monotonic() + self.longest
            while self.version() is not None and time.monotonic() < end:
                pass
        time.sleep(wait)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        return os.WIFSIGNALED(status)

    def check(self):
        """Checks what a kill left. Returns the version that the target states.
        """
        version = self.version()
        if version is None:
            with pytest.raises(haulway.TruncatedError, match="interrupted"):
                haulway.load(self.target, "numpy")
            self.counts["kills that left no version"] += 1
            return None
        found = haulway.load(self.target, "numpy")
        for name, value in self.states[version].items():
            assert (found[name] == value).all(), (version, name)
        self.counts[f"kills that left version {version}"] += 1
        return version

    def end_what_was_begun(self, run):
        version = self.version()
        report = self.apply(run)
        assert report.resumed == (version is None)
        assert int(report.to) == self.version() == self.VERSIONS
        assert self.files() == self.end
        left = sorted(os.listdir(self.target / ".weight_sync"))
        assert left == ["lock", "state.json"], left

    def kill(self, count):
        """Kills until `count` calls were killed, in each encoding by turns."""
        while self.counts["kills"] < count:
            for encoding in ENCODINGS:
                run = self.folder / encoding
                shutil.rmtree(self.target)
                shutil.copytree(self.start, self.target)
                for _ in range(self.draw.randrange(1, 5)):
                    if self.is_applied_until_killed(run):
                        self.counts["kills"] += 1
                        self.counts[f"kills of {encoding}"] += 1
                        self.check()
                self.end_what_was_begun(run)
        return self.counts
