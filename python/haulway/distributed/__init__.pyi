import os
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement
from typing_extensions import Unpack

from .. import TogetherOptions

__all__ = ["load"]

_Path: TypeAlias = str | os.PathLike[str]
_Place: TypeAlias = str | int | Sequence[Placement] | None
_Placements: TypeAlias = (
    _Place
    | Mapping[str, _Place]
    | Callable[[str, tuple[int, ...]], _Place]
)
_Globs: TypeAlias = str | Iterable[str]

def load(
    path: _Path | list[_Path], *, group: ProcessGroup | None = None,
    mesh: DeviceMesh | None = None, placements: _Placements = "replicate",
    include: _Globs | None = None, exclude: _Globs | None = None,
    device: str | int | torch.device = "cpu",
    stats: MutableMapping[str, Any] | None = None,
    timeout: float | None = None, **options: Unpack[TogetherOptions],
) -> dict[str, torch.Tensor]: ...
