"""NumPy dtypes for Haulway's dtype names."""

import contextlib
import functools

from .. import _haulway
from .._dtype_table import TABLE
from .._errors import InvalidArgumentError
from .._importing import imported, importing


@functools.cache
def numpy_dtype(name):
    """Returns the NumPy dtype for one of Haulway's names.

    A dtype that NumPy lacks is taken from ml_dtypes; without ml_dtypes it
    becomes an unsigned integer of the same bits.
    """
    numpy = imported("numpy")
    row = TABLE[name]
    if row.in_numpy == "itself":
        return numpy.dtype(row.torch_name)
    if row.in_numpy:
        with contextlib.suppress(ImportError, AttributeError):
            ml_dtypes = imported("ml_dtypes")
            return numpy.dtype(getattr(ml_dtypes, row.torch_name))
    return numpy.dtype("V3" if row.item_bytes == 3 else row.numpy_bits)


def is_array(value):
    """Returns whether this is exactly a NumPy array or scalar: subclasses, such
    as masked arrays, hold more than numbers."""
    return type(value).__module__ == "numpy" and hasattr(value, "dtype")


@functools.cache
def name_of_numpy(dtype):
    """Returns Haulway's name for a NumPy dtype of any byte order, or None."""
    for row in TABLE.values():
        if row.in_numpy and dtype.name == row.torch_name:
            return row.name
    return None


@functools.cache
def name_of_torch(dtype):
    """Returns Haulway's name for a torch dtype."""
    with importing:
        from .._torch.factory import name_of_dtype

    return name_of_dtype(dtype)


def is_float(name):
    """Returns whether one of Haulway's dtypes holds floating point numbers."""
    return TABLE[name].kind == "float"


def dtype_name(dtype):
    """Returns Haulway's name of a dtype, given as Haulway's name or as a dtype
    or name of torch or NumPy.

    Raises InvalidArgumentError if `dtype` is not a dtype.
    """
    if isinstance(dtype, str) and dtype.isprintable():
        # Accepts any case, and torch's names.
        found = _haulway.dtype_name(dtype)
        if found is not None:
            return found
    if type(dtype).__module__ == "torch":
        with importing:
            from .._torch.factory import name_of_dtype

        return name_of_dtype(dtype)
    found = None
    # NumPy accepts None as float64 and "\0" as its first type.
    if dtype is not None and not (
            isinstance(dtype, str) and not dtype.isprintable()):
        with contextlib.suppress(ImportError, TypeError):
            numpy = imported("numpy")
            found = name_of_numpy(numpy.dtype(dtype))
    if found is None:
        raise InvalidArgumentError(
            f"dtype is {dtype!r}: expected one of torch's, of NumPy's, or a "
            "name such as 'bf16'",
            "kInvalidArgument",
        )
    return found


def byte_strides(strides, dtype):
    return tuple(stride * dtype.itemsize for stride in strides)
