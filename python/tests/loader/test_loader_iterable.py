"""Iterable datasets with DataLoader: when workers end, and which warnings
appear."""

import itertools

import pytest
import torch
from torch.utils.data import ChainDataset
from torch.utils.data.datapipes.iter import IterableWrapper

import loader_data as data
from haulway.ipc import DataLoader
from loader_cases import BOTH, compare, failure, outcome


def twice(loader):
    return list(loader), list(loader)


@pytest.mark.parametrize("options", [
    {"num_workers": 0}, {"num_workers": 0, "batch_size": None}, {},
    {"batch_size": 3}, {"batch_size": 3, "drop_last": True},
    {"batch_size": None}, {"batch_size": None, "prefetch_factor": 1},
    {"num_workers": 3, "batch_size": 2, "persistent_workers": True},
], ids=str)
def test_every_worker_gives_all_of_it(options):
    compare(data.Counting(), twice, **options)


@pytest.mark.parametrize("sizes", [
    (3, 3), (0, 5), (5, 0), (1, 9), (9, 1), (0, 0), (1, 4, 2)], ids=str)
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_end_at_different_times(sizes, persistent):
    got = compare(data.Split(*sizes), twice, batch_size=2,
                  num_workers=len(sizes), persistent_workers=persistent)
    assert sum(len(batch) for batch in got[0]) == sum(sizes)


def test_workers_that_have_ended_are_no_failure():
    loader = DataLoader(data.Split(1, 30), batch_size=None, num_workers=2)
    iterator = iter(loader)
    first = next(iterator)
    got = []
    for value in iterator:
        got.append(value)
        if len(got) == 3:
            iterator._workers[0].join(30)
            assert iterator._workers[0].exitcode == 0
    assert int(first) == 0 and [int(v) for v in got] == list(range(100, 130))


def test_unordered_batches_of_iterable_datasets():
    got = compare(data.Split(4, 6), lambda loader: sorted(map(int, loader)),
                  batch_size=None, in_order=False)
    assert got == [0, 1, 2, 3, *range(100, 106)]


def test_lengths_are_what_datasets_say():
    def read(loader):
        return len(loader), list(loader), list(loader)

    for options in {}, {"batch_size": 2}, {"batch_size": 2, "drop_last": True}:
        compare(data.Counting, read, **options)


def test_more_than_was_promised_is_warned_of():
    def read(loader):
        return len(loader), list(loader)

    compare(data.Counting(3), read)
    told = outcome(DataLoader, data.Counting(3), read, num_workers=2)[1]
    assert any("was reported to be 3" in text for text in told)


def test_chains():
    compare(ChainDataset([data.Counting(2), data.Counting(3)]), batch_size=2)


def test_endless_datasets_given_up_again_and_again():
    endless = data.Split(10**9, 10**9)
    for persistent in False, True:
        compare(endless, lambda loader: [
            list(itertools.islice(loader, 5)) for _ in range(3)
        ], batch_size=2, persistent_workers=persistent)


@pytest.mark.filterwarnings("ignore")
def test_data_pipes():
    def read(loader):
        return sorted(map(int, loader)), sorted(map(int, loader))

    for shuffle in False, True:
        compare(lambda: IterableWrapper(list(range(12))).shuffle()
                .sharding_filter(), read, batch_size=None, shuffle=shuffle,
                num_workers=2)


class BadlyBegun(torch.utils.data.IterableDataset):
    def __iter__(self):
        raise OSError("there is nothing to iterate over")


def test_an_iterable_that_does_not_begin():
    for workers in 0, 2:
        said = []
        for each in BOTH:
            _, error = failure(each, BadlyBegun(), num_workers=workers)
            said.append((type(error), str(error).splitlines()[0]))
        assert said[0] == said[1]
