"""haulway.verify and haulway.scan."""

from __future__ import annotations

from types import SimpleNamespace

from . import _haulway
from ._options import OPENING, READING
from ._reading import Reading, reads


class Report(SimpleNamespace):
    """Attributes named as the fields that --json prints."""

    def to_dict(self):
        return _plain(self)


def _plain(value):
    if isinstance(value, SimpleNamespace):
        return {key: _plain(item) for key, item in vars(value).items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _report(value):
    if isinstance(value, dict):
        return Report(**{key: _report(item) for key, item in value.items()})
    if isinstance(value, list):
        return [_report(item) for item in value]
    return value


VERIFYING = {
    **OPENING, "threads": READING["threads"], "progress": READING["progress"]
}


@reads(VERIFYING)
def verify(path, lenient=None, **options):
    """Checks structure, every checksum and every cross-check of a file.

    path: a path, bytes, or a binary file object, read from its position.
    OPTIONS

    Returns a report with `ok`, `findings` (each with code, message, byte),
    `checked_bytes` and `unchecked` (each with what, offset, bytes, and
    needs_key: whether it could be checked with the key). What is wrong
    with the file is in the report; Error is raised only where it cannot be
    read, or is no checkpoint. Without the key or passphrase of an encrypted
    file, its data is listed as unchecked.
    """
    reading = Reading("verify", {**options, "lenient": lenient}, VERIFYING)
    return _report(_haulway.verify(
        reading.source(path), reading.opening(), reading.threads,
        reading.progress,
    ))


@reads(OPENING)
def scan(path, *, allowed=(), **options):
    """Lists every name that the pickles in a file hold, running nothing.

    path: a path, bytes, or a binary file object, read from its position.
    allowed: the same as safe_globals.
    OPTIONS

    Returns a report with `safe`, `pickles` (each with member, globals,
    opcodes) and `findings`.
    """
    if allowed:
        options["safe_globals"] = [
            *allowed, *(options.get("safe_globals") or ())
        ]
    reading = Reading("scan", options, OPENING)
    # A verdict must not depend on what else is imported.
    report = _haulway.scan(
        reading.source(path), reading.opening(torch_too=False)
    )
    opcodes = [pickle.pop("opcodes") for pickle in report["pickles"]]
    result = _report(report)
    for pickle, counts in zip(result.pickles, opcodes):
        pickle.opcodes = counts
    return result
