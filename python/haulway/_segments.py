"""Tensorizer files in segments, edited in place."""

from __future__ import annotations

from . import _haulway
from ._config import given
from ._secrets import only_one


def _path_of(new, old):
    """The path of a tensor's new name: a str is the last step of the old
    one, or all of it where that has one step only."""
    if isinstance(new, str):
        return (*old[:-1], new)
    return tuple(new)


def edit_segments(path, append, rename, set, unset, room, room_for, alignment,
                  durability, reading):
    """Appends nested objects, and renames to whole paths; see edit()."""
    from ._tensorizer import inputs_of

    only_one(reading.key, reading.passphrase)
    renamed = []
    if rename:
        reading.io = "pread"  # It is changed while it is open.
        core = reading.open(path)
        paths = {}
        if core.format == "tensorizer":
            tensors = _haulway.tensorizer_tensors(core)
            paths = dict(zip(core.names(), tensors))
        for old, new in dict(rename).items():
            steps = paths[old][0] if old in paths else (old,)
            renamed.append((old, _path_of(new, steps)))
    return _haulway.edit_tensorizer(
        path,
        append=inputs_of(append)[0] if append else [],
        rename=renamed,
        set=dict(set) if set else {},
        unset=list(unset),
        durability=given("save", "durability", durability),
        threads=given("save", "threads", reading.threads),
        room=room,
        room_for=room_for,
        alignment=alignment,
        key=reading.key,
        passphrase=reading.passphrase,
    )
