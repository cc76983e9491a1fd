"""haulway.plan: lays out a file before any of its tensors is written."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from .. import _haulway
from .._describing import bytes_text, counted, described, public, shown
from .._errors import (
    ArgumentTypeError,
    Error,
    InvalidArgumentError,
    UnknownNameError,
)
from .._importing import imported
from .._making.bytes import flat_view
from .._options import number
from .._reading.source import path_of
from .call import Writing, writes
from .save import archive_name, pickle_of, records_of


class PlannedRecord(NamedTuple):
    """A record of a planned file, and the place of its bytes.

    name: its name, "data/0".
    offset, size: the place of its bytes in the file, in bytes.
    """

    name: str
    offset: int
    size: int

    def __repr__(self):
        return described(self, shown(self.name), f"offset {self.offset}",
                         f"size {self.size}")


@writes("plan")
def plan(obj, **options):
    """Lays out the file that saving `obj` would write; writes nothing.

    obj: as for save(). The bytes of its tensors are not read, so tensors may
        be fake (torch's FakeTensorMode).
    WRITING

        plan = haulway.plan(state)
        plan.records            # [PlannedRecord(name="data/0", offset, size)]
        plan.create("model.pt") # laid out, sparse, under a temporary name
        plan.fill("data/0", array)   # from any thread or process, in any order
        plan.commit()           # complete, and visible as model.pt

    To see what loading a file would read, use plan_reads() or, on the command
    line, plan-reads, for which `haulway plan` is short.

    Raises UnsafeError if `obj` holds anything that is not data.
    """
    writing = Writing("plan", options, ())
    return Plan(_pickle_of(obj), writing.engine())


def _pickle_of(obj):
    torch = sys.modules.get("torch")
    if torch is not None:
        # Fake tensors need skip_data(). It refuses some other tensors; then try
        # again without it.
        try:
            with torch.serialization.skip_data(materialize_fake_tensors=True):
                return pickle_of(obj, arrays_as_tensors=True, skip_data=True)
        except RuntimeError as error:
            if isinstance(error, Error):
                raise
    return pickle_of(obj, arrays_as_tensors=True, skip_data=True)


class Plan:
    """A file being written. Made by plan().

    size: the size of the file, in bytes.
    records: the PlannedRecords that need filling.

    Copies that are pickled to other processes can fill it; only this one can
    commit it. Any number of threads may fill it at once; create() and commit()
    are for one thread. Methods raise Error if the disk fails.
    """

    _temporary = None  # Where a copy in another process finds the file.

    def __init__(self, pickled, engine):
        self._pickled = pickled
        self._engine = engine
        self._file = None
        self._lay_out("archive")

    def _lay_out(self, name):
        records = records_of(self._pickled, self._engine["storage_alignment"])
        self._layout = _haulway.ArchivePlan(records, name, self._engine)
        self.size = self._layout.size
        rows = self._layout.records()
        self._numbers = {row[0]: i for i, row in enumerate(rows)}
        known = {item[0] for item in records if isinstance(item, tuple)}
        self.records = [
            PlannedRecord(*row) for row in rows if row[0] not in known
        ]

    def create(self, path, **options):
        """Creates the file under a temporary name beside `path`. The file's
        name is part of its content, so the offsets in `records` change.

        options: durability, as for save().

        Raises Error if the folder cannot be written, and InvalidArgumentError
        if there is a file already.
        """
        if self._file is not None or self._temporary is not None:
            raise InvalidArgumentError(
                "the plan has a file already, which commit() completes",
                "kInvalidArgument",
            )
        writing = Writing("create", options, ())
        self._lay_out(archive_name(path))
        self._file = self._layout.create(path_of(path), writing.engine())
        return self

    def fill(self, name, data, offset=0):
        """Writes bytes of a record.

        name: the name of the record, one of `records`; all others are known
            already.
        data: anything with the buffer protocol, or a torch tensor on the CPU.
        offset: in bytes from the start of the record.

        Raises UnknownNameError for another name, InvalidArgumentError before
        create() and for bytes past the end of the record, and
        ArgumentTypeError for anything that has no bytes.
        """
        offset = number("offset", offset)
        data = _bytes_of(data)
        record = self._record(name)
        if self._temporary is None:
            self._created().fill(self._numbers[name], offset, data)
            return
        if offset + data.nbytes > record.size:
            raise InvalidArgumentError(
                f"{data.nbytes} bytes from byte {offset} on end behind the "
                f"record {name!r}, which has {record.size}",
                "kInvalidArgument",
            )
        fd = os.open(self._temporary, os.O_WRONLY | os.O_CLOEXEC)
        try:
            at = record.offset + offset
            while data.nbytes > 0:
                done = os.pwrite(fd, data, at)
                data, at = data[done:], at + done
        finally:
            os.close(fd)

    def commit(self, **options):
        """Completes the file and makes it visible. Requires: nobody fills it
        any more. Bytes that nobody filled are zero.

        options: threads and stats, as for save().

        Returns statistics, and fills `stats` with them, as save() does. They
        include the bytes filled in this process, not the bytes filled by other
        processes; `seconds` is the time of this call.

        Raises InvalidArgumentError before create(), and in a copy.
        """
        writing = Writing("commit", options, ())
        done = self._created().commit(writing.engine())
        self._file = None
        return writing.tell(done)

    def __repr__(self):
        return described(
            self, counted(len(self.records), "record"), bytes_text(self.size),
            None if self._file is None else "created",
        )

    def __getstate__(self):
        return {
            "temporary": self._created().temporary_path,
            "records": self.records,
            "size": self.size,
        }

    def __setstate__(self, state):
        self._file = None
        self._temporary = state["temporary"]
        self.records = state["records"]
        self.size = state["size"]

    def _created(self):
        if self._temporary is not None:
            raise InvalidArgumentError(
                "a copy of a plan fills the file: only the plan that created "
                "the file completes it",
                "kInvalidArgument",
            )
        if self._file is None:
            raise InvalidArgumentError(
                "the plan has no file: create() comes first",
                "kInvalidArgument",
            )
        return self._file

    def _record(self, name):
        for record in self.records:
            if record.name == name:
                return record
        raise UnknownNameError(
            f"{name!r} is no record that is filled: expected one of those in "
            "'records'",
            "kInvalidArgument",
        )


def _bytes_of(data):
    if hasattr(data, "untyped_storage"):
        torch = imported("torch")
        data = data.detach().cpu().contiguous().reshape(-1)
        data = data.view(torch.uint8).numpy() if data.numel() else b""
    try:
        return flat_view(data)
    except TypeError as error:
        raise ArgumentTypeError(
            f"data is {type(data).__name__}: expected a tensor, or anything "
            "with the buffer protocol",
            "kInvalidArgument",
        ) from error


public("haulway", Plan, PlannedRecord)
