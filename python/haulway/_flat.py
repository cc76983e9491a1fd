"""Dicts of tensors as files of formats that hold nothing else."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from . import _haulway
from ._dense import memory_of, row_major, row_major_array, snapshot
from ._dtypes import name_of_numpy
from ._errors import InvalidArgumentError, UnsupportedError
from ._ties import settle

OPTIONS = ("metadata", "alignment", "ties")


def prepare(obj, target, format, *, copy, threads, metadata=None,
            alignment=None, ties=None, **writing):
    """A function that writes a dict of tensors to a path or by a function, as
    a file of a format by name; see save()."""
    if not isinstance(obj, Mapping):
        raise InvalidArgumentError(
            f"a {format} file holds a dict of tensors: found "
            f"{type(obj).__name__}",
            "kInvalidArgument",
        )
    if metadata is not None:
        _check_strings(metadata)
    torch = sys.modules.get("torch")
    names, leaves = list(obj), list(obj.values())
    for name, leaf in zip(names, leaves):
        _check(torch, format, name, leaf)
    dropped, report = settle(
        [(repr(name), leaf) for name, leaf in zip(names, leaves)],
        "error" if ties is None else ties,
        format,
        arrays=ties is not None,
    )
    kept = [i for i in range(len(names)) if i not in dropped]
    dense = [_dense(torch, format, names[i], leaves[i]) for i in kept]
    if copy:
        memories = snapshot(
            [row[3] for row in dense], [leaves[i] for i in kept], threads
        )
        dense = [(*row[:3], memory) for row, memory in zip(dense, memories)]

    def write():
        done = _haulway.write_tensors(
            target, format, dense, metadata, alignment, threads=threads,
            **writing,
        )
        return {**done, "ties": report} if report else done

    return write


def _check_strings(metadata):
    if not isinstance(metadata, Mapping):
        raise InvalidArgumentError(
            f"metadata: expected a dict of strings, found "
            f"{type(metadata).__name__}",
            "kInvalidArgument",
        )
    for pair in metadata.items():
        if not all(isinstance(text, str) for text in pair):
            raise InvalidArgumentError(
                f"metadata holds {pair!r}: expected strings",
                "kInvalidArgument",
            )


def _check(torch, format, name, value):
    """Fails for what is no tensor with a name and data."""
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f"a name is {name!r}: expected a string", "kInvalidArgument"
        )
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise UnsupportedError(
                f"{name!r} is a sparse tensor, which {format} cannot hold",
                "kUnsupported",
            )
        if value.is_meta:
            raise UnsupportedError(
                f"{name!r} is a meta tensor, which has no data",
                "kUnsupported",
            )
        return
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        return
    raise InvalidArgumentError(
        f"{name!r} is {type(value).__name__}: expected a tensor or an array",
        "kInvalidArgument",
    )


def _dense(torch, format, name, value):
    """(name, dtype, shape, (owner, address, bytes)), row-major and dense."""
    if torch is not None and isinstance(value, torch.Tensor):
        from ._torch_factory import name_of_dtype

        dtype = name_of_dtype(value.dtype)
        return name, dtype, tuple(value.shape), memory_of(row_major(value))
    dtype = name_of_numpy(value.dtype)
    if dtype is None:
        raise UnsupportedError(
            f"{name!r} has the dtype {value.dtype}, which {format} cannot "
            "hold",
            "kUnsupported",
        )
    array = row_major_array(value)
    return name, dtype, array.shape, memory_of(array)
