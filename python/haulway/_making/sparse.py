"""Checks the invariants of sparse and nested tensors on NumPy arrays.

Without torch, a sparse tensor is returned as its parts, and a program that uses
them as indices must be able to trust them.
"""

import numpy

from .._errors import CorruptError
from .._nested import check_components

# For each layout: the names of its index arrays, the dimension that it
# compresses (-2 is rows), and whether values are blocks.
_COMPRESSED = {
    "torch.sparse_csr": ("crow_indices", "col_indices", -2, False),
    "torch.sparse_bsr": ("crow_indices", "col_indices", -2, True),
    "torch.sparse_csc": ("ccol_indices", "row_indices", -1, False),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", -1, True),
}


def _check(holds, what):
    if not holds:
        raise CorruptError(f"sparse tensor: {what}", "kCorrupt")


def _arrays(parts, names):
    for part, name in zip(parts, names):
        _check(isinstance(part, numpy.ndarray), f"{name} is not a tensor")


def _sizes(size):
    _check(
        isinstance(size, tuple)
        and all(type(n) is int and n >= 0 for n in size),
        "size is not a tuple of numbers from 0",
    )


def _inside(indices, size, name):
    """Checks that `indices` are in [0, size); `size` broadcasts."""
    if indices.size == 0:
        return
    _check(int(indices.min()) >= 0, f"{name} has a negative index")
    _check(
        bool((indices < size).all()),
        f"{name} has an index past the end: expected below {size}, "
        f"found up to {int(indices.max())}",
    )


def check_sparse(layout, data):
    """Raises CorruptError if `data` is not a valid tensor of `layout`.

    data: the arguments of torch._utils._rebuild_sparse_tensor.
    """
    if not isinstance(data, tuple):
        raise CorruptError("sparse tensor: parts are not a tuple", "kCorrupt")
    if layout == "torch.sparse_coo":
        _check(len(data) in (3, 4), "expected 3 or 4 parts")
        _check_coo(*data)
    else:
        _check(layout in _COMPRESSED, f"layout {layout!r} is not known")
        _check(len(data) == 4, "expected 4 parts")
        _check_compressed(_COMPRESSED[layout], *data)


def _check_coo(indices, values, size, is_coalesced=None):
    _arrays((indices, values), ("indices", "values"))
    _sizes(size)
    _check(indices.ndim == 2, "indices are not a matrix")
    _check(indices.dtype == numpy.int64, "indices are not int64")
    dims, count = indices.shape
    _check(
        values.ndim >= 1 and len(values) == count,
        f"expected {count} values, found {len(values) if values.ndim else 0}",
    )
    _check(
        dims + values.ndim - 1 == len(size)
        and values.shape[1:] == size[dims:],
        "values do not have the shape that size wants",
    )
    for row, length in zip(indices, size):
        _inside(row, length, "indices")
    if is_coalesced and count > 1:
        # Lexicographic order: where all earlier coordinates are equal, the next
        # one must ascend.
        equal = numpy.ones(count - 1, bool)
        for row in indices:
            _check(
                not bool((equal & (row[1:] < row[:-1])).any()),
                "indices are not sorted, though said to be coalesced",
            )
            equal &= row[1:] == row[:-1]
        _check(
            not bool(equal.any()),
            "indices repeat, though said to be coalesced",
        )


def _check_compressed(kind, compressed, plain, values, size):
    compressed_name, plain_name, dimension, blocked = kind
    _arrays(
        (compressed, plain, values), (compressed_name, plain_name, "values")
    )
    _sizes(size)
    for part, name in ((compressed, compressed_name), (plain, plain_name)):
        _check(
            part.dtype in (numpy.int32, numpy.int64),
            f"{name} is not int32 or int64",
        )
    _check(compressed.dtype == plain.dtype, "index arrays differ in dtype")
    _check(compressed.ndim >= 1, f"{compressed_name} has no dimension")
    batch = compressed.shape[:-1]
    blocks = 2 if blocked else 0
    _check(
        plain.ndim == compressed.ndim and plain.shape[:-1] == batch,
        "index arrays differ in batch dimensions",
    )
    dims = len(batch)
    _check(
        len(size) >= dims + 2
        and values.ndim == dims + 1 + blocks + (len(size) - dims - 2)
        and values.shape[: dims + 1] == plain.shape
        and values.shape[dims + 1 + blocks:] == size[dims + 2:]
        and size[:dims] == batch,
        "parts do not have the shapes that size wants",
    )
    block = values.shape[dims + 1 : dims + 3] if blocked else (1, 1)
    matrix = size[dims : dims + 2]
    _check(
        all(b > 0 and n % b == 0 for n, b in zip(matrix, block)),
        "blocks do not fill the size",
    )
    rows, columns = (n // b for n, b in zip(matrix, block))
    if dimension == -1:
        rows, columns = columns, rows
    count = plain.shape[-1]
    _check(
        compressed.shape[-1] == rows + 1,
        f"{compressed_name}: expected {rows + 1} numbers, "
        f"found {compressed.shape[-1]}",
    )
    _check(
        bool((compressed[..., 0] == 0).all()),
        f"{compressed_name} does not begin with 0",
    )
    _check(
        bool((compressed[..., -1] == count).all()),
        f"{compressed_name} does not end with {count}",
    )
    _inside(compressed, count + 1, compressed_name)
    steps = numpy.diff(compressed.astype(numpy.int64), axis=-1)
    _check(
        bool(((steps >= 0) & (steps <= columns)).all()),
        f"{compressed_name} has a step below 0 or above {columns}",
    )
    _inside(plain, columns, plain_name)
    if plain.size == 0:
        return
    # Within a row, indices must ascend; `compressed` tells where a row begins.
    for row, starts in zip(
        plain.reshape(-1, count), compressed.reshape(-1, rows + 1)
    ):
        falls = numpy.flatnonzero(row[1:] <= row[:-1]) + 1
        _check(
            bool(numpy.isin(falls, starts).all()),
            f"{plain_name} are not sorted, or repeat, in a row",
        )


def check_nested(parts):
    """Raises CorruptError if a nested tensor exceeds its buffer.

    parts: buffer, sizes, strides and storage offsets.
    """
    _check(len(parts) == 4, "a nested tensor has 4 parts")
    _arrays(parts[:3], ("buffer", "sizes", "strides"))
    buffer, sizes, strides, offsets = parts
    if not isinstance(offsets, numpy.ndarray):
        offsets = numpy.asarray(offsets)
    _check(buffer.ndim == 1, "buffer of a nested tensor is not flat")
    if offsets.size == 0:
        return  # The tensor has no components.
    for part in (sizes, strides, offsets):
        _check(
            part.dtype == numpy.int64 or part.size == 0,
            "nested sizes are not int64",
        )
    _check(
        sizes.ndim == 2
        and sizes.shape == strides.shape
        and offsets.shape == sizes.shape[:1],
        "nested sizes, strides and offsets differ in length",
    )
    check_components(
        buffer.size, sizes.tolist(), strides.tolist(), offsets.tolist()
    )
