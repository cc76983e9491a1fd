"""The outputs of `bulk convert`."""

# Design: a folder is listed while outputs are written, so outputs below a listed
# folder would become inputs, of this run or the next. If the folder of outputs
# is within a listed one, nothing below it is an input. If outputs are placed
# among the inputs, an output is recognized by the log, and an existing file of
# another origin is never replaced: it may be an input that is still to come.

from __future__ import annotations

import functools
import os

from .. import _haulway
from .._errors import InvalidArgumentError
from .inputs import is_url

_INDEX = ".index.json"


class Outputs:
    """The outputs of a run of `convert`.

    log: the run's Journal.
    """

    def __init__(self, options, log):
        self._options, self._log = options, log
        self._out = options["out"]
        self._real = functools.lru_cache(64)(os.path.realpath)

    def hides(self, one):
        """Returns whether an Input was found below a folder of outputs that is
        within a listed folder."""
        return bool(one.base) and self._is_within(one.base) and _is_in(
            self._folder_of(one.name), self._place(self._out))

    def has(self, one):
        """Returns whether a found Input is the output of another input."""
        return bool(one.base) and (
            self._log.owner_of(one.name) not in (None, one.name))

    def claim(self, one):
        """Returns the output of an Input. Raises InvalidArgumentError if it
        belongs to another input, or may be another input."""
        out = output_of(one, self._options)
        if (
            one.listed and not self._is_within(one.base) and not is_url(out)
            and _is_in(self._folder_of(out), self._place(one.base))
            and os.path.lexists(out) and not self._log.wrote(out, one.name)
        ):
            raise InvalidArgumentError(
                f"output {out!r} is there already, in the folder that is "
                "converted: expected another folder", "kInvalidArgument",
            )
        owner = self._log.claim(out, one.name)
        if owner != one.name:
            raise InvalidArgumentError(
                f"output {out!r} is also that of input {owner!r}",
                "kInvalidArgument",
            )
        return out

    def _is_within(self, base):
        """Returns whether `out` is a folder within a listed one."""
        out, base = self._place(self._out), self._place(base)
        return out != base and _is_in(out, base)

    def _folder_of(self, name):
        return self._place(os.path.dirname(name))

    def _place(self, name):
        """Returns a name of which each folder has one form."""
        return name.rstrip("/") if is_url(name) else self._real(name)


def _is_in(name, folder):
    return f"{name}/".startswith(f"{folder.rstrip('/')}/")


def output_of(one, options):
    """Returns the path or URL of an Input's output.

    In `out`, the output keeps the input's path relative to the listed folder,
    or to the first wild card of a glob. The output of an input that the caller
    named is placed directly in `out`. The new suffix replaces the old one.
    Raises InvalidArgumentError for a key that leads out of its folder.
    """
    name = one.name
    if name.endswith(("/.metadata", "/__0.metadata", "/")):
        name = os.path.dirname(name)  # The checkpoint is the directory.
    base = one.base.rstrip("/")
    if base == "." and name != "." and not name.startswith("./"):
        path = name
    elif base and name.startswith(f"{base}/"):
        path = name[len(base) + 1:]
    else:
        path = os.path.basename(name.rstrip("/").partition("?")[0])
        if path in (".", ".."):
            path = os.path.basename(os.path.abspath(name))
    path = os.path.normpath(path.lstrip("/"))
    if path.startswith("../"):
        raise InvalidArgumentError(
            f"the key leads out of its folder: expected no '..', found {path!r}; "
            f"of {one.name}", "kInvalidArgument",
        )
    path = path.removesuffix(_INDEX)
    for known in _suffixes():
        if path.lower().endswith(known):
            path = path[: -len(known)]
            break
    suffix = next(
        (form.suffixes[0] for form in _haulway.formats()
         if form.name == options["to"] and form.suffixes), "",
    )
    out = options["out"]
    joined = f"{out.rstrip('/')}/{path}" if is_url(out) else os.path.join(out, path)
    return f"{joined}{suffix}"


def _suffixes():
    return sorted(
        {suffix for form in _haulway.formats() for suffix in form.suffixes},
        key=len, reverse=True,
    )
