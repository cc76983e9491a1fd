"""Tensorizer files in segments, edited in place."""

from __future__ import annotations

import os

from . import _haulway
from ._config import given
from ._errors import InvalidArgumentError
from ._reading import Reading
from ._secrets import secret_arguments


def _path_of(new, old):
    """The path of a tensor's new name: a str is the last step of the old
    one, or all of it where that has one step only."""
    if isinstance(new, str):
        return (*old[:-1], new)
    return tuple(new)


def edit(path, *, append=None, rename=None, set=None, unset=(), key=None,
         passphrase=None, durability=None, room="auto", room_for=16,
         alignment=8, threads=None):
    """Changes a tensorizer file in segments where it is.

    path: a file saved with layout="segments".
    append: nested dicts and lists of tensors or arrays, as save() takes them.
    rename: a dict of names, as a Checkpoint lists them, by what they become:
        a str, for the last step, or a whole path, a tuple of str and int. The
        tensors are read and checked.
    set: a dict of metadata, str by str, that is added or replaced.
    unset: keys of metadata to drop.
    key, passphrase: of an encrypted file; see save().
    durability: "full" or "none"; see save().
    room: what to do where index or headers are full: "insert" blocks into the
        file, "move" them to its end, or "auto", the first where the file
        system can.
    room_for: room for so many tensors more, when it has to be made.
    alignment: of what is appended, a power of two up to 4096.
    threads: see haulway.config.save.

    At every moment the file is the old one or the new one, whole, whatever
    interrupts this. Nobody may have it open meanwhile who expects bytes to
    stay where they are, unless room="move". Returns what was done, a dict.
    Raises Error.
    """
    from ._tensorizer import inputs_of

    path = os.fsdecode(os.fspath(path))
    renamed = []
    if rename:
        core = Reading("edit", {"mmap": False}).open(path)
        paths = {}
        if core.format == "tensorizer":
            tensors = _haulway.tensorizer_tensors(core)
            paths = dict(zip(core.names(), tensors))
        for old, new in dict(rename).items():
            steps = paths[old][0] if old in paths else (old,)
            renamed.append((old, _path_of(new, steps)))
    if isinstance(unset, str):
        raise InvalidArgumentError(
            "unset: expected keys, found a str", "kInvalidArgument"
        )
    return _haulway.edit_tensorizer(
        path,
        append=inputs_of(append)[0] if append else [],
        rename=renamed,
        set=dict(set) if set else {},
        unset=list(unset),
        durability=given("save", "durability", durability),
        threads=given("save", "threads", threads),
        room=room,
        room_for=room_for,
        alignment=alignment,
        **secret_arguments(key, passphrase),
    )
