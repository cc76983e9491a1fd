"""vLLM's weights, by Haulway: `vllm serve MODEL --load-format haulway`, and the
weight transfer engine "haulway", which loads versions of weights into a model
that is served.

vLLM finds register() by its entry point, where the package is installed.

Any thread may call the functions of this module at any time, unless a
docstring says otherwise.
"""

from __future__ import annotations

import os

from ._host import import_host
from ._importing import importing

__all__ = ["register"]

_TAKE_OVER = "HAULWAY_VLLM_TAKE_OVER"
_registered = []  # vLLM's registration function that was called; at most one.


def register():
    """Registers the load format and the weight transfer engine "haulway" with
    vLLM, once in a process.

    With the variable HAULWAY_VLLM_TAKE_OVER=1 also "runai_streamer", the name
    that vLLM gives models at s3:// and the like; vLLM then warns that its own
    is replaced.

    Raises ImportError without vLLM. For one thread, as vLLM calls it.
    """
    loaders = import_host(
        "vllm.model_executor.model_loader", "haulway.vllm", "vllm", "0.33.0"
    )
    register_loader = loaders.register_model_loader
    if register_loader in _registered:
        return
    with importing:
        from ._vllm_loader import HaulwayModelLoader

    register_loader("haulway")(HaulwayModelLoader)
    import_host(
        "vllm.distributed.weight_transfer.factory", "haulway.vllm", "vllm", "0.33.0"
    ).WeightTransferEngineFactory.register_engine(
        "haulway", "haulway._vllm_weights", "HaulwayWeightTransferEngine"
    )
    if os.environ.get(_TAKE_OVER) == "1":
        register_loader("runai_streamer")(HaulwayModelLoader)
    _registered[:] = [register_loader]
