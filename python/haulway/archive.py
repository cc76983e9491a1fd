"""The records of PyTorch's zip container, with the classes of torch._C.

How: names and results are those of torch._C.PyTorchFileReader and
PyTorchFileWriter. The extension reads and writes; this module accepts the
arguments that torch accepts: paths, file objects, and functions as writers.
Arguments that torch accepts although they must be mistakes (pieces of no
bytes, a size below 0) raise InvalidArgumentError. Making the extension accept
torch's arguments itself was left out, because file objects and callables
belong to Python.
"""

from __future__ import annotations

import sys

from . import _haulway
from ._config import for_saving
from ._describing import counted, described, shown
from ._errors import ArgumentTypeError, InvalidArgumentError, MismatchError
from ._importing import imported, importing
from ._making.bytes import flat_view
from ._options import check_flag, text
from ._options import size as size_of
from ._reading.remote import target_of
from ._reading.source import are_files, is_path, open_as_configured
from ._writing.save import archive_name


class PyTorchFileReader:
    """Reads the records of an archive by name, without the archive's folder.

    name_or_buffer: a path or a binary file object.
    strict: False accepts archives that other readers accept, although they
        contradict the format.

    Threads may share a reader. Records are checked against the directory and
    their CRC-32. Methods raise UnknownNameError or NotFoundError for a record
    that is not there, and Error if the file cannot be read.
    """

    def __init__(self, name_or_buffer, *, strict=True):
        self._source = open_as_configured(name_or_buffer, mapped=False)
        self._strict = check_flag("strict", strict)
        self._threshold = 0
        self._reader = _haulway.open_archive(self._source, self._strict, True)

    def get_record(self, name, additional_readers=()):
        """Returns the bytes of the record `name`.

        additional_readers: sources of the same file (paths or file objects);
            one more thread reads for each of them if the record is at least as
            large as the threshold.

        Raises MismatchError if the CRC-32 differs.
        """
        if not additional_readers:
            return bytes(self._reader.read(text("name", name)))
        sources = [open_as_configured(r, mapped=False)
                   for r in additional_readers]
        return bytes(
            self._reader.read_parallel(text("name", name), sources,
                                       self._threshold)
        )

    def set_additional_reader_size_threshold(self, size):
        """Sets the size below which one thread reads a record.

        size: bytes, or text such as "8MiB".
        """
        self._threshold = size_of("size", size)

    def get_storage_from_record(self, name, numel, dtype):
        """Returns the record `name` as a tensor of `numel` elements in one
        dimension.

        dtype: torch's dtype of the elements.

        Raises MismatchError if the record has another size.
        """
        with importing:
            from ._torch.factory import storage_of

        torch = imported("torch")
        expected = numel * torch.empty(0, dtype=dtype).element_size()
        found = self._reader.size(text("name", name))
        if found != expected:
            raise MismatchError(
                f"record size ({found} bytes) does not match expected size "
                f"({expected}); in {name!r}",
                "kMismatch",
            )
        storage = storage_of(self._reader.read(text("name", name)))
        return torch.empty(0, dtype=dtype).set_(storage, 0, (numel,), (1,))

    def get_chunks(self, name, chunk_size):
        """Yields the record `name` in pieces of at most chunk_size bytes.

        chunk_size: bytes, 1 at least, or text such as "8MiB".

        A CRC-32 that differs raises MismatchError in place of the last one.
        """
        chunk_size = size_of("chunk_size", chunk_size, least=1)
        chunks = self._reader.chunks(text("name", name))
        while piece := chunks.next(chunk_size):
            yield piece

    def has_record(self, name):
        """Returns whether there is a record `name`."""
        return self._reader.has(text("name", name))

    def get_record_size(self, name):
        """Returns the uncompressed size of the record `name`, in bytes."""
        return self._reader.size(text("name", name))

    def get_record_header_offset(self, name):
        """Returns the offset of the local header of the record `name`, in
        bytes.
        """
        return self._reader.header_offset(text("name", name))

    def get_record_offset(self, name):
        """Returns the offset of the payload of the record `name`, in bytes,
        from the record's local header.
        """
        return self._reader.data_offset(text("name", name))

    def get_record_offset_no_read(self, header_offset, name, size, alignment):
        """Returns the offset of a payload in a file written by torch, without
        reading.

        header_offset: the offset of the record's local header, in bytes.
        name: the record's name.
        size: the size of its payload, in bytes.
        alignment: the alignment of payloads in the file, in bytes.
        """
        full = f"{self._reader.archive_name}/{name}".encode()
        return _haulway.compute_payload_offset(
            header_offset, len(full), size, alignment
        )

    def get_all_records(self):
        """Returns the names of all records, a list."""
        return self._reader.names()

    def set_should_load_debug_symbol(self, should_load):
        """Shows records whose names end in .debug_pkl, or hides them.

        should_load: False hides them.
        """
        self._reader = _haulway.open_archive(
            self._source, self._strict, should_load
        )

    def serialization_id(self):
        """Returns the id that the writer stored: 40 digits, or "" in old
        files.
        """
        return self._reader.serialization_id

    def archive_name(self):
        """Returns the name of the folder of all records."""
        return self._reader.archive_name

    def version(self):
        """Returns the number of the record `version`."""
        return self._reader.version

    def __repr__(self):
        return described(
            self, shown(self._source.name, 80),
            counted(len(self._reader.names()), "record"),
        )


class PyTorchFileWriter:
    """Writes an archive record by record, byte for byte as torch._C does.

    name_or_buffer: a path, or a file object with write(); torch calls the
        former `file_name` and the latter `buffer`.
    writer_func: instead of these, a function (address, size) -> size, called
        as torch calls it: the address is an unnamed capsule with bytes that
        are valid until the function returns. Where torch would pass None as
        the address to skip bytes, the function gets zeros.
    compute_crc32, storage_alignment, durability, threads: as for
        haulway.save(); None: as configured. storage_alignment is in bytes.

    Nothing is visible before write_end_of_file(). Without that call, after a
    failed call, or at the end of a `with` block that raised, no file is left.
    For one thread at a time. Methods raise Error if the disk fails, for a name
    that is there already, and after the end.
    """

    def __init__(self, name_or_buffer=None, compute_crc32=None,
                 storage_alignment=None, *, file_name=None, buffer=None,
                 writer_func=None, durability=None, threads=None):
        targets = [
            target
            for target in (name_or_buffer, file_name, buffer, writer_func)
            if target is not None
        ]
        if len(targets) != 1:
            raise TypeError(
                "PyTorchFileWriter() takes one of file_name, buffer and "
                f"writer_func, found {len(targets)}"
            )
        self._waits = False  # For a server.
        if writer_func is not None:
            name, target = "archive", _writer_of(writer_func)
        elif is_path(targets[0]):
            name = archive_name(targets[0])
            target = target_of(targets[0])
            self._waits = not are_files(targets[0])
        elif hasattr(targets[0], "write"):
            name, target = "archive", target_of(targets[0])
        else:
            raise ArgumentTypeError(
                "expected a path or a file object with write(), found "
                f"{type(targets[0]).__name__}", "kInvalidArgument",
            )
        self._writer = _haulway.open_archive_writer(
            target,
            name,
            for_saving("torch", {
                "storage_alignment": storage_alignment,
                "compute_crc32": compute_crc32,
                "durability": durability,
                "threads": threads,
            }),
        )

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None and not self._writer.finished:
            self.write_end_of_file()
        self._writer = None

    def set_min_version(self, version):
        """Sets a lower bound for the record `version`: the largest `version`
        given counts, and at least 3.
        """
        self._writer.set_min_version(version)

    def write_record(self, name, data, size=None, compress=False):
        """Writes a record.

        name: its name, without the archive's folder.
        data: str, bytes or anything with the buffer protocol, a torch storage,
            or an address as an int, together with its size.
        size: the number of bytes to write; by default all.
        compress: deflate the bytes.

        Raises InvalidArgumentError for a `size` that the data does not have.
        """
        self._writer.write_record(name, _lent(data, size), compress, self._waits)

    def write_record_metadata(self, name, size):
        """Leaves a hole of `size` bytes for the record `name`, which others
        will fill.
        """
        self._writer.write_record_metadata(name, size, self._waits)

    def write_end_of_file(self):
        """Adds the missing records and makes the file visible."""
        self._writer.finish(self._waits)

    def get_all_written_records(self):
        """Returns the names of the records that were written, a set."""
        return set(self._writer.records())

    def archive_name(self):
        """Returns the name of the folder of all records."""
        return self._writer.archive_name

    def serialization_id(self):
        """40 digits; empty before write_end_of_file()."""
        return self._writer.serialization_id

    def __repr__(self):
        writer = self._writer
        if writer is None:
            return described(self, "closed")
        return described(
            self, shown(writer.archive_name),
            counted(len(writer.records()), "record"),
            "finished" if writer.finished else "open",
        )


def _writer_of(function):
    """Returns a write() that calls `function` with a capsule, as torch does."""
    if not callable(function):
        raise TypeError(
            f"writer_func is {type(function).__name__}: expected a function"
        )

    def write(view):
        taken = function(_haulway.capsule_of(view), view.nbytes)
        if taken != view.nbytes:
            raise OSError(
                f"writer_func took {taken!r} bytes: expected {view.nbytes}"
            )

    return write


def _lent(data, size):
    """Returns an argument of the library: a buffer, or (owner, address,
    length)."""
    if isinstance(data, str):
        data = data.encode()
    if isinstance(data, int):
        if size is None:
            raise InvalidArgumentError(
                "an address needs a size", "kInvalidArgument"
            )
        return (None, data, size)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(
        data, (torch.UntypedStorage, torch.TypedStorage)
    ):
        if isinstance(data, torch.TypedStorage):
            with importing:
                from ._torch.private import untyped_storage

            data = untyped_storage(data)
        data = data.cpu()
        length = data.nbytes()
        lent = (data, data.data_ptr(), length)
    else:
        lent = flat_view(data)
        length = lent.nbytes
    if size is None or size == length:
        return lent
    if not 0 <= size <= length:
        raise InvalidArgumentError(
            f"record of {size} bytes: the data has {length}",
            "kInvalidArgument",
        )
    return lent[:size] if isinstance(lent, memoryview) else (
        lent[0], lent[1], size
    )
