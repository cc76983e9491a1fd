"""haulway.distributed.load: loads one checkpoint in all processes of a
group."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from .._errors import ArgumentTypeError, InvalidArgumentError
from .._options import READING, check_stats
from .._reading.call import Reading, reads
from .._reading.select import choose
from .._torch.objects import check_device
from ._together import Together
from ._watch import Watch

_READING = {
    name: one for name, one in READING.items()
    if name not in ("stats", "timeout")
}


@reads(_READING)
def load(path, *, group=None, mesh=None, placements="replicate", include=None,
         exclude=None, device="cpu", stats=None, timeout=None, **options):
    """Loads tensors in all processes of a group, and reads each byte once.

    To be called by every process of the group, with the same arguments; path
    and device may differ. Returns a dict by name of tensors or DTensors.

    path: as for haulway.load(): a file, a folder or a URL of any format.
    group: a torch.distributed group; None: all processes.
    mesh: a DeviceMesh of the processes of the group: results are DTensors.
    placements: which part of a tensor this process gets. "replicate": the
        whole tensor; "shard": its part in dimension 0, divided as by
        torch.chunk(); a number: its part in that dimension; a dict from globs
        to such values: the first glob that matches the name counts, and other
        tensors are replicated; or a function (name, shape) that returns such a
        value, None for "replicate". Every process gets the whole of a tensor
        that lacks the dimension. With `mesh` also a list of Replicate() and
        Shard(d), one for each dimension of the mesh.
    include, exclude: as for haulway.load().
    device: where the tensors go.
    stats: a dict to fill with read_bytes (from storage, by this process),
        requests, received_bytes (from other processes) and seconds.
    timeout: seconds for the whole call.
    OPTIONS

    In addition to its tensors, a process holds at most memory_budget bytes
    (256 MiB) and the tensors that are compressed, encrypted or verified: one
    process reads each of these as a whole. If one process fails, all raise its
    error; if a process is killed, the others notice within 20 seconds. A
    process that is late, stopped or busy is waited for until `timeout`, for
    ever without. After a failure, as after any failed collective, the group
    cannot be used any more.

    Raises Error in every process if it fails in one. One thread of each
    process may call this at a time, as for any collective.
    """
    start = time.perf_counter()
    check_stats(stats)
    if not dist.is_available() or not dist.is_initialized():
        raise InvalidArgumentError(
            "torch.distributed is not initialised: call init_process_group() "
            "first",
            "kInvalidArgument",
        )
    if timeout is not None and (
        isinstance(timeout, bool) or not isinstance(timeout, (int, float))
    ):
        raise ArgumentTypeError(
            f"timeout is {timeout!r}: expected seconds", "kInvalidArgument"
        )
    group = dist.group.WORLD if group is None else group
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise InvalidArgumentError(
            "this process is not in the group", "kInvalidArgument"
        )
    with Watch(group.group_name, rank, world, timeout) as watch:
        check_device(device, "device")
        reading = Reading("load", options, _READING)
        gpu = (torch.cuda.current_device() if torch.cuda.is_initialized()
               else None)

        def work():
            if gpu is not None:  # Each thread has its own.
                torch.cuda.set_device(gpu)
            together = Together(
                reading.open(path), reading, group, mesh, placements, device,
                watch,
            )
            together.plan(choose(together.core, include, exclude))
            together.agree()
            found = together.run()
            if gpu is not None:
                torch.cuda.current_stream().synchronize()
            return found, together.stats

        found, told = watch.run(work)
    if stats is not None:
        stats.update(
            told, seconds=time.perf_counter() - start
        )
    return found
