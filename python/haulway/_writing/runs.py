"""haulway.Checkpoints and haulway.prune(): the checkpoints of a training run."""

# Design: the library makes the folder of a step, and makes it a checkpoint; what
# is in the folder is written by save(), by torch.distributed.checkpoint, or by
# the caller. The library computes the digests of the former while it writes
# them; all other files it syncs and digests at the end, at once.
#
# Old checkpoints are removed on a thread of its own, as their files may be many.
# What a thread could not do is raised by the next call.

from __future__ import annotations

import contextlib
import json
import math
import threading

from .. import _haulway
from .._config import given
from .._describing import described, public
from .._errors import InvalidArgumentError, NotFoundError
from .._importing import importing
from .._options import REMOTE, WRITING, check_flag, number, one_of, whole
from .._reading.call import Reading, reads
from .._reading.load import load
from .._reading.report import Report, as_report
from .._reading.runs import (
    RUN,
    entry_of,
    find_latest,
    layout_of,
    run_of,
)
from .call import Writing
from .ranks import Ranks

# How the file of a step is called; torch.distributed.checkpoint has its own
# names.
_FORMATS = {
    "pt": ("torch", "model.pt"),
    "safetensors": ("safetensors", "model.safetensors"),
    "torch-dcp": (None, None),
}


@reads(RUN)
def prune(dir_or_url, keep, dry_run=False, layout=None, **options):
    """Removes old checkpoints of a training run.

    dir_or_url: the folder of the run, or an s3:// name.
    keep: how many whole checkpoints stay, at least 1. One that is not whole
        does not count.
    dry_run: remove nothing.
    layout: as for latest().
    OPTIONS

    The newest whole checkpoint stays, and everything newer; if none is whole,
    everything stays. One of those that stay is verified with its digests.
    Nothing is removed through a symbolic link, and nothing whose name has no
    step. In a run of haulway.Checkpoints, what another program made is not
    removed. What transformers' Trainer names as the best stays, too.

    Returns a report with `removed`, `kept`, and `refused`: what should go and
    was not removed, each with `path`, `step` and `reason`. `failed` is True if
    the system did not let one of these be removed.

    Raises InvalidArgumentError if `keep` is less than 1, NotFoundError if there
    is no such folder, and Error if the run cannot be read.
    """
    reading = Reading("prune", options, RUN)
    return _prune(run_of(dir_or_url), number("keep", keep, least=1),
                  check_flag("dry_run", dry_run), None, layout_of(layout),
                  reading)


def _prune(name, keep, dry_run, trusted, layout, reading):
    return as_report(_haulway.run_prune(
        name, keep, dry_run, trusted, layout, reading.remote,
        reading.threads or 0,
    ))


class Checkpoints:
    """The checkpoints that a training loop saves in one folder.

        run = haulway.Checkpoints("run", keep=3, every=1000)
        latest = run.latest()
        if latest is not None:
            state = run.load(latest.step)
        for step in training:
            if run.due(step):
                run.save_async({"model": model.state_dict()}, step)
        run.close()

    dir_or_url: a folder, or an s3:// name.
    keep: how many checkpoints stay; 0: all.
    every: for due(): the number of steps from one checkpoint to the next.
    format: "pt", "safetensors" or "torch-dcp".
    verify: whether latest() and load() compare digests.
    durability: "full": a checkpoint that is saved survives a loss of power;
        "none": it may be lost with the machine. None: as configured.
    group: for "torch-dcp", the process group whose ranks save together. By
        default all ranks, if torch.distributed is initialized.
    options: the options of save() for the format, and those for reaching URLs.

    A checkpoint is a folder `step-N` with a manifest, `haulway.json`. It
    appears whole or not at all, also if the process is killed.

    Threads: one at a time. In a process that was forked, make another one.
    Raises InvalidArgumentError for a wrong argument.
    """

    def __init__(self, dir_or_url, *, keep=3, every=None, format="pt",
                 verify=True, durability=None, group=None, **options):
        self._name = run_of(dir_or_url)
        self._keep = number("keep", keep)
        self._every = None if every is None else number("every", every, least=1)
        self._format = format
        one_of(*_FORMATS)("format", format)
        self._verify = check_flag("verify", verify)
        if durability is not None:
            one_of("full", "none")("durability", durability)
        self._durability = given("save", "durability", durability)
        self._saving = {name: value for name, value in options.items()
                        if name in WRITING}
        self._reaching = {name: value for name, value in options.items()
                          if name not in WRITING}
        self._reading = Reading("Checkpoints", self._reaching, REMOTE)
        self._reading.threads = self._saving.get("threads")
        if format != "torch-dcp":
            Writing("save", self._saving).of_format(_FORMATS[format][0])
        if group is not None and format != "torch-dcp":
            raise InvalidArgumentError(
                f"group: the format {format!r} is saved by one process: expected "
                "'torch-dcp'", "kInvalidArgument",
            )
        self._ranks = Ranks(group) if format == "torch-dcp" else None
        self._in_flight = None  # The future of the newest background save.
        self._pruning = None  # The thread that removes old checkpoints.
        self._failures = []  # What it could not do.
        self._saved = None  # The newest step that this object saved.
        self._closed = False

    def due(self, step):
        """Returns whether a checkpoint is to be saved at this step: at every
        multiple of `every`, and without `every` at each step; never at 0.
        Raises nothing."""
        step = number("step", step)
        return step > 0 and step % (self._every or 1) == 0

    def save(self, state, step, *, metadata=None):
        """Saves a checkpoint, and returns its RunEntry.

        state: what save() takes for the format; for "torch-dcp" what
            torch.distributed.checkpoint.save() takes, on every rank.
        step: the step. An older save of the same step is replaced; what another
            program made is not.
        metadata: a dict that is stored in the manifest, as JSON, which has no
            NaN and no infinity.

        Returns when the checkpoint is whole, and on the disk unless durability
        is "none". Then old checkpoints are removed, but never this one, on
        another thread.

        Raises InvalidArgumentError if another program's file or folder has the
        name of the step, MismatchError, on all ranks, if their steps differ,
        and Error if it cannot be saved; the run is then as before. Raises the
        error of an earlier save_async(), and then saves nothing.
        """
        self._settle()
        work = self._prepare(state, step, metadata, copy=False)
        return self._end(work())

    def save_async(self, state, step, *, metadata=None):
        """Saves a checkpoint in the background.

        state, step, metadata: as for save(). The tensors are copied before this
            returns, so they may change.

        One save is in flight: the next one waits for it. Returns a
        concurrent.futures.Future of the RunEntry. If the save fails, the next
        save(), save_async(), wait() or close() raises its error, unless the
        future was asked.

        Raises at once if an argument is wrong.
        """
        self._settle()
        with importing:
            from . import background

        self._in_flight = background.start(
            self._name,
            lambda: self._prepare(state, step, metadata, copy=True), self._end,
        )
        return self._in_flight

    @contextlib.contextmanager
    def writing(self, step, *, metadata=None):
        """A context manager: gives a folder to fill with the files of a
        checkpoint, of any format, and makes it one if no exception is raised.

        step, metadata: as for save().

        Raises InvalidArgumentError if the folder is empty or holds what is
        neither a file nor a folder, and Error as save() does.
        """
        self._settle()
        stored = _json_of(metadata)
        new = self._begin(step)
        try:
            yield new.folder
            fields = new.publish("", stored)
        finally:
            new.discard()
        self._end(fields)

    def latest(self, verified=None):
        """Returns the newest whole checkpoint, a RunEntry; None if there is no
        checkpoint. haulway.latest() describes it.

        verified: True, or "sizes"; by default as `verify` of this object.

        Raises CorruptError, which says why for each, if none is whole.
        """
        return self._find(verified)

    def list(self):
        """Returns the checkpoints, a list of RunEntry, the oldest first. `good`
        tells whether names and sizes are those of the manifest. Raises Error if
        the run cannot be read."""
        return [entry_of(one) for one in _haulway.run_list(
            self._name, "haulway", self._reading.remote,
            self._reading.threads or 0)]

    def load(self, step=None, **options):
        """Loads a checkpoint as haulway.load() does.

        step: its step; by default that of latest().
        options: the options of haulway.load().

        Raises NotFoundError if there is no such checkpoint, and CorruptError if
        it is not whole.
        """
        if step is not None:
            step = number("step", whole("step", step))
        for left in range(3, 0, -1):
            entry = self._find(None, step)
            if entry is None:
                raise NotFoundError(
                    f"the run has no checkpoint{_of_step(step)}: save one "
                    f"first; of {self._name}", "kNotFound",
                )
            try:
                return load(entry.path, **{**self._reaching, **options})
            except NotFoundError:
                # Another process saved the step again, or removed it.
                if left == 1:
                    raise

    def prune(self, keep=None, dry_run=False):
        """Removes old checkpoints now; see haulway.prune().

        keep: how many stay; by default as `keep` of this object.
        dry_run: remove nothing.

        Returns the report of haulway.prune(). Raises as it does.
        """
        self._settle()
        keep = self._keep if keep is None else keep
        return _prune(self._name, number("keep", keep, least=1),
                      check_flag("dry_run", dry_run), None, "haulway",
                      self._reading)

    def wait(self):
        """Waits for the background save and for the removal of old
        checkpoints. Raises the error of either."""
        self._settle()

    def close(self):
        """Waits as wait() does, and ends the use of this object. May be called
        again. Raises the error of a background save."""
        self._closed, was_closed = True, self._closed
        if not was_closed:
            self._settle(closing=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.close()
            return
        with contextlib.suppress(Exception):
            self.close()  # What is raised is told already.

    def __repr__(self):
        return described(self, repr(self._name), f"format={self._format!r}",
                         f"keep={self._keep}")

    def _find(self, verified, step=None):
        return find_latest(
            self._name, self._verify if verified is None else verified,
            "haulway", self._reading, step,
        )

    def _settle(self, closing=False):
        """Waits for what runs in the background, and raises its error."""
        if self._closed and not closing:
            raise InvalidArgumentError(
                f"the run {self._name} is closed", "kInvalidArgument"
            )
        future, self._in_flight = self._in_flight, None
        if future is not None:
            with importing:
                from .background import unasked

            if error := unasked(future):
                raise error
        thread, self._pruning = self._pruning, None
        if thread is not None:
            thread.join()
        if self._failures:
            raise self._failures.pop()

    def _begin(self, step):
        return _haulway.run_begin(
            self._name, number("step", step), self._durability == "none",
            self._saving.get("threads") or 0, self._reading.remote,
        )

    def _prepare(self, state, step, metadata, copy):
        """Returns a function that saves a checkpoint, and returns its entry."""
        stored = _json_of(metadata)
        if self._ranks is not None:
            return self._ranks.prepare(
                state, step, lambda: self._begin(step), stored, self._saving,
                self._durability, copy,
            )
        with importing:
            from . import save as saving
        new = self._begin(step)
        format, file = _FORMATS[self._format]
        try:
            work = saving.prepare(
                state, f"{new.folder}/{file}", format,
                Writing("save", {**self._saving, "durability": self._durability}),
                copy=copy, target=new.file(file),
            )
        except BaseException:
            new.discard()
            raise

        def run():
            try:
                work()
                return new.publish(self._format, stored)
            finally:
                new.discard()

        return run

    def _end(self, fields):
        """Ends a save: removes old checkpoints, and returns the entry."""
        entry = fields if isinstance(fields, Report) else entry_of(fields)
        self._saved = entry.step
        is_first = self._ranks is None or self._ranks.is_first
        if self._keep and is_first:
            self._pruning = threading.Thread(
                target=self._prune_old, args=(entry.step, self._pruning),
                name="haulway-prune", daemon=False,
            )
            self._pruning.start()
        return entry

    def _prune_old(self, step, before):
        if before is not None:
            before.join()
        try:
            _prune(self._name, self._keep, False, step, "haulway",
                   self._reading)
        except Exception as error:
            self._failures.append(error)


def _of_step(step):
    return "" if step is None else f" of step {step}"


def _json_of(metadata):
    """Returns metadata as JSON; "" for None."""
    if metadata is None:
        return ""
    if not isinstance(metadata, dict):
        raise InvalidArgumentError(
            f"metadata is {type(metadata).__name__}: expected a dict",
            "kInvalidArgument",
        )
    try:
        if (found := _not_finite(metadata, "metadata")) is not None:
            raise ValueError(f"{found}: JSON has no such number")
        return json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"metadata cannot be stored as JSON: {error}", "kInvalidArgument"
        ) from None


def _not_finite(value, place):
    """Returns "metadata['loss'] is nan", or None if all numbers are finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{place} is {float(value)}"
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    else:
        return None
    found = (_not_finite(one, f"{place}[{key!r}]") for key, one in parts)
    return next((one for one in found if one is not None), None)


public("haulway", Checkpoints)
