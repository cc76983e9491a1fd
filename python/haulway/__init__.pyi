# The package's types for type checkers. The tests compare names and signatures
# with the package (stubtest); tools/make_docs.py generates the classes of
# options.

import os
import re
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    Sequence,
    ValuesView,
)
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from types import SimpleNamespace, TracebackType
from typing import (
    Any,
    BinaryIO,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
    TypeAlias,
    TypedDict,
    TypeVar,
    final,
    overload,
    type_check_only,
)

import numpy as np
import torch as _torch
from typing_extensions import Self, Unpack, disjoint_base

from . import archive as archive
from . import fsspec as fsspec
from . import ipc as ipc
from . import lightning as lightning
from . import safetensors as safetensors
from . import tensorizer as tensorizer
from . import torch as torch
from . import transformers as transformers
from . import vllm as vllm

__version__: str

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_Array: TypeAlias = np.ndarray[Any, Any]
_Path: TypeAlias = str | os.PathLike[str]
# A path, bytes, or a binary file object; or several as one checkpoint.
_Single: TypeAlias = _Path | bytes | bytearray | memoryview | BinaryIO
_Source: TypeAlias = _Single | list[Any] | tuple[_Single, ...]
_Globs: TypeAlias = str | Iterable[str]
_Framework: TypeAlias = Literal["torch", "numpy", "jax"]
# Formats to write: all; those of named tensors with metadata; those that hold
# named tensors only; NumPy's.
_Format: TypeAlias = Literal["torch", "tensorizer", "safetensors", "gguf", "npy", "npz"]
_WrittenTensors: TypeAlias = Literal["tensorizer", "safetensors", "gguf"]
_WrittenByName: TypeAlias = Literal["safetensors", "gguf"]
_WrittenArrays: TypeAlias = Literal["npy", "npz"]
_Index: TypeAlias = Any  # Numbers, slices, ..., None, and tuples of them.
_Adapter: TypeAlias = _Path | tuple[_Path, float]
_SafeGlobal: TypeAlias = str | type | Callable[..., Any] | tuple[Any, str]
_Tensor: TypeAlias = _torch.Tensor | _Array | np.generic
_Tensors: TypeAlias = Mapping[str, _Tensor]
_Dtype: TypeAlias = str | _torch.dtype | np.dtype[Any] | type
_Renaming: TypeAlias = (
    Callable[[str], str] | Mapping[str, str] | Mapping[re.Pattern[str], str]
    | Iterable[tuple[str | re.Pattern[str], str]]
)

# Keywords for reading; None means not given. See docs/loading.md.
@type_check_only
class _IndexWords(TypedDict, total=False):
    keep_meta: bool | None
    alone: bool | None
    part: str | None
    weights: Literal["master", "model"] | None
    replicas: Literal["check", "first"] | None
    split_layers: bool | None
    dequantize: bool | None
    raw: bool | None
    lora: _Adapter | Iterable[_Adapter] | Mapping[_Path, float] | None
    rules: _Path | Sequence[Mapping[str, Any]] | None
    endianness: Literal["native", "little", "big"] | None
    safe_globals: Iterable[_SafeGlobal] | str | None

@type_check_only
class _RemoteWords(TypedDict, total=False):
    headers: Mapping[str, str] | None
    bearer_token: str | None
    netrc: _Path | None
    ca_file: _Path | None
    client_certificate: _Path | None
    client_key: _Path | None
    insecure: bool | None
    proxy: str | None
    connect_timeout: float | None
    stall_timeout: float | None
    timeout: float | None
    connections: int | None
    cache_dir: _Path | None
    cache_size: int | str | None

@type_check_only
class _ScanningWords(_RemoteWords, total=False):
    io: Literal["auto", "mmap", "pread", "direct", "uring", "snapshot"] | None
    mmap_flags: int | None
    key: bytes | bytearray | memoryview | str | None
    passphrase: str | bytes | bytearray | memoryview | None
    calculate_storage_offsets: bool | None
    debug: bool | None

@type_check_only
class _ReadingWords(TypedDict, total=False):
    verify: bool | None
    threads: int | None
    memory_budget: int | str | None
    drop_cache: bool | None
    retries: int | None
    progress: Callable[[int, int], object] | None
    stats: MutableMapping[str, Any] | None

@type_check_only
class _UnsignedWords(_ScanningWords, total=False):
    variant: str | None
    base: _Path | None

@type_check_only
class _SignedWords(_UnsignedWords, total=False):
    signature: _Path | None
    public_key: _Path | bytes | None
    certificate_chain: Iterable[_Path | bytes] | _Path | bytes | None
    identity: str | None
    issuer: str | None
    trusted_root: _Path | None
    at: str | None
    ignore_unsigned_files: bool | None
    ignore_paths: Iterable[_Path] | _Path | None
    ignore_git_paths: bool | None
    allow_symlinks: bool | None

@type_check_only
class _OpeningWords(_SignedWords, total=False):
    signature_scope: Literal["auto", "all", "read"] | None
    require_signature: bool | None

# Options of put() and get().
@type_check_only
class BringingOptions(_RemoteWords, total=False):
    threads: int | None
    retries: int | None
    progress: Callable[[int, int], object] | None
    stats: MutableMapping[str, Any] | None

# Options of attach().
@type_check_only
class IndexOptions(_IndexWords, total=False):
    lenient: bool | None

# Options of get().
@type_check_only
class GettingOptions(BringingOptions, IndexOptions, total=False):
    key: bytes | bytearray | memoryview | str | None
    passphrase: str | bytes | bytearray | memoryview | None

# Options of scan().
@type_check_only
class ScanningOptions(IndexOptions, _ScanningWords, total=False):
    mmap: bool | None

# Options of other calls that open a checkpoint.
@type_check_only
class OpeningOptions(IndexOptions, _OpeningWords, total=False):
    mmap: bool | None

# Options of load(), iterate(), shard(), load_into(), publish_file() and
# haulway.torch.load().
@type_check_only
class ReadingOptions(OpeningOptions, _ReadingWords, total=False): ...

# Options of haulway.distributed.load().
@type_check_only
class TogetherOptions(TypedDict, total=False):
    lenient: bool | None
    keep_meta: bool | None
    alone: bool | None
    part: str | None
    weights: Literal["master", "model"] | None
    replicas: Literal["check", "first"] | None
    split_layers: bool | None
    dequantize: bool | None
    raw: bool | None
    lora: _Adapter | Iterable[_Adapter] | Mapping[_Path, float] | None
    rules: _Path | Sequence[Mapping[str, Any]] | None
    endianness: Literal["native", "little", "big"] | None
    safe_globals: Iterable[_SafeGlobal] | str | None
    variant: str | None
    base: _Path | None
    signature: _Path | None
    public_key: _Path | bytes | None
    certificate_chain: Iterable[_Path | bytes] | _Path | bytes | None
    identity: str | None
    issuer: str | None
    trusted_root: _Path | None
    at: str | None
    ignore_unsigned_files: bool | None
    ignore_paths: Iterable[_Path] | _Path | None
    ignore_git_paths: bool | None
    allow_symlinks: bool | None
    signature_scope: Literal["auto", "all", "read"] | None
    require_signature: bool | None
    headers: Mapping[str, str] | None
    bearer_token: str | None
    netrc: _Path | None
    ca_file: _Path | None
    client_certificate: _Path | None
    client_key: _Path | None
    insecure: bool | None
    proxy: str | None
    connect_timeout: float | None
    stall_timeout: float | None
    connections: int | None
    cache_dir: _Path | None
    cache_size: int | str | None
    io: Literal["auto", "mmap", "pread", "direct", "uring", "snapshot"] | None
    mmap: bool | None
    mmap_flags: int | None
    key: bytes | bytearray | memoryview | str | None
    passphrase: str | bytes | bytearray | memoryview | None
    calculate_storage_offsets: bool | None
    debug: bool | None
    verify: bool | None
    threads: int | None
    memory_budget: int | str | None
    drop_cache: bool | None
    retries: int | None
    progress: Callable[[int, int], object] | None

# Options of open(), whose mmap may be given by position.
@type_check_only
class OpenOptions(IndexOptions, _OpeningWords, _ReadingWords, total=False): ...

# Options of plan_reads().
@type_check_only
class PlanningOptions(OpeningOptions, total=False):
    verify: bool | None

# Options of verify(), whose lenient may be given by position.
@type_check_only
class VerifyingOptions(_IndexWords, _SignedWords, total=False):
    mmap: bool | None
    threads: int | None
    progress: Callable[[int, int], object] | None

# Options of manifest().
@type_check_only
class ComparingOptions(OpeningOptions, total=False):
    verify: bool | None
    threads: int | None
    memory_budget: int | str | None

# Options of diff() and manifest().
@type_check_only
class DiffingOptions(ComparingOptions, total=False):
    progress: Callable[[int, int], object] | None

# Options of tensor_stats().
@type_check_only
class MeasuringOptions(OpeningOptions, total=False):
    threads: int | None
    memory_budget: int | str | None
    progress: Callable[[int, int], object] | None

# Options of edit() and repair(), for reading.
@type_check_only
class ChangingOptions(IndexOptions, _UnsignedWords, total=False):
    mmap: bool | None
    threads: int | None
    progress: Callable[[int, int], object] | None

# Keywords for calls that write; None means the default. See docs/saving.md.
# Options of save() and save_async().
@type_check_only
class SavingOptions(_RemoteWords, total=False):
    storage_alignment: int | None
    compute_crc32: bool | None
    durability: Literal["full", "none"] | None
    layout: Literal["interleaved", "segments", "segments-pr170"] | None
    room_for: int | None
    data_file: str | None
    authenticate_metadata: bool | None
    compact: bool | None
    alignment: int | None
    threads: int | None
    memory_budget: int | str | None
    progress: Callable[[int, int], object] | None
    stats: MutableMapping[str, Any] | None
    ties: Literal["keep", "drop", "copy", "error"] | None
    key: bytes | bytearray | memoryview | str | None
    passphrase: str | bytes | bytearray | memoryview | None
    metadata: Mapping[str, Any] | None
    overwrite: bool | None

# The same for one format: torch's, those of named tensors, and Tensorizer's.
@type_check_only
class _SavingTorch(_RemoteWords, total=False):
    storage_alignment: int | None
    compute_crc32: bool | None
    durability: Literal["full", "none"] | None
    compact: bool | None
    threads: int | None
    memory_budget: int | str | None
    progress: Callable[[int, int], object] | None
    stats: MutableMapping[str, Any] | None
    ties: Literal["keep", "drop", "copy", "error"] | None
    overwrite: bool | None

@type_check_only
class _SavingTensors(_RemoteWords, total=False):
    durability: Literal["full", "none"] | None
    alignment: int | None
    threads: int | None
    memory_budget: int | str | None
    progress: Callable[[int, int], object] | None
    stats: MutableMapping[str, Any] | None
    ties: Literal["keep", "drop", "copy", "error"] | None
    metadata: Mapping[str, Any] | None
    overwrite: bool | None

@type_check_only
class _SavingArrays(_RemoteWords, total=False):
    durability: Literal["full", "none"] | None
    threads: int | None
    memory_budget: int | str | None
    progress: Callable[[int, int], object] | None
    stats: MutableMapping[str, Any] | None
    ties: Literal["keep", "drop", "copy", "error"] | None
    overwrite: bool | None

@type_check_only
class _SavingTensorizer(_RemoteWords, total=False):
    durability: Literal["full", "none"] | None
    layout: Literal["interleaved", "segments", "segments-pr170"] | None
    room_for: int | None
    data_file: str | None
    authenticate_metadata: bool | None
    alignment: int | None
    threads: int | None
    memory_budget: int | str | None
    progress: Callable[[int, int], object] | None
    stats: MutableMapping[str, Any] | None
    ties: Literal["keep", "drop", "copy", "error"] | None
    key: bytes | bytearray | memoryview | str | None
    passphrase: str | bytes | bytearray | memoryview | None
    metadata: Mapping[str, Any] | None
    overwrite: bool | None

# Options of convert(), and of convert() to torch's and to the other formats.
@type_check_only
class ConvertingOptions(OpeningOptions, total=False):
    durability: Literal["full", "none"] | None
    shard: int | str | None
    compact: bool | None
    proof: bool | None
    resume: bool | None
    verify: bool | None
    alignment: int | None
    threads: int | None
    memory_budget: int | str | None
    progress: Callable[[int, int], object] | None
    stats: MutableMapping[str, Any] | None
    ties: Literal["keep", "drop", "copy", "error"] | None
    metadata: Mapping[str, Any] | None
    overwrite: bool | None

@type_check_only
class _ConvertingTorch(OpeningOptions, total=False):
    durability: Literal["full", "none"] | None
    shard: int | str | None
    compact: bool | None
    proof: bool | None
    resume: bool | None
    verify: bool | None
    threads: int | None
    memory_budget: int | str | None
    progress: Callable[[int, int], object] | None
    stats: MutableMapping[str, Any] | None
    ties: Literal["keep", "drop", "copy", "error"] | None
    overwrite: bool | None

@type_check_only
class _ConvertingTensors(OpeningOptions, total=False):
    durability: Literal["full", "none"] | None
    shard: int | str | None
    proof: bool | None
    resume: bool | None
    verify: bool | None
    alignment: int | None
    threads: int | None
    memory_budget: int | str | None
    progress: Callable[[int, int], object] | None
    stats: MutableMapping[str, Any] | None
    ties: Literal["keep", "drop", "copy", "error"] | None
    metadata: Mapping[str, Any] | None
    overwrite: bool | None

@type_check_only
class _ConvertingArrays(OpeningOptions, total=False):
    durability: Literal["full", "none"] | None
    shard: int | str | None
    proof: bool | None
    resume: bool | None
    verify: bool | None
    threads: int | None
    memory_budget: int | str | None
    progress: Callable[[int, int], object] | None
    stats: MutableMapping[str, Any] | None
    ties: Literal["keep", "drop", "copy", "error"] | None
    overwrite: bool | None

# Options of writer(), and of writer() in a format without metadata.
@type_check_only
class _WritingPlain(_RemoteWords, total=False):
    durability: Literal["full", "none"] | None
    shard: int | str | None
    threads: int | None
    memory_budget: int | str | None
    progress: Callable[[int, int], object] | None
    overwrite: bool | None

@type_check_only
class WritingOptions(_RemoteWords, total=False):
    durability: Literal["full", "none"] | None
    shard: int | str | None
    threads: int | None
    memory_budget: int | str | None
    progress: Callable[[int, int], object] | None
    metadata: Mapping[str, Any] | None
    overwrite: bool | None

# Options of edit().
@type_check_only
class EditingOptions(ChangingOptions, total=False):
    durability: Literal["full", "none"] | None
    room_for: int | None
    alignment: int | None
    in_place: bool | None
    dry_run: bool | None
    room: Literal["auto", "insert", "move"] | None
    untie: bool | None

# Options of repair().
@type_check_only
class RepairingOptions(ChangingOptions, total=False):
    durability: Literal["full", "none"] | None
    memory_budget: int | str | None

# Options of put().
@type_check_only
class PuttingOptions(BringingOptions, total=False):
    durability: Literal["full", "none"] | None
    overwrite: bool | None
    clobber: bool | None

# Options of plan() and of the methods of its result.
@type_check_only
class PlanOptions(TypedDict, total=False):
    storage_alignment: int | None
    compute_crc32: bool | None

@type_check_only
class CreatingOptions(TypedDict, total=False):
    durability: Literal["full", "none"] | None

@type_check_only
class CommittingOptions(TypedDict, total=False):
    threads: int | None
    stats: MutableMapping[str, Any] | None

# Errors

class Error(Exception):
    message: str
    code: str
    byte: int | None
    errno: int | None
    def __init__(
        self, message: str, code: str | None = None, byte: int | None = None,
        errno: int = 0,
    ) -> None: ...

class InvalidArgumentError(Error, ValueError): ...
class ArgumentTypeError(InvalidArgumentError, TypeError): ...
class OptionError(InvalidArgumentError, TypeError): ...
class UnknownNameError(InvalidArgumentError, KeyError): ...
class NotFoundError(Error, FileNotFoundError): ...  # type: ignore[misc]
class PermissionDeniedError(Error, PermissionError): ...  # type: ignore[misc]
class UnavailableError(Error, ConnectionError): ...  # type: ignore[misc]
class TimedOutError(Error, TimeoutError): ...  # type: ignore[misc]
class IoError(Error, OSError): ...  # type: ignore[misc]
class CertificateError(IoError): ...
class TruncatedError(Error): ...
class CorruptError(Error): ...
class MismatchError(Error): ...
class UnsafeError(Error): ...
class LimitError(Error): ...
class DecryptError(Error): ...
class SignatureError(Error): ...
class UnsupportedError(Error, NotImplementedError): ...
class Cancelled(Error): ...
class InternalError(Error, RuntimeError): ...

class LoadIntoError(InvalidArgumentError, RuntimeError):
    missing_keys: list[str]
    unexpected_keys: list[str]
    def __init__(
        self, message: str, code: str | None = None, byte: int | None = None,
        errno: int = 0, missing_keys: Iterable[str] = (),
        unexpected_keys: Iterable[str] = (),
    ) -> None: ...

# What files hold

class TensorInfo(NamedTuple):
    kind: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: int | None
    nbytes: int
    requires_grad: bool
    conjugate: bool
    negative: bool

class GlobalName(NamedTuple):
    module: str
    name: str

class PickledObject:
    module: str
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None
    state: Any
    appended: list[Any]
    items: list[tuple[Any, Any]]
    def __init__(
        self, module: str, name: str, args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> None: ...

class OpaqueObject(PickledObject):
    byte: int
    def __init__(
        self, module: str, name: str, byte: int, args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> None: ...

# Formats

@final
class Format:
    @property
    def name(self) -> str: ...
    @property
    def suffixes(self) -> tuple[str, ...]: ...
    @property
    def encrypts(self) -> bool: ...
    @property
    def digests(self) -> bool: ...
    @property
    def nested(self) -> bool: ...
    @property
    def views(self) -> bool: ...
    @property
    def no_data(self) -> bool: ...
    @property
    def values(self) -> bool: ...

def formats() -> tuple[Format, ...]: ...

# Opening and loading

class TensorSlice(Generic[_T_co]):
    def __init__(
        self, checkpoint: Checkpoint[_T_co], name: str, row: int,
        info: TensorInfo,
    ) -> None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...
    def __getitem__(self, index: _Index) -> _T_co: ...

class Checkpoint(Mapping[str, _T_co]):
    framework: _Framework
    def __init__(
        self, path: _Source, framework: _Framework | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, name: object) -> bool: ...
    def keys(self) -> list[str]: ...  # type: ignore[override]
    def __getitem__(self, name: str) -> _T_co: ...
    def get_slice(self, name: str) -> TensorSlice[_T_co]: ...
    def info(self, name: str) -> TensorInfo: ...
    @property
    def format(self) -> str: ...
    @property
    def metadata(self) -> dict[str, Any]: ...
    @property
    def container(self) -> dict[str, Any]: ...
    def tree(self) -> Any: ...
    def stats(self) -> dict[str, Any]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@overload
def open(
    path: _Source, framework: Literal["numpy"], mmap: bool | None = None,
    **options: Unpack[OpenOptions],
) -> Checkpoint[_Array]: ...
@overload
def open(
    path: _Source, framework: Literal["torch"], mmap: bool | None = None,
    **options: Unpack[OpenOptions],
) -> Checkpoint[_torch.Tensor]: ...
@overload
def open(
    path: _Source, framework: Literal["jax"] | None = None,
    mmap: bool | None = None, **options: Unpack[OpenOptions],
) -> Checkpoint[Any]: ...
@overload
def load(
    path: _Source, framework: Literal["torch", "numpy"] | None = None, *,
    include: _Globs | None = None, exclude: _Globs | None = None,
    device: Literal["cpu"] = "cpu", dtype: None = None,
    destination: Literal["shm"], **options: Unpack[ReadingOptions],
) -> Shared: ...
@overload
def load(
    path: _Source, framework: Literal["numpy"], *, include: _Globs,
    exclude: _Globs | None = None, device: Literal["cpu"] = "cpu",
    dtype: _Dtype | None = None, destination: None = None,
    **options: Unpack[ReadingOptions],
) -> dict[str, _Array]: ...
@overload
def load(
    path: _Source, framework: Literal["numpy"], *, include: None = None,
    exclude: _Globs, device: Literal["cpu"] = "cpu",
    dtype: _Dtype | None = None, destination: None = None,
    **options: Unpack[ReadingOptions],
) -> dict[str, _Array]: ...
@overload
def load(
    path: _Source, framework: Literal["torch"], *, include: _Globs,
    exclude: _Globs | None = None, device: str | int | _torch.device = "cpu",
    dtype: _Dtype | None = None, destination: None = None,
    **options: Unpack[ReadingOptions],
) -> dict[str, _torch.Tensor]: ...
@overload
def load(
    path: _Source, framework: Literal["torch"], *, include: None = None,
    exclude: _Globs, device: str | int | _torch.device = "cpu",
    dtype: _Dtype | None = None, destination: None = None,
    **options: Unpack[ReadingOptions],
) -> dict[str, _torch.Tensor]: ...
@overload
def load(
    path: _Source, framework: Literal["jax"] | None = None, *,
    include: _Globs, exclude: _Globs | None = None,
    device: str | int | _torch.device = "cpu", dtype: _Dtype | None = None,
    destination: None = None, **options: Unpack[ReadingOptions],
) -> dict[str, Any]: ...
@overload
def load(
    path: _Source, framework: Literal["jax"] | None = None, *,
    include: None = None, exclude: _Globs,
    device: str | int | _torch.device = "cpu", dtype: _Dtype | None = None,
    destination: None = None, **options: Unpack[ReadingOptions],
) -> dict[str, Any]: ...
@overload
def load(
    path: _Source, framework: Literal["numpy", "jax"], *, include: None = None,
    exclude: None = None, device: Literal["cpu"] = "cpu",
    dtype: _Dtype | None = None, destination: None = None,
    **options: Unpack[ReadingOptions],
) -> Any: ...
@overload
def load(
    path: _Source, framework: Literal["torch"] | None = None, *,
    include: None = None, exclude: None = None,
    device: str | int | _torch.device = "cpu", dtype: _Dtype | None = None,
    destination: None = None, **options: Unpack[ReadingOptions],
) -> Any: ...
@overload
def iterate(
    path: _Source, framework: Literal["numpy"], *,
    include: _Globs | None = None, exclude: _Globs | None = None,
    order: Literal["plan", "completion"] = "plan",
    device: str | int | _torch.device = "cpu",
    **options: Unpack[ReadingOptions],
) -> Iterator[tuple[str, _Array]]: ...
@overload
def iterate(
    path: _Source, framework: Literal["torch"], *,
    include: _Globs | None = None, exclude: _Globs | None = None,
    order: Literal["plan", "completion"] = "plan",
    device: str | int | _torch.device = "cpu",
    **options: Unpack[ReadingOptions],
) -> Iterator[tuple[str, _torch.Tensor]]: ...
@overload
def iterate(
    path: _Source, framework: Literal["jax"] | None = None, *,
    include: _Globs | None = None, exclude: _Globs | None = None,
    order: Literal["plan", "completion"] = "plan",
    device: str | int | _torch.device = "cpu",
    **options: Unpack[ReadingOptions],
) -> Iterator[tuple[str, Any]]: ...
@overload
def shard(
    path: _Source, rank: int, world: int, dim: int = 0, *,
    framework: Literal["numpy"], include: _Globs | None = None,
    exclude: _Globs | None = None, dtype: _Dtype | None = None,
    **options: Unpack[ReadingOptions],
) -> dict[str, _Array]: ...
@overload
def shard(
    path: _Source, rank: int, world: int, dim: int = 0, *,
    framework: Literal["torch"], include: _Globs | None = None,
    exclude: _Globs | None = None, dtype: _Dtype | None = None,
    **options: Unpack[ReadingOptions],
) -> dict[str, _torch.Tensor]: ...
@overload
def shard(
    path: _Source, rank: int, world: int, dim: int = 0, *,
    framework: None = None, include: _Globs | None = None,
    exclude: _Globs | None = None, dtype: _Dtype | None = None,
    **options: Unpack[ReadingOptions],
) -> dict[str, Any]: ...

class _Keys(NamedTuple):
    missing_keys: list[str]
    unexpected_keys: list[str]

@disjoint_base
class IncompatibleKeys(_Keys): ...

def load_into(
    target: _torch.nn.Module | Mapping[str, Any], path: _Source,
    strict: bool = True, *, prefix: str = "",
    **options: Unpack[ReadingOptions],
) -> IncompatibleKeys: ...

class PlannedReads(NamedTuple):
    reads: list[tuple[int, int]]
    tensor_bytes: int
    read_bytes: int

def plan_reads(
    path: _Source, include: _Globs | None = None,
    exclude: _Globs | None = None, slices: Mapping[str, _Index] | None = None,
    **options: Unpack[PlanningOptions],
) -> PlannedReads: ...

class SharedHandle(str):
    def __new__(cls, kept: Any) -> Self: ...

class Shared:
    object: Any
    handle: SharedHandle
    nbytes: int
    stats: dict[str, Any]
    def __init__(self, core: Any, framework: _Framework, reading: Any) -> None: ...
    def __getitem__(self, key: Any) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: Any) -> bool: ...
    def keys(self) -> KeysView[Any]: ...
    def values(self) -> ValuesView[Any]: ...
    def items(self) -> ItemsView[Any, Any]: ...

def attach(
    handle: str, framework: Literal["torch", "numpy"] | None = None,
    **options: Unpack[IndexOptions],
) -> Any: ...

# Publishing

class Publication:
    name: str
    def __init__(self, name: str) -> None: ...
    @property
    def version(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

def publish(name: str, state: Any, *, keep: int = 1) -> Publication: ...
def publish_file(
    name: str, path: _Source, *, keep: int = 1,
    framework: _Framework | None = None, include: _Globs | None = None,
    exclude: _Globs | None = None, **options: Unpack[ReadingOptions],
) -> Publication: ...
def publish_buffer(name: str, nbytes: int) -> memoryview: ...

class Subscription:
    name: str
    def __init__(
        self, name: str, core: Any, writable: bool, held: tuple[int, Any]
    ) -> None: ...
    @property
    def version(self) -> int: ...
    @property
    def state(self) -> Any: ...
    def wait(
        self, newer_than: int | None = None, timeout: float | None = None
    ) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

def subscribe(
    name: str, *, timeout: float | None = None, version: int | None = None,
    writable: bool = False,
) -> Subscription: ...

# Bulk work

class BulkReport:
    verb: str
    inputs: int
    done: int
    skipped: int
    failed: int
    bytes: int
    seconds: float
    outcomes: dict[str, tuple[int, int]]
    def __init__(self, verb: str, log: Any) -> None: ...
    def __bool__(self) -> bool: ...
    @property
    def exit(self) -> int: ...
    def summary(self) -> dict[str, Any]: ...
    def results(self) -> Iterator[dict[str, Any]]: ...

def bulk(
    verb: Literal["scan", "verify", "manifest", "convert", "info"],
    inputs: _Path | Iterable[_Path], *,
    engine: Literal["local", "ray", "dask"] | Executor = "local",
    journal: _Path | None = None, options: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    each: Callable[[dict[str, Any]], object] | None = None,
    progress: Callable[[int, int | None], object] | None = None,
) -> BulkReport: ...

# Checking

class Report(SimpleNamespace):
    def __bool__(self) -> bool: ...
    def to_dict(self) -> dict[str, Any]: ...

def verify(
    path: _Source, lenient: bool | None = None, *, manifest: _Path | None = None,
    **options: Unpack[VerifyingOptions],
) -> Report: ...
def sign(
    model: _Path, out: _Path = "model.sig", *, private_key: _Path | bytes,
    passphrase: str | bytes | bytearray | memoryview | None = None,
    signing_certificate: _Path | bytes | None = None,
    certificate_chain: Iterable[_Path | bytes] | _Path | bytes = (),
    hash: Literal["sha256", "blake2b", "blake3"] = "sha256",
    shard_size: int | str | None = None,
    ignore_paths: Iterable[_Path] | _Path = (), ignore_git_paths: bool = True,
    allow_symlinks: bool = False, threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Report: ...
def scan(
    path: _Source | list[_Path] | tuple[_Path, ...], *,
    allowed: Iterable[str] = (), allow: Iterable[str] = (),
    **options: Unpack[ScanningOptions],
) -> Report: ...

def diff(
    a: _Source, b: _Source, *, include: _Globs | None = None,
    exclude: _Globs | None = None, ignore_dtype: bool = False, atol: float = 0,
    rtol: float = 0, **options: Unpack[DiffingOptions],
) -> Report: ...
def manifest(
    path: _Source, *, include: _Globs | None = None,
    exclude: _Globs | None = None, **options: Unpack[DiffingOptions],
) -> dict[str, tuple[str, tuple[int, ...], str | None]]: ...

def tensor_stats(
    path: _Source, *, include: _Globs | None = None,
    exclude: _Globs | None = None, **options: Unpack[MeasuringOptions],
) -> dict[str, Report | None]: ...

def repair(
    path: _Source, out: _Path, sources: _Source = (),
    to: _Format | None = None,
    **options: Unpack[RepairingOptions],
) -> Report: ...

# Training runs

_RunLayout: TypeAlias = Literal[
    "haulway", "torchtitan", "trainer", "accelerate", "megatron", "verl",
    "deepspeed", "nemo", "lightning", "orbax",
]

@type_check_only
class _RunWords(_RemoteWords, total=False):
    threads: int | None

class RunEntry(Report):
    path: str
    step: int | None
    layout: str
    good: bool
    reason: str | None
    bytes: int
    metadata: dict[str, Any] | None
    skipped: list[Report]
    def __bool__(self) -> bool: ...

def latest(
    dir_or_url: _Path, verified: bool | Literal["sizes"] = True,
    layout: _RunLayout | None = None, **options: Unpack[_RunWords],
) -> RunEntry | None: ...
def prune(
    dir_or_url: _Path, keep: int, dry_run: bool = False,
    layout: _RunLayout | None = None, **options: Unpack[_RunWords],
) -> Report: ...

class Checkpoints:
    def __init__(
        self, dir_or_url: _Path, *, keep: int = 3, every: int | None = None,
        format: Literal["pt", "safetensors", "torch-dcp"] = "pt",
        verify: bool = True,
        durability: Literal["full", "none"] | None = None, group: Any = None,
        **options: Any,
    ) -> None: ...
    def due(self, step: int) -> bool: ...
    def save(
        self, state: Any, step: int, *, metadata: dict[str, Any] | None = None,
    ) -> RunEntry: ...
    def save_async(
        self, state: Any, step: int, *, metadata: dict[str, Any] | None = None,
    ) -> Future[RunEntry]: ...
    def writing(
        self, step: int, *, metadata: dict[str, Any] | None = None,
    ) -> AbstractContextManager[str]: ...
    def latest(
        self, verified: bool | Literal["sizes"] | None = None,
    ) -> RunEntry | None: ...
    def list(self) -> list[RunEntry]: ...
    def load(self, step: int | None = None, **options: Any) -> Any: ...
    def prune(self, keep: int | None = None, dry_run: bool = False) -> Report: ...
    def wait(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

# Saving

@overload
def save(
    obj: Any, path: _Path | BinaryIO,
    format: Literal["torch"], **options: Unpack[_SavingTorch],
) -> dict[str, Any]: ...
@overload
def save(
    obj: _Tensors, path: _Path | BinaryIO,
    format: _WrittenByName, **options: Unpack[_SavingTensors],
) -> dict[str, Any]: ...
@overload
def save(
    obj: _Tensors, path: _Path | BinaryIO,
    format: Literal["npz"], **options: Unpack[_SavingArrays],
) -> dict[str, Any]: ...
@overload
def save(
    obj: _Tensor | _Tensors, path: _Path | BinaryIO,
    format: Literal["npy"], **options: Unpack[_SavingArrays],
) -> dict[str, Any]: ...
@overload
def save(
    obj: Any, path: _Path | BinaryIO,
    format: Literal["tensorizer"], **options: Unpack[_SavingTensorizer],
) -> dict[str, Any]: ...
@overload
def save(
    obj: Any, path: _Path | BinaryIO,
    format: None = None, **options: Unpack[SavingOptions],
) -> dict[str, Any]: ...
@overload
def save_async(
    obj: Any, path: _Path,
    format: Literal["torch"], **options: Unpack[_SavingTorch],
) -> Future[dict[str, Any]]: ...
@overload
def save_async(
    obj: _Tensors, path: _Path,
    format: _WrittenByName, **options: Unpack[_SavingTensors],
) -> Future[dict[str, Any]]: ...
@overload
def save_async(
    obj: _Tensors, path: _Path,
    format: Literal["npz"], **options: Unpack[_SavingArrays],
) -> Future[dict[str, Any]]: ...
@overload
def save_async(
    obj: _Tensor | _Tensors, path: _Path,
    format: Literal["npy"], **options: Unpack[_SavingArrays],
) -> Future[dict[str, Any]]: ...
@overload
def save_async(
    obj: Any, path: _Path,
    format: Literal["tensorizer"], **options: Unpack[_SavingTensorizer],
) -> Future[dict[str, Any]]: ...
@overload
def save_async(
    obj: Any, path: _Path,
    format: None = None, **options: Unpack[SavingOptions],
) -> Future[dict[str, Any]]: ...
@overload
def convert(
    src: _Source, dst: _Path, to: Literal["torch"], *,
    dtype: _Dtype | None = None, include: _Globs | None = None,
    exclude: _Globs | None = None, rename: _Renaming | None = None,
    **options: Unpack[_ConvertingTorch],
) -> Report: ...
@overload
def convert(
    src: _Source, dst: _Path, to: _WrittenTensors, *,
    dtype: _Dtype | None = None, include: _Globs | None = None,
    exclude: _Globs | None = None, rename: _Renaming | None = None,
    **options: Unpack[_ConvertingTensors],
) -> Report: ...
@overload
def convert(
    src: _Source, dst: _Path, to: _WrittenArrays, *,
    dtype: _Dtype | None = None, include: _Globs | None = None,
    exclude: _Globs | None = None, rename: _Renaming | None = None,
    **options: Unpack[_ConvertingArrays],
) -> Report: ...
@overload
def convert(
    src: _Source, dst: _Path, to: None = None, *,
    dtype: _Dtype | None = None, include: _Globs | None = None,
    exclude: _Globs | None = None, rename: _Renaming | None = None,
    **options: Unpack[ConvertingOptions],
) -> Report: ...

class Part:
    name: str
    def __init__(
        self, writer: Writer, number: int, name: str, dtype: str | None = None
    ) -> None: ...
    def write(self, data: Any, offset: int | None = None) -> None: ...

class Writer:
    def __init__(self, core: Any, name: str = "") -> None: ...
    def add(self, name: str, tensor: Any) -> None: ...
    def add_part(self, name: str, dtype: Any, shape: Iterable[int]) -> Part: ...
    def commit(self) -> dict[str, Any]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

@overload
def writer(
    path: _Path, format: Literal["torch"] | _WrittenArrays,
    **options: Unpack[_WritingPlain],
) -> Writer: ...
@overload
def writer(
    path: _Path,
    format: _WrittenTensors | None = None,
    **options: Unpack[WritingOptions],
) -> Writer: ...
def get(
    url: _Single, path: _Path, *, verify: bool = False,
    **options: Unpack[GettingOptions],
) -> dict[str, Any]: ...
def put(
    file: _Single, url: _Path, **options: Unpack[PuttingOptions],
) -> dict[str, Any]: ...
def edit(
    path: _Path, *,
    rename: Mapping[str, str | Sequence[str | int]] | None = None,
    drop: str | Iterable[str] | None = None,
    set: Mapping[str, str] | None = None, unset: str | Iterable[str] = (),
    dtype: _Dtype | Mapping[str, _Dtype] | None = None,
    replace: Mapping[str, _Source] | None = None,
    merge: _Source | None = None, append: Any = None,
    out: _Path | None = None, **options: Unpack[EditingOptions],
) -> dict[str, Any]: ...

class PlannedRecord(NamedTuple):
    name: str
    offset: int
    size: int

class Plan:
    size: int
    records: list[PlannedRecord]
    def __init__(self, pickled: Any, engine: dict[str, Any]) -> None: ...
    def create(
        self, path: _Path, **options: Unpack[CreatingOptions],
    ) -> Self: ...
    def fill(self, name: str, data: Any, offset: int = 0) -> None: ...
    def commit(
        self, **options: Unpack[CommittingOptions],
    ) -> dict[str, Any]: ...
    def __setstate__(self, state: Mapping[str, Any]) -> None: ...

def plan(obj: Any, **options: Unpack[PlanOptions]) -> Plan: ...

# Configuration

@type_check_only
class _Load:
    lenient: bool
    keep_meta: bool
    alone: bool
    part: str | None
    weights: Literal["master", "model"]
    replicas: Literal["check", "first"]
    split_layers: bool
    dequantize: bool
    raw: bool
    lora: _Adapter | Iterable[_Adapter] | Mapping[_Path, float] | None
    rules: _Path | Sequence[Mapping[str, Any]] | None
    endianness: Literal["native", "little", "big"] | None
    safe_globals: Iterable[_SafeGlobal] | str
    variant: str | None
    base: _Path | None
    signature: _Path | None
    public_key: _Path | bytes | None
    certificate_chain: Iterable[_Path | bytes] | _Path | bytes
    identity: str | None
    issuer: str | None
    trusted_root: _Path | None
    at: str | None
    ignore_unsigned_files: bool
    ignore_paths: Iterable[_Path] | _Path
    ignore_git_paths: bool
    allow_symlinks: bool
    signature_scope: Literal["auto", "all", "read"]
    require_signature: bool
    headers: Mapping[str, str] | None
    bearer_token: str | None
    netrc: _Path | None
    ca_file: _Path | None
    client_certificate: _Path | None
    client_key: _Path | None
    insecure: bool
    proxy: str | None
    connect_timeout: float | None
    stall_timeout: float | None
    timeout: float | None
    connections: int | None
    cache_dir: _Path | None
    cache_size: int | str | None
    io: Literal["auto", "mmap", "pread", "direct", "uring", "snapshot"]
    mmap: bool | None
    mmap_flags: int
    key: bytes | bytearray | memoryview | str | None
    passphrase: str | bytes | bytearray | memoryview | None
    calculate_storage_offsets: bool
    debug: bool
    verify: bool
    threads: int
    memory_budget: int | str | None
    drop_cache: bool
    retries: int | None
    def origin(self, name: str) -> str: ...

@type_check_only
class _Save:
    storage_alignment: int
    compute_crc32: bool
    durability: Literal["full", "none"]
    threads: int
    use_pinned_memory_for_d2h: bool
    def origin(self, name: str) -> str: ...

# Options of config() for every section that has them.
@type_check_only
class _ConfigWords(TypedDict, total=False):
    storage_alignment: int
    compute_crc32: bool
    durability: Literal["full", "none"]
    threads: int
    use_pinned_memory_for_d2h: bool
    lenient: bool
    keep_meta: bool
    alone: bool
    part: str | None
    weights: Literal["master", "model"]
    replicas: Literal["check", "first"]
    split_layers: bool
    dequantize: bool
    raw: bool
    lora: _Adapter | Iterable[_Adapter] | Mapping[_Path, float] | None
    rules: _Path | Sequence[Mapping[str, Any]] | None
    endianness: Literal["native", "little", "big"] | None
    safe_globals: Iterable[_SafeGlobal] | str
    variant: str | None
    base: _Path | None
    signature: _Path | None
    public_key: _Path | bytes | None
    certificate_chain: Iterable[_Path | bytes] | _Path | bytes
    identity: str | None
    issuer: str | None
    trusted_root: _Path | None
    at: str | None
    ignore_unsigned_files: bool
    ignore_paths: Iterable[_Path] | _Path
    ignore_git_paths: bool
    allow_symlinks: bool
    signature_scope: Literal["auto", "all", "read"]
    require_signature: bool
    headers: Mapping[str, str] | None
    bearer_token: str | None
    netrc: _Path | None
    ca_file: _Path | None
    client_certificate: _Path | None
    client_key: _Path | None
    insecure: bool
    proxy: str | None
    connect_timeout: float | None
    stall_timeout: float | None
    timeout: float | None
    connections: int | None
    cache_dir: _Path | None
    cache_size: int | str | None
    io: Literal["auto", "mmap", "pread", "direct", "uring", "snapshot"]
    mmap: bool | None
    mmap_flags: int
    key: bytes | bytearray | memoryview | str | None
    passphrase: str | bytes | bytearray | memoryview | None
    calculate_storage_offsets: bool
    debug: bool
    verify: bool
    memory_budget: int | str | None
    drop_cache: bool
    retries: int | None

@type_check_only
class _Restore:
    def __enter__(self) -> _Config: ...
    def __exit__(self, *exception: object) -> None: ...

@type_check_only
class _Config:
    save: _Save
    load: _Load
    def __call__(
        self, *, save: Mapping[str, Any] | None = None,
        load: Mapping[str, Any] | None = None, **options: Unpack[_ConfigWords],
    ) -> _Restore: ...
    def __setattr__(self, name: str, value: Any) -> NoReturn: ...

config: _Config
