"""Handlers alone, packets passed through handlers, and silence.

Names give the number of the behaviour: H of handlers, K of packets, G of waits
on both sides.
"""

import functools
import gc
import time

import numpy
import pytest

import arena_workers as workers
from arena_workers import Packets, PacketsHandler
from haulway import ipc
from haulway.ipc import (
    BytesHandler,
    NumpyHandler,
    SharedMemoryArena,
    SharedMemoryRingBuffer,
    SharedMemorySegmentPool,
    TorchHandler,
    WorkerTimeout,
    iterate_in_subprocess,
    offload,
    register_handler,
    restore,
)
from optional_torch import torch

BYTES_LIKE = [bytes, bytearray, lambda data: memoryview(data)]


def round_trip(handler, obj, zero_copy):
    """Returns the restored object, its anchor, and the memory it was restored
    from."""
    buf, meta = handler.get_buffer(obj)
    memory = bytearray(buf)
    return (*handler.from_buffer(memoryview(memory), meta, zero_copy), memory)


@pytest.mark.parametrize("make", BYTES_LIKE)
def test_H1_H2_bytes_are_accepted_at_the_threshold(make):
    handler = BytesHandler()
    assert handler.matches(make(bytes(100)), 100)
    assert not handler.matches(make(bytes(99)), 100)


def test_H3_other_types_are_rejected():
    handler = BytesHandler()
    for obj in ("x" * 100, [0] * 100, 1 << 1000, None):
        assert not handler.matches(obj, 1)


@pytest.mark.parametrize("make", BYTES_LIKE)
def test_H4_a_copy_is_of_the_same_type_without_an_anchor(make):
    obj = make(bytes(range(256)))
    back, anchor, _ = round_trip(BytesHandler(), obj, False)
    assert type(back) is type(obj) and bytes(back) == bytes(obj)
    assert anchor is None


@pytest.mark.parametrize("make", BYTES_LIKE)
def test_H5_a_view_is_its_own_anchor(make):
    back, anchor, memory = round_trip(BytesHandler(), make(b"abc"), True)
    assert type(back) is memoryview and anchor is back
    memory[0] = ord("z")
    assert bytes(back) == b"zbc"


def test_H6_views_with_gaps_are_made_flat():
    view = memoryview(bytes(range(100)))[::3]
    assert bytes(BytesHandler().get_buffer(view)[0]) == bytes(range(0, 100, 3))


def named(name):
    return type(name, (), {"nbytes": 1 << 20, "data": b""})


def test_H7_H10_classes_that_only_share_a_name_are_rejected():
    assert not NumpyHandler().matches(named("ndarray")(), 1)
    assert not TorchHandler().matches(named("Tensor")(), 1)
    arena = SharedMemoryArena(1 << 20)
    writer, reader = arena.open_writer(), arena.open_reader()
    item = Named()
    assert type(restore(offload(item, writer), reader)) is Named


class Named:
    """A class pickled under a name that is not its own."""


Named.__name__ = "ndarray"
ndarray = Named


def test_H8_H11_thresholds_are_exact():
    assert NumpyHandler().matches(numpy.zeros(10), 80)
    assert not NumpyHandler().matches(numpy.zeros(10), 81)
    assert TorchHandler().matches(torch.zeros(10), 40)
    assert not TorchHandler().matches(torch.zeros(10), 41)


@pytest.mark.parametrize("zero_copy", [False, True])
def test_H9_arrays_are_equal_and_anchored_if_they_are_views(zero_copy):
    for array in (numpy.arange(60.0).reshape(6, 10), numpy.eye(7, order="F"),
                  numpy.arange(20)[::2]):
        back, anchor, memory = round_trip(NumpyHandler(), array, zero_copy)
        assert (back == array).all() and back.dtype == array.dtype
        assert (anchor is not None) == zero_copy
        memory[:] = bytes(len(memory))
        if zero_copy:
            assert not back.any()


@pytest.mark.parametrize("zero_copy", [False, True])
def test_H12_tensors_are_equal_and_anchored_if_they_are_views(zero_copy):
    for tensor in (torch.rand(6, 10), torch.rand(5, 4).t(),
                   torch.rand(9).to(torch.bfloat16)):
        back, anchor, memory = round_trip(TorchHandler(), tensor, zero_copy)
        assert torch.equal(back, tensor) and back.stride() == tensor.stride()
        assert (anchor is not None) == zero_copy
        memory[:] = bytes(len(memory))
        if zero_copy:
            assert not back.any()


@pytest.fixture
def packets_handler():
    from haulway.ipc import _handlers

    yield register_handler(PacketsHandler())
    _handlers._user_handlers.clear()
    _handlers._generation[0] += 1


class Counting(PacketsHandler):
    """Serialises in matches(), as some handlers must, and keeps the result for
    get_buffer."""

    types = (Packets,)

    def __init__(self):
        self.kept = {}
        self.serialised = 0

    def matches(self, obj, threshold):
        self.serialised += 1
        data = bytes(obj.data)
        if len(data) < self.threshold:
            return False
        self.kept[id(obj)] = data
        return True

    def get_buffer(self, obj):
        return self.kept.pop(id(obj)), (obj.rate,)


def test_H14_H15_what_matches_kept_is_used_once(packets_handler):
    handler = register_handler(Counting())
    arena = SharedMemoryArena(1 << 20)
    writer, reader = arena.open_writer(), arena.open_reader()
    small, large = Packets(b"s" * 10, 1), Packets(b"l" * 9000, 2)
    items = restore(offload([small, large, large], writer), reader)
    assert [bytes(item.data[:1]) for item in items] == [b"s", b"l", b"l"]
    assert not handler.kept and handler.serialised == 2
    assert items[1] is items[2]


class Video(Packets):
    pass


class Audio(Packets):
    pass


class Image(Packets):
    pass


class MediaHandler(PacketsHandler):
    """Remembers which of them it was."""

    kind = "media"
    types = (Video, Audio, Image)

    def get_buffer(self, obj):
        return memoryview(obj.data), (type(obj), obj.rate)

    def from_buffer(self, buf, meta, zero_copy):
        view = memoryview(buf)
        cls, rate = meta
        return cls(view if zero_copy else bytes(view), rate), view


def decoded(packets):
    """Returns frames of eight bytes, each computed from all data."""
    samples = numpy.frombuffer(packets.data, numpy.uint8).astype(numpy.int64)
    return numpy.cumsum(samples)[: len(samples) // 8 * 8].reshape(-1, 8)


@pytest.mark.parametrize("cls", [Video, Audio, Image])
@pytest.mark.parametrize("make", [
    lambda: SharedMemorySegmentPool(1 << 16, 2),
    lambda: SharedMemoryRingBuffer(1 << 17),
    lambda: SharedMemoryArena(1 << 17),
])
def test_K1_K2_K3_K4_K5_packets_of_each_kind(packets_handler, cls, make):
    register_handler(MediaHandler())
    arena = make()
    writer, reader = arena.open_writer(), arena.open_reader()
    sent = cls(numpy.random.default_rng(1).bytes(20_000), 25)
    back = restore(offload(sent, writer), reader)
    assert type(back) is cls and back.rate == 25
    assert bytes(back.data) == sent.data
    assert (decoded(back) == decoded(sent)).all()
    assert arena.stats()["units"] == 1


def test_G1_an_idle_worker_wakes_and_ends_when_told():
    for passes in (0, 1):
        source = iterate_in_subprocess(
            functools.partial(workers.counted, 3)
        )
        process = source._process
        for _ in range(passes):
            # One end message per pass, and no more.
            assert list(source) == [0, 1, 2]
            assert source._receiver.waiting_bytes == 0
        del source
        gc.collect()
        # A worker that had to be terminated has -15.
        assert process.exitcode == 0


def test_G2_silence_past_the_limit_is_an_error():
    iterator = iter(iterate_in_subprocess(workers.silent, timeout=0.2,
                                          mp_context="fork"))
    assert next(iterator) == 1
    with pytest.raises(WorkerTimeout):
        next(iterator)


def test_G3_silence_within_the_limit_is_none():
    source = iterate_in_subprocess(
        functools.partial(workers.pauses, 3, 0.05), timeout=30
    )
    assert list(source) == [0, 1, 2]


def test_G4_a_consumer_that_is_idle_itself_meets_no_limit():
    source = iterate_in_subprocess(
        functools.partial(workers.counted, 9), timeout=0.2, buffer_size=1,
        mp_context="fork",
    )
    iterator = iter(source)
    assert next(iterator) == 0
    time.sleep(0.5)
    assert list(iterator) == list(range(1, 9))
    time.sleep(0.5)
    assert list(source) == list(range(9))


def test_handlers_have_the_structure_of_the_protocol():
    for handler in (BytesHandler(), NumpyHandler(), TorchHandler()):
        assert register_handler(handler) is handler
        ipc._handlers._user_handlers.clear()
    with pytest.raises(TypeError, match="from_buffer"):
        register_handler(type("H", (), dict.fromkeys(
            ("kind", "matches", "get_buffer")))())
