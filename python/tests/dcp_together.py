"""Four gloo processes that use DCP; see test_dcp_together.py."""

import functools
import json
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from gloo_group import join
from haulway.torch.dcp import LoadPlanner, Reader, Writer

FOLDER = pathlib.Path(sys.argv[1])
ROWS = torch.arange(10 * 6.0).reshape(10, 6)
MANY = torch.arange(64 * 1024.0).reshape(64, 1024)


@functools.cache
def layouts(world):
    """Returns how a state is laid out over the first `world` ranks. All ranks
    must call it."""
    line = DeviceMesh("cpu", list(range(world)))
    found = {"rows": (line, [Shard(0)]), "columns": (line, [Shard(1)]),
             "many": (line, [Shard(0)]), "same": (line, [Replicate()])}
    if world == 4:
        square = DeviceMesh("cpu", [[0, 1], [2, 3]])
        found["square"] = (square, [Shard(0), Shard(1)])
        found["strided"] = (square, [Shard(0), Shard(0)])
    else:
        found["square"] = (line, [Shard(1)])
        found["strided"] = (line, [Shard(0)])
    return found


def state(world, factor=1):
    made = {
        name: distribute_tensor(
            factor * (MANY if name == "many" else ROWS), mesh, placements)
        for name, (mesh, placements) in layouts(world).items()
    }
    return {"model": made, "plain": factor * torch.ones(7), "step": 3 * factor}


def is_whole(found, factor=1):
    if found["step"] != 3 * factor:
        return False
    for name, tensor in found["model"].items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if not torch.equal(whole, factor * (MANY if name == "many" else ROWS)):
            return False
    return torch.equal(found["plain"], factor * torch.ones(7))


def load_stock(world, folder, **options):
    into = state(world, 0)
    dcp.load(into, checkpoint_id=folder, **options)
    return is_whole(into)


def load_ours(world, folder, **options):
    into = state(world, 0)
    reader = Reader(folder)
    dcp.load(into, storage_reader=reader, planner=LoadPlanner(), **options)
    return is_whole(into), reader.stats["read_bytes"]


def four():
    results = {}
    dcp.save(state(4),
             storage_writer=Writer(FOLDER / "ours4", thread_count=2))
    dcp.save(state(4), checkpoint_id=FOLDER / "theirs4")
    results["stock reads ours"] = load_stock(4, FOLDER / "ours4")
    results["we read ours"] = load_ours(4, FOLDER / "ours4")[0]
    results["we read theirs"] = load_ours(4, FOLDER / "theirs4")[0]
    # Each rank saves its own state.
    alone = {"rank": torch.full((5,), float(dist.get_rank())), "n": 1}
    for name, writer in (("apart", Writer(FOLDER / "apart")),
                         ("stock apart", None)):
        dcp.save(alone, checkpoint_id=FOLDER / name, storage_writer=writer,
                 use_collectives=False)
        dist.barrier()
        read = []
        for reader in (Reader(FOLDER / name), dcp.FileSystemReader(FOLDER / name)):
            into = {"rank": torch.zeros(5), "n": 0}
            dcp.load(into, storage_reader=reader)
            read.append(torch.equal(into["rank"], alone["rank"]) and into["n"])
        results[name] = read == [1, 1]
    # FSDP2.
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(9, 13), torch.nn.Linear(13, 5))
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    fully_shard(model, mesh=layouts(4)["rows"][0])
    dcp.save(model.state_dict(), storage_writer=Writer(FOLDER / "fsdp"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    into = model.state_dict()
    dcp.load(into, storage_reader=Reader(FOLDER / "fsdp"))
    results["fsdp2"] = all(
        torch.equal(value.full_tensor(), wanted[name])
        for name, value in model.state_dict().items())
    # In the background, while the caller goes on.
    for kind in (AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS):
        folder = FOLDER / f"async-{kind.value}"
        mine = state(4)
        done = dcp.async_save(
            mine, storage_writer=Writer(folder), async_checkpointer_type=kind)
        mine["plain"].zero_()
        for tensor in mine["model"].values():
            tensor.to_local().zero_()
        done.result()
        dist.barrier()
        results[f"async {kind.value}"] = load_stock(4, folder)
    return results


def two():
    """The first two ranks read what four wrote, and then overwrite it."""
    results, group = {}, layouts(2)["rows"][0].get_group()
    together = {"process_group": group}
    results["4 to 2"] = load_ours(2, FOLDER / "ours4", **together)[0]
    results["4 to 2, theirs"] = load_ours(2, FOLDER / "theirs4", **together)[0]
    into = {"many": state(2, 0)["model"]["many"]}
    reader = Reader(FOLDER / "ours4")
    dcp.load({"model": into}, storage_reader=reader, **together)
    wanted = into["many"].to_local().nbytes
    results["bytes of rows"] = reader.stats["read_bytes"] <= wanted + 2 * 8192
    dcp.save(state(2), storage_writer=Writer(FOLDER / "ours2"), **together)
    results["stock reads two"] = load_stock(2, FOLDER / "ours2", **together)
    if dist.get_rank() == 0:
        plain = {"model": {name: torch.zeros(10, 6) for name in
                           ("rows", "columns", "same", "square", "strided")},
                 "plain": torch.zeros(7), "step": 0}
        plain["model"]["many"] = torch.zeros(64, 1024)
        dcp.load(plain, storage_reader=Reader(FOLDER / "ours4"), no_dist=True)
        results["4 to 1"] = is_whole(plain)
    # Both ranks must have read before anything is overwritten.
    dist.barrier(group)
    dcp.save(state(2, 2), storage_writer=Writer(FOLDER / "ours4"), **together)
    into = state(2, 0)
    dcp.load(into, checkpoint_id=FOLDER / "ours4", **together)
    results["over it"] = is_whole(into, 2)
    results["old files went"] = len(list((FOLDER / "ours4").iterdir())) == 3
    return results


if __name__ == "__main__":
    join()
    layouts(2)
    results = four()
    dist.barrier()
    if dist.get_rank() < 2:
        results |= two()
    dist.barrier()
    results["2 to 4"] = load_ours(4, FOLDER / "ours2")[0]
    print(json.dumps(results), flush=True)
    dist.destroy_process_group()
