"""Information that only the header itself contains."""

from __future__ import annotations

import functools
import json
import re
import unicodedata

from .. import _haulway
from .._reading.streams import read_range
from ._dtypes import NAMED, PACKED, check, in_files
from ._errors import SafetensorError


def parsed_header(core):
    """Returns the header of an open checkpoint as a dict."""
    return json.loads(_haulway.safetensors_header(core))


def header_shape(name, info, header):
    """Returns the shape of a tensor as the header states it, a list.

    header: a function that returns parsed_header(); called only for dtypes with
    several elements per item.
    """
    if in_files(info.dtype) not in PACKED:
        return list(info.shape)
    # The package also accepts a list: dtype, shape, offsets.
    entry = header()[name]
    return list(entry[1] if isinstance(entry, list) else entry["shape"])


def check_tensor(module, name, info, header):
    """Raises as the package does for a tensor that a framework cannot hold.

    module: torch, or NumPy. header: as for header_shape().
    """
    dtype = in_files(info.dtype)
    check(module, dtype)
    if dtype != "F4":
        return
    shape = header_shape(name, info, header)
    if shape and shape[-1] % 2:
        raise SafetensorError(
            "f4_x2 dtype requires that the last dim be divisible by 2 in "
            f"torch: got {shape}"
        )


def check_tensors(module, core, header):
    """Checks all tensors in the order of their data; see check_tensor()."""
    if _held(module).issuperset(map(in_files, _haulway.dtype_names(core))):
        return
    for name, row in zip(core.names(), core.rows()):
        check_tensor(module, name, core.tensor(row), header)


@functools.cache
def _held(module):
    """Returns the dtypes that the framework can hold in every shape."""
    held = set()
    for dtype in NAMED.keys() - {"F4"}:
        try:
            check(module, dtype)
        except (AttributeError, SafetensorError, TypeError):
            continue
        held.add(dtype)
    return held


def refusal_of(source, error):
    """Returns the package's message for a source that Haulway refused with
    `error`. Unlike the package, adds that the file is a Git LFS pointer if it
    is one."""
    refusal = _haulway.safetensors_refusal(source)
    if not refusal:
        return str(error)
    refusal = _FOUND.sub(_spelled, refusal)
    if read_range(source, 0, min(len(_POINTER), source.size)) == _POINTER:
        refusal += ": it is a pointer of Git LFS: fetch the file itself"
    return refusal


_POINTER = b"version https://git-lfs"

# Matches the text in the package's message that should have another JSON type.
_FOUND = re.compile(
    r'(?<=\Ainvalid JSON in header: invalid type: string ")'
    r'.*(?=", expected [^"]* at line \d+ column \d+\Z)',
    re.DOTALL,
)


def _spelled(found):
    """Returns the match with invisible characters as escapes."""
    return "".join(
        char if char.isprintable()
        and unicodedata.category(char) not in ("Me", "Mn")
        else f"\\u{{{ord(char):x}}}"
        for char in found[0]
    )
