"""Detects that another process of a group has failed or has died."""

# Design: in each process a thread writes to the group's store that the process is
# alive, reads failures that any process has reported there, and checks that the
# next rank is still writing. So a process that waits in a collective learns
# within seconds that it would wait forever. All keys have a prefix that no
# earlier load of the group used. The end of a process on the same host is seen
# at once, through its pidfd.
#
# A collective that does not end is abandoned: the group cannot be used after a
# failure, as with torch's own collectives.

from __future__ import annotations

import itertools
import json
import os
import select
import threading
import time

import torch.distributed as dist

from .._errors import Error, TimedOutError, UnavailableError, make_error

# Seconds between checks.
_PAUSE_SECONDS = 0.5
# Seconds without a write after which a process counts as dead. A failing load
# ends within 20 seconds; the rest is for telling the others on a busy machine.
_GONE_SECONDS = 12

_numbers = {}  # Number of loads started, by group.


def _store():
    return dist.distributed_c10d._get_default_store()


class Watch:
    """A context manager around a collective operation of a group.

    name: the group's name, the same in all processes.
    rank, world: in the group.
    timeout: seconds until it fails with TimedOutError, or None.
    """

    def __init__(self, name, rank, world, timeout):
        number = _numbers.setdefault(name, itertools.count())
        self._base = f"haulway/{name}/{next(number)}"
        self._rank, self._world = rank, world
        self._end = None if timeout is None else time.monotonic() + timeout
        self._timeout = timeout
        self._store = _store()
        self._stopped = threading.Event()
        self._failure = None
        self._thread = threading.Thread(
            target=self._run, name="haulway-watch", daemon=True
        )

    def __enter__(self):
        self._store.set(f"{self._base}/process/{self._rank}", _own_process())
        self._say_alive("0")
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self._stopped.set()
        self._thread.join()
        if isinstance(error, Exception) and self._failure is None:
            self._tell({
                "rank": self._rank,
                "code": getattr(error, "code", None),
                "message": str(error) or type(error).__name__,
                "byte": getattr(error, "byte", None),
            })
        elif kind is None:
            try:
                self._say_alive("done")
            except Exception:
                pass  # The other ranks have finished, and the store is gone.

    def check(self):
        """Raises the failure that another process reported, or
        TimedOutError."""
        if self._failure is not None:
            raise self._failure
        if self._end is not None and time.monotonic() > self._end:
            raise TimedOutError(
                f"loading together took more than {self._timeout} seconds",
                "kTimeout",
            )

    def wait(self, work):
        """Waits for a torch.distributed Work, or raises as check() does."""
        pause = 0.0001
        while not work.is_completed():
            self.check()
            time.sleep(pause)
            pause = min(2 * pause, 0.005)
        try:
            work.wait()
        except RuntimeError as error:
            # A failing process reports the reason if it has time to.
            self._stopped.wait(2 * _PAUSE_SECONDS)
            self.check()
            raise UnavailableError(
                f"another process of the group is gone: "
                f"{str(error).splitlines()[0]}",
                "kUnavailable",
            ) from error

    # The thread

    def _run(self):
        beats, last, seen = 0, None, time.monotonic()
        following = (self._rank + 1) % self._world
        process = _Process(
            lambda: self._said(f"process/{following}")
        )
        while not self._stopped.wait(_PAUSE_SECONDS):
            try:
                beats += 1
                has_ended = process.has_ended()
                self._say_alive(str(beats))
                if self._store.check([f"{self._base}/failed"]):
                    told = json.loads(self._store.get(f"{self._base}/failed"))
                    self._failure = _error_of(told)
                    return
                said = self._said(f"alive/{following}")
                why = None
                if said == b"done":
                    seen = time.monotonic()
                elif has_ended:
                    why = "its process has ended"
                elif said != last:
                    last, seen = said, time.monotonic()
                elif time.monotonic() - seen > _GONE_SECONDS:
                    why = f"no sign of it for {_GONE_SECONDS} seconds"
                if why is not None:
                    told = {
                        "rank": following, "code": "kUnavailable", "byte": None,
                        "message": why,
                    }
                    self._tell(told)
                    self._failure = _error_of(told)
                    return
            except Exception as error:
                self._failure = UnavailableError(
                    f"the group's store does not answer: {error}",
                    "kUnavailable",
                )
                return

    def _said(self, name):
        key = f"{self._base}/{name}"
        return self._store.get(key) if self._store.check([key]) else b""

    def _say_alive(self, what):
        self._store.set(f"{self._base}/alive/{self._rank}", what)

    def _tell(self, what):
        try:
            if not self._store.check([f"{self._base}/failed"]):
                self._store.set(f"{self._base}/failed", json.dumps(what))
        except Exception:
            pass  # The others hear nothing more from this process.


def _error_of(told):
    message = f"rank {told['rank']} failed: {told['message']}"
    try:
        return make_error(told["code"], message, told["byte"], 0)
    except KeyError:
        return Error(message, told["code"])


class _Process:
    """Watches another process, if it is on this host.

    describe: returns its _own_process(), or b"" as long as that is unknown.
    """

    def __init__(self, describe):
        self._describe = describe
        self._descriptor = None
        self._is_known = False

    def __del__(self):
        if self._descriptor is not None:
            os.close(self._descriptor)

    def has_ended(self):
        """Returns whether the process has ended; False if that is unknown."""
        if not self._is_known:
            said = self._describe()
            self._is_known = bool(said)
            if said:
                return self._open(json.loads(said))
        if self._descriptor is None:
            return False
        return bool(select.select([self._descriptor], [], [], 0)[0])

    def _open(self, said):
        """Opens a pidfd; returns whether the process has already ended."""
        place, pid, start = said
        if place is None or place != place_of_processes() or pid == os.getpid():
            return False
        try:
            self._descriptor = os.pidfd_open(pid)
            return _start_of(pid) != start
        except (ProcessLookupError, FileNotFoundError):
            return True
        except OSError:
            return False  # The kernel has no pidfds.


def _own_process():
    """Describes this process as JSON: its place, its id and its start time."""
    return json.dumps([place_of_processes(), os.getpid(), _start_of(os.getpid())])


def place_of_processes():
    """Returns a text that is equal in processes that can see each other; None
    if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _start_of(pid):
    """Returns the start time of a process, since ids are reused."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])
