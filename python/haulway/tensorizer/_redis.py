"""Reads Redis keys that are not a Tensorizer file: any PREFIX:NAME:OFFSET, as
the reference's streams do."""

from __future__ import annotations

import bisect
import re
import urllib.parse

from .. import _haulway
from .._errors import NotFoundError
from .._importing import imported

_ASKED_TOGETHER = 256


class _Keys:
    """Reads keys one after another, for _haulway.file_object_source()."""

    parallel = 1

    def __init__(self, client, keys, starts, sizes):
        self._client = client
        self._keys = keys
        self._starts = starts
        self._sizes = sizes

    def read_many(self, ranges):
        pieces = []
        for offset, view in ranges:
            done = 0
            while done < view.nbytes:
                row = bisect.bisect_right(self._starts, offset + done) - 1
                within = offset + done - self._starts[row]
                count = min(view.nbytes - done, self._sizes[row] - within)
                if count <= 0:
                    raise EOFError(f"no key holds byte {offset + done}")
                pieces.append((row, within, view[done:done + count]))
                done += count
        with self._client.pipeline(transaction=False) as pipeline:
            for row, within, out in pieces:
                pipeline.getrange(
                    self._keys[row], within, within + out.nbytes - 1
                )
            for (row, _, out), value in zip(pieces, pipeline.execute()):
                if len(value) != out.nbytes:
                    raise EOFError(f"key {self._keys[row]!r} was cut")
                out[:] = value


def _numbered(keys, prefix):
    """Returns (offset, key) of the keys with this prefix, sorted by offset."""
    pattern = re.compile(
        re.escape(prefix.encode()) + rb":[^:]*:([0-9]{1,18})", re.DOTALL
    )
    return sorted(
        (int(found[1]), key)
        for key in keys
        if (found := pattern.fullmatch(key)) is not None
    )


def open_keys(uri):
    """Searches the keys with a prefix and returns a source over them."""
    redis = imported("redis")
    prefix = urllib.parse.urlsplit(uri).path.lstrip("/")
    server = urllib.parse.urlunsplit(
        urllib.parse.urlsplit(uri)._replace(path="/0")
    )
    client = redis.Redis.from_url(server)
    glob = re.sub(r"([*?\[\]\\^])", r"\\\1", prefix)
    found = _numbered(client.scan_iter(f"{glob}:*", _ASKED_TOGETHER), prefix)
    if not found:
        raise NotFoundError(f"no key begins {prefix!r}:", "kNotFound")
    starts, keys = [start for start, _ in found], [key for _, key in found]
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.strlen(key)
        sizes = pipeline.execute()
    return _haulway.file_object_source(
        _Keys(client, keys, starts, sizes), starts[-1] + sizes[-1],
        f"redis keys {prefix}", 1,
    )


def url_of(client, prefix):
    """Returns the URL of a prefix on the server of a redis client."""
    if not hasattr(client, "connection_pool"):
        raise TypeError(
            f"redis_client is {type(client).__name__}: expected a redis.Redis"
        )
    told = client.connection_pool.connection_kwargs
    quote = urllib.parse.quote
    user = ""
    if told.get("password"):
        name = quote(told.get("username") or "", safe="")
        user = f"{name}:{quote(told['password'], safe='')}@"
    query = f"?db={told.get('db') or 0}&prefix={quote(prefix, safe='')}"
    if told.get("path"):
        return f"redis+unix://{user}{quote(told['path'])}{query}"
    kind = client.connection_pool.connection_class
    scheme = "rediss" if "SSL" in kind.__name__ else "redis"
    host = told.get("host", "localhost")
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{user}{host}:{told.get('port', 6379)}/{query}"
