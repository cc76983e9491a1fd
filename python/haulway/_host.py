"""Imports packages of other projects when they are needed."""

from __future__ import annotations

import functools

from ._importing import imported


def import_host(module, caller, package, tried):
    """Imports a module of another package.

    caller: the part of Haulway that needs it, for the message. package, tried:
    the package's name and the release that was tested.

    Raises ModuleNotFoundError that names the package if it is not installed.
    """
    try:
        return imported(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if (error.name or top).partition(".")[0] != top:
            raise  # A module that the package itself needs is missing.
        raise ModuleNotFoundError(
            f"{caller} needs the package {package} (tried with {tried}), which "
            f"is not installed: {error}",
            name=error.name,
        ) from error


@functools.cache
def subclass_of(cls, base):
    """Returns the class as one that also derives from a class of another
    package, which is imported only when an object is made."""
    if issubclass(cls, base):
        return cls
    return type(cls.__name__, (cls, base), {
        "__module__": cls.__module__, "__doc__": cls.__doc__,
        "__qualname__": cls.__qualname__,
    })
