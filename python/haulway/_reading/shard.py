"""haulway.shard and haulway.plan_reads: parts of tensors, by name."""

from __future__ import annotations

from typing import NamedTuple

from .. import _haulway
from .._describing import bytes_text, counted, described, public
from .._errors import InvalidArgumentError, UnknownNameError
from .._making.assemble import maker
from .._making.objects import TensorRequest
from .._options import OPENING, READING, by_name, names
from .call import Reading, check_framework, reads
from .select import (
    basic_index,
    cast_of,
    check_rank,
    choose,
    float_name,
    matcher,
    part_of,
)


@reads(READING)
def shard(path, rank, world, dim=0, *, framework=None, include=None,
          exclude=None, dtype=None, **options):
    """Loads this rank's part of every tensor, and reads only that: a dict.

    path: as for load().
    rank, world: part number `rank` of `world` parts.
    dim: the dimension that is divided; it counts from the end if negative.
    framework, include, exclude, dtype: as for load().
    OPTIONS

    With `verify` all bytes are read. If `world` does not divide a size, it is
    split as by torch.tensor_split() and numpy.array_split(): parts differ by
    at most one row, larger parts first; for a tensor with fewer rows than
    ranks the last parts are empty. A tensor without this dimension is given
    whole to every rank. Names of the same tensor get the same part. Raises
    Error.
    """
    check_rank(rank, world, dim)
    make = maker(check_framework(framework))
    dtype = None if dtype is None else float_name(dtype)
    reading = Reading("shard", options)
    names = matcher(include, exclude) if dtype is None else None
    core = reading.open(path, names=names)
    chosen = make.with_meta(choose(core, include, exclude))
    requests, infos, made = {}, {}, {}
    for one in chosen:
        if one.row in infos or one.row in made:
            continue
        if dtype is not None:
            core.check_cast(one.row)
        index = _haulway.shard_index(one.info.shape, dim, rank, world)
        part = part_of(one.row, one.info, index, dtype)
        if one.info.storage is None:
            made[one.row] = make.meta(part.info)
        elif part.request is None:
            # A tensor whose strides overlap is loaded with its storage and
            # indexed.
            (memory,) = reading.storages(core, [one.info.storage])
            whole = make.tensor(make.storage(memory), one.info)
            made[one.row] = make.cast(whole[index], cast_of(one.info, dtype))
        else:
            requests[one.row], infos[one.row] = part.request, part.info
    memories = reading.tensors(core, list(requests.values()))
    for row, memory in zip(requests, memories):
        made[row] = make.tensor(make.storage(memory), infos[row])
    return {one.name: made[one.row] for one in chosen}


class PlannedReads(NamedTuple):
    """The reads that loading would make.

    reads: (offset, bytes) of every request, in the order in which they start.
    tensor_bytes: the size of the wanted tensors as stored.
    read_bytes: the bytes read, including frames, and gaps that cost less than
        another request.
    """

    reads: list
    tensor_bytes: int
    read_bytes: int

    def __repr__(self):
        return described(
            self, counted(len(self.reads), "read"),
            f"{bytes_text(self.read_bytes)} for tensors of "
            f"{bytes_text(self.tensor_bytes)}",
        )


PLANNING = {**OPENING, "verify": READING["verify"]}


@reads(PLANNING)
def plan_reads(path, include=None, exclude=None, slices=None, **options):
    """Returns the PlannedReads that loading tensors, or slices of them, would
    make.

    path, include, exclude: as for load().
    slices: a dict of indices by name, as for get_slice(): only that part of
        these tensors is wanted. If only `slices` is given, no other tensor is
        wanted.
    OPTIONS

    Reads the index of the file but no tensor. Raises Error, IndexError for an
    index outside the tensor, and KeyError for an unknown name.
    """
    names("slices", by_name("slices", slices, "a dict of indices by name") or ())
    reading = Reading("plan_reads", options, PLANNING)
    core = reading.open(path)
    slices = dict(slices or {})
    only_slices = slices and include is None and exclude is None
    wanted_names = {one.name for one in choose(core, include, exclude)}
    requests = []
    for one in choose(core):
        wanted = None
        if one.name in slices:
            items = basic_index(slices.pop(one.name))
            if items is None:
                raise InvalidArgumentError(
                    f"index of {one.name!r}: expected numbers, slices, ... "
                    "and None",
                    "kInvalidArgument",
                )
            wanted, *_ = _haulway.select(
                items, one.info.shape, one.info.strides
            )
        elif only_slices or one.name not in wanted_names:
            continue
        if one.info.storage is not None:
            requests.append(TensorRequest(one.row, wanted))
    if slices:
        name = next(iter(slices))
        raise UnknownNameError(
            f"no tensor {name!r}{core.hint(name)}; of {reading.source_name}",
            "kInvalidArgument",
        )
    planned = _haulway.plan_tensors(
        core, requests, {"io": reading.io, "verify": reading.verify}
    )
    return PlannedReads(*planned)


public("haulway", PlannedReads)
