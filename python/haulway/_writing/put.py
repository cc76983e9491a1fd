"""haulway.put()."""

from __future__ import annotations

from .. import _haulway
from .._errors import InvalidArgumentError
from .._reading.call import Reading
from .._reading.remote import BRINGING
from .._reading.source import open_bytes_of, path_of
from .call import Writing, writes


@writes("put", BRINGING)
def put(file, url, **options):
    """Uploads a file to a URL, where it appears complete or not at all.

    file: a path, bytes, a binary file object, or a URL.
    url: s3://, redis:// and the like, or a path.
    WRITING

    Options for both ends:
    OPTIONS

    Returns what save() returns.

    Raises Error; the object at the URL is then unchanged.
    """
    writing = Writing("put", options, BRINGING)
    if writing.overwrite and not writing.clobber:
        raise InvalidArgumentError(
            "both overwrite=True and clobber=False: expected one",
            "kInvalidArgument",
        )
    reading = Reading("put", writing.rest, BRINGING)
    existing = writing.existing if writing.clobber else "refuse"
    name = path_of(url, "url")
    source = open_bytes_of(file, "file", reading.remote)
    done = _haulway.upload(
        source,
        _haulway.Target(name, reading.remote, existing=existing),
        {**writing.engine(), **reading.some("threads")}, reading.progress,
    )
    reading.tell(done)
    return done
