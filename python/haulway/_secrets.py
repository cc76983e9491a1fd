"""Keys and passphrases as arguments."""

from __future__ import annotations


def secret_arguments(key, passphrase):
    """What the extension takes: `key` and `passphrase` as bytes, or None."""
    if isinstance(passphrase, str):
        passphrase = passphrase.encode("utf-8")
    return {
        "key": None if key is None else bytes(key),
        "passphrase": None if passphrase is None else bytes(passphrase),
    }
