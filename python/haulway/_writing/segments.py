"""Edits Tensorizer files in segments in place."""

from __future__ import annotations

from .. import _haulway
from .._errors import ArgumentTypeError, UnsupportedError
from .._importing import importing
from .._secrets import only_one


def _check_name(new):
    """Raises unless `new` may be a tensor's new name: a str, or a whole path."""
    if isinstance(new, str):
        return
    if not isinstance(new, (list, tuple)) or not new or not all(
        isinstance(step, str)
        or (isinstance(step, int) and not isinstance(step, bool) and step >= 0)
        for step in new
    ):
        raise ArgumentTypeError(
            f"rename holds {new!r}: expected a name, or a tuple of names and "
            "of positions in lists",
            "kInvalidArgument",
        )


def _path_of(new, old):
    """Returns the path for a tensor's new name: a str replaces the last step of
    the old path, which may be its only step."""
    return (*old[:-1], new) if isinstance(new, str) else tuple(new)


def edit_segments(path, append, rename, set, unset, writing, reading):
    """Appends nested objects and renames to whole paths; see edit()."""
    with importing:
        from .tensorizer import inputs_of

    only_one(reading.key, reading.passphrase)
    added = inputs_of(append)[0] if append else []
    rename = dict(rename or {})
    for new in rename.values():
        _check_name(new)
    reading.io = "pread"  # The file is changed while it is open.
    core = reading.open(path)
    if core.format != "tensorizer":
        raise UnsupportedError(
            "append, paths, alignment, room and room_for are for tensorizer "
            f"files in segments: expected one, found {core.format}; of "
            f"{reading.source_name}",
            "kUnsupported",
        )
    renamed = []
    if rename:
        paths = dict(zip(core.names(), _haulway.tensorizer_tensors(core)))
        for old, new in rename.items():
            steps = paths[old][0] if old in paths else (old,)
            renamed.append((old, _path_of(new, steps)))
    return _haulway.edit_tensorizer(
        path,
        append=added,
        rename=renamed,
        set=dict(set) if set else {},
        unset=list(unset),
        writing={
            **{name: getattr(writing, name)
               for name in ("durability", "room", "room_for", "alignment")},
            "threads": reading.threads,
            "key": reading.key,
            "passphrase": reading.passphrase,
        },
    )
