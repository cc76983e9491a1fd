"""Computes who reads what, and when; equal in every process of a group."""

from __future__ import annotations

import math
from typing import NamedTuple

from ._placements import Box, overlap

# Largest request in bytes.
_PIECE_BYTES = 4 << 20
# Most and least bytes that a process reads for one exchange.
_ROUND_BYTES = 16 << 20
_LEAST_BYTES = 64 << 10
# Minimum number of rounds, if the load is large enough: nothing is read during
# the exchange of the last round.
_ROUNDS = 8


class Wanted(NamedTuple):
    """A tensor, and the part of it that each rank wants.

    row: the number of the tensor in the checkpoint.
    offset: byte offset in the file, for the order of reading.
    indivisible: whether reading a part means reading the whole tensor.
    boxes: the part that each rank of the group wants.
    """

    row: int
    shape: tuple
    item_bytes: int
    offset: int
    indivisible: bool
    boxes: list


class Piece(NamedTuple):
    """A run of the elements of a tensor, in row-major order.

    tensor: number in the list of Wanted.
    for_all: whether every rank wants all of it.
    """

    tensor: int
    box: Box
    nbytes: int
    for_all: bool


def cut(shape, item_bytes, most):
    """Divides a tensor into boxes of up to `most` bytes, or of one element. The
    elements of each box are contiguous."""
    total = item_bytes * math.prod(shape)
    if total <= most or not shape:
        return [Box((0,) * len(shape), tuple(shape))] if total else []
    inner = total // shape[0]
    if inner <= most:
        rows = most // inner
        return [
            Box(
                (at, *(0,) * (len(shape) - 1)),
                (min(rows, shape[0] - at), *shape[1:]),
            )
            for at in range(0, shape[0], rows)
        ]
    parts = cut(shape[1:], item_bytes, most)
    return [
        Box((at, *one.begin), (1, *one.extent))
        for at in range(shape[0])
        for one in parts
    ]


def schedule(tensors, world, memory_budget):
    """Returns the rounds of a load: for each round a list, by rank, of the
    pieces that the rank reads.

    Every rank reads one stretch of the file; all stretches have about the same
    size.
    """
    # A rank's memory holds what it reads and reads ahead, what it sends to each
    # rank, and what all ranks send to it.
    total = sum(one.item_bytes * math.prod(one.shape) for one in tensors)
    round_bytes = min(
        _ROUND_BYTES, memory_budget // (2 * world + 2),
        total // (_ROUNDS * world),
    )
    round_bytes = max(round_bytes, _LEAST_BYTES)
    most = min(_PIECE_BYTES, round_bytes)
    pieces = []
    order = sorted(range(len(tensors)), key=lambda i: (tensors[i].offset, i))
    for number in order:
        one = tensors[number]
        limit = math.inf if one.indivisible else most
        for box in cut(one.shape, one.item_bytes, limit):
            shared = [overlap(box, wanted) for wanted in one.boxes]
            if any(shared):
                pieces.append(Piece(
                    number, box, one.item_bytes * box.count,
                    all(part == box for part in shared),
                ))
    return _rounds(_stretches(pieces, world), round_bytes)


def _stretches(pieces, world):
    """Divides the pieces among ranks, in order, into parts of about equal
    size."""
    total = sum(one.nbytes for one in pieces)
    ranks = [[] for _ in range(world)]
    before = 0
    for one in pieces:
        middle = before + one.nbytes / 2
        ranks[min(int(middle * world / total), world - 1)].append(one)
        before += one.nbytes
    return ranks


def _rounds(ranks, round_bytes):
    divided = []
    for pieces in ranks:
        parts, held = [[]], 0
        for one in pieces:
            if parts[-1] and held + one.nbytes > round_bytes:
                parts.append([])
                held = 0
            parts[-1].append(one)
            held += one.nbytes
        divided.append(parts)
    count = max(map(len, divided))
    return [
        [parts[number] if number < len(parts) else [] for parts in divided]
        for number in range(count)
    ]
