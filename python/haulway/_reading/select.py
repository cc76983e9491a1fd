"""Choosing: tensors by patterns, parts of them by indices and by ranks.

The library does it, see haulway/select.h; here are the types of Python.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import NamedTuple

from .. import _haulway
from .._errors import ArgumentTypeError
from .._making.dtypes import is_float
from .._making.objects import TensorInfo, TensorRequest
from .._options import whole


class Chosen(NamedTuple):
    """A tensor of a checkpoint, by the name that was chosen."""

    name: str
    row: int
    info: TensorInfo


def matcher(include=None, exclude=None):
    """The filter of names that patterns make, see haulway/select.h; None: all,
    where nothing is chosen by name."""
    if include is None and exclude is None:
        return None
    return _haulway.NameFilter(
        _patterns("include", include), _patterns("exclude", exclude) or [], ""
    )


def _patterns(what, patterns):
    if patterns is None:
        return None
    if isinstance(patterns, str):
        return [patterns]
    if isinstance(patterns, (os.PathLike, bytes, Mapping)):
        raise ArgumentTypeError(
            f"{what} is {type(patterns).__name__}: expected a glob, or several",
            "kInvalidArgument",
        )
    try:
        patterns = list(patterns)
    except TypeError as error:
        raise ArgumentTypeError(
            f"{what} is {type(patterns).__name__}: expected a glob, or several",
            "kInvalidArgument",
        ) from error
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ArgumentTypeError(
                f"{what} holds {pattern!r}: expected globs", "kInvalidArgument"
            )
    return patterns


def choose(core, include=None, exclude=None):
    """The Chosen tensors of an open checkpoint, in its order."""
    names = matcher(include, exclude)
    chosen = (
        zip(core.names(), core.rows()) if names is None
        else _haulway.choose(core, names)
    )
    return [Chosen(name, row, core.tensor(row)) for name, row in chosen]


def storages_of(chosen):
    """The rows of the storages that tensors lie in, ascending."""
    return sorted(
        {one.info.storage for one in chosen if one.info.storage is not None}
    )


def cast_of(info, dtype):
    """The name of the dtype a tensor is to have: only floats are cast."""
    return dtype if dtype is not None and is_float(info.dtype) else info.dtype


class Part(NamedTuple):
    """A part of a tensor.

    info: the TensorInfo of the part, over memory of its own.
    request: what brings it, or None where the whole tensor has to be loaded
        and indexed: for an index that is not a basic one, and for views that
        reach elements in several ways.
    """

    info: TensorInfo | None
    request: TensorRequest | None


def part_of(row, info, index, dtype=None):
    """The Part of a tensor that an index selects, cast to a dtype."""
    items = basic_index(index)
    if items is None:
        return Part(None, None)
    slices, shape, strides, is_larger = _haulway.select(
        items, info.shape, info.strides
    )
    dtype = cast_of(info, dtype)
    count = math.prod(info.shape)
    part = info._replace(
        offset=0,
        shape=shape,
        strides=strides,
        nbytes=math.prod(shape) * (info.nbytes // count if count else 1),
        dtype=dtype,
    )
    if is_larger:
        return Part(part, None)
    return Part(part, TensorRequest(row, slices, dtype))


def basic_index(index):
    """The items of an index, a tuple; None for one that is not a basic one.

    Numbers, slices with any step, `...` and None mean what they mean to NumPy.
    """
    items = index if isinstance(index, tuple) else (index,)
    for item in items:
        if item is None or item is Ellipsis or isinstance(item, slice):
            continue
        # Arrays, lists and booleans select in other ways.
        is_truth = isinstance(item, bool) or str(
            getattr(item, "dtype", "")
        ).endswith("bool")
        if is_truth or len(getattr(item, "shape", ())) > 0:
            return None
        if not hasattr(item, "__index__"):
            return None
    return items


def check_rank(rank, world, dim):
    for name, value, least in (("rank", rank, None), ("world", world, 1),
                               ("dim", dim, None)):
        whole(name, value, least)
    _haulway.shard_index((), dim, rank, world)
