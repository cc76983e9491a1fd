"""safe_open.prefetch(): tensors that are read in the background.

How: the plan's parts are put in the file's order and cut into blocks of
neighbours. One thread reads block after block with the library's engine, which
is parallel in itself, and wakes who waits. A block's memory is freed when its
tensors have been taken and dropped. One thread a block was left out: the engine
already keeps the disk busy, and blocks would finish in any order.
"""

from __future__ import annotations

import copy
import math
import os
import threading
from typing import NamedTuple

from .._describing import counted, described
from .._errors import Error
from .._making.assemble import maker
from .._making.objects import TensorInfo
from .._reading.call import Reading
from ._dtypes import BITS, NAMED, in_files
from ._errors import SafetensorError, as_ours, not_text
from ._header import header_shape
from ._made_here import OnlyMadeHere

# A block ends with the first part at or past so many bytes.
_BLOCK = 64 << 20
# What one thread of the engine is worth starting for.
_THREAD = 16 << 20
_DEVICES = 64


class Part(NamedTuple):
    """A tensor of a plan; rows: (start, stop), or None for all of it."""

    name: str
    row: int
    info: TensorInfo
    rows: tuple[int, int] | None

    @property
    def nbytes(self):
        if self.rows is None:
            return self.info.nbytes
        return (self.rows[1] - self.rows[0]) * (
            self.info.nbytes // self.info.shape[0] if self.info.shape[0] else 0
        )


def planned(file, plan):
    """Returns the Parts of a plan, in the order of the file. Raises as the
    package does, whose order of checks this is."""
    core = file.core
    order = core.names()
    if plan is None:
        plan = dict.fromkeys(order)
    parts = {}
    for name, value in plan.items():
        if not isinstance(name, str):
            raise SafetensorError("prefetch plan keys must be tensor names")
        name, row, info = file.find(name)
        parts[name] = Part(name, row, info, _rows(file, name, info, value))
    ordered = [parts[name] for name in order if name in parts]
    for part in ordered:
        dtype = in_files(part.info.dtype)
        if NAMED[dtype] is None:
            raise SafetensorError(
                f"prefetch cannot hand out dtype {dtype}: torch has no matching "
                "dtype"
            )
    if not ordered:
        raise SafetensorError("prefetch plan selects no tensors")
    return ordered


def _rows(file, name, info, value):
    if value is None:
        return None
    if not isinstance(value, slice):
        raise SafetensorError(
            "prefetch plan values must be None or a slice, got "
            f"{type(value)} for {name}"
        )
    shape = header_shape(name, info, file.header)
    if not shape:
        raise SafetensorError(f"cannot slice rows of the 0-d tensor {name}")
    size = shape[0]
    for which in ("start", "stop"):
        bound = getattr(value, which)
        if bound is None:
            continue
        try:
            number = bound.__index__()
        except AttributeError:
            number = None
        if number is None or not -2**63 <= number < 2**63:
            raise SafetensorError(
                f"prefetch plan slice bounds for {name} must be integers or None"
            )
        if not -size <= number <= size:
            raise SafetensorError(
                f"prefetch plan slice {which} {number} for {name} is out of "
                f"range for {size} rows"
            )
    try:
        start, stop, step = value.indices(size)
    except (TypeError, ValueError) as error:
        raise SafetensorError(
            f"invalid prefetch plan slice for {name}: "
            f"{type(error).__name__}: {error}"
        ) from None
    if step != 1:
        raise SafetensorError(
            f"prefetch plan slices must have step 1, got {step} for {name}"
        )
    if math.prod(shape[1:]) * BITS[in_files(info.dtype)] % 8:
        raise SafetensorError(
            f"cannot slice rows of {name}: a row is not a whole number of bytes"
        )
    return start, max(start, stop)


def thread_count(threads):
    """Returns the argument as the package takes it, a number of 0 or more."""
    try:
        number = threads.__index__()
    except AttributeError:
        raise TypeError(
            f"'{type(threads).__name__}' object cannot be interpreted as an "
            "integer"
        ) from None
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    if number >= 2**64:
        raise OverflowError("int too big to convert")
    return number


def check_device(device, is_cpu_taken):
    """Refuses devices to which the package does not prefetch.

    device: in torch's form, "cuda:0". is_cpu_taken: whether the CPU is one that
        is prefetched to, which the package refuses.
    """
    if isinstance(device, int):
        device = f"cuda:{device}"
    kind = device.partition(":")[0]
    if kind != "cuda" and not (kind == "cpu" and is_cpu_taken):
        raise SafetensorError(f"prefetch loads to cuda devices, not {device}")


def check_runtime(device):
    """Refuses a CUDA device without a runtime, or with a number that is none."""
    if device == "cpu":
        return
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        if not any("libcudart" in line for line in maps):
            raise SafetensorError(
                "no CUDA runtime is loaded in this process; import a "
                "CUDA-enabled framework (torch) before calling prefetch()"
            )
    number = device if isinstance(device, int) else int(device.partition(":")[2])
    if number >= _DEVICES:
        raise SafetensorError(
            f"device index {number} is out of range (0..{_DEVICES})"
        )


def started(file, parts, device, threads):
    """Returns a PrefetchLoader that reads Parts of a _File to a device."""
    reader = copy.copy(file)
    total = sum(part.nbytes for part in parts)
    most = max(1, -(-total // _THREAD))
    reader._reading = Reading(
        "safe_open", {"io": file._way, "threads": min(max(threads, 1), most)}
    )
    if device != file.device:
        reader.device, reader._make = device, maker("torch", device)
    work = _Work(reader, parts)
    work.thread.start()
    loader = object.__new__(PrefetchLoader)
    loader._work = work
    return loader


class _Work:
    """What a loader, its iterators and its thread share.

    All attributes that change are changed under `changed`.
    """

    def __init__(self, file, parts):
        self.names = [part.name for part in parts]
        self.changed = threading.Condition()
        # Those that were not handed out, in order; and those that are read.
        self.pending = dict.fromkeys(self.names)
        self.ready = {}
        self.error = None
        self.is_closed = False
        self.pid = os.getpid()
        self.thread = threading.Thread(
            target=self._read, args=(file, parts), name="haulway-prefetch"
        )

    def _read(self, file, parts):
        # Python waits for this thread at its end, which shall be soon.
        main = threading.main_thread()
        for block in _blocks(parts):
            if self.is_closed or not main.is_alive():
                return
            try:
                tensors = file.bring(block)
            except BaseException as error:
                # Every later call tells it.
                with self.changed:
                    self.error = error
                    self.changed.notify_all()
                return
            with self.changed:
                if self.is_closed:
                    return
                self.ready.update(tensors)
                self.changed.notify_all()
            del tensors

    def handed_out(self, name, head=""):
        """Returns a tensor once it is there, or None if another thread took it.
        `head` begins the texts of errors. Called under `changed`."""
        while name in self.pending and name not in self.ready:
            if self.is_closed:
                raise SafetensorError(f"{head}prefetch loader closed")
            if isinstance(self.error, Error):
                raise as_ours(self.error, f"{head}{self.error}") from self.error
            if self.error is not None:
                raise SafetensorError(f"{head}{self.error}") from self.error
            self.changed.wait()
        if name not in self.pending:
            return None
        del self.pending[name]
        return self.ready.pop(name)

    def check_process(self):
        """Refuses a child of the process that reads, where nothing is read and
        the lock may be held for ever."""
        if self.pid != os.getpid():
            raise SafetensorError(
                "the prefetch loader belongs to the parent process: call "
                "prefetch() after the fork"
            )

    def close(self):
        if self.pid != os.getpid():
            self.ready = {}
            return
        with self.changed:
            self.is_closed = True
            self.ready.clear()
            self.changed.notify_all()
        if self.thread is not threading.current_thread():
            self.thread.join()


def _blocks(parts):
    block, size = [], 0
    for part in parts:
        block.append(part)
        size += part.nbytes
        if size >= _BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


class PrefetchLoader(OnlyMadeHere):
    """Tensors that safe_open.prefetch() reads in the background. Each is handed
    out once, by take() or by iteration.

    Iterating gives pairs of a name and a tensor, the oldest that is read
    first; where none is, it waits for the oldest. The loader outlives the
    safe_open that it is of, and the tensors outlive the loader. The end of a
    `with` block closes it.

    Any number of threads may use one at once, but no child of their process.
    names(), len() and close() raise nothing.
    """

    __slots__ = ("_work",)

    def names(self):
        """Returns the names in the order of their data, a list; also those that
        were handed out."""
        return list(self._work.names)

    def __len__(self):
        return len(self._work.names)

    def take(self, name):
        """Returns the tensor `name`, when it has been read. The memory belongs
        to the caller.

        Raises SafetensorError for a name that is not in the plan or was handed
        out, after close(), and where reading failed.
        """
        if not isinstance(name, str):
            raise not_text(name)
        work = self._work
        work.check_process()
        with work.changed:
            tensor = work.handed_out(name, f"{name}: ")
        if tensor is not None:
            return tensor
        if name not in work.names:
            raise SafetensorError(f"tensor {name} is not in the prefetch plan")
        raise SafetensorError(
            f"{name}: tensor already delivered (prefetch hands each tensor out "
            "once, via take or iteration)"
        )

    def __iter__(self):
        work = self._work
        while True:
            work.check_process()
            with work.changed:
                if not work.pending:
                    return
                if work.is_closed:
                    raise SafetensorError("prefetch loader closed")
                # What was read stands before what was not, in the file's order.
                oldest = next(iter(work.pending))
                name = oldest if oldest in work.ready else next(
                    iter(work.ready), oldest)
                tensor = work.handed_out(name)
            if tensor is not None:
                yield name, tensor
            del tensor

    def close(self):
        """Stops reading, waits for the thread that reads, and frees what was
        not taken. A second call does nothing."""
        self._work.close()

    def __enter__(self):
        return self

    def __exit__(self, _exc_type, _exc_value, _traceback):
        self.close()

    def __repr__(self):
        work = self._work
        return described(
            self, counted(len(work.names), "tensor"),
            f"{len(work.names) - len(work.pending)} handed out",
            "closed" if work.is_closed else None,
        )

    def __del__(self):
        work = getattr(self, "_work", None)
        if work is not None:
            work.close()


class TensorMeta(OnlyMadeHere):
    """What the header says of a tensor.

    dtype: its name in files, "F32". shape: a list. data_offsets: the first byte
    and the byte after the last, within the data of the file. A plain value, which
    threads may share; it raises nothing.
    """

    __slots__ = ("_dtype", "_shape", "_data_offsets")

    @classmethod
    def _of(cls, dtype, shape, data_offsets):
        made = object.__new__(cls)
        made._dtype, made._shape, made._data_offsets = dtype, shape, data_offsets
        return made

    @property
    def dtype(self):
        """The dtype's name in files, e.g. F32."""
        return self._dtype

    @property
    def shape(self):
        """The shape, a list."""
        return list(self._shape)

    @property
    def data_offsets(self):
        """The first byte and the byte after the last, within the data."""
        return self._data_offsets

    def __repr__(self):
        return (f'TensorMeta {{ dtype: "{self.dtype}", shape: {self.shape}, '
                f"data_offsets: {self.data_offsets} }}")
