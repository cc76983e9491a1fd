"""Rules as the library takes them, and the functions that they call."""

from __future__ import annotations

import json
import traceback

from .._errors import InvalidArgumentError, UnsupportedError
from .._importing import imported, importing


def taken(rules):
    """Returns (name, JSON, functions) of checked rules."""
    if isinstance(rules, str):
        return rules, "", ()
    functions, written = [], []
    for rule in rules:
        if "apply" in rule:
            functions.append(rule["apply"])
            rule = {**rule, "apply": len(functions) - 1}
        written.append(rule)
    try:
        text = json.dumps({"rules": written}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"rules cannot be written as JSON: {error}", "kInvalidArgument"
        ) from error
    return "", text, tuple(functions)


def call(function, sources):
    """Calls a rule's function; the library does, with (dtype, shape, bytes) of
    each source, and takes the same of each result.

    The function takes and returns a list of tensors: of torch, or NumPy's
    arrays if torch is not installed.
    """
    try:
        with importing:
            import torch
    except ImportError:
        torch = None
    make = _array if torch is None else _tensor
    results = function([make(*source) for source in sources])
    if not isinstance(results, (list, tuple)):
        raise TypeError(
            f"it returned {type(results).__name__}: expected a list of tensors")
    return [_row(torch, result) for result in results]


def place_of(trace):
    """Returns where in the user's program a function raised, for messages: the
    innermost line of the file that it was called in. Empty if that is not
    Python.
    """
    lines = [(frame.f_code.co_filename, line)
             for frame, line in traceback.walk_tb(trace)]
    inner = [one for one in lines if one[0] != __file__]
    own = [one for one in inner if one[0] == inner[0][0]]
    return f"line {own[-1][1]} of {own[-1][0]}" if own else ""


def _tensor(dtype, shape, data):
    torch = imported("torch")
    dtype = imported("haulway._torch.factory").dtype_of(dtype)
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)


def _array(dtype, shape, data):
    numpy = imported("numpy")
    dtype = imported("haulway._making.dtypes").numpy_dtype(dtype)
    return numpy.frombuffer(data, dtype).reshape(shape)


def _row(torch, result):
    dtypes = imported("haulway._making.dtypes")
    if torch is not None and isinstance(result, torch.Tensor):
        if result.is_quantized:
            raise UnsupportedError(
                "it returned a quantized tensor, whose scale a result cannot have",
                "kUnsupported",
            )
        dense = result.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return (dtypes.name_of_torch(dense.dtype), tuple(dense.shape),
                dense.reshape(-1).view(torch.uint8).numpy())
    if not dtypes.is_array(result):
        raise TypeError(
            f"it returned {type(result).__name__}: expected a tensor or an array")
    numpy = imported("numpy")
    name = dtypes.name_of_numpy(result.dtype)
    if name is None:
        raise UnsupportedError(
            f"it returned the dtype {result.dtype}, which files cannot hold",
            "kUnsupported",
        )
    dense = numpy.ascontiguousarray(
        result, result.dtype.newbyteorder("=")).reshape(-1)
    return name, tuple(result.shape), dense.view(numpy.uint8)
