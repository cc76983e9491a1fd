"""haulway.diff, haulway.manifest, haulway.repair and haulway.tensor_stats."""

from __future__ import annotations

import numbers

from .. import _haulway
from .._errors import InvalidArgumentError, NotFoundError
from .._options import OPENING, READING, check_flag
from .call import Reading, reads
from .report import Report, as_report
from .select import matcher

COMPARING = {
    **OPENING,
    **{name: READING[name] for name in ("verify", "threads", "memory_budget")},
}
DIFFING = {**COMPARING, "progress": READING["progress"]}
MEASURING = {name: one for name, one in DIFFING.items() if name != "verify"}


def not_mapped(reading):
    """Replaces mapping by reads: pages of a mapping that were read stay in
    memory."""
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
    """Compares the tensors of two checkpoints of any formats.

    a, b: paths, bytes, or binary file objects.
    include, exclude: a glob of names, or several; names that match `exclude`
        are never compared.
    ignore_dtype: compare tensors of different dtypes by value.
    atol, rtol: numbers are equal if they differ by at most atol + rtol *
        abs(number of b); a NaN equals a NaN. If both are 0, the bytes must be
        equal.
    OPTIONS

    Returns a report that is true if the checkpoints are equal, with `added`
    (names only in b), `removed` (names only in a), `changed`, and `same`, the
    number of equal tensors. A changed tensor has a `name`, `what` differs
    ("shape", "dtype" or "bytes"), the dtype and shape in `a` and `b` and, if
    the tensors were compared as numbers, `elements`, `differing`, `max_abs`
    and `mean_abs` (over the finite differences), and the number of elements
    that are `nan` or `inf` in at least one of the two.

    Raises NotFoundError if `include` and `exclude` select no tensor of a or b,
    and Error if a file cannot be read, or a checksum differs.
    """
    reading = not_mapped(Reading("diff", options, DIFFING))
    names = matcher(include, exclude)
    report = as_report(_haulway.diff(
        reading.open(a), reading.open(b), names,
        {
            "ignore_dtype": check_flag("ignore_dtype", ignore_dtype),
            "atol": _tolerance("atol", atol), "rtol": _tolerance("rtol", rtol),
            **reading.some("verify", "threads", "memory_budget"),
        },
        reading.progress,
    ))
    if names is not None and report and report.same == 0:
        raise NotFoundError("include and exclude select no tensor", "kNotFound")
    return report


@reads(DIFFING)
def manifest(path, *, include=None, exclude=None, **options):
    """Returns a digest of every tensor; equal tensors have equal digests in
    every format.

    path: as for load().
    include, exclude: a glob of names, or several.
    OPTIONS

    Returns a dict, sorted by name, of tuples (dtype, shape, sha256). The
    digest covers the elements, dense, in row-major and little-endian order,
    and is hexadecimal; None for a meta tensor.

    Raises Error if a file cannot be read, or a checksum differs.
    """
    reading = not_mapped(Reading("manifest", options, DIFFING))
    return _haulway.manifest(
        reading.open(path), matcher(include, exclude),
        reading.some("verify", "threads", "memory_budget"), reading.progress,
    )


@reads(MEASURING)
def tensor_stats(path, *, include=None, exclude=None, **options):
    """Returns statistics of the elements of every tensor.

    path: as for load().
    include, exclude: a glob of names, or several.
    OPTIONS

    Returns a dict by name of reports with `elements`, the numbers of elements
    that are `nan` and `inf`, and, over the finite elements, `min`, `max`,
    `mean` and `std` (as numpy.std()). For complex numbers these are computed
    over absolute values. None for a tensor without data or whose elements are
    not numbers.

    Raises Error if a file cannot be read, or a checksum differs.
    """
    reading = not_mapped(Reading("tensor_stats", options, MEASURING))
    found = _haulway.tensor_stats(
        reading.open(path), matcher(include, exclude),
        reading.some("threads", "memory_budget"), reading.progress,
    )
    return {name: one and Report(**one) for name, one in found.items()}
