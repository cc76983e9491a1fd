"""Saves of shards by several processes, which are several writers in one, called
in the order in which torch calls them.

With kill_at.c preloaded, python dcp_shard_saves.py FOLDER OLD NEW kills the first
process of NEW ones at every call of its last step that changes files, over the
shards of OLD ones. It prints a JSON list of (killed, number of the model that is
read, files after the next save) for each call.
"""

import ctypes
import json
import os
import pathlib
import sys
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import haulway
from haulway.torch.dcp import SafetensorsReader, SafetensorsWriter

OLD, NEW, LATER = 1, 2, 3


def state(rank, number):
    return {f"rank {rank}, {name}": torch.full((50,), float(number))
            for name in ("a", "b")}


class Save:
    """A save by several processes, up to its last step."""

    def __init__(self, folder, number, world=2, **more):
        self.writers = [
            SafetensorsWriter(folder, save_distributed=True, **more)
            for _ in range(world)]
        planners = [DefaultSavePlanner() for _ in self.writers]
        plans = []
        for rank, (writer, planner) in enumerate(zip(self.writers, planners)):
            is_first = rank == 0
            writer.set_up_storage_writer(is_first)
            planner.set_up_planner(
                state(rank, number), writer.storage_meta(), is_first)
            plans.append(
                writer.prepare_local_plan(planner.create_local_plan()))
        plans, self.metadata = planners[0].create_global_plan(plans)
        plans = self.writers[0].prepare_global_plan(plans)
        self.results = [
            writer.write_data(planner.finish_plan(plan), planner).value()
            for writer, planner, plan in zip(self.writers, planners, plans)]

    def finish(self):
        self.writers[0].finish(self.metadata, self.results)


def save(folder, number, world=2):
    one = Save(folder, number, world)
    one.finish()
    return one


def found(folder):
    """Returns the number of the model that is read, without torch and with it,
    which must be whole; None for an error."""
    try:
        tensors = haulway.load(folder)
    except haulway.Error:
        with pytest.raises(haulway.Error):
            SafetensorsReader(folder).read_metadata()
        return None
    into = {name: torch.zeros(50) for name in tensors}
    dcp.load(into, storage_reader=SafetensorsReader(folder), no_dist=True)
    assert sorted(into) in [
        sorted(name for rank in range(world) for name in state(rank, 0))
        for world in (1, 2, 3)]
    numbers = {value for some in (tensors, into) for tensor in some.values()
               for value in tensor.tolist()}
    (number,) = numbers
    return number


def names(folder):
    return sorted(os.listdir(folder))


def shards(world=2):
    return [f"shard-{rank:05}-model-00001-of-00001.safetensors"
            for rank in range(1, world + 1)]


def main(folder, old, new):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    library, told = ctypes.CDLL(None), []
    for call in range(1000):
        target = folder / str(call)
        save(target, OLD, old)
        child = os.fork()
        if child == 0:
            one = Save(target, NEW, new)
            library.kill_at(ctypes.c_long(call))
            one.finish()
            library.kill_at(ctypes.c_long(-1))
            os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        number = found(target)
        save(target, LATER, new)
        told.append((killed, number, found(target), names(target)))
        if not killed:
            break
    print(json.dumps(told))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:]))
