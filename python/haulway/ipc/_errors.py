"""Exceptions of communication between two processes."""

from .._describing import public
from .._errors import Error


class ArenaFull(Error, BufferError):
    """An arena has no room: not now, not within the time limit, or never."""

    code = "kLimit"


class WorkerError(Error, RuntimeError):
    """The worker failed. The cause is its exception, if it has one."""

    code = "kInternal"


class WorkerDied(WorkerError):
    """The worker process ended without a message.

    message, code, byte, errno: as for Error.
    exitcode: how it ended: its exit code, or the negative number of the
        signal.
    """

    code = "kUnavailable"

    def __init__(self, message, code=None, byte=None, errno=0, exitcode=None):
        super().__init__(message, code, byte, errno)
        self.exitcode = exitcode

    def __reduce__(self):
        return (
            type(self),
            (self.message, self.code, self.byte, self.errno, self.exitcode),
        )


class WorkerTimeout(WorkerError, TimeoutError):
    """The worker was silent for longer than the time limit."""

    code = "kTimeout"


public("haulway.ipc", ArenaFull, WorkerDied, WorkerError, WorkerTimeout)
