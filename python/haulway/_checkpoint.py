"""haulway.open and haulway.load."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Mapping

from . import _haulway
from ._errors import InvalidArgumentError, UnsupportedError
from ._loading import Loading
from ._objects import (
    DescribingFactory,
    NumpyFactory,
    TensorInfo,
    make_array,
)
from ._secrets import secret_arguments
from ._slicing import TensorSlice
from ._source import is_path, open_source

# Of one load's statistics, what means something when added up.
_SUMS = (
    "tensor_bytes", "read_bytes", "requests", "retries", "seconds",
    "plan_seconds", "allocate_seconds", "read_seconds", "decode_seconds",
    "verify_seconds",
)


def debug_offsets():
    """Whether every computed offset is to be compared with the real one."""
    return os.environ.get("HAULWAY_SERIALIZATION_DEBUG", "0") == "1"


def check_framework(framework):
    if framework is None:
        found = importlib.util.find_spec("torch") is not None
        return "torch" if found else "numpy"
    if framework not in ("torch", "numpy"):
        raise InvalidArgumentError(
            f"framework is {framework!r}: expected 'torch' or 'numpy'"
        )
    return framework


def open(path, framework=None, mmap=None, *, key=None, passphrase=None,
         keep_meta=False, lenient=False):
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
    lenient: take what other readers take, beside what the format allows; see
        docs/formats.

    Reads the index of the file and no tensor. Raises Error.
    """
    return Checkpoint(
        path, check_framework(framework), mmap, key, passphrase, keep_meta,
        lenient,
    )


class Checkpoint(Mapping):
    """An open checkpoint: tensors by name, in the order of the file.

    Any number of threads may use one at once; the GIL is released while
    bytes are read. Tensors stay valid after it is closed.
    """

    def __init__(self, path, framework, mmap, key=None, passphrase=None,
                 keep_meta=False, lenient=False):
        mapped = is_path(path) if mmap is None else mmap
        self._core = _haulway.open_checkpoint(
            open_source(path, mapped),
            debug_offsets=debug_offsets(),
            keep_meta=keep_meta,
            strict=not lenient,
            **secret_arguments(key, passphrase),
        )
        self.framework = framework
        self._lock = threading.Lock()
        self._stats = {"tensors": 0, **dict.fromkeys(_SUMS, 0), "io": {}}

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
        return self._read(info)

    def get_slice(self, name):
        """The tensor `name`, of which indexing reads only what it must."""
        info = self.info(name)
        return TensorSlice(self, self._open().find(name), info)

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
        return Loading().build(core, DescribingFactory(core), None, None)

    def stats(self):
        """What was read through this so far, a dict.

        `tensors` counts the tensors and slices that were asked for; `io` is a
        dict that says how often each way of reading was taken; all else is
        the sum of what load(stats=) tells of one load.
        """
        with self._lock:
            return {**self._stats, "io": dict(self._stats["io"])}

    def _count(self, stats):
        with self._lock:
            self._stats["tensors"] += 1
            for name in _SUMS:
                self._stats[name] += stats.get(name, 0)
            ways = self._stats["io"]
            ways[stats["io"]] = ways.get(stats["io"], 0) + 1

    def _read(self, info):
        """A whole tensor, without the engine: there is nothing to plan."""
        start = time.perf_counter()
        memory, read = self._open().read_storage(info.storage)
        seconds = time.perf_counter() - start
        self._count({
            "tensor_bytes": info.nbytes,
            "read_bytes": read or 0,
            "requests": 1 if read else 0,
            "seconds": seconds,
            "read_seconds": seconds,
            "io": "mmap" if read is None else "pread",
        })
        return self._make(info, memory)

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


def load(path, framework=None, *, include=None, device="cpu", dtype=None,
         verify=False, threads=None, io="auto", progress=None,
         memory_budget=None, drop_cache=False, retries=None, stats=None,
         destination=None, key=None, passphrase=None, keep_meta=False,
         lenient=False):
    """Loads a checkpoint: the object that was saved, with its tensors.

    What torch.load(weights_only=True) would return, tied tensors tied and
    views views. With NumPy, tensors are arrays, and what only torch has
    (sparse tensors, dtypes) is described by PickledObject and GlobalName.

    include: a glob, or a list of them: only the tensors whose names match,
        as a flat dict by name.
    device: where torch tensors go; to "cuda:0" and the like they are read
        through pinned memory, without torch.
    dtype: cast floating point tensors to this dtype while they are read; see
        docs/slicing.md.
    verify: check every checksum in the same pass.
    threads: None uses what the machine lets this process use.
    io: "mmap" maps the file; "pread", "direct" (around the page cache) and
        "uring" (many such reads at a time) read into fresh memory. "auto"
        chooses by looking at the file and the machine.
    progress: called as progress(bytes done, bytes in all).
    memory_budget: bytes of memory beside that of the tensors, for what has to
        be decoded on its way.
    drop_cache: drop the system's copy of what was read.
    retries: how often a read that a source could not answer is tried again.
    stats: a dict that is filled with what happened: bytes, requests, seconds
        of each stage, the io that was chosen and the reason.
    destination: "shm" loads into shared memory and returns a Shared, whose
        `handle` lets haulway.attach() map the same tensors in other processes.
    key, passphrase: of an encrypted file; see open(), as keep_meta and
        lenient.

    Raises Error; nothing in the file is run.
    """
    framework = check_framework(framework)
    loading = Loading(
        io=io, threads=threads, verify=verify, progress=progress,
        memory_budget=memory_budget, drop_cache=drop_cache, retries=retries,
        stats=stats,
    )
    secrets = secret_arguments(key, passphrase)
    if destination is not None:
        if dtype is not None:
            raise InvalidArgumentError("dtype is not for destination='shm'")
        return _load_elsewhere(
            destination, path, framework, include, device, loading, secrets
        )
    core = _haulway.open_checkpoint(
        open_source(path, mapped=io == "mmap"),
        debug_offsets=debug_offsets(),
        keep_meta=keep_meta,
        strict=not lenient,
        **secrets,
    )
    if dtype is not None:
        from ._casting import load_cast

        return load_cast(core, framework, dtype, include, device, loading)
    if include is not None:
        return _load_included(core, framework, include, device, loading)
    if framework == "numpy":
        memories = loading.storages(core, range(core.storage_count()))
        return Loading().build(core, NumpyFactory(core, memories), None, None)
    from . import torch as haulway_torch

    return haulway_torch.load_object(
        core, None if device == "cpu" else device, loading,
        on_gpu=_device_is_cuda(device),
    )


def _device_is_cuda(device):
    from . import _device

    return _device.is_cuda(device)


def _load_elsewhere(destination, path, framework, include, device, loading,
                    secrets):
    from ._shared import load_shared

    if destination != "shm":
        raise InvalidArgumentError(
            f"destination is {destination!r}: expected 'shm' or None"
        )
    if str(device) != "cpu":
        raise InvalidArgumentError(
            f"device is {str(device)!r}: expected 'cpu' with destination='shm'"
        )
    return load_shared(
        open_source(path, mapped=False),
        framework,
        None if include is None else _matcher(include),
        loading,
        secrets,
    )


def _matcher(include):
    import fnmatch

    patterns = [include] if isinstance(include, str) else list(include)
    return lambda name: any(
        fnmatch.fnmatchcase(name, pattern) for pattern in patterns
    )


def _load_included(core, framework, include, device, loading):
    matches = _matcher(include)
    wanted = {
        name: TensorInfo(*core.tensor(row))
        for name, row in zip(core.names(), core.rows())
        if matches(name)
    }
    rows = sorted(
        {info.storage for info in wanted.values() if info.storage is not None}
    )
    if framework == "torch" and _device_is_cuda(device):
        from . import _device

        storages = dict(
            zip(rows, _device.cuda_storages(core, rows, device, loading))
        )
        return _tensors_over(storages, wanted)
    by_row = dict(zip(rows, loading.storages(core, rows)))
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
    tensors = _tensors_over(storages, wanted)
    if device == "cpu":
        return tensors
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _tensors_over(storages, wanted):
    from . import _torch_factory

    return {
        name: _torch_factory.meta_tensor(info)
        if info.storage is None
        else _torch_factory.tensor_over(storages[info.storage], info)
        for name, info in wanted.items()
    }
