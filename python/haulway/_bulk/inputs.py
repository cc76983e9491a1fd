"""Turns the names that a call was given into a stream of inputs.

A name is a file, a folder, a glob, a URL, "@FILE" for the names in a file, or
"-" for the names on standard input, one per line. A folder is listed only when
the stream reaches it.
"""

# Design: which files of a folder are inputs depends on the verb. Whether a file is
# a checkpoint or part of one is known only after the library's FolderFiles has
# seen all files of the folder. A local folder is therefore read twice and never
# kept in memory. A store lists the keys of a bucket in order, so the keys below
# a folder are adjacent: the names of a folder are kept until its last one has
# arrived, beyond a few thousand in a temporary file. Verbs that take every file
# keep none. A store whose first page is in no order is listed whole, and sorted.
#
# Listing the folders of a bucket one by one was left out: it takes a request
# per folder, while a flat listing returns a thousand keys per request. Listing
# a bucket twice was left out, too.

from __future__ import annotations

import errno
import fnmatch
import glob
import hashlib
import itertools
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterable
from typing import NamedTuple

from .. import _haulway
from .._errors import (
    ArgumentTypeError,
    CorruptError,
    Error,
    NotFoundError,
    SignatureError,
    make_error,
)
from .._reading.source import parts_of, path_of

_INDEX = re.compile(r".*\.index(\.[^.]+)?\.json", re.DOTALL)
# Files whose presence makes a folder a torch.distributed.checkpoint directory.
# If both exist, the first is opened.
_DIRECTORY = (".metadata", "__0.metadata")
_WILD = frozenset("*?[")
# Maximum size in bytes of an index that is read to find its shards.
_LARGEST_INDEX = 100 << 20
# Bytes of names of one bucket folder that are kept in memory.
_MOST_HELD = 1 << 20
# Suffix of an object's name if its key itself looks like it has a version.
_NO_VERSION = "?versionId="

# Which files of a folder are inputs: every file; every file except parts of
# torch.distributed.checkpoint directories; checkpoints only.
EVERY, WHOLE, CHECKPOINTS = "every", "whole", "checkpoints"


class Input(NamedTuple):
    """An input of a run.

    name: a path or a URL.
    base: the folder in which it was found, "." for a glob that begins in the
        current folder; "" if the caller named the input.
    size: bytes, shards included; 0 if only the worker can find out.
    stamp: the stamp_of() the file; None for a URL and for an unreadable file.
    error: why there is nothing to work on, else None.
    listed: whether it was found in a folder, whose files are all inputs.
    """

    name: str
    base: str = ""
    size: int = 0
    stamp: dict | None = None
    error: Error | None = None
    listed: bool = False


def is_url(name):
    return "://" in name


def check_inputs(inputs):
    """Raises for an argument that is neither a path nor an iterable."""
    if isinstance(inputs, (bytes, bytearray, memoryview)) or not isinstance(
            inputs, (str, os.PathLike, Iterable)):
        raise ArgumentTypeError(
            f"inputs is {type(inputs).__name__}: expected a path, or several",
            "kInvalidArgument",
        )


def expand(inputs, remote, taken):
    """Yields the Inputs that names refer to.

    inputs: a path or an iterable of paths.
    remote: the options for URLs, as the library takes them.
    taken: which files of a folder are inputs: EVERY, WHOLE or CHECKPOINTS.
    """
    if isinstance(inputs, (str, os.PathLike)):
        inputs = [inputs]
    for one in inputs:
        name = path_of(one, "an input")
        if name == "-":
            named = _names_in(sys.stdin.buffer)
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
            yield from _names_in(lines)
    except OSError as error:
        raise of_system(error, f"cannot read the list {path!r}") from error


def expand_signed(inputs, remote, signature):
    """Yields the signatures of signed models: the files called `signature`, of
    which each lies in the folder of its model; and for each folder with a
    checkpoint that no such file covers, an Input with an error.

    inputs, remote: as for expand().
    """
    endings = tuple(suffix for one in _haulway.formats() for suffix in one.suffixes)
    signed, others = set(), {}
    for one in expand(inputs, remote, EVERY):
        folder, _, name = one.name.rpartition("/")
        if one.error is not None:
            yield one
        elif name == signature:
            signed.add(folder)
            # What an earlier run found says nothing of the model.
            yield one._replace(stamp=None)
        elif name.endswith(endings):
            others.setdefault(folder, one)
    for folder, one in others.items():
        if not any(_lies_in(folder, model) for model in signed):
            yield Input(one.name, one.base, error=SignatureError(
                f"the model is not signed: expected {signature!r} in its folder; "
                f"of {one.name}", "kSignature"))


def _lies_in(folder, model):
    return folder == model or folder.startswith(f"{model}/" if model else "")


def _names_in(lines):
    return (path_of(line.rstrip(b"\r\n")) for line in lines)


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
    except OSError as error:  # Includes haulway.IoError and its subclasses.
        if isinstance(error, Error):
            yield Input(name, error=error)
        else:
            yield _unlisted(name, error)
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
    """Returns the Input for a local path.

    status: the result of os.stat(); None: not called yet.
    """
    try:
        stamp = stamp_of(name, status)
    except (OSError, ValueError):
        stamp = None  # The verb will report the error.
    return Input(name, base, stamp["size"] if stamp else 0, stamp)


def _unlisted(folder, error):
    return Input(folder, error=of_system(error, f"cannot list {folder!r}"))


def _none_in(what):
    return NotFoundError(f"{what}: expected an input, found none", "kNotFound")


def _fixed(pattern):
    """Returns the folder of a glob before its first wild card, with the
    slash."""
    fixed = pattern[: min(pattern.index(c) for c in _WILD if c in pattern)]
    return fixed[: fixed.rfind("/") + 1]


def _globbed(pattern, taken):
    found, base = False, _fixed(pattern) or "."
    for name in glob.iglob(pattern, recursive=True):
        if os.path.isdir(name):
            # A final ** also matches the files themselves.
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
    for one in _walk(folder, taken):
        found = True
        yield one
    if not found:
        raise _none_in(f"nothing to work on in folder {folder!r}")


def _walk(top, taken):
    """Yields the Inputs in a folder and its subfolders. A subfolder that cannot
    be listed is an Input with an error. Raises OSError if the folder itself
    cannot be listed."""
    nested = [(top, _entries(top, taken))]
    while nested:
        folder, entries = nested[-1]
        try:
            name, is_folder = next(entries, (None, False))
        except OSError as error:
            if len(nested) == 1:
                raise
            yield _unlisted(folder, error)
            name = None
        if name is None:
            nested.pop()
        elif is_folder:
            nested.append((name, _entries(name, taken)))
        else:
            yield local(name, top)._replace(listed=True)


def _entries(folder, taken):
    """Yields (path, whether it is a subfolder) of the inputs and the subfolders
    of a folder."""
    files = _haulway.FolderFiles({})
    if taken != EVERY:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _is(entry.is_file):
                    files.note(entry.path)
        for name in files.folders():
            yield name, False
    is_taken = _chooser(files, taken)
    with os.scandir(folder) as entries:
        for entry in entries:
            # Links to folders are not followed, as in all of Haulway.
            if entry.is_dir(follow_symlinks=False):
                # `haulway scan` passes it over, too.
                if taken != EVERY or entry.name != ".git":
                    yield entry.path, True
            elif not _is(entry.is_dir) if taken == EVERY else _is(entry.is_file):
                if is_taken(entry.path):
                    yield entry.path, False


def _is(test):
    """Returns the result of a test of a directory entry; False for a link that
    cannot be followed."""
    try:
        return test()
    except OSError:
        return False


def _chooser(files, taken):
    """Returns a predicate that tells whether a file is an input.

    files: FolderFiles that has seen all files of the folder.
    """
    if taken == CHECKPOINTS:
        files.read_indexes()
        return files.is_checkpoint
    return lambda name: not files.is_part(name)


def _in_bucket(url, remote, taken):
    pages = iter(_haulway.open_folder(url, remote))
    first = next(pages, [])
    if taken != EVERY and first != sorted(first, key=_key):
        # A store that lists keys as they come, such as a directory bucket.
        first = sorted(_haulway.list_files(url, remote), key=_key)
        pages = ()
    names = itertools.chain(first, itertools.chain.from_iterable(pages))
    if taken != EVERY:
        names = _by_folder(names, remote, taken)
    found = False
    for name in names:
        found = True
        yield Input(name, url) if is_url(name) else local(name, url)
    if not found:
        raise _none_in(f"nothing to work on in {url!r}")


def _key(name):
    return name.removesuffix(_NO_VERSION)


def _by_folder(names, remote, taken):
    """Yields the names of a store that are inputs. The inputs of a folder
    follow as soon as its last name has arrived."""
    held = []  # A stack of nested folders.
    before = ""
    for name in names:
        key = _key(name)
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
    """The names of a store's folder that have arrived so far."""

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
    """Yields the objects of a store that match a glob."""
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
    """Returns the shard names in an index given as JSON; none for other
    JSON."""
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
    """Returns the stamp of a local file, which changes when the file does: size
    and modification time and, for an index, a directory or a part of a model, a
    digest of the sizes and times of all other files. Raises OSError.

    status: the result of os.stat(); None: not called yet.
    """
    status = os.stat(name) if status is None else status
    stamp = {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
    folder, last = os.path.split(name)
    if os.path.isdir(name):
        folder, beside = name, sorted(os.listdir(name))
        stamp["size"] = 0
    elif last in _DIRECTORY:
        beside = sorted(set(os.listdir(folder or ".")) - {last})
    elif _INDEX.fullmatch(last):
        beside = sorted(shards_of(_read_index(name)))
    else:
        beside = [part for part in parts_of(last) if part != last]
        if not beside:
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


def of_system(error, what):
    """Returns the Error for an OSError. what: what could not be done."""
    code = {
        "FileNotFoundError": "kNotFound", "PermissionError": "kPermissionDenied",
    }.get(type(error).__name__, "kIoError")
    number = error.errno or errno.EIO
    return make_error(
        code, f"{what}: {os.strerror(number)} (errno {number})", None, number
    )
