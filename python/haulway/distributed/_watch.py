"""Detects that another process of a group has failed or has died."""

# Design: the load runs on one thread and the watch on another; the caller's
# thread waits for both, so that it ends in time whatever they wait for. The
# watch tells and reads failures through the group's store. All keys have a
# prefix that no earlier load of the group used. It also asks the kernel whether
# the next rank has ended: by its pidfd, or from another host by a connection
# that the kernel there closes. A process that is late, stopped or busy is not
# dead: only `timeout` ends the wait for it. Signs of life that a process writes
# now and then were left out: a busy interpreter does not write any.
#
# A collective that does not end is abandoned: the group cannot be used after a
# failure, as with torch's own collectives.

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import itertools
import json
import os
import select
import socket
import threading
import time
import weakref

import torch.distributed as dist

from .._errors import Error, TimedOutError, UnavailableError, make_error
from .._threads import in_background

# Seconds between checks.
_PAUSE_SECONDS = 0.5
# Seconds in which the others read why this process has failed before it may end
# the store; and seconds that a reason may take to arrive.
_TELLING_SECONDS = 3
_GRACE_SECONDS = 2
# The kernel probes a silent connection this often, and this many times: a host
# that is gone is noticed in 16 seconds.
_PROBES = ((socket.TCP_KEEPIDLE, 4), (socket.TCP_KEEPINTVL, 4),
           (socket.TCP_KEEPCNT, 3))

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
        self._last_word = None
        self._beacon = None
        self._watching = None

    def __enter__(self):
        self._watching = in_background(self._run, "haulway-watch")
        return self

    def __exit__(self, kind, error, trace):
        if error is None:
            self._last_word = "done"
        elif self._failure is None:
            self._last_word = json.dumps({
                "rank": self._rank,
                "code": getattr(error, "code", None),
                "message": str(error) or type(error).__name__,
                "byte": getattr(error, "byte", None),
            })
        self._stopped.set()
        concurrent.futures.wait(
            [self._watching], 1 + (_TELLING_SECONDS if _may_hold_store() else 0)
        )

    def run(self, work):
        """Returns work(), or raises as check() does while it goes on."""
        context = contextvars.copy_context()
        done = in_background(lambda: context.run(work), "haulway-together")
        while not concurrent.futures.wait([done], 0.05).done:
            self.check()
        return done.result()

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
            self._stopped.wait(_GRACE_SECONDS)
            self.check()
            raise UnavailableError(
                f"another process of the group is gone: "
                f"{str(error).splitlines()[0]}",
                "kUnavailable",
            ) from error

    # The thread

    def _run(self):
        try:
            self._watch()
            if self._last_word is not None:
                self._tell(self._last_word)
        except Exception as error:
            # The process that holds the store may have finished.
            if not self._stopped.wait(_GRACE_SECONDS):
                self._failure = UnavailableError(
                    f"the group's store does not answer: {error}",
                    "kUnavailable",
                )
        finally:
            if self._beacon is not None:
                self._beacon.close()

    def _watch(self):
        self._set(f"process/{self._rank}", _own_process())
        following = (self._rank + 1) % self._world
        process = _Process(following, self._said, self._set)
        while not self._stopped.wait(_PAUSE_SECONDS):
            has_ended = process.has_ended()
            if told := self._said("failed"):
                self._failure = _error_of(json.loads(told))
                self._store.add(f"{self._base}/heard", 1)
                return
            if has_ended and not self._said(f"done/{following}"):
                told = {
                    "rank": following, "code": "kUnavailable", "byte": None,
                    "message": "its process has ended",
                }
                self._failure = _error_of(told)
                self._tell(json.dumps(told))
                return
            if self._beacon is None and self._said(f"beacon/{self._rank}"):
                self._beacon = _Beacon()
                self._set(f"beacon-at/{self._rank}", self._beacon.place)

    def _said(self, name):
        key = f"{self._base}/{name}"
        return self._store.get(key) if self._store.check([key]) else b""

    def _set(self, name, what):
        self._store.set(f"{self._base}/{name}", what)

    def _tell(self, what):
        if what == "done":
            self._set(f"done/{self._rank}", what)
            return
        if not self._said("failed"):
            self._set("failed", what)
        if not _may_hold_store():
            self._store.add(f"{self._base}/heard", 1)
            return
        # The others read it before the store ends.
        end = time.monotonic() + _TELLING_SECONDS
        while time.monotonic() < end and int(
            self._said("heard") or 0
        ) < self._world - 1:
            time.sleep(0.05)


def _may_hold_store():
    """Returns whether the group's store may end with this process."""
    return dist.get_rank() == 0


def _error_of(told):
    message = f"rank {told['rank']} failed: {told['message']}"
    try:
        return make_error(told["code"], message, told["byte"], 0)
    except KeyError:
        return Error(message, told["code"])


class _Process:
    """Another process of the group, of which the kernel says when it ends.

    said, tell: read and write a key of the load.
    """

    def __init__(self, rank, said, tell):
        self._rank, self._said, self._tell = rank, said, tell
        self._end = None  # Readable once the process has ended.
        self._look = self._meet

    def __del__(self):
        if self._end is not None:
            os.close(self._end)

    def has_ended(self):
        """Returns whether the process has ended; False if that is unknown."""
        return self._look()

    def _ask(self):
        return bool(select.select([self._end], [], [], 0)[0])

    def _meet(self):
        said = self._said(f"process/{self._rank}")
        if not said:
            return False
        place, pid, start = json.loads(said)
        if place != place_of_processes():
            self._tell(f"beacon/{self._rank}", "wanted")
            self._look = self._connect
            return False
        self._look = self._ask
        try:
            self._end = os.pidfd_open(pid)
            return _start_of(pid) != start
        except (ProcessLookupError, FileNotFoundError):
            return True
        except OSError:
            # The kernel has no pidfds.
            self._look = bool
            return False

    def _connect(self):
        said = self._said(f"beacon-at/{self._rank}")
        if not said:
            return False
        self._look = bool
        for address in json.loads(said):
            with contextlib.suppress(OSError):
                connection = socket.create_connection(address, _PAUSE_SECONDS)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in _PROBES:
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)
                self._end = connection.detach()
                self._look = self._ask
                break
        return False


class _Beacon:
    """A port of this process to which others connect. Nothing is sent: the
    kernel closes the connections when this process ends."""

    _all = weakref.WeakSet()

    def __init__(self):
        self._socket = socket.create_server(("", 0))
        port = self._socket.getsockname()[1]
        self.place = json.dumps([(host, port) for host in _own_hosts()])
        _Beacon._all.add(self)

    def close(self):
        self._socket.close()

    @classmethod
    def close_all(cls):
        for beacon in list(cls._all):
            beacon.close()


# A child would keep the connections open.
os.register_at_fork(after_in_child=_Beacon.close_all)


def _own_hosts():
    """Returns the addresses by which other hosts may reach this one: that of
    its way to the group's store, and its name."""
    store = _store()
    host = getattr(getattr(store, "underlying_store", store), "host", None)
    with contextlib.suppress(OSError), socket.socket(
        socket.AF_INET, socket.SOCK_DGRAM
    ) as way:
        way.connect((host or "", 9))
        own = way.getsockname()[0]
        # The host that has the store reaches it by itself.
        yield host if own.startswith("127.") else own
    yield socket.gethostname()


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
