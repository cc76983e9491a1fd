"""Reads the file .metadata of a DCP directory as torch's Metadata."""

# Design: the library parses the pickle, runs no code, and checks that the parts
# agree: chunks must tile their tensors, and files must be in the directory.
# Here the results become torch's own dataclasses.

from __future__ import annotations

import contextlib
import dataclasses
import gc

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from ... import _haulway
from ..._torch.factory import dtype_of

# Torch 2.6 has no field for modules.
_META_FIELDS = len(dataclasses.fields(dcp.StorageMeta))
# Torch records strides since 2.15.
_HAVE_STRIDES = hasattr(dcp.TensorProperties, "strides")

# Indexed by their number in the pickle.
_MEMORY_FORMATS = (
    torch.contiguous_format, torch.channels_last, torch.preserve_format,
)


@contextlib.contextmanager
def no_gc():
    """Returns a `with` block without garbage collection, for making many
    objects that are not garbage. Repeated collections would take a fifth of a
    load's time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def read_metadata(source, opening):
    """Reads a source, a .metadata file, as torch's Metadata. Returns also what
    _haulway.open_dcp() takes.

    opening: options as _haulway.open_checkpoint() takes them.

    Raises UnsafeError, with the file and the byte, for a name that a Metadata
    does not use, CorruptError for inconsistent parts, and UnsupportedError for
    chunks that were written through an extension other than zstd.
    """
    facts, planner_data, storage_meta, version, parsed = _haulway.dcp_metadata(
        source, opening
    )
    with no_gc():
        entries, places = _entries_and_places(facts)
    metadata = dcp.Metadata(
        entries, planner_data, places,
        storage_meta and dcp.StorageMeta(*storage_meta[:_META_FIELDS]),
    )
    if hasattr(dcp.Metadata, "version"):  # Torch 2.6 has no versions.
        metadata.version = version
    return metadata, parsed


def _entries_and_places(facts):
    """Returns state_dict_metadata and storage_data for the library's
    results."""
    entries, places = {}, {}
    for one in facts:
        name = one[0]
        if len(one) == 2:
            entries[name] = dcp.BytesStorageMetadata()
            places[dcp.MetadataIndex(name)] = storage_info(*one[1])
            continue
        _, dtype, shape, grad, memory_format, pinned, strides, stored = one
        chunks = []
        for number, (offsets, sizes, place) in enumerate(stored):
            offsets = torch.Size(offsets)
            chunks.append(
                dcp.ChunkStorageMetadata(offsets, torch.Size(sizes))
            )
            if place is not None:
                index = dcp.MetadataIndex(name, offsets, number)
                places[index] = storage_info(*place)
        properties = dcp.TensorProperties(
            dtype_of(dtype), torch.strided, grad,
            _MEMORY_FORMATS[memory_format], pinned,
        )
        if _HAVE_STRIDES:
            properties.strides = strides
        entries[name] = dcp.TensorStorageMetadata(
            properties, torch.Size(shape), chunks
        )
    return entries, places


def storage_info(path, offset, length, transforms=()):
    """Returns torch's _StorageInfo of an item, which extensions with these
    descriptors transformed."""
    info = _StorageInfo(path, offset, length)
    if transforms:  # Torch 2.6 has no field for them.
        info.transform_descriptors = list(transforms)
    return info


def transforms_of(info):
    """Returns the descriptors of the extensions that transformed an item."""
    return getattr(info, "transform_descriptors", None) or ()


def called(index):
    """Returns the name of a MetadataIndex's entry for messages."""
    if index.offset is None:
        return index.fqn
    return f"{index.fqn} at {list(index.offset)}"
