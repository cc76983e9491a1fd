"""Makes torch.distributed.checkpoint directories with torch itself.

Run as `python dcp_directories.py FOLDER`: imports torch once and forks the
ranks, which communicate by gloo over a file.
"""

import multiprocessing
import pathlib
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

FLOATS8 = [
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
DTYPES = [
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
    *FLOATS8,
    "float4_e2m1fn_x2",
]


def alone():
    """Returns what one process saves: every dtype, edge cases of shapes, nested
    objects."""
    raw = torch.arange(64, dtype=torch.uint8) % 2
    tensors = {
        name: raw.clone().view(getattr(torch, name)) if name != "bool" else raw.bool()
        for name in DTYPES
    }
    return {
        "dtypes": tensors,
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "large": torch.arange(300000, dtype=torch.float32).reshape(300, 1000),
        "many": torch.ones(1, 2, 3, 1, 2, 1, 1, 2, 1, 1, 3),
        "epoch": 5,
        "name": "größe",
        "opt": {
            "groups": [{"lr": 0.1, "params": [0, 1]}],
            "state": [torch.ones(3, dtype=torch.bfloat16)],
        },
    }


def rank_work(rank, world, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", rank=rank, world_size=world, init_method=f"file://{folder}/.meet{world}"
    )
    mesh = init_device_mesh("cpu", (world,))
    rows = torch.arange(60, dtype=torch.float32).reshape(10, 6)
    state = {
        "rows": distribute_tensor(rows, mesh, [Shard(0)]),
        "columns": distribute_tensor(rows.to(torch.bfloat16), mesh, [Shard(1)]),
        "same": distribute_tensor(torch.arange(7), mesh, [Replicate()]),
        "epoch": 5,
        "opt": {"lr": 0.1, "steps": [1, 2]},
    }
    dcp.save(state, checkpoint_id=f"{folder}/ranks{world}")
    if world == 4:
        grid = init_device_mesh("cpu", (2, 2))
        dcp.save(
            {"grid": distribute_tensor(rows, grid, [Shard(0), Shard(1)])},
            checkpoint_id=f"{folder}/grid",
        )
        state[f"only{rank}"] = torch.full((2,), rank)
        dcp.save(state, checkpoint_id=f"{folder}/apart", use_collectives=False)
    dist.destroy_process_group()


def main(folder):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    warnings.simplefilter("ignore")
    fork = multiprocessing.get_context("fork")
    for world in (2, 4):
        ranks = [
            fork.Process(target=rank_work, args=(rank, world, folder))
            for rank in range(world)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
            assert rank.exitcode == 0
    dcp.save(alone(), checkpoint_id=f"{folder}/alone", no_dist=True)
    for name in ("alone", "ranks2", "ranks4", "grid"):
        dcp_to_torch_save(f"{folder}/{name}", f"{folder}/{name}.pt")


if __name__ == "__main__":
    main(str(pathlib.Path(sys.argv[1]).resolve()))
