"""What threads share, so that a fork meanwhile does no harm."""

from __future__ import annotations

import os
import threading

from ._importing import importing


class ThreadLock:
    """A lock for the threads of a process, for `with` statements.

    A thread may hold it while another one forks. In the child that thread does
    not exist, so the child gets a new lock when it first needs one.
    """

    def __init__(self):
        self._renew()

    def _renew(self):
        self._lock, self._process = threading.Lock(), os.getpid()

    def __enter__(self):
        if self._process != os.getpid():
            self._renew()
        self._lock.acquire()

    def __exit__(self, *exception):
        self._lock.release()


def in_background(work, name):
    """Calls work() on a thread that nobody need wait for; returns a future of
    what it returns."""
    with importing:
        from concurrent.futures import Future

    future = Future()

    def run():
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class once:
    """Decorates a method without arguments to be an attribute that is computed
    when it is first read.

    This is functools.cached_property as it is since Python 3.12. Before, all
    objects of a class share a lock there, which a fork can leave locked.
    """

    def __init__(self, compute):
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner, name):
        self._name = name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        # Threads that compute it at the same time all get the first value.
        return vars(instance).setdefault(self._name, self._compute(instance))
