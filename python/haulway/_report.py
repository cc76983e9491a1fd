"""haulway.verify and haulway.scan."""

from __future__ import annotations

import os
from types import SimpleNamespace

from . import _haulway
from ._options import OPENING, READING
from ._reading import Reading, reads

# The worse, the later.
_VERDICTS = ("SAFE", "UNKNOWN", "UNSAFE")


class Report(SimpleNamespace):
    """Attributes named as the fields that --json prints.

    The report of a file is true if nothing is wrong with it: if it is `ok`, of
    verify(), or `safe`, of scan().
    """

    def __bool__(self):
        return bool(getattr(self, "safe", getattr(self, "ok", True)))

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
def scan(path, *, allowed=(), allow=(), **options):
    """Says whether a file would run code in those who read it.

    Answers for pickle, torch.load(weights_only=False), torch.jit.load,
    torch.export.load, torch.package, joblib, numpy with allow_pickle, and for
    what opens zips and tars: by content, and running nothing.

    path: a path, bytes, a binary file object, read from its position, or a
        list of paths. Of a folder every file is scanned.
    allow: names that may stand in pickles, as "module.name"; `allowed` and
        safe_globals are the same.
    OPTIONS

    Returns a report with `verdict` ("SAFE", "UNSAFE", "UNKNOWN"), `safe`
    (true only for SAFE, and what the report is where a bool is wanted),
    `reason`, `byte`, `pickles` (each with member, globals, opcodes) and
    `findings`. Of several files it has the verdict of the worst, and `files`,
    a report of each.
    """
    more = [*allow, *allowed]
    if more:
        options["safe_globals"] = [
            *more, *(options.get("safe_globals") or ())
        ]
    reading = Reading("scan", options, OPENING)
    # A verdict must not depend on what else is imported.
    opening = reading.opening(torch_too=False)
    if not isinstance(path, (str, os.PathLike, list, tuple)):
        return _scanned(_haulway.scan(reading.source(path), opening))
    paths = path if isinstance(path, (list, tuple)) else [path]
    files = [
        _scanned(report)
        for one in paths
        for report in _haulway.scan_path(os.fsencode(one), opening)
    ]
    if len(files) == 1 and not isinstance(path, (list, tuple)):
        return files[0]
    return _of_several(path, files)


def _scanned(report):
    # Opcodes have names that need not be attributes.
    opcodes = [pickle.pop("opcodes") for pickle in report["pickles"]]
    result = _report(report)
    for pickle, counts in zip(result.pickles, opcodes):
        pickle.opcodes = counts
    return result


def _of_several(path, files):
    worst = max(
        files, key=lambda report: _VERDICTS.index(report.verdict), default=None
    )
    several = isinstance(path, (list, tuple))
    if worst is None:
        reason = "no files"
    elif worst.safe:
        reason = f"all {len(files)} files are SAFE"
    else:
        reason = f"{worst.reason}; of {worst.file}"
    return Report(
        file=None if several else os.fspath(path),
        verdict="UNKNOWN" if worst is None else worst.verdict,
        safe=worst is not None and worst.safe,
        reason=reason,
        byte=None if worst is None else worst.byte,
        pickles=[pickle for report in files for pickle in report.pickles],
        findings=[found for report in files for found in report.findings],
        files=files,
    )
