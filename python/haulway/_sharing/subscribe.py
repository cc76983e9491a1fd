"""haulway.subscribe: the versions that some process publishes under a name."""

from __future__ import annotations

import time

from .. import _haulway
from .._describing import described, public
from .._errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    NotFoundError,
    TimedOutError,
)
from .._options import check_flag
from .._threads import ThreadLock
from ..ipc._handlers import restoring
from .publish import check_name, number

# Seconds between attempts to find a name: the first interval, doubled after
# each attempt up to the last.
_FIRST_LOOK, _LAST_LOOK = 0.002, 0.1
# Seconds that a wait may continue after close().
_SLICE = 0.2


class Subscription:
    """A name that this process reads, attached to a publication. Made by
    subscribe().

    name: the name of the publication.

    A Subscription holds its version in memory; so does every tensor of the
    version, even after the subscription is closed. Unpickling a Subscription
    subscribes again.
    Can be used in a `with` statement. Threads: any. After close() its
    attributes raise InvalidArgumentError.
    """

    def __init__(self, name, core, writable, held):
        self.name = name
        self._core = core
        self._writable = writable
        self._held = held
        self._lock = ThreadLock()

    @property
    def version(self):
        """The number of the version that is shown."""
        return self._shown()[0]

    @property
    def state(self):
        """The object of that version, whose tensors are views of shared
        memory.
        """
        return self._shown()[1]

    def wait(self, newer_than=None, timeout=None):
        """Waits for a version later than `newer_than`, by default than the one
        shown, and shows the newest. Returns its number.

        timeout: seconds; None waits for ever. Versions that came and went
        meanwhile are skipped. Where the publisher has ended, another one may
        come. Raises TimedOutError; then nothing has changed.
        """
        deadline = _deadline(timeout)
        if newer_than is not None:
            newer_than = number("newer_than", newer_than)
        while True:
            shown = self._shown()[0]
            core = self._core
            least = shown if newer_than is None else max(newer_than, 0)
            if shown > least and core.newest == shown:
                return shown
            left = deadline - time.monotonic()
            try:
                taken = _take(core, least, min(left, _SLICE), self._writable)
            except TimedOutError:
                if left <= _SLICE:
                    raise TimedOutError(
                        f"no version of {self.name!r} is newer than {least}: "
                        f"waited {timeout} s",
                        "kTimeout",
                    ) from None
                continue
            with self._lock:
                if self._shown()[0] < taken[0]:
                    self._held = taken
                return self._held[0]

    def close(self):
        """Lets go of the version, as far as no tensor of it is in use."""
        with self._lock:
            self._held = self._core = None

    def _shown(self):
        held = self._held
        if held is None:
            raise InvalidArgumentError(
                "the subscription is closed", "kInvalidArgument"
            )
        return held

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __reduce__(self):
        self._shown()
        return _subscribe_again, (self.name, self._writable)

    def __repr__(self):
        held = self._held
        shown = "closed" if held is None else f"version {held[0]}"
        return described(self, repr(self.name), shown)


def subscribe(name, *, timeout=None, version=None, writable=False):
    """Attaches to the newest version that is published under a name, by any
    process of this user. Returns a Subscription, whose `state` is the object.

    Nothing is copied, and no tensor is read. NumPy's arrays are read-only.
    torch cannot protect its tensors: if this process writes to one, only this
    process sees the change.

    name: as for publish().
    timeout: seconds to wait for a first version; None waits for ever.
    version: the number of an older version that is still kept; by default the
        newest.
    writable: make NumPy's arrays writable too; only this process sees the
        changes.

    The object is unpickled: trust its publisher as you trust this process.
    Raises TimedOutError; NotFoundError if there is no such `version`.
    """
    check_name(name)
    writable = check_flag("writable", writable)
    version = None if version is None else number("version", version)
    deadline = _deadline(timeout)
    look = _FIRST_LOOK
    while True:
        try:
            core = _haulway.Subscriber.open(name)
            left = max(deadline - time.monotonic(), 0)
            if version is not None:
                held = _take_version(core, version, writable)
            else:
                held = _take(core, 0, left, writable)
            return Subscription(name, core, writable, held)
        except NotFoundError:
            if version is not None:
                raise
        except TimedOutError:
            pass
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimedOutError(
                f"nothing is published as {name!r}: waited {timeout} s",
                "kTimeout",
            )
        time.sleep(min(look, left))
        look = min(2 * look, _LAST_LOOK)


def _subscribe_again(name, writable):
    return subscribe(name, writable=writable)


def _take(core, newer_than, seconds, writable):
    """Returns (version, object)."""
    return _restored(core.take, newer_than, max(seconds, 0), writable)


def _take_version(core, version, writable):
    return _restored(core.take_version, max(version, 0), writable)


def _restored(take, *arguments):
    # torch tensors may be written to: the memory is private to this process.
    with restoring(is_private=True):
        return take(*arguments)


def _deadline(timeout):
    if timeout is None:
        return float("inf")
    if not isinstance(timeout, (int, float)) or timeout != timeout:
        raise ArgumentTypeError(
            f"timeout is {timeout!r}: expected seconds or None",
            "kInvalidArgument",
        )
    return time.monotonic() + timeout


public("haulway", Subscription)
