"""Items that are too large for their arena, or that find it full."""

import functools
import gc
import os
import signal
import threading
import time

import numpy
import pytest

import arena_workers as workers
from haulway.ipc import (
    SharedMemoryArena,
    SharedMemoryRingBuffer,
    SharedMemorySegmentPool,
    WorkerDied,
    broadcast_from_subprocess,
    iterate_in_subprocess,
)
from optional_torch import torch

MIB = 1 << 20
WORDS = 3 * MIB // 8  # An item has 3 MiB.
ARENAS = {
    "arena": lambda **more: SharedMemoryArena(MIB, **more),
    "pool": lambda **more: SharedMemorySegmentPool(MIB, 8, **more),
}
kinds = pytest.mark.parametrize("kind", ARENAS)


def large(count):
    return functools.partial(workers.counted, count, 8 * WORDS)


def is_whole(array, n):
    return len(array) in (WORDS, 100, 50_000) and (array == n).all()


def file_bytes(arena):
    """Returns the size in memory of the arena's file."""
    return os.fstat(arena._open().fd).st_blocks * 512


@kinds
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_is_too_large_gets_memory_of_its_own(kind, method):
    arena = ARENAS[kind]()
    source = iterate_in_subprocess(large(6), arena=arena, mp_context=method)
    for _ in range(2):
        items = list(source)
        assert all(is_whole(item, n) for n, item in enumerate(items))
        # The items are views: a write goes to the arena's file, not to a copy.
        assert file_bytes(arena) >= 6 * WORDS * 8
        items[0][:] = 77
        assert is_whole(items[0], 77) and is_whole(items[1], 1)
        del items
        gc.collect()
    stats = arena.stats()
    assert stats["overflows"] == stats["fallbacks"] == stats["units"] == 12
    assert stats["high_water"] >= 6 * WORDS * 8


@kinds
def test_without_overflow_it_is_a_private_copy(kind):
    arena = ARENAS[kind](overflow_bytes=0)
    source = iterate_in_subprocess(large(6), arena=arena)
    assert all(is_whole(item, n) for n, item in enumerate(list(source)))
    stats = arena.stats()
    assert (stats["overflows"], stats["fallbacks"], stats["units"]) == (0, 6, 0)


def test_a_ring_copies_what_is_too_large():
    arena = SharedMemoryRingBuffer(MIB)
    source = iterate_in_subprocess(large(3), arena=arena)
    assert all(is_whole(item, n) for n, item in enumerate(list(source)))
    assert arena.stats()["overflows"] == 0


@kinds
def test_the_limit_holds_and_the_rest_is_copied(kind):
    arena = ARENAS[kind](overflow_bytes=8 * MIB)
    source = iterate_in_subprocess(large(10), arena=arena)
    items = list(source)
    assert all(is_whole(item, n) for n, item in enumerate(items))
    stats = arena.stats()
    assert 1 <= stats["overflows"] <= 2 and stats["fallbacks"] == 10
    assert file_bytes(arena) <= 11 * MIB


def test_a_negative_limit():
    with pytest.raises(ValueError, match="overflow_bytes"):
        SharedMemoryArena(MIB, overflow_bytes=-1)
    with pytest.raises(TypeError):
        SharedMemorySegmentPool(MIB, 2, overflow_bytes="1")


def test_a_consumer_that_holds_all_of_the_arena():
    arena = SharedMemoryArena(8 * MIB)
    source = iterate_in_subprocess(large(10), arena=arena)
    items = list(source)
    assert all(is_whole(item, n) for n, item in enumerate(items))
    stats = arena.stats()
    assert stats["overflows"] == stats["fallbacks"] == 8


def test_memory_is_used_again_and_goes_back():
    arena = SharedMemoryArena(MIB)
    source = iterate_in_subprocess(
        lambda: workers.some_large(WORDS, 30, 200), mp_context="fork",
        arena=arena,
    )
    most = 0
    for n, item in enumerate(source):
        assert is_whole(item, n)
        most = max(most, file_bytes(arena))
    # Not 90 MiB: only pieces in transit, held or spare.
    assert most <= 10 * 4 * MIB
    # The last items were small: the pages were returned to the system.
    assert file_bytes(arena) <= 2 * MIB
    assert arena.stats()["overflows"] == 30


def test_items_of_several_parts():
    parts = {
        "array": numpy.arange(200_000), "bytes": b"x" * 700_001,
        "tensor": torch.rand(300, 400).to(torch.bfloat16),
        "small": numpy.arange(3), "text": "t" * 10_000,
    }
    for pickle_free in (False, True):
        arena = SharedMemoryArena(MIB)
        source = iterate_in_subprocess(
            lambda: [parts] * 4, arena=arena, mp_context="fork",
            pickle_free=pickle_free,
        )
        items = list(source)
        for item in items:
            assert (item["array"] == parts["array"]).all()
            assert item["bytes"] == parts["bytes"]
            assert torch.equal(item["tensor"], parts["tensor"])
            assert item["array"].ctypes.data % 64 == 0
            assert (item["small"] == parts["small"]).all()
            assert item["text"] == parts["text"]
        assert arena.stats()["overflows"] == 4


def test_break_and_again():
    arena = SharedMemoryArena(MIB)
    source = iterate_in_subprocess(large(50), arena=arena)
    held = []
    for _ in range(5):
        for n, item in enumerate(source):
            assert is_whole(item, n)
            if n == 2:
                held.append(item)
                break
    assert all(is_whole(item, 2) for item in held)


def test_every_consumer_of_a_broadcast():
    arena = SharedMemoryArena(MIB, consumers=2)
    with broadcast_from_subprocess(large(8), 2, arena=arena) as broadcast:
        iterators = [iter(consumer) for consumer in broadcast]
        def consume(iterator, results):
            results.extend(is_whole(item, n) for n, item in enumerate(iterator))

        results = [[], []]
        threads = [
            threading.Thread(target=consume, args=pair)
            for pair in zip(iterators, results)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results == [[True] * 8] * 2
        assert arena.stats()["overflows"] == 8


@kinds
def test_views_outlive_a_worker_that_is_killed(kind):
    arena = ARENAS[kind]()
    source = iterate_in_subprocess(large(10_000), arena=arena)
    held = []
    with pytest.raises(WorkerDied):
        for n, item in enumerate(source):
            held.append(item)
            if n == 3:
                os.kill(source._process.pid, signal.SIGKILL)
    assert len(held) >= 4
    assert all(is_whole(item, n) for n, item in enumerate(held))


def test_nothing_is_left_when_everybody_is_killed():
    report, end = os.pipe()
    parent = os.fork()
    if parent == 0:
        source = iterate_in_subprocess(
            large(10_000), arena=SharedMemoryArena(MIB), mp_context="fork"
        )
        held = []
        for item in source:
            held.append(item)
            if len(held) == 5:
                os.write(end, b"%d" % source._process.pid)
                os.kill(os.getpid(), signal.SIGKILL)
    os.close(end)
    worker = int(os.read(report, 100))
    os.close(report)
    assert os.waitpid(parent, 0)[1] == signal.SIGKILL
    deadline = time.monotonic() + 20
    while is_running(worker) and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    # The memory has no name and no holder, so it is free.
    assert not is_running(worker)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
