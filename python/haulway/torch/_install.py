"""Puts Haulway in place of torch.load and torch.save for programs that call
them.

How: the replacement has the signature of torch's function. It tries Haulway's
function and, if that refuses, calls torch's with the same arguments, so that a
program gets the same classes and errors from torch as before. Modules that
bound torch's function under another name are found by identity. Raising
Haulway's errors was tried instead; libraries that catch torch's errors do not
know them.
"""

from __future__ import annotations

import functools
import logging
import os
import threading

import torch
import torch.serialization

from .._describing import counted, described
from .._errors import (
    Error,
    InvalidArgumentError,
    NotFoundError,
    UnsafeError,
    UnsupportedError,
)
from .._exchange import Exchange
from .._reading.signed import asked_by_config, refuse_unsigned
from .._reading.source import is_path, path_of
from . import load_path, save

_log = logging.getLogger("haulway")
_stand_ins = {}  # "load" or "save": the _StandIn in place of torch's function.
_counting = threading.Lock()
_counts = {}  # Since torch.load became ours; shared with each Installed.


class Installed:
    """The result of install(); as a `with` block it undoes that call at the end.

    patched: "module.name" of the names that modules had bound, sorted.

    The end of the block undoes what the call began: all, if it was the first;
    otherwise what earlier calls had not replaced.
    """

    def __init__(self, patched, begun):
        self.patched = patched
        self._begun = begun
        self._counts = _counts

    @property
    def counts(self):
        """How many calls were answered while torch.load was ours, a dict: `load`
        and `save` by Haulway, `torch_load` and `torch_save` by torch. An
        install() after the end begins anew, and leaves these as they are.
        """
        with _counting:
            return dict(self._counts)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        _end(self._begun)

    def __repr__(self):
        return described(self, f"{counted(len(self.patched), 'name')} patched")


def installed():
    """Whether torch.load is ours.

    Raises nothing.
    """
    return bool(_stand_ins)


def install(*, save=False):
    """Makes torch.load use haulway.torch.load for files that Haulway can read.

    save: replace torch.save too.

    Haulway handles a call for a local path if the file holds only data. That
    is more than torch.load(weights_only=True) takes: NumPy arrays and other
    objects that it refuses are loaded, and no code of the file is run. Every
    other call goes to torch with the same arguments: a call for a file object,
    for a file that needs code, for a format or an option that Haulway does not
    have, and for a file that Haulway refuses, so that the error is torch's.
    For these calls, weights_only decides whether torch runs code, as usual.
    Where haulway.config or the environment asks for a signature, torch loads
    nothing: such calls raise SignatureError, and refusals are Haulway's.
    With `save`, Haulway also handles calls of torch.save that write data to a
    local path.

    Modules that have bound torch's functions (`from torch import load`) get
    Haulway's functions, under whichever name. A program that needs torch's own
    function finds it as torch.load.__wrapped__. Each call is counted (see
    Installed.counts) and logged
    to the logger "haulway", level DEBUG. Returns an Installed. A second call
    also replaces names that were bound since the first, and may add `save`.
    Any thread may load and save meanwhile; install() and uninstall() are for
    one thread at a time.

    Raises nothing.
    """
    global _counts
    begun = list(_CALLS)
    if _stand_ins:
        begun = [name for name in _CALLS if save and name not in _stand_ins]
    else:
        _counts = dict.fromkeys(("load", "save", "torch_load", "torch_save"), 0)
    for name in ("load", "save") if save else ("load",):
        if name not in _stand_ins:
            _stand_ins[name] = _StandIn(name)
    patched = _exchange(
        (one.theirs, one.function) for one in _stand_ins.values()
    )
    return Installed(patched, begun)


def uninstall():
    """Undoes install(): modules that got Haulway's functions get torch's back.

    A Haulway function that something else still holds (a partial, a class)
    calls torch's function from now on. Returns "module.name" of the modules,
    sorted.

    Raises nothing.
    """
    return _end(list(_stand_ins))


def _end(names):
    """Gives torch's functions of these names back."""
    ended = [_stand_ins.pop(name) for name in names if name in _stand_ins]
    back = _exchange((one.function, one.theirs) for one in ended)
    for one in ended:
        one.is_on = False
    return back


def _exchange(pairs):
    # Modules of ours keep torch's own functions.
    exchange = Exchange(lambda name: name.split(".")[0] == "haulway")
    return exchange.put(pairs)


class _StandIn:
    """Replaces torch's function `theirs`, under its name."""

    def __init__(self, name):
        self.is_on = True
        self.theirs = theirs = getattr(torch, name)
        arguments, ours, refusals = _CALLS[name]

        @functools.wraps(theirs)
        def function(*args, **kwargs):
            if not self.is_on:
                return theirs(*args, **kwargs)
            f = arguments(*args, **kwargs)
            why = _why_not(f, name)
            # torch compares nothing with a signature.
            is_signed = name == "load" and asked_by_config() is not None
            if why is not None and is_signed:
                refuse_unsigned(f"what torch.load reads ({why})")
            if why is None:
                try:
                    done = ours(*args, **kwargs)
                except refusals as error:
                    if is_signed:
                        raise
                    why = error
                else:
                    _tell(name, f, "by haulway")
                    return done
            _tell(f"torch_{name}", f, f"by torch: {why}")
            return theirs(*args, **kwargs)

        self.function = function


# Returns the argument f of a call.
def _of_load(f=None, *_, **others):
    return f


def _of_save(obj=None, f=None, *_, **others):
    return f


# For each name: a function that finds f, our function, and the errors after
# which torch's function is called. If saving fails for another reason, such as
# a full disk, the old file is intact; torch would destroy it. A TypeError means
# an argument that our function does not have.
_CALLS = {
    "load": (_of_load, load_path, (Error, TypeError)),
    "save": (_of_save, save, (
        InvalidArgumentError, NotFoundError, TypeError, UnsafeError,
        UnsupportedError,
    )),
}


def _why_not(f, name):
    """Returns the reason why torch handles a call from the start, or None."""
    if not is_path(f):
        return "no path"
    path = os.fspath(f)
    if not isinstance(path, str) or "://" in path or path == "-":
        return "no local path"
    if name == "load" and not os.path.isfile(path):
        return "no regular file"
    return None


def _tell(count, f, how):
    with _counting:
        _counts[count] += 1
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug(
            "torch.%s of %s: %s", count.removeprefix("torch_"),
            path_of(f) if is_path(f) else type(f).__name__, how,
        )
