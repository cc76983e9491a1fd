"""What runs in the worker process."""

from __future__ import annotations

import pickle
import traceback
from multiprocessing import reduction

from .. import _haulway
from ._handlers import THRESHOLD, hook_for, register_handler
from ._offload import equip, offload

READY, REFUSED, FINISHED, FAILED = 2, 3, 4, 5
ITEM = 1


class Descriptor:
    """A file descriptor that goes along to another process."""

    def __init__(self, fd):
        self.fd = fd

    def __reduce__(self):
        return _received, (reduction.DupFd(self.fd),)


def _received(duplicate):
    return Descriptor(duplicate.detach())


def describe(error):
    """An exception as bytes: itself if it can be pickled, and its traceback."""
    text = "".join(traceback.format_exception(error)).rstrip()
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # Some can be written but not read.
    except Exception:
        pickled = None
    summary = "".join(traceback.format_exception_only(error)).strip()
    return pickle.dumps((summary, text, pickled))


def _make_encoder(arena, native):
    views = bool(native and arena._bytes_as_views)
    return equip(_haulway.ItemEncoder(hook_for, {}, THRESHOLD, views))


def _make_sender(channel, parent, arena, native, copy_threads):
    return _haulway.ItemSender(
        _haulway.Channel.attach(channel.fd), parent.fd,
        _make_encoder(arena, native), arena._open() if native else None,
        copy_threads,
    )


def _make_broadcast(channels, arena, copy_threads):
    attached = [_haulway.Channel.attach(channel.fd) for channel in channels]
    return _haulway.ItemSender(
        attached, _make_encoder(arena, True), arena._open(), copy_threads
    )


def _send_pass(iterable, sender, writer, epoch):
    """Sends one pass; whether it was sent to its end."""
    if writer is None:
        send = sender.send
        for item in iterable:
            if not send(item, epoch):
                return False
        return True
    writer.reset()
    for item in iterable:
        if not sender.wants(epoch) or sender.aborted:
            return False
        try:
            envelope = offload(item, writer)
        except BufferError:
            # No room in time, or ever: the item takes the slower way.
            if not sender.wants(epoch) or sender.aborted:
                return False
            envelope = offload(item, None, threshold=1 << 62)
        if not sender.send_bytes(ITEM, epoch, envelope):
            return False
    return True


def serve(channel, parent, arena, native, fn, initializers, handlers,
          copy_threads, channels=()):
    """The whole life of a worker.

    `channels` go to the consumers of a broadcast; then `channel` only says
    how the worker was set up.
    """
    _haulway.end_with_peer(parent.fd, 1000)
    for handler in reversed(handlers):
        register_handler(handler)
    sender = _make_sender(channel, parent, arena, native, copy_threads)
    try:
        for initializer in initializers:
            initializer()
        iterable = fn()
        writer = arena.open_writer() if arena is not None and not native else None
    except Exception as error:
        sender.send_bytes(REFUSED, 0, describe(error))
        return
    sender.send_bytes(READY, 0, b"")
    if channels:
        sender = _make_broadcast(channels, arena, copy_threads)
    epoch = 0
    while True:
        epoch = sender.wait_for_pass(epoch)
        if epoch == 0:
            return
        try:
            whole = _send_pass(iterable, sender, writer, epoch)
        except Exception as error:
            if not sender.aborted:
                sender.send_bytes(FAILED, epoch, describe(error))
            return
        if whole:
            sender.send_bytes(FINISHED, epoch, b"")
