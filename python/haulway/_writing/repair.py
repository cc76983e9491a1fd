"""haulway.repair()."""

from __future__ import annotations

from .. import _haulway
from .._options import READING, UNSIGNED, text
from .._reading.call import Reading
from .._reading.compare import not_mapped
from .._reading.report import as_report
from .._reading.source import naming, path_of
from .call import Writing, writes

REPAIRING = {
    **UNSIGNED, "threads": READING["threads"], "progress": READING["progress"]
}


@writes("repair", REPAIRING)
def repair(path, out, sources=(), to=None, **options):
    """Saves the intact tensors of a damaged or truncated file, and takes the
    others from copies.

    path: a path, bytes, or a binary file object.
    out: the file to write. It becomes visible when it is complete.
    sources: copies to take damaged and missing tensors from, in any format:
        one, or a list. The first copy in which a tensor is intact, with the
        same dtype and shape, is used.
    to: the format; by default the one that the ending of `out` names.
    WRITING

    Options for reading:
    OPTIONS

    Returns a report that is true if nothing is lost: `kept` (names), `taken`
    (each with name and from), `lost` and `left_out` (each with name and why),
    and `fault`, the reason why the file could not be opened as usual, or None.

    Raises Error if neither the file nor a copy can be read, or the new file
    cannot be written; no new file is made then.
    """
    writing = Writing("repair", options, REPAIRING)
    reading = not_mapped(Reading("repair", writing.rest, REPAIRING))
    if not isinstance(sources, (list, tuple)):
        sources = [sources]
    with naming("sources"):
        sources = [reading.source(one) for one in sources]
    return as_report(_haulway.repair(
        reading.source(path), sources,
        path_of(out, "out"), None if to is None else text("to", to),
        reading.opening(), {**writing.engine(), **reading.some("threads")},
        reading.remote, reading.progress,
    ))
