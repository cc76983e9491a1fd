"""Reads and writes checkpoints of torch.distributed.checkpoint (DCP).

    import torch.distributed.checkpoint as dcp
    from haulway.torch.dcp import LoadPlanner, Reader, Writer

    dcp.save(state, storage_writer=Writer("step-1000"))
    dcp.load(state, storage_reader=Reader("step-1000"), planner=LoadPlanner())

The directories have the format that torch writes and reads. No code in them is
run. If a save over an older checkpoint is interrupted, the old checkpoint or the
new one remains.
"""

from ._planner import LoadPlanner
from ._reader import Reader
from ._safetensors import SafetensorsReader, SafetensorsWriter
from ._writer import Writer

__all__ = [
    "LoadPlanner", "Reader", "SafetensorsReader", "SafetensorsWriter", "Writer",
]
