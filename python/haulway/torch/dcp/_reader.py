"""A reader of DCP directories, for torch.distributed.checkpoint.load()."""

# Design: the items of a plan become requests to the library's engine: open_items()
# opens the consecutive items in the files as one checkpoint, and load_tensors()
# fills the destinations with the requested slices, all in one plan. A
# destination that is not dense memory of this process, or has another dtype, is
# filled from intermediate memory, a bounded part of the plan at a time. Entries
# that are not tensors are read as bytes; the planner makes objects from them.
# Items that an extension compressed are no archives of their own: they are read
# as parts of the tensors of the directory, which the library opens as a whole.

from __future__ import annotations

import io
import os
import uuid

import torch
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ... import _haulway
from ..._describing import described, path_text
from ..._errors import (
    CorruptError,
    Error,
    MismatchError,
    NotFoundError,
)
from ..._making.objects import TensorRequest
from ..._options import READING
from ..._reading.call import Reading, reads
from ..._reading.source import open_source, path_of
from ..._torch import private as _torch_private
from ..._torch.factory import dtype_of, name_of_dtype
from ._metadata import called, no_gc, read_metadata, transforms_of

# Limits of one part of a plan: the bytes read to open its items on a server,
# and the intermediate memory of its tensors.
_PART_BYTES = 128 << 20
# Items up to this size on a server are read completely when they are opened.
_WHOLE_BYTES = 256 << 10
# Entries that are not tensors are read together up to this many bytes.
_TOGETHER_BYTES = 64 << 20


class _Unread:
    """In place of a Metadata that could not be read. When the read fails, torch
    asks for that of the rank, and if that fails too, raises an AssertionError.
    With this object it goes on, and meets the error of the first read."""

    def __init__(self, error):
        self._error = error

    def __getattr__(self, name):
        raise self._error


@reads(READING)
class Reader(StorageReader):
    """A StorageReader of a DCP directory that executes nothing.

    path: the directory, or the URL of one (s3://, http:// and the like). A
        server need not list the directory.
    strict_dtype: raise MismatchError if a destination has another dtype than
        the checkpoint; by default values are cast, as torch's reader does.
    OPTIONS

    Bytes go straight to destinations that are dense, on the CPU and of the
    dtype of the file. Resharding reads only the rows and runs that are wanted;
    with verify=True chunks are read whole, and their CRC-32 is checked.
    `.metadata` is never unpickled: a name of a class that does not belong to
    the format raises UnsafeError. Chunks that torch's extension ZStandard
    compressed are read too, without the package `zstandard`; other extensions
    raise UnsupportedError. Entries that are not tensors go to the
    planner. torch's own planner unpickles them and so can run code: use
    LoadPlanner.

    Attributes: stats, a dict that says what the last read_data() read.

    For one load at a time, and for one thread. Methods raise Error if a file
    cannot be read.
    """

    def __init__(self, path, *, strict_dtype=False, **options):
        super().__init__()
        self._path = path_of(path)
        self._strict_dtype = strict_dtype
        self._reading = Reading("Reader", options)
        self.stats = {}
        self.reset()

    def __repr__(self):
        return described(self, path_text(self._path))

    # Methods that torch calls

    def reset(self, checkpoint_id=None):
        """Begins a load; `checkpoint_id` is another path, if it is given."""
        if checkpoint_id:
            self._path = path_of(checkpoint_id)
        self._load_id = str(uuid.uuid4())
        self._metadata = None
        self._metadata_name = ".metadata"
        self._parsed = None  # What is in that file.
        # The directory, opened if it has to be, and its rows by name.
        self._directory = None
        self._failed = None  # The error of read_metadata().
        self._sizes = {}

    def read_metadata(self, *args, **kwargs):
        """torch's Metadata of the directory, or with `rank` of that rank."""
        rank = kwargs.get("rank")
        if rank is not None and self._failed is not None and (
                not isinstance(self._failed, NotFoundError)):
            return _Unread(self._failed)
        name = ".metadata" if rank is None else f"__{rank}.metadata"
        try:
            metadata, parsed = read_metadata(
                self._open(name), self._reading.understanding()
            )
        except Error as error:
            if rank is None:
                self._failed = error
            elif self._failed is not None:
                return _Unread(self._failed)
            raise
        self._failed = None
        self._metadata_name = name
        # One file of several ranks is not the directory.
        self._parsed = parsed if rank is None else None
        self._directory = None
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self._load_id
        return metadata

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        """Takes the metadata of the load that follows, as torch calls it.

        metadata: what read_metadata() returned.
        is_coordinator: not used.

        Raises CorruptError for metadata without the places of entries.
        """
        if metadata.storage_data is None:  # Raises the error of an _Unread.
            raise CorruptError("Metadata lacks storage_data", "kCorrupt")
        self._metadata = metadata
        self._sizes = {}
        # Comparing two MetadataIndex takes longer than the rest of a lookup.
        with no_gc():
            self._places = {
                (index.fqn, index.offset): place
                for index, place in metadata.storage_data.items()
            }
            self._has_transforms = any(
                transforms_of(place) for place in metadata.storage_data.values()
            )
        if not self._has_transforms:
            self._parsed = None  # The directory is not opened.

    def prepare_local_plan(self, plan):
        """Returns `plan` as it is."""
        return plan

    def prepare_global_plan(self, plans):
        """Returns `plans` as they are."""
        return plans

    def read_data(self, plan, planner):
        """Reads what `plan` wants into the tensors that `planner` gives; the
        Future is done when this returns.
        """
        files = _Files(self._open)
        texts = [one for one in plan.items if one.type == LoadItemType.BYTE_IO]
        tensors = [
            one for one in plan.items if one.type != LoadItemType.BYTE_IO
        ]
        transformed = []
        if self._has_transforms:
            plain = []
            for one in tensors:
                is_plain = not transforms_of(self._place(one))
                (plain if is_plain else transformed).append(one)
            tensors = plain
        self.stats = dict.fromkeys(_haulway.LOAD_SUMS, 0)
        self._read_bytes(texts, files, planner)
        for part in self._parts(tensors, files):
            self._read_tensors(part, files, planner)
        if transformed:
            self._read_transformed(transformed, planner)
        self._reading.tell(self.stats)
        done = Future()
        done.set_result(None)
        return done

    @property
    def checkpoint_id(self):
        """The path or URL that is read."""
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        """Returns whether `checkpoint_id` is a path or URL that can be opened.
        """
        text = os.fspath(checkpoint_id)
        if "://" in text:
            return text.partition("://")[0] in ("s3", "http", "https", "file")
        return os.path.isdir(text)

    # Files

    def _open(self, name):
        """Returns the source of a file in the directory."""
        if "://" not in self._path:
            path = os.path.join(self._path, name)
            top = os.path.realpath(self._path)
            if os.path.commonpath([os.path.realpath(path), top]) != top:
                raise CorruptError(
                    f"{name!r} leads out of the directory; of {self._path}",
                    "kCorrupt",
                )
        else:
            path = f"{self._path.rstrip('/')}/{name}"
        if self._reading.asked_signature:
            return self._reading.source(path)
        return open_source(path, mapped=True, remote=self._reading.remote,
                           base=self._reading.base or "")

    def _place(self, item):
        index = item.storage_index
        place = self._places.get((index.fqn, index.offset))
        if place is None:
            raise CorruptError(
                f"{called(item.storage_index)} has no place; of {self._path}",
                "kCorrupt",
            )
        return place

    # Entries that are not tensors

    def _read_bytes(self, items, files, planner):
        group, total = [], 0
        for item in items:
            place = self._place(item)
            source = files[place.relative_path]
            # Check a claimed range against the file before allocating it.
            source = _haulway.slice_source(source, place.offset, place.length)
            if group and total + place.length > _TOGETHER_BYTES:
                self._hand_over(group, planner)
                group, total = [], 0
            group.append((item, place, source))
            total += place.length
        self._hand_over(group, planner)

    def _hand_over(self, group, planner):
        by_file = {}
        held = []
        for item, place, source in group:
            data = bytearray(place.length)
            by_file.setdefault(place.relative_path, []).append((source, data))
            held.append((item, place, data))
        for pairs in by_file.values():
            for source, data in pairs:
                _haulway.read_many(source, [(0, data)])
                self.stats["read_bytes"] += len(data)
                self.stats["requests"] += 1
        for item, place, data in held:
            if transforms := transforms_of(place):
                data = _haulway.read_transformed(
                    _haulway.bytes_source(data, f"{called(item.storage_index)} "
                                                f"of {self._path}"),
                    0, len(data), transforms, self._reading.understanding(),
                )
            if self._reading.verify:
                _check_archive(data, called(item.storage_index), self._path)
            planner.load_bytes(item, io.BytesIO(data))

    # Tensors

    def _parts(self, items, files):
        """Yields the items in file order, in parts of bounded memory."""
        with no_gc():
            places = [(self._place(item), item) for item in items]
            places.sort(key=lambda one: (one[0].relative_path, one[0].offset))
        part, total = [], 0
        for place, item in places:
            size = 0
            if files[place.relative_path].is_server:
                size = min(place.length, _WHOLE_BYTES)
            if part and total + size > _PART_BYTES:
                yield part
                part, total = [], 0
            part.append((item, place))
            total += size
        if part:
            yield part

    def _read_tensors(self, part, files, planner):
        numbers = {}
        for _, place in part:
            numbers.setdefault(place.relative_path, len(numbers))
        core = _haulway.open_items(
            [files[name] for name in numbers],
            [(numbers[place.relative_path], place.offset, place.length)
             for _, place in part],
            lambda row: called(part[row][0].storage_index),
            self._reading.opening(),
        )
        self._fill(
            core, [(row, item) for row, (item, _) in enumerate(part)], planner
        )

    def _read_transformed(self, items, planner):
        if self._directory is None:
            source, opening = (self._open(self._metadata_name),
                               self._reading.opening())
            # What changes the weights is not part of the directory.
            is_changed = any(opening.get(name)
                             for name in ("dequantize", "lora", "rules"))
            if self._parsed is None or is_changed:
                core = _haulway.open_checkpoint(source, opening)
            else:
                core = _haulway.open_dcp(source, self._parsed, opening)
                self._parsed = None
            self._directory = core, dict(zip(core.names(), core.rows()))
        core, rows = self._directory
        self._fill(
            core, [(rows[item.storage_index.fqn], item) for item in items],
            planner, of_whole=True,
        )

    def _fill(self, core, rows, planner, of_whole=False):
        """Fills the destinations of items, each from a row of tensors.

        of_whole: the rows are whole tensors, not chunks.
        """
        filled = []
        batches = self._batches(core, rows, planner, filled, of_whole)
        while True:
            with no_gc():
                batch = next(batches, None)
            if batch is None:
                break
            self._load(core, *batch)
        for item, target in filled:
            planner.commit_tensor(item, target)

    def _batches(self, core, rows, planner, filled, of_whole):
        """Yields batches of requests to the engine, and the intermediate memory
        among them; adds items and their destinations to `filled`."""
        requests, between, held = [], [], 0
        for row, item in rows:
            info = core.tensor(row)
            wanted = self._check_stored(item, info, of_whole)
            target = planner.resolve_tensor(item).detach()
            if target.shape != item.lengths:
                raise AssertionError(
                    f"req {item.storage_index} mismatch sizes "
                    f"{target.size()} vs {torch.Size(item.lengths)}"
                )
            slices = None
            if item.lengths != info.shape:
                slices = [
                    (begin, begin + length, 1)
                    for begin, length in zip(wanted, item.lengths)
                ]
            stored = dtype_of(info.dtype)
            if target.dtype != stored and self._strict_dtype:
                raise MismatchError(
                    f"{called(item.dest_index)} is {stored} in the checkpoint "
                    f"and {target.dtype} in memory: expected one dtype; of "
                    f"{self._path}",
                    "kMismatch",
                )
            memory = target
            if (
                target.dtype != stored
                or target.device.type != "cpu"
                or not target.is_contiguous()
                or target.is_conj() != info.conjugate
                or target.is_neg() != info.negative
            ):
                memory = torch.empty(tuple(item.lengths), dtype=stored)
                if held and held + memory.nbytes > _PART_BYTES:
                    yield requests, between
                    requests, between, held = [], [], 0
                held += memory.nbytes
                between.append((memory, target, info))
            if memory.numel():
                requests.append(TensorRequest(
                    row, slices, None, None, memory.data_ptr(), memory.nbytes
                ))
            filled.append((item, target))
        yield requests, between

    def _check_stored(self, item, info, of_whole):
        """Returns where the wanted elements begin in the tensor of `info`.
        Raises if that, a chunk or the whole tensor, is not as the metadata say.
        """
        index = item.storage_index
        entry = self._metadata.state_dict_metadata.get(index.fqn)
        chunks = self._sizes.get(index.fqn)
        if chunks is None:
            chunks = {} if entry is None else {
                one.offsets: one.sizes for one in entry.chunks
            }
            if len(chunks) > 1:  # It is used more than once.
                self._sizes[index.fqn] = chunks
        wanted = chunks.get(index.offset)
        if wanted is None:
            raise CorruptError(
                f"{called(index)} is no chunk; of {self._path}", "kCorrupt"
            )
        begins = item.storage_offsets
        if of_whole:
            begins = [a + b for a, b in zip(index.offset, begins)]
            wanted = entry.size
        dtype = name_of_dtype(entry.properties.dtype)
        if info.shape != wanted or info.dtype != dtype or info.storage is None:
            raise CorruptError(
                f"{called(index)} is {info.dtype} {list(info.shape)}: expected "
                f"{dtype} {list(wanted)}; of {self._path}",
                "kCorrupt",
            )
        return begins

    def _load(self, core, requests, between):
        _, stats = _haulway.load_tensors(
            core, requests, self._reading.engine, self._reading.progress
        )
        for name in _haulway.LOAD_SUMS:
            self.stats[name] += stats[name]
        for memory, target, info in between:
            if info.conjugate or info.negative:
                memory = _torch_private.flipped(
                    memory, conj=info.conjugate, neg=info.negative
                )
            target.copy_(memory)


class _Files(dict):
    """Sources by name, opened on first use."""

    def __init__(self, open_file):
        super().__init__()
        self._open = open_file

    def __missing__(self, name):
        try:
            self[name] = self._open(name)
        except FileNotFoundError as error:
            raise NotFoundError(
                f"data file {name!r} is missing: {error}", "kNotFound"
            ) from error
        return self[name]


def _check_archive(data, name, path):
    """Raises MismatchError if a record does not match its checksum."""
    archive = _haulway.open_archive(
        _haulway.bytes_source(data, f"{name} of {path}"), True, False
    )
    for record in archive.names():
        archive.read(record)
