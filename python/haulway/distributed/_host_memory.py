"""Shares memory for read data among the processes of a group on one host."""

# Design: each process creates an unnamed file in memory and maps it; the others
# open it through the process's entry in /proc. So nothing is left behind,
# however the processes end. The processes announce their files, and whether
# they could open the others' files, through the group: either all of them use
# shared memory, or none.
#
# Segments of shm_open() were left out: those of killed processes remain.

from __future__ import annotations

import json
import mmap
import os

import torch

from ._watch import place_of_processes

# Size of the message about a process's file, JSON padded with spaces.
_MESSAGE_BYTES = 256


def share(nbytes, rank, exchange):
    """Returns shared memories, one tensor of bytes for each rank of a group.
    Every rank can read all of them and writes only to its own. Returns None in
    all ranks if they are not on one host.

    nbytes: size of each memory.
    rank: of this process.
    exchange: sends a bytes object to all ranks; returns the list of all
    messages.
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
        # Once all ranks have answered, they have opened the file.
        answers = exchange(b"1" if memories else b"0")
    finally:
        if own is not None:
            os.close(own)
    return memories if set(answers) == {b"1"} else None


def _make(nbytes):
    """Returns a descriptor of a new file in memory; None if that is
    impossible."""
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
    """Returns the memories of all ranks, or None if one cannot be opened."""
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
