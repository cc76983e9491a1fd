"""Tensors and parts of them by name: haulway.shard and haulway.plan_reads."""

from __future__ import annotations

import fnmatch
from typing import NamedTuple

from . import _haulway
from ._dtypes import dtype_name, is_float
from ._errors import InvalidArgumentError
from ._loading import Loading
from ._objects import TensorInfo, make_array
from ._secrets import secret_arguments
from ._slicing import overlaps, select, selected_info
from ._source import open_source


def open_core(path, io="auto", key=None, passphrase=None):
    return _haulway.open_checkpoint(
        open_source(path, mapped=io == "mmap"),
        **secret_arguments(key, passphrase),
    )


def matches(name, include, exclude=None):
    """Whether globs select a name; what is excluded is not, come what may."""
    if exclude is not None and _any(name, exclude):
        return False
    return include is None or _any(name, include)


def _any(name, patterns):
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def entries(core, include=None, exclude=None):
    """(name, row, TensorInfo) of the tensors that globs select."""
    return [
        (name, row, TensorInfo(*core.tensor(row)))
        for name, row in zip(core.names(), core.rows())
        if matches(name, include, exclude)
    ]


def cast_of(info, dtype):
    """The name of the dtype a tensor is to have: only floats are cast."""
    return dtype if dtype is not None and is_float(info.dtype) else info.dtype


def make_tensor(framework, info, memory):
    if framework == "numpy":
        return make_array(info, memory)
    from . import _torch_factory

    return _torch_factory.tensor_over(_torch_factory.storage_of(memory), info)


def _rows_of(size, rank, world):
    """Which rows a rank gets; the first ranks get one more if need be."""
    each, more = divmod(size, world)
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)


def shard(path, rank, world, dim=0, *, framework=None, include=None,
          exclude=None, dtype=None, verify=False, threads=None, io="auto",
          progress=None, memory_budget=None, drop_cache=False, retries=None,
          stats=None, key=None, passphrase=None):
    """Loads this rank's part of every tensor, and reads no other: a dict.

    path: as for load().
    rank, world: number `rank` of `world` parts.
    dim: the dimension that is divided; from the end if it is negative.
    include, exclude: globs that select tensors by name.
    verify: check every checksum, for which all bytes must be read.
    All else is as for load().

    Sizes that `world` does not divide are shared out as by
    torch.tensor_split() and numpy.array_split(): parts differ by one row at
    most, and the first parts are the larger ones; a tensor of fewer rows than
    there are ranks leaves the last ranks none. A tensor without such a
    dimension is given whole to every rank. Names that mean one tensor mean one
    part of it. Raises Error.
    """
    from ._checkpoint import check_framework

    framework = check_framework(framework)
    if world < 1 or not 0 <= rank < world:
        raise InvalidArgumentError(
            f"rank is {rank} of {world}: expected 0 to {world - 1}",
            "kInvalidArgument",
        )
    dtype = None if dtype is None else dtype_name(dtype)
    core = open_core(path, io, key, passphrase)
    wanted = entries(core, include, exclude)
    requests, infos, whole = {}, {}, {}
    for _, row, info in wanted:
        if row in infos:
            continue
        index = ()
        if -len(info.shape) <= dim < len(info.shape):
            start, stop = _rows_of(info.shape[dim], rank, world)
            index = (slice(None),) * (dim % len(info.shape))
            index += (slice(start, stop),)
        selection = select(index, info.shape, info.strides)
        infos[row] = selected_info(info, selection)._replace(
            dtype=cast_of(info, dtype)
        )
        if info.storage is None:
            continue
        if overlaps(info, selection):
            whole[row] = (info, index)
            continue
        requests[row] = (
            row, selection.slices, infos[row].dtype, None, None, 0
        )
    loading = Loading(
        io=io, threads=threads, verify=verify, progress=progress,
        memory_budget=memory_budget, drop_cache=drop_cache, retries=retries,
        stats=stats,
    )
    memories = loading.tensors(core, list(requests.values()))
    made = {
        row: make_tensor(framework, infos[row], memory)
        for row, memory in zip(requests, memories)
    }
    # Views that reach elements in several ways stay views.
    for row, (info, index) in whole.items():
        memory, _ = core.read_storage(info.storage)
        made[row] = make_tensor(framework, info, memory)[index]
    if framework == "torch":
        from . import _torch_factory

        for row, info in infos.items():
            if row not in made:
                made[row] = _torch_factory.meta_tensor(info)
    return {name: made[row] for name, row, _ in wanted if row in made}


class PlannedReads(NamedTuple):
    """What loading would read.

    reads: (offset, bytes) of every request, in the order they are begun.
    tensor_bytes: what was asked for, as stored.
    read_bytes: with frames, and holes that cost less than another request.
    """

    reads: list
    tensor_bytes: int
    read_bytes: int


def plan_reads(path, include=None, exclude=None, slices=None, *, key=None,
               passphrase=None):
    """Says what loading tensors, or slices of them, would read: PlannedReads.

    include, exclude: globs that select tensors by name; all by default.
    slices: a dict of indices by name, as for get_slice(): only that part of
        those tensors is wanted. With `slices` alone, nothing else is.

    Reads the index of the file and no tensor. Raises Error, IndexError for an
    index that leaves the tensor, and KeyError for a name that is none.
    """
    core = open_core(path, "auto", key, passphrase)
    slices = dict(slices or {})
    only_slices = slices and include is None and exclude is None
    requests = []
    for name, row, info in entries(core):
        wanted = None
        if name in slices:
            selection = select(slices.pop(name), info.shape, info.strides)
            if selection is None:
                raise InvalidArgumentError(
                    f"index of {name!r}: expected numbers, slices, ... and "
                    "None",
                    "kInvalidArgument",
                )
            wanted = selection.slices
        elif only_slices or not matches(name, include, exclude):
            continue
        if info.storage is not None:
            requests.append((row, wanted, None, None, None, 0))
    if slices:
        raise KeyError(next(iter(slices)))
    return PlannedReads(*_haulway.plan_tensors(core, requests))
