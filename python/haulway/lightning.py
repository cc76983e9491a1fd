"""Checkpoints of Lightning's Trainer and Fabric, by Haulway.

    from haulway.lightning import HaulwayCheckpointIO
    trainer = Trainer(plugins=[HaulwayCheckpointIO()])

Lightning is imported when a HaulwayCheckpointIO is made: `lightning`, or
`lightning_fabric` of `pytorch_lightning`.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import shutil
import sys

from . import _haulway
from ._describing import described, shown
from ._errors import ArgumentTypeError, UnsafeError
from ._host import import_host, subclass_of
from ._importing import imported, importing
from ._options import REMOTE, WRITING
from ._reading.remote import target_of
from ._reading.signed import refuse_unsigned
from ._reading.source import are_files, open_source, path_of

__all__ = ["HaulwayCheckpoint", "HaulwayCheckpointIO"]

_log = logging.getLogger("haulway")
_PREFIX = "haulway://"
# Modules that define a CheckpointIO; both may be installed.
_CKPT = "model.ckpt"
_CALLBACKS = ("pytorch_lightning.callbacks", "lightning.pytorch.callbacks")
_HOMES = ("lightning.fabric.plugins.io.checkpoint_io",
          "lightning_fabric.plugins.io.checkpoint_io")


class HaulwayCheckpointIO:
    """A CheckpointIO, alone or within AsyncCheckpointIO.

    options: durability, storage_alignment, compute_crc32, threads as for
        haulway.config.save, and the options for reaching URLs; see
        docs/saving.md and docs/loading.md.

    A save writes the same bytes as torch.save. The path or URL holds the old
    checkpoint until the new one is complete; when a save returns, the new one
    is on the disk, unless durability is "none". Only data is loaded.
    """

    def __init__(self, **options):
        self._options = _checked(options)
        for base in _bases():
            base.register(type(self))

    def __repr__(self):
        return described(self, ", ".join(
            f"{name}=" + (
                "..." if {**WRITING, **REMOTE}[name].secret else shown(value)
            )
            for name, value in self._options.items()
        ))

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        """Writes a checkpoint to a path or URL, making the folder if need be.

        storage_options: a dict of options for this save; they override the
            options of the class.

        If the checkpoint is not only data (it holds an object of a class of the
        program's own), torch.save writes the bytes, in memory first. Raises
        haulway.Error.
        """
        with importing:
            from ._config import for_saving
            from ._writing import save as _save

        if storage_options is not None and not isinstance(storage_options, dict):
            raise ArgumentTypeError(
                f"storage_options is {type(storage_options).__name__}: expected "
                "a dict of options for saving",
                "kInvalidArgument",
            )
        options = {**self._options, **_checked(storage_options or {})}
        path = _place(path)
        remote = self._remote(options)
        if are_files(path):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        target = target_of(path, remote)
        try:
            pickled = _save.pickle_of(checkpoint)
        except UnsafeError as error:
            _log.debug("checkpoint %s: pickled by torch: %s", path, error)
            _haulway.upload(
                open_source(_bytes_of(checkpoint)),
                _haulway.Target(path, remote),
                for_saving("", options), None,
            )
        else:
            _save.write(pickled, path, for_saving("torch", options),
                        target=target)

    def load_checkpoint(self, path, map_location="cpu", weights_only=None):
        """The dict that was saved, from a path or URL.

        map_location: as torch.load has it.
        weights_only: False lets torch.load run the code in a file that is not
            only data; otherwise such a file is refused with UnsafeError.

        Raises haulway.Error; NotFoundError is a FileNotFoundError.
        """
        with importing:
            import torch

            from .torch import load

        path = _place(path)
        remote = {name: self._options[name]
                  for name in REMOTE if name in self._options}
        try:
            return load(path, map_location, **remote)
        except UnsafeError as error:
            if weights_only is not False:
                raise
            _log.debug("checkpoint %s: loaded by torch: %s", path, error)
        refuse_unsigned("a file whose code torch.load runs")
        if are_files(path):
            return torch.load(path, map_location, weights_only=False)
        with importing:
            from ._reading.streams import SourceStream

        source = open_source(path, remote=self._remote(self._options))
        with SourceStream(source) as file:
            return torch.load(file, map_location, weights_only=False)

    def remove_checkpoint(self, path):
        """Removes the file or folder at `path`, if it is there; of a URL with
        fsspec. Raises OSError if it cannot be removed.
        """
        path = _place(path)
        if not are_files(path):
            fsspec = import_host(
                "fsspec", "removing a checkpoint at a URL", "fsspec", "2026.9.0"
            )
            files, name = fsspec.core.url_to_fs(path)
            if files.exists(name):
                files.rm(name, recursive=True)
        elif os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.remove(path)

    def teardown(self):
        """Nothing is left to be done. Raises nothing."""

    @staticmethod
    def _remote(options):
        with importing:
            from ._reading.call import Reading

        told = {name: options[name] for name in REMOTE if name in options}
        return Reading("HaulwayCheckpointIO", told, REMOTE).remote


class HaulwayCheckpoint:
    """A Callback of the Trainer that saves through haulway.Checkpoints.

        saving = HaulwayCheckpoint("run", keep=3, every_n_train_steps=1000)
        latest = saving.run.latest()
        trainer = Trainer(callbacks=[saving], enable_checkpointing=False)
        trainer.fit(model, ckpt_path=latest and latest.path)

    dir: the folder of the run, or an s3:// name.
    keep: how many checkpoints stay; 0: all.
    every_n_train_steps: the steps from one checkpoint to the next; None saves
        at the end of the training only.
    options: durability, verify, and those for reaching URLs, of
        haulway.Checkpoints.

    A step holds the Trainer's own checkpoint, with optimizers, loops and
    callbacks, as `model.ckpt`. While this callback is used, the Trainer also
    loads the folder of a step. `run` is the Checkpoints. Threads: that of the
    Trainer. Raises InvalidArgumentError for a wrong argument.
    """

    def __new__(cls, *arguments, **options):
        for name in _CALLBACKS:
            if name.partition(".")[0] in sys.modules:
                break
        base = import_host(name, "haulway.lightning", "lightning", "2.6.6")
        return object.__new__(subclass_of(cls, base.Callback))

    def __init__(self, dir, keep=3, every_n_train_steps=None, **options):
        with importing:
            from ._writing.runs import Checkpoints

        self.run = Checkpoints(dir, keep=keep, every=every_n_train_steps,
                               **options)
        self._every = every_n_train_steps
        self._saved = None

    def setup(self, trainer, pl_module, stage):
        """Lets the Trainer load the folder of a step, as Lightning calls it.

        trainer, pl_module, stage: Lightning's. Raises nothing.
        """
        plugin = trainer.strategy.checkpoint_io
        if not hasattr(plugin, "_haulway_folders"):
            load = plugin.load_checkpoint
            plugin._haulway_folders = True
            plugin.load_checkpoint = lambda path, *rest, **more: load(
                _file_in(path), *rest, **more)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        """Saves at every so many steps, as Lightning calls it.

        trainer, pl_module, outputs, batch, batch_idx: Lightning's. Raises Error
        if the step cannot be saved.
        """
        step = trainer.global_step
        if self._every and step != self._saved and self.run.due(step):
            self._save(trainer, step)

    def on_train_end(self, trainer, pl_module):
        """Saves the last step, as Lightning calls it, and waits until old ones
        are removed.

        trainer, pl_module: Lightning's. Raises Error if the step cannot be
        saved.
        """
        if trainer.global_step not in (0, self._saved):
            self._save(trainer, trainer.global_step)
        self.run.wait()

    def _save(self, trainer, step):
        if getattr(trainer, "fast_dev_run", False):
            return
        self._saved = step
        if not trainer.is_global_zero:
            folder = trainer.strategy.broadcast(None)
            trainer.save_checkpoint(os.path.join(folder, _CKPT))
            return
        with self.run.writing(step, metadata={"epoch": trainer.current_epoch}
                              ) as folder:
            trainer.strategy.broadcast(folder)
            # It ends with a barrier.
            trainer.save_checkpoint(os.path.join(folder, _CKPT))

    def __repr__(self):
        return described(self, repr(self.run), f"every={self._every}")


def _file_in(path):
    """Returns the checkpoint in the folder of a step, any other path as it
    is."""
    name = str(path)
    if name.endswith("/") and not are_files(name):
        return name + _CKPT
    inside = os.path.join(name, _CKPT)
    return inside if os.path.isfile(inside) else path


def _bases():
    """Returns the CheckpointIO classes of the modules that the program has
    imported, else of the first that is installed."""
    found = [name for name in _HOMES if name in sys.modules]
    for name in [] if found else _HOMES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            found = [name]
            break
    return [
        import_host(name, "haulway.lightning", "lightning", "2.6.6").CheckpointIO
        for name in found or _HOMES[:1]
    ]


def _checked(options):
    saving = {name: option for name, option in WRITING.items()
              if not option.of_call}
    known = {**saving, **REMOTE}
    for name, value in options.items():
        if name not in known:
            raise ArgumentTypeError(
                f"HaulwayCheckpointIO got an unexpected option {name!r}: "
                f"expected one of {', '.join(sorted(known))}",
                "kInvalidArgument",
            )
        if value is not None:
            known[name].check(name, value)
    return dict(options)


def _place(path):
    """Returns the local path that `path` names, or a URL. As for fsspec, ~ is
    the home folder."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(name, str):
        name = os.path.expanduser(name.removeprefix(_PREFIX))
    name = path_of(name).removeprefix(_PREFIX)
    return _haulway.local_path(name) or name


def _bytes_of(checkpoint):
    torch = imported("torch")
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    return buffer.getbuffer()
