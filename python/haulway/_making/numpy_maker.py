"""Making NumPy arrays over memory that was loaded."""

from __future__ import annotations

from .._errors import UnsupportedError
from .._reading.call import build_over
from .dtypes import numpy_dtype
from .host_stream import stream_from_host
from .objects import NumpyFactory, make_array


class NumpyMaker:
    """Makes NumPy arrays."""

    called = "NumPy"  # In messages.

    def stream(self, core, rows, reading, order):
        """Yields (position in rows, what tensor() takes), loading ahead; see
        iterate()."""
        return stream_from_host(self, core, rows, reading, order)

    def storages(self, core, rows, reading):
        """{row: what tensor() takes} of storages, loaded."""
        return dict(zip(rows, reading.storages(core, rows)))

    def storage(self, memory):
        """What tensor() takes, of a Memory that holds a whole storage."""
        return memory

    def tensor(self, storage, info):
        """The tensor that a TensorInfo describes."""
        return make_array(info, storage)

    def cast(self, tensor, dtype):
        """A tensor of the dtype that Haulway calls so."""
        return tensor.astype(numpy_dtype(dtype), copy=False)

    def meta(self, info, name=None):
        """One without data."""
        what = "the tensor" if name is None else repr(name)
        raise UnsupportedError(
            f"{what} is a meta tensor, which has no data for {self.called}",
            "kUnsupported",
        )

    def with_meta(self, chosen):
        """The Chosen that have a storage, so that a dict by name can hold them."""
        return [one for one in chosen if one.info.storage is not None]

    def object(self, core, reading):
        """The whole object, loaded."""
        memories = reading.storages(core, range(core.storage_count()))
        return build_over(core, NumpyFactory(core, memories))
