"""Turns the names that a call was given into a stream of inputs.

A name is a file, a folder, a glob, a URL, "@FILE" for the names in a file, or
"-" for the names on standard input, one per line. A folder is listed only when
the stream reaches it.
"""

# How: a folder gives each of its files for verbs that judge files (scan and
# verify), and its checkpoints for the others: files with the suffix of a
# format, an index in place of its shards, the `.metadata` of a directory of
# torch.distributed.checkpoint in place of its data. The rule is that of
# haulway/open.h, but here a folder is read twice and never held, since
# ListCheckpoints() returns a list of all of them. A store lists a bucket as a
# whole.

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import os
import stat
import sys
from typing import NamedTuple

from .. import _haulway
from .._errors import Error, NotFoundError, make_error
from .._reading.source import path_of

_INDEX = ".index.json"
# The files that open a directory of torch.distributed.checkpoint; the first
# counts where there are both.
_DIRECTORY = (".metadata", "__0.metadata")
_WILD = frozenset("*?[")
# An index is read into memory, to know its shards.
_LARGEST_INDEX = 100 << 20


class Input(NamedTuple):
    """An input of a run.

    name: a path or a URL.
    base: the folder in which it was found, "." for a glob that begins in the
        current folder; "" if the input was named.
    size: bytes, shards included; 0 if only the worker can find out.
    stamp: the stamp_of() the file; None for a URL and for an unreadable file.
    error: why there is nothing to work on, else None.
    """

    name: str
    base: str = ""
    size: int = 0
    stamp: dict | None = None
    error: Error | None = None


def is_url(name):
    return "://" in name


def expand(inputs, remote, each_file):
    """Yields the Inputs that names lead to.

    inputs: a path or an iterable of paths.
    remote: how URLs are reached, as the library takes it.
    each_file: folders give every file, not only checkpoints.
    """
    if isinstance(inputs, (str, os.PathLike)):
        inputs = [inputs]
    for one in inputs:
        name = path_of(one, "an input")
        if name == "-":
            named = (path_of(line.rstrip(b"\n")) for line in sys.stdin.buffer)
        elif name.startswith("@"):
            named = _lines(name[1:])
        else:
            yield from _expand(name, remote, each_file, globs=True)
            continue
        for line in named:
            if line:
                yield from _expand(line, remote, each_file, globs=False)


def _lines(path):
    try:
        with open(path, "rb") as lines:
            for line in lines:
                yield path_of(line.rstrip(b"\r\n"))
    except OSError as error:
        raise _of_system(error, f"cannot read the list {path!r}") from error


def _expand(name, remote, each_file, globs):
    wild = globs and not _WILD.isdisjoint(name)
    try:
        if is_url(name):
            if wild and name.startswith("s3://"):
                yield from _matching(name, remote)
            elif _haulway.is_folder(name):
                yield from _in_bucket(name, remote, each_file)
            else:
                yield Input(name)
        elif wild and not os.path.lexists(name):
            yield from _globbed(name, each_file)
        else:
            yield from _named(name, each_file)
    except OSError as error:  # haulway.IoError and its kin are Errors, too.
        if isinstance(error, Error):
            yield Input(name, error=error)
        else:
            yield Input(name, error=_of_system(error, f"cannot list {name!r}"))
    except Error as error:
        yield Input(name, error=error)


def _named(name, each_file):
    """Yields the Inputs of a path without wild cards."""
    try:
        status = os.stat(name)
    except (OSError, ValueError):
        yield local(name)
        return
    if stat.S_ISDIR(status.st_mode):
        yield from _in_folder(name, each_file)
    else:
        yield local(name, status=status)


def local(name, base="", status=None):
    """The Input of a path.

    status: what os.stat() says of it; None: not asked yet.
    """
    try:
        stamp = stamp_of(name, status)
    except (OSError, ValueError):
        stamp = None  # The verb says what is wrong.
    return Input(name, base, stamp["size"] if stamp else 0, stamp)


def _none_in(what):
    return NotFoundError(f"{what}: expected an input, found none", "kNotFound")


def _fixed(pattern):
    """The folder of a glob before its first wild card, with the slash."""
    fixed = pattern[: min(pattern.index(c) for c in _WILD if c in pattern)]
    return fixed[: fixed.rfind("/") + 1]


def _globbed(pattern, each_file):
    found, base = False, _fixed(pattern) or "."
    for name in glob.iglob(pattern, recursive=True):
        if os.path.isdir(name):
            # With ** its files match themselves.
            if not pattern.rstrip("/").endswith("**"):
                found = True
                yield from _in_folder(name, each_file)
            continue
        found = True
        yield local(name, base)
    if not found:
        raise _none_in(f"nothing matches {pattern!r}")


def _in_folder(folder, each_file):
    found = False
    for name in _walk(folder, each_file):
        found = True
        yield local(name, folder)
    if not found:
        raise _none_in(f"nothing to work on in folder {folder!r}")


def _walk(folder, each_file):
    """Yields the paths of the inputs in a folder and its subfolders."""
    is_input = None if each_file else _checkpoints(
        lambda: (one.name for one in os.scandir(folder) if one.is_file()),
        lambda name: _read_index(os.path.join(folder, name)),
    )
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, each_file)
            # A link to a folder is not followed, as everywhere.
            elif each_file and not entry.is_dir() or (
                is_input is not None and entry.is_file()
                and is_input(entry.name)
            ):
                yield entry.path


def _in_bucket(url, remote, each_file):
    names = _haulway.list_files(url, remote)
    if not each_file:
        folders = {}
        for name in names:
            folder, _, last = name.rpartition("/")
            folders.setdefault(folder, []).append(last)
        names = [
            f"{folder}/{name}"
            for folder, beside in folders.items()
            for name in filter(
                _checkpoints(
                    lambda beside=beside: beside,
                    lambda name, folder=folder: _fetch_index(
                        f"{folder}/{name}", remote
                    ),
                ),
                beside,
            )
        ]
    if not names:
        raise _none_in(f"nothing to work on in {url!r}")
    for name in names:
        yield Input(name, url)


def _matching(pattern, remote):
    """The objects of a store that match a glob."""
    folder = _fixed(pattern)
    found = fnmatch.filter(_haulway.list_files(folder, remote), pattern)
    if not found:
        raise _none_in(f"nothing matches {pattern!r}")
    for name in found:
        yield Input(name, folder)


def _checkpoints(names, read_index):
    """Returns a function that says whether a name in a folder is an input.

    names: returns the names, each time it is called.
    read_index: returns the JSON of an index by its name, or None.
    """
    shards = set()
    for name in names():
        if name in _DIRECTORY:
            shards.add("meta.pt")
            if name == _DIRECTORY[0]:
                shards.add(_DIRECTORY[1])
        elif name.endswith(_INDEX):
            shards |= shards_of(read_index(name))

    def is_input(name):
        if name in shards:
            return False
        return (
            name in _DIRECTORY or name.endswith(_INDEX)
            or _haulway.format_by_suffix(os.fsencode(name)) is not None
        )

    return is_input


def shards_of(index):
    """The names of shards in the JSON of an index; empty for other JSON."""
    weights = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weights, dict):
        return set()
    return {name for name in weights.values() if isinstance(name, str)}


def _read_index(path):
    try:
        with open(path, "rb") as file:
            return json.loads(file.read(_LARGEST_INDEX))
    except (OSError, ValueError):
        return None


def _fetch_index(url, remote):
    try:
        source = _haulway.open_source(url, False, remote)
        data = bytearray(min(source.size, _LARGEST_INDEX))
        _haulway.read_many(source, [(0, data)])
        return json.loads(data)
    except (Error, ValueError):
        return None


def stamp_of(name, status=None):
    """The stamp of a local file, which changes with the file: size and time of
    change and, for an index or a directory, a digest over the sizes and times of
    all its files. Raises OSError.

    status: what os.stat() says of the file; None: not asked yet.
    """
    status = os.stat(name) if status is None else status
    stamp = {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
    folder, last = os.path.split(name)
    if os.path.isdir(name):
        folder, beside = name, sorted(os.listdir(name))
        stamp["size"] = 0
    elif last in _DIRECTORY:
        beside = sorted(set(os.listdir(folder or ".")) - {last})
    elif last.endswith(_INDEX):
        beside = sorted(shards_of(_read_index(name)))
    else:
        return stamp
    digest = hashlib.sha256()
    for part in beside:
        try:
            status = os.stat(os.path.join(folder, part))
        except (OSError, ValueError):
            digest.update(f"{part!a} is missing\n".encode())
            continue
        stamp["size"] += status.st_size
        digest.update(
            f"{part!a} {status.st_size} {status.st_mtime_ns}\n".encode()
        )
    stamp["parts"] = digest.hexdigest()
    return stamp


def _of_system(error, what):
    code = {
        "FileNotFoundError": "kNotFound", "PermissionError": "kPermissionDenied",
    }.get(type(error).__name__, "kIoError")
    return make_error(
        code, f"{what}: {os.strerror(error.errno or 5)}", None, error.errno or 5
    )
