"""haulway.open: a mapping of the tensors of a checkpoint."""

# Design: opening reads the index. A tensor is read on access: directly if its
# bytes need no processing, else by the engine. The checkpoint keeps its path
# and its reading options, so that another process can reopen it and read in the
# same way. Sending the tensors or the file descriptor instead was left out: a
# worker needs only a few of the tensors, and a descriptor does not survive in a
# stored pickle.

from __future__ import annotations

import time
from collections.abc import Mapping

from .. import _haulway
from .._building import build_over
from .._describing import bytes_text, counted, described, public, shown, table
from .._errors import InvalidArgumentError, UnknownNameError
from .._log import debug_log
from .._making.assemble import maker
from .._making.objects import DescribingFactory
from .._options import ENGINE, READING
from .._threads import ThreadLock, once
from .call import Reading, check_framework, reads
from .select import part_of
from .source import check_for_others, lasting


@reads(READING)
def open(path, framework=None, mmap=None, **options):
    """Opens a checkpoint and returns a Checkpoint, a mapping of its tensors.

    path: as for load().
    framework: "torch", "numpy" or "jax"; by default torch if it is installed. It is
        imported when the first tensor is asked for.
    mmap: True maps a file: tensors are views that cost nothing until they are
        touched, and writing to one reaches the file only with the mmap_flags
        for it. False reads each tensor into new memory. If neither mmap nor io
        is given or configured, paths are mapped that do not lie on a mount of a
        network or of a program (FUSE).
    OPTIONS

    Reads the index of the file but no tensor. The options for reading apply to
    each tensor when it is asked for, and `stats` is updated after each. Raises
    Error.
    """
    return Checkpoint(path, framework, {**options, "mmap": mmap})


class Checkpoint(Mapping):
    """An open checkpoint: tensors by name, in the order of the file. Made by
    open().

    path, framework: as for open().
    options: a dict of the options for reading.

    Two are equal only if they are the same object. Any number of threads may
    use one at once; the GIL is released while bytes are read. Tensors stay
    valid after the checkpoint is closed. Methods raise Error if the file cannot
    be read, and InvalidArgumentError after close().

    A pickled Checkpoint holds the path or URL, the framework and the options,
    including a key or passphrase that open() was given, but not `progress` and
    `stats`. Unpickling opens the file again; if the file was replaced in
    between, the new file is read. Pickling a Checkpoint of bytes, a file object
    or standard input raises ArgumentTypeError.
    """

    def __init__(self, path, framework=None, options=None):
        self.framework = check_framework(framework)
        self._reading = Reading("open", options or {})
        # A mapped file does not have the alignment that JAX needs.
        self._core, source = self._reading.open_with_source(
            path, mapped=self.framework != "jax"
        )
        self._name = source.name
        self._path = lasting(path)
        # Reading one tensor does not need the engine if no option says how.
        self._is_plain = (
            self._reading.io in ("auto", "mmap", "pread")
            and self._reading.progress is None
            and all(getattr(self._reading, name) == option.default
                    for name, option in ENGINE.items())
        )
        self._lock = ThreadLock()
        self._stats = {"tensors": 0, **dict.fromkeys(_haulway.LOAD_SUMS, 0), "io": {}}

    @once
    def _maker(self):
        # Importing torch takes a second, so it is deferred until a tensor is
        # read.
        return maker(self.framework)

    # Mapping

    def __len__(self):
        return len(self._open())

    def __iter__(self):
        return iter(self._open().names())

    def __contains__(self, name):
        return isinstance(name, str) and self._open().find(name) is not None

    # A Mapping compares all values: tensors, which have no truth value.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def keys(self):
        """Returns the names of all tensors, a list."""
        return self._open().names()

    def __getitem__(self, name):
        """Returns the tensor `name`. Raises KeyError for an unknown name, and
        Error if the bytes cannot be read or a checksum differs.
        """
        info = self.info(name)
        if info.storage is None:
            return self._maker.meta(info, name)
        return self._read(info)

    def get_slice(self, name):
        """Returns the tensor `name` as a TensorSlice: indexing it reads only
        the bytes that it needs. Raises KeyError for an unknown name.
        """
        info = self.info(name)
        return TensorSlice(self, name, self._open().find(name), info)

    def info(self, name):
        """Returns the TensorInfo of the tensor `name`; reads nothing. Raises
        KeyError for an unknown name.
        """
        core = self._open()
        row = core.find(name) if isinstance(name, str) else None
        if row is None:
            hint = core.hint(name) if isinstance(name, str) else ""
            raise UnknownNameError(f"no tensor {name!r}{hint}",
                                   "kInvalidArgument")
        return core.tensor(row)

    @property
    def format(self):
        """The name of the format, "torch" or "safetensors"."""
        return self._open().format

    @property
    def metadata(self):
        """The metadata that the writer stored, a dict.

        For a format without a place for metadata, the same as `container`.
        """
        noted = self._open().metadata
        return self.container if noted is None else noted

    @property
    def container(self):
        """Facts about the container, a dict."""
        return self._open().facts

    def tree(self):
        """Returns the whole object with a TensorInfo in place of every tensor.
        """
        core = self._open()
        return build_over(core, DescribingFactory(core))

    def stats(self):
        """Returns statistics of everything read through this checkpoint, a
        dict.

        `tensors` counts the tensors and slices that were asked for; `io` is a
        dict with a count for each way of reading; all other fields are sums of
        what load(stats=) reports for one load.
        """
        with self._lock:
            return {**self._stats, "io": dict(self._stats["io"])}

    def _count(self, stats):
        with self._lock:
            self._stats["tensors"] += 1
            for name in _haulway.LOAD_SUMS:
                self._stats[name] += stats.get(name, 0)
            ways = self._stats["io"]
            ways[stats["io"]] = ways.get(stats["io"], 0) + 1
        if log := debug_log():
            self._reading.log_read(log, stats)
        if self._reading.stats is not None:
            self._reading.stats.update(self.stats())

    def _read(self, info):
        """Reads a whole tensor."""
        if not self._is_plain:
            memories, stats = self._open().load_storages(
                [info.storage], self._reading.engine, self._reading.progress
            )
            self._count(stats)
            return self._make(info, memories[0])
        start = time.perf_counter()
        memory, read = self._open().read_storage(info.storage)
        seconds = time.perf_counter() - start
        self._count({
            "tensor_bytes": info.nbytes,
            "read_bytes": read or 0,
            "requests": 1 if read else 0,
            "seconds": seconds,
            "read_seconds": seconds,
            "io": "mmap" if read is None else "pread",
        })
        return self._make(info, memory)

    def _read_part(self, part):
        """Reads only the bytes that a part needs."""
        memories, stats = _haulway.load_tensors(
            self._open(), [part.request], self._reading.engine,
            self._reading.progress,
        )
        self._count(stats)
        return self._make(part.info, memories[0])

    # Lifetime

    def close(self):
        """Closes the file. Tensors that were returned stay valid."""
        self._core = None

    def __enter__(self):
        self._open()
        return self

    def __exit__(self, *exception):
        self.close()

    def __reduce__(self):
        self._open()
        check_for_others(self._path, "a Checkpoint")
        return type(self), (self._path, self.framework, self._reading.carried)

    def __repr__(self):
        what = shown(self._name, 80)
        if self._core is None:
            return described(self, what, "closed")
        return described(self, what, counted(len(self), "tensor"), self.format)

    def _repr_html_(self):
        core = self._core
        if core is None:
            return table(repr(self), (), (), 0)
        infos = ((name, core.tensor(core.find(name))) for name in core.names())
        return table(repr(self), ("name", "dtype", "shape", "size"), (
            (shown(name, 200), info.dtype, shown(info.shape),
             bytes_text(info.nbytes))
            for name, info in infos
        ), len(core))

    def _ipython_key_completions_(self):
        return [] if self._core is None else self._core.names()

    def _open(self):
        core = self._core
        if core is None:
            raise InvalidArgumentError(
                "the checkpoint is closed", "kInvalidArgument"
            )
        return core

    def _make(self, info, memory):
        return self._maker.tensor(self._maker.storage(memory), info)


class TensorSlice:
    """A tensor in a file, read when it is indexed. Made by
    Checkpoint.get_slice().

    Any number of threads may use one at once. Pickled, it takes its Checkpoint
    along. Indexing raises Error if the bytes cannot be read.
    """

    def __init__(self, checkpoint, name, row, info):
        self._checkpoint = checkpoint
        self._name = name
        self._row = row
        self._info = info

    @property
    def shape(self):
        """The shape of the whole tensor, a tuple."""
        return self._info.shape

    @property
    def dtype(self):
        """The dtype by its name in files, "F32"."""
        return self._info.dtype

    def get_shape(self):
        """Returns the shape of the whole tensor as a list."""
        return list(self._info.shape)

    def get_dtype(self):
        """Returns the dtype by its name in files, "F32"."""
        return self._info.dtype

    def __reduce__(self):
        return Checkpoint.get_slice, (self._checkpoint, self._name)

    def __repr__(self):
        return described(
            self, shown(self._name), self.dtype, shown(self.shape),
            bytes_text(self._info.nbytes),
        )

    def __getitem__(self, index):
        """Returns the part that an index selects, as in NumPy, as a copy.

        For numbers, slices (with any step), `...` and None, only the elements
        are read, and gaps of less than 64 KiB between them; any other index is
        applied to the whole tensor. A dimension of stride 0 is read once and
        repeated in memory.
        """
        checkpoint, info = self._checkpoint, self._info
        if info.storage is None:
            return checkpoint._maker.meta(info)[index]
        part = part_of(self._row, info, index)
        if part.request is None:
            return checkpoint._read(info)[index]
        return checkpoint._read_part(part)


public("haulway", Checkpoint, TensorSlice)
