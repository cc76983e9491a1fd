"""The lock around imports inside functions."""

# Design: a module is imported when it is first needed, on whichever thread that
# is. A child that is forked meanwhile has the module half imported, and locked
# by a thread that it lacks: it would wait for ever. So such imports hold one
# lock, and a fork waits for it.
#
# Some modules of Python hold a lock during a fork, too. The fork must wait here
# before it takes them, since the import may need them (before_others()). If the
# import brings such a module while the fork waits, Python does not take its
# lock, but releases it afterwards: so it is taken here.

import _thread
import os
import sys

_LOCKS = {
    "concurrent.futures.thread": "_global_shutdown_lock", "logging": "_lock",
}


class _Importing:
    """A context manager for `with` statements around imports."""

    def __init__(self):
        self._lock = _thread.RLock()
        self._depth = 0
        self._forking = 0
        self.before_others()

    def before_others(self):
        """Makes a fork wait here before it takes the locks of modules that have
        been imported so far."""
        os.register_at_fork(
            before=self._hold, after_in_parent=self._let_go,
            after_in_child=self._let_go,
        )

    def _hold(self):
        new = [name for name in _LOCKS if name not in sys.modules]
        self._lock.acquire()
        self._forking += 1
        for name in new:
            if name in sys.modules:
                getattr(sys.modules[name], _LOCKS[name]).acquire()

    def _let_go(self):
        # Not every call has one of _hold(): it may be registered in between.
        if self._forking:
            self._forking -= 1
            self._lock.release()

    def __enter__(self):
        self._lock.acquire()
        self._depth += 1
        if self._depth > 1 and (name := _handler_on_the_stack()):
            self.__exit__()
            from ._errors import UnavailableError

            raise UnavailableError(
                f"the signal handler {name}() has interrupted the first use of "
                "haulway, whose modules are not yet imported: use it once before "
                "the handler is installed, or work after the handler"
            )

    def __exit__(self, *exception):
        self._depth -= 1
        self._lock.release()


def _handler_on_the_stack():
    """Returns the name of the signal handler that this thread runs, or None."""
    signal = sys.modules.get("signal")
    if signal is None:
        return None  # Nobody can have installed one.
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {
        getattr(getattr(one, "__func__", one), "__code__", None)
        for one in handlers
    }
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code in codes:
            return frame.f_code.co_name
        frame = frame.f_back
    return None


importing = _Importing()
_found = {}


def imported(name):
    """Returns the module of that name, imported if it is not yet."""
    found = _found.get(name)
    if found is None or sys.modules.get(name) is not found:
        with importing:
            if name == "torch":
                __import__("haulway._torch")  # Before others.
            __import__(name, fromlist=("__name__",))
            found = _found[name] = sys.modules[name]
    return found
