"""What Haulway uses of torch that is not public, each with what takes its
place where a version of torch has it not.

Beside this, saving as torch.save() does needs some of what that does itself
(python/torch_names.cc), and fails without as that would.
"""

from __future__ import annotations

import importlib
import sys

import torch
import torch._utils


def from_dlpack():
    """What makes a tensor of a capsule."""
    return getattr(torch._C, "_from_dlpack", torch.utils.dlpack.from_dlpack)


def detect_fake_mode():
    """The FakeTensorMode in which this is called, or None."""
    guards = getattr(torch, "_guards", None)
    detect = getattr(guards, "detect_fake_mode", None)
    return None if detect is None else detect(None)


class _Vetted:
    """Finds names of a pickle that were allowed before they come here."""

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
    """What torch.load(weights_only=True) may call, by full name.

    Requires: whatever is looked up is in the table of src/pickle, too.
    """
    try:
        unpickler = importlib.import_module("torch._weights_only_unpickler")
        return unpickler._get_allowed_globals()
    except (AttributeError, ImportError):
        return _Vetted


def flipped(tensor, *, conj, neg):
    """The tensor with the bits that say how its elements are to be read."""
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
    """The negative, of the same memory where torch has that."""
    view = getattr(torch, "_neg_view", None)
    return tensor.neg() if view is None else view(tensor)


def typed_storage(untyped, dtype):
    words = {"wrap_storage": untyped, "dtype": dtype}
    try:
        return torch.storage.TypedStorage(**words, _internal=True)
    except (RuntimeError, TypeError) as error:
        if "_internal" not in str(error):
            raise
    return torch.storage.TypedStorage(**words)  # Which warns.


def untyped_storage(typed):
    """The UntypedStorage in a TypedStorage."""
    found = getattr(typed, "_untyped_storage", None)
    return typed.untyped() if found is None else found


def set_object_state(built, state):
    """Gives an object without __setstate__ its attributes."""
    set_state = getattr(torch._utils, "_set_obj_state", None)
    if set_state is not None:
        set_state(built, state)
        return
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    for name, value in {**(attributes or {}), **(slots or {})}.items():
        setattr(built, name, value)


def rebuilds_of_indices():
    """torch's functions that make tensors of tensors of indices."""
    return tuple(
        getattr(torch._utils, name)
        for name in ("_rebuild_sparse_tensor", "_rebuild_nested_tensor")
        if hasattr(torch._utils, name)
    )


def rebuilds_nested(rebuild):
    return rebuild is getattr(torch._utils, "_rebuild_nested_tensor", None)


def get_restore_location(map_location):
    """What brings a storage to where it is wanted: restore(storage, location)."""
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
    """The list in which torch keeps sparse tensors that it has yet to check."""
    found = getattr(torch._utils, "_sparse_tensors_to_validate", None)
    if found is None:  # Since 2.15.
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
    return check(*args)  # Torch 2.6 has no such check to leave out.


def restore_device_fake_mode(tensor):
    restore = getattr(torch._utils, "_restore_device_fake_mode", None)
    return tensor if restore is None else restore(tensor)


def serialization_state():
    """Of this thread: skip_data, map_location, materialize_fake_tensors."""
    return torch.serialization._serialization_tls


def configured(section, name):
    """torch.utils.serialization.config, which torch 2.6 has not."""
    try:
        from torch.utils.serialization import config
    except ImportError:
        if name == "mmap":
            return False
        if name == "mmap_flags":
            return torch.serialization.get_default_mmap_options()
        if name == "compute_crc32":
            return torch.serialization.get_crc32_options()
        return 64  # The alignment of storages.
    return getattr(getattr(config, section), name)
