import io
import os
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from torch.distributed.checkpoint import planner as _planner
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.storage import (
    StorageReader,
    StorageWriter,
    WriteResult,
)
from torch.futures import Future
from typing_extensions import Unpack

from ... import ReadingOptions, _RemoteWords

__all__ = [
    "LoadPlanner", "Reader", "SafetensorsReader", "SafetensorsWriter", "Writer",
]

_Path: TypeAlias = str | os.PathLike[str]

class LoadPlanner(DefaultLoadPlanner):
    def load_bytes(self, read_item: _planner.ReadItem, value: io.BytesIO) -> None: ...

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
    def prepare_local_plan(self, plan: _planner.LoadPlan) -> _planner.LoadPlan: ...
    def prepare_global_plan(
        self, plans: list[_planner.LoadPlan]
    ) -> list[_planner.LoadPlan]: ...
    def read_data(
        self, plan: _planner.LoadPlan, planner: _planner.LoadPlanner
    ) -> Future[None]: ...
    @property
    def checkpoint_id(self) -> str: ...
    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: _Path) -> bool: ...

class Writer(StorageWriter):
    def __init__(
        self, path: _Path, *, overwrite: bool = True,
        single_file_per_rank: bool = True, thread_count: int = 1,
        durability: Literal["full", "none"] | None = None,
        compress: Literal["zstd"] | None = None,
        **remote: Unpack[_RemoteWords],
    ) -> None: ...
    def reset(self, checkpoint_id: _Path | None = None) -> None: ...
    def set_up_storage_writer(
        self, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None: ...
    def prepare_local_plan(
        self, plan: _planner.SavePlan
    ) -> _planner.SavePlan: ...
    def prepare_global_plan(
        self, plans: list[_planner.SavePlan]
    ) -> list[_planner.SavePlan]: ...
    def write_data(
        self, plan: _planner.SavePlan, planner: _planner.SavePlanner
    ) -> Future[list[WriteResult]]: ...
    def finish(
        self, metadata: Metadata, results: list[list[WriteResult]]
    ) -> None: ...
    def storage_meta(self) -> StorageMeta | None: ...
    @property
    def checkpoint_id(self) -> str: ...
    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: _Path) -> bool: ...

class SafetensorsReader(Reader):
    def read_metadata(self) -> Metadata: ...  # type: ignore[override]
    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any,
        **kwargs: Any,
    ) -> None: ...

class SafetensorsWriter(Writer):
    def __init__(
        self, path: _Path, *,
        fqn_to_index_mapping: Mapping[str, int] | None = None,
        save_distributed: bool = False, overwrite: bool = True,
        durability: Literal["full", "none"] | None = None,
        **remote: Unpack[_RemoteWords],
    ) -> None: ...
    def prepare_local_plan(
        self, plan: _planner.SavePlan
    ) -> _planner.SavePlan: ...
    def prepare_global_plan(
        self, plans: list[_planner.SavePlan]
    ) -> list[_planner.SavePlan]: ...
    def write_data(
        self, plan: _planner.SavePlan, planner: _planner.SavePlanner
    ) -> Future[list[WriteResult]]: ...
    def finish(
        self, metadata: Metadata, results: list[list[WriteResult]]
    ) -> None: ...
