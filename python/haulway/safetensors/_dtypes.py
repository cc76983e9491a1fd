"""Dtype names of safetensors files, of programs and of Haulway."""

from __future__ import annotations

import functools
import json

from .. import _haulway
from .._dtype_table import TABLE
from .._importing import imported
from ._errors import SafetensorError

# By the name in files, in the package's order. Files store the tensors of later
# dtypes first.
_ROWS = {row.in_safetensors: row for row in TABLE.values() if row.in_safetensors}
_ROWS = {name: _ROWS[name] for name in _haulway.safetensors_dtypes()}
ORDER = {name: order for order, name in enumerate(_ROWS)}
BITS = {name: 8 * row.item_bytes // row.elements for name, row in _ROWS.items()}
# The names in torch and NumPy.
NAMED = {name: row.torch_name or None for name, row in _ROWS.items()}
OF_NAMED = {called: name for name, called in NAMED.items() if called is not None}
# Dtypes with several elements in one of Haulway's items.
PACKED = {
    name: (row.name, row.elements) for name, row in _ROWS.items()
    if row.elements > 1
}
_OF_PACKED = {ours: name for name, (ours, _) in PACKED.items()}

_SUPPORTED = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
    "uint64", "float16", "float32", "float64", "bfloat16", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn_x2", "complex64",
)


def in_files(name):
    """Returns the name in files of one of Haulway's dtypes."""
    return _OF_PACKED.get(name, name)


def quoted(text):
    """Returns text in quotes, as the package's messages show it."""
    return json.dumps(text, ensure_ascii=False)


def of_program(called):
    """Returns the name in files for a dtype name of torch or NumPy."""
    if called in OF_NAMED:
        return OF_NAMED[called]
    raise SafetensorError(
        f"Unknown dtype {quoted(called)}. Supported dtypes: {', '.join(_SUPPORTED)}"
    )


@functools.cache
def check(module, name):
    """Returns a framework's dtype; if it has none, raises as the package does.

    name: the name in files. module: torch, or NumPy.
    """
    called = NAMED[name]
    if called is None:
        raise SafetensorError(f"Dtype not understood: {name}")
    if module.__name__ != "numpy":
        return getattr(module, called)
    try:
        ml_dtypes = imported("ml_dtypes")
    except ImportError:
        pass
    else:
        if name != "F4" and hasattr(ml_dtypes, called):
            return module.dtype(getattr(ml_dtypes, called))
    if name == "BF16":
        return module.dtype(called)  # Raises TypeError.
    return bool if name == "BOOL" else getattr(module, called)
