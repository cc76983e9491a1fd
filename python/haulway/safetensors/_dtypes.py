"""Dtypes as safetensors files, programs and Haulway name them."""

from __future__ import annotations

import functools

from ._errors import SafetensorError

# In the order in which files have them, last first: the file's name, bits, and
# what torch and NumPy call it.
_ROWS = (
    ("BOOL", 8, "bool"),
    ("F4", 4, "float4_e2m1fn_x2"),
    ("F6_E2M3", 6, None),
    ("F6_E3M2", 6, None),
    ("U8", 8, "uint8"),
    ("I8", 8, "int8"),
    ("F8_E5M2", 8, "float8_e5m2"),
    ("F8_E4M3", 8, "float8_e4m3fn"),
    ("F8_E8M0", 8, "float8_e8m0fnu"),
    ("F8_E4M3FNUZ", 8, "float8_e4m3fnuz"),
    ("F8_E5M2FNUZ", 8, "float8_e5m2fnuz"),
    ("I16", 16, "int16"),
    ("U16", 16, "uint16"),
    ("F16", 16, "float16"),
    ("BF16", 16, "bfloat16"),
    ("I32", 32, "int32"),
    ("U32", 32, "uint32"),
    ("F32", 32, "float32"),
    ("C64", 64, "complex64"),
    ("F64", 64, "float64"),
    ("I64", 64, "int64"),
    ("U64", 64, "uint64"),
)
ORDER = {name: order for order, (name, _, _) in enumerate(_ROWS)}
BITS = {name: bits for name, bits, _ in _ROWS}
NAMED = {name: called for name, _, called in _ROWS}
OF_NAMED = {called: name for name, _, called in _ROWS if called is not None}
# What has several elements in one of Haulway's items.
PACKED = {"F4": ("F4_E2M1X2", 2), "F6_E2M3": ("F6_E2M3X4", 4),
          "F6_E3M2": ("F6_E3M2X4", 4)}
_OF_PACKED = {ours: name for name, (ours, _) in PACKED.items()}

_SUPPORTED = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
    "uint64", "float16", "float32", "float64", "bfloat16", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn_x2", "complex64",
)


def in_files(name):
    """The file's name of one of Haulway's dtypes."""
    return _OF_PACKED.get(name, name)


def of_program(called):
    """The file's name of what torch and NumPy call a dtype."""
    if called in OF_NAMED:
        return OF_NAMED[called]
    quoted = '"' + called.replace("\\", "\\\\").replace('"', '\\"') + '"'
    raise SafetensorError(
        f"Unknown dtype {quoted}. Supported dtypes: {', '.join(_SUPPORTED)}"
    )


@functools.cache
def check(module, name):
    """Fails as the package does where a framework lacks a dtype.

    name: that of the file; module: torch, or NumPy.
    """
    called = NAMED[name]
    if called is None:
        raise SafetensorError(f"Dtype not understood: {name}")
    if module.__name__ != "numpy":
        return getattr(module, called)
    try:
        import ml_dtypes
    except ImportError:
        pass
    else:
        if name != "F4" and hasattr(ml_dtypes, called):
            return module.dtype(getattr(ml_dtypes, called))
    if name == "BF16":
        return module.dtype(called)  # A TypeError.
    return bool if name == "BOOL" else getattr(module, called)
