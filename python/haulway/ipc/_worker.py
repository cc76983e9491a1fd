"""The code that runs in the worker process."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import traceback
from multiprocessing import reduction

from .. import _haulway
from .._describing import shown
from .._errors import Error, InvalidArgumentError
from ._handlers import THRESHOLD, register_handler
from ._items import equip_for_items
from ._offload import equip, offload, resolve

READY, REFUSED, FINISHED, FAILED = 2, 3, 4, 5
ITEM = 1
_importer = os.getpid()


class Descriptor:
    """A file descriptor that can be sent to another process."""

    def __init__(self, fd):
        self.fd = fd

    def __reduce__(self):
        return _received, (reduction.DupFd(self.fd),)


def _received(duplicate):
    return Descriptor(duplicate.detach())


def _quieten_torch():
    """Makes torch work in a forked process.

    Its threads exist only in the parent, and torch would wait for them for
    ever. torch's own DataLoader does the same.
    """
    torch = sys.modules.get("torch")
    if torch is not None and os.getpid() != _importer:
        torch.set_num_threads(1)


def describe(error):
    """Returns an exception as bytes: itself if it can be pickled, and its
    traceback."""
    text = "".join(traceback.format_exception(error)).rstrip()
    try:
        pickled = pickle.dumps(error)
        # Some exceptions can be pickled but not unpickled.
        pickle.loads(pickled)
    except Exception:
        pickled = None
    summary = "".join(traceback.format_exception_only(error)).strip()
    return pickle.dumps((summary, text, pickled))


def describe_as_text(error):
    """Returns an exception as bytes for a parent that does not unpickle."""
    text = "".join(traceback.format_exception(error)).rstrip()
    return text.encode(errors="backslashreplace")


def _make_encoder(arena, native, pickle_free):
    views = bool(native and arena._bytes_as_views)
    encoder = _haulway.ItemEncoder(resolve, {}, THRESHOLD, views)
    return equip_for_items(encoder) if pickle_free else equip(encoder)


def _make_sender(channel, parent, arena, native, copy_threads, pickle_free):
    return _haulway.ItemSender(
        _haulway.Channel.attach(channel.fd), parent.fd,
        _make_encoder(arena, native, pickle_free),
        arena._open() if native else None, copy_threads,
    )


def _make_broadcast(channels, arena, copy_threads):
    attached = [_haulway.Channel.attach(channel.fd) for channel in channels]
    return _haulway.ItemSender(
        attached, _make_encoder(arena, True, False), arena._open(),
        copy_threads,
    )


class _Passes:
    """Iterates over an iterable again for every pass.

    A second pass over a generator would be empty. That is reported as an error,
    unless the iterator can restart.
    """

    def __init__(self, iterable):
        self._iterable = iterable
        self._ended = False

    def __iter__(self):
        iterator = iter(self._iterable)
        empty = True
        for item in iterator:
            empty = False
            held = [item]
            item = None
            yield held.pop()
        if iterator is self._iterable:
            if self._ended and empty:
                raise RuntimeError(
                    f"a {type(iterator).__name__} can be iterated once: return "
                    "something from fn that can be iterated for every pass"
                )
            self._ended = True


def _send_pass(iterable, sender, writer, epoch):
    """Sends one pass; returns whether it was sent completely."""
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
            # No room in time, or never: send the item without the arena.
            if not sender.wants(epoch) or sender.aborted:
                return False
            envelope = offload(item, None, threshold=1 << 62)
        if not sender.send_bytes(ITEM, epoch, envelope):
            return False
    return True


def serve(*arguments):
    """Runs a worker; see _serve().

    Ctrl-C at a terminal interrupts the worker as well as its parent, whose
    traceback is enough.
    """
    try:
        _serve(*arguments)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _serve(channel, parent, arena, native, fn, initializers, handlers,
           copy_threads, pickle_free, channels):
    """Runs a worker.

    channels: for a broadcast, one for each consumer; then `channel` only
    reports whether the worker was set up.
    """
    _haulway.end_with_peer(parent.fd, 1000)
    _quieten_torch()
    for handler in reversed(handlers):
        register_handler(handler)
    sender = _make_sender(channel, parent, arena, native, copy_threads,
                          pickle_free)
    explain = describe_as_text if pickle_free else describe
    try:
        for initializer in initializers:
            initializer()
        iterable = fn()
        writer = arena.open_writer() if arena is not None and not native else None
    except Exception as error:
        sender.send_bytes(REFUSED, 0, explain(error))
        return
    sender.send_bytes(READY, 0, b"")
    if channels:
        sender = _make_broadcast(channels, arena, copy_threads)
    _serve_passes(iterable, sender, writer, explain)


def _serve_passes(iterable, sender, writer, explain):
    epoch = 0
    iterable = _Passes(iterable)
    while True:
        epoch = sender.wait_for_pass(epoch)
        if epoch == 0:
            return
        try:
            whole = _send_pass(iterable, sender, writer, epoch)
            if whole:
                sender.send_bytes(FINISHED, epoch, b"")
        except Exception as error:
            # If the parent is gone, nobody reads the message.
            if not sender.aborted:
                with contextlib.suppress(Error):
                    sender.send_bytes(FAILED, epoch, explain(error))
            return


def _fds_of(link):
    fds = {}
    try:
        for field in link.split(","):
            name, number = field.split("=")
            fds[name] = int(number)
    except (AttributeError, ValueError):
        fds.clear()
    known = {"channel", "parent"}
    if not known <= fds.keys() <= known | {"arena"}:
        raise InvalidArgumentError(
            f"link is {shown(link)}: not a link to a parent, expected the last "
            "argument of the command line",
            "kInvalidArgument",
        )
    return fds


def serve_program(fn, link):
    """Makes this program the worker of the process that started it.

    fn: called once; returns an iterable, which is iterated anew in each pass.
        Items are sent without a pickle: tensors and plain values, in lists,
        tuples and dicts.
    link: the last argument of the program's command line.

    Returns when the parent wants no more, and ends with the parent.

    Raises InvalidArgumentError if `link` is not a link. Exceptions of `fn` and
    of its items are sent to the parent.
    """
    fds = _fds_of(link)
    _haulway.end_with_peer(fds["parent"], 1000)
    encoder = _haulway.ItemEncoder(resolve, {}, THRESHOLD, False)
    arena = fds.get("arena", -1)
    sender = _haulway.ItemSender(
        _haulway.Channel.attach(fds["channel"]), fds["parent"],
        equip_for_items(encoder),
        _haulway.Arena.attach(arena) if arena >= 0 else None, 1,
    )
    try:
        iterable = fn()
    except Exception as error:
        sender.send_bytes(REFUSED, 0, describe_as_text(error))
        return
    sender.send_bytes(READY, 0, b"")
    _serve_passes(iterable, sender, None, describe_as_text)
