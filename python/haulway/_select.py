"""Choosing: tensors by globs, parts of them by indices and by ranks."""

from __future__ import annotations

import fnmatch
import operator
import os
from collections.abc import Mapping
from typing import NamedTuple

from ._dtypes import is_float
from ._errors import ArgumentTypeError, InvalidArgumentError
from ._objects import TensorInfo, TensorRequest, dense_strides


class Chosen(NamedTuple):
    """A tensor of a checkpoint, by the name that was chosen."""

    name: str
    row: int
    info: TensorInfo


def matcher(include=None, exclude=None):
    """A function of names: whether globs select one. What is excluded is not,
    come what may. None: all, where nothing is chosen by name."""
    if include is None and exclude is None:
        return None
    wanted = _globs("include", include)
    unwanted = _globs("exclude", exclude)

    def matches(name):
        if unwanted is not None and _any(name, unwanted):
            return False
        return wanted is None or _any(name, wanted)

    return matches


def _globs(what, patterns):
    if patterns is None:
        return None
    if isinstance(patterns, str):
        return [patterns]
    if isinstance(patterns, (os.PathLike, bytes, Mapping)):
        raise ArgumentTypeError(
            f"{what} is {type(patterns).__name__}: expected a glob, or several",
            "kInvalidArgument",
        )
    patterns = list(patterns)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ArgumentTypeError(
                f"{what} holds {pattern!r}: expected globs", "kInvalidArgument"
            )
    return patterns


def _any(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def choose(core, include=None, exclude=None):
    """The Chosen tensors of an open checkpoint, in its order."""
    matches = matcher(include, exclude)
    return [
        Chosen(name, row, core.tensor(row))
        for name, row in zip(core.names(), core.rows())
        if matches is None or matches(name)
    ]


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
    selection = select(index, info.shape, info.strides)
    if selection is None:
        return Part(None, None)
    dtype = cast_of(info, dtype)
    part = selected_info(info, selection)._replace(dtype=dtype)
    if _overlaps(info, selection):
        return Part(part, None)
    return Part(part, TensorRequest(row, selection.slices, dtype))


def index_of_rank(shape, dim, rank, world):
    """The index of the rows that a rank gets of a tensor of this shape: all
    where it has no such dimension. The first ranks get one more if need be."""
    if not -len(shape) <= dim < len(shape):
        return ()
    each, more = divmod(shape[dim], world)
    start = rank * each + min(rank, more)
    stop = start + each + (rank < more)
    return (slice(None),) * (dim % len(shape)) + (slice(start, stop),)


def check_rank(rank, world, dim):
    for name, value in (("rank", rank), ("world", world), ("dim", dim)):
        if not hasattr(value, "__index__"):
            raise ArgumentTypeError(
                f"{name} is {value!r}: expected a number", "kInvalidArgument"
            )
    if world < 1 or not 0 <= rank < world:
        raise InvalidArgumentError(
            f"rank is {rank} of {world}: expected 0 to {world - 1}",
            "kInvalidArgument",
        )


class Selection(NamedTuple):
    """What an index selects of a shape.

    slices: (start, stop, step) of every dimension that is read.
    counts: how many indices each of them holds.
    repeats: of each dimension, 0 if it was read, else how often its one index
        is repeated: it has stride 0 in the file.
    axes: of the result, the dimension that each one is, or None for a new one.
    """

    slices: list
    counts: list
    repeats: list
    axes: list


def select(index, shape, strides):
    """The Selection, or None for an index that is not a basic one.

    Numbers, slices with any step, `...` and None mean what they mean to NumPy.
    Raises IndexError as NumPy does.
    """
    parts = _parts(index, len(shape))
    if parts is None:
        return None
    slices, counts, repeats, axes = [], [], [], []
    for part in parts:
        if part is None:
            axes.append(None)
            continue
        dim = len(slices)
        size = shape[dim]
        if isinstance(part, slice):
            start, stop, step = part.indices(size)
            count = len(range(start, stop, step))
            axes.append(dim)
        else:
            number = operator.index(part)
            start = number + size if number < 0 else number
            if not 0 <= start < size:
                raise IndexError(
                    f"index {number} is out of bounds for axis {dim} with "
                    f"size {size}"
                )
            count = 1
        repeat = 0
        if count > 1 and strides[dim] == 0:
            repeat, count = count, 1
        if count < 2:
            # Steps may be larger than any number that a tensor needs.
            start = start if count else 0
            stop, step = start + count, 1
        slices.append((start, stop, step))
        counts.append(count)
        repeats.append(repeat)
    return Selection(slices, counts, repeats, axes)


def _parts(index, rank):
    """One number or slice for each dimension, and None for new ones."""
    given = index if isinstance(index, tuple) else (index,)
    parts = []
    has_ellipsis = False
    for part in given:
        if part is Ellipsis:
            if has_ellipsis:
                raise IndexError(
                    "an index can only have a single ellipsis ('...')"
                )
            has_ellipsis = True
        elif part is not None and not isinstance(part, slice):
            # Arrays, lists and booleans select in other ways.
            is_truth = isinstance(part, bool) or str(
                getattr(part, "dtype", "")
            ).endswith("bool")
            if is_truth or len(getattr(part, "shape", ())) > 0:
                return None
            if not hasattr(part, "__index__"):
                return None
        parts.append(part)
    named = sum(part is not None and part is not Ellipsis for part in parts)
    if named > rank:
        raise IndexError(
            f"too many indices: the tensor is {rank}-dimensional, but "
            f"{named} were indexed"
        )
    whole = [slice(None)] * (rank - named)
    at = parts.index(Ellipsis) if has_ellipsis else len(parts)
    return parts[:at] + whole + parts[at + has_ellipsis :]


def selected_info(info, selection):
    """The TensorInfo of a selection over dense memory that holds it."""
    shape, strides = [], []
    dense = dense_strides(selection.counts)
    for dim in selection.axes:
        if dim is None:
            shape.append(1)
            strides.append(1)
        elif selection.repeats[dim]:
            shape.append(selection.repeats[dim])
            strides.append(0)
        else:
            shape.append(selection.counts[dim])
            strides.append(dense[dim])
    count = _product(info.shape)
    item = info.nbytes // count if count else 1
    return info._replace(
        offset=0,
        shape=tuple(shape),
        strides=tuple(strides),
        nbytes=_product(shape) * item,
    )


def _overlaps(info, selection):
    """Whether the copy would be larger than what it is a copy of.

    Such a tensor is a view of elements that it reaches in several ways, and a
    few bytes in a file could ask for any amount of memory.
    """
    reach = 1
    for count, stride, (_, _, step) in zip(
        selection.counts, info.strides, selection.slices
    ):
        reach += max(count - 1, 0) * stride * abs(step)
    return _product(selection.counts) > reach


def _product(numbers):
    product = 1
    for number in numbers:
        product *= number
    return product
