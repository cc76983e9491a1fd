"""Storages in the memory of a GPU, for torch."""

from __future__ import annotations

import torch

from .. import _haulway


def is_cuda(device):
    """Whether `device`, as torch.load's map_location, names one GPU."""
    return (
        isinstance(device, (str, torch.device))
        and torch.device(device).type == "cuda"
    )


def cuda_storages(core, rows, device, reading):
    """UntypedStorages on the GPU, parallel to the rows: in one allocation,
    which is freed when the last of them is gone.

    It is not torch's allocator's, but of the same context.
    """
    index = torch.device(device).index
    if index is None:
        index = torch.cuda.current_device() if torch.cuda.is_available() else 0
    memories, stats = _haulway.load_to_device(
        core, list(rows), _haulway.open_cuda(index), reading.engine,
        reading.progress,
    )
    reading.tell(stats)
    return [_storage_of(memory, index) for memory in memories]


def _storage_of(memory, index):
    if memory.nbytes == 0:
        return torch.UntypedStorage(0, device=f"cuda:{index}")
    return torch.from_dlpack(memory).untyped_storage()
