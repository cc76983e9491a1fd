"""A worker process of the engine `local`, and its channel to the engine."""

# Design: messages are pickles with a length prefix, over a pair of sockets. The
# connections of multiprocessing were left out: they take a third of a worker's
# start time.

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket

from .._importing import importing

_LENGTH_BYTES = 8
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Channel:
    """One end of a pair of connected sockets; owns the descriptor.

    send() and receive() raise OSError if the other end is gone; receive()
    raises EOFError if that happened between two messages.
    """

    def __init__(self, descriptor):
        self._socket = socket.socket(fileno=descriptor)

    def fileno(self):
        return self._socket.fileno()

    def send(self, message):
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._socket.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    def receive(self):
        length = int.from_bytes(self._exactly(_LENGTH_BYTES), "big")
        return pickle.loads(self._exactly(length))

    def _exactly(self, length):
        data = bytearray(length)
        rest = memoryview(data)
        while rest:
            count = self._socket.recv_into(rest)
            if count == 0:
                raise EOFError
            rest = rest[count:]
        return data

    def close(self):
        self._socket.close()


def serve(descriptor, parent):
    """Runs the main loop of a worker: receives tasks and sends records until
    the channel is closed.

    descriptor: this end of the channel.
    parent: the id of the engine's process.
    """
    with importing:
        from .verbs import run_task

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # The parent died before prctl().
        return
    # An interrupt from the terminal reaches the whole process group; the caller
    # decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(descriptor)

    def tell(count):
        channel.send(("bytes", count))

    while True:
        try:
            task = channel.receive()
            channel.send(("records", run_task(task, tell)))
        except (EOFError, OSError):
            return
