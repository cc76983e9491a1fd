"""The interfaces of an arena, its two ends, and a handler of a type.

Any object with these methods works; it need not derive from these classes. An
object may use the names `write` and `read` for `write_binary` and
`read_binary`.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from .._describing import public


@runtime_checkable
class ArenaWriterProtocol(Protocol):
    """The worker's end. A unit holds everything that belongs to one item.

    Calls are begin_unit, any number of write_binary, then commit_unit or
    abort_unit. Used by one thread.

    If a method raises an exception, the pass ends. If it raises BufferError,
    the item takes a slower route instead.
    """

    def reset(self) -> None:
        """Begins a pass. Views of earlier passes must stay as they are."""

    def begin_unit(self) -> None:
        """Opens a unit; may wait for room. Raises BufferError if there is
        none.
        """

    def write_binary(self, data: Any) -> tuple[int, int]:
        """Copies the contiguous bytes of `data`; returns their place: offset
        and length, in bytes. Raises BufferError if they do not fit.
        """

    def commit_unit(self) -> int:
        """Hands the unit over; returns its size in bytes."""

    def abort_unit(self) -> None:
        """Takes the unit back."""


@runtime_checkable
class ArenaReaderProtocol(Protocol):
    """The parent's end. Units are read in the order of their commits, by one
    thread. What its methods raise ends the iteration.
    """

    zero_copy: bool
    """Whether read_binary returns views of the arena, not private copies."""

    def reset(self) -> None:
        """Begins a pass."""

    def read_binary(self, offset: int, nbytes: int) -> memoryview:
        """Returns the bytes that write_binary wrote at `offset`, `nbytes` of
        them.
        """

    def end_unit(self, span: int, pinned: list) -> None:
        """The unit has been read.

        span: what commit_unit() returned, in bytes.
        pinned: objects over its bytes, which must stay until none of them is
            alive.
        """


@runtime_checkable
class ArenaProtocol(Protocol):
    """Memory shared by a worker and its parent, made by the parent.

    It goes to the worker as an argument of its process. If it has a method
    `shutdown_arena`, that is called to wake a worker that waits for room, from
    another thread. What its methods raise ends the iteration.
    """

    def open_writer(self) -> ArenaWriterProtocol:
        """The worker's end; called once, there."""

    def open_reader(self) -> ArenaReaderProtocol:
        """The parent's end; called once, there."""

    def close(self) -> None:
        """Unmaps the memory in this process."""

    def unlink(self) -> None:
        """Frees the memory. Called once, after close."""


class HandlerProtocol(Protocol):
    """Turns objects of a type into bytes in an arena, and back.

    An attribute `types`, a tuple of exact types, limits the types that it is
    asked about; an attribute `threshold` replaces the default size, in bytes,
    from which on it is used. Several threads may call it at once. What its
    methods raise ends the pass.
    """

    kind: str
    """A name of its own, the same in both processes."""

    def matches(self, obj: Any, threshold: int) -> bool:
        """Returns whether `obj` is for this handler, and has `threshold` bytes
        or more.
        """

    def get_buffer(self, obj: Any) -> tuple[Any, tuple]:
        """Returns the flat contiguous bytes of `obj`, and everything else that
        is needed to restore it, a tuple.
        """

    def from_buffer(self, buf: Any, meta: tuple, zero_copy: bool) -> tuple[Any, Any]:
        """Returns the object and its anchor: the object that every view of
        `buf` keeps alive; None if there is none.

        buf: the bytes.
        meta: the tuple that get_buffer() returned with them.
        zero_copy: whether the object may be a view of `buf`.
        """


public(
    "haulway.ipc",
    ArenaProtocol,
    ArenaReaderProtocol,
    ArenaWriterProtocol,
    HandlerProtocol,
)
