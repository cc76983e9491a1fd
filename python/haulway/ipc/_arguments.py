"""Checks arguments of haulway.ipc: a message has name, value and expectation.

A wrong type raises ArgumentTypeError, a TypeError; a wrong value raises
InvalidArgumentError, a ValueError. All arguments are checked before anything is
started.
"""

from __future__ import annotations

import math
import multiprocessing
import numbers
import operator
import os
from collections.abc import Mapping

from .._describing import shown
from .._errors import ArgumentTypeError, InvalidArgumentError

# The largest number that the library accepts.
MOST = (1 << 63) - 1


def wrong_type(name, value, expected):
    return ArgumentTypeError(
        f"{name} is {shown(value)}: expected {expected}", "kInvalidArgument"
    )


def wrong_value(name, value, expected):
    return InvalidArgumentError(
        f"{name} is {shown(value)}: expected {expected}", "kInvalidArgument"
    )


def flag(name, value):
    if not isinstance(value, int) or value not in (0, 1):
        raise wrong_type(name, value, "a bool")
    return bool(value)


def words(name, value, expected):
    """Checks texts and paths; returns a list."""
    text = (str, bytes, os.PathLike)
    if isinstance(value, text) or value == []:
        raise wrong_value(name, value, expected)
    if not isinstance(value, (list, tuple)) or not all(
            isinstance(one, text) for one in value):
        raise wrong_type(name, value, expected)
    return list(value)


def environment(name, value):
    """Checks environment variables by name, or None."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(
            isinstance(text, (str, bytes)) for pair in value.items()
            for text in pair):
        raise wrong_type(name, value, "a dict of strings")
    return value


def integer(name, value, expected="an integer"):
    try:
        return operator.index(value)
    except TypeError:
        raise wrong_type(name, value, expected) from None


def positive(name, value):
    value = integer(name, value)
    if value <= 0:
        raise wrong_value(name, value, "at least 1")
    return min(value, MOST)


def not_negative(name, value):
    value = integer(name, value)
    if value < 0:
        raise wrong_value(name, value, "at least 0")
    return min(value, MOST)


def _real(name, value, expected):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise wrong_type(name, value, expected)
    return value


def seconds(name, value):
    """Checks a time limit above 0; None means no limit."""
    if value is None:
        return math.inf
    if not _real(name, value, "seconds, or None for no limit") > 0:
        raise wrong_value(name, value, "more than 0 seconds, or None")
    return float(value)


def patience(name, value):
    """Checks a time limit of at least 0."""
    if not _real(name, value, "seconds") >= 0:
        raise wrong_value(name, value, "at least 0 seconds")
    return value


def function(name, value):
    if not callable(value):
        raise wrong_type(name, value, "a function without arguments")
    return value


def functions(name, value):
    """Checks functions and returns a list; accepts a single one, or None."""
    if value is None:
        return []
    if callable(value):
        return [value]
    try:
        return [function(name, one) for one in value]
    except TypeError:
        raise wrong_type(name, value, "a function, or a list of functions") from None


def context(name, value):
    """Returns a multiprocessing context for a context, its start method, or
    None."""
    if value is None or isinstance(value, str):
        try:
            return multiprocessing.get_context(value)
        except ValueError:
            known = map(repr, multiprocessing.get_all_start_methods())
            raise wrong_value(name, value, " or ".join(known)) from None
    if not callable(getattr(value, "Process", None)):
        raise wrong_type(
            name, value, "a context of multiprocessing or a start method"
        )
    return value


def one_arena(buffer, arena):
    """Returns (name, value) of the arena; two arguments can give it."""
    if buffer is not None and arena is not None and buffer is not arena:
        raise InvalidArgumentError(
            "buffer and arena are the same argument: give one",
            "kInvalidArgument",
        )
    return ("buffer", buffer) if arena is None else ("arena", arena)
