"""Dicts of tensors as safetensors files."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from . import _haulway
from ._dense import memory_of, row_major, row_major_array
from ._dtypes import name_of_numpy
from ._errors import InvalidArgumentError, UnsupportedError


def save_safetensors(tensors, target, *, durability, threads, progress,
                     memory_budget=None, metadata=None, alignment=8):
    """Writes a dict of tensors to a path or by a function; see save()."""
    if not isinstance(tensors, Mapping):
        raise InvalidArgumentError(
            f"a safetensors file holds a dict of tensors: found "
            f"{type(tensors).__name__}",
            "kInvalidArgument",
        )
    if metadata is not None:
        _check_strings(metadata)
    torch = sys.modules.get("torch")
    if torch is not None:
        _refuse_shared_memory(torch, tensors)
    dense = [_dense(torch, name, value) for name, value in tensors.items()]
    return _haulway.write_safetensors(
        target, dense, metadata, alignment, durability, threads, progress,
        memory_budget,
    )


def _check_strings(metadata):
    for pair in metadata.items():
        if not all(isinstance(text, str) for text in pair):
            raise InvalidArgumentError(
                f"metadata holds {pair!r}: expected strings",
                "kInvalidArgument",
            )


def _dense(torch, name, value):
    """(name, dtype, shape, (owner, address, bytes)), row-major and dense."""
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f"a name is {name!r}: expected a string", "kInvalidArgument"
        )
    if torch is not None and isinstance(value, torch.Tensor):
        return _dense_tensor(torch, name, value)
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        return _dense_array(name, value)
    raise InvalidArgumentError(
        f"{name!r} is {type(value).__name__}: expected a tensor or an array",
        "kInvalidArgument",
    )


def _dense_tensor(torch, name, tensor):
    from ._torch_factory import name_of_dtype

    if tensor.layout != torch.strided:
        raise UnsupportedError(
            f"{name!r} is a sparse tensor, which safetensors cannot hold",
            "kUnsupported",
        )
    if tensor.is_meta:
        raise UnsupportedError(
            f"{name!r} is a meta tensor, which has no data", "kUnsupported"
        )
    memory = memory_of(row_major(tensor))
    return name, name_of_dtype(tensor.dtype), tuple(tensor.shape), memory


def _dense_array(name, array):
    dtype = name_of_numpy(array.dtype)
    if dtype is None:
        raise UnsupportedError(
            f"{name!r} has the dtype {array.dtype}, which safetensors cannot "
            "hold",
            "kUnsupported",
        )
    array = row_major_array(array)
    return name, dtype, array.shape, memory_of(array)


def _refuse_shared_memory(torch, tensors):
    """The file could not say that they do, and would hold the bytes twice."""
    spans = []
    for name, tensor in tensors.items():
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.layout != torch.strided
            or tensor.is_meta
            or tensor.numel() == 0
        ):
            continue
        last = sum(
            (size - 1) * stride
            for size, stride in zip(tensor.shape, tensor.stride())
        )
        begin = tensor.data_ptr()
        end = begin + (last + 1) * tensor.element_size()
        spans.append((str(tensor.device), begin, end, name))
    spans.sort()
    for before, after in zip(spans, spans[1:]):
        if before[0] == after[0] and after[1] < before[2]:
            raise InvalidArgumentError(
                f"{before[3]!r} and {after[3]!r} share memory, which "
                "safetensors cannot express: save one of them, or copies",
                "kInvalidArgument",
            )
