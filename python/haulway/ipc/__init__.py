"""Moves items from worker processes to this one, large ones in shared memory.

    from haulway.ipc import SharedMemoryArena, iterate_in_subprocess

    source = iterate_in_subprocess(make_batches, arena=SharedMemoryArena(1 << 30))
    for batch in source:
        ...

Arrays and tensors arrive as views of the arena. Their memory returns to the
worker when the last view is gone, in any order. Items that do not fit, or are
not made of buffers, take a slower route and arrive all the same.

Any thread may call the functions of this module at any time, unless a
docstring says otherwise.
"""

from .._importing import importing
from ._backends import (
    SharedMemoryArena,
    SharedMemoryRingBuffer,
    SharedMemorySegmentPool,
)
from ._broadcast import Broadcast, BroadcastConsumer, broadcast_from_subprocess
from ._errors import ArenaFull, WorkerDied, WorkerError, WorkerTimeout
from ._handlers import BytesHandler, NumpyHandler, TorchHandler, register_handler
from ._offload import offload, restore
from ._process import (
    as_iterable_dataset,
    iterate_in_program,
    iterate_in_subprocess,
    iterate_in_subprocesses,
    run_in_subprocess,
)
from ._protocols import (
    ArenaProtocol,
    ArenaReaderProtocol,
    ArenaWriterProtocol,
    HandlerProtocol,
)
from ._worker import serve_program

__all__ = [
    "ArenaFull",
    "ArenaProtocol",
    "ArenaReaderProtocol",
    "ArenaWriterProtocol",
    "Broadcast",
    "BroadcastConsumer",
    "BytesHandler",
    "HandlerProtocol",
    "NumpyHandler",
    "SharedMemoryArena",
    "SharedMemoryRingBuffer",
    "SharedMemorySegmentPool",
    "TorchHandler",
    "WorkerDied",
    "WorkerError",
    "WorkerTimeout",
    "as_iterable_dataset",
    "broadcast_from_subprocess",
    "iterate_in_program",
    "iterate_in_subprocess",
    "iterate_in_subprocesses",
    "offload",
    "register_handler",
    "restore",
    "run_in_subprocess",
    "serve_program",
]

# These need torch, which is imported when one of them is first used.
_OF_LOADER = ("DataLoader", "StatefulDataLoader", "install", "uninstall")


def __getattr__(name):
    if name in _OF_LOADER:
        with importing:
            from . import _loader, _loader_position

        owner = _loader if hasattr(_loader, name) else _loader_position
        return globals().setdefault(name, getattr(owner, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_OF_LOADER})
