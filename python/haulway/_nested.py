"""Checks where the components of a nested tensor are placed."""

from ._errors import CorruptError


def check_components(elements, sizes, strides, offsets):
    """Raises CorruptError if a component exceeds a buffer of `elements`.

    sizes and strides: a list of numbers for each component.
    """
    for size, stride, offset in zip(sizes, strides, offsets):
        if min([*size, *stride, offset]) < 0:
            raise CorruptError(
                "nested tensor: a size, stride or offset is negative",
                "kCorrupt",
            )
        if 0 in size:
            continue
        end = offset + sum((n - 1) * s for n, s in zip(size, stride)) + 1
        if end > elements:
            raise CorruptError(
                f"nested tensor: a component ends past its buffer: expected "
                f"at most {elements} elements, found {end}",
                "kCorrupt",
            )
