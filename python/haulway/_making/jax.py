"""Makes JAX arrays over loaded memory."""

# Design: JAX uses memory without a copy only if it is aligned to 64 bytes. The
# engine aligns each tensor that is requested by a TensorRequest, so storages
# are requested that way. Arrays are passed by DLPack, not by NumPy, which
# itself has neither bfloat16 nor float8.

from __future__ import annotations

from .._building import build_over
from .._dtype_table import TABLE
from .._errors import InvalidArgumentError, UnsupportedError
from .._host import import_host
from .dtypes import name_of_numpy, numpy_dtype
from .numpy_maker import NumpyMaker
from .objects import NumpyFactory, TensorRequest, make_array

# Dtypes with a DLPack code; others become NumPy's.
_BY_NAME = frozenset(row.name for row in TABLE.values() if row.in_dlpack)


class JaxMaker(NumpyMaker):
    """Makes jax.Arrays on the CPU."""

    called = "JAX"

    def __init__(self):
        self._jax = import_host("jax", "framework='jax'", "jax", "0.10.2")
        import_host("jax.dlpack", "framework='jax'", "jax", "0.10.2")

    def storages(self, core, rows, reading):
        rows = list(rows)
        memories = reading.tensors(
            core, [TensorRequest(row, stored="U8") for row in rows]
        )
        return dict(zip(rows, memories))

    def tensor(self, storage, info):
        """Returns a jax.Array over the memory. JAX needs a copy for views
        that are not aligned to 64 bytes or have gaps, and for bytes of the
        caller's."""
        dtype = self._dtype(info)
        if (info.conjugate or info.negative or storage.readonly
                or not _is_dense(info)):
            return self._jax.numpy.array(make_array(info, storage))
        name = info.dtype if info.dtype in _BY_NAME else name_of_numpy(dtype)
        if info.nbytes == 0:
            return self._jax.numpy.empty(info.shape, dtype)
        return self._jax.dlpack.from_dlpack(storage.tensor(
            name, list(info.shape), list(info.strides), info.offset
        ))

    def cast(self, tensor, dtype):
        return tensor.astype(numpy_dtype(dtype))

    def object(self, core, reading):
        memories = self.storages(core, range(core.storage_count()), reading)
        return build_over(core, _Factory(core, memories, self))

    def _dtype(self, info):
        dtype = numpy_dtype(info.dtype)
        if dtype.kind == "V" and name_of_numpy(dtype) not in _BY_NAME:
            raise UnsupportedError(
                f"JAX has no dtype {info.dtype}", "kUnsupported"
            )
        wide = dtype.kind in "iuf" and dtype.itemsize == 8 or dtype.itemsize == 16
        if wide and not self._jax.config.jax_enable_x64:
            raise UnsupportedError(
                f"JAX would cut {info.dtype} to 32 bits: expected "
                "jax_enable_x64, or dtype= for floating point",
                "kUnsupported",
            )
        return dtype


class _Factory(NumpyFactory):
    """Makes the object with jax.Arrays as tensors."""

    def __init__(self, core, memories, make):
        super().__init__(core, memories)
        self.arrays = None  # All arrays are made by tensor().
        self._make = make

    def tensor(self, row):
        info = self.checkpoint.tensor(row)
        if info.storage is None:
            return info
        return self._make.tensor(self.memories[info.storage], info)


def check_device(device):
    if str(device) != "cpu":
        raise InvalidArgumentError(
            f"device is {str(device)!r}: expected 'cpu' for JAX; "
            "jax.device_put() moves arrays",
            "kInvalidArgument",
        )


def _is_dense(info):
    """Returns whether the strides are those of a dense array, in any order of
    dimensions."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(info.strides, info.shape)
        if size != 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True
