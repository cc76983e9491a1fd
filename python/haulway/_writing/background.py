"""Saves in the background: the futures of haulway.save_async."""

# Design: a thread pool would have to end before the interpreter does. Instead
# one thread is started when there is work, and the interpreter waits for it.
# A failed save stays in `_failed` until somebody takes its error: by the
# future, by the next call for the same path or on the same thread, or at the
# end of the process, where it is printed and makes the exit code 1.

from __future__ import annotations

import copy
import os
import sys
import threading
import traceback
from concurrent.futures import Future, wait

from .. import _haulway
from .._describing import path_text
from .._errors import Error, UnavailableError
from .._importing import importing

# Seconds that the end of the process waits for a save before it says so.
_QUIET_SECONDS = 1


class SaveFuture(Future):
    """The future of a save; it knows whether somebody took its outcome."""

    def __init__(self, path):
        super().__init__()
        self.path, self.place = path, path_text(path)
        self.has_ended = False  # Known without a lock, as a fork needs it.
        self._thread = threading.get_ident()

    def result(self, timeout=None):
        try:
            return super().result(timeout)
        finally:
            self._take()

    def exception(self, timeout=None):
        try:
            return super().exception(timeout)
        finally:
            self._take()

    def _take(self):
        if self.done():
            _failed.pop(self, None)

    def _concerns(self, path):
        return self.path == path or self._thread == threading.get_ident()


_lock = threading.Lock()  # Held by the call that starts a save.
_last = None  # The future of the newest save.
_failed = {}  # The futures whose errors nobody took, as keys.
_is_ending = False  # Whether the main thread has ended.


def start(path, prepare, tell):
    """Waits for the previous save, calls prepare(), and returns a future of the
    function that it returned; its result goes through tell().

    Raises the error of an earlier save that nobody took, if it is of the same
    path or thread.

    If the function fails, its locals are cleared: they hold the copy of the
    object, which the traceback would keep as long as the future.
    """
    global _last
    with _lock:
        if _last is not None:
            wait([_last])
        for earlier in list(_failed):
            if earlier._concerns(path):
                raise _of_earlier(earlier, path)
        work = prepare()
        future = SaveFuture(path)
        future.set_running_or_notify_cancel()

        def run():
            nonlocal work
            try:
                result = tell(work())
            except BaseException as error:
                work = None
                _clear_locals(error)
                _failed[future] = True
                future.set_exception(error)
            else:
                future.set_result(result)
            future.has_ended = True

        if _is_ending:  # No thread can be started, and nobody asks later.
            run()
            if error := future.exception():
                raise error
        else:
            # Not a daemon, even if this thread is one: the interpreter must
            # wait until the file is complete.
            threading.Thread(
                target=run, name="haulway-save", daemon=False
            ).start()
        _last = future
        return future


def unasked(future):
    """Waits for a save, and returns its error if nobody took that yet."""
    wait([future])
    return future.exception() if future in _failed else None


def _of_earlier(future, path):
    """Returns the error of an earlier save, for the call that meets it."""
    error = copy.copy(future.exception())
    note = (f"of an earlier save_async() of {future.place}, whose future nobody "
            f"asked; {path_text(path)} is not saved")
    if isinstance(error, Error):
        error.message += f"; {note}"
    elif hasattr(error, "add_note"):  # Since Python 3.11.
        error.add_note(note)
    return error


def _clear_locals(error):
    """Clears the locals of the calls that an exception has ended."""
    for each in (error, error.__cause__, error.__context__):
        if each is not None:
            traceback.clear_frames(each.__traceback__)


def _end():
    """Waits for the last save when the main thread has ended, and tells the
    errors that nobody took."""
    global _is_ending
    _is_ending = True
    if _last is not None:
        try:
            if not wait([_last], _QUIET_SECONDS).done:
                _print(f"waiting for the background save of {_last.place}")
                wait([_last])
        except KeyboardInterrupt:
            _print(f"the background save of {_last.place} is not awaited")
            _haulway.fail_at_exit()
            raise
    failed = [*_failed]
    for future in failed:
        _print(f"the background save of {future.place} failed: "
               f"{future.exception()}")
    if failed:
        _haulway.fail_at_exit()
        with importing:
            from multiprocessing import parent_process

        if parent_process() is not None:
            sys.exit(1)  # It passes over the C library's exit().


def _print(text):
    if sys.stderr is not None:
        print(f"haulway: {text}", file=sys.stderr, flush=True)


def _begin_anew():
    """Leaves the saves to the process that forked: their thread is not in the
    child, which would wait for it forever."""
    global _lock, _last
    if _last is not None and not _last.has_ended:
        _last.__init__(_last.path)  # The thread may have held its lock.
        _last.set_exception(UnavailableError(
            f"the save of {_last.place} runs in process {os.getppid()}, which "
            "forked this one: ask its future there"
        ))
    _lock, _last = threading.Lock(), None
    _failed.clear()


try:
    threading._register_atexit(_end)
except RuntimeError:  # The main thread has ended.
    _is_ending = True
os.register_at_fork(after_in_child=_begin_anew)
