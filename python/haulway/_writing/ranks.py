"""A checkpoint of torch.distributed.checkpoint that several ranks save."""

# Design: rank 0 makes the folder and tells its name. Each rank writes its part;
# torch's save() fails on every rank if one fails. When all have ended, rank 0
# makes the folder a checkpoint. A rank that dies lets the others fail, so that
# the folder is removed.

from __future__ import annotations

import os

from .._errors import ArgumentTypeError, InvalidArgumentError, MismatchError
from .._importing import importing


class Ranks:
    """The ranks that save together; one, if torch.distributed is not used.

    The group is made at the first save, since that takes all ranks.
    """

    def __init__(self, group):
        with importing:
            import torch.distributed as dist

        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise ArgumentTypeError(
                f"group is {type(group).__name__}: expected a process group of "
                "torch.distributed", "kInvalidArgument",
            )
        self._dist = dist
        self._group = group
        self._is_one = group is None and not (
            dist.is_available() and dist.is_initialized())

    @property
    def is_first(self):
        return self._is_one or self._dist.get_rank(self._group) == 0

    def prepare(self, state, step, begin, metadata, saving, durability, copy):
        """Returns a function that saves the checkpoint on this rank.

        step: must be the same on all ranks.
        begin: makes the folder, on rank 0.
        copy: copy the tensors now.
        """
        if saving.keys() - {"threads"}:
            raise InvalidArgumentError(
                f"{min(saving.keys() - {'threads'})}: the format 'torch-dcp' "
                "has no such option", "kInvalidArgument",
            )
        if not self._is_one and self._group is None:
            # Its own, since other work uses the default one meanwhile.
            self._group = self._dist.new_group(backend="gloo")
        self._compare(step)
        if copy:
            state = _copied(state)
        new, folder = self._tell(begin if self.is_first else None,
                                 lambda made: made.folder)

        def run():
            try:
                self._write(state, folder, durability, saving)
                return self._tell(
                    (lambda: new.publish("torch-dcp", metadata))
                    if self.is_first else None)[1]
            finally:
                if new is not None:
                    new.discard()

        return run

    def _compare(self, step):
        """Raises MismatchError, on all ranks, if their steps differ."""
        if self._is_one:
            return
        steps = [None] * self._dist.get_world_size(self._group)
        self._dist.all_gather_object(steps, step, group=self._group)
        for rank, other in enumerate(steps):
            if other != steps[0]:
                raise MismatchError(
                    f"rank {rank} saves step {other!r}: expected {steps[0]!r}, "
                    "the step of rank 0", "kMismatch",
                )

    def _tell(self, work, sent=lambda made: made):
        """Runs a function on rank 0, and tells the result to all. Returns the
        result, on rank 0, and what was sent. Raises its error on all."""
        made, told = None, [None]
        if work is not None:
            try:
                made = work()
                told = [(True, sent(made))]
            except Exception as error:
                told = [(False, error)]
        if not self._is_one:
            # From rank 0 of the group; only this takes its number in the world.
            first = 0 if self._group is None else (
                self._dist.get_global_rank(self._group, 0))
            self._dist.broadcast_object_list(told, first, group=self._group)
        is_done, value = told[0]
        if not is_done:
            raise value
        return made, value

    def _write(self, state, folder, durability, saving):
        with importing:
            import torch.distributed.checkpoint as dcp

            from ..torch.dcp import Writer

        # What a rank on another machine wrote, rank 0 cannot sync.
        if self._is_one:
            durability = "none"
        elif not os.path.isdir(folder):
            raise InvalidArgumentError(
                f"the folder {folder} of rank 0 is not here: all ranks need one "
                "file system", "kInvalidArgument",
            )
        writer = Writer(folder, durability=durability,
                        thread_count=saving.get("threads") or 1)
        if self._is_one:
            # Without a process group that is the default; torch 2.6 has no word
            # for it.
            is_joined = self._dist.is_available() and self._dist.is_initialized()
            apart = {"no_dist": True} if is_joined else {}
            dcp.save(state, storage_writer=writer, **apart)
        else:
            dcp.save(state, storage_writer=writer, process_group=self._group)


def _copied(value):
    """Returns a state with copies of its tensors, in main memory if they are
    whole; parts of distributed ones stay where they are."""
    with importing:
        import torch

    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value))
    if hasattr(value, "state_dict"):
        return _copied(value.state_dict())
    return value
