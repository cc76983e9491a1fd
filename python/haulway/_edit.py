"""haulway.edit: changing names, metadata and tensors of an existing file."""

from __future__ import annotations

import os
from collections.abc import Mapping

from . import _haulway
from ._config import given
from ._convert import _dtype_of
from ._errors import ArgumentTypeError, InvalidArgumentError
from ._flat import check_strings
from ._options import OPENING, READING
from ._reading import Reading, reads
from ._segments import edit_segments
from ._source import path_of

EDITING = {
    **OPENING, "threads": READING["threads"], "progress": READING["progress"]
}


def _listed(what, value):
    """A list of what may be one or several."""
    if value is None:
        return []
    if isinstance(value, (str, bytes, os.PathLike)):
        return [value]
    try:
        return list(value)
    except TypeError as error:
        raise InvalidArgumentError(
            f"{what}: expected one or several, found {value!r}",
            "kInvalidArgument",
        ) from error


@reads(EDITING)
def edit(path, *, rename=None, drop=None, set=None, unset=(), dtype=None,
         replace=None, merge=None, append=None, untie=False, out=None,
         dry_run=False, durability=None, room="auto", room_for=16, alignment=8,
         **options):
    """Changes names, metadata or tensors of a file, which keeps its format.

    path: a file of any writable format.
    rename: a dict of new names by old names. In a tensorizer file in segments
        a name is the last step of a path, or a whole path as a tuple.
    drop: a name, or several.
    set: a dict of metadata, str by str, to add or replace.
    unset: keys of metadata to remove.
    dtype: cast floating-point tensors to this dtype; or a dict of dtypes by
        name.
    replace: a dict of files by name: the tensor is replaced by the file's
        tensor with that name, or by its only one, including dtype and shape.
    merge: a checkpoint whose tensors to add, or several.
    append: nested dicts and lists of tensors or arrays, for a tensorizer file
        in segments.
    untie: write each of the tensors that share memory in full.
    out: write the edited file here and leave the original unchanged.
    dry_run: write nothing; report what would be done and written.
    durability: "full" or "none"; see save().
    room, room_for, alignment: for tensorizer files in segments: what to do if
        index or headers are full ("insert" blocks, "move" them to the end, or
        "auto"), for how many more tensors to make room, and the alignment of
        data.
    OPTIONS

    At every moment the file is the old one or the new one, complete, even if
    this call is interrupted. docs/workbench.md says which changes are made in
    place and which write a new file. Returns a dict: the `steps` in words,
    `tensors`, `in_place`, `written_bytes` and the part of it that the kernel
    copied, `copied_bytes`. Raises Error.
    """
    if isinstance(unset, str):
        raise InvalidArgumentError(
            "unset: expected keys, found a str", "kInvalidArgument"
        )
    unset = _listed("unset", unset)
    if set is not None:
        check_strings(set)
    for what, value in (("rename", rename), ("replace", replace)):
        if value is not None and not isinstance(value, Mapping):
            raise ArgumentTypeError(
                f"{what} is {type(value).__name__}: expected a dict by names",
                "kInvalidArgument",
            )
    reading = Reading("edit", options, EDITING)
    path = path_of(path)
    if append or (room, room_for, alignment) != ("auto", 16, 8) or any(
            not isinstance(new, str) for new in dict(rename or {}).values()):
        if (drop or replace or merge or untie or dry_run or out is not None
                or dtype is not None):
            raise InvalidArgumentError(
                "append, paths and room cannot be combined with what writes a "
                "file anew",
                "kInvalidArgument",
            )
        return edit_segments(
            path, append, rename, set, unset, room, room_for, alignment,
            durability, reading,
        )
    own = dict(dtype) if isinstance(dtype, Mapping) else {}
    return _haulway.edit(
        path, list(dict(rename or {}).items()), _listed("drop", drop),
        list(dict(set or {}).items()), list(unset),
        None if own else _dtype_of(dtype),
        [(name, _dtype_of(to)) for name, to in own.items()],
        [(name, reading.open(file))
         for name, file in dict(replace or {}).items()],
        [reading.open(file) for file in _listed("merge", merge)],
        bool(untie), "" if out is None else path_of(out, "out"),
        bool(dry_run), reading.opening(),
        given("save", "durability", durability), reading.threads,
        reading.progress,
    )
