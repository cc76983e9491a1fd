"""A new version of a model for another process: Haulway and other ways.

The model is a dict of tensors of 4 MiB each. A reader process attaches, or
receives a changed version; the time ends when it reports that it has all
tensors. Using the tensors is not counted. The contenders alternate.

    scripts/bench publish [--rounds N] [--only CASE] [--gib N] [--json FILE]
                          [--record]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy
import torch

import haulway
from side_by_side import MIB, Measured, main

NAME = f"bench-{os.getpid()}"
STATE = Path(f"/dev/shm/{NAME}.pt")


def read(name, path, connection, queue):
    """Runs in the reader process; does one thing at a time, as told."""
    held = haulway.subscribe(name)
    while True:
        told = connection.recv()
        state = None
        start = time.perf_counter()
        if told == "attach":
            state = haulway.subscribe(name).state
        elif told == "wait":
            held.wait()
            state = held.state
        elif told == "queue":
            state = queue.get()
        elif told == "load":
            state = torch.load(path)
        else:
            return
        count = len(state)
        connection.send((count, time.perf_counter() - start))


def copy_all(pairs):
    for to, source in pairs:
        numpy.copyto(to, source)


def cases(directory: Path, options):
    """Yields (case, [(contender, function), ...], targets); Haulway first."""
    count = max(int(options.gib * 1024) // 4, 1)
    state = {f"layer.{i}.weight": torch.full((MIB,), float(i))
             for i in range(count)}
    haulway.publish(NAME, state)
    context = torch.multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    queue = context.Queue()
    reader = context.Process(target=read, args=(NAME, STATE, there, queue),
                             daemon=True)
    reader.start()
    there.close()

    def answer(told):
        here.send(told)
        return here.recv()

    def attach():
        return Measured(answer("attach")[1])

    def handed_over(told, hand_over):
        here.send(told)  # It is already waiting when the version arrives.
        time.sleep(0.05)
        start = time.perf_counter()
        hand_over()
        assert here.recv()[0] == count
        return Measured(time.perf_counter() - start)

    def publish():
        haulway.publish(NAME, state)

    def publish_in_place():
        memory = haulway.publish_buffer(NAME, count * 4 * MIB)
        made = torch.frombuffer(memory, dtype=torch.float32).chunk(count)
        here.send("wait")
        time.sleep(0.05)
        start = time.perf_counter()
        haulway.publish(NAME, dict(zip(state, made)))
        assert here.recv()[0] == count
        return Measured(time.perf_counter() - start)

    def share():
        queue.put({key: tensor.clone().share_memory_()
                   for key, tensor in state.items()})

    def save_and_load():
        start = time.perf_counter()
        torch.save(state, STATE)
        assert answer("load")[0] == count
        return Measured(time.perf_counter() - start)

    pairs = [(numpy.ones(MIB, numpy.float32), tensor.numpy())
             for tensor in state.values()]
    try:
        size = f"{options.gib:g} GiB"
        yield (f"attach to {size}",
               [("haulway", attach), ("limit: 20 ms", lambda: Measured(0.02))],
               {"limit: 20 ms": 1})
        yield (f"hand over a new {size}",
               [("haulway", lambda: handed_over("wait", publish)),
                ("memcpy", lambda: copy_all(pairs)),
                ("share_memory_() and a queue",
                 lambda: handed_over("queue", share)),
                ("save and load in /dev/shm", save_and_load)],
               {"memcpy": 1 / 1.3, "share_memory_() and a queue": 5,
                "save and load in /dev/shm": 20})
        yield (f"hand over a new {size} that was made in publish_buffer()",
               [("haulway", publish_in_place),
                ("save and load in /dev/shm", save_and_load)],
               {"save and load in /dev/shm": 20})
    finally:
        here.send("end")
        reader.join()
        STATE.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], cases, name="publish"))
