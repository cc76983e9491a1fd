"""Moves tensors out of files into memory at the speed of the hardware.

    import haulway

    with haulway.open("model.pt") as checkpoint:
        weight = checkpoint["layer.0.weight"]

    state = haulway.load("model.pt")

haulway.archive, haulway.ipc, haulway.tensorizer and haulway.torch are imported
when they are first named.

Nothing that is read is ever run. NumPy and torch are used where wanted, and
needed by neither the import nor one another.
"""

import importlib

from ._checkpoint import Checkpoint, TensorSlice, open
from ._config import config
from ._errors import (
    ArgumentTypeError,
    Cancelled,
    CorruptError,
    DecryptError,
    Error,
    InternalError,
    InvalidArgumentError,
    IoError,
    LimitError,
    MismatchError,
    NotFoundError,
    PermissionDeniedError,
    TimedOutError,
    TruncatedError,
    UnavailableError,
    UnsafeError,
    UnsupportedError,
)
from ._haulway import Format, __version__, formats
from ._iterate import iterate
from ._load import load
from ._load_into import IncompatibleKeys, LoadIntoError, load_into
from ._objects import GlobalName, OpaqueObject, PickledObject, TensorInfo
from ._plan import Plan, PlannedRecord, plan
from ._report import Report, scan, verify
from ._save import save, save_async
from ._segments import edit
from ._shard import PlannedReads, plan_reads, shard
from ._shared import Shared, SharedHandle, attach

__all__ = [
    "ArgumentTypeError",
    "Cancelled",
    "Checkpoint",
    "CorruptError",
    "DecryptError",
    "Error",
    "Format",
    "GlobalName",
    "IncompatibleKeys",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "LimitError",
    "LoadIntoError",
    "MismatchError",
    "NotFoundError",
    "OpaqueObject",
    "PermissionDeniedError",
    "PickledObject",
    "Plan",
    "PlannedReads",
    "PlannedRecord",
    "Report",
    "Shared",
    "SharedHandle",
    "TensorInfo",
    "TensorSlice",
    "TimedOutError",
    "TruncatedError",
    "UnavailableError",
    "UnsafeError",
    "UnsupportedError",
    "__version__",
    "attach",
    "config",
    "edit",
    "formats",
    "iterate",
    "load",
    "load_into",
    "open",
    "plan",
    "plan_reads",
    "save",
    "save_async",
    "scan",
    "shard",
    "verify",
]

for _name in __all__:  # Tracebacks name what users catch, not where it lies.
    _object = globals()[_name]
    if isinstance(_object, type) and issubclass(_object, Exception):
        _object.__module__ = __name__
del _name, _object

_MODULES = frozenset({"archive", "ipc", "tensorizer", "torch"})


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(_MODULES.union(globals()))
