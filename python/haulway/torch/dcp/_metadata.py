"""The file .metadata of a DCP directory, as torch's Metadata."""

# How: the library parses the pickle, runs nothing, and checks that the parts
# agree: chunks that tile their tensors, and files that lie in the directory.
# Its facts become torch's own dataclasses here.

from __future__ import annotations

import contextlib
import gc

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from ... import _haulway
from ..._torch.factory import dtype_of

# By the numbers that a pickle has for them.
_MEMORY_FORMATS = (
    torch.contiguous_format, torch.channels_last, torch.preserve_format,
)


@contextlib.contextmanager
def no_gc():
    """A `with` block that makes many objects, none of which is garbage: looking
    for some, again and again as they grow in number, would take a fifth of the
    time of a load.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def read_metadata(source, opening):
    """torch's Metadata of a source that is a .metadata file.

    opening: options as _haulway.open_checkpoint() takes them.
    Raises UnsafeError, with the file and the byte, for a name that is none of
    those of a Metadata, CorruptError for parts that contradict each other, and
    UnsupportedError for chunks that were written through an extension.
    """
    facts, planner_data, storage_meta, version = _haulway.dcp_metadata(
        source, opening
    )
    with no_gc():
        entries, places = _entries_and_places(facts)
    return dcp.Metadata(
        entries, planner_data, places,
        storage_meta and dcp.StorageMeta(*storage_meta), version,
    )


def _entries_and_places(facts):
    """state_dict_metadata and storage_data, of what the library says."""
    entries, places = {}, {}
    for one in facts:
        name = one[0]
        if len(one) == 2:
            entries[name] = dcp.BytesStorageMetadata()
            places[dcp.MetadataIndex(name)] = _StorageInfo(*one[1])
            continue
        _, dtype, shape, grad, memory_format, pinned, stored = one
        chunks = []
        for number, (offsets, sizes, place) in enumerate(stored):
            offsets = torch.Size(offsets)
            chunks.append(
                dcp.ChunkStorageMetadata(offsets, torch.Size(sizes))
            )
            if place is not None:
                index = dcp.MetadataIndex(name, offsets, number)
                places[index] = _StorageInfo(*place)
        entries[name] = dcp.TensorStorageMetadata(
            dcp.TensorProperties(
                dtype_of(dtype), torch.strided, grad,
                _MEMORY_FORMATS[memory_format], pinned,
            ),
            torch.Size(shape), chunks,
        )
    return entries, places


def called(index):
    """What messages call the entry that a MetadataIndex means."""
    if index.offset is None:
        return index.fqn
    return f"{index.fqn} at {list(index.offset)}"
