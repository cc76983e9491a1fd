"""Tensors at addresses as the bytes of a safetensors file, and back."""

from __future__ import annotations

import functools
import math
import operator
import os

from .. import _haulway
from .._config import for_saving
from .._errors import Error
from .._reading.remote import target_of
from .._reading.signed import refuse_unsigned
from ._dtypes import BITS, ORDER, PACKED, in_files, of_program
from ._errors import SafetensorError, as_ours, not_text, written
from ._header import header_shape, parsed_header, refusal_of


def _unsigned(value):
    value = operator.index(value)
    if value < 0:
        raise OverflowError("can't convert negative int to unsigned")
    if value >= 2**64:
        raise OverflowError("int too big to convert")
    return value


class TensorSpec:
    """A tensor to write: bytes at an address, which the caller keeps alive.

    dtype: as named by torch and NumPy, "float32"; the attribute is the file's
        name for it.
    shape: in elements, but in pairs for float4_e2m1fn_x2; the attribute counts
        elements.

    data_ptr, data_len: the address, and the number of bytes there.

    A plain value: threads may share one. Raises OverflowError for numbers
    below 0, and TypeError.
    """

    __slots__ = ("_dtype", "_shape", "_data_ptr", "_data_len")

    def __init__(self, *, dtype, shape, data_ptr, data_len):
        if not isinstance(dtype, str):
            raise not_text(dtype)
        self._dtype = of_program(dtype)
        self._shape = [_unsigned(size) for size in shape]
        if self._dtype == "F4" and self._shape:
            self._shape[-1] *= 2
        self._data_ptr = _unsigned(data_ptr)
        self._data_len = _unsigned(data_len)

    dtype = property(
        lambda self: self._dtype, doc="The dtype by its name in files, \"F32\"."
    )
    shape = property(
        lambda self: list(self._shape), doc="The shape, a list."
    )
    data_ptr = property(lambda self: self._data_ptr, doc="The address.")
    data_len = property(
        lambda self: self._data_len, doc="The number of bytes there."
    )

    def __repr__(self):
        return (
            f"TensorSpec(dtype='{self.dtype}', shape={self.shape}, "
            f"data_ptr={self.data_ptr}, data_len={self.data_len})"
        )


def serialize(tensor_dict, metadata=None):
    """Returns the bytes of a safetensors file.

    tensor_dict: a dict of TensorSpecs by name; their memory must stay as it is
        until this returns.
    metadata: a dict of strings.

    Raises SafetensorError for a dtype, shape or size that contradict one
    another.
    """
    rows = _rows(tensor_dict)
    with_metadata = _text(metadata)
    try:
        return _haulway.tensors_as_bytes("safetensors", rows, with_metadata)
    except Error as error:
        raise written(error) from error


def serialize_file(tensor_dict, filename, metadata=None):
    """Writes a safetensors file.

    tensor_dict, metadata: as for serialize().
    filename: a path. An existing file is replaced in one step when everything
        is written, and keeps its mode; a new file has the mode that the umask
        gives. A link to a file is replaced, not followed.

    Raises SafetensorError, also if the file cannot be written.
    """
    rows = _rows(tensor_dict)
    with_metadata = _text(metadata)
    path = os.fsdecode(os.fspath(filename))
    try:
        _haulway.write_tensors(
            target_of(path), "safetensors", rows, with_metadata,
            for_saving("safetensors"), None, replaces_link=True,
        )
    except Error as error:
        raise written(error, path) from error


def deserialize(bytes):
    """Returns the tensors in the bytes of a file: pairs of a name and a dict
    of "shape", "dtype" and "data", a bytearray.

    Raises SafetensorError for bytes of another format.
    """
    core = open_bytes(bytes)
    header = functools.cache(lambda: parsed_header(core))
    items = []
    for name, row in zip(core.names(), core.rows()):
        info = core.tensor(row)
        memory = core.read_storage(info.storage)[0]
        items.append((name, {
            "shape": header_shape(name, info, header),
            "dtype": in_files(info.dtype),
            "data": bytearray(memory),
        }))
    return items


def open_bytes(data):
    """Opens the bytes of a file as a Checkpoint."""
    refuse_unsigned("bytes in memory")
    source = _haulway.bytes_source(data, "memory")
    try:
        return _haulway.open_safetensors(source)
    except Error as error:
        refusal = refusal_of(source, error)
        raise as_ours(error, f"Error while deserializing: {refusal}") from error


def _rows(tensor_dict):
    """Returns the library's arguments, checked as the package does."""
    for given_as, kind in (
        ({"tensor_dict": tensor_dict}, dict), (tensor_dict, TensorSpec),
    ):
        for value in given_as.values():
            if not isinstance(value, kind):
                raise TypeError(
                    f"'{type(value).__name__}' object is not an instance of "
                    f"'{kind.__name__}'"
                )
    for name in tensor_dict:
        if not isinstance(name, str):
            raise not_text(name)
    rows = []
    ordered = sorted(
        tensor_dict.items(),
        key=lambda pair: (-ORDER[pair[1]._dtype], pair[0]),
    )
    for name, spec in ordered:
        dtype, shape = spec._dtype, spec._shape
        bits = BITS[dtype]
        product = 1
        for size in (*shape, bits):
            product *= size
            if product >= 2**64:
                raise SafetensorError(
                    "Error while serializing: overflow computing buffer size "
                    "from shape and/or element type"
                )
        if product % 8:
            raise SafetensorError(
                "Error while serializing: The slice is slicing for subbytes "
                "dtypes, and the slice does not end up at a byte boundary, "
                "this is invalid."
            )
        if product // 8 != spec._data_len:
            raise SafetensorError(
                "Error while serializing: invalid shape, data type, or offset "
                "for tensor"
            )
        if dtype in PACKED:
            dtype, count = PACKED[dtype]
            if not shape or shape[-1] % count:
                shape = [math.prod(shape) // count]
            else:
                shape = [*shape[:-1], shape[-1] // count]
        memory = (spec, spec._data_ptr, spec._data_len)
        rows.append((name, dtype, tuple(shape), memory))
    return rows


def _text(metadata):
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise TypeError(
            f"'{type(metadata).__name__}' object is not an instance of 'dict'"
        )
    for text in (*metadata, *metadata.values()):
        if not isinstance(text, str):
            raise not_text(text)
    return metadata
