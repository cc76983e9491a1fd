"""haulway.iterate."""

from __future__ import annotations

import fnmatch
import os

from . import _haulway
from ._checkpoint import check_framework, debug_offsets
from ._errors import UnsupportedError
from ._loading import Loading
from ._objects import TensorInfo, make_array
from ._secrets import secret_arguments
from ._source import open_source


def iterate(path, framework=None, *, include=None, order="plan",
            memory_budget=None, device="cpu", verify=False, threads=None,
            io="auto", progress=None, drop_cache=False, retries=None,
            stats=None, key=None, passphrase=None):
    """Yields (name, tensor) for the tensors of a checkpoint, one by one.

    The next tensors are read while the caller works on one, in memory of at
    most memory_budget bytes (256 MiB by default; a single tensor may be
    larger). A tensor that the caller lets go of is freed, so a checkpoint that
    is larger than memory can be gone through.

    order: "plan" is that of the file, "completion" as they are done.
    stats: a dict that is filled at the end, or when the iterator is closed.

    All else is as for load(). Tensors over one storage come together.
    """
    framework = check_framework(framework)
    core = _haulway.open_checkpoint(
        open_source(path, mapped=False),
        debug_offsets=debug_offsets(),
        **secret_arguments(key, passphrase),
    )
    loading = Loading(
        io=io, threads=threads, verify=verify, progress=progress,
        memory_budget=memory_budget, drop_cache=drop_cache, retries=retries,
        stats=stats,
    )
    by_storage, without = _wanted(core, include)
    rows = list(by_storage)
    stream = _haulway.stream_storages(
        core, rows, loading.options, order, progress
    )
    make = _numpy_tensor if framework == "numpy" else _torch_maker(device)
    if framework == "numpy" and without:
        raise UnsupportedError(
            f"{without[0][0]!r} is a meta tensor, which has no data for NumPy"
        )
    return _go(stream, loading, make, by_storage, rows, without)


def _wanted(core, include):
    """{storage: [(name, info)]}, and those without a storage."""
    patterns = [include] if isinstance(include, str) else include
    if isinstance(patterns, os.PathLike):
        raise TypeError("include is a path: expected a glob, or several")
    by_storage, without = {}, []
    for name, row in zip(core.names(), core.rows()):
        if patterns is not None and not any(
            fnmatch.fnmatchcase(name, pattern) for pattern in patterns
        ):
            continue
        info = TensorInfo(*core.tensor(row))
        if info.storage is None:
            without.append((name, info))
        else:
            by_storage.setdefault(info.storage, []).append((name, info))
    return by_storage, without


def _go(stream, loading, make, by_storage, rows, without):
    try:
        for name, info in without:
            yield name, make(info, None)
        while (item := stream.next()) is not None:
            position, memory = item
            del item
            over = make.storage(memory) if hasattr(make, "storage") else memory
            del memory
            for name, info in by_storage[rows[position]]:
                yield name, make(info, over)
            del over
    finally:
        stream.close()
        loading.tell(stream.stats())


def _numpy_tensor(info, memory):
    return make_array(info, memory)


def _torch_maker(device):
    from . import _torch_factory

    def make(info, storage):
        if storage is None:
            return _torch_factory.meta_tensor(info)
        tensor = _torch_factory.tensor_over(storage, info)
        return tensor if device == "cpu" else tensor.to(device)

    make.storage = _torch_factory.storage_of
    return make
