"""The exceptions that Haulway raises.

Every exception derives from Error. It has `code`, the kind of failure
("kCorrupt"), and `byte`, the offset of the fault in the innermost part that
the message names, or None. Exceptions can be pickled.
"""

from errno import EKEYREJECTED


class Error(Exception):
    """The base class of all failures of Haulway.

    message: what failed, where, what was expected and what was found.
    code: the kind of failure, "kCorrupt"; by default that of the class.
    byte: the offset of the fault in the innermost part that the message names,
        or None.
    errno: the system's number of the failure; 0 if the system did not fail.

    The attributes have the same names; `errno` is None if it was 0. Can be
    pickled.
    """

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
    """An argument has a value that the call does not accept; a ValueError."""

    code = "kInvalidArgument"


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """An argument has a type that the call does not accept; a TypeError."""


class OptionError(InvalidArgumentError, TypeError):
    """An option that does not apply to this call; a TypeError."""


class UnknownNameError(InvalidArgumentError, KeyError):
    """An unknown name; a KeyError."""


class NotFoundError(Error, FileNotFoundError):
    """A file, an object behind a URL or a name does not exist; a
    FileNotFoundError.
    """

    code = "kNotFound"


class PermissionDeniedError(Error, PermissionError):
    """The system or a server refused access; a PermissionError."""

    code = "kPermissionDenied"


class UnavailableError(Error, ConnectionError):
    """A server or a process cannot be reached, or ended; a ConnectionError.
    Trying again may help.
    """

    code = "kUnavailable"


class TimedOutError(Error, TimeoutError):
    """A time limit passed; a TimeoutError. Trying again may help."""

    code = "kTimeout"


class IoError(Error, OSError):
    """Reading or writing failed; an OSError, and `errno` says how."""

    code = "kIoError"


class CertificateError(IoError):
    """A server's certificate could not be verified; `errno` is EKEYREJECTED.
    """


class TruncatedError(Error):
    """The bytes end earlier than the format says."""

    code = "kTruncated"


class CorruptError(Error):
    """The bytes contradict the format."""

    code = "kCorrupt"


class MismatchError(Error):
    """The file is well formed, but a digest or comparison differs."""

    code = "kMismatch"


class UnsafeError(Error):
    """A pickle asks for something that is not allowed."""

    code = "kUnsafe"


class LimitError(Error):
    """A limit on what a file may ask for was exceeded."""

    code = "kLimit"


class DecryptError(Error):
    """The key is wrong, or authentication failed."""

    code = "kAuth"


class SignatureError(Error):
    """A model is not signed by whom the caller trusts."""

    code = "kSignature"


class UnsupportedError(Error, NotImplementedError):
    """The file, the format or this machine cannot do what was asked; a
    NotImplementedError.
    """

    code = "kUnsupported"


class Cancelled(Error):
    """The call was cancelled before it was done, or Python is ending."""

    code = "kCancelled"


class InternalError(Error, RuntimeError):
    """A fault of Haulway itself; a RuntimeError. Please report it."""

    code = "kInternal"


def place(error, byte):
    """Adds the byte offset of the fault to `error`, unless it has one or is not
    a Haulway error."""
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
        SignatureError,
        UnsupportedError,
        Cancelled,
        InternalError,
    )
}


def make_error(code, message, byte, errno):
    """Returns the exception for a failed status of the library."""
    error = _CLASSES[code]
    if error is IoError and errno == EKEYREJECTED:
        error = CertificateError
    return error(message, code, byte, errno)


for _class in (Error, ArgumentTypeError, CertificateError, OptionError,
               UnknownNameError, *_CLASSES.values()):
    _class.__module__ = __package__  # The public name, shown in tracebacks.
