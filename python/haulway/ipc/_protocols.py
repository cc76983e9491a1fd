"""What an arena, its ends, and a handler of a type look like.

Any object of that structure will do; nothing has to be derived from these. An
object may spell `write` and `read` for `write_binary` and `read_binary`.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ArenaWriterProtocol(Protocol):
    """The worker's end. A unit holds what belongs to one item.

    begin_unit, write_binary any number of times, then commit_unit or
    abort_unit. Used by one thread.
    """

    def reset(self) -> None:
        """A pass begins. Views of earlier passes must stay as they are."""

    def begin_unit(self) -> None:
        """Opens a unit; may wait for room. BufferError if there is none."""

    def write_binary(self, data: Any) -> tuple[int, int]:
        """Copies contiguous bytes; returns where: offset and length."""

    def commit_unit(self) -> int:
        """Hands the unit over; returns how many bytes it takes."""

    def abort_unit(self) -> None:
        """Takes the unit back."""


@runtime_checkable
class ArenaReaderProtocol(Protocol):
    """The parent's end. Units are read in the order of their commits."""

    zero_copy: bool
    """Whether read_binary returns views of the arena, not private copies."""

    def reset(self) -> None:
        """A pass begins."""

    def read_binary(self, offset: int, nbytes: int) -> memoryview:
        """The bytes that write_binary wrote there."""

    def end_unit(self, span: int, pinned: list) -> None:
        """The unit is read. Its bytes must stay until no object of `pinned`
        is alive."""


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
        """Lets go of the memory in this process."""

    def unlink(self) -> None:
        """Lets go of the memory for good. Called once, after close."""


class HandlerProtocol(Protocol):
    """Says how objects of a type become bytes in an arena, and back.

    An attribute `types`, a tuple of exact types, spares it from being asked
    about others; an attribute `threshold` replaces the default for how many
    bytes are worth it.
    """

    kind: str
    """A name of its own, the same in both processes."""

    def matches(self, obj: Any, threshold: int) -> bool:
        """Whether the object is for this handler, and large enough."""

    def get_buffer(self, obj: Any) -> tuple[Any, tuple]:
        """Flat contiguous bytes, and what else it takes to restore it."""

    def from_buffer(self, buf: Any, meta: tuple, zero_copy: bool) -> tuple[Any, Any]:
        """The object, and the anchor: what every view of `buf` in it keeps
        alive; None if it has none."""
