"""haulway.verify and haulway.scan."""

from __future__ import annotations

from types import SimpleNamespace

from . import _haulway
from ._secrets import secret_arguments
from ._source import open_source


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


def verify(path, lenient=False, *, threads=None, key=None, passphrase=None):
    """Checks structure, every checksum and every cross-check of a file.

    Returns a report with `ok`, `findings` (each with code, message, byte),
    `checked_bytes` and `unchecked` (each with what, offset, bytes, and
    needs_key: whether it could be checked with the key). What is wrong
    with the file is in the report; Error is raised only where it cannot be
    read, or is no checkpoint. Without the key or passphrase of an encrypted
    file, its data is listed as unchecked.
    """
    source = open_source(path, mapped=False)
    secrets = secret_arguments(key, passphrase)
    return _report(_haulway.verify(source, lenient, threads or 0, **secrets))


def scan(path, *, allowed=()):
    """Lists every name that the pickles in a file hold, running nothing.

    Returns a report with `safe`, `pickles` (each with member, globals,
    opcodes) and `findings`. `allowed`: full names to allow as well.
    """
    report = _haulway.scan(open_source(path, mapped=False), list(allowed))
    opcodes = [pickle.pop("opcodes") for pickle in report["pickles"]]
    result = _report(report)
    for pickle, counts in zip(result.pickles, opcodes):
        pickle.opcodes = counts
    return result
