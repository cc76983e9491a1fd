"""The file .metadata of a DCP directory, read as data."""

# How: the pickle is parsed by the library's machine, which runs nothing, as the
# object of an archive that is made around it in memory. A factory then makes
# torch's own dataclasses of what the pickle describes: every name it may hold
# is a case here, and every field is checked before it is set. What is left is
# whether the parts agree: chunks that tile their tensors, and files that lie in
# the directory.

from __future__ import annotations

import math
import pathlib

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from ... import _haulway
from ..._errors import CorruptError, Error, UnsafeError, make_error
from ..._errors import place as say_where
from ..._reading.call import build_over
from ..._reading.streams import read_range

_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES = {
    f"{_METADATA}.{one.__name__}": one
    for one in (
        dcp.Metadata, dcp.MetadataIndex, dcp.ChunkStorageMetadata,
        dcp.TensorStorageMetadata, dcp.BytesStorageMetadata,
        dcp.TensorProperties, dcp.StorageMeta,
    )
}
_CLASSES["torch.distributed.checkpoint.filesystem._StorageInfo"] = _StorageInfo
_ENCODING = f"{_METADATA}._MEM_FORMAT_ENCODING"
_PATHS = {
    f"{module}.{name}"
    for module in ("pathlib", "pathlib._local")
    for name in (
        "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"
    )
}
_LAYOUT = "torch.serialization._get_layout"
_GETATTR = "builtins.getattr"
_ALLOWED = [*_CLASSES, _ENCODING, *_PATHS, _LAYOUT, _GETATTR]

_MEMORY_FORMATS = {
    0: torch.contiguous_format, 1: torch.channels_last,
    2: torch.preserve_format,
}


def read_metadata(source):
    """torch's Metadata of a source that is a .metadata file.

    Raises UnsafeError, with the file and the byte, for a name that is none of
    those of a Metadata, and CorruptError for parts that contradict each other.
    """
    core = _open_pickle(read_range(source, 0, source.size), source.name)
    try:
        metadata = build_over(core, _Factory(core))
        _check(metadata)
    except Error as error:
        raise make_error(
            error.code, f"{error.message}; of {source.name}", error.byte, 0
        ) from error
    return metadata


def _open_pickle(data, name):
    """An open checkpoint whose object is that of a pickle."""
    archive = bytearray()
    _haulway.write_archive(
        lambda piece: archive.extend(piece) or len(piece),
        [("data.pkl", data), ("version", b"3\n")], "archive", 64, True,
        "none", 1, None,
    )
    return _haulway.open_checkpoint(
        _haulway.bytes_source(archive, name), {"allowed_globals": _ALLOWED}
    )


class _Factory:
    """Makes the objects of a Metadata, and refuses all others."""

    keeps_opaque = True  # To say what it is, and where.

    def __init__(self, checkpoint):
        self.checkpoint = checkpoint

    def name(self, module, name):
        value = getattr(torch, name, None) if module == "torch" else None
        if isinstance(value, torch.dtype):
            return value
        if f"{module}.{name}" == _ENCODING:
            return dcp._MEM_FORMAT_ENCODING
        raise _refused(f"{module}.{name}")

    def construct(self, module, name, args, kwargs, is_new):
        full = f"{module}.{name}"
        if full in _CLASSES:
            if not is_new or args or kwargs:
                raise _refused(full)
            made = _CLASSES[full].__new__(_CLASSES[full])
            # What fields without a place in the pickle are.
            _set(made, _DEFAULTS.get(full, {}))
            return made
        if kwargs or is_new:
            raise _refused(full)
        if full == "torch.Size":
            return _size(args)
        if full == _GETATTR:  # Python 3.11 and later pickle members of enums so.
            if len(args) == 2 and args[0] is dcp._MEM_FORMAT_ENCODING:
                for member in args[0]:
                    if member.name == args[1]:
                        return member
            raise _refused(full)
        if full == _ENCODING:
            if len(args) == 1 and args[0] in _MEMORY_FORMATS:
                return dcp._MEM_FORMAT_ENCODING(args[0])
            raise CorruptError(
                f"memory format is {args!r}: expected 0 to 2", "kCorrupt"
            )
        if full == _LAYOUT:
            layout = args[0].removeprefix("torch.") if (
                len(args) == 1 and isinstance(args[0], str)
            ) else ""
            value = getattr(torch, layout, None)
            if isinstance(value, torch.layout):
                return value
            raise CorruptError(
                f"layout is {args!r}: expected the name of one", "kCorrupt"
            )
        if full in _PATHS and all(isinstance(part, str) for part in args):
            return str(pathlib.PurePosixPath(*args))
        raise _refused(full)

    def opaque(self, module, name, byte, args, kwargs):
        error = _refused(f"{module}.{name}")
        say_where(error, byte)
        raise error

    def set_state(self, built, module, name, state):
        full = f"{module}.{name}"
        if isinstance(built, dcp.TensorProperties):
            state = _properties(state)
        fields = _FIELDS.get(full)
        if fields is None:
            raise _refused(full)
        if not isinstance(state, dict):
            raise CorruptError(
                f"state of {full} is {type(state).__name__}: expected a dict",
                "kCorrupt",
            )
        for field, value in state.items():
            if field not in fields:
                raise CorruptError(
                    f"{full} has no field {field!r}", "kCorrupt"
                )
            if not fields[field](value):
                raise CorruptError(
                    f"{full}.{field} is {type(value).__name__}: expected "
                    f"{fields[field].__name__[3:].replace('_', ' ')}",
                    "kCorrupt",
                )
        _set(built, state)
        return built

    def extend(self, built, appended, items):
        raise _refused(type(built).__name__)

    def set_attributes(self, mapping, state):
        raise _refused(type(mapping).__name__)

    def tensor(self, row):
        raise _refused("a tensor")

    def storage(self, base, row, persistent_id):
        raise _refused("a storage")


def _refused(full):
    return UnsafeError(
        f"{full} is not a part of a Metadata, which alone is read", "kUnsafe"
    )


def _set(made, fields):
    vars(made).update(fields)  # Some are frozen.


def _size(args):
    sizes = args[0] if len(args) == 1 else None
    if not isinstance(sizes, (tuple, list)) or not all(
        type(size) is int and 0 <= size < 1 << 63 for size in sizes
    ):
        raise CorruptError(
            f"size is {args!r}: expected numbers from 0 on", "kCorrupt"
        )
    return torch.Size(sizes)


def _properties(state):
    """The fields of TensorProperties from the tuple that is pickled."""
    if not isinstance(state, tuple) or len(state) != 5:
        raise CorruptError(
            "state of TensorProperties: expected five values", "kCorrupt"
        )
    dtype, layout, requires_grad, encoding, pin_memory = state
    if not isinstance(encoding, dcp._MEM_FORMAT_ENCODING):
        raise CorruptError(
            "memory format of TensorProperties: expected an encoding",
            "kCorrupt",
        )
    return {
        "dtype": dtype, "layout": layout, "requires_grad": requires_grad,
        "memory_format": _MEMORY_FORMATS[encoding.value],
        "pin_memory": pin_memory,
    }


# What values of fields must be; the names are those of messages.

def is_a_str(value):
    return isinstance(value, str)


def is_a_str_or_None(value):
    return value is None or isinstance(value, str)


def is_a_bool(value):
    return isinstance(value, bool)


def is_a_number_from_0_on(value):
    return type(value) is int and value >= 0


def is_a_number_from_0_on_or_None(value):
    return value is None or is_a_number_from_0_on(value)


def is_a_size(value):
    return isinstance(value, torch.Size)


def is_a_size_or_None(value):
    return value is None or isinstance(value, torch.Size)


def is_a_dtype(value):
    return isinstance(value, torch.dtype)


def is_a_layout(value):
    return isinstance(value, torch.layout)


def is_a_memory_format(value):
    return isinstance(value, torch.memory_format)


def is_properties(value):
    return isinstance(value, dcp.TensorProperties)


def is_a_list_of_chunks(value):
    return isinstance(value, list) and all(
        isinstance(one, dcp.ChunkStorageMetadata) for one in value
    )


def is_a_list_of_str(value):
    return isinstance(value, list) and all(map(is_a_str, value))


def is_a_list_of_str_or_None(value):
    return value is None or is_a_list_of_str(value)


def is_a_dict_of_entries(value):
    return isinstance(value, dict) and all(
        isinstance(name, str)
        and isinstance(
            entry, (dcp.TensorStorageMetadata, dcp.BytesStorageMetadata)
        )
        for name, entry in value.items()
    )


def is_a_dict_of_places(value):
    return isinstance(value, dict) and all(
        isinstance(index, dcp.MetadataIndex)
        and isinstance(place, _StorageInfo)
        for index, place in value.items()
    )


def is_a_StorageMeta_or_None(value):
    return value is None or isinstance(value, dcp.StorageMeta)


def is_of_plain_values(value):
    if isinstance(value, dict):
        return all(map(is_of_plain_values, value)) and all(
            map(is_of_plain_values, value.values())
        )
    if isinstance(value, (tuple, list)):
        return all(map(is_of_plain_values, value))
    return value is None or isinstance(value, (str, int, float, bytes))


_FIELDS = {
    f"{_METADATA}.Metadata": {
        "state_dict_metadata": is_a_dict_of_entries,
        "planner_data": is_of_plain_values,
        "storage_data": is_a_dict_of_places,
        "storage_meta": is_a_StorageMeta_or_None,
        "version": is_a_str_or_None,
    },
    f"{_METADATA}.MetadataIndex": {
        "fqn": is_a_str, "offset": is_a_size_or_None,
        "index": is_a_number_from_0_on_or_None,
    },
    f"{_METADATA}.ChunkStorageMetadata": {
        "offsets": is_a_size, "sizes": is_a_size,
    },
    f"{_METADATA}.TensorStorageMetadata": {
        "properties": is_properties, "size": is_a_size,
        "chunks": is_a_list_of_chunks,
    },
    f"{_METADATA}.BytesStorageMetadata": {},
    f"{_METADATA}.TensorProperties": {
        "dtype": is_a_dtype, "layout": is_a_layout,
        "requires_grad": is_a_bool, "memory_format": is_a_memory_format,
        "pin_memory": is_a_bool,
    },
    f"{_METADATA}.StorageMeta": {
        "checkpoint_id": is_a_str_or_None, "save_id": is_a_str_or_None,
        "load_id": is_a_str_or_None, "modules": is_a_list_of_str,
    },
    "torch.distributed.checkpoint.filesystem._StorageInfo": {
        "relative_path": is_a_str, "offset": is_a_number_from_0_on,
        "length": is_a_number_from_0_on,
        "transform_descriptors": is_a_list_of_str_or_None,
    },
}
# Fields that older writers leave out, and fields of objects that are keys of
# dicts before their state is set.
_DEFAULTS = {
    f"{_METADATA}.Metadata": {
        "planner_data": None, "storage_data": None, "storage_meta": None,
        "version": None,
    },
    f"{_METADATA}.MetadataIndex": {"offset": None, "index": None},
    f"{_METADATA}.StorageMeta": {
        "checkpoint_id": None, "save_id": None, "load_id": None,
    },
    "torch.distributed.checkpoint.filesystem._StorageInfo": {
        "transform_descriptors": None,
    },
}


def _check(metadata):
    """Fails if parts of a Metadata are missing, or contradict each other."""
    if not isinstance(metadata, dcp.Metadata):
        raise CorruptError(
            f"the object is {type(metadata).__name__}: expected a Metadata",
            "kCorrupt",
        )
    entries = getattr(metadata, "state_dict_metadata", None)
    if entries is None or metadata.storage_data is None:
        raise CorruptError(
            "Metadata lacks state_dict_metadata or storage_data", "kCorrupt"
        )
    files = set()
    for index, place in metadata.storage_data.items():
        for field in ("relative_path", "offset", "length"):
            if not hasattr(place, field):
                raise CorruptError(
                    f"place of {called(index)} lacks {field}", "kCorrupt"
                )
        if place.relative_path not in files:
            _check_path(index, place.relative_path)
            files.add(place.relative_path)
    known = {
        (index.fqn, index.offset) for index in metadata.storage_data
    }
    for name, entry in entries.items():
        if isinstance(entry, dcp.BytesStorageMetadata):
            if (name, None) not in known:
                raise CorruptError(f"{name} has no place", "kCorrupt")
            continue
        check_tiles(name, entry)
        for chunk in entry.chunks:
            if (name, chunk.offsets) not in known:
                raise CorruptError(
                    f"{name} at {list(chunk.offsets)} has no place", "kCorrupt"
                )


def _check_path(index, path):
    parts = path.split("/")
    if "\0" in path or "\\" in path or any(
        part in ("", ".", "..") for part in parts
    ):
        raise CorruptError(
            f"file of {called(index)} is {path!r}: expected a path down from "
            "the directory",
            "kCorrupt",
        )


def check_tiles(name, entry):
    """Fails unless the chunks are the tensor, each element once."""
    for field in ("properties", "size", "chunks"):
        if not hasattr(entry, field):
            raise CorruptError(f"{name} lacks {field}", "kCorrupt")
    size, total = entry.size, 0
    for chunk in entry.chunks:
        begin = getattr(chunk, "offsets", ())
        extent = getattr(chunk, "sizes", ())
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
    """Fails if two chunks overlap."""
    # In the order of their first rows, one meets only those behind it that
    # begin before it ends.
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


def called(index):
    """What messages call the entry that a MetadataIndex means."""
    if index.offset is None:
        return index.fqn
    return f"{index.fqn} at {list(index.offset)}"
