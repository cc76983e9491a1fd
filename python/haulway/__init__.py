"""Moves tensors out of files into memory at the speed of the hardware.

    import haulway

    with haulway.open("model.pt") as checkpoint:
        weight = checkpoint["layer.0.weight"]

    state = haulway.load("model.pt")

A module is imported when one of its names is first used; this includes
haulway.archive, haulway.ipc, haulway.tensorizer and haulway.torch.

Nothing that is read is ever run. NumPy and torch are optional and independent:
importing haulway needs neither.

Any thread may call the functions of this module at any time, unless a
docstring says otherwise. The module works in the main interpreter of a process
only: in a subinterpreter its names cannot be imported.
"""

from ._importing import imported

# Maps each module to its public names. A module is imported when one of its
# names is first used: importing all of them takes ten times as long as
# importing the package.
_NAMES = {
    "_bulk.report": ("BulkReport",),
    "_bulk.run": ("bulk",),
    "_reading.checkpoint": ("Checkpoint", "TensorSlice", "open"),
    "_reading.compare": ("diff", "manifest", "tensor_stats"),
    "_config": ("config",),
    "_writing.convert": ("Part", "Writer", "convert", "writer"),
    "_writing.edit": ("edit",),
    "_errors": (
        "ArgumentTypeError", "Cancelled", "CertificateError", "CorruptError",
        "DecryptError", "Error",
        "InternalError", "InvalidArgumentError", "IoError", "LimitError",
        "MismatchError", "NotFoundError", "OptionError", "PermissionDeniedError",
        "SignatureError", "TimedOutError", "TruncatedError", "UnavailableError",
        "UnknownNameError",
        "UnsafeError", "UnsupportedError",
    ),
    "_haulway": ("Format", "__version__", "formats"),
    "_reading.iterate": ("iterate",),
    "_reading.load": ("load",),
    "_reading.load_into": ("IncompatibleKeys", "LoadIntoError", "load_into"),
    "_making.objects": ("GlobalName", "OpaqueObject", "PickledObject", "TensorInfo"),
    "_writing.plan": ("Plan", "PlannedRecord", "plan"),
    "_sharing.publish": ("Publication", "publish", "publish_buffer", "publish_file"),
    "_reading.remote": ("get",),
    "_reading.report": ("Report", "scan", "verify"),
    "_reading.runs": ("RunEntry", "latest"),
    "_writing.put": ("put",),
    "_writing.repair": ("repair",),
    "_writing.save": ("save", "save_async"),
    "_writing.sign": ("sign",),
    "_writing.runs": ("Checkpoints", "prune"),
    "_reading.shard": ("PlannedReads", "plan_reads", "shard"),
    "_sharing.shared": ("Shared", "SharedHandle", "attach"),
    "_sharing.subscribe": ("Subscription", "subscribe"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
_MODULES = frozenset({
    "archive", "delta", "distributed", "fsspec", "hooks", "ipc", "lightning",
    "safetensors", "tensorizer", "torch", "transformers", "vllm",
})

__all__ = [
    "ArgumentTypeError",
    "BulkReport",
    "Cancelled",
    "CertificateError",
    "Checkpoint",
    "Checkpoints",
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
    "OptionError",
    "Part",
    "PermissionDeniedError",
    "PickledObject",
    "Plan",
    "PlannedReads",
    "PlannedRecord",
    "Publication",
    "Report",
    "RunEntry",
    "Shared",
    "SharedHandle",
    "SignatureError",
    "Subscription",
    "TensorInfo",
    "TensorSlice",
    "TimedOutError",
    "TruncatedError",
    "UnavailableError",
    "UnknownNameError",
    "UnsafeError",
    "UnsupportedError",
    "Writer",
    "__version__",
    "attach",
    "bulk",
    "config",
    "convert",
    "diff",
    "edit",
    "formats",
    "get",
    "iterate",
    "latest",
    "load",
    "load_into",
    "manifest",
    "open",
    "plan",
    "plan_reads",
    "prune",
    "publish",
    "publish_buffer",
    "publish_file",
    "put",
    "repair",
    "save",
    "save_async",
    "scan",
    "shard",
    "sign",
    "subscribe",
    "tensor_stats",
    "verify",
    "writer",
]


def __getattr__(name):
    if name in _HOMES:
        home = imported(f"{__name__}.{_HOMES[name]}")
        return globals().setdefault(name, getattr(home, name))
    if name in _MODULES:
        return imported(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(_MODULES.union(globals(), __all__))
