"""Storages one after another in the host's memory, read ahead."""

from __future__ import annotations

from .. import _haulway


def stream_from_host(make, core, rows, reading, order):
    """What stream() of a maker returns for tensors in the host's memory."""
    stream = _haulway.stream_storages(
        core, rows, reading.engine, order, reading.progress
    )
    return _go(stream, make, reading)


def _go(stream, make, reading):
    try:
        while (item := stream.next()) is not None:
            position, memory = item
            del item
            storage = make.storage(memory)
            del memory
            yield position, storage
            del storage
    finally:
        stream.close()
        reading.tell(stream.stats())
