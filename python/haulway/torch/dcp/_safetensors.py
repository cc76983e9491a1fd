"""The variant of DCP whose data files are safetensors."""

# Design: there is no .metadata. Each file's header tells where its tensors begin
# in the whole tensors. torch's Metadata is built from all headers, and reading
# is that of the other reader, one file at a time. A missing shard shows as a
# gap, in the numbers of the files' names, or, for files that Haulway wrote, in
# the sizes of whole tensors that their headers also have. torch's reader
# assumes that the largest end it finds is the size of a tensor.

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
from ..._config import given
from ..._errors import CorruptError, NotFoundError, UnsupportedError
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


class SafetensorsReader(Reader):
    """A StorageReader of a directory of safetensors files that DCP wrote, or of
    any model in such files.

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
        """torch's Metadata of all files."""
        names = self._names()
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
                places[MetadataIndex(fqn, begin)] = _StorageInfo(
                    name, core.storage(info.storage).offset or 0, info.nbytes
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

    def _names(self):
        """Returns the names of the files in the directory."""
        if "://" not in self._path:
            names = os.listdir(self._path)
        else:
            try:
                source = self._open(_INDEX)
                data = bytearray(source.size)
                _haulway.read_many(source, [(0, data)])
                names = set(json.loads(data)["weight_map"].values())
            except NotFoundError:
                folder = self._path.rstrip("/") + "/"
                names = [
                    path.rpartition("/")[2]
                    for path in _haulway.list_files(
                        folder, self._reading.remote
                    )
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
        by_file = {}
        for item, place in part:
            by_file.setdefault(place.relative_path, []).append(item)
        for name, items in by_file.items():
            core = self._core(name)
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
    and their index become visible as one, and those of an older save go. With
    save_distributed=True each file is replaced in one step, but not all of them
    together: save into a new directory if an older checkpoint must stay
    complete.

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
        """
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
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
        if self._finishes and not self._distributed:
            self._set = _haulway.FileSet(self._durability)
        done = Future()
        done.set_result([
            result for name, items in files.items()
            for result in self._write(name, items, planner)
        ])
        return done

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
            {"durability": self._durability,
             "threads": given("save", "threads", None)}, None,
        )
        return [
            WriteResult(item.index, row[3][2], _StorageInfo(name, 0, row[3][2]))
            for item, row in zip(items, rows)
        ]

    def finish(self, metadata, results):
        """Writes the index of all files, and makes them visible.

        metadata: torch's Metadata of the save.
        results: what write_data() returned in each rank.
        """
        if self._distributed:
            return
        written = [one for some in results for one in some]
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
        self._put(_INDEX, [json.dumps(index, indent=2).encode()], files)
        if self._is_remote:
            self._put(_INDEX, [_haulway.UNFINISHED_INDEX])
            files.commit(None)
            return
        names = {one.storage_data.relative_path for one in written}
        files.commit(lambda: [
            os.path.join(self._path, name) for name in os.listdir(self._path)
            if _FILE.fullmatch(name) and name not in names
        ])
