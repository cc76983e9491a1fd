"""Reads and writes checkpoints of torch.distributed.checkpoint (DCP).

    import torch.distributed.checkpoint as dcp
    from haulway.torch.dcp import LoadPlanner, Reader, Writer

    dcp.save(state, storage_writer=Writer("step-1000"))
    dcp.load(state, storage_reader=Reader("step-1000"), planner=LoadPlanner())

The directories are those that torch writes and reads. Nothing in them is run,
and a save over an older checkpoint leaves the old one or the new one.
"""

from ._planner import LoadPlanner
from ._reader import Reader
from ._safetensors import SafetensorsReader, SafetensorsWriter
from ._writer import Writer

__all__ = [
    "LoadPlanner", "Reader", "SafetensorsReader", "SafetensorsWriter", "Writer",
]
