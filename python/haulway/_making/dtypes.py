"""Haulway's dtype names as dtypes of NumPy."""

import contextlib
import functools

from .. import _haulway
from .._errors import InvalidArgumentError
from .byte_dtypes import BYTES

# Without ml_dtypes, types that NumPy lacks come as unsigned integers of the
# same size; their bits are untouched.
_NUMPY = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
    "C128": "complex128",
    "QI8": "int8",
    "QU8": "uint8",
    "QI32": "int32",
    "QU4X2": "uint8",
    "QU2X4": "uint8",
    "C32": "uint32",
    "F4_E2M1X2": "uint8",
    "BITS8": "uint8",
    "BITS16": "uint16",
    "BITS1X8": "uint8",
    "BITS2X4": "uint8",
    "BITS4X2": "uint8",
    "F6_E2M3X4": "V3",
    "F6_E3M2X4": "V3",
    **{f"{sign}{bits}": "uint8" for sign in "UI" for bits in range(1, 8)},
    **dict.fromkeys(BYTES, "uint8"),
}
_ML_DTYPES = {
    "BF16": ("bfloat16", "uint16"),
    "F8_E4M3": ("float8_e4m3fn", "uint8"),
    "F8_E5M2": ("float8_e5m2", "uint8"),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", "uint8"),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", "uint8"),
    "F8_E8M0": ("float8_e8m0fnu", "uint8"),
}


@functools.cache
def numpy_dtype(name):
    """The NumPy dtype for one of Haulway's names."""
    import numpy

    if name in _NUMPY:
        return numpy.dtype(_NUMPY[name])
    wanted, fallback = _ML_DTYPES[name]
    try:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, wanted))
    except (ImportError, AttributeError):
        return numpy.dtype(fallback)


@functools.cache
def name_of_numpy(dtype):
    """Haulway's name for a NumPy dtype, whatever its byte order, or None."""
    for names in (_NUMPY.items(), _ML_DTYPES.items()):
        for name, numpy_name in names:
            # Types that NumPy lacks come last: none of them is meant here.
            if dtype.name in (numpy_name, numpy_name[0]):
                return name
    return None


@functools.cache
def name_of_torch(dtype):
    """Haulway's name for a torch dtype."""
    from .._torch.factory import name_of_dtype

    return name_of_dtype(dtype)


_FLOATS = ("F64", "F32", "F16", "BF16")


def is_float(name):
    """Whether one of Haulway's dtypes holds floating point numbers."""
    return name in _FLOATS or name.startswith("F8_")


def dtype_name(dtype):
    """Haulway's name of a dtype: its own, or one of torch's or NumPy's.

    Raises InvalidArgumentError for what is none.
    """
    if isinstance(dtype, str):
        found = _haulway.dtype_name(dtype)  # In any case, or as torch has it.
        for name, (of_numpy, _) in _ML_DTYPES.items():
            if dtype == of_numpy:
                found = name
        if found is not None:
            return found
    if type(dtype).__module__ == "torch":
        from .._torch.factory import name_of_dtype

        return name_of_dtype(dtype)
    found = None
    if dtype is not None:  # Which NumPy takes for float64.
        with contextlib.suppress(ImportError, TypeError):
            import numpy

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
