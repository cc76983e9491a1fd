"""Nested dicts and lists of tensors as tensorizer files."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping

from . import _haulway
from ._dense import memory_of, row_major, row_major_array
from ._dtypes import name_of_numpy
from ._errors import InvalidArgumentError, UnsupportedError
from ._secrets import secret_arguments
from ._segments import take_segments

_STATE_DICT = 2
# Of libsodium, "moderate": 3 passes over 256 MiB.
_OPERATIONS = 3
_MEMORY_BYTES = 256 << 20
_SALT_BYTES = 16


def spelled(path):
    return "".join(f"[{step!r}]" for step in path) or "the object"


def leaves(value, wrong):
    """(path, leaf) for each leaf of nested dicts, lists and tuples.

    wrong: the exception for keys that the format cannot hold.
    """
    pending = [((), value, ())]
    while pending:
        path, value, above = pending.pop()
        if isinstance(value, Mapping):
            items = []
            for key, item in value.items():
                if not isinstance(key, str):
                    raise wrong(
                        f"{spelled(path)}: keys must be str, found "
                        f"{type(key).__name__}"
                    )
                items.append((key, item))
        elif isinstance(value, (list, tuple)):
            items = list(enumerate(value))
        else:
            yield path, value
            continue
        if id(value) in above:
            raise InvalidArgumentError(
                f"{spelled(path)}: a container holds itself",
                "kInvalidArgument",
            )
        above = (*above, id(value))
        pending.extend(
            ((*path, key), item, above) for key, item in reversed(items)
        )


def inputs_of(obj, copy):
    """What write_tensorizer() takes for an object.

    copy: whatever happens to the object later.
    """
    inputs = []
    for path, leaf in leaves(obj, InvalidArgumentError):
        if not path:
            raise InvalidArgumentError(
                "a tensorizer file holds dicts and lists of tensors: found "
                f"{type(leaf).__name__}",
                "kInvalidArgument",
            )
        dtype, shape, dense = _leaf(path, leaf)
        data = None
        if dense is not None:
            data = memory_of(dense)
            if copy and data[1] == _address(leaf):
                data = memory_of(
                    dense.clone() if hasattr(dense, "clone") else dense.copy()
                )
        inputs.append((path, _STATE_DICT, 0, dtype, shape, data))
    return inputs


def _address(leaf):
    if hasattr(leaf, "data_ptr"):
        return leaf.data_ptr()
    return leaf.__array_interface__["data"][0]


def _leaf(path, leaf):
    """(dtype, shape, what is dense, or None for meta) of a tensor or array."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(leaf, torch.Tensor):
        from ._torch_factory import name_of_dtype

        if leaf.layout != torch.strided:
            raise UnsupportedError(
                f"{spelled(path)} is a sparse tensor, which tensorizer files "
                "cannot hold",
                "kUnsupported",
            )
        dense = None if leaf.is_meta else row_major(leaf)
        return name_of_dtype(leaf.dtype), tuple(leaf.shape), dense
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(leaf, (numpy.ndarray, numpy.generic)):
        dense = row_major_array(leaf)
        dtype = name_of_numpy(dense.dtype)
        if dtype is None:
            raise UnsupportedError(
                f"{spelled(path)} has the dtype {dense.dtype}, which "
                "tensorizer files cannot hold",
                "kUnsupported",
            )
        return dtype, dense.shape, dense
    raise InvalidArgumentError(
        f"{spelled(path)} is {type(leaf).__name__}: expected a tensor or an "
        "array",
        "kInvalidArgument",
    )


def key_of(key, passphrase):
    """The `key` and `derivation` that write_tensorizer() takes."""
    if key is not None and passphrase is not None:
        raise InvalidArgumentError(
            "both a key and a passphrase: expected one", "kInvalidArgument"
        )
    given = secret_arguments(key, passphrase)
    if passphrase is None:
        return {"key": given["key"]}
    if not passphrase:
        raise InvalidArgumentError("the passphrase is empty",
                                   "kInvalidArgument")
    salt = secrets.token_bytes(_SALT_BYTES)
    return {
        "key": _haulway.tensorizer_derive_key(
            given["passphrase"], _OPERATIONS, _MEMORY_BYTES, salt
        ),
        "derivation": (_OPERATIONS, _MEMORY_BYTES, salt),
    }


def prepare_tensorizer(obj, target, *, copy, key, passphrase, **options):
    """A function that writes an object to a path or by a function."""
    inputs = inputs_of(obj, copy)
    secret = key_of(key, passphrase)
    segments = take_segments(options)
    return lambda: _haulway.write_tensorizer(
        target, inputs, **secret, **segments, **options
    )
