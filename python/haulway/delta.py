"""Versions of weights: folders that each hold a full checkpoint, or what
changed since an older one.

    for version in haulway.delta.versions("run"):
        print(version.id, version.kind, version.complete)

    state = haulway.load("run/weight_v000004", base="model")

A version is opened, loaded, converted and compared like any checkpoint; `base`
names the checkpoint before the first version unless it lies beside the
versions. The functions of this module look at all versions of a run. Any
thread may call them at any time.

    with haulway.delta.publisher("run", "model") as publisher:
        for step in training:
            publisher.publish(model.state_dict())

    for version in haulway.delta.follow("run"):
        state = haulway.load(version.path, base="model")
"""

from __future__ import annotations

from collections.abc import Mapping

from . import _haulway
from ._errors import ArgumentTypeError, InvalidArgumentError
from ._options import (
    NAMING,
    READING,
    REMOTE,
    UNSIGNED,
    check_flag,
    one_of,
    size,
    text,
    whole,
)
from ._reading.call import Reading, reads
from ._reading.report import Report, as_report
from ._reading.signed import refuse_unsigned
from ._reading.source import naming, path_of
from ._writing.versions import Publisher

__all__ = [
    "Publisher", "Version", "apply", "compact", "fold", "follow", "prune",
    "publisher", "verify", "versions", "write",
]

_LISTING = dict(REMOTE)
_VERIFYING = {
    **REMOTE, "base": NAMING["base"], "threads": READING["threads"],
}
_APPLYING = dict(_VERIFYING)
_LISTING_WITH_THREADS = {**REMOTE, "threads": READING["threads"]}
_WRITING = {**UNSIGNED, "threads": READING["threads"]}
_PUBLISHING = {**REMOTE, "threads": READING["threads"]}
# follow() has a `timeout` of its own.
_FOLLOWING = {name: option for name, option in REMOTE.items()
              if name != "timeout"}


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

    Raises NotFoundError if there is no such folder, MismatchError if two whole
    folders hold one version, and UnsupportedError for a URL that cannot be
    listed, as of HTTP.
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
    tensor's. Versions that build on a faulty one are not decoded. `unchecked`
    are the ids of versions that were not decoded because the checkpoint before
    the first version was not named: then the report is false, too.

    Raises NotFoundError if there are no versions, and Error if a file cannot be
    read.
    """
    reading = Reading("verify", options, _VERIFYING)
    with naming("url"):
        name = path_of(url)
    found = _haulway.delta_verify(
        name, reading.base or "", reading.remote, reading.threads or 0)
    return as_report(found)


@reads(_APPLYING)
def apply(target, url, *, to=None, start=None, durability=None, **options):
    """Brings a local folder of safetensors files to a version, in place.

    target: a folder. An empty one, or one that does not exist, is first filled
        from the newest full version at or below the goal or, without one, from
        `base`. Configuration and tokenizer come from `base` if the full version
        lacks them.
    url: the folder of the versions, or an s3:// name.
    to: the number or id of the version; by default the newest complete one. 0
        is the base.
    start: the number or id of the version that a folder holds that does not
        state one. An empty folder holds none.
    durability: "full", the default, waits until the folder survives a loss of
        power; "none" does not.
    OPTIONS

    The folder is kept as SGLang's receiver keeps it: `.weight_sync/state.json`
    states its version, and `.weight_sync/lock` is locked meanwhile. Each version
    is applied as a whole or not at all: if one is refused, the folder is as
    after the version before. If the process is killed, the folder may state no
    version; then it cannot be opened, and the next call ends what was begun.
    A full version replaces the weights; other files that it lacks stay. Links
    in the folder are replaced by files; what they lead to is not changed.

    Returns a report with `to`, `versions` and `tensors` (how many were applied
    and changed), `written_bytes`, `resumed` (whether an interrupted call was
    ended first), `seconds`, and `from`, the version before, None for an empty
    folder: `getattr(report, "from")`.

    Raises InvalidArgumentError if the folder states no version or a newer one,
    NotFoundError if a version or the base is not there, and Error if a version
    is faulty or a file cannot be read or written.
    """
    refuse_unsigned("versions that are applied")
    reading = Reading("apply", options, _APPLYING)
    if durability is not None:
        one_of("full", "none")("durability", durability)
    with naming("url"):
        run = path_of(url)
    return as_report(_haulway.delta_apply(path_of(target, "target"), run, {
        "to": "" if to is None else _named("to", to),
        "start": "" if start is None else _named("start", start),
        "base": reading.base or "",
        "threads": reading.threads or 0,
        "is_fast": durability == "none",
        "remote": reading.remote,
    }))


@reads(_LISTING_WITH_THREADS)
def fold(url, out, *, start, to, **options):
    """Joins consecutive deltas into one.

    url: the folder of the versions, or an s3:// name.
    out: the folder of the new delta, which must not exist, or an s3:// name.
    start, to: the number or id of the version on which it builds, and of the
        version that it makes.
    OPTIONS

    The bytes of the weights are not needed. The result has the checksums of the
    last version. Returns the Version. Raises UnsupportedError if a full version
    or deltas of several encodings or checksums are between, NotFoundError if a
    version is not there, InvalidArgumentError if `out` exists, and Error if a
    version is faulty. Then nothing is there.
    """
    reading = Reading("fold", options, _LISTING_WITH_THREADS)
    with naming("url"):
        run = path_of(url)
    return Version(**_haulway.delta_fold(
        run, path_of(out, "out"), _named("start", start), _named("to", to),
        _joining(reading)))


@reads(_APPLYING)
def compact(url, out, *, version=None, shard=None, **options):
    """Writes a version as a full one, which needs no other.

    url: the folder of the versions, or an s3:// name.
    out: the folder of the new version, which must not exist, or an s3:// name.
    version: its number or id; by default the newest complete one.
    shard: maximum bytes of tensors in one shard, or a size like "5GB"; None
        writes one shard.
    OPTIONS

    Returns the Version. Raises NotFoundError if the version, or one on which it
    builds, is not there, InvalidArgumentError if `out` exists, and Error if a
    version is faulty. Then nothing is there.
    """
    reading = Reading("compact", options, _APPLYING)
    with naming("url"):
        run = path_of(url)
    return Version(**_haulway.delta_compact(
        run, path_of(out, "out"),
        "" if version is None else _named("version", version),
        _joining(reading, base=reading.base or "",
                 shard=0 if shard is None else size("shard", shard, 1))))


def _joining(reading, base="", shard=0):
    return {"base": base, "shard": shard, "threads": reading.threads or 0,
            "remote": reading.remote}


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

    `base` is that of both checkpoints.

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


@reads(_PUBLISHING)
def publisher(url, base, *, encoding="xor", checksum="xxh3-128", shard=None,
              full_every=None, keep=None, layout="weight_v", group=None,
              durability=None, **options):
    """Opens a folder to publish versions from a training loop. Returns a
    Publisher, which keeps a copy of the newest version in memory.

    url: a local folder, which is made, or an s3:// name. If there are versions,
        the publisher goes on after the newest whole one.
    base: the checkpoint before the first version, a path or URL, or a dict of
        its tensors. If it is a folder, its configuration and tokenizer are
        copied into full versions.
    encoding, checksum: as for write().
    shard: maximum bytes in one file, or a size like "1GB"; None writes one file
        a version and rank.
    full_every: write a full version whenever the number of a version is a
        multiple of this.
    keep: remove old versions after each one, but keep so many and all that they
        need. Without full versions every version needs all before it.
    layout: "weight_v" for weight_v000001, as trainers and SGLang have it; "v"
        for v1, as ModelExpress has it.
    group: a process group of torch.distributed whose ranks publish together,
        each its own tensors. All ranks call publisher() and publish(), and see
        the same folder.
    durability: "full" (the default) waits until a version survives a loss of
        power, "none" does not.
    OPTIONS

    A version of a local folder appears in one step; below an s3:// name its
    index is written last. What a killed publisher left is hidden, and is
    removed by the next one.

    Raises UnavailableError while another publisher has the local folder;
    InvalidArgumentError if the newest version there is not complete, or is
    called otherwise than in this layout; and Error if the base or a version
    cannot be read.
    """
    one_of("xor", "overwrite")("encoding", encoding)
    one_of("xxh3-128", "blake3", "adler32")("checksum", checksum)
    one_of("weight_v", "v")("layout", layout)
    durability = "full" if durability is None else durability
    one_of("full", "none")("durability", durability)
    reading = Reading("publisher", options, _PUBLISHING)
    with naming("base"):
        base = base if isinstance(base, Mapping) else path_of(base)
    given = {
        "encoding": encoding,
        "checksum": checksum,
        "shard": 0 if shard is None else size("shard", shard, 1),
        "full_every": 0 if full_every is None
        else whole("full_every", full_every, 1),
        "keep": 0 if keep is None else whole("keep", keep, 1),
        "layout": layout,
        "threads": reading.threads or 0,
        "is_fast": durability == "none",
        "remote": reading.remote,
    }
    return Publisher(path_of(url, "url"), base, given, group,
                     lambda made: Version(**made))


class _Following:
    """The versions of a run as they become whole."""

    def __init__(self, core, timeout):
        self._core = core
        self._timeout = timeout

    def __iter__(self):
        return self

    def __next__(self):
        return Version(**self._core.next(self._timeout))


@reads(_FOLLOWING)
def follow(url, *, newer_than=None, timeout=None, poll=0.2, **options):
    """Returns an iterator of the versions of a run. It waits for each until
    that is whole: its index is valid, and every shard as long as its header
    says.

    url: a local folder, which may not exist yet, or an s3:// name.
    newer_than: the number of the version that the caller has, for those after
        it. None begins with those that are there: the first one that is full or
        builds on version 0.
    timeout: seconds to wait for each version; None waits for ever.
    poll: seconds after which the folder is listed again. Changes of a local
        folder by this machine are noticed at once.
    OPTIONS

    Versions come by number. One that is not there yet, or not whole, holds back
    those after it. If all versions that came were removed, the next full one
    follows; so it does after a second if the next one is not there, or not
    whole, although newer ones were there at the first look. If the folder has a
    file `latest`, whose text ends in the name of a version, none beyond that
    comes.

    Raises UnsupportedError for a URL that cannot be listed, as of HTTP. The
    iterator raises TimedOutError if no version came for `timeout` seconds,
    NotFoundError, which names the version that is missing, if the versions that
    were there at the first look build on it and no newer one is full, and Error
    if the folder cannot be listed; it may be asked again afterwards.
    """
    if newer_than is not None:
        newer_than = whole("newer_than", newer_than, 0)
    timeout = None if timeout is None else _seconds("timeout", timeout, 0)
    poll = _seconds("poll", poll, 0.001)
    refuse_unsigned("versions that are followed")
    reading = Reading("follow", options, _FOLLOWING)
    with naming("url"):
        name = path_of(url)
    return _Following(
        _haulway.VersionFollower.open(name, newer_than, poll, reading.remote),
        timeout,
    )


@reads(_LISTING)
def prune(url, *, keep=1, dry_run=False, **options):
    """Removes old versions. Keeps the newest whole ones and all that they need.

    url: a local folder, or an s3:// name.
    keep: how many versions to keep, besides those that they need.
    dry_run: remove nothing, only tell.
    OPTIONS

    Versions that are not complete are removed, too, unless they are newer than
    all complete ones. Whenever this ends, also by a kill, every version that is
    left can be opened.

    Returns a report with `removed` and `kept`, the ids of versions. Raises
    NotFoundError if there is no such folder, and Error if a version cannot be
    removed.
    """
    reading = Reading("prune", options, _LISTING)
    with naming("url"):
        name = path_of(url)
    return as_report(_haulway.delta_prune(
        name, whole("keep", keep, 1), check_flag("dry_run", dry_run),
        reading.remote))


def _seconds(name, value, least):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected seconds",
            "kInvalidArgument",
        )
    if not least <= value <= 1e9:
        raise InvalidArgumentError(
            f"{name} is {value}: expected at least {least} seconds",
            "kInvalidArgument",
        )
    return float(value)


def _named(name, value):
    """Returns how versions name a version that is given by number or name."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected a number or a name",
            "kInvalidArgument",
        )
    return f"{value:06}" if isinstance(value, int) else text(name, value)
