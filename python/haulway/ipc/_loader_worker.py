"""The code of a loader's worker around torch's own loop."""

from __future__ import annotations

import inspect
import os
import queue
import select
import struct
import sys
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from .. import _haulway
from .._errors import Error
from .._importing import importing
from ._handlers import THRESHOLD, register_handler
from ._offload import equip, resolve, restore

HEADER = struct.Struct("<Q")
# Smaller collated tensors are copied into the arena together, which costs less
# than one unit for each.
_LEAST_LOAN = 64 << 10
_OVER = ("kCancelled", "kUnavailable")


_METHODS = ("state_dict", "load_state_dict")


def is_stateful(thing):
    """Returns whether `thing` has the methods to save and restore a
    position."""
    return all(callable(getattr(thing, name, None)) for name in _METHODS)


class Place(NamedTuple):
    """The position of a worker's dataset, of those that report positions."""

    state: Any = None  # For load_state_dict(); None: the beginning.
    # Whether an iterable dataset had no more after its last batch, which was
    # short; its state may be that of the beginning again.
    ended: bool = False


class WorkerEnds(NamedTuple):
    """The descriptors and objects that connect a worker to its parent."""

    number: int
    channel: Any
    requests: Any
    parent: Any
    arena: Any
    bounded: bool
    epoch: int
    handlers: Any
    place: Place | None


class _Done:
    """The event that is set when the parent wants no more batches."""

    def __init__(self, sender):
        self._sender = sender

    def is_set(self):
        return self._sender.aborted


class _Requests:
    """The queue of requests."""

    def __init__(self, fd, done):
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._done = done

    def get(self, timeout=None):
        if self._done.is_set():
            return None
        seconds = None if timeout is None else timeout * 1000
        if not self._poll.poll(seconds):
            raise queue.Empty
        (length,) = HEADER.unpack(self._read(HEADER.size))
        return restore(self._read(length), None)

    def _read(self, length):
        data = bytearray()
        while len(data) < length:
            piece = os.read(self._fd, length - len(data))
            if not piece:
                sys.exit(0)  # The parent has closed this worker's socket.
            data += piece
        return data


class _Results:
    """The queue of batches."""

    def __init__(self, sender, epoch, number, state_of):
        self._sender = sender
        self._epoch = epoch
        self._where = f"in DataLoader worker process {number}"
        self._state_of = state_of

    def put(self, answer):
        rest = ()
        try:
            if self._state_of is not None and _is_batch(*answer):
                rest = (None,)
                self._sender.send((*answer, self._state_of()), self._epoch)
            else:
                self._sender.send(answer, self._epoch)
            return
        except Exception as error:
            if isinstance(error, Error) and error.code in _OVER:
                return
            failure = _picklable(answer[1], self._where)
        # Send a failure instead: otherwise the parent would wait for ever.
        self._sender.send((answer[0], failure, *rest), self._epoch)

    def cancel_join_thread(self):
        pass

    def close(self):
        pass


def _is_batch(request, data):
    """Returns whether this answers a request for a batch, with a batch or a
    failure."""
    with importing:
        from torch.utils.data._utils.worker import _IterableDatasetStopIteration

    return type(request) is int and not isinstance(
        data, _IterableDatasetStopIteration
    )


def _picklable(data, where):
    """Returns a picklable failure that replaces an answer that could not be
    sent."""
    with importing:
        from .._torch.private import ExceptionWrapper

    if not isinstance(data, ExceptionWrapper):
        data = ExceptionWrapper(where=where)
    try:
        ForkingPickler.dumps(data)
    except Exception:
        # Its type exists in this process only.
        data.exc_msg = f"{data.exc_type.__name__}: {data.exc_msg}"
        data.exc_type = RuntimeError
    return data


def _collate_into(arena):
    """Makes torch's default_collate stack batches in the arena.

    In a worker, default_collate allocates storages in shared memory, by default
    one file in /dev/shm for each.
    """
    with importing:
        import torch

        from .._torch.private import lend_storages

    def lend(size, kind):
        if kind != "cpu":
            return None
        memory = arena._lend(size) if size >= _LEAST_LOAN else None
        if memory is None:
            return torch.UntypedStorage(size)
        return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()

    lend_storages(lend)


def _placed(arguments, place):
    """Makes the loop load the dataset's state from `place` after calling the
    program's own init function. Returns a function that returns the dataset's
    Place."""
    # Since 2.14 torch passes the dataset in a list, from which its loop takes it.
    dataset = (
        arguments["dataset"] if "dataset" in arguments
        else arguments["dataset_holder"][0]
    )
    begin = arguments["init_fn"]

    def find_place(number):
        if begin is not None:
            begin(number)
        dataset.load_state_dict(place.state)

    if place.state is not None:
        arguments["init_fn"] = find_place
    with importing:
        from .._torch.private import watch_fetcher

    has_ended = watch_fetcher(place.ended)
    if not is_stateful(dataset):
        return Place
    return lambda: Place(dataset.state_dict(), has_ended())


def run_worker(ends, target, slots, rest):
    """Runs a worker: torch's loop `target`, with our queues.

    slots: for each argument of the loop the name of the queue that replaces it,
    or None for the argument in `rest`.
    """
    try:
        _haulway.end_with_peer(ends.parent.fd, 1000)
        for handler in reversed(ends.handlers):
            register_handler(handler)
        encoder = equip(_haulway.ItemEncoder(resolve, {}, THRESHOLD, False))
        full = _haulway.WhenFull
        sender = _haulway.ItemSender(
            _haulway.Channel.attach(ends.channel.fd), ends.parent.fd, encoder,
            ends.arena._open(), 1, full.BLOCK if ends.bounded else full.APART,
        )
        done = _Done(sender)
        arguments = dict(zip(inspect.signature(target).parameters, rest))
        state_of = None
        if ends.place is not None:
            state_of = _placed(arguments, ends.place)
        queues = {
            "requests": _Requests(ends.requests.fd, done),
            "results": _Results(sender, ends.epoch, ends.number, state_of),
            "done": done,
        }
        _collate_into(ends.arena)
    except KeyboardInterrupt:
        return  # The parent gets the interrupt, too.
    target(*(
        each if slot is None else queues[slot]
        for slot, each in zip(slots, arguments.values())
    ))

