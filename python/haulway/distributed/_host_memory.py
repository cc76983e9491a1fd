"""Memory that all processes of a group on one host read what was read in."""

# How: each process makes a file without a name in memory and maps it; the
# others open it by the process's entry in /proc. So nothing is left behind,
# however the processes end. The processes tell one another of their files, and
# whether they could open those of the others, through the group: all of them
# use the memory, or none.
#
# Segments of shm_open() were left out: of processes that are killed they stay.

from __future__ import annotations

import json
import mmap
import os

import torch

from ._watch import place_of_processes

# What a process says of its file, as JSON.
_MESSAGE_BYTES = 256


def share(nbytes, rank, exchange):
    """Returns memories of the processes of a group, one tensor of bytes for each
    rank, that each of them can read and only its own writes to; or None in all of
    them if they are not on one host.

    nbytes: size of the memory of each process.
    rank: of this process.
    exchange: sends a bytes object to all; returns a list of those of all ranks.
    """
    own = _make(nbytes)
    try:
        said = None if own is None else [place_of_processes(), os.getpid(), own]
        told = [
            json.loads(one) for one in
            exchange(json.dumps(said).encode().ljust(_MESSAGE_BYTES))
        ]
        memories = None
        if None not in told and told[0][0] is not None and all(
            place == told[0][0] for place, *_ in told
        ):
            memories = _map_all(told, nbytes, rank)
        # The others have it open by the time that all have answered.
        answers = exchange(b"1" if memories else b"0")
    finally:
        if own is not None:
            os.close(own)
    return memories if set(answers) == {b"1"} else None


def _make(nbytes):
    """A descriptor of a new file in memory; None if there can be none."""
    try:
        descriptor = os.memfd_create("haulway-together", os.MFD_CLOEXEC)
    except OSError:
        return None
    try:
        os.ftruncate(descriptor, nbytes)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _map_all(told, nbytes, rank):
    """The memories of all ranks, or None if one cannot be opened."""
    memories = []
    try:
        for number, (_, process, descriptor) in enumerate(told):
            if number == rank:
                memories.append(_map(descriptor, nbytes))
                continue
            other = os.open(
                f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC
            )
            try:
                memories.append(_map(other, nbytes))
            finally:
                os.close(other)
    except (OSError, ValueError):
        return None
    return memories


def _map(descriptor, nbytes):
    return torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.uint8)
