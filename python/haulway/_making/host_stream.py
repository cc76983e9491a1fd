"""Yields storages one after another in host memory and reads ahead."""

from __future__ import annotations

from .. import _haulway


def stream_from_host(make, core, rows, reading, order):
    """Implements a maker's stream() for tensors in host memory."""
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
