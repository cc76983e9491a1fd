"""Classes and functions that pickles may name because the caller allowed
them."""

from __future__ import annotations

import contextlib
import sys

from .._threads import ThreadLock

_lock = ThreadLock()
_process: list = []


def add(items):
    with _lock:
        _process.extend(items)


def clear():
    with _lock:
        _process.clear()


@contextlib.contextmanager
def within(items):
    """Allows `items` within a `with` block, in every thread.

    The end of a block takes back its own items only: blocks of several threads
    may overlap.
    """
    added = list(items)
    add(added)
    try:
        yield
    finally:
        with _lock:
            for item in added:
                for at, one in enumerate(_process):
                    if one is item:
                        del _process[at]
                        break


def everywhere():
    """Returns what add() allowed, and what torch.serialization allows if it is
    imported."""
    mine = here()
    torch = sys.modules.get("torch.serialization")
    if torch is not None and hasattr(torch, "get_safe_globals"):
        mine.extend(torch.get_safe_globals())
    return mine


def here():
    """Returns what add() allowed."""
    with _lock:
        return list(_process)


def by_name(items=(), torch_too=True):
    """Returns a dict from full name to class or function (None if only a name
    was given), of `items` and of everything that is allowed globally.

    torch_too: include the names that torch.serialization allows.
    """
    named = {}
    for item in (*(everywhere() if torch_too else here()), *items):
        if isinstance(item, str):
            named.setdefault(item, None)
        elif isinstance(item, tuple):
            named[item[1]] = item[0]
        else:
            named[f"{item.__module__}.{item.__qualname__}"] = item
    return named
