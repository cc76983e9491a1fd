"""haulway.iterate: one tensor after another, read ahead of the caller."""

from __future__ import annotations

import contextlib

from .._making.assemble import maker
from .._options import READING, one_of
from .call import Reading, check_framework, reads
from .select import choose, matcher


@reads(READING)
def iterate(path, framework=None, *, include=None, exclude=None, order="plan",
            device="cpu", **options):
    """Yields (name, tensor) for the tensors of a checkpoint, one by one.

    The next tensors are read while the caller works on one, in memory of at
    most memory_budget bytes (a single tensor may be larger). A tensor is freed
    when the caller drops it, so a checkpoint may be larger than memory.

    path, framework, include, exclude: as for load().
    order: "plan": in file order; "completion": as they are completed.
    device: the device of torch tensors.
    OPTIONS

    `stats` is filled at the end, or when the iterator is closed. Tensors that
    share a storage are yielded together. Raises Error.
    """
    make = maker(check_framework(framework), device)
    order = one_of("plan", "completion")("order", order)
    reading = Reading("iterate", options)
    reading.keeps_last = True
    core = reading.open(path, names=matcher(include, exclude))
    return tensors(core, choose(core, include, exclude), make, reading, order)


def tensors(core, chosen, make, reading, order="plan"):
    """Yields (name, tensor) for the Chosen tensors of an open checkpoint; see
    iterate()."""
    by_storage, without = {}, []
    for one in chosen:
        if one.info.storage is None:
            without.append((one.name, make.meta(one.info, one.name)))
        else:
            by_storage.setdefault(one.info.storage, []).append(one)
    rows = list(by_storage)
    return _go(
        make.stream(core, rows, reading, order), make, by_storage, rows, without
    )


def _go(stream, make, by_storage, rows, without):
    with contextlib.closing(stream):
        yield from without
        for position, storage in stream:
            for one in by_storage[rows[position]]:
                yield one.name, make.tensor(storage, one.info)
            del storage
