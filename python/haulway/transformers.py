"""Checkpoints of transformers' Trainer, checked when they are saved.

    from haulway.transformers import CheckpointCallback
    trainer = Trainer(..., callbacks=[CheckpointCallback()])
    latest = haulway.latest(output_dir)
    trainer.train(resume_from_checkpoint=latest and latest.path)

transformers is imported when a CheckpointCallback is made.
"""

# Design: on_save() comes when this process has written its files of the
# checkpoint. Those of other ranks may come later, so all ranks wait for one
# another, and then rank 0 checks the folder and writes the manifest.

from __future__ import annotations

import contextlib
import os

from . import _haulway
from ._config import given
from ._describing import described
from ._errors import CorruptError
from ._host import import_host, subclass_of
from ._importing import importing
from ._options import one_of

__all__ = ["CheckpointCallback"]


class CheckpointCallback:
    """A TrainerCallback that writes a manifest into each checkpoint, so that
    haulway.latest() knows it by sizes and digests.

    durability: "full": all files of the checkpoint survive a loss of power
        before the training goes on; "none": they may be lost. None: as
        configured.

    A checkpoint that is not whole when it was saved gets no manifest, and a
    RuntimeWarning says why. Threads: that of the Trainer. Raises
    InvalidArgumentError for a wrong argument.
    """

    def __new__(cls, *arguments, **options):
        base = import_host("transformers.trainer_callback",
                           "haulway.transformers", "transformers", "5.24.0")
        return object.__new__(subclass_of(cls, base.TrainerCallback))

    def __init__(self, *, durability=None):
        if durability is not None:
            one_of("full", "none")("durability", durability)
        self._durability = given("save", "durability", durability)

    def on_save(self, args, state, control, **others):
        """Checks the checkpoint that was saved, and writes its manifest.

        args, state, control: the Trainer's; others are not used.

        Raises Error if the manifest cannot be written.
        """
        with importing:
            import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            dist.barrier()
        if not state.is_world_process_zero:
            return
        step = state.global_step
        folder = os.path.join(args.output_dir, f"checkpoint-{step}")
        if not os.path.isdir(folder):
            return  # Only the model was saved, or to another place.
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(folder, "haulway.json"))  # It is an older save's.
        try:
            _haulway.run_latest(args.output_dir, False, step, "trainer", {}, 0)
        except CorruptError as error:
            with importing:
                import warnings

            warnings.warn(f"the checkpoint is not whole: {error}", RuntimeWarning,
                          stacklevel=2)
            return
        _haulway.run_manifest(folder, step, "trainer", "",
                              self._durability == "none", 0)

    def __repr__(self):
        return described(self, f"durability={self._durability!r}")
