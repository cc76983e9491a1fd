"""The arenas themselves, without a process between their ends.

Names give the number of the behaviour: R of the ring, P of the pool.
"""

import gc
import threading
import time

import numpy
import pytest

from haulway import ipc
from haulway.ipc import (
    ArenaFull,
    SharedMemoryArena,
    SharedMemoryRingBuffer,
    SharedMemorySegmentPool,
    offload,
    restore,
)
from optional_torch import torch

BACKENDS = {
    "ring": lambda: SharedMemoryRingBuffer(1 << 20),
    "pool": lambda: SharedMemorySegmentPool(1 << 18, 4),
    "arena": lambda: SharedMemoryArena(1 << 20),
}


@pytest.fixture(params=BACKENDS)
def any_arena(request):
    arena = BACKENDS[request.param]()
    yield arena
    arena.close()
    arena.unlink()


def ends(arena):
    return arena.open_writer(), arena.open_reader()


def put(writer, *binaries):
    writer.begin_unit()
    placed = [writer.write_binary(binary) for binary in binaries]
    return placed, writer.commit_unit()


def fill(arena):
    """Fills the arena: one unit is held."""
    writer, reader = ends(arena)
    size = getattr(arena, "capacity", None) or arena.segment_size
    for _ in range(getattr(arena, "count", 1)):
        put(writer, bytes(size))
    return writer, reader


# Seconds in which a call must end that does not wait for room; waiting would
# take 60 s.
SOON = 30


def elapsed(call, *arguments):
    start = time.monotonic()
    with pytest.raises(BufferError):
        call(*arguments)
    return time.monotonic() - start


def test_R1_P1_bytes_are_read_back(any_arena):
    writer, reader = ends(any_arena)
    placed, span = put(writer, b"one", bytearray(b"two"), memoryview(b"three"))
    assert [bytes(reader.read_binary(*at)) for at in placed] == [
        b"one", b"two", b"three",
    ]
    assert span >= 11
    reader.end_unit(span, [])


def test_R2_head_moves_at_commit():
    ring = SharedMemoryRingBuffer(1024)
    writer = ring.open_writer()
    writer.begin_unit()
    writer.write_binary(b"12345")
    writer.write_binary(b"678")
    assert ring.head == 0
    assert writer.commit_unit() == 8
    assert ring.head == 8


def test_R3_ending_a_unit_moves_the_tail_by_all_of_it():
    ring = SharedMemoryRingBuffer(1024)
    writer, reader = ends(ring)
    _, span = put(writer, b"12345", b"678")
    assert ring.tail == 0
    reader.end_unit(span, [])
    assert ring.tail == 8


@pytest.mark.parametrize("capacity", [4096, 5000, 100])
def test_R4_a_payload_over_the_end_is_whole(capacity):
    writer, reader = ends(SharedMemoryRingBuffer(capacity))
    for i in range(500):
        payload = bytes([i % 256]) * (capacity // 3 + i % 7)
        (at,), span = put(writer, payload)
        assert bytes(reader.read_binary(*at)) == payload
        reader.end_unit(span, [])


def test_R5_more_than_the_capacity_raises_at_once():
    writer = SharedMemoryRingBuffer(100).open_writer()
    writer.begin_unit()
    assert elapsed(writer.write_binary, bytes(101)) < SOON


def test_R6_a_unit_over_the_capacity_raises_at_once():
    writer = SharedMemoryRingBuffer(100).open_writer()
    writer.begin_unit()
    writer.write_binary(bytes(60))
    assert elapsed(writer.write_binary, bytes(60)) < SOON


def test_R7_without_a_timeout_a_full_ring_raises():
    writer, _ = fill(SharedMemoryRingBuffer(100, acquire_timeout=0))
    writer.begin_unit()
    assert elapsed(writer.write_binary, b"x") < SOON


def test_R8_a_blocked_writer_goes_on_after_a_release():
    writer, reader = fill(SharedMemoryRingBuffer(100, acquire_timeout=60))
    writer.begin_unit()
    timer = threading.Timer(0.05, reader.end_unit, (100, []))
    start = time.monotonic()
    timer.start()
    writer.write_binary(b"x")
    assert 0.04 < time.monotonic() - start < SOON
    timer.join()


def test_R9_without_a_consumer_it_times_out():
    writer, _ = fill(SharedMemoryRingBuffer(100, acquire_timeout=0.1))
    writer.begin_unit()
    assert 0.09 < elapsed(writer.write_binary, b"x") < SOON


def test_R10_shutdown_wakes_a_blocked_writer():
    ring = SharedMemoryRingBuffer(100, acquire_timeout=60)
    writer, _ = fill(ring)
    writer.begin_unit()
    timer = threading.Timer(0.05, ring.shutdown_arena)
    timer.start()
    assert elapsed(writer.write_binary, b"x") < SOON
    timer.join()


def test_R11_P10_nested_objects_return(any_arena):
    writer, reader = ends(any_arena)
    item = {"a": [1, "two", (b"z" * 100_000, None)], "b": {"c": 3.5}}
    back = restore(offload(item, writer), reader)
    assert bytes(back["a"][2][0]) == item["a"][2][0]
    assert back["a"][:2] == [1, "two"] and back["b"] == {"c": 3.5}


def test_R12_the_ring_keeps_types():
    writer, reader = ends(SharedMemoryRingBuffer(1 << 20))
    data = bytes(range(256)) * 40
    for item in (data, bytearray(data), memoryview(data), memoryview(data)[::2]):
        back = restore(offload(item, writer), reader)
        assert type(back) is type(item)
        assert bytes(back) == bytes(item)


def test_R13_small_fields_stay_inline(any_arena):
    writer, reader = ends(any_arena)
    envelope = offload({"small": b"x" * 100, "n": 1}, writer)
    assert int.from_bytes(envelope[8:16], "little") == 0
    assert any_arena.stats()["units"] == 0
    assert restore(envelope, reader) == {"small": b"x" * 100, "n": 1}


def test_R14_many_units_through_a_small_ring():
    writer, reader = ends(SharedMemoryRingBuffer(8192))
    for i in range(100):
        payload = bytes([i]) * 5000
        assert restore(offload(payload, writer), reader) == payload


def test_R15_an_array_keeps_values_and_dtype(any_arena):
    writer, reader = ends(any_arena)
    array = numpy.arange(6000, dtype=numpy.float64).reshape(60, 100)
    back = restore(offload(array, writer), reader)
    assert back.dtype == array.dtype and (back == array).all()


def test_P2_units_take_turns_in_segments():
    writer, reader = ends(SharedMemorySegmentPool(64, 3))
    for i in range(10):
        (at,), span = put(writer, bytes([i]) * 64)
        assert bytes(reader.read_binary(*at)) == bytes([i]) * 64
        reader.end_unit(span, [])


def test_P3_binaries_are_aligned():
    writer = SharedMemorySegmentPool(4096, 2).open_writer()
    placed, _ = put(writer, b"a", b"bc", b"def")
    assert [offset % 64 for offset, _ in placed] == [0, 0, 0]


def test_P4_views_outlive_close_and_unlink(any_arena, capfd):
    writer, reader = ends(any_arena)
    view = restore(offload(numpy.full(5000, 7), writer), reader)
    any_arena.close()
    any_arena.unlink()
    del writer, reader
    assert (view == 7).all()
    del view
    gc.collect()
    assert capfd.readouterr().err == ""


def test_P5_without_a_timeout_a_full_pool_raises_in_begin():
    writer, _ = fill(SharedMemorySegmentPool(64, 2, acquire_timeout=0))
    assert elapsed(writer.begin_unit) < SOON


def test_P6_begin_waits_for_a_release():
    writer, reader = fill(SharedMemorySegmentPool(64, 1, acquire_timeout=60))
    timer = threading.Timer(0.05, reader.end_unit, (64, []))
    start = time.monotonic()
    timer.start()
    writer.begin_unit()
    assert 0.04 < time.monotonic() - start < SOON
    timer.join()


def test_P7_begin_times_out():
    writer, _ = fill(SharedMemorySegmentPool(64, 1, acquire_timeout=0.1))
    assert 0.09 < elapsed(writer.begin_unit) < SOON


def test_P8_shutdown_wakes_begin():
    pool = SharedMemorySegmentPool(64, 1, acquire_timeout=60)
    writer, _ = fill(pool)
    timer = threading.Timer(0.05, pool.shutdown_arena)
    timer.start()
    assert elapsed(writer.begin_unit) < SOON
    timer.join()


def test_P9_a_unit_over_the_segment_raises():
    writer = SharedMemorySegmentPool(128, 2).open_writer()
    writer.begin_unit()
    writer.write_binary(bytes(100))
    assert elapsed(writer.write_binary, bytes(100)) < SOON


@pytest.mark.parametrize("kind", ["pool", "arena"])
def test_P11_a_restored_array_is_the_arena(kind):
    arena = BACKENDS[kind]()
    writer, reader = ends(arena)
    array = restore(offload(numpy.zeros(5000, numpy.uint8), writer), reader)
    twin = type(arena).open_reader(arena)
    array[17] = 99
    assert bytes(twin.read_binary(0, 5000))[17] == 99


def one_segment():
    pool = SharedMemorySegmentPool(1 << 16, 1, acquire_timeout=0)
    return (pool, *ends(pool))


def is_free(writer):
    try:
        writer.begin_unit()
    except BufferError:
        return False
    writer.abort_unit()
    return True


def test_P12_a_segment_is_free_when_its_view_is_gone():
    pool, writer, reader = one_segment()
    array = restore(offload(numpy.ones(5000), writer), reader)
    assert not is_free(writer)
    assert (pool.published, pool.reclaimed) == (1, 0)
    del array
    assert pool.reclaimed == 1
    assert is_free(writer)


def test_P13_P14_a_slice_of_a_tensor_holds_the_segment():
    _, writer, reader = one_segment()
    tensor = restore(offload(torch.ones(5000), writer), reader)
    part = tensor[10:20]
    tensor[12] = 5
    del tensor
    gc.collect()
    assert part[2] == 5 and not is_free(writer)
    del part
    gc.collect()
    assert is_free(writer)


def test_P15_a_slice_of_an_array_holds_the_segment():
    _, writer, reader = one_segment()
    part = restore(offload(numpy.ones((50, 100)), writer), reader)[3:4].T
    assert not is_free(writer) and part.sum() == 100
    del part
    assert is_free(writer)


@pytest.mark.parametrize("cls", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("size", [4096, 100_000])
def test_P16_bytes_come_as_views_that_hold_the_segment(cls, size):
    pool = SharedMemorySegmentPool(1 << 17, 1, acquire_timeout=0)
    writer, reader = ends(pool)
    view = restore(offload(cls(b"x" * size), writer), reader)
    assert isinstance(view, memoryview) and bytes(view) == b"x" * size
    assert not is_free(writer)
    del view
    assert is_free(writer)


def test_misuse_is_an_error(any_arena):
    writer, reader = ends(any_arena)
    for call in (writer.commit_unit, writer.abort_unit):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(ValueError):
        writer.write_binary(b"x")
    writer.begin_unit()
    with pytest.raises(ValueError):
        writer.begin_unit()
    with pytest.raises(ConnectionError):
        reader.read_binary(0, 1)
    with pytest.raises(ValueError):
        SharedMemoryRingBuffer(0)
    with pytest.raises(ValueError):
        SharedMemorySegmentPool(1, 1, acquire_timeout=-1)


def test_a_failed_offload_leaves_the_writer_as_it_was(any_arena):
    writer, reader = ends(any_arena)
    with pytest.raises(Exception, match="pickle|local object"):
        offload([numpy.ones(5000), lambda: None], writer)
    assert any_arena.stats()["used"] == 0
    with pytest.raises(ArenaFull):
        offload(bytes(2 << 20), writer)
    assert any_arena.stats()["used"] == 0
    assert (restore(offload(numpy.ones(500), writer), reader) == 1).all()


def test_units_without_content_take_no_room(any_arena):
    writer, reader = ends(any_arena)
    writer.begin_unit()
    assert writer.commit_unit() == 0
    reader.end_unit(0, [])
    assert any_arena.stats()["units"] == 0


def test_the_protocols_are_those_of_our_own(any_arena):
    assert isinstance(any_arena, ipc.ArenaProtocol)
    writer, reader = ends(any_arena)
    assert isinstance(writer, ipc.ArenaWriterProtocol)
    assert isinstance(reader, ipc.ArenaReaderProtocol)


def test_views_can_be_read_only():
    arena = SharedMemoryArena(1 << 20, read_only=True)
    writer, reader = ends(arena)
    array = restore(offload(numpy.ones(5000), writer), reader)
    assert not array.flags.writeable
