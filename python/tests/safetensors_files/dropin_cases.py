"""What the tests of haulway.safetensors share."""

import numpy
import safetensors.torch
import torch
from test_safetensors import bits


def said(function, *arguments, **named):
    """Returns the result of a call, or the name and text of its exception."""
    try:
        return "ok", function(*arguments, **named)
    except Exception as error:
        return type(error).__name__, str(error)


def same(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert tensor.shape == other[name].shape, name
        assert bits(tensor) == bits(other[name]), name


def write_model(folder):
    """Writes a file with three tensors; returns its path."""
    path = folder / "model.safetensors"
    tensors = {
        "w": torch.arange(60.0).reshape(4, 5, 3),
        "i": torch.arange(7),
        "s": torch.tensor(2.5, dtype=torch.bfloat16),
    }
    safetensors.torch.save_file(tensors, path, {"format": "pt", "x": "y"})
    return path


INDICES = [
    0, -1, 3, 4, -4, -5, True, None, ..., (), [], [0, 2], slice(1, 3),
    slice(None), slice(5, None), slice(2, 9), slice(-2, None), slice(0, 4, 2),
    slice(0, 4, -1), slice(0, 4, 0), slice("a"), (1, 2), (1, slice(2, 4)),
    (slice(None), 1), (..., 1), (..., slice(0, 2)), (..., ...), (0, ..., 0),
    (0, 0, 0), (0, 0, 0, 0), (slice(None), slice(1, 5, 3), slice(0, 3, 2)),
    (slice(3, 3),), 1.5, (None, 0), (0, None), numpy.int64(2),
    (slice(None), slice(None), slice(0, 1)), 2**31, -2**31,
]
