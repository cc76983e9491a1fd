"""One worker and several consumers, each of which gets every item."""

import functools
import gc
import multiprocessing
import os
import threading
import time

import pytest

import arena_workers as workers
from haulway.ipc import (
    SharedMemoryArena,
    SharedMemoryRingBuffer,
    SharedMemorySegmentPool,
    WorkerDied,
    WorkerError,
    broadcast_from_subprocess,
)

ARENAS = {
    "none": lambda n: None,
    "arena": lambda n: SharedMemoryArena(1 << 20, consumers=n),
    "pool": lambda n: SharedMemorySegmentPool(1 << 16, 6, consumers=n),
    "ring": lambda n: SharedMemoryRingBuffer(1 << 18, consumers=n),
}


def counted(*arguments):
    return functools.partial(workers.counted, *arguments)


class Consumers:
    """Processes that consume a broadcast and report their results."""

    def __init__(self, broadcast, options, method="fork"):
        context = multiprocessing.get_context(method)
        self.results = context.Queue()
        self.processes = [
            context.Process(
                target=workers.consumes, args=(consumer, self.results),
                kwargs=options.get(consumer.index, options.get(None, {})),
                daemon=True,
            )
            for consumer in broadcast
        ]
        for process in self.processes:
            process.start()

    def reports(self, count):
        return sorted(self.results.get(timeout=60) for _ in range(count))

    def end(self):
        for process in self.processes:
            process.kill()
            process.join()


@pytest.mark.parametrize("kind", ARENAS)
def test_each_consumer_gets_each_item(kind):
    with broadcast_from_subprocess(
        counted(30, 40_000), 3, arena=ARENAS[kind](3)
    ) as broadcast:
        consumers = Consumers(broadcast, {None: {"passes": 2}})
        expected = [(i, t, list(range(30))) for i in range(3) for t in range(2)]
        assert consumers.reports(6) == expected
        consumers.end()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_consumers_can_be_started_in_any_way(method):
    with broadcast_from_subprocess(
        counted(10, 40_000), 2, arena=ARENAS["arena"](2), mp_context=method
    ) as broadcast:
        consumers = Consumers(broadcast, {}, method)
        assert consumers.reports(2) == [(i, 0, list(range(10))) for i in (0, 1)]
        consumers.end()


def test_memory_is_free_when_the_last_has_released_it():
    arena = SharedMemoryArena(1 << 20, consumers=3)
    with broadcast_from_subprocess(
        counted(4, 100_000), 3, arena=arena, buffer_size=10
    ) as broadcast:
        passes = [iter(consumer) for consumer in broadcast]
        items = [[next(each) for _ in range(4)] for each in passes]
        # One copy for all consumers.
        assert arena.stats()["units"] == 4
        assert arena.stats()["high_water"] < 5 * 100_000
        items[0][0][:] = 77
        assert items[1][0][0] == items[2][0][0] == 77
        items[0] = items[1] = None
        gc.collect()
        assert [int(item[0]) for item in items[2]] == [77, 1, 2, 3]
        items = None
        for each in passes:
            with pytest.raises(StopIteration):
                next(each)
        # Repeat: the arena has room only if all units were released.
        for _ in range(4):
            passes = [iter(consumer) for consumer in broadcast]
            for each in zip(*passes):
                assert len({int(item[0]) for item in each}) == 1
            del each
        assert arena.stats()["fallbacks"] == 0


@pytest.mark.parametrize("then", ["kill", "leave", "exit"])
@pytest.mark.parametrize("kind", ["arena", "pool", "none"])
def test_a_consumer_that_goes_is_not_waited_for(kind, then):
    with broadcast_from_subprocess(
        counted(60, 40_000), 3, arena=ARENAS[kind](3), buffer_size=4
    ) as broadcast:
        consumers = Consumers(broadcast, {
            1: {"stop_at": 5, "then": then, "hold": 4}, None: {"passes": 2},
        })
        expected = [(i, t, list(range(60))) for i in (0, 2) for t in (0, 1)]
        if then == "leave":
            expected.append((1, 0, list(range(5))))
        assert consumers.reports(len(expected)) == sorted(expected)
        consumers.end()


def test_who_leaves_a_pass_is_in_the_next():
    with broadcast_from_subprocess(
        counted(60, 40_000), 2, arena=ARENAS["arena"](2)
    ) as broadcast:
        consumers = Consumers(broadcast, {
            0: {"passes": 2, "stop_at": 3}, 1: {"passes": 2},
        })
        assert consumers.reports(4) == [
            (0, 0, [0, 1, 2]), (0, 1, list(range(60))),
            (1, 0, list(range(60))), (1, 1, list(range(60))),
        ]
        consumers.end()


def test_who_never_takes_a_first_item_is_not_waited_for():
    with broadcast_from_subprocess(
        counted(60, 40_000), 2, arena=ARENAS["arena"](2), timeout=10
    ) as broadcast:
        one, other = broadcast
        for _ in range(2):
            dropped = iter(one)
            items = iter(other)
            del dropped
            assert [int(item[0]) for item in items] == [*range(60)]
        items = iter(one)
        assert [int(i[0]) for i, _ in zip(other, items)] == [*range(60)]


def test_a_fork_that_drops_a_pass_does_not_leave_it():
    with broadcast_from_subprocess(counted(60), 1, timeout=10) as broadcast:
        (consumer,) = broadcast
        items = [iter(consumer)]
        assert next(items[0]) == 0
        pid = os.fork()
        if pid == 0:
            items.clear()
            gc.collect()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert list(items[0]) == list(range(1, 60))


def test_close_ends_the_wait_of_another_thread():
    with broadcast_from_subprocess(workers.silent, 1) as broadcast:
        (consumer,) = broadcast
        failures = []

        def consume():
            try:
                list(consumer)
            except WorkerError as error:
                failures.append(str(error))

        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        while not consumer._epoch:
            time.sleep(0.01)
        consumer.close()
        thread.join(30)
        assert failures == ["this consumer has left the broadcast"]


def test_consumers_that_hold_everything_do_not_stop_it():
    arena = SharedMemoryArena(1 << 17, consumers=2)
    with broadcast_from_subprocess(
        counted(40, 40_000), 2, arena=arena
    ) as broadcast:
        consumers = Consumers(broadcast, {None: {"hold": 40}})
        assert consumers.reports(2) == [(i, 0, list(range(40))) for i in (0, 1)]
        assert arena.stats()["fallbacks"] > 0
        consumers.end()


def test_one_thread_that_holds_everything_of_several_consumers():
    """It cannot give anything back while it waits for one of them."""
    arena = SharedMemoryArena(1 << 17, consumers=2)
    with broadcast_from_subprocess(
        counted(40, 40_000), 2, arena=arena, timeout=20
    ) as broadcast:
        held = list(zip(*broadcast))
        for i, items in enumerate(held):
            for item in items:
                assert (item == i).all()
        assert len(held) == 40 and arena.stats()["fallbacks"] > 0


def test_threads_of_this_process_can_be_consumers():
    with broadcast_from_subprocess(counted(200), 4) as broadcast:
        found = [None] * 4

        def consume(consumer):
            found[consumer.index] = list(consumer)

        threads = [
            threading.Thread(target=consume, args=(consumer,))
            for consumer in broadcast
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [list(range(200))] * 4


def test_failures_reach_every_consumer():
    with broadcast_from_subprocess(
        functools.partial(workers.fails_after, 2), 2
    ) as broadcast:
        passes = [iter(consumer) for consumer in broadcast]
        for each in passes:
            assert [next(each), next(each)] == [0, 1]
            with pytest.raises(RuntimeError, match="no more") as caught:
                next(each)
            assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(RuntimeError, match="no factory"):
        broadcast_from_subprocess(workers.fails_at_once, 2)


def test_a_dead_worker_is_an_error_to_each():
    with broadcast_from_subprocess(
        functools.partial(workers.killed, 2), 2
    ) as broadcast:
        passes = [iter(consumer) for consumer in broadcast]
        for each in passes:
            assert [int(next(each)[0]), int(next(each)[0])] == [0, 1]
            start = time.monotonic()
            with pytest.raises(WorkerDied):
                next(each)
            assert time.monotonic() - start < 10


def test_the_worker_ends_with_the_broadcast():
    broadcast = broadcast_from_subprocess(
        functools.partial(workers.forever, 8000), 2
    )
    process = broadcast._worker._process
    passes = [iter(consumer) for consumer in broadcast]
    assert [int(next(each)[0]) for each in passes] == [0, 0]
    broadcast.close()
    assert process.exitcode == 0
    # Items in transit may still arrive; then no consumer is left.
    with pytest.raises(WorkerDied):
        for _ in passes[0]:
            pass


def test_misuse_is_an_error():
    with pytest.raises(ValueError, match="consumers=3"):
        broadcast_from_subprocess(counted(1), 3, arena=SharedMemoryArena(1 << 16))
    with pytest.raises(TypeError):
        broadcast_from_subprocess(counted(1), 3, arena=object())
    with pytest.raises(ValueError):
        SharedMemoryArena(1 << 16, consumers=65)
    with broadcast_from_subprocess(counted(3), 1) as broadcast:
        (consumer,) = broadcast
        first = iter(consumer)
        second = iter(consumer)
        with pytest.raises(RuntimeError, match="over"):
            next(first)
        assert list(second) == [0, 1, 2]
        consumer.close()
        with pytest.raises(RuntimeError, match="left"):
            iter(consumer)
