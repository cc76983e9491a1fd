"""Turns the names that a call was given into a stream of inputs.

A name is a file, a folder, a glob, a URL, "@FILE" for the names in a file, or
"-" for the names on standard input, one per line. A folder is listed only when
the stream reaches it.
"""

# How: what a folder gives depends on the verb; which files are checkpoints, and
# which are parts of one, is known to the library's FolderFiles once it has met
# all files of the folder. A folder on a disk is therefore read twice, and never
# held. A store lists the keys of a bucket in their order, so that those below a
# folder come together: the names in a folder are held, from some thousands on in
# a temporary file, until its last one has come. Verbs that take every file hold
# none.
#
# Listing the folders of a bucket one by one was left out: it takes a request
# for each of them, where one brings a thousand keys. So was listing a bucket
# twice.

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterable
from typing import NamedTuple

from .. import _haulway
from .._errors import ArgumentTypeError, CorruptError, Error, NotFoundError, make_error
from .._reading.source import path_of

_INDEX = ".index.json"
# The files that open a directory of torch.distributed.checkpoint; the first
# counts where there are both.
_DIRECTORY = (".metadata", "__0.metadata")
_WILD = frozenset("*?[")
# An index is read into memory, to know its shards.
_LARGEST_INDEX = 100 << 20
# Names of a folder of a bucket that are held in memory, in bytes.
_MOST_HELD = 1 << 20
# What the name of an object ends in if a part of its key looks like a version.
_NO_VERSION = "?versionId="

# What folders give: every file; every file but for the parts of directories of
# torch.distributed.checkpoint; checkpoints.
EVERY, WHOLE, CHECKPOINTS = "every", "whole", "checkpoints"


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


def check_inputs(inputs):
    """Refuses what is no path and has no items."""
    if isinstance(inputs, (bytes, bytearray, memoryview)) or not isinstance(
            inputs, (str, os.PathLike, Iterable)):
        raise ArgumentTypeError(
            f"inputs is {type(inputs).__name__}: expected a path, or several",
            "kInvalidArgument",
        )


def expand(inputs, remote, taken):
    """Yields the Inputs that names lead to.

    inputs: a path or an iterable of paths.
    remote: how URLs are reached, as the library takes it.
    taken: what folders give: EVERY, WHOLE or CHECKPOINTS.
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
            yield from _expand(name, remote, taken, globs=True)
            continue
        for line in named:
            if line:
                yield from _expand(line, remote, taken, globs=False)


def _lines(path):
    try:
        with open(path, "rb") as lines:
            for line in lines:
                yield path_of(line.rstrip(b"\r\n"))
    except OSError as error:
        raise _of_system(error, f"cannot read the list {path!r}") from error


def _expand(name, remote, taken, globs):
    wild = globs and not _WILD.isdisjoint(name)
    try:
        name = _haulway.local_path(name) or name
        if is_url(name):
            if wild and _haulway.has_folders(name):
                yield from _matching(name, remote)
            elif _haulway.is_folder(name):
                yield from _in_bucket(name, remote, taken)
            else:
                yield Input(name)
        elif wild and not os.path.lexists(name):
            yield from _globbed(name, taken)
        else:
            yield from _named(name, taken)
    except OSError as error:  # haulway.IoError and its kin are Errors, too.
        if isinstance(error, Error):
            yield Input(name, error=error)
        else:
            yield Input(name, error=_of_system(error, f"cannot list {name!r}"))
    except Error as error:
        yield Input(name, error=error)


def _named(name, taken):
    """Yields the Inputs of a path without wild cards."""
    try:
        status = os.stat(name)
    except (OSError, ValueError):
        yield local(name)
        return
    if stat.S_ISDIR(status.st_mode):
        yield from _in_folder(name, taken)
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


def _globbed(pattern, taken):
    found, base = False, _fixed(pattern) or "."
    for name in glob.iglob(pattern, recursive=True):
        if os.path.isdir(name):
            # With ** its files match themselves.
            if not pattern.rstrip("/").endswith("**"):
                found = True
                yield from _in_folder(name, taken)
            continue
        found = True
        yield local(name, base)
    if not found:
        raise _none_in(f"nothing matches {pattern!r}")


def _in_folder(folder, taken):
    found = False
    for name in _walk(folder, taken):
        found = True
        yield local(name, folder)
    if not found:
        raise _none_in(f"nothing to work on in folder {folder!r}")


def _walk(folder, taken):
    """Yields the paths of the inputs in a folder and its subfolders."""
    files = _haulway.FolderFiles({})
    if taken != EVERY:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file():
                    files.note(entry.path)
        yield from files.folders()
    is_taken = _chooser(files, taken)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, taken)
            # A link to a folder is not followed, as everywhere.
            elif not entry.is_dir() if taken == EVERY else entry.is_file():
                if is_taken(entry.path):
                    yield entry.path


def _chooser(files, taken):
    """Returns a function that says whether a file is an input.

    files: FolderFiles that has met all files of the folder.
    """
    if taken == CHECKPOINTS:
        files.read_indexes()
        return files.is_checkpoint
    return lambda name: not files.is_part(name)


def _in_bucket(url, remote, taken):
    names = (
        name for page in _haulway.open_folder(url, remote) for name in page
    )
    if taken != EVERY:
        names = _by_folder(names, remote, taken)
    found = False
    for name in names:
        found = True
        yield Input(name, url) if is_url(name) else local(name, url)
    if not found:
        raise _none_in(f"nothing to work on in {url!r}")


def _by_folder(names, remote, taken):
    """Yields those names of a store that are inputs, a folder's as soon as its
    last name has come."""
    held = []  # A folder, one in it, one in that.
    before = ""
    for name in names:
        key = name.removesuffix(_NO_VERSION)
        if key < before:
            raise CorruptError(
                f"the list of keys is not in order: expected a key after "
                f"{before!r}, found {key!r}", "kCorrupt",
            )
        before = key
        folder = name[: name.rindex("/") + 1]
        while held and not folder.startswith(held[-1].folder):
            yield from held.pop().inputs(taken)
        if not held or held[-1].folder != folder:
            held.append(_Held(folder, remote))
        held[-1].add(name)
    while held:
        yield from held.pop().inputs(taken)


class _Held:
    """The names of a folder of a store, of which more may come."""

    def __init__(self, folder, remote):
        self.folder = folder
        self._files = _haulway.FolderFiles(remote)
        self._lines = tempfile.SpooledTemporaryFile(_MOST_HELD)

    def add(self, name):
        self._files.note(name)
        self._lines.write(json.dumps(name).encode() + b"\n")

    def inputs(self, taken):
        yield from self._files.folders()
        is_taken = _chooser(self._files, taken)
        with self._lines as lines:
            lines.seek(0)
            yield from filter(is_taken, map(json.loads, lines))


def _matching(pattern, remote):
    """The objects of a store that match a glob."""
    folder = _fixed(pattern)
    matches = re.compile(fnmatch.translate(pattern)).match
    found = False
    for page in _haulway.open_folder(folder, remote):
        for name in filter(matches, page):
            found = True
            yield Input(name, folder)
    if not found:
        raise _none_in(f"nothing matches {pattern!r}")


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
