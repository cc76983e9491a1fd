"""Moves tensors out of files into memory at the speed of the hardware.

    import haulway

    with haulway.open("model.pt") as checkpoint:
        weight = checkpoint["layer.0.weight"]

    state = haulway.load("model.pt")

Nothing that is read is ever run. NumPy and torch are used where wanted, and
needed by neither the import nor one another.
"""

from ._checkpoint import Checkpoint, TensorSlice, load, open
from ._config import config
from ._errors import (
    Cancelled,
    CorruptError,
    DecryptError,
    Error,
    LimitError,
    MismatchError,
    TruncatedError,
    UnsafeError,
)
from ._haulway import __version__
from ._objects import GlobalName, PickledObject, TensorInfo
from ._plan import Plan, PlannedRecord, plan
from ._report import Report, scan, verify
from ._save import save, save_async
from ._segments import edit

__all__ = [
    "Cancelled",
    "Checkpoint",
    "CorruptError",
    "DecryptError",
    "Error",
    "GlobalName",
    "LimitError",
    "MismatchError",
    "PickledObject",
    "Plan",
    "PlannedRecord",
    "Report",
    "TensorInfo",
    "TensorSlice",
    "TruncatedError",
    "UnsafeError",
    "__version__",
    "config",
    "edit",
    "load",
    "open",
    "plan",
    "save",
    "save_async",
    "scan",
    "verify",
]
