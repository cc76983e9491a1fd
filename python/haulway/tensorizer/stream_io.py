"""open_stream() for what Haulway reads and writes: local files."""

from __future__ import annotations

import builtins
import io
import os
import pathlib
import urllib.parse

from .._errors import UnsupportedError


class _Part(io.RawIOBase):
    """The bytes of a file from `begin` to `end`, which count as 0 to its end."""

    def __init__(self, file, begin, end):
        self._file = file
        self._begin = begin
        size = os.fstat(file.fileno()).st_size
        self._size = max(0, (size if end is None else min(end, size)) - begin)
        self._at = 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self._at

    def seek(self, offset, whence=io.SEEK_SET):
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}
        at = base[whence] + offset
        if at < 0:
            raise ValueError("negative position")
        self._at = at
        return at

    def readinto(self, buffer):
        view = memoryview(buffer).cast("B")
        view = view[: max(0, self._size - self._at)]
        self._file.seek(self._begin + self._at)
        count = self._file.readinto(view)
        self._at += count
        return count

    def close(self):
        self._file.close()
        super().close()


def open_stream(path_uri, mode="rb", s3_access_key_id=None,
                s3_secret_access_key=None, s3_endpoint=None,
                s3_config_path=None, buffer_size=None, force_http=None, *,
                begin=None, end=None, s3_region_name=None,
                s3_signature_version=None, certificate_handling=None):
    """Opens a stream, as the reference's function of this name does.

    begin, end: for reading, the bytes that the stream is to hold. To write,
        missing folders are made.
    """
    if hasattr(path_uri, "read") or hasattr(path_uri, "write"):
        return path_uri
    uri = os.fspath(path_uri)
    scheme = urllib.parse.urlsplit(uri).scheme
    if scheme not in ("", "file"):
        raise UnsupportedError(f"{scheme} streams are not there yet")
    path = urllib.parse.urlsplit(uri).path if scheme else uri
    normal = set(mode) - {"b"}
    if normal not in ({"r"}, {"w"}, {"r", "+"}, {"w", "+"}):
        raise ValueError(f"mode is {mode!r}: expected rb, wb, rb+ or wb+")
    for name, value in (("begin", begin), ("end", end)):
        if value is not None and value < 0:
            raise ValueError(f"{name} is negative")
    if begin is not None and end is not None and end <= begin:
        raise ValueError("end must be after begin")
    if "w" in normal:
        if begin is not None or end is not None:
            raise ValueError("begin and end are for reading")
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        # The reference reads back what it wrote.
        return builtins.open(path, "wb+")
    file = builtins.open(path, "rb+" if "+" in normal else "rb")
    if begin is None and end is None:
        return file
    return io.BufferedReader(_Part(file, begin or 0, end))
