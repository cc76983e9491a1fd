"""haulway.config: defaults for options that a call does not give.

    haulway.config.save.storage_alignment = 4096         # in the whole process
    haulway.config(durability="none")                    # in this thread or task
    with haulway.config(load={"verify": True}):          # the same, for a block
        haulway.load("model.pt")
    print(haulway.config)                                # values and origins

The order of precedence is: an argument of the call, a value set by this thread
or task, a value set by the process, the environment (HAULWAY_LOAD_VERIFY=1),
the default. The environment is read at each use. The options are those of
haulway._options; every call that reads uses the section `load`.
"""

from __future__ import annotations

import _thread
import contextvars
import functools
import os
from types import MappingProxyType

from . import _haulway
from ._describing import described, shown
from ._errors import InvalidArgumentError, OptionError
from ._options import SECTIONS, WRITING, by_name, similar, taken_of

# The values set by this thread or task, by (section, name).
_local: contextvars.ContextVar = contextvars.ContextVar(
    "haulway.config", default=MappingProxyType({})
)
# Never changed, but replaced, by one thread at a time.
_process: dict = {}
_setting = _thread.allocate_lock()


@functools.cache
def _variables(section):
    """Returns two dicts from environment variables to option names, for
    variables that hold a value and for variables that count if they are "1",
    and the set of all variables."""
    options = [(name, option) for name, option in SECTIONS[section].items()
               if not option.of_call]
    own = {f"HAULWAY_{section}_{name}".upper(): name for name, _ in options}
    switches = {variable: name for name, option in options
                for variable in option.variables}
    return own, switches, frozenset(own) | frozenset(switches)


def _from_environment(section):
    """Returns the checked values from the environment."""
    own, switches, names = _variables(section)
    values = {}
    # Looking up each variable in os.environ would take longer than a small
    # load.
    for variable in _haulway.variables_among(names):
        text = os.environ.get(variable)  # Another thread may have removed it.
        if text is not None and variable in own:
            name = own[variable]
            option = SECTIONS[section][name]
            if text == "" and option.default is None:
                values[name] = None  # An empty variable means None.
            else:
                values[name] = option.check(variable, text)
        elif text == "1":
            values.setdefault(switches[variable], True)
    return values


def _of(section, values):
    if not values:
        return values
    return {name: value for (s, name), value in values.items() if s == section}


@functools.cache
def _defaults(section):
    """Returns ({name: value}, {name: origin}) of the options' own defaults."""
    options = SECTIONS[section]
    return (
        {name: option.default for name, option in options.items()},
        dict.fromkeys(options, "default"),
    )


def resolve(section, given=None, defaults=None):
    """Returns ({name: value}, {name: origin}) of all options of a section.

    given: checked options of the call. defaults: values that precede the
    options' own defaults. Within a group, only the options of the nearest
    origin count.
    """
    options = SECTIONS[section]
    values, origins = map(dict, _defaults(section))
    decided = {}
    for origin, layer in (
        ("call", given),
        ("context", _of(section, _local.get())),
        ("process", _of(section, _process)),
        ("environment", _from_environment(section)),
        ("outside", defaults),
    ):
        if not layer:
            continue
        for name, value in layer.items():
            if origins[name] != "default" and not (options[name].holds and value):
                continue
            group = options[name].group
            if group is not None and decided.setdefault(group, origin) != origin:
                continue
            values[name], origins[name] = value, origin
    return values, origins


def _option(section, name):
    option = SECTIONS[section].get(name)
    if option is None or option.of_call:
        # Interpreters and libraries look for names that begin so.
        meant = "" if name.startswith("_") else similar(name, SECTIONS[section])
        raise AttributeError(f"no option {section}.{name}{meant}")
    return option


def _without_group(values, section, name):
    """Returns `values` without the other options of the option's group."""
    group = SECTIONS[section][name].group
    if group is None:
        return values
    return {
        key: value
        for key, value in values.items()
        if key[0] != section or SECTIONS[section][key[1]].group != group
    }


class Section:
    """The options of one section: saving or loading."""

    def __init__(self, section):
        object.__setattr__(self, "_section", section)

    def __getattr__(self, name):
        _option(self._section, name)
        return resolve(self._section)[0][name]

    def __setattr__(self, name, value):
        check = _option(self._section, name).check
        value = check(f"{self._section}.{name}", value)
        global _process
        with _setting:
            _process = {
                **_without_group(_process, self._section, name),
                (self._section, name): value,
            }

    def __delattr__(self, name):
        """Removes the value that the process set."""
        _option(self._section, name)
        global _process
        with _setting:
            _process = {key: value for key, value in _process.items()
                        if key != (self._section, name)}

    def __dir__(self):
        return [
            name
            for name, option in SECTIONS[self._section].items()
            if not option.of_call
        ]

    def origin(self, name):
        """Returns where the value comes from: "context", "process",
        "environment" or "default".
        """
        _option(self._section, name)
        return resolve(self._section)[1][name]

    def __repr__(self):
        return described(self, _set(self) or f"{self._section}: all default")

    def __str__(self):
        values, origins = resolve(self._section)
        rows = []
        for name in dir(self):
            option = SECTIONS[self._section][name]
            is_hidden = option.secret and values[name] is not None
            rows.append((
                f"{self._section}.{name}",
                "..." if is_hidden else repr(values[name]),
                origins[name], option.meaning,
            ))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join(
            "  ".join(
                [text.ljust(width) for text, width in zip(row, widths)]
                + [row[3]]
            )
            for row in rows
        )


def _set(section):
    """Describes the options of a section that differ from their defaults."""
    values, origins = resolve(section._section)
    return ", ".join(
        f"{section._section}.{name}="
        + ("..." if SECTIONS[section._section][name].secret
           else shown(values[name]))
        for name in dir(section) if origins[name] != "default"
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
    """The type of haulway.config; see the module's docstring."""

    save = Section("save")
    load = Section("load")

    def __call__(self, *, save=None, load=None, **options):
        """Sets options for this thread or task; in a `with` statement, for its
        block.

        save, load: dicts of options of one section. An option given outside of
            them is set in every section that has it.
        """
        values = {}
        for name, value in options.items():
            sections = [s for s in SECTIONS if name in dir(getattr(self, s))]
            if not sections:
                known = {name for section in SECTIONS.values() for name in section}
                raise OptionError(
                    f"no option {name!r}{similar(name, sorted(known))}",
                    "kInvalidArgument",
                )
            for section in sections:
                values[section, name] = value
        for section, given in (("save", save), ("load", load)):
            options = by_name(section, given, "a dict of options") or {}
            for name, value in options.items():
                if name not in dir(getattr(self, section)):
                    raise OptionError(
                        f"no option {section}.{name}"
                        f"{similar(name, SECTIONS[section])}",
                        "kInvalidArgument",
                    )
                values[section, name] = value
        checked = {
            (section, name): SECTIONS[section][name].check(
                f"{section}.{name}", value
            )
            for (section, name), value in values.items()
        }
        before = _local.get()
        after = dict(before)
        for section, name in checked:
            after = _without_group(after, section, name)
        _local.set({**after, **checked})
        return _Restore(before)

    def __setattr__(self, name, value):
        raise AttributeError(
            f"set haulway.config.save.NAME or haulway.config.load.NAME, not "
            f"haulway.config.{name}"
        )

    def __repr__(self):
        changed = list(filter(None, map(_set, (self.save, self.load))))
        return described(self, *changed or ["all options have their default"])

    def __str__(self):
        return f"{self.save}\n{self.load}"


config = Config()


def given(section, name, value):
    """Returns `value`, checked; if it is None, the configured value."""
    if value is None:
        return resolve(section)[0][name]
    return SECTIONS[section][name].check(name, value)


def for_saving(format, values=None):
    """Returns the options that the library takes for a file of `format`, "" for
    a file of any bytes, by name: for calls with few of the options of save().

    values: values by name; the others are as configured.
    """
    return {
        name: given("save", name, (values or {}).get(name))
        for name in taken_of("save", format) if not WRITING[name].of_call
    }


def way_of(io, mmap):
    """Returns one word for `io` and `mmap`, two ways to choose how to read."""
    if mmap and io not in ("auto", "mmap"):
        raise InvalidArgumentError(
            f"io is {io!r} and mmap is True: expected one of them",
            "kInvalidArgument",
        )
    if mmap is False and io == "mmap":
        raise InvalidArgumentError(
            "io is 'mmap' and mmap is False: expected one of them",
            "kInvalidArgument",
        )
    return "mmap" if mmap else io
