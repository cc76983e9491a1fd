"""haulway.edit: changes names, metadata and tensors of an existing file."""

from __future__ import annotations

import os
from collections.abc import Mapping

from .. import _haulway
from .._errors import ArgumentTypeError, InvalidArgumentError
from .._making.dtypes import dtype_name
from .._options import READING, UNSIGNED, by_name, names
from .._reading.call import Reading
from .._reading.source import naming, path_of, path_to_write
from .call import Writing, writes
from .flat import check_strings
from .segments import edit_segments

EDITING = {
    **UNSIGNED, "threads": READING["threads"], "progress": READING["progress"]
}


def _listed(what, value):
    """Returns a list for an argument that may be one value or several."""
    if value is None:
        return []
    if isinstance(value, (str, bytes, os.PathLike)):
        return [value]
    try:
        return list(value)
    except TypeError as error:
        raise ArgumentTypeError(
            f"{what} is {type(value).__name__}: expected one or several",
            "kInvalidArgument",
        ) from error


@writes("edit", EDITING)
def edit(path, *, rename=None, drop=None, set=None, unset=(), dtype=None,
         replace=None, merge=None, append=None, out=None, **options):
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
    out: write the edited file here and leave the original unchanged.
    WRITING

    Options for reading:
    OPTIONS

    At every moment the file is the old one or the new one, complete, even if
    this call is interrupted. docs/workbench.md says which changes are made in
    place and which write a new file. Returns a dict: the `steps` in words,
    `tensors`, `in_place`, `written_bytes` and the part of it that the kernel
    copied, `copied_bytes`. Raises Error.
    """
    writing = Writing("edit", options, EDITING)
    reading = Reading("edit", writing.rest, EDITING)
    drop = [] if drop is None else names("drop", drop)
    unset = names("unset", unset)
    if set is not None:
        check_strings(set, "set")
    for what, value in (("rename", rename), ("replace", replace)):
        names(what, by_name(what, value, "a dict by names") or ())
    path = path_of(path)
    in_segments = ("room", "room_for", "alignment")
    if append or any(name in writing.given for name in in_segments) or any(
            not isinstance(new, str) for new in dict(rename or {}).values()):
        if (drop or replace or merge or writing.untie or writing.dry_run
                or out is not None or dtype is not None):
            raise InvalidArgumentError(
                "append, paths and room cannot be combined with what writes a "
                "file anew",
                "kInvalidArgument",
            )
        return edit_segments(
            path, append, rename, set, unset, writing, reading
        )
    with naming("replace"):
        replacements = [(name, reading.open(file))
                        for name, file in dict(replace or {}).items()]
    with naming("merge"):
        merged = [reading.open(file) for file in _listed("merge", merge)]
    own = dict(dtype) if isinstance(dtype, Mapping) else {}
    names("dtype", own)
    return _haulway.edit(
        path, list(dict(rename or {}).items()), drop,
        list(dict(set or {}).items()), unset,
        None if own or dtype is None else dtype_name(dtype),
        [(name, dtype_name(to)) for name, to in own.items()],
        replacements, merged, writing.untie,
        "" if out is None else path_to_write(out, "out"), reading.opening(), {
            **{name: value for name, value in writing.engine().items()
               if name not in in_segments},
            "threads": reading.threads,
        }, reading.progress,
    )
