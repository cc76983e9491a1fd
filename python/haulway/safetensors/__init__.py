"""The names of the safetensors package, over Haulway.

    from haulway.safetensors import safe_open
    from haulway.safetensors.torch import load_file, save_file

For programs that import the package by its own name:

    import haulway.safetensors
    haulway.safetensors.install()

Names, arguments, results and messages are those of release 0.9.0rc1. Files are
byte-identical wherever the package's own files do not differ from run to run;
docs/safetensors.md lists the improvements.

Any thread may call the functions of this module at any time, unless a
docstring says otherwise.
"""

from .._importing import imported

# Maps modules to their public names; a module is imported on first use.
_NAMES = {
    "_errors": ("SafetensorError",),
    "_file": ("PySafeSlice", "_safe_open_handle", "safe_open"),
    "_install": ("install", "installed", "uninstall"),
    "_prefetch": ("PrefetchLoader", "TensorMeta"),
    "_serialize": ("TensorSpec", "deserialize", "serialize", "serialize_file"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
_MODULES = frozenset({"numpy", "torch"})

# The version of the safetensors package whose API this is; programs check it.
__version__ = "0.9.0-rc.1"

__all__ = [
    "PrefetchLoader",
    "PySafeSlice",
    "SafetensorError",
    "TensorMeta",
    "TensorSpec",
    "__version__",
    "deserialize",
    "install",
    "installed",
    "safe_open",
    "serialize",
    "serialize_file",
    "uninstall",
]


# The real name, even if sys.modules has this module under another.
_PACKAGE = "haulway.safetensors"


def __getattr__(name):
    if name in _HOMES:
        home = imported(f"{_PACKAGE}.{_HOMES[name]}")
        return globals().setdefault(name, getattr(home, name))
    if name in _MODULES or name in _NAMES:
        return imported(f"{_PACKAGE}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(_MODULES.union(globals(), __all__))
