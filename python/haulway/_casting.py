"""Whole checkpoints cast to another dtype while they are read."""

from __future__ import annotations

from . import _haulway
from ._dtypes import dtype_name, is_float
from ._errors import UnsupportedError
from ._loading import Loading
from ._objects import NumpyFactory, TensorInfo, make_array
from ._tensors import entries


class Casting:
    """Which storages of a checkpoint become which dtype, and their memory.

    Only floating point tensors are cast, as by torch's Module.to(dtype). A
    storage is cast whole, so that its tensors stay views of it; one that holds
    elements of several types, or is an object in its own right, stays as it
    is.
    """

    def __init__(self, core, dtype, rows=None):
        self.dtype = dtype_name(dtype)
        self._core = core
        kinds = {}
        for row in range(core.tensor_count()):
            info = TensorInfo(*core.tensor(row))
            if info.dtype.startswith("Q"):
                raise UnsupportedError(
                    "dtype= is not for checkpoints with quantized tensors",
                    "kUnsupported",
                )
            if info.storage is None:
                continue
            # A storage in its own right may be cast to nothing.
            kind = None if info.kind == "storage" else info.dtype
            kinds.setdefault(info.storage, set()).add(kind)
        self._stored = {}
        for row, found in kinds.items():
            (kind,) = found if len(found) == 1 else (None,)
            if kind is None or kind == self.dtype or not is_float(kind):
                continue
            if _haulway.can_cast(kind, self.dtype):
                self._stored[row] = kind
        self._rows = range(core.storage_count()) if rows is None else rows

    def load(self, loading):
        """The memories of storages by row, cast."""
        cast = [row for row in self._rows if row in self._stored]
        rest = [row for row in self._rows if row not in self._stored]
        requests = [
            (row, None, self.dtype, self._stored[row], None, 0) for row in cast
        ]
        requests += [(row, None, None, "U8", None, 0) for row in rest]
        return dict(zip(cast + rest, loading.tensors(self._core, requests)))

    def info(self, info):
        """What becomes of a tensor."""
        if info.storage in self._stored:
            return info._replace(dtype=self.dtype)
        if info.storage is None and is_float(info.dtype):
            return info._replace(dtype=self.dtype)
        return info


class _CastNumpyFactory(NumpyFactory):
    def __init__(self, core, memories, casting):
        super().__init__(core, memories)
        self.arrays = None  # They are of other dtypes than the file says.
        self.casting = casting

    def tensor(self, row):
        info = self.casting.info(TensorInfo(*self.checkpoint.tensor(row)))
        if info.storage is None:
            return info
        return make_array(info, self.memories[info.storage])


def load_cast(core, framework, dtype, include, device, loading):
    """haulway.load() with a dtype."""
    named = None
    if include is not None:
        named = {name: info for name, _, info in entries(core, include)}
    rows = None if named is None else sorted(
        {info.storage for info in named.values() if info.storage is not None}
    )
    casting = Casting(core, dtype, rows)
    if framework == "torch":
        return _load_torch(core, casting, named, device, loading)
    memories = casting.load(loading)
    if named is None:
        factory = _CastNumpyFactory(core, memories, casting)
        return Loading().build(core, factory, None, None)
    return {
        name: make_array(casting.info(info), memories[info.storage])
        for name, info in named.items()
        if info.storage is not None
    }


def _load_torch(core, casting, named, device, loading):
    import torch

    from . import _torch_factory

    class CastFactory(_torch_factory.TorchFactory):
        def info(self, row):
            return casting.info(TensorInfo(*core.tensor(row)))

        def tensor(self, row):
            return _torch_factory.meta_tensor(self.info(row))

        def view(self, base, row):
            return _torch_factory.tensor_over(
                self._untyped(base), self.info(row)
            )

    location = None if str(device) == "cpu" else device
    if _torch_factory.without_data(location) is not None:
        raise UnsupportedError(
            "dtype= is for tensors with data", "kUnsupported"
        )
    restore = torch.serialization._get_restore_location(location)
    bases = [torch.UntypedStorage(0)] * core.storage_count()
    for row, memory in casting.load(loading).items():
        storage = restore(
            _torch_factory.storage_of(memory), core.storage(row)[1]
        )
        if isinstance(storage, torch.storage.TypedStorage):
            storage = storage._untyped_storage
        bases[row] = storage
    factory = CastFactory(core, {})
    if named is None:
        return Loading().build(
            core, factory, _torch_factory.from_dlpack, bases
        )
    return {
        name: _torch_factory.meta_tensor(casting.info(info))
        if info.storage is None
        else _torch_factory.tensor_over(bases[info.storage], casting.info(info))
        for name, info in named.items()
    }
