"""The default engine: worker processes on this machine."""

# Design: each worker is a new Python process connected by a pair of sockets, and
# has one task at a time. So if a worker dies, the engine knows its task, and
# waitpid() tells how it died. Workers are not forked: the caller may have
# threads or may have used a GPU. multiprocessing does not start them either: it
# imports the caller's main module again, which would then need a guard.
#
# A worker dies with the thread that started it, so a killed run leaves no
# workers behind; that thread stays in bulk() as long as there are workers.

from __future__ import annotations

import collections
import os
import selectors
import signal
import socket
import subprocess
import sys
from typing import NamedTuple

from .inputs import of_system
from .worker import Channel

# The first lines prevent imports from the current folder.
_PROGRAM = (
    "import sys\n"
    "sys.path[:] = filter(None, sys.path)\n"
    "from haulway._bulk.worker import serve\n"
    "serve(*map(int, sys.argv[1:]))\n"
)
_PATIENCE_S = 5


class WorkerKilled(Exception):
    """The worker process of a task has ended; the message tells how."""


class _Worker(NamedTuple):
    process: subprocess.Popen
    channel: Channel


class LocalEngine:
    """Runs tasks in worker processes on this machine.

    jobs: the number of processes.
    """

    shares_deaths = False

    def __init__(self, jobs):
        self.jobs = self.threads = jobs
        self._idle = []
        self._busy = {}  # By channel: (worker, ticket, slots).
        # Registers the busy channels.
        self._ready = selectors.DefaultSelector()
        self._waiting = collections.deque()
        self._free = jobs

    def submit(self, ticket, task):
        self._waiting.append((ticket, task))
        self._dispatch()

    def _dispatch(self):
        """Starts waiting tasks in order. A task with several threads takes as
        many slots."""
        while self._waiting:
            ticket, task = self._waiting[0]
            slots = min(max(task.threads, 1), self.jobs)
            if slots > self._free:
                return
            self._waiting.popleft()
            worker = self._idle.pop() if self._idle else _start()
            self._free -= slots
            self._busy[worker.channel] = worker, ticket, slots
            self._ready.register(worker.channel, selectors.EVENT_READ)
            try:
                worker.channel.send(task)
            except OSError:
                pass  # The worker is dead: next() will read its end of file.

    def next(self, tell):
        """Waits until a task ends. Returns its ticket, and its records or the
        WorkerKilled.

        tell: called with numbers of bytes while tasks run.
        """
        while True:
            for key, _ in self._ready.select():
                worker, ticket, _ = self._busy[key.fileobj]
                try:
                    kind, value = worker.channel.receive()
                except (EOFError, OSError):
                    self._release(worker)
                    answer = WorkerKilled(_how_it_ended(worker))
                    self._dispatch()
                    return ticket, answer
                if kind == "bytes":
                    tell(value)
                    continue
                self._release(worker)
                self._idle.append(worker)
                self._dispatch()
                return ticket, value

    def _release(self, worker):
        self._ready.unregister(worker.channel)
        *_, slots = self._busy.pop(worker.channel)
        self._free += slots

    def close(self, kill=False):
        workers = [*self._idle, *(busy[0] for busy in self._busy.values())]
        for worker in workers:
            if kill:
                worker.process.kill()
            worker.channel.close()
        for worker in workers:
            _end(worker)
        self._ready.close()


def _start():
    # The worker gets this process's import path without the current folder.
    path = os.pathsep.join(filter(None, sys.path))
    try:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno()),
                 str(os.getpid())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
            return _Worker(process, Channel(ours.detach()))
    except OSError as error:
        raise of_system(error, "cannot start a worker process") from error


def _end(worker):
    try:
        worker.process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        worker.process.kill()
        worker.process.wait()


def _how_it_ended(worker):
    worker.channel.close()
    _end(worker)
    code = worker.process.returncode
    if code >= 0:
        return f"worker process ended with exit code {code}"
    try:
        return f"worker process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"worker process was killed by signal {-code}"

