"""The structure of an arena, its two ends, and a handler of a type.

Any object with that structure works; nothing has to be derived from these
classes. An object may use the names `write` and `read` for `write_binary` and
`read_binary`.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ArenaWriterProtocol(Protocol):
    """The worker's end. A unit holds everything that belongs to one item.

    Calls are begin_unit, any number of write_binary, then commit_unit or
    abort_unit. Used by one thread.
    """

    def reset(self) -> None:
        """Begins a pass. Views of earlier passes must stay as they are."""

    def begin_unit(self) -> None:
        """Opens a unit; may wait for room. Raises BufferError if there is
        none.
        """

    def write_binary(self, data: Any) -> tuple[int, int]:
        """Copies contiguous bytes; returns their place: offset and length."""

    def commit_unit(self) -> int:
        """Hands the unit over; returns its size in bytes."""

    def abort_unit(self) -> None:
        """Takes the unit back."""


@runtime_checkable
class ArenaReaderProtocol(Protocol):
    """The parent's end. Units are read in the order of their commits."""

    zero_copy: bool
    """Whether read_binary returns views of the arena, not private copies."""

    def reset(self) -> None:
        """Begins a pass."""

    def read_binary(self, offset: int, nbytes: int) -> memoryview:
        """Returns the bytes that write_binary wrote there."""

    def end_unit(self, span: int, pinned: list) -> None:
        """The unit has been read. Its bytes must stay until no object in
        `pinned` is alive.
        """


@runtime_checkable
class ArenaProtocol(Protocol):
    """Memory shared by a worker and its parent, made by the parent.

    It goes to the worker as an argument of its process. If it has a method
    `shutdown_arena`, that is called to wake a worker that waits for room.
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
    asked about; an attribute `threshold` replaces the default size from which
    on it is used.
    """

    kind: str
    """A name of its own, the same in both processes."""

    def matches(self, obj: Any, threshold: int) -> bool:
        """Returns whether the object is for this handler, and large enough."""

    def get_buffer(self, obj: Any) -> tuple[Any, tuple]:
        """Returns flat contiguous bytes, and everything else that is needed to
        restore the object.
        """

    def from_buffer(self, buf: Any, meta: tuple, zero_copy: bool) -> tuple[Any, Any]:
        """Returns the object and its anchor: the object that every view of
        `buf` keeps alive; None if there is none.
        """
