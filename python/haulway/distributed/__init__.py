"""Loads a checkpoint in all processes of a torch.distributed group together.

    import torch.distributed as dist
    import haulway.distributed

    dist.init_process_group("gloo")
    state = haulway.distributed.load("s3://bucket/model.safetensors")

Every byte is read from storage by one process, and reaches the others by
collectives of the group.

Any thread may call the functions of this module at any time, unless a
docstring says otherwise.
"""

from ._load import load

__all__ = ["load"]
