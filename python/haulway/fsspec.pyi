from typing import Any, type_check_only

from fsspec.spec import AbstractFileSystem

__all__ = ["HaulwayFileSystem"]

@type_check_only
class _Cached(type): ...  # fsspec has no type stubs.

class HaulwayFileSystem(  # type: ignore[misc]
    AbstractFileSystem, metaclass=_Cached
):
    protocol: str
    def __init__(
        self, fo: str | None = None, target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        auto_mkdir: bool = False, **options: Any,
    ) -> None: ...
