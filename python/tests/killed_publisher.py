"""A publisher that is killed at random moments, and what must be left."""

import collections
import os
import random
import signal
import time

import numpy as np

import haulway
import haulway.delta


class KilledPublisher:
    """Publishers of one run, each killed and followed by the next.

    Version N holds states[N]: whatever was published is known.
    """

    def __init__(self, folder, seed):
        self.draw = random.Random(seed)
        self.run, self.base = folder / "run", folder / "base.safetensors"
        draw = np.random.default_rng(seed)
        self.states = [{f"layer.{i}": draw.integers(0, 1 << 16, 60_000, "u2")
                        for i in range(8)}]
        haulway.save(self.states[0], self.base)
        self.checked = 0
        self.counts = collections.Counter()
        self.longest = 0.05

    def state(self, number):
        while len(self.states) <= number:
            draw = np.random.default_rng(len(self.states))
            state = {}
            for name, value in self.states[-1].items():
                state[name] = value.copy()
                state[name][draw.integers(0, value.size, value.size // 50)] ^= 1
            self.states.append(state)
        return self.states[number]

    def publisher(self):
        return haulway.delta.publisher(
            self.run, self.base, full_every=5, keep=3, shard="40KB", threads=2)

    def publish_until_killed(self):
        """Publishes in a child that is killed at a random moment."""
        self.state(self.checked + 8)
        child = os.fork()
        if child == 0:
            try:
                with self.publisher() as publisher:
                    while True:
                        publisher.publish(self.state(publisher.version + 1))
            finally:
                os._exit(1)
        time.sleep(self.draw.uniform(0, self.longest))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the publisher failed by itself"

    def check(self):
        """Checks that each version is whole and right, or absent."""
        left = []
        for name in os.listdir(self.run) if self.run.exists() else []:
            if name.endswith(".haulway-tmp"):
                assert name.startswith(".")
                left.append(name)
            else:
                assert name.startswith("weight_v") or name[0] == ".", name
        versions = haulway.delta.versions(self.run) if self.run.exists() else []
        numbers = [one.number for one in versions]
        for one in versions:
            assert one.complete, one
            found = haulway.load(one.path, "numpy", base=self.base)
            expected = self.state(one.number)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert (found[name] == value).all(), (one.number, name)
        newest = numbers[-1] if numbers else 0
        assert newest >= self.checked, "a version went away"
        self.counts["kills"] += 1
        self.counts["versions"] += newest - self.checked
        self.counts["kills that left a hidden folder"] += bool(left)
        self.counts["kills that came before a version"] += newest == self.checked
        self.checked = newest
        return bool(left)

    def go_on(self):
        """Publishes once more, and leaves nothing behind."""
        with self.publisher() as publisher:
            assert publisher.version == self.checked
            assert not [name for name in os.listdir(self.run)
                        if name.endswith(".haulway-tmp")]
            began = time.monotonic()
            publisher.publish(self.state(self.checked + 1))
            # Opening and about two versions.
            self.longest = 4 * (time.monotonic() - began)
        self.checked += 1

    def kill(self, count):
        for _ in range(count):
            self.publish_until_killed()
            self.check()
            self.go_on()
        return self.counts
