"""One worker and many consumers, each of which gets every item."""

from __future__ import annotations

import os
import threading
import weakref
from multiprocessing import reduction
from multiprocessing.util import Finalize

from .. import _haulway
from .._describing import counted, described, public
from .._errors import Error, InvalidArgumentError
from ._arguments import one_arena, positive, seconds, wrong_type
from ._backends import PlainTransport, _Arena
from ._errors import WorkerDied, WorkerError, WorkerTimeout
from ._process import (
    _RING_BYTES,
    SubprocessIterable,
    _raise_failure,
    check_worker,
    items_of,
    make_receiver,
)
from ._worker import FAILED, FINISHED


class BroadcastConsumer:
    """One consumer's end of a broadcast: can be iterated any number of times.
    Made by broadcast_from_subprocess().

    index: its number among the consumers.

    It can be passed to another process as an argument, or used by a thread of
    this process; by one at a time. A pass begins when all remaining consumers
    have started to iterate. Iterating raises WorkerError if the worker fails,
    WorkerDied if it dies, and WorkerTimeout.
    """

    def __init__(self, index, channel, arena, worker, timeout):
        self.index = index
        self._channel = channel
        self._arena = arena
        self._worker = worker
        self._timeout = timeout
        self._receiver = None
        self._process = 0  # That of the receiver.
        self._epoch = 0
        self._finished = 0  # The last pass that is over.
        # A pass was requested that nobody iterates over yet.
        self._asked = False
        self._closed = False
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, worker).atexit = False

    def __reduce__(self):
        return _join, (
            self.index, reduction.DupFd(self._channel.fd), self._arena,
            reduction.DupFd(self._worker), self._timeout,
        )

    def __iter__(self):
        if self._closed:
            raise WorkerError("this consumer has left the broadcast")
        if self._receiver is None:
            self._receiver = make_receiver(
                self._channel, self._worker, self._arena, True, self.index
            )
            self._process = os.getpid()
            self._finalizer = Finalize(
                self, self._receiver.abort, exitpriority=10
            )
        if not self._asked:
            self._epoch = self._receiver.start_pass()
        self._asked = False
        items = self._items(self._epoch)
        # A generator that was never started has no `finally`.
        weakref.finalize(items, self._leave, self._epoch).atexit = False
        return items

    def _items(self, epoch):
        try:
            while True:
                item = self._receive(epoch)
                if type(item) is not _haulway.Signal:
                    held = [item]
                    item = None
                    yield held.pop()  # Only the caller holds the item.
                elif item.kind == FAILED:
                    self.close()
                    _raise_failure(item.payload, "the worker failed")
                elif item.kind == FINISHED and item.epoch == epoch:
                    self._finished = epoch
                    return
        finally:
            self._leave(epoch)

    def _leave(self, epoch):
        """Leaves a pass that is not over: the other consumers must not wait for
        one that has stopped listening."""
        is_over = self._closed or epoch == self._finished
        is_newest = epoch == self._epoch and os.getpid() == self._process
        if is_newest and not is_over:
            self._epoch = self._receiver.start_pass()
            self._asked = True

    def _receive(self, epoch):
        if self._epoch != epoch or not self._lock.acquire(False):
            raise WorkerError("this iterator is over, or in use by a thread")
        try:
            if self._closed:
                raise WorkerError("this consumer has left the broadcast")
            return self._receiver.receive(epoch, self._timeout)
        except Error as error:
            if error.code == "kTimeout":
                raise WorkerTimeout(
                    f"the worker was silent for {self._timeout} s, or waits "
                    "for another consumer"
                ) from None
            if self._closed:  # By another thread, meanwhile.
                raise WorkerError(
                    "this consumer has left the broadcast"
                ) from None
            if error.code in ("kUnavailable", "kCancelled"):
                self._closed = True
                raise WorkerDied("the worker process is gone") from None
            raise
        finally:
            self._lock.release()

    def __repr__(self):
        return described(self, f"index {self.index}",
                         "closed" if self._closed else "open")

    def close(self):
        """Leaves the broadcast. Views of items stay valid."""
        self._closed = True
        if self._receiver is not None:
            self._finalizer()
        else:
            self._channel.abort()


def _join(index, channel, arena, worker, timeout):
    return BroadcastConsumer(
        index, _haulway.Channel.attach(channel.detach()), arena,
        worker.detach(), timeout,
    )


class Broadcast:
    """A worker and its `consumers`. Made by broadcast_from_subprocess(). Keep
    this object while they are in use.

    It can be unpacked, and used in a `with` statement, whose end ends the
    worker. Its consumers may be used by different threads; close() by one. Its
    methods raise nothing.
    """

    def __init__(self, fn, count, buffer_size, initializer, mp_context,
                 timeout, daemon, arena):
        limit, items = seconds("timeout", timeout), items_of(buffer_size)
        channels = [
            _haulway.Channel.create(_RING_BYTES, items) for _ in range(count)
        ]
        self._worker = SubprocessIterable(
            fn, buffer_size, initializer, mp_context, timeout, daemon, arena,
            channels=channels,
        )
        self.consumers = [
            BroadcastConsumer(i, channel, arena, os.dup(self._worker._pidfd),
                              limit)
            for i, channel in enumerate(channels)
        ]

    def __iter__(self):
        return iter(self.consumers)

    def __len__(self):
        return len(self.consumers)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._worker.__exit__(*error)

    def __repr__(self):
        return described(self, counted(len(self.consumers), "consumer"))

    def close(self):
        """Ends the worker."""
        self._worker.close()


def broadcast_from_subprocess(fn, consumers, *, buffer_size=3,
                              initializer=None, mp_context=None, timeout=None,
                              daemon=False, buffer=None, arena=None):
    """Runs `fn` in a worker process; each of `consumers` gets every item.

    Returns a Broadcast; hand its `consumers` to as many processes or threads.
    Each item lies in the arena once, however many consumers there are, and its
    memory is free again when the last consumer has released it. The slowest
    consumer sets the pace. A consumer that ends, dies or calls close() is not
    waited for any more. A consumer that leaves a pass early waits for the next
    one.

    arena, buffer: an arena of Haulway, made for this number of consumers:
        SharedMemoryArena(max_bytes, consumers=n). None makes private copies.
    timeout: seconds that a consumer waits for an item; None: no limit. Nobody
        is killed, because the consumer may have waited for another one: it
        leaves the pass and can begin the next one.

    Everything else is as for iterate_in_subprocess.

    fn, buffer_size, initializer, mp_context, daemon: as for
        iterate_in_subprocess. Raises InvalidArgumentError for an arena that is
        made for another number of consumers.
    """
    check_worker(fn, buffer_size, initializer, mp_context, timeout)
    name, arena = one_arena(buffer, arena)
    consumers = positive("consumers", consumers)
    if arena is None:
        arena = PlainTransport(consumers)
    if not isinstance(arena, _Arena):
        raise wrong_type(name, arena, "an arena of Haulway")
    if arena.consumers != consumers:
        raise InvalidArgumentError(
            f"{name} is for {arena.consumers} consumers: "
            f"make it with consumers={consumers}",
            "kInvalidArgument",
        )
    arena._take()
    return Broadcast(
        fn, consumers, buffer_size, initializer, mp_context, timeout, daemon,
        arena,
    )


public("haulway.ipc", Broadcast, BroadcastConsumer)
