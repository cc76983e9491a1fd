import io
import os
from typing import Any, TypeAlias

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner as _LoadPlanner,
    ReadItem,
)
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future
from typing_extensions import Unpack

from ... import ReadingOptions

__all__ = ["LoadPlanner", "Reader"]

_Path: TypeAlias = str | os.PathLike[str]

class LoadPlanner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None: ...

class Reader(StorageReader):
    stats: dict[str, Any]
    def __init__(
        self, path: _Path, *, strict_dtype: bool = False,
        **options: Unpack[ReadingOptions],
    ) -> None: ...
    def reset(self, checkpoint_id: _Path | None = None) -> None: ...
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata: ...
    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any,
        **kwargs: Any,
    ) -> None: ...
    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan: ...
    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]: ...
    def read_data(self, plan: LoadPlan, planner: _LoadPlanner) -> Future[None]: ...
    @property
    def checkpoint_id(self) -> str: ...
    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: _Path) -> bool: ...
