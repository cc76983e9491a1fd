"""Versions of weights: folders that each hold a full checkpoint, or what
changed since an older one.

    for version in haulway.delta.versions("run"):
        print(version.id, version.kind, version.complete)

    state = haulway.load("run/weight_v000004", base="model")

A version is opened, loaded, converted and compared like any checkpoint; `base`
names the checkpoint before the first version unless it lies beside the
versions. The functions of this module look at all versions of a run. Any
thread may call them at any time.
"""

from __future__ import annotations

from . import _haulway
from ._errors import ArgumentTypeError
from ._options import NAMING, OPENING, READING, REMOTE, one_of, size, text
from ._reading.call import Reading, reads
from ._reading.report import Report, as_report
from ._reading.source import naming, path_of

__all__ = ["Version", "verify", "versions", "write"]

_LISTING = dict(REMOTE)
_VERIFYING = {
    **REMOTE, "base": NAMING["base"], "threads": READING["threads"],
}
_WRITING = {**OPENING, "threads": READING["threads"]}


class Version(Report):
    """A version in a folder of versions.

    `id` is how other versions name it ("000004", "v4"), `number` its number,
    `kind` "full" or "delta". A delta has a `base` (the id of the version on
    which it builds), an `encoding` ("xor" or "overwrite") and a `checksum`
    ("xxh3-128", "blake3" or "adler32"); a full version has None. `tensors` is
    how many tensors its index lists, `bytes` the size of its shards, and
    `path` its folder. `complete` is false while files are not there or not
    whole; `missing` names them. A plain value: threads may share one.
    """

    def __bool__(self):
        return True


@reads(_LISTING)
def versions(url, **options):
    """Lists the versions in a folder.

    url: a folder, or an s3:// name. Versions in its folder `updates` are
        listed, too.
    OPTIONS

    Returns a list of Version, sorted by number, incomplete versions too.

    Raises NotFoundError if there is no such folder, and UnsupportedError for a
    URL that cannot be listed, as of HTTP.
    """
    reading = Reading("versions", options, _LISTING)
    with naming("url"):
        name = path_of(url)
    return [Version(**one) for one in
            _haulway.delta_versions(name, reading.remote)]


@reads(_VERIFYING)
def verify(url, **options):
    """Checks every version in a folder: its files, and the checksums of every
    tensor after each version that changed it.

    url: a folder, or an s3:// name.
    OPTIONS

    Returns a report that is true if nothing is wrong, with `ok`, `versions`
    (how many there are), `checked_bytes`, and `findings`, each with `code`,
    `message`, `version`, and `tensor`, which is None if the fault is not one
    tensor's. Versions that build on a faulty one are not decoded.

    Raises NotFoundError if there are no versions, and Error if a file cannot be
    read.
    """
    reading = Reading("verify", options, _VERIFYING)
    with naming("url"):
        name = path_of(url)
    found = _haulway.delta_verify(
        name, reading.base or "", reading.remote, reading.threads or 0)
    return as_report(found)


@reads(_WRITING)
def write(old, new, out, *, version, base_version, encoding="xor",
          checksum="xxh3-128", shard=None, durability="full", **options):
    """Writes the version that turns one checkpoint into another.

    old, new: paths, bytes, or binary file objects of any format, with the same
        tensors. A version is one, too.
    out: the folder of the version, which must not exist, or an s3:// name. A
        local folder appears in one step; below an s3:// name the index is
        written last. Trainers call it weight_v000001.
    version, base_version: the number or the name of the version, and of that
        which `old` is. A number becomes six digits.
    encoding: "xor", or "overwrite" with the positions of the changed bytes,
        for tensors below 4 GiB.
    checksum: "xxh3-128", "blake3" or "adler32".
    shard: maximum bytes of changes in one shard, or a size like "1GB"; None
        writes one shard.
    durability: "full" waits until the files survive a loss of power, "none"
        does not.
    OPTIONS

    The changes of all tensors are in memory before they are written. `base` is
    that of both checkpoints.

    Returns the Version. Raises MismatchError, and names the tensor, if a tensor
    is new, missing, or of another dtype or shape; InvalidArgumentError if `out`
    exists or has the number of another version; and Error if a file cannot be
    read or written. Then nothing is there.
    """
    one_of("xor", "overwrite")("encoding", encoding)
    one_of("xxh3-128", "blake3", "adler32")("checksum", checksum)
    one_of("full", "none")("durability", durability)
    reading = Reading("write", options, _WRITING)
    with naming("old"):
        before = reading.open(old, mapped=True)
    with naming("new"):
        after = reading.open(new, mapped=True)
    return Version(**_haulway.delta_write(before, after, path_of(out, "out"), {
        "version": _named("version", version),
        "base_version": _named("base_version", base_version),
        "encoding": encoding,
        "checksum": checksum,
        "shard": 0 if shard is None else size("shard", shard, 1),
        "threads": reading.threads or 0,
        "is_fast": durability == "none",
        "remote": reading.remote,
    }))


def _named(name, value):
    """Returns how versions name a version that is given by number or name."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected a number or a name",
            "kInvalidArgument",
        )
    return f"{value:06}" if isinstance(value, int) else text(name, value)
