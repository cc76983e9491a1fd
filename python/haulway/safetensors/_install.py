"""Puts Haulway in place of the safetensors package for programs that import it.

How: sys.modules maps names to modules, and modules have bound objects under any
name. Both are exchanged by identity: an object of the package is replaced by
ours in every module that has it. Two alternatives were tried: lists of the
names that known programs bind, which change with each release; and exchanging
ours by identity on the way back, which also removed ours from programs that had
imported Haulway under its own name.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys

from .._describing import counted, described
from .._exchange import Exchange

_OURS = "haulway.safetensors"
_THEIRS = "safetensors"
_OF_THE_PACKAGE = (
    "PrefetchLoader", "PySafeSlice", "SafetensorError", "TensorMeta",
    "TensorSpec", "_safe_open_handle", "deserialize", "safe_open", "serialize",
    "serialize_file",
)
# The package's own extension, which has the package's names.
_EXTENSION = "._safetensors_rust"
# Modules that are exchanged, and their exchanged names.
_NAMES = {
    "": _OF_THE_PACKAGE,
    _EXTENSION: _OF_THE_PACKAGE,
    ".torch": (
        "_end_ptr", "_evaluate_tensors_for_save", "_filter_shared_not_shared",
        "_find_shared_tensors", "_flatten_as_ptr", "_getdtype", "_is_complete",
        "_remove_duplicate_names", "_to_ndarray", "_view2torch", "load",
        "load_file", "load_model", "save", "save_file", "save_model",
        "storage_ptr", "storage_size",
    ),
    ".numpy": (
        "_flatten", "_getdtype", "_is_little_endian", "_view2np", "load",
        "load_file", "save", "save_file",
    ),
}

_aside = None  # The package's own modules while ours replace them.
_exchange = Exchange(
    # The package keeps its own objects, and our modules keep ours.
    lambda name: name.split(".")[0] == _THEIRS or name.startswith(_OURS)
)


class Installed:
    """The effect of install(); a `with` statement takes it back at its end,
    unless an earlier call had installed Haulway before.

    patched: "module.name" of the names that modules had already bound, sorted.
    """

    def __init__(self, patched, is_first):
        self.patched = patched
        self._is_first = is_first

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._is_first:
            uninstall()

    def __repr__(self):
        return described(self, f"{counted(len(self.patched), 'name')} patched")


def installed():
    """Returns whether `import safetensors` gives haulway.safetensors.

    Raises nothing.
    """
    return _aside is not None


def install():
    """Makes `import safetensors` give haulway.safetensors.

    May be called before or after other programs import the package: names that
    modules have already bound (`from safetensors.torch import load_file`) are
    replaced too. Modules of the package that do not exist here
    (safetensors.flax) are still found, if the package is installed, and use
    this one. Returns an Installed. A second call replaces names bound since
    the first.

    Raises ImportError if a module cannot be imported; nothing is replaced
    then. For one thread at a time, while others may read.
    """
    global _aside
    theirs, is_first = _aside, _aside is None
    if is_first:
        theirs = {
            name: module
            for name, module in list(sys.modules.items())
            if name == _THEIRS or name.startswith(_THEIRS + ".")
        }
    # Everything that can fail comes before the first exchange.
    ours = _ours("")
    parts = {
        _THEIRS + part: _ours(part)
        for part in _NAMES if part and _THEIRS + part in theirs
    }
    pairs = _pairs(theirs)
    if is_first:
        for name in theirs:
            sys.modules.pop(name, None)
        _aside = theirs
    found = theirs.get(_THEIRS) or _place()
    ours.__path__ = [
        *ours.__path__[:1], *(getattr(found, "__path__", None) or ()),
    ]
    sys.modules[_THEIRS] = ours
    sys.modules.update(parts)
    setattr(ours, _EXTENSION[1:], ours)
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
    return Installed(_exchange.put(pairs), is_first)


def uninstall():
    """Takes install() back: `import safetensors` gives the package again, and
    replaced names have their old values. Modules that were first imported
    in between keep what they have. Returns "module.name" of those, sorted.

    Raises nothing. For one thread at a time.
    """
    global _aside
    theirs, _aside = _aside, None
    if theirs is None:
        return []
    sys.meta_path.remove(_Finder)
    ours = sys.modules[_OURS]
    ours.__path__ = ours.__path__[:1]
    for name in list(sys.modules):
        if name == _THEIRS or name.startswith(_THEIRS + "."):
            del sys.modules[name]
            # An import has bound the submodule in our module, which it took for
            # its package.
            part = name.removeprefix(_THEIRS)
            if part.count(".") == 1 and part not in (".torch", ".numpy"):
                vars(ours).pop(part[1:], None)
    vars(ours).pop(_EXTENSION[1:], None)
    sys.modules.update(theirs)
    return _exchange.take_back()


class _Finder:
    """Finds the package's modules that ours replace."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        part = name.removeprefix(_THEIRS)
        if name == part or part not in _NAMES:
            return None
        return importlib.machinery.ModuleSpec(name, _Loader)


class _Loader:
    @staticmethod
    def create_module(spec):
        return None  # Use the default module creation.

    @staticmethod
    def exec_module(module):
        part = module.__name__.removeprefix(_THEIRS)
        # The import statement uses the module that it finds here afterwards.
        sys.modules[module.__name__] = _ours(part)


def _ours(part):
    """Returns our module for a module of the package."""
    return importlib.import_module(
        _OURS if part == _EXTENSION else _OURS + part
    )


def _place():
    """Returns the package's location if it is installed and not imported."""
    sys.modules.pop(_THEIRS, None)
    try:
        return _Place(importlib.util.find_spec(_THEIRS))
    except (ImportError, ValueError):
        return None


class _Place:
    def __init__(self, spec):
        self.__path__ = (
            [] if spec is None else list(spec.submodule_search_locations or ())
        )


def _pairs(theirs):
    """Returns tuples (theirs, ours)."""
    pairs = []
    for part, names in _NAMES.items():
        module = theirs.get(_THEIRS + part)
        if module is None:
            continue
        ours = _ours(part)
        pairs.append((module, ours))
        pairs += [
            (getattr(module, name), getattr(ours, name))
            for name in names if hasattr(module, name)
        ]
    return pairs
