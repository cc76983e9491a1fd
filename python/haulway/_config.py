"""haulway.config: what calls use that are not told otherwise.

    haulway.config.save.storage_alignment = 4096         # in the whole process
    haulway.config(durability="none")                    # in this thread or task
    with haulway.config(save={"threads": 2}):            # the same, for a block
        haulway.save(state, "model.pt")
    print(haulway.config)                                # values, and from where

A call's own argument comes first, then what this thread or task set, then
what the process set, then the environment (HAULWAY_SAVE_THREADS=2), then the
default. Reading the environment happens at each use.
"""

from __future__ import annotations

import contextvars
import mmap as _mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ._errors import InvalidArgumentError


def _wrong(name, expected, found):
    raise InvalidArgumentError(
        f"{name}: expected {expected}, found {found!r}", "kInvalidArgument"
    )


def _flag(name, value):
    if isinstance(value, str):
        lowered = value.lower()
        if lowered in ("1", "true", "yes", "on"):
            return True
        if lowered in ("0", "false", "no", "off"):
            return False
    if isinstance(value, bool):
        return value
    return _wrong(name, "a bool", value)


def _number(name, value):
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return _wrong(name, "a number from 0", value)


def _alignment(name, value):
    value = _number(name, value)
    if not 1 <= value <= 32768 or value & (value - 1):
        _wrong(name, "a power of two from 1 to 32768", value)
    return value


def _one_of(*words):
    def check(name, value):
        if value not in words:
            _wrong(name, " or ".join(map(repr, words)), value)
        return value

    return check


def _mmap_flags(name, value):
    value = _number(name, value)
    if value not in (_mmap.MAP_PRIVATE, _mmap.MAP_SHARED):
        _wrong(name, "MAP_PRIVATE or MAP_SHARED", value)
    return value


def _or_none(check):
    def checked(name, value):
        if value is None or value == "":
            return None
        return check(name, value)

    return checked


@dataclass(frozen=True)
class Option:
    default: Any
    check: Callable[[str, Any], Any]
    meaning: str


OPTIONS = {
    "save": {
        "compute_crc32": Option(True, _flag, "a CRC-32 of every record"),
        "storage_alignment": Option(
            64, _alignment, "of payloads in the file, in bytes"),
        "durability": Option(
            "full", _one_of("full", "none"),
            "'full' survives loss of power, 'none' only other programs"),
        "threads": Option(0, _number, "0: what the machine lets us use"),
        "use_pinned_memory_for_d2h": Option(
            False, _flag, "copy from devices through pinned memory"),
    },
    "load": {
        "mmap": Option(None, _or_none(_flag), "map files; None: as torch does"),
        "mmap_flags": Option(
            _mmap.MAP_PRIVATE, _mmap_flags, "of mappings"),
        "endianness": Option(
            None, _or_none(_one_of("native", "little", "big")),
            "of files that do not say; None: little"),
        "calculate_storage_offsets": Option(
            True, _flag, "compute offsets instead of reading headers"),
        "verify": Option(False, _flag, "check every CRC-32"),
        "threads": Option(0, _number, "0: what the machine lets us use"),
    },
}

# The values that this thread or task set, by (section, name).
_local: contextvars.ContextVar = contextvars.ContextVar(
    "haulway.config", default=MappingProxyType({})
)
_process: dict = {}


def _lookup(section, name):
    key = (section, name)
    local = _local.get()
    if key in local:
        return local[key], "context"
    if key in _process:
        return _process[key], "process"
    variable = f"HAULWAY_{section}_{name}".upper()
    if variable in os.environ:
        option = OPTIONS[section][name]
        return option.check(variable, os.environ[variable]), "environment"
    return OPTIONS[section][name].default, "default"


def _option(section, name):
    option = OPTIONS[section].get(name)
    if option is None:
        raise AttributeError(f"no option {section}.{name}")
    return option


class Section:
    """The options of saving, or of loading."""

    def __init__(self, section):
        object.__setattr__(self, "_section", section)

    def __getattr__(self, name):
        _option(self._section, name)
        return _lookup(self._section, name)[0]

    def __setattr__(self, name, value):
        check = _option(self._section, name).check
        _process[self._section, name] = check(f"{self._section}.{name}", value)

    def __delattr__(self, name):
        """Forgets what the process set."""
        _option(self._section, name)
        _process.pop((self._section, name), None)

    def __dir__(self):
        return list(OPTIONS[self._section])

    def origin(self, name):
        """Where the value comes from: "context", "process", "environment" or
        "default"."""
        _option(self._section, name)
        return _lookup(self._section, name)[1]

    def __repr__(self):
        rows = []
        for name, option in OPTIONS[self._section].items():
            value, origin = _lookup(self._section, name)
            rows.append((f"{self._section}.{name}", repr(value), origin,
                         option.meaning))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join(
            "  ".join(
                [text.ljust(width) for text, width in zip(row, widths)]
                + [row[3]]
            )
            for row in rows
        )


class _Restore:
    """Undoes a setting at the end of a `with` block."""

    def __init__(self, before):
        self._before = before

    def __enter__(self):
        return config

    def __exit__(self, *exception):
        _local.set(self._before)


class Config:
    """See the module's text."""

    save = Section("save")
    load = Section("load")

    def __call__(self, *, save=None, load=None, **options):
        """Sets options for this thread or task; in a `with`, for its block.

        save, load: dicts of options of one section. An option given outside
        of them is set in every section that has it.
        """
        values = {}
        for name, value in options.items():
            sections = [s for s in OPTIONS if name in OPTIONS[s]]
            if not sections:
                raise TypeError(f"no option {name!r}")
            for section in sections:
                values[section, name] = value
        for section, given in (("save", save), ("load", load)):
            for name, value in (given or {}).items():
                if name not in OPTIONS[section]:
                    raise TypeError(f"no option {section}.{name}")
                values[section, name] = value
        checked = {
            (section, name): OPTIONS[section][name].check(
                f"{section}.{name}", value
            )
            for (section, name), value in values.items()
        }
        before = _local.get()
        _local.set({**before, **checked})
        return _Restore(before)

    def __setattr__(self, name, value):
        raise AttributeError(
            f"set haulway.config.save.NAME or haulway.config.load.NAME, not "
            f"haulway.config.{name}"
        )

    def __repr__(self):
        return f"{self.save!r}\n{self.load!r}"


config = Config()


def origin(section, name):
    """Where a value comes from, see Section.origin()."""
    return _lookup(section, name)[1]


def given(section, name, value):
    """`value`, checked, unless it is None: then what is configured."""
    if value is None:
        return _lookup(section, name)[0]
    return OPTIONS[section][name].check(name, value)
