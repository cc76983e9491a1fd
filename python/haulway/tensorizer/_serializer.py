"""TensorSerializer."""

# Design: each call converts tensors to rows for the library's stream, a few at a
# time, and the stream writes them to a temporary file before the call returns.
# Arguments are checked first, by the table of _options.py if haulway.save() has
# the same option, so that a wrong argument leaves no folder and no file.
#
# Collecting all tensors and laying the file out at close() was left out: with
# the reference, a caller may overwrite a tensor's memory at once, and keep only
# one tensor in memory.


from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Mapping

import torch

from .. import _haulway, _secrets
from .._describing import described, path_text
from .._errors import ArgumentTypeError, InvalidArgumentError
from .._importing import imported
from .._options import WRITING, check_flag, number
from .._reading.remote import target_of
from .._reading.streams import UploadStream
from .._torch import factory as _torch_factory
from .._writing.dense import (
    check_tensor,
    memory_of,
    row_major,
    row_major_array,
)
from .._writing.tensorizer import leaves
from ._params import EncryptionParams, TensorType
from ._s3 import asking, is_object

# Tensors of one call are written together to keep the threads busy, but at most
# this many bytes, since they may be copies.
_WRITTEN_TOGETHER = 64 << 20
# Bytes after which the C library's free memory is returned to the system. The C
# library keeps memory below small live blocks, possibly all temporaries of the
# caller.
_TRIMMED_AFTER = 64 << 20
_NAMES = {dtype: name for name, dtype in _torch_factory._DTYPES.items()}


def _path_of(name):
    if isinstance(name, str):
        return (name,)
    steps = tuple(name) if isinstance(name, (list, tuple)) else (None,)
    if not all(
        isinstance(step, str)
        or (isinstance(step, int) and not isinstance(step, bool) and step >= 0)
        for step in steps
    ):
        raise TypeError(
            f"name is {name!r}: expected a str, or str and positions in a list"
        )
    return steps


def _row(path, kind, module, tensor):
    """Returns a tensor's description for the library, without the data."""
    name = _NAMES.get(tensor.dtype)
    if name is None or tensor.is_quantized:
        raise ValueError(f"{path}: tensors of {tensor.dtype} are not written")
    if tensor.layout != torch.strided:
        raise ValueError(f"{path}: only strided tensors are written")
    return path, int(kind), module, name, tuple(tensor.shape)


def _tensors_of(m, include_non_persistent_buffers):
    """Yields (path, kind, index, module, dict, name) of each tensor, without a
    reference to the tensor itself."""
    for index, (path, module) in enumerate(m.named_modules()):
        parts = [(TensorType.PARAM, module._parameters)]
        parts.append((TensorType.BUFFER, module._buffers))
        for kind, tensors in parts:
            for name, tensor in tensors.items():
                if tensor is None or (
                    kind == TensorType.BUFFER
                    and not include_non_persistent_buffers
                    and name in module._non_persistent_buffers_set
                ):
                    continue
                yield f"{path}.{name}", kind, index, module, tensors, name


class TensorSerializer:
    """Writes tensors to a file, which appears complete when it is closed.

    Each call writes its tensors before it returns, into a temporary file
    beside the target, so their memory may be reused immediately. A file
    object, or the target of a URL (s3://, redis://), receives everything when
    the serializer is closed; until then the data waits in the folder for
    temporary files. A serializer that is never closed writes nothing, and
    warns.

    file_obj: a path, a URL, a file object or a file descriptor.
    compress_tensors: has no effect, as in tensorizer.
    encryption: EncryptionParams; None: not encrypted.
    limit_cpu_concurrency: number of threads; None: as many as this process may
        use.
    authenticate_metadata: lets readers that use Haulway and the key detect a
        changed name, type, shape or order in an encrypted file; see
        docs/formats/tensorizer.md. Other readers ignore it.
    layout: see haulway.save(); max_tensors is its room_for.

    For one thread at a time. Methods raise Error if the disk or the server
    fails, TypeError for an object that is not a tensor, and ValueError after
    close().
    """

    def __init__(self, file_obj, compress_tensors=False, *, encryption=None,
                 limit_cpu_concurrency=None, authenticate_metadata=True,
                 layout="interleaved", max_tensors=None):
        del compress_tensors
        threads = 0
        if limit_cpu_concurrency is not None:
            threads = number(
                "limit_cpu_concurrency", limit_cpu_concurrency, 65535
            )
            if threads < 1:
                raise InvalidArgumentError(
                    "limit_cpu_concurrency must be at least 1",
                    "kInvalidArgument",
                )
        if encryption is not None and not isinstance(
            encryption, EncryptionParams
        ):
            raise ArgumentTypeError(
                f"encryption is {type(encryption).__name__}: expected "
                "EncryptionParams",
                "kInvalidArgument",
            )
        key = None  # It may have been replaced in `encryption`.
        if encryption is not None:
            key = _secrets.key("encryption.key", encryption.key)
        if isinstance(file_obj, bytes):
            file_obj = os.fsdecode(file_obj)
        if isinstance(file_obj, int):
            file_obj = os.fdopen(os.dup(file_obj), "wb")
        if isinstance(file_obj, os.PathLike):
            file_obj = os.fspath(file_obj)
        if not isinstance(file_obj, str) and not hasattr(file_obj, "write"):
            raise ArgumentTypeError(
                f"file_obj is {type(file_obj).__name__}: expected a path or a "
                "file object",
                "kInvalidArgument",
            )
        self._target = file_obj
        writing = {
            "key": key,
            "threads": threads,
            "durability": "none",
            "layout": WRITING["layout"].check("layout", layout),
            "authenticate_metadata": check_flag(
                "authenticate_metadata", authenticate_metadata
            ),
        }
        if max_tensors is not None:
            writing["room_for"] = number("max_tensors", max_tensors)
        if isinstance(file_obj, str) and "://" not in file_obj:
            os.makedirs(os.path.dirname(file_obj) or ".", exist_ok=True)
        who = {"s3": asking()} if is_object(file_obj) else {}
        self._stream = _haulway.open_tensorizer_stream(
            target_of(file_obj, **who),
            tempfile.gettempdir(),
            writing,
            encryption._derivation if encryption else None,
        )
        self._waiting = []  # Arguments of append() not yet written.
        self._to_remove = []  # (module, name) to set to None after writing.
        self._waiting_bytes = 0
        self._untrimmed = 0
        self._bytes = 0
        self._closed = False

    def _add(self, path, kind, module, tensor):
        """Writes a tensor, or queues it to be written with others; see
        _flush()."""
        self._check_open()
        if not isinstance(tensor, torch.Tensor):
            numpy = imported("numpy")
            if not isinstance(tensor, numpy.ndarray):
                raise TypeError(
                    f"{path}: expected a tensor or array, found "
                    f"{type(tensor).__name__}"
                )
            if tensor.dtype.byteorder == ">":
                raise ValueError(f"{path}: big-endian arrays are not written")
            tensor = torch.from_numpy(row_major_array(tensor))
        if tensor.is_quantized:
            raise ValueError(
                f"{path} is a quantized tensor, which tensorizer files cannot hold")
        check_tensor(path, tensor, "tensorizer files", "tensorizer")
        row = _row(path, kind, module, tensor)
        data = None
        if not tensor.is_meta:
            data = memory_of(row_major(tensor))
            self._bytes += data[2]
            self._waiting_bytes += data[2]
        self._waiting.append((*row, data))
        if self._waiting_bytes >= _WRITTEN_TOGETHER:
            self._flush()

    def _flush(self):
        """Writes the queued tensors. Must run before a user's call returns."""
        waiting, self._waiting = self._waiting, []
        self._untrimmed += self._waiting_bytes
        self._waiting_bytes = 0
        self._stream.append(waiting)
        written, self._to_remove = self._to_remove, []
        for module, name in written:
            setattr(module, name, None)

    def _check_open(self):
        if self._closed:
            raise ValueError("the serializer is closed")

    @contextlib.contextmanager
    def _writing(self):
        """Flushes at the end of the block. Tensors given to a failing call are
        not written."""
        self._check_open()
        try:
            yield
            self._flush()
        finally:
            self._waiting, self._waiting_bytes = [], 0
            self._to_remove = []
        if self._untrimmed >= _TRIMMED_AFTER:
            _haulway.trim_memory()
            self._untrimmed = 0

    def write_tensor(self, idx, name, tensor_type, tensor):
        """Writes one tensor or array.

        idx: the number of its module, up to 65535.
        name: a str; for TensorType.STATE_DICT also the steps of a path.
        tensor_type: a TensorType.
        tensor: a dense tensor of torch or an array of NumPy.
        """
        path = _path_of(name)
        idx = number("idx", idx, 65535)
        with self._writing():
            self._add(path, TensorType(tensor_type), idx, tensor)

    def write_module(self, m, remove_tensors=False, *,
                     include_non_persistent_buffers=True):
        """Writes the parameters, then the buffers, of each module in `m`.

        remove_tensors: sets each attribute to None, so that its memory is free
            once it is written. Nothing is written or removed if any tensor is
            refused.
        include_non_persistent_buffers: write buffers that a state dict leaves
            out.
        """
        found = list(_tensors_of(m, include_non_persistent_buffers))
        with self._writing():
            if remove_tensors:
                self._stream.check([
                    (*_row((path,), kind, index, tensors[name]), None)
                    for path, kind, index, module, tensors, name in found
                ])
            for path, kind, index, module, tensors, name in found:
                if remove_tensors:
                    self._to_remove.append((module, name))
                self._add((path,), kind, index, tensors[name])

    def write_state_dict(self, state_dict):
        """Writes the tensors of `state_dict`: nested dicts, lists and tuples.
        """
        if isinstance(state_dict, torch.Tensor) or not isinstance(
            state_dict, (Mapping, list, tuple)
        ):
            raise TypeError("expected a dict, list or tuple of tensors")
        with self._writing():
            for path, tensor in leaves(state_dict, TypeError):
                self._add(path, TensorType.STATE_DICT, 0, tensor)

    @property
    def total_tensor_bytes(self):
        """Total size of the tensors that were written, in bytes."""
        return self._bytes

    def __repr__(self):
        return described(
            self, self._what(), "closed" if self._stream is None else "open"
        )

    def _what(self):
        target = self._target
        return path_text(target) if isinstance(target, str) else "a file object"

    def __del__(self):
        # tensorizer's files are complete without close().
        if getattr(self, "_stream", None) is not None:
            warnings.warn(
                f"a TensorSerializer was not closed: {self._what()} is not "
                "written",
                RuntimeWarning, stacklevel=2,
            )

    def close(self):
        """Makes the file visible."""
        if self._closed:
            return
        self._closed = True
        stream, self._stream = self._stream, None
        stream.commit()
        if isinstance(self._target, UploadStream):
            # As in the reference, the file is complete afterwards.
            self._target.close()
        elif hasattr(self._target, "flush"):
            self._target.flush()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        # After an exception no file is made.
        if kind is None:
            self.close()
        self._closed = True
        self._stream = None
