"""Datasets for the tests of DataLoader; importable under spawn."""

import collections
import dataclasses
import os
import random
import signal
import time

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

Pair = collections.namedtuple("Pair", "left right")


class Words(dict):
    """A program's own subclass of dict."""


class Numbered(list):
    """A program's own subclass of list."""


@dataclasses.dataclass
class Record:
    name: str
    values: torch.Tensor


class Batch:
    """A program's own type with a pin_memory() method."""

    def __init__(self, tensors):
        self.values = torch.stack(tensors)
        self.pinned = False

    def pin_memory(self):
        self.pinned = True
        return self


def to_batch(samples):
    return Batch(samples)


def first_of(samples):
    return samples[0]


def as_they_are(samples):
    return samples


class Numbers(Dataset):
    """Sample i is (i, i squared), a few elements each."""

    def __init__(self, count=20, size=6):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((self.size,), float(index)), index * index


class Draws(Dataset):
    """Samples are random numbers of every generator in the worker."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return (torch.rand(3), random.random(), numpy.random.rand(2),
                torch.initial_seed() % 1000003)


class Bulk(Numbers):
    """Returns all samples of a batch at once."""

    def __getitems__(self, indices):
        return [(torch.tensor(float(i)), -1) for i in indices]


class Sums(Dataset):
    """A batch is the sum of its indices."""

    def __len__(self):
        return 20

    def __getitem__(self, indices):
        return len(indices), sum(indices)


class Growing(Dataset):
    def __init__(self):
        self.count = 10

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index


class Keyed(Dataset):
    """A dataset whose indices are words."""

    def __len__(self):
        return 3

    def __getitem__(self, key):
        return f"value of {key}"


class Chosen(Dataset):
    """Samples that were made in advance."""

    def __init__(self, *samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


class Making(Dataset):
    """Samples that a function makes in the worker."""

    def __init__(self, make, count=4):
        self.make, self.count = make, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.make(index)


class Counting(IterableDataset):
    """0, 1, 2 ..., the same in every worker."""

    def __init__(self, count=7):
        self.count = count

    def __repr__(self):  # Warnings contain it.
        return "Counting"

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(range(self.count))


class Split(IterableDataset):
    """Gives each worker a part: `sizes[worker]` numbers from worker * 100."""

    def __init__(self, *sizes):
        self.sizes = sizes

    def __iter__(self):
        info = get_worker_info()
        for i in range(self.sizes[info.id]):
            yield torch.tensor(info.id * 100 + i)


class Informed(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        info = get_worker_info()
        return (info.id, info.num_workers, info.seed, info.dataset is self,
                torch.get_num_threads(), os.getpid() != os.getppid())


class Remembering(Dataset):
    """Counts the requests in the worker."""

    def __init__(self):
        self.seen = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.seen += 1
        return self.seen


class Custom(Exception):
    """An exception that cannot be made from one text."""

    def __init__(self, one, two):
        super().__init__(one, two)


class Failing(Dataset):
    """Fails at sample 3 in a way that `how` names."""

    def __init__(self, how, count=8):
        self.how, self.count = how, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == 3:
            fail(self.how)
        return index


def fail(how):
    if how == "value":
        raise ValueError("no such sample")
    if how == "key":
        raise KeyError("missing")
    if how == "custom":
        raise Custom(1, 2)
    if how == "local":
        class Local(Exception):
            pass

        raise Local("known here only")
    if how == "stop":
        raise StopIteration
    if how == "exit":
        os._exit(7)
    if how == "system exit":
        raise SystemExit(3)
    if how == "abort":
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
    number = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP,
              "abort": signal.SIGABRT, "term": signal.SIGTERM}[how]
    os.kill(os.getpid(), number)


class Sleeping(Dataset):
    """Sample 0 takes long."""

    def __init__(self, seconds, count=6):
        self.seconds, self.count = seconds, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == 0:
            time.sleep(self.seconds)
        return index


class Waiting(Dataset):
    """Sample 0 waits until `event` is set."""

    def __init__(self, event, count=10):
        self.event, self.count = event, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == 0:
            assert self.event.wait(60)
        return index


class Pids(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return os.getpid()


class Large(Dataset):
    """Samples of `size` bytes, each byte its index."""

    def __init__(self, count, size):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((self.size,), index % 251, dtype=torch.uint8)


class Unreadable:
    """Can be pickled but not unpickled."""

    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise LookupError("not to be read here")


def seed_another_way(worker):
    random.seed(worker)
    numpy.random.seed(worker)
    torch.manual_seed(worker)


def fail_to_begin(worker):
    raise OSError("cannot begin")


def pin_to_first_processor(worker):
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
