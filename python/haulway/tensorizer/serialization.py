"""The names that programs import from tensorizer.serialization."""

from ._deserializer import TensorDeserializer
from ._params import (
    CryptographyError,
    DecryptionParams,
    EncryptionParams,
    HashMismatchError,
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
    "TensorDeserializer",
    "TensorSerializer",
    "TensorType",
]
