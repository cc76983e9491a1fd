"""The options of calls that write, checked by one table.

Every call that writes makes one Writing from its keywords. Options that are not
given have their configured values; see _options and _config.
"""

from __future__ import annotations

from .._config import resolve
from .._errors import OptionError
from .._log import debug_log, said
from .._options import (
    REMOTE,
    WRITING,
    completed,
    similar,
    taken_of,
    writing_of,
)
from .._reading.call import Reading


def writes(call, *beside):
    """Completes a function's docstring: replaces "WRITING" by the writing
    options of `call`, and "OPTIONS" by the options in the tables `beside`."""

    def decorate(function):
        if function.__doc__:  # None with -OO.
            made = {"WRITING": writing_of(call)}
            if beside:
                made["OPTIONS"] = {k: v for table in beside
                                   for k, v in table.items()}
            for mark, options in made.items():
                function.__doc__ = completed(function.__doc__, mark, options)
        return function

    return decorate


class Writing:
    """The options of one call.

    call: the name of the function.
    options: its keywords; None means that a keyword was not given.
    beside: the options of reading that the call has; their keywords stay in
        `rest`.
    defaults: values that take precedence over the options' own defaults.

    Each option is an attribute.
    """

    def __init__(self, call, options, beside=REMOTE, defaults=None):
        self.call = call
        self.given, self.rest = {}, {}
        known = writing_of(call)
        for name, value in options.items():
            if name in known:
                if value is not None:
                    self.given[name] = known[name].check(name, value)
            elif name in beside:
                self.rest[name] = value
            else:
                raise OptionError(
                    f"{name}: {call} has no such option: "
                    f"{_elsewhere(name, known, beside, call)}",
                    "kInvalidArgument",
                )
        values, self.origins = resolve("save", self.given, defaults)
        vars(self).update(values)

    def engine(self, format=None, call=None):
        """Returns the options that the library takes, by name.

        format: leave out options that this format does not have.
        call: use the options of another call.
        """
        values = vars(self)
        return {name: values[name]
                for name in taken_of(call or self.call, format)}

    @property
    def remote(self):
        """Returns the URL options as the library takes them; see
        _options.REMOTE."""
        told = {name: value for name, value in self.rest.items()
                if name in REMOTE}
        return Reading(self.call, told, REMOTE).remote

    @property
    def existing(self):
        """Returns what happens to a target that is there, as
        _haulway.Target takes it."""
        return "replace" if self.overwrite else "usual"

    def of_format(self, format):
        """Returns the given options that not every format has, by name.

        Raises OptionError if `format` does not have one. A flag that is off
        requests nothing.
        """
        found = {}
        for name, value in self.given.items():
            option = WRITING[name]
            if option.formats is None or (value is False and not option.default):
                continue
            if format not in option.formats:
                raise OptionError(_not_of(name, option, format),
                                  "kInvalidArgument")
            found[name] = value
        return found

    def tell(self, done):
        """Adds `done` to `stats`, logs it, and returns it."""
        if self.stats is not None:
            self.stats.update(done)
        if log := debug_log():
            log.debug(
                "%s: wrote %s; %s threads, %s, durability %s", self.call,
                said(done.get("bytes", 0), done.get("seconds", 0)),
                done.get("threads", 1),
                "direct writes" if done.get("direct") else "buffered writes",
                self.durability,
            )
        return done


def _not_of(name, option, format):
    what = "encryption" if option.secret else "such option"
    return (f"{name}: the format {format!r} has no {what}: only "
            f"{' and '.join(map(repr, option.formats))} "
            f"{'has' if len(option.formats) == 1 else 'have'}")


def _elsewhere(name, known, beside, call):
    """Returns the end of a message: the calls that have an option, or the
    option that was probably meant, or all that the call has."""
    if name in WRITING and WRITING[name].calls:
        return f"it is one of {', '.join(WRITING[name].calls)}"
    if meant := similar(name, (*known, *beside), call):
        return meant.removeprefix("; ")
    return f"expected {', '.join((*known, *beside))}"
