"""Selects tensors by patterns, and parts of tensors by index and by rank.

The library does the work, see haulway/select.h; this module converts types.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping
from typing import NamedTuple

from .. import _haulway
from .._errors import ArgumentTypeError, InvalidArgumentError
from .._making.dtypes import dtype_name, is_float
from .._making.objects import TensorInfo, TensorRequest
from .._options import whole


class Chosen(NamedTuple):
    """A selected tensor of a checkpoint, with its name."""

    name: str
    row: int
    info: TensorInfo


def matcher(include=None, exclude=None):
    """Returns the name filter for patterns, see haulway/select.h; None if there
    are no patterns, which selects everything."""
    if include is None and exclude is None:
        return None
    return _haulway.NameFilter(
        _patterns("include", include), _patterns("exclude", exclude) or [], ""
    )


def _patterns(what, patterns):
    if patterns is None:
        return None
    if isinstance(patterns, str):
        patterns = [patterns]
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
        if any("\ud800" <= char <= "\udfff" for char in pattern):
            raise InvalidArgumentError(
                f"{what} holds {pattern!r}: expected Unicode",
                "kInvalidArgument",
            )
    return patterns


def choose(core, include=None, exclude=None):
    """Returns the Chosen tensors of an open checkpoint in the checkpoint's
    order."""
    names = matcher(include, exclude)
    chosen = (
        zip(core.names(), core.rows()) if names is None
        else _haulway.choose(core, names)
    )
    return [Chosen(name, row, core.tensor(row)) for name, row in chosen]


def storages_of(chosen):
    """Returns the rows of the storages that the tensors use, ascending."""
    return sorted(
        {one.info.storage for one in chosen if one.info.storage is not None}
    )


def float_name(dtype):
    """Returns Haulway's name of the floating-point dtype that load(dtype=) and
    shard(dtype=) cast to. Raises InvalidArgumentError for any other dtype,
    which no floating-point tensor is cast to."""
    name = dtype_name(dtype)
    if not is_float(name):
        raise InvalidArgumentError(
            f"dtype is {dtype!r}: expected a floating-point dtype",
            "kInvalidArgument",
        )
    return name


def cast_of(info, dtype):
    """Returns the dtype that a tensor is loaded as: only floats are cast."""
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
    """Returns the Part of a tensor that an index selects, cast to a dtype."""
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
    """Returns the items of an index as a tuple; None if it is not a basic
    index.

    Numbers, slices with any step, `...` and None mean what they mean in NumPy.
    """
    items = index if isinstance(index, tuple) else (index,)
    for item in items:
        if item is None or item is Ellipsis or isinstance(item, slice):
            continue
        try:
            operator.index(item)
        except TypeError:
            return None
        # Arrays and booleans are advanced indices. To torch, its uint8 is one
        # of the booleans.
        is_truth = isinstance(item, bool) or str(
            getattr(item, "dtype", "")
        ).endswith(("bool", "torch.uint8"))
        if is_truth or len(getattr(item, "shape", ())) > 0:
            return None
    return items


def check_rank(rank, world, dim):
    for name, value, least in (("rank", rank, None), ("world", world, 1),
                               ("dim", dim, None)):
        if not -(1 << 63) <= whole(name, value, least) < 1 << 63:
            raise InvalidArgumentError(
                f"{name} is {value}: expected 64 bits", "kInvalidArgument"
            )
    _haulway.shard_index((), dim, rank, world)
