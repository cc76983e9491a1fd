"""Runs a program in several processes that form one gloo group."""

import json
import os
import subprocess
import sys
import time


def start(program, folder, world, *arguments):
    """Starts `program`, which must call join(), once per rank."""
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
    return processes


def run(program, folder, world, *arguments, code=0, timeout=240):
    """Runs `program` in all ranks.

    Returns the lines that each rank printed, as JSON. All must exit with
    `code`; None: with any code, and the codes are returned too.
    """
    processes = start(program, folder, world, *arguments)
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


def join(held=False):
    """Joins the group; returns (rank, world).

    held: let rank 0 hold the group's store, instead of a file.
    """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    path = os.environ["STORE"]
    store = _held_by_rank_0(path, rank) if held else dist.FileStore(path, world)
    dist.init_process_group("gloo", rank=rank, world_size=world, store=store)
    return rank, world


def _held_by_rank_0(path, rank):
    """Returns a store in the memory of rank 0, as torchrun's users have it."""
    import torch.distributed as dist

    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True)
        with open(path + ".new", "w") as file:
            file.write(str(store.port))
        os.rename(path + ".new", path)
        return store
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path) as file:
        return dist.TCPStore("127.0.0.1", int(file.read()))
