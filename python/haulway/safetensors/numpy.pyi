import os
from typing import Any, Literal, TypeAlias

import numpy as np

_Path: TypeAlias = str | os.PathLike[str]
_Arrays: TypeAlias = dict[str, np.ndarray]

def save(
    tensor_dict: _Arrays, metadata: dict[str, str] | None = None
) -> bytes: ...
def save_file(
    tensor_dict: _Arrays, filename: _Path,
    metadata: dict[str, str] | None = None,
) -> None: ...
def load(data: bytes | bytearray | memoryview) -> _Arrays: ...
def load_file(
    filename: _Path, *,
    backend: Literal[
        "mmap", "pread", "auto", "direct", "uring", "snapshot"
    ] = "mmap",
) -> _Arrays: ...
def __getattr__(name: str) -> Any: ...
