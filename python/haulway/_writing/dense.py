"""Tensors and arrays as the bytes that flat formats hold."""

from __future__ import annotations

from .. import _haulway


def row_major(tensor):
    """A torch tensor's values on the CPU, dense, in row-major order: the tensor
    itself if it already is so."""
    if tensor.is_cpu and tensor.is_contiguous() and not (
            tensor.is_conj() or tensor.is_neg()):
        return tensor
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def row_major_array(array):
    """A NumPy array's values, dense, in row-major order and this machine's
    byte order: the array itself if it already is so."""
    import numpy

    array = numpy.asarray(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.c_contiguous:
        array = array.copy(order="C")
    return array


def memory_of(dense):
    """(owner, address, bytes) of what one of the above returned."""
    if hasattr(dense, "data_ptr"):
        return dense, dense.data_ptr(), dense.numel() * dense.element_size()
    return dense, dense.__array_interface__["data"][0], dense.nbytes


def snapshot(memories, leaves, threads):
    """The same, but memory that is a leaf's own is copied, on several threads
    at once: what happens to the leaf later does not matter.

    memories: what memory_of() said of each leaf, or None.
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
