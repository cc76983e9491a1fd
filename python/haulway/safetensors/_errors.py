"""SafetensorError, and conversion of Haulway's errors to it."""

from __future__ import annotations

import contextlib
import errno
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


def not_text(value):
    """Returns the package's TypeError for what should be a str."""
    found = "'None'" if value is None else f"'{type(value).__name__}' object"
    return TypeError(f"{found} is not an instance of 'str'")


class DeviceError(SafetensorError, RuntimeError):
    """A device that cannot be used; a RuntimeError, as in the package."""


@contextlib.contextmanager
def raising(what, device="cpu"):
    """Returns a `with` block that converts errors of reading a file to `device`
    to SafetensorErrors that begin with `what`."""
    try:
        yield
    except Error as error:
        # A file that is open is of a known format, and there.
        if device != "cpu" and error.code in ("kUnsupported", "kNotFound"):
            raise DeviceError(f"device {device}: {error}", error.code) from error
        raise as_ours(error, f"{what}: {error}") from error


def written(error, path=None):
    """Returns the SafetensorError for a failed write of a file."""
    number, place = error.errno, ""
    if path is not None and os.path.isdir(path):
        number = errno.EISDIR
    elif path is not None and not os.path.isdir(os.path.dirname(path) or "."):
        place = f' at path "{path}"'
    if number:
        why = f"{os.strerror(number)} (os error {number}){place}"
        return as_ours(error, f"Error while serializing: I/O error: {why}")
    return as_ours(error, f"Error while serializing: {error}")
