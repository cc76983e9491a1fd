"""Makes torch storages and tensors in GPU memory.

torch's allocator owns the memory: torch counts it, reuses it for later tensors
and reports when there is not enough. The engine only fills it.

A tensor that is alone in its storage and covers it is made at once. To make the
storage and then a tensor over it takes twice as long, and with many small
tensors that is most of the time of loading. So what is loaded here is a list of
bases: each is such a tensor, or an UntypedStorage.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import torch

from .. import _haulway
from .._errors import LimitError
from .factory import dtype_of

# Bytes that iterate() loads at once unless memory_budget is smaller: it fills
# one group of storages while the caller uses another.
_GROUP_BYTES = 128 << 20
# Statistics that must not be summed over loads.
_NOT_SUMS = ("threads", "resident")


class DeviceMemoryError(LimitError, torch.OutOfMemoryError):
    """A GPU has not enough memory."""


def is_cuda(device):
    """Returns whether `device`, a torch device, its name or its number, is a
    GPU."""
    return torch.device(device).type == "cuda"


def is_usable(device):
    """Returns whether `device`, or a storage's location tag, names a GPU that
    torch can use."""
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError):
        return False
    return (
        device.type == "cuda"
        and torch.cuda.is_available()
        and (device.index or 0) < torch.cuda.device_count()
    )


def cuda_bases(core, rows, device, reading):
    """Loads storages on the GPU; returns bases, parallel to the rows."""
    index = _index_of(device)
    device = _opened(index)  # Reports a missing GPU before torch does.
    bases = _allocate(core.storage_contents(rows), index)
    reading.tell(_fill(core, rows, bases, device, reading, reading.progress))
    return bases


def load_into(core, rows, tensors, device, reading):
    """Fills tensors on one GPU; each tensor has the size of its row's
    storage."""
    index = _index_of(device)
    torch.cuda.current_stream(index).synchronize()
    reading.tell(
        _fill(core, rows, tensors, _opened(index), reading, reading.progress)
    )


def cuda_stream(core, rows, device, reading):
    """Yields (position in rows, base on the GPU) in file order, and loads the
    next ones meanwhile."""
    index = _index_of(device)
    return _go(core, rows, index, _opened(index), reading)


def _go(core, rows, index, device, reading):
    total = sum(core.storage(row).nbytes for row in rows)
    counted = _Counted(reading.progress, total)
    contents = core.storage_contents(rows)
    groups = iter(_groups(core, rows, reading.engine))

    def start():
        group = next(groups, None)
        if group is None:
            return None
        its_rows = [rows[position] for position in group]
        its_contents = [contents[position] for position in group]
        bases = _allocate(its_contents, index)
        progress = counted.next(sum(nbytes for nbytes, _, _ in its_contents))
        return group, bases, pool.submit(
            _fill, core, its_rows, bases, device, reading, progress
        )

    try:
        # A single thread; it has ended when the generator ends.
        with ThreadPoolExecutor(1, "haulway-gpu") as pool:
            started = start()
            while started is not None:
                group, bases, filled = started
                counted.add(filled.result())
                started = start()
                bases.reverse()
                for position in group:
                    yield position, bases.pop()
    finally:
        reading.tell(counted.stats)


class _Counted:
    """Combines progress and statistics of several loads."""

    def __init__(self, progress, total):
        self.stats = {}
        self._progress = progress
        # Later loads are counted by the size of their tensors.
        self._total = total
        self._done = 0
        self._whole = 0

    def next(self, nbytes):
        """Returns the progress function for a load of tensors of `nbytes`."""
        self._whole = nbytes
        if self._progress is None:
            return None

        def told(done, whole):
            # More bytes may be read than the tensors have.
            self._total += whole - self._whole
            self._whole = whole
            self._progress(self._done + done, self._total)

        return told

    def add(self, stats):
        self._done += self._whole
        for name, value in stats.items():
            if type(value) in (int, float) and name not in _NOT_SUMS:
                value += self.stats.get(name, 0)
            self.stats[name] = value


def _groups(core, rows, engine):
    """Yields positions in rows, in groups of neighbours in the file."""
    most = min((engine["memory_budget"] or 2 * _GROUP_BYTES) // 2, _GROUP_BYTES)
    infos = [core.storage(row) for row in rows]
    group, held = [], 0
    for position in sorted(range(len(rows)), key=lambda at: infos[at].offset):
        if group and held + infos[position].nbytes > most:
            yield group
            group, held = [], 0
        group.append(position)
        held += infos[position].nbytes
    if group:
        yield group


def _index_of(device):
    index = torch.device(device).index
    if index is None:
        index = torch.cuda.current_device() if torch.cuda.is_available() else 0
    return index


@functools.cache
def _opened(index):
    """Opens the engine's device, which keeps its pinned memory for the next
    load."""
    return _haulway.open_cuda(index)


def _allocate(contents, index):
    """Makes bases whose memory is not filled yet.

    contents: what core.storage_contents() returns.
    """
    device = torch.device("cuda", index)
    try:
        bases = [
            torch.UntypedStorage(nbytes, device=device) if dtype is None
            else torch.empty(shape, dtype=dtype_of(dtype), device=device)
            for nbytes, dtype, shape in contents
        ]
    except torch.OutOfMemoryError as error:
        raise DeviceMemoryError(
            f"{device}: {str(error).splitlines()[0]}", "kLimit"
        ) from error
    # The allocator may return memory that its stream still uses.
    torch.cuda.current_stream(device).synchronize()
    return bases


def _fill(core, rows, memories, device, reading, progress):
    """Loads rows and returns statistics.

    memories: storages or tensors, parallel to rows.
    """
    return _haulway.load_to_device(
        core, list(rows), [memory.data_ptr() for memory in memories], device,
        reading.engine, progress,
    )
