"""Reads seekable file objects by ranges."""

from __future__ import annotations

import io
import os
import sys

from .._errors import InvalidArgumentError
from .._threads import ThreadLock

# Seekable streams whose seek() reads everything before the position.
_SEEK_BY_READING = frozenset({
    ("gzip", "GzipFile"), ("bz2", "BZ2File"), ("lzma", "LZMAFile"),
    ("zipfile", "ZipExtFile"),
})
# Concurrent requests that pay off if each goes to another machine.
_PARALLEL = 8


class FileRanges:
    """Reads a file object from a start position on, one thread at a time."""

    parallel = 1

    def __init__(self, file, start):
        self._file = file
        self._start = start
        # A seek and the following reads must not be interleaved.
        self._lock = ThreadLock()

    def read_many(self, ranges):
        """Fills each memoryview with the bytes from its offset on."""
        with self._lock:
            for offset, view in ranges:
                self._file.seek(self._start + offset)
                self._fill(view)

    def _fill(self, view):
        readinto = getattr(self._file, "readinto", None)
        done = 0
        while done < view.nbytes:
            with view[done:] as rest:
                if readinto is not None:
                    count = readinto(rest)
                else:
                    data = self._file.read(rest.nbytes)
                    count = None if data is None else len(data)
                    if count:
                        rest[:count] = data
            if count is None:
                raise BlockingIOError("it has no bytes at the moment")
            if count == 0:
                raise EOFError(f"it ends {view.nbytes - done} bytes early")
            if not 0 < count <= view.nbytes - done:
                raise OSError(f"it read {count} bytes into {view.nbytes - done}")
            done += count


class FsspecRanges:
    """Reads a file of an fsspec file system, which fetches many ranges at
    once."""

    parallel = _PARALLEL

    def __init__(self, file, start):
        self._system = file.fs
        self._path = file.path
        self._start = start

    def read_many(self, ranges):
        starts = [self._start + offset for offset, _ in ranges]
        ends = [
            start + view.nbytes for start, (_, view) in zip(starts, ranges)
        ]
        fetched = self._system.cat_ranges(
            [self._path] * len(ranges), starts, ends, on_error="raise"
        )
        for data, (_, view) in zip(fetched, ranges):
            if len(data) != view.nbytes:
                raise EOFError(
                    f"{len(data)} bytes came where {view.nbytes} were asked for"
                )
            view[:] = data


def ranges_of_open_file(file):
    """Returns an FsspecRanges for an unopened result of fsspec.open(); None for
    any other object."""
    fsspec = sys.modules.get("fsspec.core")
    if fsspec is None or not isinstance(file, fsspec.OpenFile):
        return None
    if file.compression is not None:
        raise InvalidArgumentError(
            f"{file.path} is compressed by {file.compression}: expected the "
            "file object that open() of it gives", "kInvalidArgument",
        )
    return FsspecRanges(file, 0), file.fs.info(file.path)["size"]


def ranges_of(file):
    """Returns (a reader of ranges, number of bytes from the position on), or
    None for a file object that must be read as a whole."""
    if isinstance(file, io.TextIOBase):
        return None
    kind = type(file)
    if (kind.__module__, kind.__qualname__) in _SEEK_BY_READING:
        return None
    try:
        if not file.seekable():
            return None
        start = file.tell()
        size = file.seek(0, os.SEEK_END)
        if not isinstance(size, int):  # Some file objects return None.
            size = file.tell()
        file.seek(start)
    except (AttributeError, OSError, TypeError, ValueError):
        return None
    if not isinstance(start, int) or not isinstance(size, int):
        return None
    fsspec = sys.modules.get("fsspec.spec")
    if fsspec is not None and isinstance(file, fsspec.AbstractBufferedFile):
        return FsspecRanges(file, start), max(0, size - start)
    return FileRanges(file, start), max(0, size - start)
