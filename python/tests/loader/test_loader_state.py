"""StatefulDataLoader resumes where another loader's state was taken."""

import inspect
import pickle

import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler, get_worker_info

import loader_data as data
from haulway.ipc import DataLoader, StatefulDataLoader
from loader_cases import same

WORKERS = [0, 1, 2]


class Counting(IterableDataset):
    """Counts in steps of the number of workers; has a state."""

    def __init__(self, count=24):
        self.count, self.at = count, 0
        self.loaded = []

    def __iter__(self):
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        while number + self.at * workers < self.count:
            self.at += 1
            yield torch.full((300,), number + (self.at - 1) * workers)
        self.at = 0

    def state_dict(self):
        return {"at": self.at, "large": torch.full((5000,), self.at)}

    def load_state_dict(self, state):
        assert int(state["large"][-1]) == state["at"]
        self.at = state["at"]


class Walk:
    """A sampler with a state; its order is not drawn again."""

    def __init__(self, count=24):
        self.order = torch.randperm(count).tolist()
        self.at = 0

    def __iter__(self):
        while self.at < len(self.order):
            self.at += 1
            yield self.order[self.at - 1]
        self.at = 0

    def __len__(self):
        return len(self.order)

    def state_dict(self):
        return {"order": self.order, "at": self.at}

    def load_state_dict(self, state):
        self.order, self.at = list(state["order"]), state["at"]


def taken_after(count, make, **options):
    """Returns the batches of an epoch and of the next one, equal after resuming
    from a state that was taken after `count` batches and pickled."""
    torch.manual_seed(5)
    whole = list(StatefulDataLoader(make(), **options))
    torch.manual_seed(5)
    loader = StatefulDataLoader(make(), **options)
    iterator = iter(loader)
    got = [next(iterator) for _ in range(count)]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    generator = torch.get_rng_state()
    del iterator
    torch.manual_seed(77)
    other = StatefulDataLoader(make(), **options)
    other.load_state_dict(state)
    torch.set_rng_state(generator)
    rest = list(other)
    if count:  # Otherwise the sampler has not drawn yet.
        assert torch.equal(torch.get_rng_state(), generator)
    return whole, got + rest


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_a_shuffled_epoch_goes_on(workers, count):
    whole, got = taken_after(count, data.Numbers, batch_size=3, shuffle=True,
                             num_workers=workers)
    same(whole, got)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_sampler_with_a_generator_of_its_own_goes_on(workers):
    def options():
        generator = torch.Generator().manual_seed(3)
        return {"sampler": RandomSampler(range(20), replacement=True,
                                         num_samples=40, generator=generator),
                "batch_size": 4, "num_workers": workers}

    whole = list(StatefulDataLoader(data.Numbers(), **options()))
    loader = StatefulDataLoader(data.Numbers(), **options())
    iterator = iter(loader)
    got = [next(iterator) for _ in range(4)]
    other = StatefulDataLoader(data.Numbers(), **options())
    other.sampler.generator.manual_seed(999)
    other.load_state_dict(loader.state_dict())
    same(whole, got + list(other))


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("count", [1, 4, 7])
def test_datasets_that_say_where_they_are_go_on(workers, count):
    whole, got = taken_after(count, Counting, batch_size=2, num_workers=workers)
    same(whole, got)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_that_has_given_its_last_short_batch_gives_no_more(
        workers, persistent):
    """The dataset's state is then that of its beginning again."""
    options = {"batch_size": 4, "num_workers": workers,
               "persistent_workers": persistent and workers > 0}
    batches = len(list(StatefulDataLoader(Counting(20), **options)))
    for count in range(1, batches + 1):
        whole, got = taken_after(count, lambda: Counting(20), **options)
        same(whole, got)
    loader = StatefulDataLoader(Counting(20), **options)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    other = StatefulDataLoader(Counting(20), **options)
    other.load_state_dict(loader.state_dict())
    assert list(other) == []
    same(whole, list(other))


@pytest.mark.parametrize("workers", WORKERS)
def test_a_dataset_with_one_of_the_methods_has_no_state(workers):
    class Half(data.Numbers):
        def state_dict(self):
            raise AssertionError("there is no load_state_dict()")

    whole, got = taken_after(3, Half, batch_size=3, num_workers=workers)
    same(whole, got)


def test_datasets_go_on_after_one_worker_has_ended():
    class Uneven(Counting):
        def __iter__(self):
            if get_worker_info().id == 0 and self.at == 0:
                self.at = 9
            yield from super().__iter__()

    whole, got = taken_after(8, Uneven, batch_size=1, num_workers=2)
    same(whole, got)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("batch_size", [None, 4])
def test_samplers_that_say_where_they_are_go_on(workers, batch_size):
    torch.manual_seed(8)
    sampler = Walk()
    loader = StatefulDataLoader(data.Numbers(24), batch_size=batch_size,
                                sampler=sampler, num_workers=workers)
    iterator = iter(loader)
    got = [next(iterator) for _ in range(3)]
    state = loader.state_dict()
    # Batches that workers have read ahead do not count.
    assert state["_index_sampler_state"]["at"] == 3 * (batch_size or 1)
    other = StatefulDataLoader(data.Numbers(24), batch_size=batch_size,
                               sampler=Walk(), num_workers=workers)
    other.load_state_dict(state)
    got += list(other)
    wanted = list(DataLoader(data.Numbers(24), batch_size=batch_size,
                             sampler=list(sampler.order)))
    same(wanted, got)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_state_after_the_last_batch_begins_an_epoch(workers):
    loader = StatefulDataLoader(Counting(), batch_size=2, num_workers=workers)
    whole = list(loader)
    state = loader.state_dict()
    assert state["_iterator_finished"] and state["_num_yielded"] == len(whole)
    other = StatefulDataLoader(Counting(), batch_size=2, num_workers=workers)
    other.load_state_dict(state)
    same(whole, list(other))


@pytest.mark.parametrize("workers", WORKERS)
def test_a_state_at_the_last_batch_ends_the_epoch(workers):
    options = {"batch_size": 2, "num_workers": workers}
    loader = StatefulDataLoader(range(10), **options)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    other = StatefulDataLoader(range(10), **options)
    other.load_state_dict(loader.state_dict())
    assert list(other) == []
    assert len(list(other)) == 5  # The following epoch is complete.


def test_workers_that_persist_begin_anew_at_the_place():
    loader = StatefulDataLoader(Counting(), batch_size=2, num_workers=2,
                                persistent_workers=True)
    whole = list(loader)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    state = loader.state_dict()
    list(iterator)
    loader.load_state_dict(state)
    same(whole[5:], list(loader))
    same(whole, list(loader))  # The following epoch is complete.


def test_a_state_before_an_epoch_is_the_one_that_was_loaded():
    loader = StatefulDataLoader(data.Numbers(), batch_size=3, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    other = StatefulDataLoader(data.Numbers(), batch_size=3, num_workers=2)
    other.load_state_dict(state)
    assert other.state_dict()["_num_yielded"] == 1
    assert StatefulDataLoader(data.Numbers()).state_dict()["_num_yielded"] == 0


def test_a_batch_that_fails_counts():
    def read(loader, count):
        got, iterator = [], iter(loader)
        while len(got) < count:
            try:
                got.append(next(iterator))
            except StopIteration:
                break
            except ValueError as error:
                got.append(str(error).splitlines()[0])
        return got

    for workers in WORKERS:
        options = {"batch_size": None, "num_workers": workers}
        whole = read(StatefulDataLoader(data.Failing("value"), **options), 99)
        loader = StatefulDataLoader(data.Failing("value"), **options)
        got = read(loader, 4)  # The last item is the failure.
        other = StatefulDataLoader(data.Failing("value"), **options)
        other.load_state_dict(loader.state_dict())
        assert isinstance(got[3], str)
        same(whole, got + read(other, 99))


def test_states_that_are_refused():
    loader = StatefulDataLoader(data.Numbers(), num_workers=2)
    with pytest.raises(ValueError, match="num_workers=0: this one has 2"):
        loader.load_state_dict(StatefulDataLoader(data.Numbers()).state_dict())
    for wrong in None, {}, {"_num_yielded": 3}:
        with pytest.raises(ValueError, match="StatefulDataLoader"):
            loader.load_state_dict(wrong)
    with pytest.raises(ValueError, match="in_order is False"):
        StatefulDataLoader(data.Numbers(), num_workers=2, in_order=False)


def test_its_signature_is_that_of_the_usual_loader():
    """Programs rebuild a loader by the names in the signature."""
    assert inspect.signature(StatefulDataLoader.__init__) == (
        inspect.signature(DataLoader.__init__))


def test_the_usual_loader_has_no_state():
    """Programs that look for these methods treat it like torch's loader."""
    assert not hasattr(DataLoader(Counting()), "state_dict")
