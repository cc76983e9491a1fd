"""What runs in a worker of a loader, around torch's own loop."""

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
from ._handlers import THRESHOLD, register_handler
from ._offload import equip, resolve, restore

HEADER = struct.Struct("<Q")
# Collated tensors of less are copied into the arena together, which costs
# less than a unit for each.
_LEAST_LOAN = 64 << 10
_OVER = ("kCancelled", "kUnavailable")


class Place(NamedTuple):
    """Where a dataset begins, in a worker that says where its dataset is."""

    state: Any  # For load_state_dict(); None: as in any epoch.


class WorkerEnds(NamedTuple):
    """What a worker is joined to its parent by."""

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
    """The event that is set once the parent wants no more."""

    def __init__(self, sender):
        self._sender = sender

    def is_set(self):
        return self._sender.aborted


class _Requests:
    """The queue of what to fetch."""

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
                sys.exit(0)  # The parent has let go of this worker.
            data += piece
        return data


class _Results:
    """The queue that batches go into."""

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
        # What cannot be pickled is told of, rather than waited for.
        self._sender.send((answer[0], failure, *rest), self._epoch)

    def cancel_join_thread(self):
        pass

    def close(self):
        pass


def _is_batch(request, data):
    """Whether this answers a request for a batch, with a batch or a failure."""
    from torch.utils.data._utils.worker import _IterableDatasetStopIteration

    return type(request) is int and not isinstance(
        data, _IterableDatasetStopIteration
    )


def _picklable(data, where):
    """A failure that stands for what could not be sent."""
    from .._torch.private import ExceptionWrapper

    if not isinstance(data, ExceptionWrapper):
        data = ExceptionWrapper(where=where)
    try:
        ForkingPickler.dumps(data)
    except Exception:
        # Its type is known in this process only.
        data.exc_msg = f"{data.exc_type.__name__}: {data.exc_msg}"
        data.exc_type = RuntimeError
    return data


def _collate_into(arena):
    """Makes torch's default_collate stack batches where the parent reads them.

    In a worker that asks for new storages in shared memory, which otherwise are
    a file in /dev/shm each.
    """
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
    """Makes the loop begin with the dataset at its place, after the program's
    own function for that. Returns what says where the dataset is."""
    dataset, begin = arguments["dataset"], arguments["init_fn"]

    def find_place(number):
        if begin is not None:
            begin(number)
        dataset.load_state_dict(place.state)

    if place.state is not None:
        arguments["init_fn"] = find_place
    return getattr(dataset, "state_dict", lambda: None)


def run_worker(ends, target, slots, rest):
    """The whole life of a worker: torch's loop, `target`, with our queues.

    slots: for each argument of the loop the name of a queue that takes its
        place, or None for the argument in `rest`.
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
        return  # The parent has one too.
    target(*(
        each if slot is None else queues[slot]
        for slot, each in zip(slots, arguments.values())
    ))

