"""Runs a program in several processes that form one gloo group."""

import json
import os
import subprocess
import sys


def run(program, folder, world, *arguments, code=0, timeout=240):
    """Runs `program`, which must call join(), once per rank.

    Returns the lines that each rank printed, as JSON. All must exit with
    `code`; None: with any code, and the codes are returned too.
    """
    processes = []
    for rank in range(world):
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank),
            "WORLD_SIZE": str(world), "STORE": str(folder / "store"),
            "GLOO_SOCKET_IFNAME": "lo", "TOKENIZERS_PARALLELISM": "false",
        }
        processes.append(subprocess.Popen(
            [sys.executable, "-W", "ignore", str(program), str(folder),
             *map(str, arguments)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        ))
    said, codes, errors = [], [], []
    try:
        for process in processes:
            out, error = process.communicate(timeout=timeout)
            said.append([json.loads(line) for line in out.splitlines()
                         if line.startswith("{")])
            codes.append(process.returncode)
            errors.append(error)
    finally:
        for process in processes:
            process.kill()
    if code is None:
        return said, codes, errors
    assert codes == [code] * world, "\n".join(errors)
    return said


def join():
    """Joins the group; returns (rank, world)."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", rank=rank, world_size=world,
        store=dist.FileStore(os.environ["STORE"], world),
    )
    return rank, world
