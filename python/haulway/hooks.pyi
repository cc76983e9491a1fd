from typing import Any

from . import _Path

__all__ = ["after_write", "before_pull"]

def before_pull(source_dir: _Path, target_version: int) -> None: ...
def after_write(args: Any, version_dir: _Path, rollout_engines: Any) -> None: ...
