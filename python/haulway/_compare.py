"""haulway.diff, haulway.manifest, haulway.repair and haulway.tensor_stats."""

from __future__ import annotations

import numbers

from . import _haulway
from ._config import given
from ._errors import InvalidArgumentError
from ._options import OPENING, READING
from ._reading import Reading, reads
from ._report import Report, as_report
from ._select import matcher
from ._source import path_of

COMPARING = {
    **OPENING,
    **{name: READING[name] for name in ("verify", "threads", "memory_budget")},
}
DIFFING = {**COMPARING, "progress": READING["progress"]}
MEASURING = {name: one for name, one in DIFFING.items() if name != "verify"}


def _not_mapped(reading):
    """What was read of a mapping stays in memory."""
    if reading.io == "auto":
        reading.io = "pread"
    return reading


def _tolerance(name, value):
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_number and value >= 0):
        raise InvalidArgumentError(
            f"{name}: expected a number of 0 or more, found {value!r}",
            "kInvalidArgument",
        )
    return float(value)


@reads(DIFFING)
def diff(a, b, *, include=None, exclude=None, ignore_dtype=False, atol=0,
         rtol=0, **options):
    """Compares the tensors of two checkpoints, of whatever formats they are.

    a, b: paths, bytes, or binary file objects.
    include, exclude: a glob of names, or several; what is excluded is not
        compared, come what may.
    ignore_dtype: compare tensors of different dtypes as numbers.
    atol, rtol: numbers are the same up to atol + rtol * abs(that of b), and a
        NaN is the same as a NaN. Without both, bytes must be equal.
    OPTIONS

    Returns a report that is true if they are equal, with `added` (names in b
    only), `removed` (in a only), `changed`, and how many are the `same`. A
    changed tensor has a `name`, `what` differs ("shape", "dtype" or "bytes"),
    the dtype and shape of `a` and `b`, and, of numbers that were compared,
    `elements`, `differing`, `max_abs` and `mean_abs` (of the differences that
    are finite), and how many elements are `nan` or `inf` in one of them.
    """
    reading = _not_mapped(Reading("diff", options, DIFFING))
    return as_report(_haulway.diff(
        reading.open(a), reading.open(b), matcher(include, exclude),
        bool(ignore_dtype), _tolerance("atol", atol), _tolerance("rtol", rtol),
        reading.verify, reading.threads, reading.progress,
        reading.memory_budget,
    ))


@reads(COMPARING)
def manifest(path, *, include=None, exclude=None, **options):
    """A digest of every tensor, the same for the same tensors in every format.

    path: as for load().
    include, exclude: a glob of names, or several.
    OPTIONS

    Returns a dict, sorted by name, of tuples (dtype, shape, sha256): the digest
    in hexadecimal of the elements, dense, in row-major and little-endian order;
    None for a meta tensor.
    """
    reading = _not_mapped(Reading("manifest", options, COMPARING))
    return _haulway.manifest(
        reading.open(path), matcher(include, exclude), reading.verify,
        reading.threads, reading.memory_budget,
    )


@reads(MEASURING)
def tensor_stats(path, *, include=None, exclude=None, **options):
    """Says what the numbers in every tensor are like.

    path: as for load().
    include, exclude: a glob of names, or several.
    OPTIONS

    Returns a dict by name of reports with `elements`, how many of them are `nan`
    and `inf`, and of the finite ones `min`, `max`, `mean` and `std` (as
    numpy.std() has it); of complex numbers, of their absolute values. None for a
    tensor that has no data, or no numbers.
    """
    reading = _not_mapped(Reading("tensor_stats", options, MEASURING))
    found = _haulway.tensor_stats(
        reading.open(path), matcher(include, exclude), reading.threads,
        reading.progress, reading.memory_budget,
    )
    return {name: one and Report(**one) for name, one in found.items()}


REPAIRING = {
    **OPENING, "threads": READING["threads"], "progress": READING["progress"]
}


@reads(REPAIRING)
def repair(path, out, sources=(), to=None, *, durability=None, **options):
    """Writes what is sound of a damaged or cut file, and the rest from copies.

    path: a path, bytes, or a binary file object.
    out: the file to write. It appears when all of it is there.
    sources: copies to take damaged and missing tensors from, in any format: one,
        or a list; the first in which a tensor is sound, and of the same dtype
        and shape, is taken.
    to: the format; by default what the name of `out` ends as.
    durability: as for save().
    OPTIONS

    Returns a report that is true if nothing is lost: `kept` (names), `taken`
    (each with name and from), `lost` and `left_out` (each with name and why),
    and `fault`, why the file could not be opened as it is, or None.
    """
    reading = _not_mapped(Reading("repair", options, REPAIRING))
    if not isinstance(sources, (list, tuple)):
        sources = [sources]
    return as_report(_haulway.repair(
        reading.source(path), [reading.source(one) for one in sources],
        path_of(out, "out"), to, reading.opening(),
        given("save", "durability", durability), reading.threads,
        reading.progress,
    ))
