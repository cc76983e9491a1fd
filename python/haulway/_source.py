"""Paths, bytes and file objects as sources of the library."""

import io
import os
import stat

from . import _haulway


def is_path(file):
    return isinstance(file, (str, os.PathLike))


def open_source(file, mapped):
    """A source over a path, bytes, or a file object from its position on.

    A file object over a regular file is read beside it, by the descriptor;
    any other is read whole, at once.
    """
    if is_path(file):
        return _haulway.open_file(os.fsdecode(os.fspath(file)), mapped)
    if isinstance(file, (bytes, bytearray, memoryview)):
        return _haulway.bytes_source(file, "memory")
    if not hasattr(file, "read"):
        raise TypeError(
            "expected a path, bytes or a file object, found "
            f"{type(file).__name__}"
        )
    return _descriptor_source(file, mapped) or _haulway.bytes_source(
        file.read(), getattr(file, "name", None) or "file object"
    )


def _descriptor_source(file, mapped):
    # Only of Python's own file types is it known that position and content
    # are those of the descriptor (a gzip file has one too).
    if not isinstance(
        file, (io.FileIO, io.BufferedReader, io.BufferedRandom)
    ):
        return None
    try:
        descriptor = file.fileno()
        position = file.tell()
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        if file.writable():
            file.flush()
        source = _haulway.open_file(f"/proc/self/fd/{descriptor}", mapped)
    except (OSError, ValueError):
        return None
    if position == 0:
        return source
    return _haulway.slice_source(source, position, source.size - position)
