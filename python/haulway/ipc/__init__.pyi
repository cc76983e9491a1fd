from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from multiprocessing.context import BaseContext
from typing import (
    Any,
    Generic,
    Literal,
    Protocol,
    TypedDict,
    TypeVar,
    runtime_checkable,
    type_check_only,
)

import numpy as np
import torch
from torch.utils.data import DataLoader as _TorchLoader
from torch.utils.data import Dataset, IterableDataset
from typing_extensions import Self, Unpack

from .. import Error

__all__: list[str]

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_H = TypeVar("_H", bound="HandlerProtocol")

class ArenaFull(Error, BufferError): ...
class WorkerError(Error, RuntimeError): ...

class WorkerDied(WorkerError):
    exitcode: int | None
    def __init__(
        self, message: str, code: str | None = None, byte: int | None = None,
        errno: int = 0, exitcode: int | None = None,
    ) -> None: ...

class WorkerTimeout(WorkerError, TimeoutError): ...  # type: ignore[misc]

@runtime_checkable
class ArenaWriterProtocol(Protocol):
    def reset(self) -> None: ...
    def begin_unit(self) -> None: ...
    def write_binary(self, data: Any) -> tuple[int, int]: ...
    def commit_unit(self) -> int: ...
    def abort_unit(self) -> None: ...

@runtime_checkable
class ArenaReaderProtocol(Protocol):
    zero_copy: bool
    def reset(self) -> None: ...
    def read_binary(self, offset: int, nbytes: int) -> memoryview: ...
    def end_unit(self, span: int, pinned: list[Any]) -> None: ...

@runtime_checkable
class ArenaProtocol(Protocol):
    def open_writer(self) -> ArenaWriterProtocol: ...
    def open_reader(self) -> ArenaReaderProtocol: ...
    def close(self) -> None: ...
    def unlink(self) -> None: ...

@runtime_checkable
class HandlerProtocol(Protocol):
    def matches(self, obj: Any, threshold: int) -> bool: ...
    def get_buffer(self, obj: Any) -> tuple[Any, tuple[Any, ...]]: ...
    def from_buffer(
        self, buf: Any, meta: tuple[Any, ...], zero_copy: bool
    ) -> tuple[Any, Any]: ...

@type_check_only
class _Handler:
    kind: str
    def matches(self, obj: Any, threshold: int) -> bool: ...
    def get_buffer(self, obj: Any) -> tuple[Any, tuple[Any, ...]]: ...
    def from_buffer(
        self, buf: Any, meta: tuple[Any, ...], zero_copy: bool
    ) -> tuple[Any, Any]: ...

class BytesHandler(_Handler): ...
class NumpyHandler(_Handler): ...
class TorchHandler(_Handler): ...

def register_handler(handler: _H) -> _H: ...

# Arenas

@type_check_only
class _Arena:
    acquire_timeout: float
    consumers: int
    def open_writer(self) -> ArenaWriterProtocol: ...
    def open_reader(self) -> ArenaReaderProtocol: ...
    def close(self) -> None: ...
    def unlink(self) -> None: ...
    def shutdown_arena(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    @property
    def closed(self) -> bool: ...
    @property
    def name(self) -> str: ...

class SharedMemoryArena(_Arena):
    max_bytes: int
    def __init__(
        self, max_bytes: int, *, max_units: int = 4096,
        acquire_timeout: float = 60.0,
        bytes_as: Literal["bytes", "memoryview"] = "bytes",
        read_only: bool = False, huge_pages: bool = False,
        prefault: bool = False, consumers: int = 1,
        overflow_bytes: int | None = None,
    ) -> None: ...
    def empty(
        self, shape: int | Sequence[int], dtype: Any = "float32"
    ) -> np.ndarray[Any, Any] | Any: ...

class SharedMemorySegmentPool(_Arena):
    segment_size: int
    count: int
    def __init__(
        self, segment_size: int, count: int, *, acquire_timeout: float = 60.0,
        bytes_as: Literal["bytes", "memoryview"] = "memoryview",
        read_only: bool = False,
        consumers: int = 1, overflow_bytes: int | None = None,
    ) -> None: ...
    @property
    def published(self) -> int: ...
    @property
    def reclaimed(self) -> int: ...

class SharedMemoryRingBuffer(_Arena):
    capacity: int
    def __init__(
        self, capacity: int, *, acquire_timeout: float = 60.0,
        consumers: int = 1,
    ) -> None: ...
    @property
    def head(self) -> int: ...
    @property
    def tail(self) -> int: ...

# Workers

# Options of iterate_in_subprocess() that other calls pass through.
@type_check_only
class _WorkerOptions(TypedDict, total=False):
    buffer_size: int
    initializer: (
        Callable[[], object] | Sequence[Callable[[], object]] | None
    )
    mp_context: BaseContext | str | None
    timeout: float | None
    daemon: bool
    pickle_free: bool

@type_check_only
class _ArenaOptions(_WorkerOptions, total=False):
    buffer: ArenaProtocol | None
    arena: ArenaProtocol | None

@type_check_only
class _Several(Generic[_T_co]):
    def __iter__(self) -> Iterator[_T_co]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

@type_check_only
class _One(_Several[_T_co]):
    def __aiter__(self) -> AsyncIterator[_T_co]: ...

def iterate_in_subprocess(
    fn: Callable[[], Iterable[_T]], *, buffer_size: int = 3,
    initializer: Callable[[], object]
    | Sequence[Callable[[], object]] | None = None,
    mp_context: BaseContext | str | None = None, timeout: float | None = None,
    daemon: bool = False, buffer: ArenaProtocol | None = None,
    arena: ArenaProtocol | None = None, pickle_free: bool = False,
) -> _One[_T]: ...
def iterate_in_subprocesses(
    fns: Iterable[Callable[[], Iterable[_T]]], *, ordered: bool = True,
    arena: Callable[[], ArenaProtocol] | None = None,
    arenas: Callable[[], ArenaProtocol] | None = None,
    **options: Unpack[_WorkerOptions],
) -> _Several[_T]: ...
def iterate_in_program(
    command: Iterable[str], *, buffer_size: int = 3,
    timeout: float | None = None, buffer: ArenaProtocol | None = None,
    arena: ArenaProtocol | None = None, env: Mapping[str, str] | None = None,
) -> _One[Any]: ...
def run_in_subprocess(
    factory: Callable[[], Iterable[_T]], **options: Unpack[_ArenaOptions]
) -> _One[_T]: ...
def as_iterable_dataset(source: Iterable[_T]) -> IterableDataset[_T]: ...
def serve_program(
    fn: Callable[[], Iterable[Any]], link: str
) -> None: ...

class BroadcastConsumer:
    index: int
    def __init__(
        self, index: int, channel: Any, arena: Any, worker: int,
        timeout: float,
    ) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
    def close(self) -> None: ...

class Broadcast:
    consumers: list[BroadcastConsumer]
    def __init__(
        self, fn: Any, count: int, buffer_size: int, initializer: Any,
        mp_context: Any, timeout: float | None, daemon: bool, arena: Any,
    ) -> None: ...
    def __iter__(self) -> Iterator[BroadcastConsumer]: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def close(self) -> None: ...

def broadcast_from_subprocess(
    fn: Callable[[], Iterable[Any]], consumers: int, *, buffer_size: int = 3,
    initializer: Callable[[], object]
    | Sequence[Callable[[], object]] | None = None,
    mp_context: BaseContext | str | None = None, timeout: float | None = None,
    daemon: bool = False, buffer: ArenaProtocol | None = None,
    arena: ArenaProtocol | None = None,
) -> Broadcast: ...

# Items without a worker

def offload(obj: Any, writer: Any, *, threshold: int = 4096) -> Any: ...
def restore(envelope: Any, reader: Any) -> Any: ...

# The loader

@type_check_only
class _Kind(type):
    def __instancecheck__(cls, instance: object) -> bool: ...
    def __subclasscheck__(cls, subclass: type) -> bool: ...

class DataLoader(_TorchLoader[_T_co], metaclass=_Kind):
    max_shared_bytes: int | None
    def __init__(
        self, dataset: Dataset[_T_co], batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        generator: torch.Generator | None = None, *,
        prefetch_factor: int | None = None, persistent_workers: bool = False,
        pin_memory_device: str = "", in_order: bool = True,
        max_shared_bytes: int | None = None,
    ) -> None: ...

class StatefulDataLoader(DataLoader[_T_co]):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

def install() -> None: ...
def uninstall() -> None: ...
