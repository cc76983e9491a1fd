"""Iterating over a worker's items from asyncio."""

import asyncio
import functools
import threading
import time

import pytest

import arena_workers as workers
from haulway.ipc import (
    SharedMemoryArena,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
    iterate_in_subprocess,
)


def source_of(count, **options):
    return iterate_in_subprocess(
        functools.partial(workers.counted, count, 80_000),
        arena=SharedMemoryArena(1 << 20), **options,
    )


async def numbers(source):
    return [int(item[-1]) async for item in source]


def test_a_pass_and_another():
    source = source_of(30)

    async def passes():
        assert await numbers(source) == list(range(30))
        async for item in source:
            if item[0] == 3:
                break
        assert await numbers(source) == list(range(30))

    asyncio.run(passes())
    assert [int(item[0]) for item in source] == list(range(30))


def test_other_tasks_run_while_the_worker_works():
    source = iterate_in_subprocess(lambda: workers.Slow(5, 0.05), mp_context="fork")

    async def both():
        turns = 0
        over = False

        async def other():
            nonlocal turns
            while not over:
                turns += 1
                await asyncio.sleep(0.001)

        task = asyncio.create_task(other())
        items = [item async for item in source]
        over = True
        await task
        return items, turns

    items, turns = asyncio.run(both())
    assert items == list(range(5)) and turns > 10


def test_other_tasks_run_while_a_second_pass_begins(tmp_path):
    """Items that are left of the pass before do not make it wait for the
    worker."""
    gate = tmp_path / "gate"
    source = iterate_in_subprocess(
        functools.partial(workers.Gated, 40, str(gate)), timeout=10
    )

    async def passes():
        async for _ in source:
            break
        while not source._receiver.waiting_bytes:
            await asyncio.sleep(0.01)
        opening = asyncio.create_task(asyncio.to_thread(gate.touch))
        items = [item async for item in source]
        await opening
        return items

    assert asyncio.run(passes()) == list(range(40))


def test_sources_side_by_side():
    async def all_of_them():
        return await asyncio.gather(*(numbers(source_of(20)) for _ in range(3)))

    assert asyncio.run(all_of_them()) == [list(range(20))] * 3


def test_failures_are_raised():
    failing = iterate_in_subprocess(functools.partial(workers.fails_after, 2))
    dying = iterate_in_subprocess(functools.partial(workers.killed, 2))

    async def items(source):
        return [item async for item in source]

    with pytest.raises(WorkerError, match="no more"):
        asyncio.run(items(failing))
    with pytest.raises(WorkerDied):
        asyncio.run(items(dying))


def test_silence_is_a_timeout():
    source = iterate_in_subprocess(
        lambda: workers.generator(1), mp_context="fork", timeout=0.3
    )
    stuck = iterate_in_subprocess(
        lambda: iter(lambda: threading.Event().wait(60), None),
        mp_context="fork", timeout=0.3,
    )

    async def items(source):
        return [item async for item in source]

    assert asyncio.run(items(source)) == [0]
    start = time.monotonic()
    with pytest.raises(WorkerTimeout):
        asyncio.run(items(stuck))
    assert time.monotonic() - start < 30


def test_a_cancelled_pass_is_given_up():
    source = iterate_in_subprocess(
        lambda: workers.Slow(3, 0.2), mp_context="fork"
    )

    async def cancelled():
        async def items():
            return [item async for item in source]

        task = asyncio.create_task(items())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await items()

    assert asyncio.run(cancelled()) == [0, 1, 2]
