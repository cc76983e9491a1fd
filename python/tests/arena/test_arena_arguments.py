"""Arguments of haulway.ipc at the limits of their ranges."""

import functools
import gc
import math
import os
import threading

import numpy
import pytest

import arena_workers as workers
from haulway import ArgumentTypeError, InvalidArgumentError
from haulway.ipc import (
    SharedMemoryArena,
    SharedMemoryRingBuffer,
    SharedMemorySegmentPool,
    WorkerTimeout,
    broadcast_from_subprocess,
    iterate_in_program,
    iterate_in_subprocess,
    iterate_in_subprocesses,
    offload,
    register_handler,
    restore,
    run_in_subprocess,
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
    gc.collect()  # Arenas of earlier tests keep descriptors.
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises((TypeError, ValueError), match=words):
        start(**options)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("call", "said"), [
    (lambda: run_in_subprocess(three, buffer=5), "buffer is 5: expected an arena"),
    (lambda: run_in_subprocess(three, arena="x"), "arena is 'x': expected an aren"),
    (lambda: run_in_subprocess(5), "factory is 5: expected a function"),
    (lambda: iterate_in_subprocess([1]), "fn is .1.: expected a function"),
    (lambda: iterate_in_subprocess(three, initializer=5),
     "initializer is 5: expected a function"),
    (lambda: iterate_in_subprocess(three, initializer=[5]),
     "initializer is .5.: expected a function"),
    (lambda: iterate_in_subprocess(three, mp_context=5),
     "mp_context is 5: expected a context"),
    (lambda: iterate_in_subprocess(three, buffer_size=None),
     "buffer_size is None: expected an integer"),
    (lambda: iterate_in_subprocess(three, timeout="1"),
     "timeout is '1': expected seconds"),
    (lambda: iterate_in_subprocesses([three], arena=SharedMemoryArena(1 << 16)),
     "arena is <haulway.ipc.SharedMem.*>: expected a function"),
    (lambda: broadcast_from_subprocess(three, 2, buffer=5),
     "buffer is 5: expected an arena of Haulway"),
    (lambda: broadcast_from_subprocess(three, "2"),
     "consumers is '2': expected an integer"),
    (lambda: SharedMemoryArena("1"), "max_bytes is '1': expected an integer"),
    (lambda: SharedMemoryArena(1.5), "max_bytes is 1.5: expected an integer"),
    (lambda: SharedMemoryArena(1 << 16, max_units=None),
     "max_units is None: expected an integer"),
    (lambda: SharedMemoryArena(1 << 16, acquire_timeout="1"),
     "acquire_timeout is '1': expected seconds"),
    (lambda: SharedMemoryArena(1 << 16, overflow_bytes="1"),
     "overflow_bytes is '1': expected an integer"),
    (lambda: SharedMemoryArena(1 << 16).empty("x"), "shape is 'x': expected"),
    (lambda: SharedMemoryArena(1 << 16).empty(1, object), "dtype is dtype"),
    (lambda: SharedMemorySegmentPool(1, "2"), "count is '2': expected an integ"),
    (lambda: SharedMemoryRingBuffer(None), "capacity is None: expected an inte"),
    (lambda: register_handler(5), "handler is 5: expected an object with 'kind'"),
])
def test_a_wrong_type_is_refused_with_name_value_and_expectation(call, said):
    with pytest.raises(ArgumentTypeError, match=said) as caught:
        call()
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(("call", "said"), [
    (lambda: iterate_in_subprocess(three, timeout=0),
     "timeout is 0: expected more than 0 seconds"),
    (lambda: iterate_in_subprocess(three, mp_context="x"),
     "mp_context is 'x': expected '.*spawn'"),
    (lambda: iterate_in_program("x"), "command is 'x': expected a list"),
    (lambda: SharedMemoryArena(0), "max_bytes is 0: expected at least 1"),
    (lambda: SharedMemoryArena(1, consumers=0), "consumers is 0: expected at"),
    (lambda: SharedMemoryArena(1, bytes_as="x"), "bytes_as is 'x': expected 'by"),
    (lambda: SharedMemoryArena(1, acquire_timeout=-1),
     "acquire_timeout is -1: expected at least 0 seconds"),
    (lambda: SharedMemoryArena(1 << 16).empty(-1), "shape is -1: expected at l"),
])
def test_a_wrong_value_is_refused_with_name_value_and_expectation(call, said):
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        call()
    assert not isinstance(caught.value, TypeError)


def test_an_arena_is_not_taken_by_a_call_that_is_refused():
    arena = SharedMemoryArena(1 << 20)
    with pytest.raises(ArgumentTypeError):
        iterate_in_subprocess(three, arena=arena, timeout="1")
    with iterate_in_subprocess(three, arena=arena) as source:
        assert len(list(source)) == 3


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
        # The pass that the first iterator left unfinished.
        assert len(list(second)) == 3
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


@pytest.mark.parametrize("name", ["fn", "initializer"])
def test_what_cannot_be_sent_to_a_spawned_worker_is_named(name):
    arguments = {"fn": three, name: lambda: iter([1])}
    with pytest.raises(ArgumentTypeError,
                       match=f"^{name} cannot be sent.*mp_context='fork'"):
        iterate_in_subprocess(**arguments, mp_context="spawn")
