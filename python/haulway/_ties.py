"""Tensors that share memory, in formats that cannot say that they do."""

from __future__ import annotations

import sys

from ._errors import InvalidArgumentError

WISHES = ("keep", "drop", "copy", "error")


def span_of(leaf):
    """(device, begin, end, what tells equal views) of a tensor's or array's
    memory, or None if it has none."""
    if hasattr(leaf, "data_ptr"):
        return _span_of_tensor(leaf)
    if not isinstance(leaf, sys.modules["numpy"].ndarray):
        return None  # A scalar, whose memory is its own.
    begin = leaf.__array_interface__["data"][0]
    low = high = 0
    for size, stride in zip(leaf.shape, leaf.strides):
        if size == 0:
            return None
        reach = (size - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    same = (begin, leaf.dtype.str, leaf.shape, leaf.strides)
    return "", begin + low, begin + high + leaf.itemsize, same


def _span_of_tensor(tensor):
    import torch

    if (
        tensor.layout != torch.strided
        or tensor.is_meta
        or tensor.numel() == 0
    ):
        return None
    begin, strides = tensor.data_ptr(), tensor.stride()
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, strides)
    )
    bits = (tensor.is_conj(), tensor.is_neg())
    same = (begin, tensor.dtype, tuple(tensor.shape), strides, bits)
    device = "" if tensor.device.type == "cpu" else str(tensor.device)
    return device, begin, begin + (last + 1) * tensor.element_size(), same


def settle(leaves, wish, format, arrays=True):
    """What to do about leaves that share memory: (numbers to leave out,
    report).

    leaves: pairs (name, tensor or array).
    wish: "copy": each is stored in full. "drop": of equal ones the first is.
        "keep", "error": refused, since the format has no word for it.
    arrays: whether NumPy arrays are looked at too, or copied without a word.
    report: a list of dicts {"name", "with", "done"}, done "copied" or
        "dropped".
    """
    if wish not in WISHES:
        raise InvalidArgumentError(
            f"ties: expected one of {', '.join(map(repr, WISHES))}, found "
            f"{wish!r}",
            "kInvalidArgument",
        )
    dropped, report = set(), []
    for group in _groups(leaves, arrays):
        (first, first_same), *others = group
        kept = {first_same: first}
        for number, same in others:
            name = leaves[number][0]
            other = kept.setdefault(same, number)
            if wish in ("keep", "error"):
                raise InvalidArgumentError(
                    f"{leaves[first][0]} and {name} share memory, which "
                    f"{format} files cannot express: save one of them, or "
                    "copies (ties='drop' or 'copy')",
                    "kInvalidArgument",
                )
            if wish == "drop" and other == number:
                raise InvalidArgumentError(
                    f"{leaves[first][0]} and {name} share memory and are not "
                    "the same tensor: neither can be dropped (ties='copy' "
                    "stores both)",
                    "kInvalidArgument",
                )
            if wish == "drop":
                dropped.add(number)
            report.append({
                "name": name,
                "with": leaves[first if other == number else other][0],
                "done": "dropped" if wish == "drop" else "copied",
            })
    return dropped, report


def _groups(leaves, arrays):
    """Lists of (number, what tells equal views), by number, of leaves whose
    memory overlaps."""
    spans = []
    for number, (_, leaf) in enumerate(leaves):
        if not arrays and not hasattr(leaf, "data_ptr"):
            continue
        span = span_of(leaf)
        if span is not None:
            spans.append((span[:3], number, span[3]))
    spans.sort(key=lambda span: span[:2])
    groups, end = [], None
    for (device, begin, stop), number, same in spans:
        if end is not None and end[0] == device and begin < end[1]:
            groups[-1].append((number, same))
            end = device, max(end[1], stop)
        else:
            groups.append([(number, same)])
            end = device, stop
    shared = [sorted(group, key=lambda item: item[0])
              for group in groups if len(group) > 1]
    return sorted(shared, key=lambda group: group[0][0])
