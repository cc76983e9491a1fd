import os
import pickle
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, BinaryIO, TypeAlias

import torch as _torch
from typing_extensions import Self, Unpack

from .. import ReadingOptions
from . import serialization as serialization

_Path: TypeAlias = str | os.PathLike[str]
_MapLocation: TypeAlias = (
    str
    | _torch.device
    | Mapping[str, str]
    | Callable[[_torch.UntypedStorage, str], Any]
    | None
)

def add_safe_globals(safe_globals: Iterable[Any]) -> None: ...
def get_safe_globals() -> list[Any]: ...
def clear_safe_globals() -> None: ...
def safe_globals(safe_globals: Iterable[Any]) -> AbstractContextManager[None]: ...
def configured(section: str, name: str) -> Any: ...
def load(
    f: _Path | BinaryIO, map_location: _MapLocation = None,
    pickle_module: ModuleType | None = None, *,
    weights_only: bool | None = None, encoding: str = "utf-8",
    **options: Unpack[ReadingOptions],
) -> Any: ...
def save(
    obj: Any, f: _Path | BinaryIO, pickle_module: ModuleType = pickle,
    pickle_protocol: int = 2, _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False, *,
    progress: Callable[[int, int], object] | None = None,
    stats: MutableMapping[str, Any] | None = None,
) -> None: ...

class _Installed:
    patched: list[str]
    @property
    def counts(self) -> dict[str, int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

def install(*, save: bool = False) -> _Installed: ...
def installed() -> bool: ...
def uninstall() -> list[str]: ...
