"""Writes items of tensors and plain values without a pickle, and reads them.

docs/arena.md describes the layout; haulway/items.h is the C++ side.
"""

from __future__ import annotations

import functools
import struct
import sys

from .._dtype_table import TABLE
from .._haulway import memory_at
from .._importing import imported
from .._making.dtypes import numpy_dtype

_NONE, _FALSE, _TRUE, _INTEGER, _FLOAT, _TEXT = 0, 1, 2, 3, 4, 5
_BYTES, _LIST, _TUPLE, _DICT, _TENSOR = 6, 7, 8, 9, 10
_OF_NUMPY, _OF_TORCH, _READ_ONLY, _REQUIRES_GRAD = 1, 2, 4, 8
_PART_BYTES, _PART_BYTEARRAY = 2, 4
_DEEPEST = 100

# From dtype names of NumPy and torch to Haulway's.
_NAMES = {
    row.torch_name: row.name for row in TABLE.values()
    if row.in_numpy or row.kind == "complex"
}


class _Dump:
    """Writes one item to an encoder."""

    def __init__(self, encoder):
        self.encoder = encoder
        self.body = bytearray()

    def refuse(self, obj, path, why="cannot go without a pickle"):
        raise TypeError(f"item{path} is {type(obj).__qualname__}, which {why}")

    def value(self, obj, path, depth):
        body = self.body
        cls = type(obj)
        if depth > _DEEPEST:
            self.refuse(obj, path, f"is more than {_DEEPEST} deep")
        if obj is None:
            body.append(_NONE)
        elif cls is bool:
            body.append(_TRUE if obj else _FALSE)
        elif cls is int:
            if not -(1 << 63) <= obj < 1 << 63:
                self.refuse(obj, path, "does not fit into 64 bits")
            body += struct.pack("<Bq", _INTEGER, obj)
        elif cls is float:
            body += struct.pack("<Bd", _FLOAT, obj)
        elif cls is str:
            try:
                text = obj.encode()
            except UnicodeEncodeError:
                self.refuse(obj, path, "has surrogates, which UTF-8 has not")
            body += struct.pack("<BI", _TEXT, len(text))
            body += text
        elif cls is bytes or cls is bytearray:
            flag = _PART_BYTES if cls is bytes else _PART_BYTEARRAY
            body += struct.pack("<BI", _BYTES, self.encoder.add_part(obj, flag))
        elif cls is list or cls is tuple:
            body += struct.pack("<BI", _LIST if cls is list else _TUPLE, len(obj))
            for i, each in enumerate(obj):
                self.value(each, f"{path}[{i}]", depth + 1)
        elif cls is dict:
            body += struct.pack("<BI", _DICT, len(obj))
            for key, each in obj.items():
                if type(key) not in (str, int):
                    self.refuse(key, path, "cannot be a key without a pickle")
                self.value(key, path, depth + 1)
                self.value(each, f"{path}[{key!r}]", depth + 1)
        else:
            self.tensor(obj, path)

    def tensor(self, obj, path):
        cls = type(obj)
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and cls is numpy.ndarray:
            self.array(obj, path)
        elif torch is not None and cls in (torch.Tensor, torch.nn.Parameter):
            self.torch_tensor(obj, path, torch)
        else:
            self.refuse(obj, path)

    def array(self, obj, path):
        numpy = imported("numpy")
        name = _NAMES.get(obj.dtype.name)
        if name is None or not obj.dtype.isnative:
            self.refuse(obj, path, f"of {obj.dtype} cannot go without a pickle")
        item = obj.dtype.itemsize
        flags = _OF_NUMPY | (0 if obj.flags.writeable else _READ_ONLY)
        if not obj.flags.forc:
            obj = numpy.ascontiguousarray(obj)
        flat = obj.ravel(order="K").view(numpy.uint8)
        # A stride that no element needs may be anything.
        strides = [
            stride // item if size > 1 and obj.size else 1
            for size, stride in zip(obj.shape, obj.strides)
        ]
        self.place(flat, name, flags, 0, obj.shape, strides)

    def torch_tensor(self, obj, path, torch):
        name = _NAMES.get(str(obj.dtype)[6:])
        if (
            name is None or obj.layout is not torch.strided
            or obj.device.type != "cpu" or obj.is_nested
        ):
            self.refuse(obj, path, "of this kind cannot go without a pickle")
        flags = _OF_TORCH | (_REQUIRES_GRAD if obj.requires_grad else 0)
        tensor = obj.detach().resolve_conj().resolve_neg()
        shape, strides = tuple(tensor.shape), tensor.stride()
        item = tensor.element_size()
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides))
        if 0 in shape:
            return self.place(b"", name, flags, 0, shape, strides)
        if extent > 2 * tensor.numel():
            tensor = tensor.contiguous()
            strides, extent = tensor.stride(), tensor.numel()
        memory = memory_at(tensor.data_ptr(), extent * item, tensor)
        self.place(memory, name, flags, 0, shape, strides)

    def place(self, memory, name, flags, offset, shape, strides):
        text = name.encode()
        part = self.encoder.add_part(memory, 0)
        self.body += struct.pack(
            f"<BIQBBB{len(text)}s{2 * len(shape)}Q", _TENSOR, part, offset,
            flags, len(shape), len(text), text, *shape, *strides,
        )


def dump_item(encoder, item):
    dump = _Dump(encoder)
    dump.value(item, "", 0)
    encoder.append(dump.body)


def equip_for_items(encoder):
    """Makes the encoder write items without a pickle."""
    encoder.write_items()
    encoder.set_pickler(functools.partial(dump_item, encoder), encoder.clear)
    return encoder


def load_tensor(memory, name, flags, offset, shape, strides):
    """Returns a tensor over the bytes of a part: torch's or NumPy's, as it was
    sent."""
    view = memoryview(memory)[offset:]
    is_numpy = flags & _OF_NUMPY or TABLE[name].in_numpy == "itself"
    if flags & _OF_TORCH or not is_numpy:
        torch = imported("torch")
        dtype = getattr(torch, TABLE[name].torch_name)
        if 0 in shape:
            tensor = torch.empty_strided(shape, strides, dtype=dtype)
        else:
            usable = len(view) // dtype.itemsize * dtype.itemsize
            flat = torch.frombuffer(view[:usable], dtype=torch.uint8)
            tensor = flat.view(dtype).as_strided(shape, strides)
        return tensor.requires_grad_() if flags & _REQUIRES_GRAD else tensor
    numpy = imported("numpy")
    dtype = numpy_dtype(name)
    array = numpy.ndarray(
        shape, dtype, view if 0 not in shape else None,
        strides=[stride * dtype.itemsize for stride in strides],
    )
    if flags & _READ_ONLY:
        array.flags.writeable = False
    return array
