"""NumPy arrays in safetensors files, by the names of safetensors.numpy.

Any thread may call the functions of this module at any time, unless a
docstring says otherwise.
"""

from __future__ import annotations

import numpy as np

from .._writing.dense import memory_of, row_major_array
from ._dtypes import check
from ._file import safe_open
from ._serialize import TensorSpec, deserialize, serialize, serialize_file

__all__ = ["load", "load_file", "save", "save_file"]


def save(tensor_dict, metadata=None):
    """Returns the bytes of a safetensors file of arrays by name.

    tensor_dict: arrays of any strides and byte order.
    metadata: a dict of strings.

    Raises SafetensorError for a dtype that files cannot hold.
    """
    kept = []
    return serialize(_flatten(tensor_dict, kept), metadata=metadata)


def save_file(tensor_dict, filename, metadata=None):
    """Writes a safetensors file.

    tensor_dict, metadata: as for save().
    filename: a path.

    Raises SafetensorError if the file cannot be written, and what save()
    raises.
    """
    kept = []
    serialize_file(_flatten(tensor_dict, kept), filename, metadata=metadata)


def load(data):
    """Returns the arrays by name in `data`, the bytes of a file. Raises
    SafetensorError for bytes of another format.
    """
    return _view2np(deserialize(data))


def load_file(filename, *, backend="mmap"):
    """Returns the arrays by name of a file.

    filename: a path or URL.
    backend: how it is read; see safe_open.

    Raises SafetensorError for a file of another format, and FileNotFoundError.
    """
    with safe_open(filename, framework="np", backend=backend) as file:
        return file.get_tensors()


_TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "U64": np.uint64,
    "I32": np.int32,
    "U32": np.uint32,
    "I16": np.int16,
    "U16": np.uint16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": bool,
    "C64": np.complex64,
}


def _getdtype(dtype_str):
    if dtype_str in _TYPES:
        return _TYPES[dtype_str]
    try:
        return check(np, dtype_str)  # Includes dtypes of ml_dtypes.
    except Exception:
        raise KeyError(dtype_str) from None


def _flatten(tensor_dict, keep_alive_buffer):
    """Returns TensorSpecs by name for arrays; appends needed copies to the
    buffer."""
    specs = {}
    for name, array in tensor_dict.items():
        array_dtype = array.dtype
        dense = row_major_array(array)
        keep_alive_buffer.append(dense)
        _, address, nbytes = memory_of(dense)
        specs[name] = TensorSpec(
            dtype=array_dtype.name,
            shape=dense.shape,
            data_ptr=address,
            data_len=nbytes,
        )
    return specs


def _view2np(safeview):
    return {
        name: np.frombuffer(view["data"], dtype=_getdtype(view["dtype"]))
        .reshape(view["shape"])
        for name, view in safeview
    }


def _is_little_endian(tensor):
    order = tensor.dtype.byteorder
    if order not in "=|<>":
        raise ValueError(f"Unexpected byte order {order}")
    return order != ">"
