"""Keys, passphrases and tokens as arguments, checked in one place.

Every call that takes a secret checks it here, by the name that it has in that
call. Messages show the type or the length of a secret, never its value.
"""

from __future__ import annotations

from ._errors import ArgumentTypeError, InvalidArgumentError

KEY_BYTES = 32
SALT_BYTES = 16
_BYTES = (bytes, bytearray, memoryview)


def takes(types):
    """Records the types that a check accepts, as the stub spells them."""

    def note(check):
        check.types = types
        return check

    return note


def _wrong_type(name, value, expected):
    return ArgumentTypeError(
        f"{name} is {type(value).__name__}: expected {expected}",
        "kInvalidArgument",
    )


def _wrong_length(name, value, expected):
    return InvalidArgumentError(
        f"{name} has a wrong length: expected {expected} bytes, found "
        f"{len(value)}",
        "kInvalidArgument",
    )


def _encoded(name, value, encoding):
    try:
        return value.encode(encoding)
    except (LookupError, UnicodeError, TypeError):
        # Suppress the original exception: it contains the secret text.
        raise InvalidArgumentError(
            f"{name}: expected text that {encoding!r} can encode",
            "kInvalidArgument",
        ) from None


@takes("bytes | bytearray | memoryview | str")
def key(name, value):
    """Checks a key: 32 bytes, or their hexadecimal digits."""
    if isinstance(value, str):
        try:
            value = bytes.fromhex(value)
        except ValueError:
            raise InvalidArgumentError(
                f"{name}: expected {KEY_BYTES} bytes, or {2 * KEY_BYTES} "
                "hexadecimal digits, found other text",
                "kInvalidArgument",
            ) from None
    if not isinstance(value, _BYTES):
        raise _wrong_type(
            name, value,
            f"{KEY_BYTES} bytes, or {2 * KEY_BYTES} hexadecimal digits",
        )
    value = bytes(value)
    if len(value) != KEY_BYTES:
        raise _wrong_length(name, value, KEY_BYTES)
    return value


@takes("str | bytes | bytearray | memoryview")
def passphrase(name, value, encoding="utf-8"):
    """Checks a passphrase: text or bytes, not empty."""
    if isinstance(value, str):
        value = _encoded(name, value, encoding)
    if not isinstance(value, _BYTES):
        raise _wrong_type(name, value, "a str or bytes")
    value = bytes(value)
    if not value:
        raise InvalidArgumentError(
            f"{name} is empty: expected a str or bytes", "kInvalidArgument"
        )
    return value


def salt(name, value, encoding="utf-8"):
    """Checks a salt: 16 bytes, or text that is encoded to them."""
    if isinstance(value, str):
        value = _encoded(name, value, encoding)
    if not isinstance(value, _BYTES):
        raise _wrong_type(name, value, f"{SALT_BYTES} bytes")
    value = bytes(value)
    if len(value) != SALT_BYTES:
        raise _wrong_length(name, value, SALT_BYTES)
    return value


@takes("str")
def token(name, value):
    """Checks a token for one line of a header."""
    if not isinstance(value, str):
        raise _wrong_type(name, value, "a str")
    if not value:
        raise InvalidArgumentError(
            f"{name} is empty: expected a token", "kInvalidArgument"
        )
    if not (value.isascii() and value.isprintable()):
        raise InvalidArgumentError(
            f"{name}: expected one line of printable ASCII",
            "kInvalidArgument",
        )
    return value


def only_one(key, passphrase):
    """Refuses a key together with a passphrase."""
    if key is not None and passphrase is not None:
        raise InvalidArgumentError(
            "both a key and a passphrase: expected one", "kInvalidArgument"
        )
