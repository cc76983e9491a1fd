"""SafetensorError, and conversion of Haulway's errors to it."""

from __future__ import annotations

import contextlib
import os

from .._errors import Error


class SafetensorError(Error):
    """The exception that the safetensors package raises under this name."""

    code = "kInvalidArgument"

    def __init__(self, message="", code=None, byte=None, errno=0):
        # Programs also raise it without a message.
        super().__init__(message, code, byte, errno)


# The public name, shown in tracebacks.
SafetensorError.__module__ = __package__


def as_ours(error, message):
    """Converts an Error of Haulway to a SafetensorError with its code and
    byte."""
    return SafetensorError(message, error.code, error.byte, error.errno or 0)


@contextlib.contextmanager
def raising(what):
    """Returns a `with` block that converts errors of reading a file to
    SafetensorErrors that begin with `what`."""
    try:
        yield
    except Error as error:
        raise as_ours(error, f"{what}: {error}") from error


def written(error):
    """Returns the SafetensorError for a failed write."""
    if error.errno:
        why = f"{os.strerror(error.errno)} (os error {error.errno})"
        return as_ours(error, f"Error while serializing: I/O error: {why}")
    return as_ours(error, f"Error while serializing: {error}")
