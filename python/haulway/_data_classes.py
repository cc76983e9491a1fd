"""Python and NumPy classes that only describe data, made by Haulway's own code.

A pickle names such classes; a name is a key of the table below and is never
imported. The same names are allowed in src/pickle/pickle_globals.cc.
"""

# Design: a name in a pickle selects a function of this module, which makes the
# object from checked arguments: counts, kinds, and texts without the mini
# languages that constructors parse (dtype strings, date formats, contexts).
# State is set field by field, and only the fields that the class itself writes.
#
# Importing the named class and calling it was never an option, even for the
# standard library: many classes run code for some argument. A list of safe
# modules would not say which of their names are safe, so names are listed one
# by one.


from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import fractions
import math
import pathlib
import re
import sys
import types

from ._errors import CorruptError, Error, UnsupportedError
from ._importing import imported

# The argument of numpy.dtype(): a kind and a size, no mini language.
_DTYPE_CODE = re.compile(r"[?biufcmMOSUV][0-9]{0,9}")
_TIME_UNITS = frozenset(
    ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")
)
_NATIVE = "<" if sys.byteorder == "little" else ">"
_ALIGNED = 0x80  # numpy's NPY_ALIGNED_STRUCT in a dtype's flags.

TYPES = {
    f"builtins.{kind.__name__}": kind
    for kind in (bool, bytearray, bytes, complex, dict, float, frozenset, int,
                 list, set, str, tuple)
}
# Values when named as a class; calls go through the table of makers below.
_CLASSES = {
    f"{kind.__module__}.{kind.__name__}": kind
    for kind in (
        argparse.Namespace, collections.defaultdict, collections.deque,
        datetime.date, datetime.datetime, datetime.time, datetime.timedelta,
        datetime.timezone, decimal.Decimal, fractions.Fraction, range, slice,
        types.SimpleNamespace,
    )
}
TYPES["collections.Counter"] = collections.Counter
TYPES["collections.OrderedDict"] = collections.OrderedDict
_NDARRAY = "numpy.ndarray"
_MOST_AT_ONCE = 1000  # Items of a deque that are given to its constructor.
_OF_NUMPY = (_NDARRAY, "numpy.dtype")


def is_type(full):
    """Returns whether a full name is a type that may occur as a value."""
    return full in TYPES or full in _CLASSES or full in _OF_NUMPY


def type_of(full):
    """Returns the type with a full name. Requires: is_type()."""
    if full in _OF_NUMPY:
        return _numpy().dtype if full == "numpy.dtype" else _numpy().ndarray
    return TYPES.get(full) or _CLASSES[full]


def is_known(full):
    """Returns whether a full name is a class in this module."""
    return full in _MAKERS


def construct(full, args, kwargs):
    """Returns what the class or function makes of its arguments.

    Requires: is_known(). Raises CorruptError for arguments that it does not
    take, and UnsupportedError if NumPy is needed and not installed.
    """
    if kwargs:
        raise CorruptError(f"{full} takes no keywords", "kCorrupt")
    return _checked(full, _MAKERS[full], args)


def set_state(full, built, state):
    """Applies a state to `built`, which construct() made, and returns the
    result."""
    return _checked(full, _STATES.get(full, _no_state), (built, state))


def extend(built, appended, items):
    """Adds the items that a pickle appends to or sets on an object."""
    if appended:
        built.extend(appended)
    for key, value in items:
        built[key] = value


def _checked(full, make, args):
    try:
        return make(*args)
    except Error:
        raise
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError,
            ValueError) as error:
        what = str(error).strip().split("\n")[0] or type(error).__name__
        raise CorruptError(
            f"{full} takes no such parts: {what}", "kCorrupt"
        ) from error


def _no_state(built, state):
    raise ValueError("it has no state")


# Python's


def _of_numbers(make):
    def made(*args):
        if not all(arg is None or type(arg) in (int, float) for arg in args):
            raise TypeError("expected numbers")
        return make(*args)

    return made


def _decimal(text):
    if not isinstance(text, str):
        raise TypeError("expected a str")
    return decimal.Decimal(text)


def _path(make):
    def made(*parts):
        if not all(isinstance(part, str) for part in parts):
            raise TypeError("expected text")
        return make(*parts)

    return made


def _namespace(make):
    def made():
        return make()

    return made


def _set_attributes(built, state):
    if not isinstance(state, dict) or not all(
        isinstance(name, str) for name in state
    ):
        raise TypeError("expected a dict of attributes")
    vars(built).update(state)
    return built


def _full_name(value):
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return f"{getattr(value, 'module', '')}.{getattr(value, 'name', '')}"


def _default_dict(factory=None):
    if factory is None:
        return collections.defaultdict(None)
    full = _full_name(factory)
    if full not in TYPES:
        raise TypeError("expected a plain type as factory")
    return collections.defaultdict(TYPES[full])


def _deque(items=(), most=None):
    # pickle appends the items, but for Python 2. A range could have any number
    # of them, and so could a list that is shared by many deques.
    if not isinstance(items, (list, tuple)) or len(items) > _MOST_AT_ONCE:
        raise TypeError("expected few items")
    if most is not None and type(most) is not int:
        raise TypeError("expected a length")
    return collections.deque(items, most)


# NumPy's


def _numpy():
    try:
        numpy = imported("numpy")
    except ImportError as error:
        raise UnsupportedError(
            "the checkpoint holds NumPy objects, for which NumPy is needed",
            "kUnsupported",
        ) from error
    return numpy


def _text(value):
    return value.decode("ascii") if isinstance(value, bytes) else value


def _dtype(code, align=False, copy=True):
    code = _text(code)
    if not isinstance(code, str) or not _DTYPE_CODE.fullmatch(code):
        raise TypeError("expected a kind and a size")
    return _numpy().dtype(code)


def _set_dtype(built, state):
    numpy = _numpy()
    if not isinstance(state, tuple) or not 8 <= len(state) <= 9:
        raise TypeError("expected a state of eight or nine items")
    order, within, names, fields, itemsize, _, flags = state[1:8]
    order = _text(order)
    if order not in ("<", ">", "|", "="):
        raise ValueError("byte order is wrong")
    if within is not None:
        base, shape = within
        return numpy.dtype((_is_dtype(base), _shape(shape)))
    if names is not None:
        return numpy.dtype({
            "names": [_text(name) for name in names],
            "formats": [_is_dtype(fields[name][0]) for name in names],
            "offsets": [fields[name][1] for name in names],
            "itemsize": itemsize,
        }, align=bool(flags & _ALIGNED))
    if len(state) == 9 and built.kind in "mM":
        unit, count = map(_text, state[8][1][:2])
        if unit not in _TIME_UNITS or type(count) is not int or count < 1:
            raise ValueError("unit of time is wrong")
        built = numpy.dtype(f"{built.kind}8[{count}{unit}]")
    # numpy calls the machine's own byte order "=", wherever it can.
    native = built.newbyteorder("=")
    return native if order in "|=" or order == _NATIVE else native.newbyteorder(order)


def _is_dtype(value):
    if not isinstance(value, _numpy().dtype):
        raise TypeError("expected a dtype")
    return value


def _shape(shape):
    shape = (shape,) if type(shape) is int else tuple(shape)
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("shape is wrong")
    return shape


def _over(raw, dtype, shape, order):
    """Returns an array with the elements in `raw`, in memory of its own."""
    numpy = _numpy()
    raw = raw.encode("latin1") if isinstance(raw, str) else raw
    if not isinstance(raw, (bytes, bytearray)):
        raise TypeError("expected bytes")
    needs = math.prod(shape) * _is_dtype(dtype).itemsize
    if len(raw) != needs:
        raise ValueError(f"expected {needs} bytes, found {len(raw)}")
    if needs == 0:
        return numpy.empty(shape, dtype, order=order)
    flat = numpy.frombuffer(bytearray(raw), dtype)
    return flat.reshape(shape, order=order)


def _reconstruct(kind, shape, code):
    full = _full_name(kind)
    if full != _NDARRAY and full.startswith("numpy."):
        raise UnsupportedError(
            f"arrays of {full} are not made, only of {_NDARRAY}: take the "
            "tensors alone with haulway.open()",
            "kUnsupported",
        )
    if full != _NDARRAY or _shape(shape) != (0,):
        raise TypeError("expected an empty numpy.ndarray")
    return _numpy().empty(0, "b")


def _set_array(built, state):
    numpy = _numpy()
    _, shape, dtype, is_fortran, raw = state
    shape = _shape(shape)
    order = "F" if is_fortran else "C"
    if not isinstance(raw, list):
        array = _over(raw, dtype, shape, order)
        # numpy does so when it unpickles, but not within structured dtypes.
        swapped = array.dtype.byteorder not in ("|", "=", _NATIVE)
        return array.astype(array.dtype.newbyteorder("=")) if swapped else array
    if not _is_dtype(dtype).hasobject or math.prod(shape) != len(raw):
        raise ValueError("expected as many objects as the shape has")
    # Item by item: NumPy would look inside items that are sequences.
    flat = numpy.empty(len(raw), dtype)
    for i, item in enumerate(raw):
        flat[i] = item
    return flat.reshape(shape, order=order)


def _scalar(dtype, raw=None):
    if raw is None or _is_dtype(dtype).hasobject or dtype.itemsize == 0:
        raise TypeError("expected a dtype and bytes")
    return _over(raw, dtype, (1,), "C")[0]


def _from_buffer(raw, dtype, shape, order="C", axes=None):
    if axes is not None:
        return _over(raw, dtype, _shape(shape), "C").transpose(axes)
    return _over(raw, dtype, _shape(shape), "F" if order == "F" else "C")


_PATHS = {
    "Path": pathlib.Path,
    "PosixPath": pathlib.PosixPath,
    # Only POSIX systems are supported, so there are no others.
    "WindowsPath": pathlib.PureWindowsPath,
    "PurePath": pathlib.PurePath,
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
}
_MAKERS = {
    "argparse.Namespace": _namespace(argparse.Namespace),
    "types.SimpleNamespace": _namespace(types.SimpleNamespace),
    "builtins.range": _of_numbers(range),
    "builtins.slice": _of_numbers(slice),
    "collections.defaultdict": _default_dict,
    "collections.deque": _deque,
    "datetime.date": datetime.date,
    "datetime.datetime": datetime.datetime,
    "datetime.time": datetime.time,
    "datetime.timedelta": _of_numbers(datetime.timedelta),
    "datetime.timezone": datetime.timezone,
    "decimal.Decimal": _decimal,
    "fractions.Fraction": _of_numbers(fractions.Fraction),
    **{
        f"{module}.{name}": _path(make)
        for module in ("pathlib", "pathlib._local")
        for name, make in _PATHS.items()
    },
    "numpy.dtype": _dtype,
    **{
        f"numpy.{core}.{name}": make
        for core in ("core", "_core")
        for name, make in (
            ("multiarray._reconstruct", _reconstruct),
            ("multiarray.scalar", _scalar),
            ("numeric._frombuffer", _from_buffer),
        )
    },
}
_STATES = {
    "argparse.Namespace": _set_attributes,
    "types.SimpleNamespace": _set_attributes,
    "numpy.dtype": _set_dtype,
    "numpy.core.multiarray._reconstruct": _set_array,
    "numpy._core.multiarray._reconstruct": _set_array,
}
