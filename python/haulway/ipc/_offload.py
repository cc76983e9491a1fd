"""Converts items to envelopes and back, for any arena."""

from __future__ import annotations

import copyreg
import pickle
import threading
from multiprocessing.reduction import ForkingPickler

from .._errors import CorruptError
from .._haulway import Anchor, ItemEncoder, join_envelope, split_envelope
from ._handlers import THRESHOLD, _generation, hook_for, restoring

_INLINE, _BYTES, _BYTEARRAY, _EXACT = 1, 2, 4, 8
_local = threading.local()


class ItemPickler(pickle.Pickler):
    """Pickles to an encoder. Unlike a plain Pickler, it accepts new
    attributes."""


# Reducers of pickle and multiprocessing, in one dict. Modules register theirs
# as they are imported, so the dict is updated for each new type.
_reducers = {}


def resolve(cls):
    """Implements an encoder's `resolve` by hook_for(), for use with equip()."""
    _reducers.update(copyreg.dispatch_table)
    _reducers.update(ForkingPickler._extra_reducers)
    return hook_for(cls)


def equip(encoder):
    """Gives the encoder a pickler that uses multiprocessing's reducers."""
    pickler = ItemPickler(encoder, 5, buffer_callback=encoder.take_buffer)
    pickler.dispatch_table = _reducers
    pickler.reducer_override = encoder.reduce
    encoder.set_pickler(pickler.dump, pickler.clear_memo)
    return encoder


def _encoder(threshold):
    state = (threshold, _generation[0], len(ForkingPickler._extra_reducers),
             len(copyreg.dispatch_table))
    if getattr(_local, "state", None) != state:
        _local.encoder = equip(ItemEncoder(resolve, {}, threshold, True))
        _local.state = state
    return _local.encoder


def offload(obj, writer, *, threshold=THRESHOLD):
    """Pickles `obj` with its large buffers in the writer's arena.

    writer: an ArenaWriterProtocol.
    threshold: bytes from which on a buffer goes to the arena.

    Returns the envelope. If it fails, the writer is unchanged. Raises
    BufferError if the arena has no room, and what pickling raises.
    """
    encoder = _encoder(threshold)
    body, parts = encoder.encode(obj)
    try:
        if not parts:
            return join_envelope(0, body, [])
        write = getattr(writer, "write_binary", None) or writer.write
        writer.begin_unit()
        try:
            placed = [write(view) for view, _ in parts]
            span = writer.commit_unit()
        except BaseException:
            writer.abort_unit()
            raise
        slot, generation = getattr(writer, "last_unit", (0, 0))
        return join_envelope(span, body, [
            (offset, nbytes, slot, generation, flags)
            for (offset, nbytes), (_, flags) in zip(placed, parts)
        ])
    finally:
        encoder.clear()


def _load(body, views, parts, zero_copy, bytes_as_views, anchors):
    buffers = []
    for view, part in zip(views, parts):
        flags = part[4]
        if flags & (_BYTES | _BYTEARRAY) and (
            flags & _EXACT or not bytes_as_views
        ):
            buffers.append(bytearray(view) if flags & _BYTEARRAY else bytes(view))
            continue
        if not zero_copy and view.readonly:
            view = bytearray(view)
        anchor = Anchor(view)
        anchors.append(anchor)
        buffers.append(
            memoryview(anchor) if flags & (_BYTES | _BYTEARRAY) else anchor
        )
    with restoring(anchors=anchors, zero_copy=zero_copy):
        return pickle.loads(body, buffers=buffers)


def restore(envelope, reader):
    """Returns the object that was offloaded, as views of the arena if
    possible.

    envelope: what offload() returned, as bytes.
    reader: an ArenaReaderProtocol of the same arena.

    Restore envelopes in the order in which they were made, unless the reader
    is one of Haulway's. The sender of an envelope can run code here. Raises
    CorruptError for an envelope that was changed, and what unpickling raises.
    """
    span, body, parts, _ = split_envelope(bytes(memoryview(envelope)))
    if not parts:
        return pickle.loads(body)
    zero_copy = bool(reader.zero_copy)
    anchors = []
    select = getattr(reader, "select_unit", None)
    if select is not None:
        select(parts[0][2], parts[0][3])
    try:
        read = getattr(reader, "read_binary", None) or reader.read
        views = []
        for offset, nbytes, _, _, flags in parts:
            if flags & _INLINE:
                raise CorruptError("inlined part in an envelope of a writer")
            view = memoryview(read(offset, nbytes))
            if view.nbytes != nbytes:
                raise CorruptError(
                    f"part of {nbytes} bytes: the arena has {view.nbytes}"
                )
            views.append(view)
        as_views = getattr(reader, "bytes_as_views", zero_copy)
        try:
            return _load(body, views, parts, zero_copy, as_views, anchors)
        except (TypeError, ValueError):
            # A writable view is not hashable, so it cannot be a dict key or in
            # a set.
            if not as_views:
                raise
        return _load(body, views, parts, zero_copy, False, anchors)
    finally:
        reader.end_unit(span, anchors)


def discard(envelope, reader):
    """Releases everything that the envelope refers to without reading it."""
    span, _, parts, _ = split_envelope(bytes(memoryview(envelope)))
    if not parts:
        return
    select = getattr(reader, "select_unit", None)
    if select is not None:
        select(parts[0][2], parts[0][3])
    reader.end_unit(span, [])
