from typing import Any

from fsspec.spec import AbstractFileSystem

__all__ = ["HaulwayFileSystem"]

class HaulwayFileSystem(AbstractFileSystem):  # type: ignore[misc]
    protocol: str
    def __init__(
        self, fo: str | None = None, target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None, **options: Any,
    ) -> None: ...
