"""A planner of loads that makes objects from data."""

from __future__ import annotations

from torch.distributed.checkpoint import default_planner
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

import haulway.torch


class LoadPlanner(DefaultLoadPlanner):
    """torch's DefaultLoadPlanner, whose load_bytes() executes nothing.

    Entries that are no tensors (numbers, texts, lists, objects of classes that
    haulway.torch.safe_globals() allows) are read by haulway.torch.load(). What
    only code could make raises haulway.UnsafeError.
    """

    def load_bytes(self, read_item, value):
        loaded = haulway.torch.load(value)
        name = read_item.dest_index.fqn
        if self.flatten_state_dict:
            default_planner.set_element(
                self.original_state_dict, self.mappings[name], loaded
            )
        else:
            self.state_dict[name] = loaded
