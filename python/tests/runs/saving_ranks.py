"""Ranks that save one checkpoint together: python saving_ranks.py FOLDER WAY."""

import json
import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import gloo_group
import haulway

FOLDER, WAY = pathlib.Path(sys.argv[1]), sys.argv[2]


def state(mesh, step):
    whole = torch.arange(64.0).reshape(16, 4) + step
    return {"w": distribute_tensor(whole, mesh, [Shard(0)]),
            "n": torch.tensor([step])}


def main():
    rank, world = gloo_group.join(held=True)
    mesh = init_device_mesh("cpu", (world,))
    run = haulway.Checkpoints(FOLDER / "run", keep=2, format="torch-dcp")
    for step in (1, 2):
        found = run.save(state(mesh, step), step, metadata={"step": step})
        assert found.step == step
    run.save_async(state(mesh, 3), 3, metadata={"step": 3})
    run.wait()
    if WAY == "killed":
        if rank == 2:
            import haulway._writing.ranks as ranks

            def die(*arguments):
                os.kill(os.getpid(), signal.SIGKILL)

            ranks.Ranks._write = die
        try:
            run.save(state(mesh, 4), 4)
        except BaseException as error:  # As torch's CheckpointException is.
            print(json.dumps({"told": type(error).__name__}), flush=True)
        else:
            print(json.dumps({"told": None}), flush=True)
        os._exit(0)
    if WAY == "steps":
        for save in (run.save, run.save_async):
            try:
                save(state(mesh, 4), 5 if rank == 1 else 4)
            except haulway.MismatchError as error:
                told = str(error)
        assert "rank 1 saves step 5: expected 4" in told
        print(json.dumps({"told": told}), flush=True)
    if WAY == "fails":
        # What one rank has differs from what the others have.
        wrong = state(mesh, 4)
        if rank == 1:
            wrong["n"] = object.__new__(type("Local", (), {}))
        try:
            run.save(wrong, 4)
        except BaseException as error:  # As torch's CheckpointException is.
            print(json.dumps({"told": type(error).__name__}), flush=True)
    dist.barrier()
    run.close()
    dist.destroy_process_group()


main()
