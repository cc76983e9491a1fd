"""What threads share, so that a fork meanwhile does no harm."""

from __future__ import annotations

import os
import threading


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
