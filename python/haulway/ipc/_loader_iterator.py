"""The iterator of a loader with workers."""

# How: what comes when, to whom, with which seeds and random draws, is torch's
# own iterator and its workers' own loop; only what carries indices and batches
# is exchanged for a Transport. So nothing of torch's order is told twice, and a
# new release of torch brings its own.


from __future__ import annotations

import contextlib
import os
import queue
import time
from multiprocessing.util import Finalize

import torch.multiprocessing
from torch.utils.data._utils.signal_handling import _remove_worker_pids
from torch.utils.data.dataloader import (
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from ._loader_transport import Transport

# How long to wait for a batch before looking around.
_SLICE_S = 0.1
# How long workers may take to end; torch then makes them.
_PATIENCE_S = 5.0
# The same when the program ends.
_LAST_PATIENCE_S = 1.0


class _WithContext:
    """A loader whose processes come from another context."""

    def __init__(self, loader, context):
        self._loader = loader
        self.multiprocessing_context = context

    def __getattr__(self, name):
        return getattr(self._loader, name)


def position_of(loader):
    """What notes how far the loader comes, or None; see _loader_position.py."""
    return getattr(loader, "_position", None)


class PlacedIterator(_SingleProcessDataLoaderIter):
    """torch's iterator without workers, for loaders with a position."""

    def __init__(self, loader):
        self._position = position_of(loader)
        super().__init__(loader)
        # Profiles name the step as they do for torch's.
        self._profile_name = (
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        )

    def _next_index(self):
        index = super()._next_index()
        self._position.drawn()
        return index

    def _next_data(self):
        try:
            data = super()._next_data()
        except StopIteration:
            self._position.finished = True
            raise
        except Exception:
            self._position.given()  # The next batch is the one after it.
            raise
        self._position.given()
        return data


class ArenaIterator(_MultiProcessingDataLoaderIter):
    """Iterates over a loader's batches, which workers put into arenas.

    Belongs to the process that made it. Used by one thread at a time.
    """

    def __init__(self, loader):
        self._owner = os.getpid()
        self._shutdown = True  # Nothing to shut down if what follows fails.
        context = loader.multiprocessing_context
        self._transport = Transport(
            torch.multiprocessing if context is None else context,
            loader.num_workers, getattr(loader, "max_shared_bytes", None),
            position_of(loader),
        )
        # Before multiprocessing waits for its children, without end.
        self._at_exit = Finalize(
            None, _end_at_exit, (self._transport, id(self)), exitpriority=10
        )
        try:
            super().__init__(_WithContext(loader, self._transport))
        except BaseException:
            self._shutdown_workers()
            raise
        self._transport.started()
        # Profiles name the step as they do for torch's.
        self._profile_name = (
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        )

    def _reset(self, loader, first_iter=False):
        self._position = position_of(loader)
        self._is_placed = self._position is None
        super()._reset(loader, first_iter)

    def _try_put_index(self):
        if not self._is_placed:
            # An epoch begins: its first index has not been asked for.
            self._is_placed = True
            self._transport.forget_states()
            for _ in range(self._position.next_worker):
                next(self._worker_queue_idx_cycle)
            self._position.find_place(self)
        super()._try_put_index()

    def _next_index(self):
        index = super()._next_index()
        if self._position is not None:
            self._position.drawn()
        return index

    def _next_data(self):
        try:
            return super()._next_data()
        except StopIteration:
            if self._position is not None:
                self._position.finished = True
            raise

    def _process_data(self, data, worker_idx):
        if self._position is not None:
            state = self._transport.workers[worker_idx].states.popleft()
            self._position.given(worker_idx, state)
        return super()._process_data(data, worker_idx)

    def _try_get_data(self, timeout=5.0):
        """Whether a batch came in time, and the batch.

        RuntimeError if a worker has died; on a time-out it names one that is
        stopped. ArenaFull if the program holds all the memory there may be.
        """
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"this iterator belongs to process {self._owner}: a process "
                "that was forked has to make one of its own"
            )
        deadline = time.monotonic() + timeout
        self._transport.begin_to_wait()
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return True, self._data_queue.get(timeout=min(left, _SLICE_S))
            except queue.Empty:
                self._transport.look_around()
            if time.monotonic() < deadline:
                continue
            if self._timeout > 0:
                raise RuntimeError(
                    f"DataLoader timed out after {self._timeout} seconds"
                    f"{self._transport.told_of_stopped()}"
                )
            return False, None

    def _shutdown_workers(self):
        # A copy that fork() made must not end what the original uses.
        if os.getpid() != self._owner or self._transport.closed:
            return
        try:
            if not self._shutdown:
                # Their end is no failure from here on.
                if self._worker_pids_set:
                    _remove_worker_pids(id(self))
                    self._worker_pids_set = False
                self._workers_done_event.set()
                self._transport.dismiss(_PATIENCE_S)
            super()._shutdown_workers()
        finally:
            # While the interpreter ends torch leaves it to the end.
            if self._shutdown:
                self._close()

    def _close(self):
        self._at_exit.cancel()
        self._transport.close()


def _end_at_exit(transport, key):
    """Ends the workers of a program that ends."""
    with contextlib.suppress(ValueError):  # It was not made to the end.
        _remove_worker_pids(key)
    transport.dismiss(_LAST_PATIENCE_S)
    transport.close()
