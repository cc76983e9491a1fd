"""Handles tensors that share memory, for formats that cannot express it."""

from __future__ import annotations

import sys

from .._errors import InvalidArgumentError


def _span_of_array(array):
    """Returns (device, begin, end) of an array's memory, or None if it has
    none."""
    if not isinstance(array, sys.modules["numpy"].ndarray):
        return None  # A scalar, which never shares memory.
    begin = array.__array_interface__["data"][0]
    low = high = 0
    for size, stride in zip(array.shape, array.strides):
        if size == 0:
            return None
        reach = (size - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return "", begin + low, begin + high + array.itemsize


def _span_of_tensor(torch, tensor):
    """Returns the same for a tensor."""
    if tensor.layout != torch.strided or tensor.is_meta:
        return None
    elements = tensor.numel()
    if elements == 0:
        return None
    if not tensor.is_contiguous():
        elements = 1 + sum(
            (size - 1) * stride
            for size, stride in zip(tensor.shape, tensor.stride())
        )
    begin = tensor.data_ptr()
    device = "" if tensor.is_cpu else str(tensor.device)
    return device, begin, begin + elements * tensor.element_size()


def _view_of(leaf):
    """Returns a key that is equal for equal views of the same memory."""
    if hasattr(leaf, "data_ptr"):
        bits = (leaf.is_conj(), leaf.is_neg())
        return (leaf.data_ptr(), leaf.dtype, tuple(leaf.shape), leaf.stride(),
                bits)
    begin = leaf.__array_interface__["data"][0]
    return begin, leaf.dtype.str, leaf.shape, leaf.strides


def settle(leaves, wish, format, name_of, arrays=True):
    """Decides about leaves that share memory. Returns (numbers to leave out,
    report).

    leaves: a list of tensors and arrays.
    wish: "copy": each leaf is stored in full. "drop": only the first of equal
        leaves is stored. "keep", "error": refused, since the format cannot
        express shared memory.
    name_of: returns the name of a leaf, by its number.
    arrays: whether NumPy arrays count too; otherwise they are copied silently.
    report: a list of dicts {"name", "with", "done"}, done "copied" or
        "dropped".
    """
    dropped, report = set(), []
    for first, *others in _groups(leaves, arrays):
        kept = {_view_of(leaves[first]): first}
        for number in others:
            name = name_of(number)
            other = kept.setdefault(_view_of(leaves[number]), number)
            if wish in ("keep", "error"):
                raise InvalidArgumentError(
                    f"{name_of(first)} and {name} share memory, which "
                    f"{format} files cannot express: save one of them, or "
                    "copies (ties='drop' or 'copy')",
                    "kInvalidArgument",
                )
            if wish == "drop" and other == number:
                raise InvalidArgumentError(
                    f"{name_of(first)} and {name} share memory and are not "
                    "the same tensor: neither can be dropped (ties='copy' "
                    "stores both)",
                    "kInvalidArgument",
                )
            if wish == "drop":
                dropped.add(number)
            report.append({
                "name": name,
                "with": name_of(first if other == number else other),
                "done": "dropped" if wish == "drop" else "copied",
            })
    return dropped, report


def _groups(leaves, arrays):
    """Returns sorted lists of the numbers of leaves whose memory overlaps."""
    torch = sys.modules.get("torch")
    spans = []
    for number, leaf in enumerate(leaves):
        if hasattr(leaf, "data_ptr"):
            span = _span_of_tensor(torch, leaf)
        else:
            span = _span_of_array(leaf) if arrays else None
        if span is not None:
            spans.append((*span, number))
    spans.sort()
    groups, where, end = [], None, 0
    for device, begin, stop, number in spans:
        if device == where and begin < end:
            groups[-1].append(number)
            end = max(end, stop)
        else:
            groups.append([number])
            where, end = device, stop
    return sorted(sorted(group) for group in groups if len(group) > 1)
