"""Writes dicts of tensors as files of formats that hold nothing else."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping

from .. import _haulway
from .._errors import InvalidArgumentError, UnsupportedError
from .._making.dtypes import is_array, name_of_numpy, name_of_torch
from .dense import check_tensor, memory_of, row_major, row_major_array, snapshot
from .ties import settle


def prepare(obj, target, format, writing, copy):
    """Returns a function that writes a dict of tensors to a path or through a
    function, in a format given by name; see save().

    copy: copy the tensors now, so that they may change later.
    """
    metadata, ties = writing.metadata, writing.ties
    if format == "npy" and not isinstance(obj, Mapping):
        obj = {"tensor": obj}  # The name of the array in such a file.
    if not isinstance(obj, Mapping):
        article = "an" if format.startswith("np") else "a"
        hint = ", whose state_dict() is one" if hasattr(obj, "state_dict") else ""
        raise InvalidArgumentError(
            f"{article} {format} file holds a dict of tensors: found "
            f"{type(obj).__name__}{hint}",
            "kInvalidArgument",
        )
    if metadata is not None:
        if any(f.name == format and f.values for f in _haulway.formats()):
            metadata = noted(metadata)
        else:
            check_strings(metadata)
    torch = sys.modules.get("torch")
    names, leaves = list(obj), list(obj.values())
    if format == "safetensors" and torch is not None and any(
            isinstance(leaf, torch.Tensor) for leaf in leaves):
        # transformers reads no file without it.
        metadata = {"format": "pt", **(metadata or {})}
    for name, leaf in zip(names, leaves):
        _check(torch, format, name, leaf)
    dropped, report = settle(
        leaves,
        "error" if ties is None else ties,
        format,
        lambda number: repr(names[number]),
        arrays=ties is not None,
    )
    kept = [i for i in range(len(names)) if i not in dropped]
    rows = (_dense(format, names[i], leaves[i]) for i in kept)
    if copy:
        dense = list(rows)
        memories = snapshot(
            [row[3] for row in dense], [leaves[i] for i in kept],
            writing.threads,
        )
        rows = [(*row[:3], memory) for row, memory in zip(dense, memories)]
    # No closure: save_async() clears the locals of a call that failed.
    return functools.partial(
        _write, target, format, rows, metadata, writing, report
    )


def _write(target, format, rows, metadata, writing, report):
    done = _haulway.write_tensors(
        target, format, rows, metadata, writing.engine(format),
        writing.progress,
    )
    return {**done, "ties": report} if report else done


def noted(metadata):
    """Returns metadata for a format with typed values: tuples of a value, its
    kind and the type to write. NumPy scalars and arrays determine the type."""
    if not isinstance(metadata, Mapping) or not all(
        isinstance(key, str) for key in metadata
    ):
        raise InvalidArgumentError(
            "metadata: expected a dict by strings", "kInvalidArgument"
        )
    return {key: _value(key, value) for key, value in metadata.items()}


def _value(key, value):
    type_name = ""
    if is_array(value):
        name = name_of_numpy(value.dtype)
        type_name = "" if name is None else name.lower()
        value = value.tolist()
    many = isinstance(value, (list, tuple))
    items = list(value) if many else [value]
    kinds = {_KINDS.get(type(item)) for item in items} or {"int"}
    if kinds == {"int", "float"}:
        items, kinds = [float(item) for item in items], {"float"}
    (kind,) = kinds if len(kinds) == 1 else (None,)
    if kind == "int" and any(item >= 2**63 for item in items):
        kind = "uint"
    least = 0 if kind == "uint" else -(2**63)
    if kind is None or kind in ("int", "uint") and not all(
        least <= item < 2**64 for item in items
    ):
        raise InvalidArgumentError(
            f"metadata holds {key!r}: {value!r}: expected text, a bool, a "
            "number of at most 64 bits, or a list of one of them",
            "kInvalidArgument",
        )
    return (items if many else items[0], kind, type_name)


_KINDS = {str: "str", bool: "bool", int: "int", float: "float"}


def check_strings(metadata, what="metadata"):
    if not isinstance(metadata, Mapping):
        raise InvalidArgumentError(
            f"{what}: expected a dict of strings, found "
            f"{type(metadata).__name__}",
            "kInvalidArgument",
        )
    for pair in metadata.items():
        if not all(isinstance(text, str) for text in pair):
            raise InvalidArgumentError(
                f"{what} holds {pair!r}: expected strings",
                "kInvalidArgument",
            )


def check_unicode(name):
    """Raises InvalidArgumentError for a name with lone surrogates, which no
    file can hold."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"a name is {name!r}: expected Unicode", "kInvalidArgument"
        ) from error


def _check(torch, format, name, value):
    """Raises unless `value` is a tensor with data and `name` is a str."""
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f"a name is {name!r}: expected a string", "kInvalidArgument"
        )
    check_unicode(name)
    if torch is not None and isinstance(value, torch.Tensor):
        check_tensor(repr(name), value, format, format)
        return
    if is_array(value):
        return
    raise InvalidArgumentError(
        f"{name!r} is {type(value).__name__}: expected a tensor or an array",
        "kInvalidArgument",
    )


def _dense(format, name, value):
    """Returns (name, dtype, shape, (owner, address, bytes)), dense and
    row-major."""
    if hasattr(value, "data_ptr"):
        dtype = name_of_torch(value.dtype)
        return name, dtype, value.shape, memory_of(row_major(value))
    dtype = name_of_numpy(value.dtype)
    if dtype is None:
        raise UnsupportedError(
            f"{name!r} has the dtype {value.dtype}, which {format} cannot "
            "hold",
            "kUnsupported",
        )
    array = row_major_array(value)
    return name, dtype, array.shape, memory_of(array)
