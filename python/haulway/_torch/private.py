"""The private names of torch that Haulway uses, each with a replacement for
versions of torch that lack it.

Functions whose names are stored in files (torch._utils._rebuild_tensor_v2 and
the like) have no replacement: a release without them could not read its own
files.
"""

# Design: each name is looked up with getattr() where it is used. Its replacement
# is made from public parts of torch: slower, or with a warning, but equivalent.
# The extension does not look up private names itself: for_pickling() passes
# them to it, once per pickle.
#
# Deciding by torch's version was left out: builds with the same version differ
# in their names. test_torch_private.py removes the names one by one.


from __future__ import annotations

import sys
import types

import torch
import torch._utils

from .._errors import UnsupportedError
from .._importing import imported, importing


def from_dlpack():
    """Returns the function that makes a tensor from a capsule."""
    return getattr(torch._C, "_from_dlpack", torch.utils.dlpack.from_dlpack)


# A DataLoader worker sends this instead of a batch that failed.
ExceptionWrapper = torch._utils.ExceptionWrapper


def lend_storages(lend):
    """Makes default_collate() stack batches in memory from `lend`.

    lend: a function of a size in bytes and a device type that returns a
    storage, or None to let torch allocate. If torch lacks the name, batches are
    stacked in torch's own memory and copied from there.
    """
    theirs = getattr(torch.UntypedStorage, "_new_shared", None)
    if theirs is None:
        return

    def new_shared(cls, size, *, device="cpu"):
        storage = lend(size, torch.device(device).type)
        return theirs(size, device=device) if storage is None else storage

    torch.UntypedStorage._new_shared = classmethod(new_shared)


def watch_fetcher(begins_ended):
    """Returns a function that returns whether the newest iterable dataset has
    ended, of those that a loader reads in this process from now on.

    begins_ended: whether the first of them is taken to have ended.
    """
    fetch = torch.utils.data._utils.fetch
    seen = []

    class Fetcher(fetch._IterableDatasetFetcher):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.ended = begins_ended and not seen
            seen[:] = [self]

    fetch._IterableDatasetFetcher = Fetcher
    return lambda: bool(seen) and seen[0].ended


def detect_fake_mode():
    """Returns the active FakeTensorMode, or None."""
    guards = getattr(torch, "_guards", None)
    detect = getattr(guards, "detect_fake_mode", None)
    if detect is None:
        return None
    # detect() imports modules and examines everything, which takes longer than
    # a small load.
    depth = getattr(torch._C, "_len_torch_dispatch_stack", None)
    tracing = getattr(guards, "TracingContext", None)
    if depth is not None and tracing is not None:
        if depth() == 0 and tracing.try_get() is None:
            return None
    return detect(None)


class _Vetted:
    """Resolves names of a pickle that were allowed before the lookup."""

    @staticmethod
    def get(full):
        module, _, name = full.rpartition(".")
        while module and module not in sys.modules:
            module, _, outer = module.rpartition(".")
            name = f"{outer}.{name}"
        if module.partition(".")[0] not in ("torch", "collections", "builtins"):
            return None
        found = sys.modules[module]
        for part in name.split("."):
            found = getattr(found, part, None)
        return found


def allowed_globals():
    """Returns what torch.load(weights_only=True) may call, by full name.

    Requires: every name that is looked up is also in the table of src/pickle.
    """
    try:
        unpickler = imported("torch._weights_only_unpickler")
        allowed = unpickler._get_allowed_globals()
    except (AttributeError, ImportError):
        return _Vetted
    # Torch 2.15 no longer allows nested tensors; Haulway checks their parts.
    checked = {
        f"torch._utils.{one.__name__}": one for one in rebuilds_of_indices()
    }
    return {**checked, **allowed}


def flipped(tensor, *, conj, neg):
    """Returns the tensor with the bits set that say how to read its
    elements."""
    set_metadata = getattr(torch._utils, "set_tensor_metadata", None)
    if set_metadata is not None:
        flags = {"conj": conj, "neg": neg}
        set_metadata(
            tensor, {name: True for name, is_set in flags.items() if is_set}
        )
        return tensor
    tensor = tensor.conj() if conj else tensor
    return neg_view(tensor) if neg else tensor


def neg_view(tensor):
    """Returns the negative, as a view of the same memory if torch can."""
    view = getattr(torch, "_neg_view", None)
    return tensor.neg() if view is None else view(tensor)


def typed_storage(untyped, dtype):
    words = {"wrap_storage": untyped, "dtype": dtype}
    try:
        return torch.storage.TypedStorage(**words, _internal=True)
    except (RuntimeError, TypeError) as error:
        if "_internal" not in str(error):
            raise
    return torch.storage.TypedStorage(**words)  # This alternative warns.


def untyped_storage(typed):
    """Returns the UntypedStorage of a TypedStorage."""
    found = getattr(typed, "_untyped_storage", None)
    return typed.untyped() if found is None else found


def parts_of_storage(typed):
    """Returns (UntypedStorage, class name, element count) of a TypedStorage."""
    untyped = untyped_storage(typed)
    name = _storage_names().get(typed.dtype)
    if name is None:
        raise UnsupportedError(
            f"files of torch have no dtype {typed.dtype}", "kUnsupported"
        )
    return untyped, name, untyped.nbytes() // typed.dtype.itemsize


# The kinds of typed storage classes. torch adds no new ones.
_KINDS = (
    "Double", "Float", "Half", "Long", "Int", "Short", "Char", "Byte", "Bool",
    "BFloat16", "ComplexDouble", "ComplexFloat", "QInt8", "QInt32", "QUInt8",
    "QUInt4x2", "QUInt2x4",
)


def _storage_names():
    """Returns the name of each dtype's storage class, as files have it."""
    found = getattr(torch.storage, "_dtype_to_storage_type_map", None)
    if found is not None:
        return found()
    return {
        getattr(torch, f"{kind}Storage").dtype: f"{kind}Storage"
        for kind in _KINDS if hasattr(torch, f"{kind}Storage")
    }


def _dtypes_of_bytes():
    """Returns the dtypes without a storage class; files store their bytes."""
    found = getattr(torch.storage, "_new_dtypes", None)
    if found is not None:
        return found()
    with_class = _storage_names()
    return {
        found for found in vars(sys.modules["torch"]).values()
        if isinstance(found, torch.dtype) and found not in with_class
    }


def _tags_cpu_first():
    """Returns whether torch's own CPU tagger comes first in its registry."""
    registry = getattr(torch.serialization, "_package_registry", None)
    tag = getattr(torch.serialization, "_cpu_tag", None)
    return bool(registry) and tag is not None and registry[0][1] is tag


def for_pickling():
    """Returns the names that python/pickling/torch_names.cc needs for a pickle.

    The extension reads the properties without another lookup. If torch has no
    backward_hooks, every tensor is treated as having hooks, which is slower.
    """
    return types.SimpleNamespace(
        backward_hooks=getattr(
            torch.Tensor, "_backward_hooks", property(lambda tensor: {})
        ),
        identity=getattr(
            torch.UntypedStorage, "_cdata",
            property(lambda storage: storage.data_ptr() or id(storage)),
        ),
        rebuild_v2=torch._utils._rebuild_tensor_v2,
        rebuild_v3=torch._utils._rebuild_tensor_v3,
        rebuild_parameter=torch._utils._rebuild_parameter,
        storage_names=_storage_names(),
        dtypes_of_bytes=_dtypes_of_bytes(),
        tags_cpu_first=_tags_cpu_first(),
        parts_of_storage=parts_of_storage,
        fake_device=lambda storage: getattr(storage, "_fake_device", None),
    )


def rebuilds_of_indices():
    """Returns torch's functions that make tensors from index tensors."""
    return tuple(
        getattr(torch._utils, name)
        for name in ("_rebuild_sparse_tensor", "_rebuild_nested_tensor")
        if hasattr(torch._utils, name)
    )


def rebuilds_nested(rebuild):
    return rebuild is getattr(torch._utils, "_rebuild_nested_tensor", None)


def get_restore_location(map_location):
    """Returns the function restore(storage, location) that moves a storage."""
    find = getattr(torch.serialization, "_get_restore_location", None)
    if find is not None:
        return find(map_location)

    def moved(storage, location):
        device = torch.device(location)
        return storage if device.type == "cpu" else storage.to(device=device)

    if map_location is None:
        return moved
    if isinstance(map_location, dict):
        return lambda storage, location: moved(
            storage, map_location.get(location, location)
        )
    if isinstance(map_location, (str, torch.device)):
        return lambda storage, location: moved(storage, map_location)

    def called(storage, location):
        result = map_location(storage, location)
        return moved(storage, location) if result is None else result

    return called


def sparse_tensors_to_validate():
    """Returns the list of sparse tensors that torch has not yet validated."""
    found = getattr(torch._utils, "_sparse_tensors_to_validate", None)
    if found is None:  # Moved in 2.15.
        found = getattr(serialization_state(), "sparse_tensors_to_validate", [])
    return found


def validate_sparse_coo(*args):
    check = torch._validate_sparse_coo_tensor_args
    return _without_pinning(check, args)


def validate_sparse_compressed(*args):
    check = torch._validate_sparse_compressed_tensor_args
    return _without_pinning(check, args)


def _without_pinning(check, args):
    try:
        return check(*args, check_pinning=False)
    except TypeError as error:
        if "check_pinning" not in str(error):
            raise
    return check(*args)  # Torch 2.6 has no pinning check.


def restore_device_fake_mode(tensor):
    restore = getattr(torch._utils, "_restore_device_fake_mode", None)
    return tensor if restore is None else restore(tensor)


def serialization_state():
    """Returns this thread's skip_data, map_location and
    materialize_fake_tensors."""
    return torch.serialization._serialization_tls


def configured(section, name):
    """Returns a value of torch.utils.serialization.config, which torch 2.6
    lacks."""
    try:
        with importing:
            from torch.utils.serialization import config
    except ImportError:
        if name == "mmap":
            return False
        if name == "mmap_flags":
            return torch.serialization.get_default_mmap_options()
        if name == "compute_crc32":
            return torch.serialization.get_crc32_options()
        return 64  # The alignment of storages in bytes.
    return getattr(getattr(config, section), name)
