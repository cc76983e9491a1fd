"""haulway.save."""

from __future__ import annotations

import os

from ._errors import UnsupportedError
from ._source import is_path

_BY_SUFFIX = {".safetensors": "safetensors"}


def save(obj, path, format=None, *, durability=None, threads=None,
         progress=None, **format_options):
    """Saves an object to a file.

    obj: for "safetensors", a dict of tensors or arrays by name.
    path: a path, or a binary file object, which is written in order.
    format: "safetensors"; by default what the path ends in.
    durability: "full", the default: the file survives a loss of power once
        this returned; "none": it appears whole or not at all.
    threads: None uses what the machine lets this process use.
    progress: called as progress(bytes done, bytes in all).

    Options of "safetensors": metadata, a dict of strings; alignment, of where
    the tensors start, a multiple of 8 (4096 lets readers map pages).

    Nothing is visible under the path before it is whole. Returns statistics,
    a dict. Raises Error.
    """
    if format is None:
        suffix = os.path.splitext(os.fsdecode(path))[1] if is_path(path) else ""
        format = _BY_SUFFIX.get(suffix)
    if format != "safetensors":
        raise UnsupportedError(
            f"saving as {format!r}: expected 'safetensors'", "kUnsupported"
        )
    from ._safetensors import save_safetensors

    target = os.fsdecode(os.fspath(path)) if is_path(path) else path.write
    return save_safetensors(
        obj, target, durability=durability or "full", threads=threads or 0,
        progress=progress, **format_options,
    )
