"""Tensors and arrays as the bytes that flat formats hold."""

from __future__ import annotations


def row_major(tensor):
    """A torch tensor's values on the CPU, dense, in row-major order: itself
    where it is so."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def row_major_array(array):
    """A NumPy array's values, dense, in row-major order and this machine's
    byte order: itself where it is so."""
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
