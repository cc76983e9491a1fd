"""The exceptions that Haulway raises.

Every one derives from Error and has `code`, the name of the kind of failure
("kCorrupt"), and `byte`, where in the innermost part named by the message the
fault lies, or None. They can be pickled.
"""

from errno import EKEYREJECTED


class Error(Exception):
    """Anything that Haulway could not do."""

    code = "kInternal"

    def __init__(self, message, code=None, byte=None, errno=0):
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.byte = byte
        self.errno = errno or None

    def __str__(self):
        return self.message

    def __reduce__(self):
        return (type(self), (self.message, self.code, self.byte, self.errno))


class InvalidArgumentError(Error, ValueError):
    code = "kInvalidArgument"


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument is of a type that the call does not take."""


class OptionError(InvalidArgumentError, TypeError):
    """An argument that means nothing here."""


class UnknownNameError(InvalidArgumentError, KeyError):
    """A name that is none of those that can stand here."""


class NotFoundError(Error, FileNotFoundError):
    code = "kNotFound"


class PermissionDeniedError(Error, PermissionError):
    code = "kPermissionDenied"


class UnavailableError(Error, ConnectionError):
    code = "kUnavailable"


class TimedOutError(Error, TimeoutError):
    code = "kTimeout"


class IoError(Error, OSError):
    code = "kIoError"


class CertificateError(IoError):
    """A server's certificate does not verify; `errno` is EKEYREJECTED."""


class TruncatedError(Error):
    """The bytes end before the format says so."""

    code = "kTruncated"


class CorruptError(Error):
    """The bytes contradict the format."""

    code = "kCorrupt"


class MismatchError(Error):
    """Well formed, but a digest or comparison differs."""

    code = "kMismatch"


class UnsafeError(Error):
    """A pickle asks for something that is not allowed."""

    code = "kUnsafe"


class LimitError(Error):
    """A cap on what a file may ask for was passed."""

    code = "kLimit"


class DecryptError(Error):
    """Wrong key, or authentication failed."""

    code = "kAuth"


class UnsupportedError(Error, NotImplementedError):
    code = "kUnsupported"


class Cancelled(Error):
    code = "kCancelled"


class InternalError(Error, RuntimeError):
    code = "kInternal"


def place(error, byte):
    """Says in `error` at which byte of its part the fault lies, unless that is
    said or it is none of ours."""
    if isinstance(error, Error) and error.byte is None:
        error.byte = byte
        error.message += f"; at byte {byte}"


_CLASSES = {
    cls.code: cls
    for cls in (
        InvalidArgumentError,
        NotFoundError,
        PermissionDeniedError,
        UnavailableError,
        TimedOutError,
        IoError,
        TruncatedError,
        CorruptError,
        MismatchError,
        UnsafeError,
        LimitError,
        DecryptError,
        UnsupportedError,
        Cancelled,
        InternalError,
    )
}


def make_error(code, message, byte, errno):
    """The exception for a failed status of the library."""
    error = _CLASSES[code]
    if error is IoError and errno == EKEYREJECTED:
        error = CertificateError
    return error(message, code, byte, errno)


for _class in (Error, ArgumentTypeError, CertificateError, *_CLASSES.values()):
    _class.__module__ = __package__  # By which users catch it.
