"""The record level of PyTorch's zip container, as torch._C has it."""

from __future__ import annotations

from . import _haulway
from ._errors import MismatchError
from ._source import open_source


class PyTorchFileReader:
    """Records of an archive, by name without the archive's folder.

    Takes a path or a binary file object. Threads may share a reader. Records
    are checked against the directory and their CRC-32.
    """

    def __init__(self, name_or_buffer, *, strict=True):
        self._source = open_source(name_or_buffer, mapped=False)
        self._strict = strict
        self._threshold = 0
        self._reader = _haulway.open_archive(self._source, strict, True)

    def get_record(self, name, additional_readers=()):
        """The record's bytes.

        additional_readers: sources of the same file (paths or file objects):
            one more thread reads for each, from the size threshold on.
        """
        if not additional_readers:
            return bytes(self._reader.read(name))
        sources = [open_source(r, mapped=False) for r in additional_readers]
        return bytes(
            self._reader.read_parallel(name, sources, self._threshold)
        )

    def set_additional_reader_size_threshold(self, size):
        """Records smaller than this are read by one thread."""
        self._threshold = size

    def get_storage_from_record(self, name, numel, dtype):
        """The record as a tensor of one dimension, as torch._C returns it."""
        import torch

        from ._torch_factory import storage_of

        expected = numel * torch.empty(0, dtype=dtype).element_size()
        found = self._reader.size(name)
        if found != expected:
            raise MismatchError(
                f"record size ({found} bytes) does not match expected size "
                f"({expected}); in {name!r}",
                "kMismatch",
            )
        storage = storage_of(self._reader.read(name))
        return torch.empty(0, dtype=dtype).set_(storage, 0, (numel,), (1,))

    def get_chunks(self, name, chunk_size):
        """Yields the record in pieces of at most chunk_size bytes."""
        chunks = self._reader.chunks(name)
        while piece := chunks.next(chunk_size):
            yield piece

    def has_record(self, name):
        return self._reader.has(name)

    def get_record_size(self, name):
        """Bytes when inflated."""
        return self._reader.size(name)

    def get_record_header_offset(self, name):
        return self._reader.header_offset(name)

    def get_record_offset(self, name):
        """Where the payload starts, by the record's local header."""
        return self._reader.data_offset(name)

    def get_record_offset_no_read(self, header_offset, name, size, alignment):
        """Where it starts in a file that torch wrote, without reading."""
        full = f"{self._reader.archive_name}/{name}".encode()
        return _haulway.compute_payload_offset(
            header_offset, len(full), size, alignment
        )

    def get_all_records(self):
        return self._reader.names()

    def set_should_load_debug_symbol(self, should_load):
        """False hides records whose names end in .debug_pkl."""
        self._reader = _haulway.open_archive(
            self._source, self._strict, should_load
        )

    def serialization_id(self):
        return self._reader.serialization_id

    def archive_name(self):
        return self._reader.archive_name

    def version(self):
        return self._reader.version
