"""What haulway.ipc does with arguments at the edges of their range."""

import functools
import math
import os
import threading

import numpy
import pytest

import arena_workers as workers
from haulway.ipc import (
    SharedMemoryArena,
    SharedMemorySegmentPool,
    WorkerTimeout,
    broadcast_from_subprocess,
    iterate_in_program,
    iterate_in_subprocess,
    offload,
    register_handler,
    restore,
    serve_program,
)

three = functools.partial(workers.counted, 3)


@pytest.mark.parametrize("start", [
    lambda **options: iterate_in_subprocess(three, **options),
    lambda **options: broadcast_from_subprocess(three, 1, **options),
])
@pytest.mark.parametrize("options", [
    {"timeout": 0}, {"timeout": -1}, {"timeout": math.nan}, {"timeout": "1"},
    {"timeout": True}, {"buffer_size": "3"}, {"buffer_size": 1.5},
    {"buffer_size": None},
])
def test_numbers_that_are_none_are_refused_before_a_worker_starts(
    start, options
):
    (name,) = options
    words = name if name == "timeout" else "integer"
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises((TypeError, ValueError), match=words):
        start(**options)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("options", [
    {"timeout": math.inf}, {"timeout": numpy.float32(20)},
    {"buffer_size": 1 << 40}, {"buffer_size": numpy.int64(2)},
])
def test_any_number_will_do(options):
    with iterate_in_subprocess(three, **options) as source:
        assert len(list(source)) == 3


def test_huge_arenas_are_no_room_and_not_another_type():
    for make in (lambda: SharedMemoryArena(1 << 70),
                 lambda: SharedMemorySegmentPool(1 << 70, 2)):
        with pytest.raises((BufferError, ValueError)):
            make()
    SharedMemoryArena(1 << 20, overflow_bytes=1 << 70, huge_pages=1).close()


@pytest.mark.parametrize(("shape", "error"), [
    (-1, ValueError), ((-1, 2), ValueError), ("x", TypeError),
    (1.5, TypeError), (None, TypeError),
])
def test_shapes_that_are_none_are_refused(shape, error):
    with pytest.raises(error):
        SharedMemoryArena(1 << 20).empty(shape)


def test_shapes_may_be_numbers_of_any_kind():
    arena = SharedMemoryArena(1 << 20)
    assert arena.empty(numpy.int64(3)).shape == (3,)
    assert arena.empty([2, numpy.int32(3)]).shape == (2, 3)


@pytest.mark.parametrize("command", [[], "true", b"true"])
def test_a_program_is_a_list_of_words(command):
    with pytest.raises(ValueError, match="expected a list"):
        iterate_in_program(command, arena=SharedMemoryArena(1 << 20))


@pytest.mark.parametrize("link", ["", "channel=3", "parent=4", "x=1"])
def test_half_a_link_is_refused(link):
    with pytest.raises(ValueError, match="not a link to a parent"):
        serve_program(three, link)


def test_an_envelope_is_bytes():
    arena = SharedMemoryArena(1 << 20)
    writer, reader = arena.open_writer(), arena.open_reader()
    envelope = offload([1, numpy.arange(5000.0)], writer)
    with pytest.raises(TypeError, match="bytes-like"):
        restore(len(envelope), reader)
    assert restore(bytearray(envelope), reader)[0] == 1


def test_registering_gives_the_handler_back():
    class Handler:
        kind = "test: never asked"
        types = ()

        def matches(self, obj, threshold):
            return False

        get_buffer = from_buffer = None

    handler = Handler()
    assert register_handler(handler) is handler


def test_a_consumer_that_waited_too_long_kills_nobody():
    arena = SharedMemoryArena(1 << 20, consumers=2)
    with broadcast_from_subprocess(
        functools.partial(workers.counted, 3), 2, arena=arena, timeout=1
    ) as broadcast:
        first, second = broadcast
        with pytest.raises(WorkerTimeout, match="or waits for another"):
            list(first)
        assert len(list(second)) == 3  # The pass that the first one left.
        counts = {}

        def consume(consumer):
            counts[consumer.index] = len(list(consumer))

        threads = [threading.Thread(target=consume, args=(consumer,))
                   for consumer in broadcast]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts == {0: 3, 1: 3}
