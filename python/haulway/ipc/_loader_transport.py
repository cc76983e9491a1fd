"""Transports indices to a loader's workers, and batches back.

Replaces the multiprocessing context from which torch's iterator gets its
queues, its event and its processes.
"""

# Design: every worker has a socket for requests, and a channel with an arena for
# results. The parent never blocks while sending: bytes that a socket does not
# accept are kept and sent later. A worker answers in the order of the requests,
# so an answer that cannot be read can still be assigned to its request. Nothing
# has a name: a full /dev/shm does no harm, and memory is freed with the last
# process that maps it.
#
# Queues and events of multiprocessing were left out: they need semaphores in
# /dev/shm and a thread for each queue, and all workers would write to one pipe
# under a lock that a killed worker never releases.


from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
import warnings
from collections import deque

from torch.utils.data._utils.worker import (
    _IterableDatasetStopIteration,
    _ResumeIteration,
)

from .. import _haulway
from .._errors import Error
from .._torch.private import ExceptionWrapper
from ._backends import SharedMemoryArena
from ._errors import ArenaFull
from ._handlers import user_handlers
from ._loader_worker import HEADER, WorkerEnds, run_worker
from ._offload import offload
from ._process import make_receiver
from ._worker import Descriptor

# Bytes that small parts of batches may use in transit from one worker.
_RING_BYTES = 4 << 20
_NO_LIMIT = 1 << 30
# Size in bytes of each worker's arena. Only addresses are reserved; memory is
# allocated when batches need it. Batches that do not fit get separate memory.
ARENA_BYTES = 1 << 30
_LEAST_ARENA = 1 << 16
# Seconds to wait between checks of the workers.
_SLICE_S = 0.1
# Seconds that a worker may be stopped before the program is warned.
_STOPPED_S = 0.3
# Seconds without room before ArenaFull is raised: all waiting workers need
# memory that the program itself holds.
_FULL_S = 3.0
_ALL = 1 << 62


def _begins_epoch(request):
    return isinstance(request, _ResumeIteration)


class _Worker:
    """The parent's view of one worker."""

    def __init__(self, number, arena, bounded):
        self.number = number
        self.states = deque()  # Its dataset's state after each batch received.
        self.arena = arena
        self.bounded = bounded
        self.process = None
        self.dismissed = False  # The worker was told to end.
        self.asked = deque()  # Requests without an answer.
        self._unsent = deque()
        self._sending = threading.Lock()
        self._waits = 0
        self._reported = False  # Whether a warning said that it is stopped.
        self._stopped_since = None
        self.channel = _haulway.Channel.create(_RING_BYTES, _NO_LIMIT)
        self.receiver = make_receiver(self.channel, -1, arena, True)
        self.epoch = self.receiver.start_pass()
        # Plain descriptors, so that a forked copy closes nothing.
        ours, theirs = socket.socketpair()
        self._socket = ours.detach()
        self._theirs = [theirs.detach(), os.dup(self.channel.fd)]

    def ends(self, parent, place):
        """Returns the ends for the process; sent() closes them here."""
        requests, channel = map(Descriptor, self._theirs)
        return WorkerEnds(
            self.number, channel, requests, parent, self.arena, self.bounded,
            self.epoch, user_handlers(), place,
        )

    def sent(self):
        while self._theirs:
            os.close(self._theirs.pop())

    def ask(self, request):
        """Sends without waiting; flush() sends the bytes that do not fit now."""
        if request is None:
            self.dismissed = True
        else:
            self.asked.append(request[0] if type(request) is tuple else request)
        body = offload(request, None, threshold=_ALL)
        self._unsent.append(memoryview(HEADER.pack(len(body)) + body))
        self.flush()

    def flush(self):
        # torch's thread for pinned memory calls this, too.
        with self._sending:
            while self._unsent:
                rest = self._unsent[0]
                try:
                    taken = _send(self._socket, rest)
                except BlockingIOError:
                    return
                except OSError:  # The worker is gone; others report this.
                    self._unsent.clear()
                    return
                if taken < len(rest):
                    self._unsent[0] = rest[taken:]
                else:
                    self._unsent.popleft()

    def answered(self, request, data):
        """Returns whether this is of use to torch's iterator."""
        if isinstance(data, _IterableDatasetStopIteration):
            # It will not answer other requests of this epoch.
            while self.asked and not _begins_epoch(self.asked[0]):
                self.asked.popleft()
            return True
        while self.asked and self.asked.popleft() != request:
            pass
        # If beginning an epoch failed, it was requested again, and the iterator
        # counts the answers to the last request only.
        return not _begins_epoch(request) or not any(
            _begins_epoch(each) for each in self.asked
        )

    def waits_for_room(self):
        """Returns whether it found no room since the last call. A waiting
        worker retries continually, so its count keeps rising."""
        before, self._waits = self._waits, self.arena.stats()["waits"]
        return before != self._waits

    def is_running(self):
        return self.process is not None and self.process.is_alive()

    def is_dead(self):
        """Returns whether it ended unexpectedly and all its messages were
        read."""
        return (
            not self.dismissed and self.process is not None
            and self.process.pid is not None
            and self.process.exitcode is not None
            and not self.receiver.waiting_bytes
        )

    def stop_signal(self):
        """Returns the name of the signal that stopped it, or None if it
        runs."""
        pid = self.process.pid
        try:
            state = os.waitid(os.P_PID, pid,
                              os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        except OSError:
            # With a fork server, the worker is not a child of this process.
            return "a signal" if _is_stopped(pid) else None
        if state is None or not _is_stopped(pid):
            return None
        return signal.Signals(state.si_status).name

    def stopped_for_long(self):
        """Returns the signal's name if the worker has been stopped for
        _STOPPED_S."""
        name = self.stop_signal()
        if name is None:
            self._stopped_since, self._reported = None, False
            return None
        now = time.monotonic()
        if self._stopped_since is None:
            self._stopped_since = now
        return name if now - self._stopped_since >= _STOPPED_S else None

    def warn_if_stopped(self):
        name = self.stopped_for_long()
        if name is not None and not self._reported:
            self._reported = True
            warnings.warn(
                f"DataLoader worker {self.number} (pid {self.process.pid}) is "
                f"stopped by {name}; the loader waits until it goes on",
                RuntimeWarning, stacklevel=2,
            )

    def close(self):
        os.close(self._socket)
        self._unsent.clear()
        # Views of batches keep the memory that they need.
        self.receiver = self.channel = None
        self.arena.close()


def _send(fd, data):
    """Sends as many bytes as fit without waiting, and without SIGPIPE."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd)
    try:
        return end.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    finally:
        end.detach()


def _is_stopped(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def death_of(process):
    """Returns torch's error for a worker that ended unexpectedly."""
    code = process.exitcode
    if code is not None and code < 0:
        text = signal.strsignal(-code) or f"signal {-code}"
        return RuntimeError(
            f"DataLoader worker (pid {process.pid}) is killed by signal: "
            f"{text}. "
        )
    return RuntimeError(
        f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly with "
        f"exit code {code}"
    )


class _Results:
    """The queue of batches from all workers."""

    def __init__(self, transport):
        self._transport = transport
        self._last = 0
        self._put = deque()

    def get(self, timeout=None):
        deadline = None if timeout is None else time.monotonic() + timeout
        workers = self._transport.workers
        while True:
            if self._put:
                return self._put.popleft()
            count = len(workers)
            for step in range(1, count + 1):
                at = (self._last + step) % count
                if workers[at].receiver.waiting_bytes:
                    found = self._take(workers[at])
                    if found is not None:
                        self._last = at
                        return found
            left = _SLICE_S
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
                if left <= 0:
                    raise queue.Empty
            for worker in workers:
                worker.flush()
            _haulway.wait_for_any(
                [w.receiver for w in workers if not w.dismissed] or
                [workers[0].receiver], left,
            )
            if any(worker.is_dead() for worker in workers):
                raise queue.Empty

    def _take(self, worker):
        """Returns an answer; None if it has not fully arrived, or is of no
        use."""
        try:
            answer = worker.receiver.receive(worker.epoch, _SLICE_S)
        except Error as error:
            if error.code == "kTimeout":
                return None
            failed = error
        except Exception as error:
            failed = error
        else:
            if not worker.answered(*answer[:2]):
                return None
            if len(answer) > 2:
                worker.states.append(answer[2])
            return answer[:2]
        worker.states.append(None)
        request = worker.asked.popleft() if worker.asked else None
        return request, ExceptionWrapper(
            (type(failed), failed, failed.__traceback__),
            where=f"while a batch of DataLoader worker process "
                  f"{worker.number} was received",
        )

    def put(self, item):
        """Wakes torch's thread for pinned memory."""
        self._put.append(item)

    def cancel_join_thread(self):
        pass

    def close(self):
        pass


class _Requests:
    """The queue of one worker's requests."""

    def __init__(self, worker):
        self.worker = worker

    def put(self, request):
        self.worker.ask(request)

    def cancel_join_thread(self):
        pass

    def close(self):
        pass


class _Done:
    """The event that makes workers end."""

    def __init__(self, transport):
        self._transport = transport
        self._is_set = False

    def set(self):
        self._is_set = True
        for worker in self._transport.workers:
            if worker.receiver is not None:
                worker.receiver.abort()

    def is_set(self):
        return self._is_set


class Transport:
    """Stands in for a multiprocessing context in torch's iterator.

    `context` creates the processes. All workers together use at most
    `max_bytes` of shared memory at a time, each an equal part; None: as much as
    the system gives. With a `position`, workers say with each batch what the
    state of their dataset is.
    """

    def __init__(self, context, worker_count, max_bytes, position=None):
        self.workers = []
        self.closed = False
        self.max_bytes = max_bytes
        self._context = context
        self._position = position
        self._share = None
        if max_bytes is not None:
            self._share = max(max_bytes // worker_count, _LEAST_ARENA)
        self._results = None
        self.begin_to_wait()
        self._parent = Descriptor(_haulway.open_pidfd(os.getpid()))

    def Queue(self):  # noqa: N802 - a name of multiprocessing's
        if self._results is None:
            self._results = _Results(self)
            return self._results
        arena = SharedMemoryArena(
            self._share or ARENA_BYTES,
            overflow_bytes=None if self._share is None else 0,
        )
        self.workers.append(
            _Worker(len(self.workers), arena, self._share is not None)
        )
        return _Requests(self.workers[-1])

    def Event(self):  # noqa: N802 - a name of multiprocessing's
        return _Done(self)

    def Process(self, target, args):  # noqa: N802 - a name of multiprocessing's
        *others, worker = self.workers
        for other in others:  # They were started.
            other.sent()
        slots = tuple(
            next((name for name, kind in (("requests", _Requests),
                                          ("results", _Results),
                                          ("done", _Done))
                  if isinstance(each, kind)), None)
            for each in args
        )
        rest = tuple(
            None if slot is not None else each
            for slot, each in zip(slots, args)
        )
        worker.process = self._context.Process(
            target=run_worker,
            args=(worker.ends(self._parent, self._place_of(worker.number)),
                  target, slots, rest),
        )
        return worker.process

    def _place_of(self, number):
        """Returns the Place at which a worker's dataset starts; None if the
        worker does not report positions."""
        if self._position is None:
            return None
        return self._position.place_of(number)

    def forget_states(self):
        """Drops states that workers sent with batches of an earlier epoch."""
        for worker in self.workers:
            worker.states.clear()

    def started(self):
        """Releases what only workers need. May be called again."""
        for worker in self.workers:
            worker.sent()
        parent, self._parent = self._parent, None
        if parent is not None:
            os.close(parent.fd)

    def begin_to_wait(self):
        self._full_since = None

    def look_around(self):
        """Raises if a worker has died or has waited for room too long; warns
        about stopped workers."""
        for worker in self.workers:
            if worker.is_dead():
                raise death_of(worker.process)
            if not worker.dismissed:
                worker.warn_if_stopped()
        if self._share is not None:
            self._look_for_room()

    def _look_for_room(self):
        """Raises ArenaFull if all busy workers have only waited for room for
        _FULL_S."""
        asked = [w for w in self.workers if w.asked and not w.dismissed]
        # Query all of them: each call updates the worker's counter.
        waiting = [worker.waits_for_room() for worker in asked]
        now = time.monotonic()
        if not waiting or not all(waiting):
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        elif now - self._full_since >= _FULL_S:
            self._full_since = None
            held = ", ".join(
                f"{worker.arena.stats()['used']} of {self._share} bytes of "
                f"worker {worker.number}" for worker in self.workers
            )
            raise ArenaFull(
                f"no room for the next batch: max_shared_bytes is "
                f"{self.max_bytes}, and batches that this program still holds, "
                f"or has not taken yet, use {held}"
            )

    def told_of_stopped(self):
        """Returns the part of a message about stopped workers; may be empty."""
        return "".join(
            f": worker {worker.number} (pid {worker.process.pid}) is stopped "
            f"by {name}"
            for worker in self.workers
            if not worker.dismissed and (name := worker.stop_signal())
        )

    def dismiss(self, seconds):
        """Tells workers to end and waits up to `seconds` for them."""
        for worker in self.workers:
            if worker.receiver is not None:
                worker.receiver.abort()
                worker.ask(None)
        deadline = time.monotonic() + seconds
        while (running := [w for w in self.workers if w.is_running()]) and (
            time.monotonic() < deadline
        ):
            for worker in running:
                if worker.stop_signal() is not None:
                    # A stopped process cannot end by itself.
                    worker.process.kill()
            running[0].process.join(_SLICE_S)

    def close(self):
        """Ends what still runs, and lets go of everything."""
        self.closed = True
        self.started()
        for worker in self.workers:
            if worker.receiver is None:
                continue
            worker.receiver.abort()
            if worker.is_running():
                worker.process.kill()
                worker.process.join(5)
            worker.close()
