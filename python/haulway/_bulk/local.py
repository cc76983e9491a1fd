"""The default engine: worker processes on this machine."""

# How: each worker is a Python of its own behind a pair of sockets, and has one
# task at a time, so the engine knows what a worker that dies was working on,
# and waitpid() says how it died. Workers are new processes, not forks: the
# caller may have threads, and may have touched a GPU. They are not started by
# multiprocessing, since that imports the caller's main module again, which
# would have to guard its own lines.
#
# A worker dies with the thread that started it, so those of a killed run do not
# stay; that thread is in bulk() as long as there are workers.

from __future__ import annotations

import collections
import os
import selectors
import signal
import socket
import subprocess
import sys
from typing import NamedTuple

from .worker import Channel

# The first lines keep modules that lie in the current folder out.
_PROGRAM = (
    "import sys\n"
    "sys.path[:] = filter(None, sys.path)\n"
    "from haulway._bulk.worker import serve\n"
    "serve(*map(int, sys.argv[1:]))\n"
)
_PATIENCE_S = 5


class WorkerKilled(Exception):
    """The process that worked on a task ended; the message says how."""


class _Worker(NamedTuple):
    process: subprocess.Popen
    channel: Channel


class LocalEngine:
    """Worker processes on this machine.

    jobs: the number of processes.
    """

    shares_deaths = False

    def __init__(self, jobs):
        self.jobs = self.threads = jobs
        self._idle = []
        self._busy = {}  # By the channel: (worker, ticket, slots).
        self._ready = selectors.DefaultSelector()  # Has the busy channels.
        self._waiting = collections.deque()
        self._free = jobs

    def submit(self, ticket, task):
        self._waiting.append((ticket, task))
        self._dispatch()

    def _dispatch(self):
        """Hands out tasks in turn. A task with several threads takes the places
        of as many workers."""
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
                pass  # It is dead: next() finds its end of file.

    def next(self, tell):
        """Waits until a task ends; returns its ticket, and its records or the
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
    ours, theirs = socket.socketpair()
    # What this process found modules by, `.` aside.
    path = os.pathsep.join(filter(None, sys.path))
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(theirs.fileno()),
             str(os.getpid())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path},
        )
        return _Worker(process, Channel(ours.detach()))


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

