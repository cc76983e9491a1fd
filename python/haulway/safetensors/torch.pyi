import os
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import torch as _torch

_Path: TypeAlias = str | os.PathLike[str]
_Device: TypeAlias = str | int | _torch.device
_Tensors: TypeAlias = dict[str, _torch.Tensor]
_Backend: TypeAlias = Literal[
    "mmap", "pread", "auto", "direct", "uring", "snapshot"
]

def save(tensors: _Tensors, metadata: dict[str, str] | None = None) -> bytes: ...
def save_file(
    tensors: _Tensors, filename: _Path, metadata: dict[str, str] | None = None
) -> None: ...
def load(data: bytes | bytearray | memoryview) -> _Tensors: ...
def load_file(
    filename: _Path, device: _Device = "cpu", *, backend: _Backend = "mmap"
) -> _Tensors: ...
def save_model(
    model: _torch.nn.Module, filename: _Path,
    metadata: dict[str, str] | None = None, force_contiguous: bool = True,
) -> None: ...
def load_model(
    model: _torch.nn.Module, filename: _Path, strict: bool = True,
    device: _Device = "cpu", *, backend: _Backend = "mmap",
) -> tuple[set[str], list[str]]: ...
def storage_ptr(tensor: _torch.Tensor) -> int: ...
def storage_size(tensor: _torch.Tensor) -> int: ...
def deserialize(
    bytes: bytes | bytearray | memoryview,
) -> list[tuple[str, dict[str, Any]]]: ...
def _find_shared_tensors(state_dict: _Tensors) -> list[set[str]]: ...
def _remove_duplicate_names(
    state_dict: _Tensors, *, preferred_names: Iterable[str] | None = None,
    discard_names: Iterable[str] | None = None,
) -> dict[str, list[str]]: ...
def __getattr__(name: str) -> Any: ...
