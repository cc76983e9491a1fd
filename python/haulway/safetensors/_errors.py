"""SafetensorError, and Haulway's errors as such."""

from __future__ import annotations

import contextlib
import os

from .._errors import Error


class SafetensorError(Error):
    """The exception that the safetensors package raises under this name."""

    code = "kInvalidArgument"


SafetensorError.__module__ = __package__  # By which users catch it.


def as_ours(error, message):
    """The SafetensorError for an Error of Haulway, with its code and place."""
    return SafetensorError(message, error.code, error.byte, error.errno or 0)


@contextlib.contextmanager
def raising(what):
    """Errors of reading a file, as SafetensorErrors that begin with `what`."""
    try:
        yield
    except Error as error:
        raise as_ours(error, f"{what}: {error}") from error


def written(error):
    """The SafetensorError for what ended the writing of a file."""
    if error.errno:
        why = f"{os.strerror(error.errno)} (os error {error.errno})"
        return as_ours(error, f"Error while serializing: I/O error: {why}")
    return as_ours(error, f"Error while serializing: {error}")
