"""torch tensors in safetensors files, with the names of safetensors.torch.

Any thread may call the functions of this module at any time, unless a
docstring says otherwise.
"""

# Design: names, signatures, results and messages are those of the package that
# this module replaces, including private names that other programs import;
# reading and writing are Haulway's. Tensors that share memory are found by
# their storage's address, as in the package, and the names that save_model()
# drops and records are byte for byte the same.
#
# Wrapping the package and replacing only its reading was left out: its checks
# copy tensors, and its writing is the slow part. torch is imported at once,
# since every program that imports this module uses it.


from __future__ import annotations

from collections import defaultdict

import torch

from .. import _options
from .._importing import importing
from .._torch.factory import TorchFactory, from_dlpack
from ._dtypes import NAMED
from ._errors import SafetensorError
from ._file import safe_open
from ._header import check_tensors, parsed_header
from ._serialize import (
    TensorSpec,
    deserialize,
    open_bytes,
    serialize,
    serialize_file,
)

__all__ = [
    "deserialize", "load", "load_file", "load_model", "save", "save_file", "save_model",
    "storage_ptr", "storage_size",
]

_TYPES = {
    name: getattr(torch, called)
    for name, called in NAMED.items()
    if called is not None and hasattr(torch, called)
}
_SIZE = {dtype: dtype.itemsize for dtype in _TYPES.values()}


def save(tensors, metadata=None):
    """Returns the bytes of a safetensors file of tensors by name.

    tensors: contiguous tensors that share no memory.
    metadata: a dict of strings.

    Raises ValueError and RuntimeError with the package's messages for other
    tensors.
    """
    kept = []
    return serialize(_flatten_as_ptr(tensors, kept), metadata=metadata)


def save_file(tensors, filename, metadata=None):
    """Writes a safetensors file.

    tensors, metadata: as for save().
    filename: a path.

    Raises SafetensorError if the file cannot be written, and what save()
    raises.
    """
    kept = []
    serialize_file(
        _flatten_as_ptr(tensors, kept), filename, metadata=metadata
    )


def load(data):
    """Returns the tensors by name in `data`, the bytes of a file, on the CPU.
    Raises SafetensorError for bytes of another format.
    """
    core = open_bytes(data)
    check_tensors(torch, core, lambda: parsed_header(core))
    built, _ = core.build(
        TorchFactory(core, {}), from_dlpack, None, "utf-8", {}, None
    )
    return built


def load_file(filename, device="cpu", *, backend="mmap"):
    """Returns the tensors by name of a file.

    filename: a path or URL.
    device: the device of the tensors.
    backend: how it is read; see safe_open.

    Raises SafetensorError for a file of another format, and FileNotFoundError.
    """
    with safe_open(
        filename, framework="pt", device=device, backend=backend
    ) as file:
        return file.get_tensors()


def save_model(model, filename, metadata=None, force_contiguous=True):
    """Writes the state of a module, each memory once.

    model: a torch.nn.Module.
    filename: a path.
    metadata: a dict of strings. If several names share memory, only one is
        kept; for each of the others, `metadata` names the one that was kept,
        which is all that load_model() needs.
    force_contiguous: make tensors contiguous before they are written.

    Raises what save_file() raises, and RuntimeError if no name covers a
    memory.
    """
    state = model.state_dict()
    for kept, dropped in _remove_duplicate_names(state).items():
        for name in dropped:
            metadata = {} if metadata is None else metadata
            metadata.setdefault(name, kept)
            del state[name]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    try:
        save_file(state, filename, metadata=metadata)
    except ValueError as error:
        raise ValueError(
            f"{error} Or use save_model(..., force_contiguous=True), read the "
            "docs for potential caveats."
        ) from error


def load_model(model, filename, strict=True, device="cpu", *, backend="mmap"):
    """Loads a file into a module; returns (missing names, unexpected names).

    model: a torch.nn.Module.
    filename, device, backend: as for load_file().
    strict: raise RuntimeError if there are any.

    Raises what load_file() raises, and RuntimeError for shapes that differ.
    """
    state = load_file(filename, device=device, backend=backend)
    duplicates = _remove_duplicate_names(
        model.state_dict(), preferred_names=state.keys()
    )
    missing, unexpected = model.load_state_dict(state, strict=False)
    missing = set(missing)
    for names in duplicates.values():
        for name in names:
            if name in missing:
                missing.remove(name)
            else:
                unexpected.append(name)
    if strict and (missing or unexpected):
        lines = [
            f"Error(s) in loading state_dict for {type(model).__name__}:"
        ]
        for what, names in ("Missing", missing), ("Unexpected", unexpected):
            if names:
                listed = ", ".join(f'"{name}"' for name in sorted(names))
                lines.append(f"    {what} key(s) in state_dict: {listed}")
        raise RuntimeError("\n".join(lines))
    return missing, unexpected


# Private names that other programs import.


def storage_ptr(tensor):
    """Returns the address of the memory that `tensor` is a view of; 0 for
    tensors without one memory, such as sparse tensors. Raises what torch raises
    for parameters that are not initialized.
    """
    try:
        return tensor.untyped_storage().data_ptr()
    except NotImplementedError:
        return 0


def storage_size(tensor):
    """Returns the size in bytes of the memory that `tensor` is a view of.
    Raises what torch raises for tensors without memory.
    """
    return tensor.untyped_storage().nbytes()


def _end_ptr(tensor):
    """Returns the address where a tensor's last element ends."""
    if tensor.nelement() == 0:
        return tensor.data_ptr()
    last = sum(
        (size - 1) * stride
        for size, stride in zip(tensor.shape, tensor.stride())
    )
    return tensor.data_ptr() + (last + 1) * _SIZE[tensor.dtype]


def _is_complete(tensor):
    """Returns whether a tensor covers all of its storage."""
    return (
        tensor.data_ptr() == storage_ptr(tensor)
        and tensor.nelement() * _SIZE[tensor.dtype] == storage_size(tensor)
    )


def _filter_shared_not_shared(tensors, state_dict):
    """Splits sets of names that share a storage where their ranges do not
    overlap."""
    cut = []
    for shared in tensors:
        if len(shared) < 2:
            cut.append(shared)
            continue
        areas = sorted(
            (state_dict[name].data_ptr(), _end_ptr(state_dict[name]), name)
            for name in shared
        )
        last_stop = None
        for start, stop, name in areas:
            if last_stop is None or start >= last_stop:
                cut.append({name})
            else:
                cut[-1].add(name)
            last_stop = stop
    return cut


def _find_shared_tensors(state_dict):
    """Returns sets of names; the tensors of a set share memory."""
    tensors = defaultdict(set)
    for name, tensor in state_dict.items():
        if tensor.device.type == "meta":
            continue
        start = storage_ptr(tensor)
        size = storage_size(tensor) if start != 0 else 0
        if size != 0:
            tensors[tensor.device, start, size].add(name)
    return _filter_shared_not_shared(sorted(tensors.values()), state_dict)


def _remove_duplicate_names(state_dict, *, preferred_names=None,
                            discard_names=None):
    """Returns names to leave out among names that share memory, by the name to
    keep.

    The name to keep is the first, in order, of the names that cover all of
    their memory; preferred names come before others, names to discard after
    them.
    """
    preferred_names = set(
        _options.names("preferred_names", preferred_names or ())
    )
    discard_names = set(_options.names("discard_names", discard_names or ()))
    to_remove = defaultdict(list)
    for shared in _find_shared_tensors(state_dict):
        complete = {
            name for name in shared if _is_complete(state_dict[name])
        }
        if not complete:
            raise RuntimeError(
                "Error while trying to find names to remove to save state "
                "dict, but found no suitable name to keep for saving amongst: "
                f"{shared}. None is covering the entire storage.Refusing to "
                "save/load the model since you could be storing much more "
                "memory than needed. Please refer to "
                "https://huggingface.co/docs/safetensors/torch_shared_tensors "
                "for more information. Or open an issue."
            )
        for choice in (
            preferred_names & complete, complete - discard_names, complete
        ):
            if choice:
                keep = min(choice)
                break
        for name in sorted(shared):
            if name != keep:
                to_remove[keep].append(name)
    return to_remove


def _getdtype(dtype_str):
    if dtype_str in ("F6_E2M3", "F6_E3M2"):
        raise SafetensorError(f"Dtype not understood: {dtype_str}")
    return _TYPES[dtype_str]


def _view2torch(safeview):
    """Returns tensors by name for the result of deserialize()."""
    result = {}
    for name, view in safeview:
        dtype, shape = _getdtype(view["dtype"]), list(view["shape"])
        if view["dtype"] == "F4" and shape:
            shape[-1] //= 2
        if len(view["data"]) == 0:
            result[name] = torch.empty(shape, dtype=dtype)
        else:
            flat = torch.frombuffer(view["data"], dtype=torch.uint8)
            result[name] = flat.view(dtype).reshape(shape)
    return result


def _to_ndarray(tensor):
    """Returns (a NumPy array of a tensor's bytes, the object that keeps them
    alive)."""
    with importing:
        import numpy as np

    if tensor.device.type != "cpu":
        tensor = tensor.to("cpu")
    if tensor.data_ptr() == 0:
        return np.empty(0), 0
    return tensor.view(-1).view(torch.uint8).numpy(), tensor


def _evaluate_tensors_for_save(tensors):
    """Raises unless `tensors` is a dict of dense tensors that share no
    memory."""
    if not isinstance(tensors, dict):
        raise ValueError(
            "Expected a dict of [str, torch.Tensor] but received "
            f"{type(tensors)}"
        )
    sparse = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"Key `{name}` is invalid, expected torch.Tensor but received "
                f"{type(tensor)}"
            )
        if tensor.layout != torch.strided:
            sparse.append(name)
    if sparse:
        raise ValueError(
            f"You are trying to save a sparse tensors: `{sparse}` which this "
            "library does not support. You can make it a dense tensor before "
            "saving with `.to_dense()` but be aware this might make a much "
            "larger file than needed."
        )
    failing = [
        names for names in _find_shared_tensors(tensors) if len(names) > 1
    ]
    if failing:
        indent = "\n            "
        raise RuntimeError(
            f"{indent}Some tensors share memory, this will lead to duplicate "
            "memory on disk and potential differences when loading them again: "
            f"{failing}.{indent}A potential way to correctly save your model "
            f"is to use `save_model`.{indent}More information at "
            "https://huggingface.co/docs/safetensors/torch_shared_tensors"
            f"{indent}"
        )


def _flatten_as_ptr(tensors, keep_alive_buffer):
    """Returns TensorSpecs by name for tensors; appends what keeps them
    alive."""
    _evaluate_tensors_for_save(tensors)
    specs = {}
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` "
                "which is not allowed. It either means you are trying to save "
                "tensors which are reference of each other in which case it's "
                "recommended to save only the full tensors, and reslice at "
                "load time, or simply call `.contiguous()` on your tensor to "
                "pack it before saving."
            )
        if tensor.device.type != "cpu":
            tensor = tensor.to("cpu")
        # Files cannot store the conjugate and negative bits.
        tensor = tensor.detach().resolve_conj().resolve_neg()
        keep_alive_buffer.append(tensor)
        specs[name] = TensorSpec(
            dtype=str(tensor.dtype).split(".")[-1],
            shape=tensor.shape,
            data_ptr=tensor.data_ptr(),
            data_len=tensor.nelement() * _SIZE[tensor.dtype],
        )
    return specs
