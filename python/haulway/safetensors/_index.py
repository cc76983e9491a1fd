"""Checks indices of slices by the package's own rules.

The rules apply to reads without torch's mapping: only numbers and slices within
the tensor are allowed.
"""

from __future__ import annotations

import operator

from ._dtypes import BITS
from ._errors import SafetensorError

_MISALIGNED = (
    "The slice is slicing for subbytes dtypes, and the slice does not end up "
    "at a byte boundary, this is invalid."
)


def checked(index, shape, dtype):
    """Returns the index as a tuple of numbers and slices within the shape.

    Raises the package's exception for an index that it does not accept.
    """
    items = _items(index, shape)
    _check_bounds(items, shape, BITS[dtype])
    return tuple(
        item if isinstance(item, int)
        else slice(*_bounds(item, size), item.step)
        for item, size in zip(items, shape)
    )


def _items(index, shape):
    if isinstance(index, list):
        if index:
            raise SafetensorError("Non empty lists are not implemented")
        return [slice(0, 0, 1)]
    given = index if isinstance(index, tuple) else (index,)
    ellipses = sum(item is Ellipsis for item in given)
    if ellipses > 1:
        raise SafetensorError(
            "Only one ellipsis (...) is allowed in slice index"
        )
    left_out = max(len(shape) - (len(given) - ellipses), 0)
    items = []
    for item in given:
        if item is Ellipsis:
            items += [slice(None, None, 1)] * left_out
        elif isinstance(item, slice):
            items.append(_slice(item))
        else:
            items.append(_number(item, len(items), shape))
    return items


def _slice(item):
    start, stop = _size(item.start), _size(item.stop)
    step = 1 if item.step is None else operator.index(item.step)
    if step <= 0:
        raise SafetensorError(
            f"Slice step must be a positive integer, got {step}"
        )
    return slice(start, stop, step)


def _size(number):
    if number is None:
        return None
    number = operator.index(number)
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    return number


def _number(item, dim, shape):
    try:
        number = operator.index(item)
    except TypeError:
        number = None
    if number is None or not -(2**31) <= number < 2**31:
        raise SafetensorError(
            f"Unsupported slice index at position {dim}: expected slice, int, "
            "or ellipsis"
        )
    size = shape[dim] if dim < len(shape) else 0
    if number < -size:
        raise SafetensorError(
            f"Invalid index {number} for dimension {dim} of size {size}"
        )
    return number + size if number < 0 else number


def _bounds(item, size):
    return (
        0 if item.start is None else item.start,
        size if item.stop is None else item.stop,
    )


def _check_bounds(items, shape, bits):
    def fail(why):
        shown = ", ".join(map(_shown, items))
        raise SafetensorError(
            f"Error during slicing [{shown}] with shape {list(shape)}: {why}"
        )

    if len(items) > len(shape):
        fail("more slicing indexes than dimensions in tensor")
    span = bits
    is_cut = False  # Whether a later dimension is sliced.
    for dim in reversed(range(len(shape))):
        size = shape[dim]
        if dim < len(items):
            item = items[dim]
            one = isinstance(item, int)
            start, stop = (item, item + 1) if one else _bounds(item, size)
            step = 1 if one else item.step
            if start >= size or stop > size:
                asked = start if start >= size else max(stop - 1, 0)
                fail(
                    f"index {asked} out of bounds for tensor dimension #{dim} "
                    f"of size {size}"
                )
            if is_cut:
                places = range(start, stop, step)
            elif step != 1:
                places = [
                    n + end for n in range(start, stop, step) for end in (0, 1)
                ] if span % 8 else ()
            elif start == 0 and stop == size:
                places = ()
            else:
                places = (start, stop)
            if span % 8 and any(place * span % 8 for place in places):
                fail(_MISALIGNED)
            is_cut = is_cut or not (step == 1 and (start, stop) == (0, size))
        span *= size
    if not is_cut and span % 8:
        fail(_MISALIGNED)


def _shown(item):
    if isinstance(item, int):
        return str(item)
    start = "" if item.start is None else item.start
    stop = "" if item.stop is None else item.stop
    step = "" if item.step == 1 else f":{item.step}"
    return f"{start}:{stop}{step}"
