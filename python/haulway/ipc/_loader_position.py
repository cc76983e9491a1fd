"""A loader that reports its position and can resume from one."""

# Design: a position counts what the program was given, not what workers have read
# ahead. The state of the sampler is recorded with each index that is drawn, and
# the state of a worker's dataset is sent with each of its batches. Both take
# effect when the program gets that batch. A sampler without a state is advanced
# by drawing from it again with the same random numbers.


from __future__ import annotations

import copy
from collections import deque

import torch

from .._errors import InvalidArgumentError
from ._loader import DataLoader, _T_co
from ._loader_worker import Place, is_stateful


def stateful_sampler(loader):
    """Returns the loader's sampler that has a state, or None."""
    found = (loader.batch_sampler, loader.sampler)
    return next((each for each in found if is_stateful(each)), None)


class Position:
    """The position of a loader's newest iteration.

    Belongs to the loader; the iteration updates it.
    """

    def __init__(self, loader, state=None):
        self.loader = loader
        self.batches = 0
        self.finished = False
        self.next_worker = 0
        self.worker_states = {}
        self.ended = set()  # The workers that have given a last, short batch.
        self.sampler = stateful_sampler(loader)
        self.sampler_state = None
        self.generator_states = _states_of(loader)
        self._drawn = deque()  # The sampler's state after each index drawn.
        if state is not None:
            self._restore(state)

    def _restore(self, state):
        self.batches = state["_num_yielded"]
        self.next_worker = state["_next_worker"]
        self.worker_states = dict(state["_worker_states"])
        self.ended = set(state["_ended_workers"])
        self.generator_states = list(state["_generator_states"])
        self.sampler_state = state["_index_sampler_state"]
        if self.sampler is not None and self.sampler_state is not None:
            self.sampler.load_state_dict(copy.deepcopy(self.sampler_state))
        if self.loader.num_workers == 0 and is_stateful(self.loader.dataset):
            self.loader.dataset.load_state_dict(state["_dataset_state"])

    def place_of(self, worker):
        """Returns the Place at which a worker's dataset starts."""
        return Place(self.worker_states.get(worker), worker in self.ended)

    def find_place(self, iterator):
        """Advances a sampler without a state by drawing the earlier indices
        again."""
        if self.loader.num_workers == 0 and self.ended:
            iterator._dataset_fetcher.ended = True
        if self.sampler_state is None:
            for _ in range(self.batches):
                next(iterator._sampler_iter, None)
        iterator._num_yielded = self.batches

    def drawn(self):
        """Records that an index was drawn for a batch."""
        if self.sampler is not None:
            self._drawn.append(copy.deepcopy(self.sampler.state_dict()))

    def given(self, worker=0, place=None):
        """Records that the program gets the next batch, from this worker."""
        self.batches += 1
        if self._drawn:
            self.sampler_state = self._drawn.popleft()
        self.next_worker = (worker + 1) % max(self.loader.num_workers, 1)
        if place is not None and place.state is not None:
            # The state may contain views of the worker's arena.
            self.worker_states[worker] = copy.deepcopy(place.state)
        if place is not None and place.ended:
            self.ended.add(worker)

    def state(self):
        """Returns a dict of plain values and of the states of datasets and
        samplers."""
        dataset = None
        if self.loader.num_workers == 0 and is_stateful(self.loader.dataset):
            dataset = copy.deepcopy(self.loader.dataset.state_dict())
        return {
            "_num_yielded": self.batches,
            "_iterator_finished": self.finished,
            "_num_workers": self.loader.num_workers,
            "_next_worker": self.next_worker,
            "_index_sampler_state": copy.deepcopy(self.sampler_state),
            "_dataset_state": dataset,
            "_worker_states": copy.deepcopy(self.worker_states),
            "_ended_workers": sorted(self.ended),
            "_generator_states": list(self.generator_states),
        }


class StatefulDataLoader(DataLoader[_T_co]):
    """A DataLoader with the methods of torchdata's StatefulDataLoader.

    in_order: has to be True.
    Other arguments: as for DataLoader.

    The dataset and the sampler may have state_dict() and load_state_dict(). A
    dataset's are called in each worker, for each batch and before the first
    one. Without them, the loader draws the indices of the batches that the
    program had, and workers begin as in any epoch. Like DataLoader, for one
    thread at a time. Raises what DataLoader raises.
    """

    def __init__(self, *args, **kwargs):
        self._position = None
        self._to_resume = None
        super().__init__(*args, **kwargs)
        if not getattr(self, "in_order", True):
            raise InvalidArgumentError(
                "in_order is False: a place is known in an order only",
                "kInvalidArgument",
            )

    def state_dict(self):
        """Returns how far the newest iteration has come, as a dict that can be
        pickled: which batches the program got, and the states of the sampler
        and of the dataset in each worker after these batches."""
        position = self._position
        if position is None:
            if self._to_resume is not None:
                return copy.deepcopy(self._to_resume)
            position = Position(self)
        return position.state()

    def load_state_dict(self, state_dict):
        """Makes the next iteration go on where `state_dict` was taken. A state
        that was taken after the end of an epoch begins an epoch.

        Raises InvalidArgumentError for a state of another kind, or of a loader
        with another number of workers.
        """
        _check_state(self, state_dict)
        self._to_resume = copy.deepcopy(state_dict)
        self._position = None

    def __iter__(self):
        return _begin(self, super().__iter__)


# For programs that rebuild a loader from the attributes of another.
StatefulDataLoader.__init__.__signature__ = DataLoader.__init__.__signature__
StatefulDataLoader.__module__ = "haulway.ipc"


def _check_state(loader, state):
    wanted = Position(loader).state().keys()
    if not isinstance(state, dict) or not wanted <= state.keys():
        raise InvalidArgumentError(
            "not a state that state_dict() of a StatefulDataLoader returned",
            "kInvalidArgument",
        )
    if state["_num_workers"] != loader.num_workers:
        raise InvalidArgumentError(
            f"the state is of a loader with num_workers="
            f"{state['_num_workers']}: this one has {loader.num_workers}",
            "kInvalidArgument",
        )


def _begin(loader, make):
    """Returns an iterator of `make()` at the position set by
    load_state_dict()."""
    state, loader._to_resume = loader._to_resume, None
    if state is None or state["_iterator_finished"]:
        loader._position = Position(loader)
        return make()
    position = loader._position = Position(loader, state)
    if loader.num_workers:
        loader._iterator = None  # Start new workers, each with its state.
    # The iteration draws the same random numbers as the recorded one.
    # Afterwards the program's own generator continues as if nothing had been
    # drawn.
    before = torch.get_rng_state()
    generators = _generators_of(loader)
    for generator, noted in zip(generators, position.generator_states):
        generator.set_state(noted)
    try:
        iterator = make()
        if loader.num_workers == 0:
            position.find_place(iterator)
        return iterator
    finally:
        torch.set_rng_state(before)


def _generators_of(loader):
    """Returns the generators that a loader and its samplers draw from, each
    once."""
    found = [torch.default_generator]
    for owner in (loader, loader.sampler, loader.batch_sampler):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and not any(
            generator is each for each in found
        ):
            found.append(generator)
    return found


def _states_of(loader):
    return [generator.get_state() for generator in _generators_of(loader)]
