"""Ranks of a gloo group that publish together; see test_publishing_ranks.py."""

import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist

import haulway
import haulway.delta
from delta_versions import model, step
from gloo_group import join


def part(state, rank, world):
    """Returns the tensors of a rank; all ranks have the embedding."""
    return {name: tensor for i, (name, tensor) in enumerate(sorted(state.items()))
            if i % world == rank or name == "a.weight"}


def refused(publisher, state):
    try:
        publisher.publish(state)
    except haulway.Error as error:
        return str(error)
    return ""


rank, world = join()
folder = pathlib.Path(sys.argv[1])
states = [model(size=40_000)]
for seed in (1, 2, 3):
    states.append(step(states[-1], seed, 0.02))
publisher = haulway.delta.publisher(
    folder / "run", folder / "base", group=dist.group.WORLD, full_every=3,
    shard=500)
made = [vars(publisher.publish(part(states[1], rank, world)))]
said = []
# A tensor that differs between ranks, one that is new, and one that no rank has.
wrong = part(states[2], rank, world)
wrong["a.weight"] = wrong["a.weight"] + rank
said.append(refused(publisher, wrong))
said.append(refused(publisher, {**part(states[2], rank, world),
                                **({"new": torch.ones(1)} if rank == 1 else {})}))
mine = part(states[2], rank, world)
mine.pop("b.weight", None)
said.append(refused(publisher, mine))
# One rank fails on its own.
os.environ["TMPDIR"] = "/none"
said.append(refused(publisher, {**part(states[2], rank, world),
                                **({"b.weight": 3} if rank == 0 else {})}))
for state in states[2:]:
    made.append(vars(publisher.publish(part(state, rank, world))))
second = ""
if rank == 0:
    try:
        haulway.delta.publisher(folder / "run", folder / "base")
    except haulway.UnavailableError as error:
        second = str(error)
publisher.close()
dist.barrier()
publisher = haulway.delta.publisher(
    folder / "run", folder / "base", group=dist.group.WORLD)
made.append(vars(publisher.publish(part(states[3], rank, world))))
print(json.dumps({"made": made, "said": said, "second": second,
                  "version": publisher.version}))
