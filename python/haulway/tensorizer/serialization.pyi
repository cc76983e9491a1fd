from . import CryptographyError as CryptographyError
from . import DecryptionParams as DecryptionParams
from . import EncryptionParams as EncryptionParams
from . import FilterFuncType as FilterFuncType
from . import HashMismatchError as HashMismatchError
from . import TensorDeserializer as TensorDeserializer
from . import TensorSerializer as TensorSerializer
from . import TensorType as TensorType

__all__: list[str]
