"""haulway.convert and haulway.writer: converting files to another format, and
writing models tensor by tensor.
"""

# Design: arguments become the library's options. The library calls Python
# functions to select and rename tensors while it plans; the rest runs without
# Python. The writer is the reverse: tensors are added as the caller produces
# them, whole or in parts, and commit() makes the file, or its shards and index.
#
# Converting by loading and saving was left out, as it needs memory for the
# whole model. A generator of tensors for the writer was left out, too: programs
# rarely have their tensors in the order of a generator. Sizes are numbers or
# text with units, as everywhere (_options.py).


from __future__ import annotations

import functools
import re
import sys
import warnings
from collections.abc import Mapping

from .. import _haulway
from .._describing import (
    bytes_text,
    counted,
    described,
    path_text,
    public,
    shown,
)
from .._errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from .._making.dtypes import (
    dtype_name,
    is_array,
    name_of_numpy,
    name_of_torch,
    numpy_dtype,
)
from .._options import OPENING, REMOTE, number, text
from .._reading.call import Reading
from .._reading.report import Report
from .._reading.select import matcher
from .._reading.source import naming, path_of, path_to_write
from .call import Writing, writes
from .dense import check_tensor, memory_of, row_major, row_major_array
from .flat import check_strings, check_unicode, noted


def _renaming(rename):
    """Returns rules (function of names, pattern), applied in turn. `rename` is
    a function, or pairs (expression, replacement). The engine applies the
    pairs, or Python's re if the expression is compiled. A rule with a pattern
    must change at least one name."""
    if rename is None:
        return []
    if callable(rename):
        return [(lambda name: _text(rename(name)), "")]
    pairs = rename.items() if isinstance(rename, Mapping) else rename
    try:
        pairs = [(old, new) for old, new in pairs]
    except (TypeError, ValueError):
        pairs = [rename]
    rules = []
    for pair in pairs:
        if isinstance(pair, tuple) and len(pair) == 2:
            old, new = pair
            if isinstance(old, re.Pattern) and (
                    isinstance(new, str) or callable(new)):
                rules.append((functools.partial(old.sub, new), str(old.pattern)))
                continue
            if isinstance(old, str) and isinstance(new, str):
                with naming("rename", InvalidArgumentError):
                    rules.append((_haulway.renaming(old, new), old))
                continue
        raise InvalidArgumentError(
            "rename: expected a function, or pairs of a regular expression "
            f"and its replacement, found {shown(pair)}", "kInvalidArgument",
        )
    return rules


@writes("convert", OPENING)
def convert(src, dst, to=None, *, dtype=None, include=None, exclude=None,
            rename=None, **options):
    """Writes the tensors of a checkpoint as a file of another format.

    src: a path, bytes, or a binary file object.
    dst: the file to write, or a URL. It becomes visible when it is complete.
        Into a folder (an existing one, or a name that ends in "/") the files
        are written under the names that huggingface_hub gives them; `to` must
        be given, and files of an older checkpoint of these names are removed.
    to: "torch", "safetensors" or another writable format; by default the one
        that the ending of `dst` names.
    dtype: cast floating-point tensors to this dtype, rounded as torch does;
        other tensors stay unchanged.
    include, exclude: a glob of names, or several; names that match `exclude`
        are never written.
    rename: a function of names, or a dict or pairs of regular expressions and
        replacements, as for re.sub(), in the syntax of RE2 (no look-around,
        no back-references); compiled expressions are Python's.
    WRITING

    A glob that matches no name, and an expression that changes none, raise
    NotFoundError. `metadata` is set over that of `src`.

    Options for reading:
    OPTIONS

    The default of `ties` is "keep". The new file is not encrypted.

    Returns a report: `tensors`, `bytes`, `files`, `removed` (files of an older
    checkpoint in the folder), `proof` (each with name and sha256), `ties`
    (each with name, with, done), `left_out` (each with name and why: content
    that the new file does not have), and the statistics of save(). Raises
    Error for content that the format cannot hold; no new file is made then.
    """
    writing = Writing("convert", options, OPENING)
    reading = Reading("convert", writing.rest, OPENING)
    reading.keeps_last = True
    if reading.io == "auto":
        # Pages of a mapping that were read stay in memory.
        reading.io = "pread"
    metadata = None if writing.metadata is None else noted(writing.metadata)
    to = None if to is None else text("to", to)
    dtype = None if dtype is None else dtype_name(dtype)
    reading.dequantized_dtype = dtype
    select, renaming = matcher(include, exclude), _renaming(rename)
    with naming("src"):
        # A cast looks for scales in every shard.
        source = reading.open(src, names=select if dtype is None else None)
    done = _haulway.convert(
        source, path_of(dst, "dst"), to, dtype, select, renaming,
        metadata, reading.remote, writing.overwrite,
        {**writing.engine(), "ties": writing.ties}, writing.progress,
    )
    writing.tell(done)
    for name in ("proof", "ties", "left_out"):
        done[name] = [Report(**row) for row in done[name]]
    return Report(**done)


class Part:
    """A tensor of a Writer whose bytes arrive in pieces. Made by
    Writer.add_part().

    name: the tensor's name.
    dtype: the name of its dtype; None: elements of every dtype are taken as
        bytes.

    For one thread at a time.
    """

    def __init__(self, writer, number, name, dtype=None):
        self._writer = writer
        self._number = number
        self._dtype = dtype
        self._end = 0
        self.name = name

    def write(self, data, offset=None):
        """Writes elements, row-major and dense, after the previous ones, or
        from byte `offset` on.

        data: a tensor or an array of the part's dtype, or bytes: anything else
            with the buffer protocol, or a tensor or an array of 8-bit unsigned
            integers.
        offset: in bytes from the start of the tensor; None: where the last
            call ended.

        Raises InvalidArgumentError for elements of another dtype, and for bytes
        past the end of the tensor; ArgumentTypeError for anything else.
        """
        if hasattr(data, "data_ptr") or hasattr(data, "__array_interface__"):
            memory = self._elements(data)
            size = memory[2]
        else:
            memory = data
            try:
                size = memoryview(data).nbytes
            except TypeError:
                raise ArgumentTypeError(
                    f"{self.name!r} is {type(data).__name__}: expected a "
                    "tensor, an array or bytes",
                    "kInvalidArgument",
                ) from None
        at = self._end if offset is None else number("offset", offset)
        self._writer._open().write(self._number, at, memory)
        self._end = at + size

    def _elements(self, data):
        """Returns memory_of() a tensor or array that has the part's dtype."""
        found, dense = _dense(self.name, data)
        is_same = self._dtype is None or found in (self._dtype, "U8") or (
            # The bits of a dtype that NumPy lacks.
            not hasattr(data, "data_ptr")
            and dense.dtype == numpy_dtype(self._dtype)
        )
        if not is_same:
            raise InvalidArgumentError(
                f"{self.name!r} is of {self._dtype}, but these elements are of "
                f"{found}: cast them before they are written",
                "kInvalidArgument",
            )
        return memory_of(dense)

    def __repr__(self):
        return described(self, shown(self.name),
                         f"{bytes_text(self._end)} written")


class Writer:
    """A model being written tensor by tensor. Made by writer().

    For one thread at a time. Methods raise InvalidArgumentError after commit()
    and after the `with` block, and Error if the disk or the server fails.
    """

    def __init__(self, core, name=""):
        self._core = core
        self._name = name
        self._count = 0

    def add(self, name, tensor):
        """Adds a tensor or array, which may change after this returns.

        name: its name in the file.
        tensor: a dense tensor of torch or an array of NumPy.

        Raises ArgumentTypeError for anything else, and UnsupportedError for a
        dtype or layout that files cannot hold.
        """
        name = _text(name)
        dtype, dense = _dense(name, tensor)
        self._open().add(
            name, dtype, tuple(dense.shape), memory_of(dense)
        )
        self._count += 1

    def add_part(self, name, dtype, shape):
        """Adds a tensor whose elements follow in pieces, and returns a Part to
        write them: part.write(rows).

        name: its name in the file.
        dtype: its dtype: torch's, NumPy's, or a name such as "bf16".
        shape: its sizes.
        """
        name, named = _text(name), dtype_name(dtype)
        try:
            if isinstance(shape, (str, bytes)):
                raise TypeError
            sizes = tuple(number("shape", size) for size in shape)
        except TypeError:
            raise ArgumentTypeError(
                f"shape is {shape!r}: expected a tuple of numbers",
                "kInvalidArgument",
            ) from None
        number_of_part = self._open().add_part(name, named, sizes)
        self._count += 1
        return Part(self, number_of_part, name, named)

    def commit(self):
        """Completes the file, or the shards and their index, and makes them
        visible. Returns `files` and the statistics of save(). Nothing can be
        added afterwards. Raises Error if a Part has too few bytes; no file is
        made then.
        """
        core, self._core = self._open(), None
        return core.commit()

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        # Without commit() no file is left behind. After an exception that is
        # what everyone expects.
        if error is None and self._core is not None and self._count:
            warnings.warn(
                f"{path_text(self._name)} was not written: the writer's block "
                "ended without commit()", RuntimeWarning, stacklevel=2,
            )
        self._core = None

    def __repr__(self):
        return described(
            self, path_text(self._name), counted(self._count, "tensor"),
            "closed" if self._core is None else "open",
        )

    def _open(self):
        if self._core is None:
            raise InvalidArgumentError(
                "the writer is closed", "kInvalidArgument"
            )
        return self._core


@writes("writer", REMOTE)
def writer(path, format=None, **options):
    """Writes a model whose tensors arrive one after another, or in pieces, in
    little memory.

        with haulway.writer("model.safetensors", shard="5GB") as out:
            for name, tensor in tensors():
                out.add(name, tensor)
            rows = out.add_part("embed", "bf16", (vocabulary, width))
            for block in blocks():
                rows.write(block)
            out.commit()

    path: the file to write, or a URL. It becomes visible with commit();
        without commit(), as after an exception, nothing is left. A `with`
        block that adds tensors and ends without both warns.
    format: as for save().
    WRITING

    Options for reaching a URL:
    OPTIONS

    Added tensors wait in an unnamed file beside `path`, so the disk may hold
    the data twice for a while; for a URL, the file is in the folder for
    temporary files.

    Raises Error for a path that cannot be written, or a format that cannot be.
    """
    writing = Writing("writer", options)
    if writing.metadata is not None:
        check_strings(writing.metadata)
    path = path_to_write(path)
    return Writer(_haulway.open_tensor_writer(
        path, None if format is None else text("format", format),
        writing.metadata, writing.remote, writing.overwrite, writing.engine(),
        writing.progress,
    ), path)


def _text(name):
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"a name is {shown(name)}: expected a string", "kInvalidArgument"
        )
    check_unicode(name)
    return name


def _dense(name, value):
    """Returns (dtype, dense tensor or array) for a value that has data."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        check_tensor(repr(name), value, "a writer")
        return name_of_torch(value.dtype), row_major(value)
    if is_array(value):
        dense = row_major_array(value)
        dtype = name_of_numpy(dense.dtype)
        if dtype is None:
            raise UnsupportedError(
                f"{name!r} has the dtype {value.dtype}, which files cannot "
                "hold",
                "kUnsupported",
            )
        return dtype, dense
    raise ArgumentTypeError(
        f"{name!r} is {type(value).__name__}: expected a tensor or an array",
        "kInvalidArgument",
    )


public("haulway", Part, Writer)
