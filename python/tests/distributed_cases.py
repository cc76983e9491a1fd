"""Loads by groups of gloo processes; see test_distributed_load.py."""

import ctypes
import io
import json
import os
import pathlib
import signal
import socket
import sys
import threading
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
    """Returns the peak memory of a load in addition to its tensors, in MiB."""
    options = {"memory_budget": 32 << 20}
    load(**options)  # One-time allocations.
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # Resets the peak.
    before = status("VmRSS")
    found = load("large.safetensors", **options)
    own = sum(one.nbytes for one in found.values())
    return {"beside": (status("VmHWM") - before - own) / (1 << 20)}


def memory_sent(rank, world):
    """The same by collectives."""
    _together._SHARES_MEMORY = False
    return memory(rank, world)


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
    said = timed(lambda: load(timeout=15))
    if rank == 0 and number == signal.SIGSTOP:
        os.kill(int(store.get("last")), signal.SIGKILL)
    return said


def timed(call, **more):
    """Returns what a call raises, and after how many seconds."""
    start = time.monotonic()
    code, said = raised(call)
    return {"code": code, "said": said, "seconds": time.monotonic() - start, **more}


class Stalls(io.RawIOBase):
    """A file that gives its first bytes, and then nothing more."""

    def __init__(self, count):
        self._file = open(FOLDER / "m.safetensors", "rb")
        self._count = count
        self.seek, self.tell = self._file.seek, self._file.tell

    def readable(self):
        return True

    def seekable(self):
        return True

    def readinto(self, memory):
        self._count -= 1
        if self._count < 0:
            threading.Event().wait()
        return self._file.readinto(memory)


def silent_server():
    listening = socket.create_server(("127.0.0.1", 0))
    kept.append(listening)
    return f"http://127.0.0.1:{listening.getsockname()[1]}/m.safetensors"


kept = []
STALLING = {
    "server": silent_server, "first byte": lambda: Stalls(0),
    "later bytes": lambda: Stalls(3),
}


def stalls(rank, world):
    """Every rank's source stalls; the time-out ends each."""
    return {name: timed(lambda make=make: haulway.distributed.load(
        make(), timeout=3, group=dist.new_group()))
        for name, make in STALLING.items()}


def stalls_and_killed(rank, world):
    if rank == world - 1:
        _together.Together.plan = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        return load()
    return timed(lambda: haulway.distributed.load(Stalls(3)))


def busy(rank, world):
    """The last rank is late, because C code holds its interpreter."""
    if rank == world - 1:
        ctypes.PyDLL(None).sleep(14)
    return timed(load)


def holder_stops(rank, world):
    dist.barrier()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    return timed(lambda: load(timeout=4))


def holder_fails(rank, world):
    """Rank 0 fails, and ends together with the store."""
    return timed(lambda: load("none" if rank == 0 else "m.pt"))


def killed(rank, world):
    return without_the_last(rank, world, signal.SIGKILL)


def stopped(rank, world):
    return without_the_last(rank, world, signal.SIGSTOP)


if __name__ == "__main__":
    FOLDER = pathlib.Path(sys.argv[1])
    rank, world = join(held="holder" in sys.argv[2])
    results = {"good": good, "sent": sent, "bad": bad, "memory": memory,
               "memory_sent": memory_sent,
               "killed": killed, "stopped": stopped, "stalls": stalls,
               "stalls_and_killed": stalls_and_killed, "busy": busy,
               "holder_stops": holder_stops, "holder_fails": holder_fails}
    for name in sys.argv[2].split(","):
        said = results[name](rank, world)
        print(json.dumps(said), flush=True)
        if name in ("good", "sent", "bad", "memory", "memory_sent"):
            dist.barrier()
    os._exit(0)  # Failed collectives are never completed.
