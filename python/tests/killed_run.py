"""A training loop that is killed at random moments, and what must be left."""

import collections
import os
import random
import signal
import time

import torch

import haulway

# Of each kind, what a loop does.
WAYS = ("save", "save_async", "writing", "again")


def state(step):
    return {f"layer.{i}": torch.full((30_000,), float(step)) for i in range(4)}


def value_of(loaded):
    """Returns the step that all tensors are of; they are never a mixture."""
    [value] = {float(one) for tensor in loaded.values()
               for one in (tensor.min(), tensor.max())}
    return value


class KilledRun:
    """Loops over one run, each killed and followed by the next."""

    def __init__(self, folder, seed, uri=None, options=None):
        self.draw = random.Random(seed)
        self.folder = folder
        self.uri = str(folder / "run") if uri is None else uri
        self.options = options or {}
        self.told = folder / "told"
        self.told.mkdir(parents=True)
        self.counts = collections.Counter()
        self.longest = 0.2
        self.newest = 0

    def run(self):
        return haulway.Checkpoints(self.uri, keep=2, **self.options)

    def loop(self, way, first):
        """Saves steps until it is killed; a file tells of each that is
        saved."""
        with self.run() as run:
            for step in range(first, first + 1000):
                if way == "writing":
                    with run.writing(step) as folder:
                        for number in range(3):
                            haulway.save(state(step), f"{folder}/{number}.pt",
                                         durability="none")
                elif way == "save_async":
                    run.save_async(state(step), step).result()
                else:
                    run.save(state(step), step)
                    if way == "again":
                        run.save(state(step), step)
                (self.told / str(step)).touch()

    def kill(self):
        way = self.draw.choice(WAYS)
        first = self.newest + 1
        child = os.fork()
        if child == 0:
            try:
                self.loop(way, first)
            finally:
                os._exit(1)
        time.sleep(self.draw.uniform(0, self.longest))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the loop failed by itself"
        self.check()

    def check(self):
        told = max((int(name) for name in os.listdir(self.told)), default=0)
        found = haulway.latest(self.uri, **self.options)
        step = 0 if found is None else found.step
        assert step >= max(told, self.newest), (step, told, self.newest)
        if found is not None:
            try:
                loaded = haulway.load(found.path, **self.options)
            except haulway.InvalidArgumentError:  # It has several files.
                loaded = haulway.load(f"{found.path.rstrip('/')}/0.pt",
                                      **self.options)
            assert value_of(loaded) == step
        self.counts["kills"] += 1
        self.counts["steps"] += step - self.newest
        self.counts["kills that left something"] += self.has_left()
        self.newest = step

    def has_left(self):
        return os.path.isdir(self.uri) and any(
            name[0] == "." for name in os.listdir(self.uri))

    def go_on(self):
        """Saves once more, and leaves nothing behind."""
        began = time.monotonic()
        with self.run() as run:
            run.save(state(self.newest + 1), self.newest + 1)
        self.longest = 3 * (time.monotonic() - began)
        self.newest += 1
        assert not self.has_left(), os.listdir(self.uri)

    def kill_often(self, count):
        for _ in range(count):
            self.kill()
            self.go_on()
        return self.counts
