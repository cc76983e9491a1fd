"""Plans of safe_open.prefetch(), and normal forms of their indices."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping

from .._reading.select import basic_index
from ._errors import SafetensorError

# The index that selects a whole tensor.
WHOLE = ...
_EXPECTED = "plan: expected names, or a dict of names and indices, found"


def wanted(plan):
    """Yields pairs of a name and an index of a plan; WHOLE for a whole
    tensor."""
    if isinstance(plan, Mapping):
        for name, indices in plan.items():
            for index in indices if isinstance(indices, list) else [indices]:
                yield name, WHOLE if index is None else index
        return
    if not isinstance(plan, Iterable) or isinstance(plan, bytes):
        raise SafetensorError(f"{_EXPECTED} {plan!r}")
    for name in [plan] if isinstance(plan, str) else plan:
        if not isinstance(name, str):
            raise SafetensorError(f"{_EXPECTED} {name!r} among them")
        yield name, WHOLE


def canonical(index, shape):
    """Returns the index as a tuple of (start, stop, step), numbers of 0 or
    more, and None. Equivalent indices give equal tuples; the whole tensor gives
    ().

    Raises ValueError if it is not a basic index of such a tensor.
    """
    items = basic_index(index)
    if items is None:
        raise ValueError("expected numbers, slices, ... and None")
    taken = sum(item is not None and item is not Ellipsis for item in items)
    ellipses = sum(item is Ellipsis for item in items)
    if taken > len(shape) or ellipses > 1:
        raise ValueError(f"expected an index of {len(shape)} dimensions")
    if ellipses == 0:
        items = (*items, Ellipsis)
    found, dim = [], 0
    for item in items:
        if item is None:
            found.append(None)
        elif item is Ellipsis:
            rest = len(shape) - taken
            found += [(0, size, 1) for size in shape[dim:dim + rest]]
            dim += rest
        else:
            found.append(_of_dimension(item, shape[dim]))
            dim += 1
    everything = [(0, size, 1) for size in shape]
    return () if found == everything else tuple(found)


def _of_dimension(item, size):
    if isinstance(item, slice):
        try:
            bounds = item.indices(size)
        except TypeError as error:
            raise ValueError(error) from None
        if bounds[2] <= 0:
            raise ValueError("expected steps of 1 or more")
        return bounds
    number = operator.index(item)
    if not -size <= number < size:
        raise ValueError(f"expected numbers within {size}")
    return number + size if number < 0 else number


def as_index(key):
    """Returns an index for a tuple from canonical()."""
    return tuple(
        slice(*item) if isinstance(item, tuple) else item for item in key
    )
