"""Loads by groups of gloo processes; see test_distributed_load.py."""

import json
import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import haulway
import haulway.distributed
from gloo_group import join
from haulway.distributed import _schedule, _together

FOLDER = None  # The folder with the files.
FILES = ["m.safetensors", "m.pt", "m.tensors", "m.npz"]


def load(name="m.safetensors", **options):
    return haulway.distributed.load(FOLDER / name, **options)


def same(one, other):
    return one.shape == other.shape and one.dtype == other.dtype and (
        torch.equal(one.contiguous().reshape(-1).view(torch.uint8),
                    other.contiguous().reshape(-1).view(torch.uint8)))


def part(tensor, rank, world, dimension=0):
    """Returns a part as by torch.chunk(), or an empty one if there are too
    few."""
    if dimension is None or tensor.ndim <= dimension:
        return tensor
    parts = tensor.chunk(world, dimension)
    return parts[rank] if rank < len(parts) else tensor.narrow(dimension, 0, 0)


def all_are(found, wanted, make):
    return found.keys() == wanted.keys() and all(
        same(found[name], make(name, wanted[name])) for name in wanted)


def good(rank, world):
    shared = []
    share = _together.share
    _together.share = lambda *told: shared.append(share(*told)) or shared[-1]
    results, wanted = {}, haulway.load(FOLDER / "m.safetensors")
    for name in FILES:
        stats = {}
        results[name] = all_are(
            load(name, stats=stats), haulway.load(FOLDER / name, include="*"),
            lambda name, one: one)
        size = sum(one.nbytes for one in
                   haulway.load(FOLDER / name, include="*").values())
        results[f"balanced {name}"] = (
            0.5 * size / world <= stats["read_bytes"] <= 1.6 * size / world
            and stats["received_bytes"] >= 0.5 * size * (world - 1) / world)
        every = [None] * world
        dist.all_gather_object(every, stats["read_bytes"])
        results[f"once {name}"] = size <= sum(every) <= size + (size >> 3)
    results["verify"] = all_are(load("m.pt", verify=True), wanted,
                                lambda name, one: one)
    for dimension in ("shard", 0, 1, -1):
        number = 0 if dimension == "shard" else dimension
        results[f"divided {dimension}"] = all_are(
            load(placements=dimension), wanted,
            lambda name, one, number=number: part(
                one, rank, world, number if number >= 0 else
                (one.ndim - 1 if one.ndim else None)))
    results["globs"] = all_are(
        load(placements={"rows*": "shard", "*": "replicate"}), wanted,
        lambda name, one: part(one, rank, world)
        if name.startswith("rows") else one)
    results["function"] = all_are(
        load(placements=lambda name, shape: 1 if len(shape) == 2 else None,
             exclude="dtype*"),
        {name: one for name, one in wanted.items() if "dtype" not in name},
        lambda name, one: part(one, rank, world, 1 if one.ndim == 2 else None))
    line = init_device_mesh("cpu", (world,))
    found = load(mesh=line, placements=[Shard(0)], include="rows*")
    results["mesh"] = all(
        isinstance(one, DTensor) and one.placements == (Shard(0),)
        and same(one.full_tensor(), wanted[name])
        for name, one in found.items()) and len(found) == 2
    if world == 4:
        square = init_device_mesh("cpu", (2, 2))
        for places in ([Shard(0), Shard(1)], [Replicate(), Shard(1)],
                       [Shard(0), Shard(0)], [Shard(1), Replicate()]):
            found = load(mesh=square, placements=places, include="rows*")
            results[f"mesh {places}"] = all(
                same(one.full_tensor(), wanted[name])
                for name, one in found.items())
    # Many rounds, and pieces that are parts of rows.
    before = _schedule._ROUND_BYTES, _schedule._PIECE_BYTES
    _schedule._ROUND_BYTES, _schedule._PIECE_BYTES = 96 << 10, 1 << 10
    for placements in ("replicate", "shard", 1):
        number = {"replicate": None, "shard": 0}.get(placements, placements)
        results[f"small pieces {placements}"] = all_are(
            load(placements=placements), wanted,
            lambda name, one, number=number: part(one, rank, world, number))
    _schedule._ROUND_BYTES, _schedule._PIECE_BYTES = before
    pair = dist.new_group(list(range(min(2, world))))
    if rank < 2:
        results["subgroup"] = all_are(
            load(group=pair, placements="shard"), wanted,
            lambda name, one: part(one, rank, min(2, world)))
    else:
        results["subgroup"] = raised(
            lambda: load(group=pair))[0] == "kInvalidArgument"
    results["wrong words"] = [
        raised(lambda place=place: load(
            placements=place, group=dist.new_group()))[0]
        for place in ("rows", 1.5, [Shard(0)])] == ["kInvalidArgument"] * 3
    _together.share = share
    is_alone = world == 1 or not _together._SHARES_MEMORY
    results["by the host's memory"] = None not in shared and (
        bool(shared) != is_alone)
    return results


def raised(call):
    """Returns (code, message) of a call's exception."""
    try:
        call()
    except haulway.Error as error:
        return error.code, str(error)
    return None, "nothing"


def sent(rank, world):
    """Runs good() with collectives, as between hosts."""
    _together._SHARES_MEMORY = False
    return good(rank, world)


def bad(rank, world):
    """A failure in one process is raised in all, with its reason."""
    results = {}
    missing = FOLDER / ("none" if rank == 1 else "m.pt")
    code, said = raised(lambda: haulway.distributed.load(
        missing, group=dist.new_group()))
    results["missing"] = code == "kNotFound" and (
        rank == 1 or said.startswith("rank 1 failed: cannot open"))
    code, said = raised(lambda: load(
        "flipped.pt", verify=True, group=dist.new_group()))
    results["corrupt"] = code == "kMismatch" and "CRC-32" in said
    code, said = raised(lambda: load(
        include="rows*" if rank else None, group=dist.new_group()))
    results["other arguments"] = code == "kMismatch" and "rank 1" in said
    group = dist.new_group()
    if rank:
        results["late"] = raised(
            lambda: load(group=group, timeout=2))[0] == "kTimeout"
    else:
        results["late"] = True
    results["timeout"] = raised(lambda: load(timeout="soon"))[0] == \
        "kInvalidArgument"
    return results


def status(name):
    """Returns a field of /proc/self/status in bytes."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name + ":"):
                return int(line.split()[1]) << 10
    raise KeyError(name)


def memory(rank, world):
    """Returns a load's peak memory in addition to its tensors."""
    load()  # One-time allocations.
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # Resets the peak.
    before = status("VmRSS")
    found = load("large.safetensors")
    own = sum(one.nbytes for one in found.values())
    return {"own": own, "beside": status("VmHWM") - before - own}


def without_the_last(rank, world, number):
    """Loads while the last process sends itself a signal between two rounds;
    returns the exceptions of the others."""
    _schedule._ROUND_BYTES, _schedule._PIECE_BYTES = 96 << 10, 32 << 10
    read, count = _together.Together._read, []
    store = dist.distributed_c10d._get_default_store()

    def fatal(self, pieces, memory):
        count.append(None)
        if rank == world - 1 and len(count) == 2:
            store.set("last", str(os.getpid()))
            os.kill(os.getpid(), number)
        return read(self, pieces, memory)

    _together.Together._read = fatal
    start = time.monotonic()
    code, said = raised(load)
    seconds = time.monotonic() - start
    if rank == 0 and number == signal.SIGSTOP:
        os.kill(int(store.get("last")), signal.SIGKILL)
    return {"code": code, "said": said, "seconds": seconds}


def killed(rank, world):
    return without_the_last(rank, world, signal.SIGKILL)


def stopped(rank, world):
    return without_the_last(rank, world, signal.SIGSTOP)


if __name__ == "__main__":
    FOLDER = pathlib.Path(sys.argv[1])
    rank, world = join()
    results = {"good": good, "sent": sent, "bad": bad, "memory": memory,
               "killed": killed, "stopped": stopped}
    for name in sys.argv[2].split(","):
        said = results[name](rank, world)
        print(json.dumps(said), flush=True)
        if name in ("good", "sent", "bad", "memory"):
            dist.barrier()
    os._exit(0)  # Failed collectives are never completed.
