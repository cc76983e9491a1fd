"""The variant of DCP whose data files are safetensors."""

# Design: there is no .metadata. Each file's header tells where its tensors begin
# in the whole tensors. torch's Metadata is built from all headers, and reading
# is that of the other reader, one file at a time. A missing shard shows as a
# gap, in the numbers of the files' names, or, for files that Haulway wrote, in
# the sizes of whole tensors that their headers also have. torch's reader
# assumes that the largest end it finds is the size of a tensor.
#
# No file opens those of several processes, so a reader takes what it finds. When
# they are replaced, all old names go before the first new one is given, and a
# hidden file says so meanwhile, which a writer that dies leaves. A reader looks
# again whether the files that it opened still have their names, and takes the
# files' times along to other processes.
#
# A version of weights that is a delta is one file, its index: the engine opens
# it with its base and the versions between.

from __future__ import annotations

import dataclasses
import json
import math
import os
import re

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ... import _haulway
from ..._config import for_saving
from ..._errors import (
    CorruptError,
    Error,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from ..._reading.source import is_delta
from ..._torch.factory import dtype_of, name_of_dtype
from ._reader import Reader
from ._writer import Writer

_INDEX = "model.safetensors.index.json"
_FILE = re.compile(
    r"(?:shard-(\d+)-)?model-(\d+)-of-(\d+)\.safetensors"
)
# Keys of __metadata__: torch's, and Haulway's for the sizes of whole tensors.
_OFFSETS, _VERSION = "DCP_SHARDING_INFO", "DCP_VERSION"
_SIZES = "DCP_TENSOR_SIZES"
# How often the files are opened that saves replace meanwhile.
_MOST_TRIES = 3


@dataclasses.dataclass
class _Place(_StorageInfo):
    """The place of a chunk, and what the file was when that was read."""

    stamp: tuple | None = None


@dataclasses.dataclass
class _Written:
    """A file that a process wrote, by its name and the one that it has until
    all are made visible."""

    relative_path: str
    temporary: str | None = None


class SafetensorsReader(Reader):
    """A StorageReader of a directory of safetensors files that DCP wrote, or of
    any model in such files, or of a version of weights (docs/deltas.md).

    The arguments are the arguments of Reader. A missing chunk raises
    CorruptError, and so does a gap in the numbers in the files' names, unless
    lenient=True: torch's writer leaves out the file of a process that has
    nothing to write. If that writer wrote the directory, the reader notices
    that the file of the last shard is missing only if other tensors or numbers
    show that there was such a file.

    For one load at a time, and for one thread. Methods raise Error if a file
    cannot be read.
    """

    def read_metadata(self):
        """torch's Metadata of all files. Raises UnavailableError if other saves
        replace them again and again."""
        for _ in range(_MOST_TRIES):
            names = self._names()
            stamps = {name: self._stamp(name) for name in names}
            try:
                found = self._metadata_of(names, stamps)
            except Error:
                if self._are_same(stamps):
                    raise
            else:
                if self._are_same(stamps):
                    return found
        raise UnavailableError(
            "saves replaced the files while they were opened; of "
            f"{self._path}", "kUnavailable",
        )

    def _stamp(self, name):
        """Returns what tells a file from one that takes its name; None for a URL
        and for a file that is gone."""
        if "://" in self._path:
            return None
        try:
            facts = os.stat(os.path.join(self._path, name))
        except OSError:
            return None
        return facts.st_ino, facts.st_size, facts.st_mtime_ns

    def _are_same(self, stamps):
        return all(self._stamp(name) == stamp
                   for name, stamp in stamps.items())

    def _metadata_of(self, names, stamps):
        if not self._reading.lenient:
            _check_names(names, self._path)
        self._cores = {}
        entries, places, sizes = {}, {}, {}
        for name in names:
            core = self._core(name)
            said = core.metadata or {}
            begins = _parsed(said.get(_OFFSETS), name)
            for fqn, whole in _parsed(said.get(_SIZES), name).items():
                sizes[fqn] = torch.Size(whole)
            for fqn, row in zip(core.names(), core.rows()):
                info = core.tensor(row)
                begin = torch.Size(
                    begins[fqn]["saved_offsets"] if fqn in begins
                    else [0] * len(info.shape)
                )
                _add(entries, fqn, info, begin, name)
                places[MetadataIndex(fqn, begin)] = _Place(
                    name, core.storage(info.storage).offset or 0, info.nbytes,
                    stamp=stamps[name],
                )
        for fqn, entry in entries.items():
            entry.size = sizes.get(fqn, entry.size)
            try:
                _check_tiles(fqn, entry)
            except CorruptError as error:
                raise CorruptError(
                    f"{error.message}; of {self._path}", "kCorrupt"
                ) from error
        return Metadata(
            entries, None, places, StorageMeta(load_id=self._load_id)
        )

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        """Takes `metadata` of the load that follows, as torch calls it;
        `is_coordinator` is not used.
        """
        super().set_up_storage_reader(metadata, is_coordinator)
        self._cores = {}

    def _index(self):
        """Returns the bytes of the directory's index, None without one."""
        try:
            source = self._open(_INDEX)
        except NotFoundError:
            return None
        data = bytearray(source.size)
        _haulway.read_many(source, [(0, data)])
        return data

    def _names(self):
        """Returns the names of the files in the directory."""
        index = self._index()
        if index is not None and is_delta(index):
            return [_INDEX]
        if "://" not in self._path:
            names = os.listdir(self._path)
            if any(name.startswith(_haulway.OPEN_SET) for name in names):
                raise NotFoundError(
                    "a save of these files goes on, or did not end: save "
                    f"again; of {self._path}", "kNotFound",
                )
        elif index is not None:
            names = set(json.loads(index)["weight_map"].values())
        else:
            folder = self._path.rstrip("/") + "/"
            names = [
                path.rpartition("/")[2]
                for path in _haulway.list_files(folder, self._reading.remote)
            ]
        names = sorted(
            name for name in names if name.endswith(".safetensors")
        )
        if not names:
            raise NotFoundError(
                f"no safetensors files; in {self._path}", "kNotFound"
            )
        return names

    def _core(self, name):
        if name not in self._cores:
            self._cores[name] = _haulway.open_checkpoint(
                self._open(name), self._reading.opening()
            )
        return self._cores[name]

    def _read_tensors(self, part, files, planner):
        by_file, stamps = {}, {}
        for item, place in part:
            by_file.setdefault(place.relative_path, []).append(item)
            stamps[place.relative_path] = getattr(place, "stamp", None)
        for name, items in by_file.items():
            core = self._core(name)
            if stamps[name] is not None and self._stamp(name) != stamps[name]:
                raise UnavailableError(
                    f"another save replaced {name} after the load had begun: "
                    f"load again; of {self._path}", "kUnavailable",
                )
            self._fill(
                core,
                [(core.find(one.storage_index.fqn), one) for one in items],
                planner,
            )


def _parsed(text, name):
    """Parses a value of __metadata__ as a dict."""
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CorruptError(
            f"{_OFFSETS} is no JSON: {error}; of {name}", "kCorrupt"
        ) from error
    if not isinstance(value, dict):
        raise CorruptError(
            f"{_OFFSETS} is {type(value).__name__}: expected a dict; of {name}",
            "kCorrupt",
        )
    return value


def _check_names(names, path):
    """Raises if the numbers in the files' names show that one is missing."""
    found = [match for match in map(_FILE.fullmatch, names) if match]
    counts = {int(match[3]) for match in found}
    shards = {int(match[1]) for match in found if match[1]}
    models = {int(match[2]) for match in found}
    for what, numbers, most in (
        ("shard", shards, max(shards, default=0)),
        ("model", models, max(counts, default=0)),
    ):
        missing = set(range(1, most + 1)) - numbers
        if missing:
            raise CorruptError(
                f"file of {what} {min(missing)} is missing: expected 1 to "
                f"{most}; of {path}",
                "kCorrupt",
            )


def _add(entries, fqn, info, begin, name):
    """Adds a chunk to the known tensors."""
    if len(begin) != len(info.shape):
        raise CorruptError(
            f"{fqn} begins at {list(begin)}: expected {len(info.shape)} numbers"
            f"; of {name}",
            "kCorrupt",
        )
    end = [at + length for at, length in zip(begin, info.shape)]
    dtype = dtype_of(info.dtype)
    chunk = ChunkStorageMetadata(begin, torch.Size(info.shape))
    entry = entries.get(fqn)
    if entry is None:
        entries[fqn] = TensorStorageMetadata(
            TensorProperties(dtype), torch.Size(end), [chunk]
        )
        return
    if entry.properties.dtype != dtype or len(entry.size) != len(end):
        raise CorruptError(
            f"{fqn} is {info.dtype} of {len(end)} dimensions: expected what "
            f"other files say; of {name}",
            "kCorrupt",
        )
    entry.size = torch.Size(map(max, entry.size, end))
    entry.chunks.append(chunk)


def _check_tiles(name, entry):
    """Raises unless the chunks cover every element of the tensor once."""
    size, total = entry.size, 0
    for chunk in entry.chunks:
        begin, extent = chunk.offsets, chunk.sizes
        if len(begin) != len(size) or len(extent) != len(size) or any(
            at + length > most
            for at, length, most in zip(begin, extent, size)
        ):
            raise CorruptError(
                f"chunk of {name} at {list(begin)} of {list(extent)} leaves "
                f"the tensor of {list(size)}",
                "kCorrupt",
            )
        total += math.prod(extent)
    if total != math.prod(size):
        raise CorruptError(
            f"chunks of {name} have {total} elements: expected "
            f"{math.prod(size)}",
            "kCorrupt",
        )
    if len(entry.chunks) > 1:
        _check_apart(name, [one for one in entry.chunks if math.prod(one.sizes)])


def _check_apart(name, chunks):
    """Raises if two chunks overlap."""
    # Sorted by first row, a chunk can overlap only later ones that begin before
    # it ends.
    chunks.sort(key=lambda one: one.offsets)
    for i, one in enumerate(chunks):
        for other in chunks[i + 1:]:
            if other.offsets[0] >= one.offsets[0] + one.sizes[0]:
                break
            if all(
                a < b + n and b < a + m
                for a, m, b, n in zip(
                    one.offsets, one.sizes, other.offsets, other.sizes
                )
            ):
                raise CorruptError(
                    f"chunks of {name} at {list(one.offsets)} and "
                    f"{list(other.offsets)} overlap",
                    "kCorrupt",
                )


class SafetensorsWriter(Writer):
    """A StorageWriter of safetensors files, which torch's
    HuggingFaceStorageReader reads.

    fqn_to_index_mapping: the number of the file of each tensor, from 1 on; by
        default all are in one.
    save_distributed: each process writes its own shards. False, by default: one
        process writes whole tensors, and an index.
    path, overwrite, durability, remote: as for Writer.

    Entries that are not tensors are refused before a file is created. The files
    of all processes, and their index, become visible as one, and those of an
    older save go. In object stores each file of save_distributed=True is
    replaced in one step, but not all of them together: save below a new name if
    an older checkpoint must stay complete.

    For one save at a time, and for one thread. Methods raise Error if a file
    cannot be written.
    """

    def __init__(self, path, *, fqn_to_index_mapping=None,
                 save_distributed=False, overwrite=True, durability=None,
                 **remote):
        super().__init__(
            path, overwrite=overwrite, durability=durability, **remote
        )
        self._mapping = fqn_to_index_mapping
        self._distributed = save_distributed

    def reset(self, checkpoint_id=None):
        """Begins a save; `checkpoint_id` is another path, if it is given."""
        super().reset(checkpoint_id)
        self._set = None

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        """Begins a save, as torch calls it.

        is_coordinator: whether finish() is called in this process.

        Raises UnsupportedError for use_collectives=False.
        """
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        if self._rank is not None:
            raise UnsupportedError(
                "use_collectives=False: expected True, since each process must "
                "know the number of its files",
                "kUnsupported",
            )
        self._finishes = is_coordinator

    def prepare_local_plan(self, plan):
        """Makes the directory, and returns `plan`. Raises UnsupportedError for
        entries that are not tensors, and RuntimeError for a checkpoint that
        must not be replaced.
        """
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                raise UnsupportedError(
                    f"{item.index.fqn} is no tensor: expected tensors, which "
                    "alone safetensors files hold",
                    "kUnsupported",
                )
            name_of_dtype(item.tensor_data.properties.dtype)
        if not self._is_remote:
            os.makedirs(self._path, exist_ok=True)
        if not self._overwrite and (
            self._exists(_INDEX) or self._exists(self._file(1, 1, 1))
        ):
            raise RuntimeError(
                "Checkpoint already exists and self.overwrite=False."
            )
        return plan

    def prepare_global_plan(self, plans):
        """Returns `plans` with the number of the rank in each."""
        return [
            dataclasses.replace(plan, storage_data=number)
            for number, plan in enumerate(plans, 1)
        ]

    def _file(self, number, count, shard):
        name = f"model-{number:05}-of-{count:05}.safetensors"
        return f"shard-{shard:05}-{name}" if self._distributed else name

    def write_data(self, plan, planner):
        """Writes the files of `plan`, with the tensors that `planner` gives;
        the Future is done when this returns.
        """
        mapping = self._mapping or {}
        count = max(mapping.values(), default=1)
        files = {}
        for item in plan.items:
            number = mapping.get(item.index.fqn, 1)
            name = self._file(number, count, plan.storage_data)
            files.setdefault(name, []).append(item)
        if self._is_together if self._distributed else self._finishes:
            self._set = _haulway.FileSet(self._durability)
        written = [
            result for name, items in files.items()
            for result in self._write(name, items, planner)
        ]
        if self._is_together:
            # Another process makes them visible. Until the next save, this one
            # keeps others from taking them for leftovers.
            hidden = dict(zip(files, self._set.prepare()))
            for one in written:
                one.storage_data.temporary = os.path.basename(
                    hidden[one.storage_data.relative_path]
                )
        done = Future()
        done.set_result(written)
        return done

    @property
    def _is_together(self):
        """Whether one process makes the files of all visible."""
        return self._distributed and not self._is_remote

    def _write(self, name, items, planner):
        rows, offsets, sizes = [], {}, {}
        for item in items:
            tensor = planner.resolve_data(item).detach().cpu()
            tensor = tensor.resolve_conj().resolve_neg().contiguous()
            rows.append((
                item.index.fqn, name_of_dtype(tensor.dtype),
                tuple(tensor.shape),
                (tensor, tensor.data_ptr(), tensor.nbytes),
            ))
            offsets[item.index.fqn] = {
                "saved_offsets": list(item.tensor_data.chunk.offsets)
            }
            sizes[item.index.fqn] = list(item.tensor_data.size)
        if len(offsets) < len(items):
            raise UnsupportedError(
                f"several chunks of one tensor in {name}: expected one, which "
                "alone a safetensors file can hold by its name",
                "kUnsupported",
            )
        _haulway.write_tensors(
            self._target(name, self._set), "safetensors", rows,
            {_OFFSETS: json.dumps(offsets), _SIZES: json.dumps(sizes),
             _VERSION: "1.0", "format": "pt"},
            for_saving("safetensors", {"durability": self._durability}), None,
            replaces_link=self._is_together,
        )
        file = _Written(name)
        return [
            WriteResult(item.index, row[3][2], file)
            for item, row in zip(items, rows)
        ]

    def finish(self, metadata, results):
        """Writes the index of all files, and makes them visible.

        metadata: torch's Metadata of the save.
        results: what write_data() returned in each rank.
        """
        written = [one for some in results for one in some]
        if self._is_together:
            self._finish_together(written)
        if self._distributed:
            return
        index = {
            "metadata": {
                "total_size": sum(one.size_in_bytes for one in written)
            },
            "weight_map": {
                one.index.fqn: one.storage_data.relative_path
                for one in written
            },
        }
        files, self._set = self._set, None
        self._put(_INDEX, [json.dumps(index, indent=2).encode()], files=files)
        if self._is_remote:
            self._put(_INDEX, [_haulway.UNFINISHED_INDEX])
            files.commit(None)
            return
        names = {one.storage_data.relative_path for one in written}
        files.commit(lambda: self._others(names))

    def _finish_together(self, written):
        """Makes the files of all processes visible."""
        hidden = {one.storage_data.relative_path: one.storage_data.temporary
                  for one in written}
        files = _haulway.FileSet(self._durability)
        for name in sorted(hidden, reverse=True):
            files.add_written(self._path_of(name), self._path_of(hidden[name]))
        files.commit(lambda: [
            *filter(os.path.lexists, [self._path_of(_INDEX)]),
            *self._others(hidden),
        ], old_first=True)
        self._set = None

    def _others(self, names):
        """Returns the paths of files of older saves that have other names."""
        return [
            self._path_of(name) for name in os.listdir(self._path)
            if _FILE.fullmatch(name) and name not in names
        ]
