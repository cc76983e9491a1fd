from typing import Any

from fsspec.spec import AbstractFileSystem

__all__ = ["HaulwayFileSystem"]

class HaulwayFileSystem(AbstractFileSystem):  # type: ignore[misc]
    protocol: str
    def __init__(self, **options: Any) -> None: ...
