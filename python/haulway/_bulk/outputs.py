"""The outputs of `bulk convert`."""

from __future__ import annotations

import os

from .. import _haulway
from .._errors import InvalidArgumentError
from .inputs import is_url

_INDEX = ".index.json"


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
    out = os.fspath(options["out"])
    joined = f"{out.rstrip('/')}/{path}" if is_url(out) else os.path.join(out, path)
    return f"{joined}{suffix}"


def _suffixes():
    return sorted(
        {suffix for form in _haulway.formats() for suffix in form.suffixes},
        key=len, reverse=True,
    )
