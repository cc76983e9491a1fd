"""The iterator of a loader with workers."""

# Design: torch's own iterator and its workers' own loop decide the order, the
# assignment to workers, the seeds and the random draws. Only the transport of
# indices and batches is replaced by a Transport. So torch's order is not
# implemented twice, and a new release of torch brings its own.


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
from ._loader_worker import Place, is_stateful

# Seconds to wait for a batch between checks of the workers.
_SLICE_S = 0.1
# Seconds that workers may take to end before they are killed.
_PATIENCE_S = 5.0
# The same at exit of the program.
_LAST_PATIENCE_S = 1.0


class _WithContext:
    """Wraps a loader so that its processes come from another context."""

    def __init__(self, loader, context):
        self._loader = loader
        self.multiprocessing_context = context

    def __getattr__(self, name):
        return getattr(self._loader, name)


def position_of(loader):
    """Returns the Position that records a loader's progress, or None; see
    _loader_position.py."""
    return getattr(loader, "_position", None)


class PlacedIterator(_SingleProcessDataLoaderIter):
    """torch's iterator without workers, for loaders with a position."""

    def __init__(self, loader):
        self._position = position_of(loader)
        super().__init__(loader)
        # The name of the step in profiles, as with torch's iterator.
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
            self._given()  # The position is now after this batch.
            raise
        self._given()
        return data

    def _given(self):
        ended = getattr(self._dataset_fetcher, "ended", False)
        self._position.given(0, Place(None, ended and is_stateful(self._dataset)))


class ArenaIterator(_MultiProcessingDataLoaderIter):
    """Iterates over a loader's batches, which workers put into arenas.

    Belongs to the process that made it. Used by one thread at a time.
    """

    def __init__(self, loader):
        self._owner = os.getpid()
        self._shutdown = True  # No workers to end if the following code fails.
        context = loader.multiprocessing_context
        self._transport = Transport(
            torch.multiprocessing if context is None else context,
            loader.num_workers, getattr(loader, "max_shared_bytes", None),
            position_of(loader),
        )
        # Must run before multiprocessing's exit handler, which joins its
        # children without a timeout.
        self._at_exit = Finalize(
            None, _end_at_exit, (self._transport, id(self)), exitpriority=10
        )
        try:
            super().__init__(_WithContext(loader, self._transport))
        except BaseException:
            self._shutdown_workers()
            raise
        self._transport.started()
        # The name of the step in profiles, as with torch's iterator.
        self._profile_name = (
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        )

    def _check_owner(self):
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"this iterator belongs to process {self._owner}: a process "
                "that was forked has to make one of its own"
            )

    def _reset(self, loader, first_iter=False):
        self._check_owner()
        self._position = position_of(loader)
        self._is_placed = self._position is None
        self._worker_of = {}  # By the number of a batch that is requested.
        super()._reset(loader, first_iter)

    def _try_put_index(self):
        if not self._is_placed:
            # The first index of an epoch is about to be requested.
            self._is_placed = True
            self._transport.forget_states()
            for _ in range(self._position.next_worker):
                next(self._worker_queue_idx_cycle)
            self._position.find_place(self)
        sent = self._send_idx
        super()._try_put_index()
        if self._position is not None and self._send_idx != sent:
            self._worker_of[sent] = self._task_info[sent][0]

    def _next_index(self):
        index = super()._next_index()
        if self._position is not None:
            self._position.drawn()
        return index

    def _next_data(self):
        # The batch may have arrived already: torch returns such a batch without
        # a call of _try_get_data().
        self._check_owner()
        try:
            return super()._next_data()
        except StopIteration:
            if self._position is not None:
                self._position.finished = True
            raise

    def _process_data(self, data, *rest):
        # `rest` differs between releases of torch: 2.6 does not pass the
        # worker's number.
        if self._position is not None:
            worker = self._worker_of.pop(self._rcvd_idx - 1)
            state = self._transport.workers[worker].states.popleft()
            self._position.given(worker, state)
        return super()._process_data(data, *rest)

    def _try_get_data(self, timeout=5.0):
        """Returns (whether a batch arrived in time, the batch).

        Raises RuntimeError if a worker has died, or on a time-out, which names
        stopped workers; ArenaFull if the program holds all the memory that
        batches may use.
        """
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
        # In a forked copy, the workers belong to the original.
        if os.getpid() != self._owner or self._transport.closed:
            return
        try:
            if not self._shutdown:
                # From now on, the end of a worker is not a failure.
                if self._worker_pids_set:
                    _remove_worker_pids(id(self))
                    self._worker_pids_set = False
                self._workers_done_event.set()
                self._transport.dismiss(_PATIENCE_S)
            super()._shutdown_workers()
        finally:
            # While the interpreter is finalizing, torch does not shut down; the
            # exit handler does.
            if self._shutdown:
                self._close()

    def _close(self):
        self._at_exit.cancel()
        self._transport.close()


def _end_at_exit(transport, key):
    """Ends the workers at exit of the program."""
    # The iterator was not fully constructed.
    with contextlib.suppress(ValueError):
        _remove_worker_pids(key)
    transport.dismiss(_LAST_PATIENCE_S)
    transport.close()
