"""Encryption parameters, tensor types, and exceptions."""

from __future__ import annotations

import contextlib
import enum
import secrets

from .. import _haulway, _secrets
from .._errors import (
    CorruptError,
    DecryptError,
    Error,
    LimitError,
    MismatchError,
    TruncatedError,
    UnsupportedError,
)
from .._options import number

CryptographyError = DecryptError
HashMismatchError = MismatchError


class InvalidFileError(Error, ValueError):
    """A file that is not a tensorizer file, or is damaged."""

    code = "kCorrupt"


@contextlib.contextmanager
def value_errors():
    """Converts errors about a file to ValueError, as the reference does."""
    try:
        yield
    except (CorruptError, TruncatedError, LimitError, UnsupportedError) as e:
        raise InvalidFileError(e.message, e.code, e.byte) from e


class TensorType(enum.IntEnum):
    """What a tensor of a file is: a parameter or a buffer of a module, or an
    entry of a state dict.
    """

    PARAM = 0
    BUFFER = 1
    STATE_DICT = 2


class EncryptionParams:
    """A key to encrypt with. Its repr does not show it.

    key: 32 bytes.

    Raises InvalidArgumentError for a key of another length. Threads may share
    one.
    """

    class OpsLimit(enum.IntEnum):
        MIN = 1
        INTERACTIVE = 2
        MODERATE = 3
        SENSITIVE = 4

    class MemLimit(enum.IntEnum):
        MIN = 8 << 10
        INTERACTIVE = 64 << 20
        MODERATE = 256 << 20
        SENSITIVE = 1 << 30

    __slots__ = ("key", "_derivation")

    def __init__(self, key: bytes):
        self.key = _secrets.key("key", key)
        self._derivation = None

    @classmethod
    def random(cls) -> EncryptionParams:
        """Returns a new key."""
        return cls(secrets.token_bytes(_secrets.KEY_BYTES))

    @classmethod
    def from_string(cls, source, opslimit=None, memlimit=None, salt=None, *,
                    encoding="utf-8") -> EncryptionParams:
        """Returns a key derived from a passphrase by Argon2id.

        source: the passphrase, a str or bytes.
        opslimit, memlimit: the cost: a number of passes, and bytes of memory;
            by default OpsLimit.MODERATE and MemLimit.MODERATE.
        salt: 16 bytes, or a str that encodes to them; new by default.
        encoding: of a passphrase or salt that is a str.
        """
        source = _secrets.passphrase("source", source, encoding)
        if salt is None:
            salt = secrets.token_bytes(_secrets.SALT_BYTES)
        salt = _secrets.salt("salt", salt, encoding)
        operations = number("opslimit", (
            EncryptionParams.OpsLimit.MODERATE if opslimit is None else opslimit
        ))
        memory = number("memlimit", (
            EncryptionParams.MemLimit.MODERATE if memlimit is None else memlimit
        ))
        params = cls(
            _haulway.tensorizer_derive_key(source, operations, memory, salt)
        )
        params._derivation = (operations, memory, salt)
        return params

    @property
    def salt(self):
        """The salt that the key was derived with, or None."""
        return self._derivation[2] if self._derivation else None

    def __repr__(self):
        kind = "from a passphrase" if self._derivation else "of a key"
        return f"<EncryptionParams {kind}>"


class DecryptionParams:
    """A key or passphrase to decrypt with. Its repr does not show it. Threads
    may share one. Its methods raise InvalidArgumentError for a key of a wrong
    length.
    """

    __slots__ = ("_key", "_passphrase")

    def __init__(self):
        self._key = None
        self._passphrase = None

    @classmethod
    def from_string(cls, source, *, encoding="utf-8") -> DecryptionParams:
        """Returns one that holds a passphrase.

        source: the passphrase, a str or bytes.
        encoding: of a passphrase that is a str.
        """
        params = cls()
        params._passphrase = _secrets.passphrase("source", source, encoding)
        return params

    @classmethod
    def from_key(cls, key: bytes) -> DecryptionParams:
        """Returns one that holds a key.

        key: 32 bytes.
        """
        params = cls()
        params._key = _secrets.key("key", key)
        return params

    def __repr__(self):
        kind = (
            "a passphrase" if self._passphrase
            else "a key" if self._key else "nothing"
        )
        return f"<DecryptionParams of {kind}>"
