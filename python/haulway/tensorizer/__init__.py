"""The names of the tensorizer package, over Haulway's engine.

    from haulway.tensorizer import TensorDeserializer

    with TensorDeserializer("model.tensors", device="cpu") as tensors:
        tensors.load_into_module(model)

Signatures are those of the tensorizer package. Its known faults are not
reproduced: content is checked before anything is allocated, tensors can be
read in any order, buffers stay buffers, and only floating-point tensors are
cast.

Any thread may call the functions of this module at any time, unless a
docstring says otherwise.
"""

from . import serialization, stream_io, torch_compat, utils
from ._deserializer import TensorDeserializer
from ._params import (
    CryptographyError,
    DecryptionParams,
    EncryptionParams,
    HashMismatchError,
    InvalidFileError,
    TensorType,
)
from ._paths import FilterFuncType
from ._serializer import TensorSerializer

__all__ = [
    "CryptographyError",
    "DecryptionParams",
    "EncryptionParams",
    "FilterFuncType",
    "HashMismatchError",
    "InvalidFileError",
    "TensorDeserializer",
    "TensorSerializer",
    "TensorType",
    "serialization",
    "stream_io",
    "torch_compat",
    "utils",
]
