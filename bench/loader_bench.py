"""Batches from workers: torch's DataLoader and Haulway's in alternation.

Both get the same dataset, whose samples are rows of memory that the workers
already have, so that only collating and transport are measured. Epochs of the
two alternate. Workers are persistent, so that their start is not counted; it is
measured separately. Processor time is that of all processes.

    scripts/bench loader [--rounds N] [--only CASE] [--json FILE] [--record]
"""

from __future__ import annotations

import functools
import os
import time

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from haulway.ipc import DataLoader
from side_by_side import MIB, Fact, Measured, main

KIB = 1 << 10
WORKERS = 2
SAMPLES = 8  # Per batch.
# Batches per epoch, by bytes per batch.
EPOCHS = {64 * KIB: 400, MIB: 200, 16 * MIB: 40}


class Rows(Dataset):
    """Samples that are rows of one tensor."""

    def __init__(self, nbytes, count):
        self._rows = torch.arange(nbytes * 32 // 8).view(32, -1)
        self._count = count

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        return self._rows[index % 32]


class Dicts(Dataset):
    """Samples that are whole batches: dicts of 40 tensors of 4 KiB."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return {f"field {i}": torch.full((KIB,), float(i)) for i in range(40)}


def epoch(loader):
    """Reads all batches, as a program does that passes them to a device."""
    for batch in loader:
        tensor = next(iter(batch.values())) if type(batch) is dict else batch
        tensor.view(-1)[-1].item()


def processor_seconds(loader):
    """Returns the processor time of this process and its workers for an
    epoch."""
    iterator = iter(loader)
    pids = [os.getpid(), *(w.pid for w in iterator._workers)]
    before = sum(map(_ticks, pids))
    epoch(iterator)
    return (sum(map(_ticks, pids)) - before) / os.sysconf("SC_CLK_TCK")


def _ticks(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def loaders(dataset, **options):
    options = {"num_workers": WORKERS, "persistent_workers": True, **options}
    return [("haulway", DataLoader(dataset, **options)),
            ("torch", TorchLoader(dataset, **options))]


def cases(directory, options):
    for nbytes, batches in EPOCHS.items():
        size = f"{nbytes // KIB} KiB" if nbytes < MIB else f"{nbytes // MIB} MiB"
        data = Rows(nbytes // SAMPLES, batches * SAMPLES)
        pair = loaders(data, batch_size=SAMPLES)
        yield (f"{batches} batches of {size}, {WORKERS} workers",
               [(name, functools.partial(epoch, each)) for name, each in pair],
               {"torch": 1 if nbytes < MIB else 2})
    pair = loaders(Dicts(), batch_size=None)
    yield (f"200 dicts of 40 tensors of 4 KiB, {WORKERS} workers",
           [(name, functools.partial(epoch, each)) for name, each in pair],
           {"torch": 2})
    for method in "fork", "spawn":
        pair = loaders(Rows(KIB, 64), batch_size=SAMPLES,
                       persistent_workers=False,
                       multiprocessing_context=method)
        yield (f"first batch, {method}",
               [(name, functools.partial(first, each)) for name, each in pair],
               {"torch": 1})
    data = Rows(MIB // SAMPLES, 200 * SAMPLES)
    pair = [("haulway", DataLoader(data, SAMPLES)),
            ("torch", TorchLoader(data, SAMPLES))]
    yield ("200 batches of 1 MiB, no workers",
           [(name, functools.partial(epoch, each)) for name, each in pair],
           {"torch": 1})


def first(loader):
    """Returns the seconds to the first batch, without the end of the
    workers."""
    start = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    return Measured(time.perf_counter() - start)


def facts(directory, options):
    for nbytes in MIB, 16 * MIB:
        data = Rows(nbytes // SAMPLES, EPOCHS[nbytes] * SAMPLES)
        pair = loaders(data, batch_size=SAMPLES)
        spent = {name: [] for name, _ in pair}
        for _ in range(options.rounds + 1):
            for name, loader in pair:
                spent[name].append(processor_seconds(loader))
        middle = {name: sorted(times[1:])[options.rounds // 2]
                  for name, times in spent.items()}
        share = middle["haulway"] / max(middle["torch"], 1e-9)
        yield Fact(
            f"processor time of batches of {nbytes // MIB} MiB",
            f"{share:.2f} of torch's", "half at most", share <= 0.5,
        )


if __name__ == "__main__":
    raise SystemExit(main(__doc__.split("\n")[0], cases, facts=facts,
                          name="loader"))
