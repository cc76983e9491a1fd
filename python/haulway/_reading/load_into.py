"""haulway.load_into: loading a file into existing tensors."""

# Design: every target is examined before anything is read (_Place): the file's
# tensor must fit its dtype, shape and layout, and all problems are reported at
# once, as load_state_dict() does. Then one call of the engine fills all
# targets: host memory is written in place, with casts, and a target on a device
# or with a layout that is not dense is filled from a dense copy.
#
# Loading a state dict and copying from it would need the model's memory twice.
# After a refusal every target is unchanged; after a failed read, targets may be
# partly overwritten.


from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

from .. import _haulway
from .._describing import described, public, shown
from .._errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from .._importing import imported, importing
from .._making.dtypes import name_of_numpy, name_of_torch, numpy_dtype
from .._making.objects import TensorRequest, dense_strides, make_array
from .._options import READING, check_flag, text
from .call import Reading, reads
from .select import choose


class _Keys(NamedTuple):
    missing_keys: list
    unexpected_keys: list


class IncompatibleKeys(_Keys):
    """The names that load_into() did not load, as torch returns them.

    missing_keys: names that only the target has.
    unexpected_keys: names that only the file has.
    """

    def __repr__(self):
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return described(
            self, f"missing_keys={shown(self.missing_keys)}",
            f"unexpected_keys={shown(self.unexpected_keys)}",
        )


class LoadIntoError(InvalidArgumentError, RuntimeError):
    """The file does not fit the target; nothing was loaded.

    missing_keys: names that only the target has.
    unexpected_keys: names that only the file has.

    message, code, byte, errno: as for Error.
    """

    def __init__(self, message, code=None, byte=None, errno=0,
                 missing_keys=(), unexpected_keys=()):
        super().__init__(message, code, byte, errno)
        self.missing_keys = list(missing_keys)
        self.unexpected_keys = list(unexpected_keys)

    def __reduce__(self):
        return (
            type(self),
            (self.message, self.code, self.byte, self.errno,
             self.missing_keys, self.unexpected_keys),
        )


LoadIntoError.__module__ = "haulway"  # The public name, shown in tracebacks.


class _Place:
    """The destination of one tensor, filled in place or from a dense copy."""

    def __init__(self, value, name, info):
        self.value = value
        self.info = info
        # (address, bytes, dtype) if it can be filled in place, else None.
        self.direct = None
        self.casts = False  # Whether the target is of another dtype.
        # Whether it is GPU memory with the size of a whole storage.
        self.is_storage_on_gpu = False
        if _is_torch(value):
            self._look_at_tensor(name)
        else:
            self._look_at_array(name)
        if info.conjugate or info.negative:
            self.direct = None

    def _look_at_tensor(self, name):
        torch = imported("torch")
        tensor = self.value
        if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
            raise _refused(name, "is not initialised: its shape is unknown")
        if tensor.is_meta:
            raise _refused(name, "is on the meta device: it has no memory")
        if tensor.layout is not torch.strided:
            raise _refused(name, f"is of the layout {tensor.layout}")
        if any(size > 1 and not stride for size, stride
               in zip(tensor.shape, tensor.stride())):
            raise _refused(name, "has elements that share memory: it is expanded")
        self.shape = tuple(tensor.shape)
        dtype = name_of_torch(tensor.dtype)
        self.casts = dtype != self.info.dtype
        if (
            tensor.device.type not in ("cpu", "cuda")
            or type(tensor) not in (torch.Tensor, torch.nn.Parameter)
            or not tensor.is_contiguous()
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            return
        if tensor.device.type == "cuda":
            self.is_storage_on_gpu = (
                dtype == self.info.dtype
                and not self.info.conjugate and not self.info.negative
                and self.info.offset == 0
                and tuple(self.info.strides) == dense_strides(self.info.shape)
            )
        elif _haulway.can_cast(self.info.dtype, dtype):
            self.direct = (tensor.data_ptr(), tensor.nbytes, dtype)

    def _look_at_array(self, name):
        numpy = imported("numpy")
        array = self.value
        if not isinstance(array, numpy.ndarray):
            raise _refused(
                name,
                f"is {type(array).__name__}: expected a tensor or an array",
            )
        if not array.flags.writeable:
            raise _refused(name, "cannot be written to")
        self.shape = array.shape
        stored = numpy_dtype(self.info.dtype)
        if not numpy.can_cast(stored, array.dtype, "same_kind"):
            raise _refused(
                name,
                f"is of {array.dtype}, to which NumPy casts no {stored}",
            )
        self.casts = array.dtype != stored
        if not array.flags.c_contiguous or not array.dtype.isnative:
            return
        dtype = name_of_numpy(array.dtype)
        if array.dtype == stored:
            # Includes dtypes that NumPy lacks: the bits are loaded unchanged.
            dtype = self.info.dtype
        if dtype is not None and _haulway.can_cast(self.info.dtype, dtype):
            address = array.__array_interface__["data"][0]
            self.direct = (address, array.nbytes, dtype)

    def memory(self):
        """Returns a key that is equal for targets with the same memory and
        layout."""
        if _is_torch(self.value):
            tensor = self.value
            return (
                str(tensor.device), tensor.data_ptr(), tensor.dtype,
                self.shape, tuple(tensor.stride()),
            )
        return ("numpy", self.value.__array_interface__["data"][0],
                self.value.dtype, self.shape, self.value.strides)

    def request(self, row):
        if self.direct is None:
            return TensorRequest(row)
        address, nbytes, dtype = self.direct
        return TensorRequest(row, dtype=dtype, address=address, nbytes=nbytes)

    def finish(self, memory):
        """Copies loaded memory to the target; without any, marks the target as
        modified."""
        if not _is_torch(self.value):
            if memory is not None:
                self._copy_array(memory)
            return
        torch = imported("torch")
        if memory is None:
            torch.autograd.graph.increment_version(self.value)
            return
        made = imported("haulway._torch.factory")
        info = self._dense_info()
        with torch.no_grad():
            loaded = made.tensor_over(made.storage_of(memory), info)
            self.value.copy_(loaded.reshape(self.shape))

    def _copy_array(self, memory):
        numpy = imported("numpy")
        loaded = make_array(self._dense_info(), memory)
        numpy.copyto(
            self.value, loaded.reshape(self.shape), casting="same_kind"
        )

    def _dense_info(self):
        return self.info._replace(
            offset=0,
            strides=dense_strides(self.info.shape),
            requires_grad=False,
        )


def _is_torch(value):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _refused(name, why):
    return InvalidArgumentError(f"target {name!r} {why}", "kInvalidArgument")


def _targets_of(target):
    """Returns (tensors by name, name of the target for messages)."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.nn.Module):
        named = target.state_dict(keep_vars=True)
        for name, value in named.items():
            if not isinstance(value, torch.Tensor):
                raise UnsupportedError(
                    f"module has the extra state {name!r}, which is no tensor",
                    "kUnsupported",
                )
        return dict(named), type(target).__name__
    if isinstance(target, Mapping):
        return dict(target), None
    raise ArgumentTypeError(
        "target is "
        f"{type(target).__name__}: expected a torch module, or a dict of "
        "tensors or arrays",
        "kInvalidArgument",
    )


def _fits(shape, wanted):
    # Like torch, accept a vector of one element for a scalar: torch 0.3 saved
    # scalars so.
    return shape == wanted or (wanted == () and shape == (1,))


def _complaint(problems, called):
    """Returns torch's error message, because users search for its words."""
    of = "the target" if called is None else called
    return "Error(s) in loading state_dict for {}:\n\t{}".format(
        of, "\n\t".join(problems)
    )


@reads(READING)
def load_into(target, path, strict=True, *, prefix="", **options):
    """Loads tensors into the memory of existing tensors.

    target: a torch module, whose parameters and persistent buffers are filled,
        or a dict of tensors or NumPy arrays by name.
    path: as for load(). Its tensors have the names that open() gives.
    strict: raise LoadIntoError unless the names are the same.
    prefix: use only names that begin with this prefix, and remove it: "model."
        for a training checkpoint that holds {"model": state_dict, ...}.
    OPTIONS

    Returns IncompatibleKeys(missing_keys, unexpected_keys), as torch's
    load_state_dict() does. Shapes must agree, even if strict is False. Elements
    are cast to the target's dtype while they are read, as tensor.copy_() does.
    A name that the file lacks does not count as missing if it shares its memory
    with another tensor that is loaded (some formats keep only one of tied
    parameters). Names and shapes are checked before anything is read; an error
    while reading leaves the target partly loaded. Hooks of modules are not
    called. Raises Error.
    """
    strict, prefix = check_flag("strict", strict), text("prefix", prefix)
    values, called = _targets_of(target)
    reading = Reading("load_into", options)
    reading.usual_scope = "all"
    core = reading.open(path)
    found = {
        name[len(prefix) :]: (row, info)
        for name, row, info in choose(core)
        if name.startswith(prefix)
    }
    places, problems = {}, []
    for name, value in values.items():
        if name not in found:
            continue
        row, info = found[name]
        if info.storage is None:
            raise InvalidArgumentError(
                f"tensor {name!r} is on the meta device: it has no data",
                "kInvalidArgument",
            )
        place = _Place(value, name, info)
        if place.casts:
            core.check_cast(row)
        if not _fits(tuple(info.shape), place.shape):
            problems.append(
                f"size mismatch for {name}: copying a param with shape "
                f"{_size(info.shape)} from checkpoint, the shape in current "
                f"model is {_size(place.shape)}."
            )
        places[name] = (row, place)
    missing = _missing(values, places)
    unexpected = [name for name in found if name not in values]
    if strict:
        # In torch's order: missing keys come first.
        if unexpected:
            problems.insert(0, _keys("Unexpected", unexpected))
        if missing:
            problems.insert(0, _keys("Missing", missing))
    if problems:
        raise LoadIntoError(
            _complaint(problems, called), "kInvalidArgument",
            missing_keys=missing, unexpected_keys=unexpected,
        )
    # Targets with the same memory are filled once, with the last name's tensor.
    unique = {place.memory(): (row, place) for row, place in places.values()}
    unique = _without_gpus(core, unique, reading)
    memories = reading.tensors(
        core, [place.request(row) for row, place in unique.values()]
    )
    for (_, place), memory in zip(unique.values(), memories):
        place.finish(memory)
    return IncompatibleKeys(missing, unexpected)


def _without_gpus(core, unique, reading):
    """Loads the targets that can be filled on a GPU directly; returns the
    others."""
    by_device, others = {}, {}
    for key, (row, place) in unique.items():
        storage = place.info.storage
        if (
            place.is_storage_on_gpu
            and core.storage(storage).nbytes == place.value.nbytes
        ):
            rows, tensors = by_device.setdefault(place.value.device, ([], []))
            rows.append(storage)
            tensors.append(place.value)
        else:
            others[key] = (row, place)
    for device, (rows, tensors) in by_device.items():
        with importing:
            import torch

            from .._torch.device import load_into as fill

        fill(core, rows, tensors, device, reading)
        for tensor in tensors:
            torch.autograd.graph.increment_version(tensor)
    return others


def _missing(values, places):
    loaded = {place.memory() for _, place in places.values()}
    missing = []
    for name, value in values.items():
        if name in places:
            continue
        if _is_torch(value) and not value.is_meta and value.numel() > 0:
            memory = (
                str(value.device), value.data_ptr(), value.dtype,
                tuple(value.shape), tuple(value.stride()),
            )
            if memory in loaded:
                continue
        missing.append(name)
    return missing


def _keys(kind, names):
    listed = ", ".join(f'"{name}"' for name in names)
    return f"{kind} key(s) in state_dict: {listed}. "


def _size(shape):
    return f"torch.Size({list(shape)})"


public("haulway", IncompatibleKeys)
