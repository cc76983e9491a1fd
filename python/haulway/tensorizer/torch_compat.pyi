from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

__all__: tuple[str, ...]

def tensorizer_saving(
    file_obj: Any = None, *,
    save_func: Callable[[Any, Any, dict[str, Any]], object] | None = None,
    **kwargs: Any,
) -> AbstractContextManager[None]: ...
def tensorizer_loading(
    file_obj: Any = None, *,
    load_func: Callable[[Any, dict[str, Any]], Any] | None = None,
    suppress_weights_only: bool = False, **kwargs: Any,
) -> AbstractContextManager[None]: ...
