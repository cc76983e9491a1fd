"""Haulway's arenas: three kinds over one engine."""

# Design: an arena is a native arena of the library plus the way to share it: by
# descriptor, through multiprocessing's own reduction. A forked, spawned or
# separately started process then maps the same memory, which has no name in any
# folder. The three kinds differ in how units get their room. Writers and
# readers are the same small classes over native ones, shaped like SPDL's
# protocol.
#
# Classes of multiprocessing.shared_memory were left out: their names outlive a
# killed program, and a tracker removes memory that another process still uses.
# Figures that are polled come from one call, stats().


from __future__ import annotations

import os
import sys
import weakref
from multiprocessing import reduction

from .. import _haulway
from .._describing import bytes_text, counted, described, public
from .._errors import Error, InvalidArgumentError
from .._importing import imported
from ._arguments import (
    MOST,
    flag,
    not_negative,
    patience,
    positive,
    wrong_type,
    wrong_value,
)
from ._errors import ArenaFull
from ._handlers import item_count

_VARIABLE, _POOL, _RING = 1, 2, 3
_FULL = ("kTimeout", "kLimit", "kCancelled")


def _call(method, *arguments):
    try:
        return method(*arguments)
    except Error as error:
        if error.code not in _FULL:
            raise
        raise ArenaFull(str(error), error.code) from None


def _attach(cls, duplicate, state):
    arena = cls.__new__(cls)
    arena.__dict__.update(state)
    arena._native = _haulway.Arena.attach(duplicate.detach())
    return arena


class _Writer:
    """The worker's end; see ArenaWriterProtocol."""

    def __init__(self, native, timeout):
        self._native = native
        self._timeout = timeout
        self._writes = 0
        self.last_unit = (0, 0)

    def reset(self):
        if self._native.in_unit:
            self._native.abort()

    def begin_unit(self):
        _call(self._native.begin, self._timeout)
        self._writes = 0

    def write_binary(self, data):
        placed = _call(self._native.write, data, self._timeout)
        self._writes += 1
        return placed

    write = write_binary

    def commit_unit(self):
        if not self._writes and self._native.in_unit:
            self._native.abort()  # Nothing was written.
            return 0
        span, slot, generation = self._native.commit()
        self._writes = 0
        self.last_unit = (slot, generation)
        return span

    def abort_unit(self):
        self._native.abort()


class _Reader:
    """The parent's end; see ArenaReaderProtocol."""

    def __init__(self, native, zero_copy, read_only, bytes_as_views):
        self._native = native
        self._read_only = read_only
        self._claim = None
        self.zero_copy = zero_copy
        self.bytes_as_views = bytes_as_views

    def reset(self):
        self._claim = None

    def select_unit(self, slot, generation):
        """Makes the next read use this unit, not the next one in order."""
        if generation:
            self._claim = self._native.claim(slot, generation)

    def read_binary(self, offset, nbytes):
        if self._claim is None:
            self._claim = self._native.claim_next()
        memory = self._native.view(
            self._claim, offset, nbytes, not self._read_only
        )
        view = memoryview(memory)
        return view if self.zero_copy else memoryview(bytearray(view))

    read = read_binary

    def end_unit(self, span, pinned):
        claim, self._claim = self._claim, None
        if claim is None and span:
            claim = self._native.claim_next()  # The unit was not read.
        if claim is None or not self.zero_copy:
            return
        for anchor in pinned:
            if not isinstance(anchor, (_haulway.Anchor, memoryview)):
                # The object may not be a view of this arena.
                weakref.finalize(anchor, id, claim).atexit = False


class _Arena:
    """The common base of the arenas."""

    _zero_copy = True
    _copies = False
    _taken_by = None  # The process that iterates over what its worker writes.

    def _create(self, kind, *, max_bytes=0, unit_bytes=0, max_units=4096,
                huge_pages=False, prefault=False, acquire_timeout,
                bytes_as, read_only=False, consumers=1, overflow_bytes=None):
        self.acquire_timeout = patience("acquire_timeout", acquire_timeout)
        if bytes_as not in ("bytes", "memoryview"):
            raise wrong_value("bytes_as", bytes_as, "'bytes' or 'memoryview'")
        self._bytes_as_views = bytes_as == "memoryview"
        self._read_only = flag("read_only", read_only)
        self.consumers = positive("consumers", consumers)
        if overflow_bytes is not None:
            overflow_bytes = not_negative("overflow_bytes", overflow_bytes)
        self._native = _call(
            _haulway.Arena.create, kind, max_bytes, unit_bytes, max_units,
            flag("huge_pages", huge_pages), flag("prefault", prefault),
            consumers, overflow_bytes,
        )

    def __reduce__(self):
        state = {k: v for k, v in self.__dict__.items() if k != "_native"}
        duplicate = reduction.DupFd(self._open().fd)
        return _attach, (type(self), duplicate, state)

    def _open(self):
        if self._native is None:
            raise InvalidArgumentError(
                "the arena is closed", "kInvalidArgument"
            )
        return self._native

    def _take(self):
        """Assigns the arena to an iteration, which will close it."""
        self._open()
        if self._taken_by is not None:
            raise InvalidArgumentError(
                "this arena belongs to another iteration: make one for each",
                "kInvalidArgument",
            )
        self._taken_by = os.getpid()

    def _to_write(self):
        """Returns the native arena to a process that may write to it."""
        if self._taken_by == os.getpid():
            # It would overwrite items of the worker, which does not know what
            # it takes.
            raise InvalidArgumentError(
                "the worker of an iteration writes to this arena, and this "
                "process reads it",
                "kInvalidArgument",
            )
        return self._open()

    def open_writer(self):
        """Opens the producer's end."""
        return _Writer(self._to_write().open_writer(), self.acquire_timeout)

    def open_reader(self):
        """Opens the consumer's end."""
        return _Reader(self._open().open_reader(), self._zero_copy,
                       self._read_only, self._bytes_as_views)

    def close(self):
        """Releases the memory in this process; views of it stay valid."""
        self._native = None

    def unlink(self):
        """Does nothing: the memory has no name to remove."""

    def shutdown_arena(self):
        """Makes every wait for room fail, now and later."""
        if self._native is not None:
            self._native.shutdown()

    def stats(self):
        """Returns a dict of fill levels and counters: `bytes`, `used` and
        `high_water`, in bytes, `units`, `waits`, `fallbacks`, `overflows`,
        `committed_bytes` and `released_bytes`."""
        return self._open().stats()

    def _size_text(self):
        return bytes_text(self.max_bytes)

    def __repr__(self):
        if self._native is None:
            return described(self, self._size_text(), "closed")
        found = self._native.stats()
        return described(
            self, self._size_text(), f"{bytes_text(found['used'])} in use",
            counted(found["units"], "item") + " so far",
        )

    @property
    def closed(self):
        """Returns whether close() was called."""
        return self._native is None

    @property
    def name(self):
        """The path at which processes of this user find the memory while this
        process has it open; the memory has no name of its own."""
        return f"/proc/{os.getpid()}/fd/{self._open().fd}"


class SharedMemoryArena(_Arena):
    """Memory for items of any size, released in any order.

    max_bytes: limit, in bytes, for the items that are in flight or still held;
        memory is taken from the system when it is first used.
    max_units: limit for the number of items.
    acquire_timeout: seconds that the worker waits for room; 0: not at all.
    bytes_as: "memoryview" returns bytes objects as views of the arena instead
        of copies.
    read_only: make all views read-only.
    huge_pages: ask the system for huge pages.
    prefault: take all memory from the system at once.
    consumers: the number of consumers of a broadcast.
    overflow_bytes: limit, in bytes, for the separate memory for items that are
        too large, or that find the arena full of items still held; an item
        that gets none arrives as a private copy. None: as much as the system
        gives.

    An arena belongs to one iteration; its worker and its parent are different
    processes. Any thread may ask for stats() and call shutdown_arena(). Raises
    ArenaFull if the system has not enough memory, and ValueError after
    close().
    """

    def __init__(self, max_bytes, *, max_units=4096, acquire_timeout=60.0,
                 bytes_as="bytes", read_only=False, huge_pages=False,
                 prefault=False, consumers=1, overflow_bytes=None):
        self.max_bytes = positive("max_bytes", max_bytes)
        self._create(
            _VARIABLE, max_bytes=self.max_bytes,
            max_units=positive("max_units", max_units),
            acquire_timeout=acquire_timeout, bytes_as=bytes_as,
            read_only=read_only, huge_pages=huge_pages, prefault=prefault,
            consumers=consumers, overflow_bytes=overflow_bytes,
        )

    def empty(self, shape, dtype="float32"):
        """An uninitialised array, or tensor if `dtype` is torch's, in memory
        that crosses to the parent without a copy. For the worker.

        shape: a size, or several.
        dtype: NumPy's or torch's.

        Do not change it once it is handed over. Where the arena has no room
        the memory is ordinary, and is copied as any other. Raises
        InvalidArgumentError for a negative size, and in the parent.
        """
        sizes = shape if isinstance(shape, (list, tuple)) else (shape,)
        shape = tuple(not_negative("shape", size) for size in sizes)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(dtype, torch.dtype):
            nbytes = item_count(shape) * dtype.itemsize
            memory = self._lend(nbytes)
            if memory is None:
                return torch.empty(shape, dtype=dtype)
            flat = torch.frombuffer(memory, dtype=torch.uint8)
            return flat.view(dtype).view(shape)
        numpy = imported("numpy")
        dtype = numpy.dtype(dtype)
        if dtype.hasobject:
            raise wrong_type("dtype", dtype, "one whose elements are bytes")
        memory = self._lend(item_count(shape) * dtype.itemsize)
        if memory is None:
            return numpy.empty(shape, dtype)
        return numpy.ndarray(shape, dtype, memory)

    def _lend(self, nbytes):
        if not nbytes:
            return None
        try:
            return _call(self._to_write().lend, min(nbytes, MOST), 0.0)
        except ArenaFull:
            self._native.open_writer().count_fallback()
            return None


class SharedMemorySegmentPool(_Arena):
    """Segments of equal size, one for each item in flight, released in any
    order.

    segment_size: bytes of a segment.
    count: how many segments there are.
    bytes_as: "bytes" returns bytes objects as copies, instead of as
        memoryviews.
    acquire_timeout, read_only, consumers, overflow_bytes: as for
        SharedMemoryArena.

    For threads and errors, see SharedMemoryArena; it raises the same.
    """

    def __init__(self, segment_size, count, *, acquire_timeout=60.0,
                 bytes_as="memoryview", read_only=False, consumers=1,
                 overflow_bytes=None):
        self.segment_size = positive("segment_size", segment_size)
        self.count = positive("count", count)
        self._create(_POOL, unit_bytes=self.segment_size, max_units=self.count,
                     acquire_timeout=acquire_timeout, bytes_as=bytes_as,
                     read_only=read_only, consumers=consumers,
                     overflow_bytes=overflow_bytes)

    def _size_text(self):
        return f"{self.count} x {bytes_text(self.segment_size)}"

    @property
    def published(self):
        """How many units were handed over so far."""
        return self.stats()["units"]

    @property
    def reclaimed(self):
        """How many units were given back so far, by all consumers."""
        return self.stats()["releases"] // self.consumers


class SharedMemoryRingBuffer(_Arena):
    """A ring of bytes; items are copied out of it immediately.

    capacity: its size, in bytes.
    acquire_timeout, consumers: as for SharedMemoryArena.

    For threads and errors, see SharedMemoryArena; it raises the same.
    """

    _zero_copy = False
    _copies = True

    def __init__(self, capacity, *, acquire_timeout=60.0, consumers=1):
        self.capacity = positive("capacity", capacity)
        self._create(_RING, max_bytes=self.capacity,
                     acquire_timeout=acquire_timeout, bytes_as="bytes",
                     consumers=consumers)

    def _size_text(self):
        return bytes_text(self.capacity)

    @property
    def head(self):
        """How many bytes were handed over so far."""
        return self.stats()["committed_bytes"]

    @property
    def tail(self):
        """How many bytes were given back so far."""
        return self.stats()["released_bytes"]


class PlainTransport(_Arena):
    """Transports items without an arena: they arrive as private copies.

    Memory use grows with the items in flight.
    """

    _zero_copy = False
    _copies = True

    def __init__(self, consumers=1):
        self.max_bytes = 1 << 28
        # Items are copied out, so separate memory would not help a large item.
        self._create(_VARIABLE, max_bytes=self.max_bytes, acquire_timeout=60.0,
                     bytes_as="bytes", consumers=consumers, overflow_bytes=0)


public(
    "haulway.ipc",
    SharedMemoryArena,
    SharedMemoryRingBuffer,
    SharedMemorySegmentPool,
)
