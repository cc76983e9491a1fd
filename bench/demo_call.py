"""One contender of scripts/demo in its own process.

    python bench/demo_call.py NAME MIB [PATH]

MIB is the size of the model that one process hands another.

Prints the measured seconds, without imports and the start of workers.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import time

import numpy

MIB = 1 << 20
ITEMS = 200
BATCHES = 200


def list_haulway(path):
    import haulway

    start = time.perf_counter()
    names = list(haulway.open(path))
    return time.perf_counter() - start, len(names)


def list_torch(path):
    import torch

    start = time.perf_counter()
    names = list(torch.load(path, mmap=True))
    return time.perf_counter() - start, len(names)


def items():
    for number in range(ITEMS):
        yield numpy.full(MIB // 4, number, "i4")


def consume(source):
    """Returns the seconds per item, without the first item, during which the
    worker starts."""
    source = iter(source)
    next(source)
    start = time.perf_counter()
    total = sum(int(item[-1]) for item in source)
    seconds = time.perf_counter() - start
    assert total == ITEMS * (ITEMS - 1) // 2
    return seconds / (ITEMS - 1), ITEMS


def items_haulway(_):
    from haulway.ipc import SharedMemoryArena, iterate_in_subprocess

    return consume(iterate_in_subprocess(items, arena=SharedMemoryArena(64 * MIB)))


def put_all(queue):
    for item in items():
        queue.put(item)


def items_queue(_):
    queue = multiprocessing.Queue(8)
    worker = multiprocessing.Process(target=put_all, args=(queue,), daemon=True)
    worker.start()
    return consume(queue.get() for _ in range(ITEMS))


def batches(package):
    from loader_bench import SAMPLES, Rows

    loader = importlib.import_module(package).DataLoader(
        Rows(MIB // SAMPLES, BATCHES * SAMPLES), batch_size=SAMPLES,
        num_workers=2, persistent_workers=True,
    )
    for _ in range(2):  # The first epoch starts the workers.
        start = time.perf_counter()
        count = sum(len(batch) > 0 for batch in loader)
    return (time.perf_counter() - start) / count, count


def state():
    import torch

    return {f"layer.{i}.weight": torch.full((MIB,), float(i))
            for i in range(int(sys.argv[2]) // 4)}


def follow(name, connection):
    """Runs in the other process; reports when it has each version."""
    import haulway

    with haulway.subscribe(name, timeout=60) as subscription:
        for _ in range(3):
            connection.send(len(subscription.state))
            subscription.wait(timeout=60)
        connection.send(len(subscription.state))


def receive(queue, path, connection):
    import torch

    connection.send(0)
    for _ in range(3):
        got = queue.get()
        connection.send(len(torch.load(path) if got is None else got))


def handed_over(hand_over, connection, tensors):
    """Returns the seconds until the other process has a version: the third,
    whose memory was used before."""
    connection.recv()
    for _ in range(3):
        start = time.perf_counter()
        hand_over(tensors)
        assert connection.recv() == len(tensors)
        seconds = time.perf_counter() - start
    return seconds, len(tensors)


def publish_haulway(_):
    import haulway

    name, tensors = f"demo-{os.getpid()}", state()
    here, there = multiprocessing.Pipe()
    haulway.publish(name, tensors)
    process = multiprocessing.get_context("spawn").Process(
        target=follow, args=(name, there), daemon=True)
    process.start()
    return handed_over(lambda new: haulway.publish(name, new), here, tensors)


def publish_peer(way, path):
    import torch

    context = torch.multiprocessing.get_context("spawn")
    queue, (here, there) = context.Queue(), context.Pipe()
    context.Process(target=receive, args=(queue, path, there), daemon=True).start()

    def share(tensors):
        queue.put({name: tensor.clone().share_memory_()
                   for name, tensor in tensors.items()})

    def save(tensors):
        torch.save(tensors, path)
        queue.put(None)

    return handed_over(share if way == "queue" else save, here, state())


CALLS = {
    "list, haulway": list_haulway,
    "list, torch": list_torch,
    "items, haulway": items_haulway,
    "items, queue": items_queue,
    "batches, haulway": lambda _: batches("haulway.ipc"),
    "batches, torch": lambda _: batches("torch.utils.data"),
    "version, haulway": publish_haulway,
    "version, queue": lambda path: publish_peer("queue", path),
    "version, file": lambda path: publish_peer("file", path),
}


def main():
    path = sys.argv[3] if len(sys.argv) > 3 else ""
    seconds, _ = CALLS[sys.argv[1]](path)
    print(json.dumps({"load": seconds}), flush=True)
    # The contender's exit handlers are not part of the measurement.
    os._exit(0)


if __name__ == "__main__":
    main()
