"""Batches of DataLoader equal torch's, in the same order and from the same
random numbers."""

import functools
import itertools

import numpy
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

import loader_data as data
from haulway.ipc import DataLoader
from loader_cases import BOTH, compare, failure, outcome, refusals, same
from torch_versions import IS_OLD


def epochs(count):
    return lambda loader: [list(loader) for _ in range(count)]


@pytest.mark.parametrize("options", [
    {"num_workers": 0},
    {"num_workers": 0, "batch_size": 3},
    {"num_workers": 0, "batch_size": 3, "shuffle": True},
    {"num_workers": 0, "batch_size": None},
    {},
    {"batch_size": 3},
    {"batch_size": 3, "drop_last": True},
    {"batch_size": 3, "shuffle": True},
    {"batch_size": 3, "shuffle": True, "num_workers": 1},
    {"batch_size": 100},
    {"batch_size": None},
    {"batch_size": None, "shuffle": True},
    {"batch_size": 2, "num_workers": 3, "prefetch_factor": 1},
    {"batch_size": 2, "prefetch_factor": 5},
    {"batch_size": 2, "shuffle": True, "prefetch_factor": 3},
], ids=str)
def test_batches_are_the_same(options):
    compare(data.Numbers(), **options)


@pytest.mark.parametrize("persistent", [False, True])
def test_random_numbers_are_the_same_in_every_epoch(persistent):
    got = compare(data.Draws(), epochs(3), batch_size=2, shuffle=True,
                  persistent_workers=persistent)
    assert not torch.equal(got[0][0][0], got[1][0][0])


def test_a_generator_gives_order_and_seeds():
    def read(loader):
        return list(loader), loader.generator.get_state()

    def make():
        generator = torch.Generator()
        generator.manual_seed(77)
        return generator

    results = []
    for each in BOTH:
        results.append(outcome(each, data.Draws(), read, num_workers=2,
                               shuffle=True, generator=make()))
    same(*results)


def test_another_generator_gives_another_order():
    orders = []
    for seed in 1, 1, 2:
        generator = torch.Generator()
        generator.manual_seed(seed)
        loader = DataLoader(data.Numbers(), shuffle=True, num_workers=2,
                            generator=generator)
        orders.append([int(square) for _, square in loader])
    assert orders[0] == orders[1] != orders[2]


def test_numbers_are_drawn_from_the_program_at_the_same_moments():
    def read(loader):
        seen = [torch.rand(1)]
        iterator = iter(loader)
        seen.append(torch.rand(1))
        for _ in range(3):
            next(iterator)
            seen.append(torch.rand(1))
        return seen

    compare(data.Numbers(), read, shuffle=True, batch_size=2)


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_that_is_given_up_changes_what_follows_in_the_same_way(persistent):
    def read(loader):
        first = list(itertools.islice(loader, 3))
        return first, list(loader), list(loader)

    compare(data.Draws(), read, batch_size=1, shuffle=True,
            persistent_workers=persistent)


def test_workers_that_persist_answer_all_that_they_were_asked():
    """After an abandoned epoch their datasets are in the same state."""
    def read(loader):
        return list(itertools.islice(loader, 2)), list(loader)

    compare(data.Remembering(), read, persistent_workers=True)


def test_several_iterators_of_one_loader_at_once():
    def read(loader):
        return list(zip(loader, loader))

    compare(data.Draws(), read, shuffle=True, batch_size=4)


def test_several_loaders_at_once():
    def read(loader):
        other = type(loader)(data.Draws(), num_workers=2)
        iterator = iter(other)
        found = [(batch, next(iterator)) for batch in loader]
        return found, list(iterator)

    compare(data.Numbers(12), read, batch_size=2)


def test_a_loader_within_the_loop_of_another():
    def read(loader):
        inner = type(loader)(data.Numbers(4), num_workers=1)
        return [(batch, list(inner)) for batch in loader]

    compare(data.Numbers(3), read)


@pytest.mark.parametrize("sampler", [
    lambda d: SequentialSampler(d),
    lambda d: RandomSampler(d),
    lambda d: RandomSampler(d, replacement=True, num_samples=13),
    lambda d: WeightedRandomSampler([1.0, 0, 2, 3] * 5, 9),
    lambda d: SubsetRandomSampler([3, 1, 7, 9]),
    lambda d: DistributedSampler(d, num_replicas=3, rank=1),
    lambda d: [5, 5, 2],
    lambda d: torch.tensor([4, 1, 9]),
    lambda d: numpy.array([4, 1, 9]),
], ids=["sequential", "random", "replacement", "weighted", "subset",
        "distributed", "list", "tensor", "array"])
def test_samplers(sampler):
    dataset = data.Numbers()
    torch.manual_seed(5)
    compare(dataset, batch_size=2, sampler=sampler(dataset))


@pytest.mark.parametrize("batches", [
    lambda d: BatchSampler(RandomSampler(d), 3, drop_last=True),
    lambda d: [[1, 2, 3], [0], [7, 7]],
    lambda d: [(1, 2), (3,)],
    lambda d: torch.tensor([[1, 2], [3, 4]]),
], ids=["sampler", "lists", "tuples", "tensor"])
def test_batch_samplers(batches):
    dataset = data.Numbers()
    compare(dataset, batch_sampler=batches(dataset))


def test_keys_of_any_type():
    compare(data.Keyed(), sampler=["a", "b", ("c", None)], batch_size=None)


def test_very_many_indices_in_a_batch():
    """More than fits a worker's socket at once; neither side blocks."""
    indices = list(range(400_000))
    sampler = [indices, indices[:5], indices, indices[::-1], [3], indices]
    compare(data.Sums(), sampler=sampler, batch_size=None, num_workers=1)


def test_samples_of_a_batch_at_once():
    got = compare(data.Bulk(), batch_size=4)
    assert int(got[0][1][0]) == -1


def test_a_dataset_that_grows_between_epochs():
    def read(loader):
        first = list(loader)
        loader.dataset.count = 15
        return first, list(loader), len(loader)

    compare(data.Growing, read, batch_size=2)


@pytest.mark.parametrize("dataset", [
    TensorDataset(torch.arange(12).view(6, 2), torch.arange(6)),
    Subset(data.Numbers(), [3, 5, 8]),
    ConcatDataset([data.Numbers(3), data.Numbers(4)]),
    ["a", "b", "c"],
    {0: "zero", 1: "one"},
], ids=["tensors", "subset", "concat", "list", "dict"])
def test_datasets_of_torch_and_of_python(dataset):
    compare(dataset, batch_size=2)


def test_collate_functions():
    compare(data.Numbers(), batch_size=2, collate_fn=data.as_they_are)
    compare(data.Numbers(), batch_size=2, collate_fn=lambda b: len(b))
    compare(data.Numbers(), batch_size=2, collate_fn=functools.partial(max, key=str))


def test_workers_know_about_themselves():
    def read(loader):
        return [[int(each) for each in row] for row in loader]

    got = compare(data.Informed(), read, num_workers=3, batch_size=None)
    assert [row[0] for row in got] == [0, 1, 2, 0, 1, 2]
    assert all(row[1] == 3 and row[3] and row[4] == 1 for row in got)
    assert get_worker_info() is None


@pytest.mark.parametrize("start", [data.seed_another_way,
                                   data.pin_to_first_processor])
def test_a_function_begins_each_worker(start):
    compare(data.Draws(), batch_size=4, worker_init_fn=start)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ways_to_start_workers(method):
    options = {"batch_size": 4, "shuffle": True, "num_workers": 1}
    theirs = outcome(BOTH[0], data.Draws(), **options)
    ours = outcome(BOTH[1], data.Draws(), multiprocessing_context=method,
                   **options)
    same(theirs, ours)


def test_a_context_object_starts_workers():
    context = torch.multiprocessing.get_context("fork")
    compare(data.Numbers(6), multiprocessing_context=context)


def test_convolutions_in_forked_workers_after_one_here():
    """The child does not wait for torch's threads, which exist only in the
    parent."""
    layer = torch.nn.Conv2d(1, 2, 3)
    layer(torch.ones(1, 1, 8, 8))
    with torch.no_grad():
        compare(data.Making(lambda i: layer(torch.full((1, 8, 8), float(i)))
                            .detach()), batch_size=2)


def test_lengths():
    for options in {}, {"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {
            "batch_size": None}:
        lengths = [len(each(data.Numbers(), num_workers=2, **options))
                   for each in BOTH]
        assert lengths[0] == lengths[1]
        iterators = [len(iter(each(data.Numbers(4), **options))) for each in BOTH]
        assert iterators[0] == iterators[1]


@pytest.mark.parametrize("options", [
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"num_workers": 1, "prefetch_factor": -1},
    {"persistent_workers": True},
    {"shuffle": True, "sampler": [1]},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_sampler": [[1]], "drop_last": True},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 0},
    {"multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "threads"},
    {"num_workers": 1, "multiprocessing_context": 7},
], ids=str)
def test_arguments_that_are_refused(options):
    theirs, ours = refusals(data.Numbers(), **options)
    assert theirs == ours


@pytest.mark.parametrize("options", [
    {"sampler": [1]}, {"batch_sampler": [[1]]}, {"shuffle": True}], ids=str)
def test_arguments_that_iterable_datasets_refuse(options):
    dataset = data.Counting()
    theirs, ours = refusals(dataset, **options)
    assert theirs[0] is ours[0] and theirs[1][:60] == ours[1][:60]


# torch's partly constructed iterator warns.
@pytest.mark.filterwarnings("ignore")
def test_no_batch_ahead_is_refused_as_torch_does():
    failures = []
    for each in BOTH:
        _, error = failure(each, data.Numbers(), prefetch_factor=0)
        failures.append((type(error), str(error)))
    assert failures[0] == failures[1]


def test_attributes_cannot_be_set_anew():
    loaders = [each(data.Numbers(), num_workers=1) for each in BOTH]
    for name in ("dataset", "sampler", "batch_sampler", "batch_size", "drop_last",
                 "persistent_workers"):
        said = []
        for loader in loaders:
            with pytest.raises(ValueError) as caught:
                setattr(loader, name, None)
            said.append(str(caught.value))
        assert said[0] == said[1]


def test_more_workers_than_processors_is_warned_of():
    compare(data.Numbers(2), num_workers=3)


def test_iterators_cannot_be_pickled():
    import pickle

    for each in BOTH:
        iterator = iter(each(data.Numbers(2), num_workers=1))
        with pytest.raises(NotImplementedError):
            pickle.dumps(iterator)


@pytest.mark.skipif(IS_OLD, reason="torch 2.6 waits for each worker in turn")
def test_batches_out_of_order_pass_by_one_that_takes_long():
    for each in BOTH:
        event = torch.multiprocessing.Event()
        got = []
        for value in each(data.Waiting(event), num_workers=2, in_order=False,
                          batch_size=None):
            got.append(value)
            if len(got) == 8:
                event.set()
        # The worker had already been given the next request.
        assert got == [1, 3, 4, 5, 6, 7, 8, 9, 0, 2]


def test_batches_out_of_order_are_all_there():
    compare(data.Numbers(), lambda loader: sorted(int(x) for _, x in loader),
            in_order=False, num_workers=3)


def test_a_step_is_named_in_profiles_as_torchs_is():
    names = []
    for each in BOTH:
        with torch.profiler.profile() as profile:
            list(each(data.Numbers(2), num_workers=1))
        names.append({event.key for event in profile.key_averages()
                      if "DataLoader" in event.key})
    assert names[0] == names[1] and names[0]


def test_an_iterator_knows_its_workers():
    """Programs use these attributes."""
    iterator = iter(DataLoader(data.Pids(), num_workers=2, batch_size=None))
    assert set(iterator) == {worker.pid for worker in iterator._workers}
