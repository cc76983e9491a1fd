"""Parts of tensors: what an index means, and reading only that."""

from __future__ import annotations

import operator
from typing import NamedTuple

from . import _haulway
from ._objects import dense_strides


class Selection(NamedTuple):
    """What an index selects of a shape.

    slices: (start, stop, step) of every dimension that is read.
    counts: how many indices each of them holds.
    repeats: of each dimension, 0 if it was read, else how often its one index
        is repeated: it has stride 0 in the file.
    axes: of the result, the dimension that each one is, or None for a new one.
    """

    slices: list
    counts: list
    repeats: list
    axes: list


def select(index, shape, strides):
    """The Selection, or None for an index that is not a basic one.

    Numbers, slices with any step, `...` and None mean what they mean to NumPy.
    Raises IndexError as NumPy does.
    """
    parts = _parts(index, len(shape))
    if parts is None:
        return None
    slices, counts, repeats, axes = [], [], [], []
    for part in parts:
        if part is None:
            axes.append(None)
            continue
        dim = len(slices)
        size = shape[dim]
        if isinstance(part, slice):
            start, stop, step = part.indices(size)
            count = len(range(start, stop, step))
            axes.append(dim)
        else:
            number = operator.index(part)
            start = number + size if number < 0 else number
            if not 0 <= start < size:
                raise IndexError(
                    f"index {number} is out of bounds for axis {dim} with "
                    f"size {size}"
                )
            count = 1
        repeat = 0
        if count > 1 and strides[dim] == 0:
            repeat, count = count, 1
        if count < 2:
            # Steps may be larger than any number that a tensor needs.
            start = start if count else 0
            stop, step = start + count, 1
        slices.append((start, stop, step))
        counts.append(count)
        repeats.append(repeat)
    return Selection(slices, counts, repeats, axes)


def _parts(index, rank):
    """One number or slice for each dimension, and None for new ones."""
    given = index if isinstance(index, tuple) else (index,)
    parts = []
    has_ellipsis = False
    for part in given:
        if part is Ellipsis:
            if has_ellipsis:
                raise IndexError(
                    "an index can only have a single ellipsis ('...')"
                )
            has_ellipsis = True
        elif part is not None and not isinstance(part, slice):
            # Arrays, lists and booleans select in other ways.
            is_truth = isinstance(part, bool) or str(
                getattr(part, "dtype", "")
            ).endswith("bool")
            if is_truth or len(getattr(part, "shape", ())) > 0:
                return None
            if not hasattr(part, "__index__"):
                return None
        parts.append(part)
    named = sum(part is not None and part is not Ellipsis for part in parts)
    if named > rank:
        raise IndexError(
            f"too many indices: the tensor is {rank}-dimensional, but "
            f"{named} were indexed"
        )
    whole = [slice(None)] * (rank - named)
    at = parts.index(Ellipsis) if has_ellipsis else len(parts)
    return parts[:at] + whole + parts[at + has_ellipsis :]


class TensorSlice:
    """A tensor in a file, read when it is indexed."""

    def __init__(self, checkpoint, row, info):
        self._checkpoint = checkpoint
        self._row = row
        self._info = info

    @property
    def shape(self):
        return self._info.shape

    @property
    def dtype(self):
        return self._info.dtype

    def get_shape(self):
        return list(self._info.shape)

    def get_dtype(self):
        return self._info.dtype

    def __getitem__(self, index):
        """The part that NumPy's indexing means; a copy of its own.

        Of numbers, slices (of any step), `...` and None only the elements
        between holes of less than 64 KiB are read; any other index is applied
        to the whole tensor. What is repeated in memory (a dimension of stride
        0) is read once, and repeated in memory again.
        """
        info = self._info
        if info.storage is None:
            return self._checkpoint._from_meta(info)[index]
        selection = select(index, info.shape, info.strides)
        if selection is None or overlaps(info, selection):
            return self._whole()[index]
        memories, stats = _haulway.load_tensors(
            self._checkpoint._open(),
            [(self._row, selection.slices, None, None, None, 0)],
        )
        self._checkpoint._count(stats)
        return self._checkpoint._make(
            selected_info(info, selection), memories[0]
        )

    def _whole(self):
        return self._checkpoint._read(self._info)


def selected_info(info, selection):
    """The TensorInfo of a selection over dense memory that holds it."""
    shape, strides = [], []
    dense = dense_strides(selection.counts)
    for dim in selection.axes:
        if dim is None:
            shape.append(1)
            strides.append(1)
        elif selection.repeats[dim]:
            shape.append(selection.repeats[dim])
            strides.append(0)
        else:
            shape.append(selection.counts[dim])
            strides.append(dense[dim])
    count = _product(info.shape)
    item = info.nbytes // count if count else 1
    return info._replace(
        offset=0,
        shape=tuple(shape),
        strides=tuple(strides),
        nbytes=_product(shape) * item,
    )


def overlaps(info, selection):
    """Whether the copy would be larger than what it is a copy of.

    Such a tensor is a view of elements that it reaches in several ways, and a
    few bytes in a file could ask for any amount of memory.
    """
    reach = 1
    for count, stride, (_, _, step) in zip(
        selection.counts, info.strides, selection.slices
    ):
        reach += max(count - 1, 0) * stride * abs(step)
    return _product(selection.counts) > reach


def _product(numbers):
    product = 1
    for number in numbers:
        product *= number
    return product
