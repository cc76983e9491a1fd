"""Casts whole checkpoints to another dtype while they are read."""

from __future__ import annotations

from .. import _haulway
from .._building import build_over
from .._dtype_table import TABLE
from .._errors import UnsupportedError
from .._importing import imported, importing
from .._making.assemble import maker, tensors_by_name
from .._making.dtypes import is_float
from .._making.objects import NumpyFactory, TensorRequest
from .select import choose, storages_of


class Casting:
    """Chooses the storages to cast and their dtypes, and holds their memory.

    Only floating point tensors are cast, as by torch's Module.to(dtype). A
    storage is cast as a whole, so that its tensors stay views of it. A storage
    with elements of several types, or one that is an object itself, is not
    cast.

    dtype: the result of float_name().
    """

    def __init__(self, core, dtype, rows=None):
        self.dtype = dtype
        self._core = core
        wanted = None if rows is None else set(rows)
        kinds = {}
        for row in range(core.tensor_count()):
            info = core.tensor(row)
            if TABLE[info.dtype].kind == "quantized":
                raise UnsupportedError(
                    "dtype= is not for checkpoints with quantized tensors",
                    "kUnsupported",
                )
            if info.storage is None:
                continue
            if wanted is None or info.storage in wanted:
                core.check_cast(row)
            # A storage that is an object itself is not cast.
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

    def load(self, reading):
        """Loads and casts the storages; returns memories by row."""
        cast = [row for row in self._rows if row in self._stored]
        rest = [row for row in self._rows if row not in self._stored]
        requests = [
            TensorRequest(row, dtype=self.dtype, stored=self._stored[row])
            for row in cast
        ]
        requests += [TensorRequest(row, stored="U8") for row in rest]
        return dict(zip(cast + rest, reading.tensors(self._core, requests)))

    def info(self, info):
        """Returns a tensor's TensorInfo after the cast."""
        if info.storage in self._stored:
            return info._replace(dtype=self.dtype)
        if info.storage is None and is_float(info.dtype):
            return info._replace(dtype=self.dtype)
        return info


class _CastFactory(NumpyFactory):
    def __init__(self, core, memories, casting, make):
        super().__init__(core, memories)
        self.arrays = None  # Their dtypes differ from the file's.
        self.casting = casting
        self.make = make

    def tensor(self, row):
        info = self.casting.info(self.checkpoint.tensor(row))
        if info.storage is None:
            return info
        return self.make.tensor(self.memories[info.storage], info)


def load_cast(core, framework, dtype, include, exclude, device, reading):
    """Implements haulway.load() with a dtype."""
    chosen = rows = None
    if include is not None or exclude is not None:
        chosen = choose(core, include, exclude)
        rows = storages_of(chosen)
    casting = Casting(core, dtype, rows)
    make = maker(framework, device)
    if framework == "torch":
        return _load_torch(core, casting, chosen, make.device, reading)
    memories = casting.load(reading)
    if chosen is None:
        return build_over(core, _CastFactory(core, memories, casting, make))
    return _by_name(make, memories, casting, chosen)


def _by_name(make, storages, casting, chosen):
    cast = [one._replace(info=casting.info(one.info)) for one in chosen]
    return tensors_by_name(make, storages, cast)


def _load_torch(core, casting, chosen, device, reading):
    with importing:
        from .._torch import factory as _torch_factory
        from .._torch.objects import restore_location, restored

    torch = imported("torch")

    class CastFactory(_torch_factory.TorchFactory):
        def info(self, row):
            return casting.info(core.tensor(row))

        def tensor(self, row):
            return _torch_factory.meta_tensor(self.info(row))

        def view(self, base, row):
            return _torch_factory.tensor_over(
                self._untyped(base), self.info(row)
            )

    if _torch_factory.without_data(device) is not None:
        raise UnsupportedError(
            "dtype= is for tensors with data", "kUnsupported"
        )
    restore = restore_location(device)
    bases = [torch.UntypedStorage(0)] * core.storage_count()
    for row, memory in casting.load(reading).items():
        bases[row] = restored(
            restore, _torch_factory.storage_of(memory),
            core.storage(row).location,
        )
    if chosen is None:
        factory = CastFactory(core, reading.classes)
        return build_over(core, factory, _torch_factory.from_dlpack, bases)
    return _by_name(maker("torch"), bases, casting, chosen)
