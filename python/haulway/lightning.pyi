import os
from typing import Any, Literal, TypeAlias

from typing_extensions import Unpack

from . import Checkpoints, _RemoteWords

_Path: TypeAlias = str | os.PathLike[str]

__all__ = ["HaulwayCheckpoint", "HaulwayCheckpointIO"]

class HaulwayCheckpointIO:
    def __init__(
        self, *, durability: Literal["full", "none"] | None = None,
        storage_alignment: int | None = None, compute_crc32: bool | None = None,
        threads: int | None = None,
        use_pinned_memory_for_d2h: bool | None = None,
        **options: Unpack[_RemoteWords],
    ) -> None: ...
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: _Path,
        storage_options: Any | None = None,
    ) -> None: ...
    def load_checkpoint(
        self, path: _Path, map_location: Any | None = "cpu",
        weights_only: bool | None = None,
    ) -> dict[str, Any]: ...
    def remove_checkpoint(self, path: _Path) -> None: ...
    def teardown(self) -> None: ...

class HaulwayCheckpoint:
    run: Checkpoints
    def __new__(cls, *arguments: Any, **options: Any) -> HaulwayCheckpoint: ...
    def __init__(
        self, dir: _Path, keep: int = 3, every_n_train_steps: int | None = None,
        **options: Any,
    ) -> None: ...
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None: ...
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any,
        batch_idx: int,
    ) -> None: ...
    def on_train_end(self, trainer: Any, pl_module: Any) -> None: ...
