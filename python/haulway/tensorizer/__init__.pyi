import enum
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import torch
from typing_extensions import Self

from .. import Error
from . import serialization as serialization
from . import stream_io as stream_io
from . import torch_compat as torch_compat
from . import utils as utils

__all__: list[str]

_File: TypeAlias = str | bytes | os.PathLike[str] | BinaryIO | int
_Steps: TypeAlias = str | Sequence[str | int]
FilterFuncType: TypeAlias = Callable[[str | Sequence[str | int]], Any]

class InvalidFileError(Error, ValueError): ...
class CryptographyError(Error): ...
class HashMismatchError(Error): ...

class TensorType(enum.IntEnum):
    PARAM = 0
    BUFFER = 1
    STATE_DICT = 2

class EncryptionParams:
    class OpsLimit(enum.IntEnum):
        MIN = 1
        INTERACTIVE = 2
        MODERATE = 3
        SENSITIVE = 4

    class MemLimit(enum.IntEnum):
        MIN = 8192
        INTERACTIVE = 67108864
        MODERATE = 268435456
        SENSITIVE = 1073741824

    key: bytes
    def __init__(self, key: bytes) -> None: ...
    @classmethod
    def random(cls) -> EncryptionParams: ...
    @classmethod
    def from_string(
        cls, source: str | bytes, opslimit: int | None = None,
        memlimit: int | None = None, salt: bytes | str | None = None, *,
        encoding: str = "utf-8",
    ) -> EncryptionParams: ...
    @property
    def salt(self) -> bytes | None: ...

class DecryptionParams:
    def __init__(self) -> None: ...
    @classmethod
    def from_string(
        cls, source: str | bytes, *, encoding: str = "utf-8"
    ) -> DecryptionParams: ...
    @classmethod
    def from_key(cls, key: bytes) -> DecryptionParams: ...

class TensorDeserializer(
    Mapping[str, Any], AbstractContextManager[Any]
):
    def __init__(
        self, file_obj: _File, device: str | torch.device | None = None,
        filter_func: FilterFuncType | None = None,
        dtype: torch.dtype | None = None, *, lazy_load: bool = False,
        plaid_mode: bool | None = None, plaid_mode_buffers: int | None = None,
        num_readers: int | None = None, verify_hash: bool = False,
        encryption: DecryptionParams | None = None,
        keep_meta: bool | None = None,
    ) -> None: ...
    def __getitem__(self, key: Any) -> Any: ...
    def __contains__(self, key: object) -> bool: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def tree(
        self, prefix: Sequence[str | int] | None = None, *,
        default: Any = None, filter_func: FilterFuncType | None = None,
    ) -> Any: ...
    def read_tensors(
        self, filter_func: FilterFuncType | None = None,
        num_tensors: int = -1, verify_hash: bool | None = None,
    ) -> Iterator[tuple[int, TensorType, _Steps, torch.Tensor]]: ...
    def read_numpy_arrays(
        self, filter_func: FilterFuncType | None = None,
        num_tensors: int = -1, allow_raw_data: bool = False,
        verify_hash: bool | None = None,
    ) -> Iterator[
        tuple[int, TensorType, _Steps, np.ndarray[Any, Any], bool, str | None]
    ]: ...
    def load_into_module(
        self, m: torch.nn.Module, filter_func: FilterFuncType | None = None,
        verify_hash: bool | None = None,
    ) -> int: ...
    def verify_module(
        self, m: torch.nn.Module
    ) -> tuple[bool, list[tuple[_Steps, bool]]]: ...
    def to_redis(
        self, redis_client: Any, key_prefix: str, force: bool = False
    ) -> None: ...
    @property
    def total_tensor_bytes(self) -> int: ...
    @property
    def total_file_bytes(self) -> int: ...
    @property
    def total_bytes_read(self) -> int: ...
    @property
    def cache_status(self) -> str | None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

class TensorSerializer:
    def __init__(
        self, file_obj: _File, compress_tensors: bool = False, *,
        encryption: EncryptionParams | None = None,
        limit_cpu_concurrency: int | None = None,
        authenticate_metadata: bool = True, layout: str = "interleaved",
        max_tensors: int | None = None,
    ) -> None: ...
    def write_tensor(
        self, idx: int, name: _Steps, tensor_type: TensorType | int,
        tensor: torch.Tensor | np.ndarray[Any, Any],
    ) -> None: ...
    def write_module(
        self, m: torch.nn.Module, remove_tensors: bool = False, *,
        include_non_persistent_buffers: bool = True,
    ) -> None: ...
    def write_state_dict(self, state_dict: Any) -> None: ...
    @property
    def total_tensor_bytes(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: Any, value: Any, trace: Any) -> None: ...
