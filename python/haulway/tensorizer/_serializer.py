"""TensorSerializer."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from .. import _haulway, _torch_factory
from .._dense import memory_of, row_major
from .._errors import InvalidArgumentError
from .._segments import take_segments
from .._tensorizer import leaves
from ._params import EncryptionParams, TensorType

_NAMES = {dtype: name for name, dtype in _torch_factory._DTYPES.items()}


class TensorSerializer:
    """Writes tensors to a file, which appears whole when it is closed.

    Tensors are kept until then, not copied; one that was changed in between
    makes close() fail rather than the file wrong. The caller's memory is never
    changed. compress_tensors has no effect in the reference either.

    authenticate_metadata: makes a changed name, type, shape or order of an
        encrypted file known to who reads it with Haulway and the key; see
        docs/formats/tensorizer.md. Other readers do not look at it.
    layout: see haulway.save(); max_tensors: its room_for.
    """

    def __init__(self, file_obj, compress_tensors=False, *, encryption=None,
                 limit_cpu_concurrency=None, authenticate_metadata=True,
                 layout="interleaved", max_tensors=None):
        del compress_tensors
        if limit_cpu_concurrency is not None and limit_cpu_concurrency < 1:
            raise ValueError("limit_cpu_concurrency must be at least 1")
        if encryption is not None and not isinstance(
            encryption, EncryptionParams
        ):
            raise TypeError("encryption must be EncryptionParams")
        if isinstance(file_obj, bytes):
            file_obj = os.fsdecode(file_obj)
        if isinstance(file_obj, int):
            file_obj = os.fdopen(os.dup(file_obj), "wb")
        if isinstance(file_obj, os.PathLike):
            file_obj = os.fspath(file_obj)
        if not isinstance(file_obj, str) and not hasattr(file_obj, "write"):
            raise TypeError(
                f"expected a path or a file object, found "
                f"{type(file_obj).__name__}"
            )
        self._target = file_obj
        self._segments = {"layout": layout}
        if max_tensors is not None:
            self._segments["room_for"] = max_tensors
        self._encryption = encryption
        self._authenticate = authenticate_metadata
        self._threads = limit_cpu_concurrency or 0
        self._tensors = []  # (path, type, module, dtype, shape, tensor)
        self._versions = []
        self._bytes = 0
        self._closed = False

    def _add(self, path, kind, module, tensor):
        if self._closed:
            raise ValueError("the serializer is closed")
        if not isinstance(tensor, torch.Tensor):
            import numpy

            if not isinstance(tensor, numpy.ndarray):
                raise TypeError(
                    f"{path}: expected a tensor or array, found "
                    f"{type(tensor).__name__}"
                )
            if tensor.dtype.byteorder == ">":
                raise ValueError(f"{path}: big-endian arrays are not written")
            tensor = torch.from_numpy(tensor.copy())
        name = _NAMES.get(tensor.dtype)
        if name is None or tensor.is_quantized:
            raise ValueError(
                f"{path}: tensors of {tensor.dtype} are not written"
            )
        if tensor.layout != torch.strided:
            raise ValueError(f"{path}: only strided tensors are written")
        self._tensors.append(
            (path, int(kind), module, name, tuple(tensor.shape), tensor)
        )
        inference = tensor.is_inference()
        self._versions.append(None if inference else tensor._version)
        if not tensor.is_meta:
            self._bytes += tensor.numel() * tensor.element_size()

    def write_tensor(self, idx, name, tensor_type, tensor):
        """One tensor or array, under a name of one step."""
        path = (name,) if isinstance(name, str) else tuple(name)
        self._add(path, TensorType(tensor_type), idx, tensor)

    def write_module(self, m, remove_tensors=False, *,
                     include_non_persistent_buffers=True):
        """Parameters, then buffers, of each module in it.

        remove_tensors: sets each attribute to None; the memory is free once
            the serializer is closed.
        """
        for index, (path, module) in enumerate(m.named_modules()):
            parts = [(TensorType.PARAM, module._parameters)]
            parts.append((TensorType.BUFFER, module._buffers))
            for kind, tensors in parts:
                for name, tensor in list(tensors.items()):
                    if tensor is None or (
                        kind == TensorType.BUFFER
                        and not include_non_persistent_buffers
                        and name in module._non_persistent_buffers_set
                    ):
                        continue
                    self._add((f"{path}.{name}",), kind, index, tensor)
                    if remove_tensors:
                        setattr(module, name, None)

    def write_state_dict(self, state_dict):
        """Nested dicts, lists and tuples of tensors."""
        if isinstance(state_dict, torch.Tensor) or not isinstance(
            state_dict, (Mapping, list, tuple)
        ):
            raise TypeError("expected a dict, list or tuple of tensors")
        for path, tensor in leaves(state_dict, TypeError):
            self._add(path, TensorType.STATE_DICT, 0, tensor)

    @property
    def total_tensor_bytes(self):
        return self._bytes

    def _data(self, tensor, version, path):
        """What to write: None for meta, else (owner, address, length)."""
        if tensor.is_meta:
            return None
        if version is not None and tensor._version != version:
            raise InvalidArgumentError(
                f"{path} was changed after it was given to be written",
                "kInvalidArgument",
            )
        return memory_of(row_major(tensor))

    def close(self):
        """Writes the file."""
        if self._closed:
            return
        self._closed = True
        tensors = [
            (*facts, self._data(tensor, version, facts[0]))
            for (*facts, tensor), version in zip(self._tensors, self._versions)
        ]
        self._tensors.clear()
        params = self._encryption
        target = self._target
        if isinstance(target, str):
            os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        _haulway.write_tensorizer(
            target if isinstance(target, str) else target.write,
            tensors,
            key=params.key if params else None,
            derivation=params._derivation if params else None,
            durability="none",
            threads=self._threads,
            authenticate_metadata=self._authenticate,
            **take_segments(dict(self._segments)),
        )
        if hasattr(target, "flush"):
            target.flush()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        # After an exception there is no file to be had.
        if kind is None:
            self.close()
        self._closed = True
