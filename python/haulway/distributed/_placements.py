"""Computes which part of a tensor each process of a group wants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from torch.distributed.tensor import Replicate, Shard

from .. import _haulway
from .._errors import InvalidArgumentError


class Box(NamedTuple):
    """A part of a tensor: its begin and its length in each dimension."""

    begin: tuple
    extent: tuple

    @property
    def count(self):
        """Returns the number of elements."""
        return math.prod(self.extent)


def whole(shape):
    return Box((0,) * len(shape), tuple(shape))


def overlap(one, other):
    """Returns the common part of two boxes, or None."""
    begin = tuple(map(max, one.begin, other.begin))
    extent = tuple(
        min(a + m, b + n) - at
        for a, m, b, n, at in zip(
            one.begin, one.extent, other.begin, other.extent, begin
        )
    )
    if any(length <= 0 for length in extent):
        return None
    return Box(begin, extent)


def within(box, outer):
    """Returns the slices that select a box in a tensor with the elements of
    `outer`."""
    return tuple(
        slice(at - first, at - first + length)
        for at, length, first in zip(box.begin, box.extent, outer.begin)
    )


def chunk(size, number, count):
    """Returns (begin, length) of part `number` of `size`, divided as by
    torch.chunk()."""
    most = -(-size // count)
    begin = min(number * most, size)
    return begin, min(most, size - begin)


class Placements:
    """The placements given to load(): the part of a tensor for each rank.

    ranks: the ranks of the group, by their numbers in all.
    mesh: a DeviceMesh of these ranks, or None.
    """

    def __init__(self, given, ranks, mesh=None):
        self._ranks = ranks
        self._mesh = mesh
        self._given = given
        self._globs = None
        if mesh is not None:
            self._coordinates = {}
            for at in (mesh.mesh >= 0).nonzero().tolist():
                self._coordinates[int(mesh.mesh[tuple(at)])] = at
            if sorted(self._coordinates) != sorted(ranks):
                raise InvalidArgumentError(
                    f"mesh is of the ranks {sorted(self._coordinates)}: "
                    f"expected those of the group, {sorted(ranks)}",
                    "kInvalidArgument",
                )
        if isinstance(given, Mapping):
            self._globs = [
                (_haulway.NameFilter([glob], [], ""), place)
                for glob, place in given.items()
            ]

    def of(self, name, shape):
        """Returns (the placements of the DTensor, or None without a mesh; the
        Box of each rank of the group) for a tensor."""
        place = self._given
        if self._globs is not None:
            place = next(
                (one for glob, one in self._globs if glob.matches(name)),
                "replicate",
            )
        elif callable(place):
            place = place(name, tuple(shape))
        if self._mesh is None:
            dimension = _dimension(name, place, shape)
            return None, [
                _divided(whole(shape), dimension, number, len(self._ranks))
                for number in range(len(self._ranks))
            ]
        listed = self._listed(name, place, shape)
        return listed, [self._box(listed, shape, rank) for rank in self._ranks]

    def _listed(self, name, place, shape):
        """Returns DTensor's placements, one for each dimension of the mesh."""
        if not isinstance(place, (list, tuple)):
            dimension = _dimension(name, place, shape)
            if dimension is None:
                return [Replicate()] * self._mesh.ndim
            place = [Shard(dimension)]
        if len(place) != self._mesh.ndim or not all(
            type(one) in (Replicate, Shard) for one in place
        ):
            raise InvalidArgumentError(
                f"placements of {name!r} are {place!r}: expected "
                f"{self._mesh.ndim} of Replicate() and Shard(d), one for each "
                "dimension of the mesh",
                "kInvalidArgument",
            )
        return [
            one if isinstance(one, Replicate)
            else Shard(_checked(name, one.dim, shape))
            for one in place
        ]

    def _box(self, placements, shape, rank):
        box = whole(shape)
        for number, one in enumerate(placements):
            if isinstance(one, Shard):
                box = _divided(
                    box, one.dim, self._coordinates[rank][number],
                    self._mesh.size(number),
                )
        return box


def _dimension(name, place, shape):
    """Returns the dimension that is divided, or None."""
    if place is None or place == "replicate":
        return None
    if place == "shard":
        place = 0
    if isinstance(place, bool) or not hasattr(place, "__index__"):
        raise InvalidArgumentError(
            f"placement of {name!r} is {place!r}: expected 'replicate', "
            "'shard', a dimension or None",
            "kInvalidArgument",
        )
    # A tensor without that dimension is replicated to every rank.
    if not -len(shape) <= place < len(shape):
        return None
    return place % len(shape)


def _checked(name, dimension, shape):
    if not -len(shape) <= dimension < len(shape):
        raise InvalidArgumentError(
            f"placement of {name!r} is Shard({dimension}): expected a dimension "
            f"of {list(shape)}",
            "kInvalidArgument",
        )
    return dimension % len(shape)


def _divided(box, dimension, number, count):
    """Returns part `number` of `count` of a box along a dimension."""
    if dimension is None:
        return box
    at, length = chunk(box.extent[dimension], number, count)
    begin, extent = list(box.begin), list(box.extent)
    begin[dimension] += at
    extent[dimension] = length
    return Box(tuple(begin), tuple(extent))
