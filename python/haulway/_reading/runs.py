"""haulway.latest(): the newest whole checkpoint of a training run."""

from __future__ import annotations

import json

from .. import _haulway
from .._describing import public
from .._errors import InvalidArgumentError
from .._options import READING, REMOTE, one_of
from .call import Reading, reads
from .report import Report
from .source import naming, path_of

RUN = {**REMOTE, "threads": READING["threads"]}


class RunEntry(Report):
    """A checkpoint of a training run.

    `path` is its folder or file, `step` its step (None if nothing says it),
    `layout` the program's way that it was saved in, `bytes` the size of its
    files, and `metadata` what was stored beside the tensors, or None. `good`
    says whether it is whole, and `reason` why it is not. `skipped` lists what
    latest() passed over to find it, each with `path`, `step` and `reason`. A
    plain value: threads may share one.
    """

    def __bool__(self):
        return True


def entry_of(fields, skipped=()):
    """Returns the RunEntry of the library's fields."""
    stored = fields.pop("metadata")
    return RunEntry(
        **fields, metadata=None if stored is None else json.loads(stored),
        skipped=[Report(**one) for one in skipped],
    )


def run_of(url):
    """Returns the name of a run."""
    with naming("dir_or_url"):
        return path_of(url)


def layout_of(layout):
    """Returns the layout as the library takes it."""
    return "" if layout is None else one_of(*_haulway.run_layouts)("layout", layout)


def digests_of(verified):
    """Returns whether digests are to be compared."""
    if verified is True or verified is False:
        return verified
    if verified == "sizes":
        return False
    raise InvalidArgumentError(
        f"verified is {verified!r}: expected True, or 'sizes' to compare names "
        "and sizes only", "kInvalidArgument",
    )


def find_latest(name, verified, layout, reading, step=None):
    """Returns the newest good checkpoint, or None if there is none at all."""
    entry, skipped = _haulway.run_latest(
        name, digests_of(verified), step, layout, reading.remote,
        reading.threads or 0,
    )
    return None if entry is None else entry_of(entry, skipped)


@reads(RUN)
def latest(dir_or_url, verified=True, layout=None, **options):
    """Finds the newest whole checkpoint of a training run.

    dir_or_url: the folder in which a program saves a checkpoint every some
        steps, or an s3:// name.
    verified: True compares the digests of the manifest or, where there is
        none, the checksums of the files; "sizes" compares names and sizes only.
    layout: the program that writes the run: "haulway", "torchtitan",
        "trainer", "accelerate", "megatron", "verl", "deepspeed", "nemo",
        "lightning" or "orbax"; by default as the names say.
    OPTIONS

    The run is listed once, and checked from the newest checkpoint on until one
    is whole. One that is half-written, cut or damaged is passed over; `skipped`
    says why. docs/runs.md has the rules.

    Returns a RunEntry, or None if there is no checkpoint.

    Raises CorruptError, which says why for each, if there are checkpoints and
    none is whole; UnsupportedError for a URL that cannot be listed; and Error
    if something cannot be read.
    """
    reading = Reading("latest", options, RUN)
    return find_latest(run_of(dir_or_url), verified, layout_of(layout), reading)


public("haulway", RunEntry)
