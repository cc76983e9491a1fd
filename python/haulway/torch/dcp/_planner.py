"""A load planner that makes objects from data."""

# Design: a tensor that is one chunk and is wanted whole is planned here: one item,
# whose sizes are those of the metadata. Everything else (parts, DTensors,
# different keys) is left to torch's own planner. For thousands of tensors its
# search for overlaps takes longer than reading them.

from __future__ import annotations

import torch
from torch.distributed.checkpoint import default_planner
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    create_default_local_load_plan,
)
from torch.distributed.checkpoint.metadata import (
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
)

import haulway.torch
from haulway._describing import described

from ._metadata import no_gc


class LoadPlanner(DefaultLoadPlanner):
    """torch's DefaultLoadPlanner, whose load_bytes() executes nothing.

    haulway.torch.load() reads the entries that are not tensors (numbers, texts,
    lists, objects of classes that haulway.torch.safe_globals() allows). An
    entry that only code could make raises haulway.UnsafeError.

    For one load at a time, and for one thread.
    """

    def __repr__(self):
        return described(self, "load_bytes() executes nothing")

    def set_up_planner(self, *args, **kwargs):
        with no_gc():
            super().set_up_planner(*args, **kwargs)

    def create_local_plan(self):
        entries = self.metadata.state_dict_metadata
        if entries.keys() != self.state_dict.keys():
            return super().create_local_plan()
        items, rest = [], {}
        with no_gc():
            for name, value in self.state_dict.items():
                entry = entries[name]
                if _is_one_chunk(value, entry):
                    items.append(_whole(name, entry.chunks[0]))
                else:
                    rest[name] = value
        planned = create_default_local_load_plan(
            rest, self.metadata, not self.allow_partial_load
        )
        return LoadPlan(items + planned.items)

    def load_bytes(self, read_item, value):
        """Puts an entry that is not a tensor into the state; torch calls this.

        read_item: torch's ReadItem of the entry.
        value: its bytes, a file object.

        Raises UnsafeError for an entry that only code could make.
        """
        loaded = haulway.torch.load(value)
        name = read_item.dest_index.fqn
        if self.flatten_state_dict:
            default_planner.set_element(
                self.original_state_dict, self.mappings[name], loaded
            )
        else:
            self.state_dict[name] = loaded


def _is_one_chunk(value, entry):
    """Returns whether a plain tensor is wanted whole and stored in one
    chunk."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and type(entry) is TensorStorageMetadata
        and len(entry.chunks) == 1
        and entry.chunks[0].sizes == entry.size == value.shape
        and bool(entry.size.numel())
    )


def _whole(name, chunk):
    index = MetadataIndex(name, chunk.offsets, 0)
    return ReadItem(
        LoadItemType.TENSOR, index, chunk.offsets, index, chunk.offsets,
        chunk.sizes,
    )
