"""Converts tensors and arrays to the bytes that flat formats hold."""

from __future__ import annotations

from .. import _haulway
from .._errors import UnsupportedError
from .._importing import imported

# Formats whose tensors may lack data.
_NO_DATA = frozenset(row.name for row in _haulway.formats() if row.no_data)


def check_tensor(name, tensor, holder, format=None):
    """Raises UnsupportedError unless the elements of a torch tensor are dense
    and in memory of its own, or it has none and the format allows that.

    name: as messages show it.
    holder: what cannot hold it: "npz files".
    format: the name of the format, if it is known.
    """
    cls = type(tensor)
    found = None
    if hasattr(cls, "full_tensor"):
        found = (f"{cls.__name__}, of which each process has a part: save what "
                 "its full_tensor() returns")
    elif hasattr(cls, "__tensor_flatten__"):
        found = (f"{cls.__name__}, whose elements are in other tensors, which "
                 f"{holder} cannot hold: save a plain tensor")
    elif str(tensor.layout) != "torch.strided":
        found = f"sparse tensor, which {holder} cannot hold"
    elif tensor.is_quantized:
        found = f"quantized tensor, which {holder} cannot hold"
    elif tensor.is_meta and format not in _NO_DATA:
        found = "meta tensor, which has no data"
    if found is not None:
        raise UnsupportedError(f"{name} is a {found}", "kUnsupported")


def row_major(tensor):
    """Returns a torch tensor's values on the CPU, dense and row-major: the
    tensor itself if it already is."""
    if tensor.is_cpu and tensor.is_contiguous() and not (
            tensor.is_conj() or tensor.is_neg()):
        return tensor
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def row_major_array(array):
    """Returns a NumPy array's values, dense, row-major and in native byte
    order: the array itself if it already is."""
    numpy = imported("numpy")
    array = numpy.asarray(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.c_contiguous:
        array = array.copy(order="C")
    return array


def memory_of(dense):
    """Returns (owner, address, bytes) of a result of the functions above."""
    if hasattr(dense, "data_ptr"):
        return dense, dense.data_ptr(), dense.numel() * dense.element_size()
    return dense, dense.__array_interface__["data"][0], dense.nbytes


def snapshot(memories, leaves, threads):
    """Returns `memories` with copies of the memory that leaves themselves own,
    made by several threads. Later changes of the leaves have no effect.

    memories: the result of memory_of() for each leaf, or None.
    """
    own = [
        i
        for i, (memory, leaf) in enumerate(zip(memories, leaves))
        if memory is not None and memory[1] == _address(leaf)
    ]
    copies = _haulway.copy_memory([memories[i] for i in own], threads)
    memories = list(memories)
    for i, copy in zip(own, copies):
        memories[i] = copy
    return memories


def _address(leaf):
    if hasattr(leaf, "data_ptr"):
        return leaf.data_ptr()
    return leaf.__array_interface__["data"][0]
