"""Makes NumPy arrays over loaded memory."""

from __future__ import annotations

from .._building import build_over
from .._errors import UnsupportedError
from .dtypes import numpy_dtype
from .host_stream import stream_from_host
from .objects import NumpyFactory, make_array


class NumpyMaker:
    """Makes NumPy arrays."""

    called = "NumPy"  # The name in messages.

    def stream(self, core, rows, reading, order):
        """Yields (position in rows, storage for tensor()) and loads ahead; see
        iterate()."""
        return stream_from_host(self, core, rows, reading, order)

    def storages(self, core, rows, reading):
        """Loads storages and returns {row: storage for tensor()}."""
        return dict(zip(rows, reading.storages(core, rows)))

    def storage(self, memory):
        """Returns the storage for tensor() from a Memory of a whole storage."""
        return memory

    def tensor(self, storage, info):
        """Returns the tensor that a TensorInfo describes."""
        return make_array(info, storage)

    def cast(self, tensor, dtype):
        """Casts a tensor to a dtype by Haulway's name."""
        return tensor.astype(numpy_dtype(dtype), copy=False)

    def meta(self, info, name=None):
        """Returns a tensor without data."""
        what = "the tensor" if name is None else repr(name)
        raise UnsupportedError(
            f"{what} is a meta tensor, which has no data for {self.called}",
            "kUnsupported",
        )

    def with_meta(self, chosen):
        """Returns the Chosen that have a storage and so can be in a dict by
        name."""
        return [one for one in chosen if one.info.storage is not None]

    def object(self, core, reading):
        """Loads the whole object."""
        memories = reading.storages(core, range(core.storage_count()))
        return build_over(core, NumpyFactory(core, memories))
