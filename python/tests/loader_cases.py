"""Runs torch's DataLoader and ours, and compares the results."""

import dataclasses
import random
import warnings

import numpy
import torch
from torch.utils.data.dataloader import DataLoader as Theirs

from haulway.ipc import DataLoader as Ours

BOTH = (Theirs, Ours)
SEED = 1234


def outcome(loader_class, dataset, read=list, **options):
    """Returns what `read` makes of a loader, always from the same seeds, with
    the warnings or the failure, and the random state afterwards."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    numpy.random.seed(SEED)
    if callable(dataset):
        dataset = dataset()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        result = read(loader_class(dataset, **options))
    told = sorted({
        str(each.message) for each in heard
        if not issubclass(each.category, ResourceWarning)
        # Since Python 3.12, of workers that are forked; the test may have
        # threads.
        and "use of fork() may lead to deadlocks" not in str(each.message)
    })
    return result, told, torch.rand(1), random.random(), numpy.random.rand()


def compare(dataset, read=list, **options):
    """Asserts that both loaders give the same; returns our result."""
    options.setdefault("num_workers", 2)
    theirs = outcome(Theirs, dataset, read, **options)
    ours = outcome(Ours, dataset, read, **options)
    same(theirs, ours)
    return ours[0]


def failure(loader_class, dataset, **options):
    """Returns the items of a loader and the exception that ended it. Nothing
    keeps the iterator: other loaders' workers would inherit it."""
    options.setdefault("num_workers", 2)
    options.setdefault("batch_size", None)
    got = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            for value in loader_class(dataset, **options):
                got.append(value)
        except Exception as error:
            error.__context__ = error.__cause__ = None
            return got, error.with_traceback(None)
    raise AssertionError("there was no failure")


def refusals(dataset, **options):
    """Returns each loader's message for wrong arguments."""
    said = []
    for loader_class in BOTH:
        try:
            loader_class(dataset, **options)
        except Exception as error:
            said.append((type(error), str(error)))
    return said


def same(one, two):
    """Asserts that two values have the same types, bits and layout."""
    assert type(one) is type(two), (type(one), type(two))
    if isinstance(one, torch.Tensor):
        same_tensors(one, two)
    elif isinstance(one, numpy.ndarray):
        assert one.dtype == two.dtype and one.shape == two.shape
        assert one.strides == two.strides or not one.flags.c_contiguous
        assert one.tobytes() == two.tobytes()
    elif isinstance(one, dict):
        assert list(one) == list(two)
        for key in one:
            same(one[key], two[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(two)
        for each, other in zip(one, two):
            same(each, other)
    elif dataclasses.is_dataclass(one) or hasattr(one, "__dict__"):
        same(vars(one), vars(two))
    else:
        assert one == two or (one != one and two != two)


def same_tensors(one, two):
    assert one.dtype == two.dtype and one.layout == two.layout
    assert one.requires_grad == two.requires_grad
    if one.is_nested:
        same(list(one.unbind()), list(two.unbind()))
        return
    assert one.shape == two.shape
    if one.layout is torch.sparse_coo:
        assert one.is_coalesced() == two.is_coalesced()
        same(one._indices(), two._indices())
        same(one._values(), two._values())
        return
    if one.layout is not torch.strided:
        same(one.values(), two.values())
        assert torch.equal(one.to_dense(), two.to_dense())
        return
    assert one.stride() == two.stride()
    assert one.is_conj() == two.is_conj() and one.is_neg() == two.is_neg()
    if one.is_quantized:
        assert one.qscheme() == two.qscheme()
        assert torch.equal(one.dequantize(), two.dequantize())
        one, two = one.int_repr(), two.int_repr()
    assert bits(one) == bits(two)


def bits(tensor):
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return bytes(whole.flatten().view(torch.uint8).tolist()) if (
        whole.numel() < 4096
    ) else whole.flatten().view(torch.uint8).numpy().tobytes()
