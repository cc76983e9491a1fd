"""Reads sources of the library by ranges and as file objects."""

from __future__ import annotations

import io
import os

from .. import _haulway
from .._describing import described, shown
from .._errors import make_error
from .._importing import imported

# Sequential reads read ahead, twice as much each time.
_FIRST_AHEAD = 128 << 10
_MOST_AHEAD = 16 << 20


def read_range(source, begin, end):
    """Returns the bytes of a source from `begin` to `end`."""
    data = bytearray(end - begin)
    _haulway.read_many(source, [(begin, data)])
    return bytes(data)


def is_same(one, other):
    """Returns whether two sources hold the same bytes."""
    if one.size != other.size:
        return False
    return all(
        read_range(one, at, end) == read_range(other, at, end)
        for at in range(0, one.size, _MOST_AHEAD)
        for end in [min(at + _MOST_AHEAD, one.size)]
    )


class SourceStream(io.BufferedIOBase):
    """Reads a source from byte `begin` to byte `end` as a stream.

    Positions are those of the source. Sequential reads read ahead, with several
    concurrent requests if the source is on a server.

    Attributes: bytes_read, bytes_skipped, read_operations.
    """

    def __init__(self, source, begin=0, end=None, ahead=_MOST_AHEAD):
        super().__init__()
        self._source = source
        self._size = source.size
        self._end = self._size if end is None else min(end, self._size)
        self._at = begin
        self._most_ahead = max(ahead, io.DEFAULT_BUFFER_SIZE)
        self._ahead = min(_FIRST_AHEAD, self._most_ahead)
        self._kept_at, self._kept = 0, memoryview(b"")
        self._error_context = []
        self.bytes_read = self.bytes_skipped = self.read_operations = 0

    @property
    def name(self):
        return self._source.name

    @property
    def size(self):
        return self._size

    def __repr__(self):
        return described(self, shown(self.name, 80), f"at byte {self._at}",
                         "closed" if self.closed else None)

    def source_from_here(self):
        """Returns a source over the rest of the stream."""
        if self._at == 0 and self._end == self._size:
            return self._source
        return _haulway.slice_source(
            self._source, min(self._at, self._end),
            max(0, self._end - self._at),
        )

    def register_error_context(self, msg):
        """Adds a line to the message of whatever fails from now on."""
        self._error_context.append(msg)

    def readable(self):
        return True

    def writable(self):
        return False

    def seekable(self):
        return True

    def fileno(self):
        return -1  # The reference returns the same.

    def tell(self):
        return self._at

    def seek(self, position, whence=io.SEEK_SET):
        self._check_open()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._end}
        at = base[whence] + position
        if at < 0:
            raise ValueError("negative position")
        self.bytes_skipped += max(0, at - self._at)
        self._at = at
        return at

    def readinto(self, ba):
        with memoryview(ba) as given, given.cast("B") as view:
            count = max(0, min(view.nbytes, self._end - self._at))
            with view[:count] as out:
                self._fill(out)
            return count

    def readinto1(self, buffer):
        return self.readinto(buffer)

    def read(self, size=None):
        left = max(0, self._end - self._at)
        data = bytearray(left if size is None or size < 0 else min(size, left))
        self._fill(memoryview(data))
        return bytes(data)

    def read1(self, size=-1):
        return self.read(_FIRST_AHEAD if size is None or size < 0 else size)

    def peek(self, size=0):
        """Returns some of the bytes that come next, at least one unless the
        stream is at its end. Without this method, readline() would read byte
        by byte."""
        self._check_open()
        left = self._end - self._at
        if left <= 0:
            return b""
        if not 0 <= self._at - self._kept_at < self._kept.nbytes:
            self._read_ahead()
        within = self._at - self._kept_at
        most = min(max(size, io.DEFAULT_BUFFER_SIZE), left)
        return bytes(self._kept[within:within + most])

    def close(self):
        self._source = None
        self._kept = memoryview(b"")
        super().close()

    def _check_open(self):
        if self._source is None:
            raise ValueError(f"{type(self).__name__} closed.")

    def _fill(self, out):
        self._check_open()
        self.read_operations += 1
        done = self._take_kept(out)
        if done < out.nbytes:
            rest = out.nbytes - done
            if rest >= self._ahead:
                self._ask(self._at, out[done:])
                self._at += rest
            else:
                self._read_ahead()
                done += self._take_kept(out[done:])
        self.bytes_read += out.nbytes

    def _take_kept(self, out):
        """Copies bytes that were read ahead and returns their number."""
        within = self._at - self._kept_at
        if not 0 <= within < self._kept.nbytes:
            return 0
        piece = self._kept[within:within + out.nbytes]
        out[:piece.nbytes] = piece
        self._at += piece.nbytes
        return piece.nbytes

    def _read_ahead(self):
        in_order = self._at == self._kept_at + self._kept.nbytes
        if in_order:
            self._ahead = min(2 * self._ahead, self._most_ahead)
        else:
            self._ahead = min(_FIRST_AHEAD, self._most_ahead)
        kept = memoryview(bytearray(min(self._ahead, self._end - self._at)))
        self._ask(self._at, kept)
        self._kept_at, self._kept = self._at, kept

    def _ask(self, offset, out):
        try:
            _haulway.read_many(self._source, [(offset, out)])
        except OSError as error:
            if not self._error_context or not hasattr(error, "code"):
                raise
            raise make_error(
                error.code, "\n".join([error.message, *self._error_context]),
                error.byte, error.errno or 0,
            ) from error


class UploadStream(io.BufferedRandom):
    """A temporary file that is written to `target` when it is closed, whole or
    not at all. If an exception leaves its `with` block, nothing is written. Only
    the process that made it writes to the target.

    before: a stream of bytes that the file begins with.
    """

    def __init__(self, target, buffer_size=None, before=None):
        shutil, tempfile = imported("shutil"), imported("tempfile")
        self._target = target
        self._owner = os.getpid()
        super().__init__(
            tempfile.TemporaryFile(buffering=0),
            buffer_size or io.DEFAULT_BUFFER_SIZE,
        )
        if before is not None:
            try:
                shutil.copyfileobj(before, self, _MOST_AHEAD)
            except BaseException:
                self._target = None
                raise

    def close(self):
        if self.closed:
            return
        target, self._target = self._target, None
        if self._owner != os.getpid():
            # A forked child has a part of the bytes, some of them twice.
            self.raw.close()
            return
        try:
            if target is not None:
                self.flush()
                source = _haulway.open_source(
                    f"/proc/self/fd/{self.fileno()}", False
                )
                _haulway.upload(source, target, {"durability": "none"}, None)
        finally:
            super().close()

    def __exit__(self, kind, *rest):
        if kind is not None:
            self._target = None
        self.close()
