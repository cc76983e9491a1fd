"""haulway.open and haulway.load."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Mapping

from . import _haulway
from ._errors import InvalidArgumentError, UnsupportedError
from ._objects import (
    DescribingFactory,
    NumpyFactory,
    TensorInfo,
    make_array,
)
from ._secrets import secret_arguments
from ._source import is_path, open_source


def debug_offsets():
    """Whether every computed offset is to be compared with the real one."""
    return os.environ.get("HAULWAY_SERIALIZATION_DEBUG", "0") == "1"


def _check_framework(framework):
    if framework is None:
        found = importlib.util.find_spec("torch") is not None
        return "torch" if found else "numpy"
    if framework not in ("torch", "numpy"):
        raise InvalidArgumentError(
            f"framework is {framework!r}: expected 'torch' or 'numpy'"
        )
    return framework


def open(path, framework=None, mmap=None, *, key=None, passphrase=None,
         keep_meta=False):
    """Opens a checkpoint and returns a Checkpoint, a mapping of its tensors.

    path: a path, bytes, or a binary file object, read from its position.
    framework: "torch" or "numpy"; by default torch if it is installed.
    mmap: True maps a file, so that tensors are views of it that cost nothing
        until touched, and writing to one never reaches the file; False reads
        each tensor into memory of its own. None: True for paths.
    key: 32 bytes, or
    passphrase: a string or bytes, of an encrypted file. Its tensors can be
        listed without.
    keep_meta: tensors of which the file keeps a shape and no data come as
        meta tensors, instead of zeros.

    Reads the index of the file and no tensor. Raises Error.
    """
    return Checkpoint(
        path, _check_framework(framework), mmap, key, passphrase, keep_meta
    )


class Checkpoint(Mapping):
    """An open checkpoint: tensors by name, in the order of the file.

    Any number of threads may use one at once; the GIL is released while
    bytes are read. Tensors stay valid after it is closed.
    """

    def __init__(self, path, framework, mmap, key=None, passphrase=None,
                 keep_meta=False):
        mapped = is_path(path) if mmap is None else mmap
        self._core = _haulway.open_checkpoint(
            open_source(path, mapped),
            debug_offsets=debug_offsets(),
            keep_meta=keep_meta,
            **secret_arguments(key, passphrase),
        )
        self.framework = framework
        self._lock = threading.Lock()
        self._stats = {"tensors": 0, "tensor_bytes": 0}

    # Mapping

    def __len__(self):
        return len(self._open())

    def __iter__(self):
        return iter(self._open().names())

    def __contains__(self, name):
        return isinstance(name, str) and self._open().find(name) is not None

    def keys(self):
        return self._open().names()

    def __getitem__(self, name):
        info = self.info(name)
        if info.storage is None:
            return self._from_meta(info)
        with self._lock:
            self._stats["tensors"] += 1
            self._stats["tensor_bytes"] += info.nbytes
        return self._make(info, self._open().read_storage(info.storage))

    def get_slice(self, name):
        """The tensor `name`, of which indexing reads only what it must."""
        return TensorSlice(self, self.info(name))

    def info(self, name):
        """The TensorInfo of a tensor; reads nothing."""
        core = self._open()
        row = core.find(name) if isinstance(name, str) else None
        if row is None:
            raise KeyError(name)
        return TensorInfo(*core.tensor(row))

    @property
    def format(self):
        """The name of the format, "torch" or "safetensors"."""
        return self._open().format

    @property
    def metadata(self):
        """What the writer noted about the content, a dict.

        For a format without a place for that, what `container` says.
        """
        noted = self._open().metadata
        return self.container if noted is None else noted

    @property
    def container(self):
        """What the container says about itself, a dict."""
        return self._open().facts

    def tree(self):
        """The whole object with a TensorInfo in place of every tensor."""
        core = self._open()
        return _build(core, DescribingFactory(core))[0]

    def stats(self):
        """How many tensors, and of how many bytes, were asked for."""
        with self._lock:
            return dict(self._stats)

    # Lifetime

    def close(self):
        """Lets go of the file. Tensors that were handed out stay valid."""
        self._core = None

    def __enter__(self):
        self._open()
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        if self._core is None:
            return "<haulway.Checkpoint, closed>"
        return f"<haulway.Checkpoint of {len(self)} tensors, {self.format}>"

    def _open(self):
        core = self._core
        if core is None:
            raise ValueError("the checkpoint is closed")
        return core

    def _make(self, info, memory):
        if self.framework == "numpy":
            return make_array(info, memory)
        from . import _torch_factory

        return _torch_factory.tensor_over(
            _torch_factory.storage_of(memory), info
        )

    def _from_meta(self, info):
        if self.framework == "torch":
            from . import _torch_factory

            return _torch_factory.meta_tensor(info)
        raise UnsupportedError("a meta tensor has no data for NumPy")


class TensorSlice:
    """A tensor in a file, read when it is indexed."""

    def __init__(self, checkpoint, info):
        self._checkpoint = checkpoint
        self._info = info

    @property
    def shape(self):
        return self._info.shape

    @property
    def dtype(self):
        return self._info.dtype

    def get_shape(self):
        return list(self._info.shape)

    def get_dtype(self):
        return self._info.dtype

    def __getitem__(self, index):
        """The part that NumPy's indexing means.

        Of a tensor whose rows are dense, only the rows between the first and
        the last wanted one are read.
        """
        info = self._info
        if not isinstance(index, tuple):
            index = (index,)
        rows = self._rows(index)
        if rows is None or info.storage is None:
            return self._whole()[index]
        first, last, rest = rows
        row_elements = info.strides[0]
        item = info.nbytes // _count(info.shape)
        memory = self._checkpoint._open().read_range(
            info.storage,
            (info.offset + first * row_elements) * item,
            (last - first) * row_elements * item,
        )
        part = info._replace(
            offset=0,
            shape=(last - first, *info.shape[1:]),
            nbytes=memory.nbytes,
        )
        return self._checkpoint._make(part, memory)[(rest, *index[1:])]

    def _whole(self):
        memory = self._checkpoint._open().read_storage(self._info.storage)
        return self._checkpoint._make(self._info, memory)

    def _rows(self, index):
        """(first row, one past the last, what to index them with), or None."""
        info = self._info
        if not info.shape or info.nbytes == 0 or not index:
            return None
        dense = 1
        for size, stride in zip(reversed(info.shape), reversed(info.strides)):
            if size != 1 and stride != dense:
                return None
            dense *= size
        if info.shape[0] == 1:
            return None
        if isinstance(index[0], slice):
            start, stop, step = index[0].indices(info.shape[0])
            if step < 1 or start >= stop:
                return None
            return start, stop, slice(None, None, step)
        if hasattr(index[0], "__index__") and not isinstance(index[0], bool):
            row = index[0].__index__()
            row += info.shape[0] if row < 0 else 0
            if not 0 <= row < info.shape[0]:
                raise IndexError(
                    f"index {index[0]} is out of range for {info.shape[0]} rows"
                )
            return row, row + 1, 0
        return None


def _count(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def _build(core, factory, *, from_dlpack=None, bases=None, encoding="utf-8",
           io="auto", threads=0, verify=False, progress=None):
    return core.build(
        factory, from_dlpack, bases, encoding, io, threads, verify, progress
    )


def load(path, framework=None, *, include=None, device="cpu", verify=False,
         threads=None, io="auto", progress=None, key=None, passphrase=None,
         keep_meta=False):
    """Loads a checkpoint: the object that was saved, with its tensors.

    What torch.load(weights_only=True) would return, tied tensors tied and
    views views. With NumPy, tensors are arrays, and what only torch has
    (sparse tensors, dtypes) is described by PickledObject and GlobalName.

    include: a glob, or a list of them: only the tensors whose names match,
        as a flat dict by name.
    device: where torch tensors go.
    verify: check every checksum in the same pass.
    threads: None uses what the machine lets this process use.
    io: "auto" and "pread" read into fresh memory, "mmap" maps the file.
    progress: called as progress(bytes done, bytes in all).
    key, passphrase: of an encrypted file; see open(), as keep_meta.

    Raises Error; nothing in the file is run.
    """
    framework = _check_framework(framework)
    core = _haulway.open_checkpoint(
        open_source(path, mapped=io == "mmap"),
        debug_offsets=debug_offsets(),
        keep_meta=keep_meta,
        **secret_arguments(key, passphrase),
    )
    if is_path(path) and io == "auto":
        io = "pread"
    threads = threads or 0
    if include is not None:
        return _load_included(
            core, framework, include, device, io, threads, verify, progress
        )
    if framework == "numpy":
        memories, _ = core.load_storages(
            list(range(core.storage_count())), io, threads, verify, progress
        )
        return _build(core, NumpyFactory(core, memories))[0]
    from . import torch as haulway_torch

    return haulway_torch.load_object(
        core, None if device == "cpu" else device, io=io, threads=threads,
        verify=verify, progress=progress,
    )


def _load_included(core, framework, include, device, io, threads, verify,
                   progress):
    import fnmatch

    patterns = [include] if isinstance(include, str) else list(include)
    wanted = {
        name: TensorInfo(*core.tensor(row))
        for name, row in zip(core.names(), core.rows())
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
    rows = sorted(
        {info.storage for info in wanted.values() if info.storage is not None}
    )
    memories, _ = core.load_storages(rows, io, threads, verify, progress)
    by_row = dict(zip(rows, memories))
    if framework == "numpy":
        return {
            name: make_array(info, by_row[info.storage])
            for name, info in wanted.items()
            if info.storage is not None
        }
    from . import _torch_factory

    storages = {
        row: _torch_factory.storage_of(memory) for row, memory in by_row.items()
    }
    tensors = {}
    for name, info in wanted.items():
        if info.storage is None:
            tensors[name] = _torch_factory.meta_tensor(info)
        else:
            tensor = _torch_factory.tensor_over(storages[info.storage], info)
            tensors[name] = tensor if device == "cpu" else tensor.to(device)
    return tensors
