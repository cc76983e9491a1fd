"""The names of torch.serialization, working on haulway.config.

Options that are not set in haulway.config follow torch's own configuration, so
programs that configure torch need no change.

Any thread may call the functions of this module at any time, unless a
docstring says otherwise.
"""

from __future__ import annotations

from torch.serialization import LoadEndianness, skip_data

from .._config import config
from .._describing import described
from . import (
    add_safe_globals,
    clear_safe_globals,
    configured,
    get_safe_globals,
    load,
    safe_globals,
    save,
)

__all__ = [
    "LoadEndianness",
    "add_safe_globals",
    "clear_safe_globals",
    "config",
    "get_crc32_options",
    "get_default_load_endianness",
    "get_default_mmap_options",
    "get_safe_globals",
    "load",
    "safe_globals",
    "save",
    "set_crc32_options",
    "set_default_load_endianness",
    "set_default_mmap_options",
    "skip_data",
]


def get_crc32_options():
    """Returns whether saving computes the CRC-32 of every record. Raises
    nothing.
    """
    return configured("save", "compute_crc32")


def set_crc32_options(compute_crc32):
    """Sets whether saving computes the CRC-32 of every record.

    compute_crc32: a bool; anything else raises InvalidArgumentError.
    """
    config.save.compute_crc32 = compute_crc32


def get_default_load_endianness():
    """Returns the byte order for files that do not state theirs, or None.
    Raises nothing.
    """
    order = configured("load", "endianness")
    return None if order is None else LoadEndianness[order.upper()]


def set_default_load_endianness(endianness):
    """Sets the byte order for files that do not state theirs.

    endianness: a LoadEndianness or None; anything else raises TypeError.
    """
    if endianness is not None and not isinstance(endianness, LoadEndianness):
        raise TypeError("Invalid argument type in function "
                        "set_default_load_endianness")
    config.load.endianness = (
        None if endianness is None else endianness.name.lower()
    )


def get_default_mmap_options():
    """Returns the flags of mappings: mmap.MAP_PRIVATE or mmap.MAP_SHARED.
    Raises nothing.
    """
    return configured("load", "mmap_flags")


class set_default_mmap_options:
    """Sets the flags of mappings; in a `with` statement, for its block.

    flags: mmap.MAP_PRIVATE or mmap.MAP_SHARED; anything else raises
        InvalidArgumentError.

    The flags are those of the whole process: threads that load meanwhile use
    them.
    """

    def __init__(self, flags):
        self._before = get_default_mmap_options()
        self._was_set = config.load.origin("mmap_flags") == "process"
        config.load.mmap_flags = flags

    def __enter__(self):
        return None

    def __exit__(self, *exception):
        if self._was_set:
            config.load.mmap_flags = self._before
        else:  # torch's own setting counts again.
            del config.load.mmap_flags

    def __repr__(self):
        return described(self, f"flags {config.load.mmap_flags}",
                         f"before {self._before}")
