"""The weight transfer engine "haulway" of vLLM. Imported by vLLM's processes.

How: an update names a checkpoint or a version of weights (docs/deltas.md). Each
rank reads it itself, tensor by tensor and in bounded memory, and gives the
tensors to the model as its checkpoint has them. vLLM's layerwise reload, between
start and finish, makes of them what the model holds.
"""

from __future__ import annotations

import dataclasses

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from ._reading.iterate import iterate
from .delta import versions


@dataclasses.dataclass
class HaulwayInitInfo(WeightTransferInitInfo):
    """url: the run, a folder or s3:// name whose versions updates name by
    number; not needed if they name paths. base: the checkpoint before the first
    version, if it does not lie beside the versions. threads, memory_budget: as
    for haulway.iterate()."""

    url: str | None = None
    base: str | None = None
    threads: int | None = None
    memory_budget: int | str | None = None


@dataclasses.dataclass
class HaulwayUpdateInfo(WeightTransferUpdateInfo):
    """path: a checkpoint or the folder of a version, of any scheme. version:
    instead of it, the number of a version of the run."""

    path: str | None = None
    version: int | None = None

    def __post_init__(self):
        if (self.path is None) == (self.version is None):
            raise ValueError("update_info of haulway: expected path or version, "
                             f"found path {self.path!r}, version {self.version!r}")


class HaulwayWeightTransferEngine(WeightTransferEngine):
    """Loads versions of weights into a model that is served.

    One thread at a time, as vLLM calls it. An update that fails ends with an
    error of haulway, and vLLM ends that update; send the same version again, or
    a full one.
    """

    init_info_cls = HaulwayInitInfo
    update_info_cls = HaulwayUpdateInfo

    def __init__(self, config, vllm_config, device, model):
        super().__init__(config, vllm_config, device, model)
        self._init = HaulwayInitInfo()

    def init_transfer_engine(self, init_info):
        self._init = init_info

    def start_weight_update(self):
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info):
        options = {
            name: value
            for name in ("base", "threads", "memory_budget")
            if (value := getattr(self._init, name)) is not None
        }
        path = update_info.path
        if path is None:
            path = self._path_of(update_info.version)
        self.model.load_weights(iterate(path, "torch", **options))

    def finish_weight_update(self):
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self):
        """Holds nothing between updates."""

    def _path_of(self, number):
        if self._init.url is None:
            raise ValueError("init_info of haulway has no url, in which version "
                             f"{number} would lie: give it, or a path for each "
                             "update")
        known = versions(self._init.url)
        for version in known:
            if version.number == number and version.complete:
                return version.path
        whole = ", ".join(str(v.number) for v in known if v.complete)
        raise ValueError(f"{self._init.url} has no whole version {number}: it "
                         f"has {whole or 'none'}")
