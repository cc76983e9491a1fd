"""The journal of a run: a line of JSON for each input that was worked on.

A killed run can be continued with its journal: inputs that have a line there
and did not change since are skipped. A line is written as soon as the input is
done, so it survives the process; it is synced to the disk about a second later,
or at the end.
"""

# Design: lines are appended to a file. Lookups (an input's last line, whether this
# run has seen the input, which input an output belongs to) use a temporary
# SQLite database, which keeps a few MiB in memory and the rest in an unnamed
# file. A run without a journal has a temporary one, so reports always read
# their records from a journal.
#
# Reading the lines into a dict was left out: a million inputs take some 300 MB.
# Using a database as the journal was left out, too: other tools could not read
# it during the run, nor concatenate journals.

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import sqlite3
import stat
import tempfile
import time

from .._errors import Error, InvalidArgumentError, IoError
from .inputs import of_system

_SYNC_S = 1
_VERSION = 1


class Journal:
    """The journal of a run; see bulk().

    path: None for a temporary one.
    head: a dict with the verb and the options that decide about results; a
        journal with another head is refused.

    Every method raises IoError if the journal or its index cannot be used.
    """

    def __init__(self, path, head):
        head = {"haulway_bulk": _VERSION, **head}
        self._what = "a temporary journal" if path is None else (
            f"journal {os.fspath(path)!r}"
        )
        with self._naming():
            self._file = _open(path)
        try:
            self._begin(path, head)
        except BaseException:
            # The traceback keeps this object, and the file would stay locked.
            self._file.close()
            raise

    def _begin(self, path, head):
        if path is not None:
            self._lock()
        self._index = sqlite3.connect(
            "", isolation_level=None, check_same_thread=False
        )
        self._execute("PRAGMA journal_mode = OFF")
        self._execute(
            "CREATE TABLE inputs(name BLOB PRIMARY KEY, at INTEGER,"
            " length INTEGER, seen INTEGER) WITHOUT ROWID"
        )
        self._execute(
            "CREATE TABLE outputs(name BLOB PRIMARY KEY, input BLOB,"
            " writer BLOB) WITHOUT ROWID"
        )
        self._execute("BEGIN")
        self._end = 0
        with self._naming():
            self._read(head)
        self._synced = time.monotonic()
        self._is_dirty = self._end == 0
        if self._end == 0:
            self._append(_line(head))
            if path is not None:
                self.sync()
                with self._naming():
                    _sync_folder(path)

    @contextlib.contextmanager
    def _naming(self):
        """Returns a `with` block that names the journal in OSErrors."""
        try:
            yield
        except Error:
            raise
        except OSError as error:
            raise of_system(error, f"cannot use {self._what}") from error

    def _execute(self, statement, values=()):
        """Runs a statement on the index, which fails if the disk is full."""
        try:
            return self._index.execute(statement, values)
        except sqlite3.Error as error:
            raise IoError(
                f"cannot keep the list of inputs in a temporary file: {error}",
                "kIoError",
            ) from error

    def _lock(self):
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            raise InvalidArgumentError(
                f"{self._what} is not a regular file", "kInvalidArgument"
            )
        try:
            self._flock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidArgumentError(
                f"{self._what} is in use by another run", "kInvalidArgument"
            ) from error
        except OSError as error:
            raise of_system(error, f"cannot lock {self._what}") from error

    def _flock(self, how):
        """Does nothing if the file system has no locks."""
        try:
            fcntl.flock(self._file, how)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise

    def _read(self, head):
        """Indexes all lines and truncates an incomplete one at the end."""
        self._file.seek(0)
        with open(os.dup(self._file.fileno()), "rb") as lines:
            for line in lines:
                is_whole = line.endswith(b"\n")
                if self._end == 0:
                    self._check_head(line, head, is_whole)
                elif is_whole:
                    self._enter(line)
                if not is_whole:
                    break
                self._end += len(line)
        self._file.truncate(self._end)

    def _check_head(self, line, head, is_whole):
        """Raises InvalidArgumentError unless the first line of the file is
        `head` or, if the machine stopped, the beginning of a head."""
        start = b'{"haulway_bulk":%d,' % _VERSION
        if not is_whole and line[:len(start)] == start[:len(line)]:
            return
        try:
            found = json.loads(line)
            is_ours = is_whole and found["haulway_bulk"] == _VERSION
        except (ValueError, TypeError, KeyError, RecursionError):
            is_ours = False
        if not is_ours:
            raise InvalidArgumentError(
                f"{self._what} is not a journal of haulway bulk",
                "kInvalidArgument",
            )
        for name in dict.fromkeys([*head, *found]):
            if found.get(name) != head.get(name):
                raise InvalidArgumentError(
                    f"{self._what} is of a run with another {name}: "
                    f"expected {head.get(name)!r}, found {found.get(name)!r}",
                    "kInvalidArgument",
                )

    def _enter(self, line):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return  # Torn because the machine stopped: the input is run again.
        if _is_record(record):
            self._put(record, record["input"], (self._end, len(line)), seen=0)

    def _put(self, record, name, place, seen):
        self._execute(
            "INSERT INTO inputs VALUES(?, ?, ?, ?) ON CONFLICT(name)"
            " DO UPDATE SET at = excluded.at, length = excluded.length",
            (_key(name), *place, seen),
        )
        out = (record.get("result") or {}).get("out")
        if out is not None:
            self._execute(
                "INSERT INTO outputs VALUES(?, NULL, ?) ON CONFLICT(name)"
                " DO UPDATE SET writer = excluded.writer",
                (_key(out), _key(name)),
            )

    def meet(self, name):
        """Returns (whether the input is new in this run, its record in the
        journal or None)."""
        key = _key(name)
        if self._execute(
            "INSERT OR IGNORE INTO inputs VALUES(?, NULL, NULL, 1)", (key,)
        ).rowcount:
            return True, None
        *place, seen = self._execute(
            "SELECT at, length, seen FROM inputs WHERE name = ?", (key,)
        ).fetchone()
        if seen:
            return False, None
        self._execute("UPDATE inputs SET seen = 1 WHERE name = ?", (key,))
        return True, self._record(*place)

    def claim(self, out, name):
        """Claims an output for an input of this run. Returns the input that the
        output belongs to: another input, if that claimed the output first."""
        self._execute(
            "INSERT INTO outputs VALUES(?, ?, NULL) ON CONFLICT(name)"
            " DO UPDATE SET input = coalesce(input, excluded.input)",
            (_key(out), _key(name)),
        )
        return self._of_output(out)[0]

    def wrote(self, out, name):
        """Returns whether the input was the last that wrote the output."""
        return self._of_output(out)[1] == name

    def owner_of(self, name):
        """Returns the input that a file is an output of: of this run or, by the
        journal, of an earlier one; None for other files."""
        input_, writer = self._of_output(name)
        return input_ or writer

    def _of_output(self, name):
        found = self._execute(
            "SELECT input, writer FROM outputs WHERE name = ?", (_key(name),)
        ).fetchone()
        return [
            one if one is None else os.fsdecode(one)
            for one in found or (None, None)
        ]

    def add(self, records):
        """Appends the records of inputs, in one step."""
        lines = [_line(record) for record in records]
        at = self._end
        self._append(b"".join(lines))
        for record, line in zip(records, lines):
            self._put(record, record["input"], (at, len(line)), seen=1)
            at += len(line)
        if time.monotonic() - self._synced > _SYNC_S:
            self.sync()

    def _append(self, data):
        done = 0
        with self._naming():
            while done < len(data):
                done += os.pwrite(
                    self._file.fileno(), data[done:], self._end + done
                )
        self._end += len(data)
        self._is_dirty = True

    def sync(self):
        if self._is_dirty:
            with self._naming():
                os.fsync(self._file.fileno())
            self._is_dirty = False
        self._synced = time.monotonic()

    def finish(self):
        """Ends writing; records() goes on to work."""
        self.sync()
        self._flock(fcntl.LOCK_UN)

    def _record(self, at, length):
        with self._naming():
            return json.loads(os.pread(self._file.fileno(), length, at))

    def records(self):
        """Yields the records of this run's inputs in journal order."""
        for place in self._execute(
            "SELECT at, length FROM inputs WHERE seen = 1 AND at IS NOT NULL"
            " ORDER BY at"
        ):
            yield self._record(*place)


def _open(path):
    if path is None:
        return tempfile.TemporaryFile("r+b", buffering=0)
    return open(
        os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666),
        "r+b", buffering=0,
    )


def _is_record(found):
    """Returns whether a line is a record, and not the head of a journal that
    was appended to this one."""
    return (
        isinstance(found, dict) and isinstance(found.get("input"), str)
        and found.keys() >= {"stamp", "exit", "result", "error"}
        and isinstance(found["result"], (dict, type(None)))
    )


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _line(record):
    return _encode(record).encode() + b"\n"


def _key(name):
    return os.fsencode(name)


def _sync_folder(path):
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # It cannot sync folders.
            raise
    finally:
        os.close(folder)
