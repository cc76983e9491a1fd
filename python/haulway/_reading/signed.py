"""Models that must be signed: who must have signed, and the open SignedModel.

A call, haulway.config or the environment says so; see docs/signing.md.
"""

# Design: the library checks the signature when the model is opened, and compares
# each file in the pass that reads it. Here is decided what it is asked for: of
# several kinds of verifiers the nearest to the call counts, and a policy
# (require_signature) holds wherever it is set, so that no call turns it off.

from __future__ import annotations

from .. import _haulway
from .._config import resolve
from .._errors import InvalidArgumentError, SignatureError
from .._options import SIGNING

# Options of the same kind of verifier go together.
_KINDS = {
    "public_key": "key",
    "certificate_chain": "certificate",
    "identity": "sigstore",
    "issuer": "sigstore",
    "trusted_root": "sigstore",
}
_NEAREST = ("call", "context", "process", "environment", "outside")


def asked_signature(values, origins):
    """Returns what the library is to check, as it takes it; None if nothing.

    values, origins: of all options, from resolve().
    """
    # Nearly no call asks for anything, and a small load takes 30 us.
    given = {name: values[name] for name in SIGNING
             if origins[name] != "default"
             and values[name] not in (None, False, "", (), [])}
    if not given:
        return None
    kind = None
    for origin in _NEAREST:
        kinds = {_KINDS[name] for name in given
                 if name in _KINDS and origins[name] == origin}
        if kinds and kind is None:
            kind = kinds
    if kind:
        given = {name: value for name, value in given.items()
                 if _KINDS.get(name) in (None, *kind)}
    if kind or given.get("signature") or given.get("require_signature"):
        return given
    return None


def open_signed(path, asked, remote, variant="", base=""):
    """Returns the open _haulway.SignedModel of a path or URL."""
    return _haulway.open_signed(path, asked, remote, variant or "", base or "")


def asked_by_config():
    """Returns asked_signature() for a call that takes no options."""
    return asked_signature(*resolve("load"))


def refuse_unsigned(what, asked=None):
    """Raises SignatureError if a signature is asked for: `what` cannot have
    one.

    asked: from asked_signature(); None: as configured.
    """
    if asked is None:
        asked = asked_by_config()
    if asked:
        raise SignatureError(
            f"a signature is required, and {what} cannot have one: expected a "
            "path or URL of a signed model",
            "kSignature",
        )


def way_of_signed(io, mmap):
    """Returns the way to read files that are compared with a signature."""
    if mmap or io == "mmap":
        raise InvalidArgumentError(
            "io is 'mmap': a mapping of a signed file may change after it was "
            "compared; expected 'auto', 'pread', 'direct', 'uring' or "
            "'snapshot'",
            "kInvalidArgument",
        )
    return io if io in ("direct", "uring") else "pread"
