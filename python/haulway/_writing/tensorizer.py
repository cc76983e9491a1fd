"""Writes nested dicts and lists of tensors as tensorizer files."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping

from .. import _haulway, _secrets
from .._errors import InvalidArgumentError, UnsupportedError
from .._making.dtypes import is_array, name_of_numpy, name_of_torch
from .dense import check_tensor, memory_of, row_major, row_major_array, snapshot
from .flat import check_strings, check_unicode
from .ties import settle

_STATE_DICT = 2
# libsodium's "moderate" cost: 3 passes over 256 MiB.
_OPERATIONS = 3
_MEMORY_BYTES = 256 << 20


def spelled(path):
    return "".join(f"[{step!r}]" for step in path) or "the object"


def leaves(value, wrong):
    """Yields (path, leaf) for each leaf of nested dicts, lists and tuples. A
    leaf is requested only after the previous one has been processed, so that a
    mapping may make leaves on demand.

    wrong: the exception for keys that the format cannot hold.
    """
    pending, above = [iter([((), value)])], [None]
    while pending:
        path, value = next(pending[-1], (None, None))
        if path is None:
            pending.pop()
            above.pop()
            continue
        items = _items(path, value, wrong)
        if items is None:
            yield path, value
            continue
        if id(value) in above:
            raise InvalidArgumentError(
                f"{spelled(path)}: a container holds itself",
                "kInvalidArgument",
            )
        pending.append(items)
        above.append(id(value))


def _items(path, value, wrong):
    """Returns an iterator of (path, item) for a container; None if `value` is
    not one."""
    if isinstance(value, (list, tuple)):
        return (((*path, i), item) for i, item in enumerate(value))
    if not isinstance(value, Mapping):
        return None

    def checked():
        for key, item in value.items():
            if not isinstance(key, str):
                raise wrong(
                    f"{spelled(path)}: keys must be str, found "
                    f"{type(key).__name__}"
                )
            check_unicode(key)
            yield (*path, key), item
            del item  # Release its memory while the next one is made.

    return checked()


def inputs_of(obj, copy=False, *, ties="copy", threads=0):
    """Returns the arguments of write_tensorizer() for an object, and the report
    about tensors that share memory; see settle().

    copy: copy the object, so that it may change later.
    """
    paths, found = [], []
    for path, leaf in leaves(obj, InvalidArgumentError):
        if not path:
            raise InvalidArgumentError(
                "a tensorizer file holds dicts and lists of tensors: found "
                f"{type(leaf).__name__}",
                "kInvalidArgument",
            )
        paths.append(path)
        found.append((leaf, *_leaf(path, leaf)))
    dropped, report = settle(
        [row[0] for row in found], ties, "tensorizer",
        lambda number: spelled(paths[number]),
    )
    for number in dropped:
        # In a list, the next item would move to the dropped item's index.
        if not all(isinstance(step, str) for step in paths[number]):
            raise InvalidArgumentError(
                f"{spelled(paths[number])} stands in a list, and cannot be "
                "dropped from it",
                "kInvalidArgument",
            )
    kept = [i for i in range(len(paths)) if i not in dropped]
    data = [
        None if found[i][3] is None else memory_of(found[i][3]) for i in kept
    ]
    if copy:
        data = snapshot(data, [found[i][0] for i in kept], threads)
    return [
        (paths[i], _STATE_DICT, 0, found[i][1], found[i][2], memory)
        for i, memory in zip(kept, data)
    ], report


def _leaf(path, leaf):
    """Returns (dtype, shape, dense tensor or None for meta) of a tensor or
    array."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(leaf, torch.Tensor):
        check_tensor(spelled(path), leaf, "tensorizer files", "tensorizer")
        dense = None if leaf.is_meta else row_major(leaf)
        return name_of_torch(leaf.dtype), tuple(leaf.shape), dense
    if is_array(leaf):
        dense = row_major_array(leaf)
        dtype = name_of_numpy(dense.dtype)
        if dtype is None:
            raise UnsupportedError(
                f"{spelled(path)} has the dtype {dense.dtype}, which "
                "tensorizer files cannot hold",
                "kUnsupported",
            )
        return dtype, dense.shape, dense
    raise InvalidArgumentError(
        f"{spelled(path)} is {type(leaf).__name__}: expected a tensor or an "
        "array",
        "kInvalidArgument",
    )


def key_of(key, passphrase):
    """Returns the `key` and `derivation` arguments of write_tensorizer()."""
    _secrets.only_one(key, passphrase)
    if passphrase is None:
        return {"key": None if key is None else _secrets.key("key", key)}
    salt = os.urandom(_secrets.SALT_BYTES)
    derived = _haulway.tensorizer_derive_key(
        _secrets.passphrase("passphrase", passphrase), _OPERATIONS,
        _MEMORY_BYTES, salt,
    )
    return {"key": derived, "derivation": (_OPERATIONS, _MEMORY_BYTES, salt)}


def prepare(obj, target, writing, copy):
    """Returns a function that writes an object to a path or through a function;
    see flat.prepare()."""
    secret = key_of(writing.key, writing.passphrase)
    inputs, report = inputs_of(
        obj, copy, ties=writing.ties or "copy", threads=writing.threads)
    if writing.metadata is not None:
        check_strings(writing.metadata)
    engine = {
        **writing.engine("tensorizer"), "metadata": writing.metadata,
        "key": secret["key"],
    }
    return functools.partial(
        _write, target, inputs, engine, secret.get("derivation"),
        writing.progress, report,
    )


def _write(target, inputs, engine, derivation, progress, report):
    done = _haulway.write_tensorizer(
        target, inputs, engine, derivation, progress
    )
    return {**done, "ties": report} if report else done
