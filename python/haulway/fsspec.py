"""haulway:// for fsspec: whatever haulway.open() takes as a name, as a file.

    with fsspec.open("haulway://https://host/model.pt") as file: ...

fsspec finds this by its entry point; `import haulway` does not import it.
"""

from __future__ import annotations

import os

from . import _haulway
from ._host import import_host
from ._options import REMOTE
from ._reading import Reading
from ._remote import target_of
from ._source import folder_of, open_source
from ._streams import SourceStream, UploadStream, read_range

__all__ = ["HaulwayFileSystem"]

_PREFIX = "haulway://"
_spec = import_host("fsspec.spec", "haulway.fsspec", "fsspec", "2026.9.0")


class HaulwayFileSystem(_spec.AbstractFileSystem):
    """Files by the names that haulway.open() takes.

    Keywords are how URLs are reached; see docs/loading.md. Folders are listed
    only where they are local.
    """

    protocol = "haulway"

    def __init__(self, **options):
        own = {name: options.pop(name) for name in REMOTE if name in options}
        super().__init__(**options)
        self._remote = Reading("haulway://", own, REMOTE).remote

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return os.fspath(path).removeprefix(_PREFIX)

    def _source(self, path):
        return open_source(self._strip_protocol(path), remote=self._remote)

    def info(self, path, **kwargs):
        path = self._strip_protocol(path)
        if folder_of(path) is not None:
            return {"name": path, "size": 0, "type": "directory"}
        source = self._source(path)
        found = {"name": path, "size": source.size, "type": "file"}
        version = _haulway.source_stats(source)["version"]
        return {**found, "version": version} if version else found

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        names = self._names_in(path) or [path]
        if not detail and names != [path]:
            return names
        found = [self.info(name) for name in names]
        return found if detail else names

    def _names_in(self, folder):
        """What a folder has; nothing of what is none."""
        # fsspec takes the slash away by which a folder of S3 is known.
        start = folder if folder.endswith("/") else folder + "/"
        if folder_of(start) is None:
            return []
        if "://" not in folder:
            return [os.path.join(folder, name)
                    for name in sorted(os.listdir(folder))]
        files = _haulway.list_files(start, self._remote)
        # It is given again to those below.
        parts = (name.removeprefix(start).partition("/")[:2] for name in files)
        return [start + "".join(one) for one in dict.fromkeys(parts)]

    def _open(self, path, mode="rb", **kwargs):
        if mode == "rb":
            return SourceStream(self._source(path))
        if mode != "wb":
            raise ValueError(f"mode is {mode!r}: expected 'rb' or 'wb'")
        return UploadStream(target_of(self._strip_protocol(path), self._remote))

    def cat_file(self, path, start=None, end=None, **kwargs):
        source = self._source(path)
        begin, end, _ = slice(start, end).indices(source.size)
        return read_range(source, begin, max(begin, end))

    def cat_ranges(self, paths, starts, ends, max_gap=None,
                   on_error="return", **kwargs):
        """All ranges of a file at once."""
        starts, ends = (
            list(one) if isinstance(one, (list, tuple)) else [one] * len(paths)
            for one in (starts, ends)
        )
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("paths, starts and ends are not as many")
        results = [None] * len(paths)
        for path in dict.fromkeys(paths):
            rows = [i for i, one in enumerate(paths) if one == path]
            try:
                source = self._source(path)
                asked = [
                    slice(starts[i], ends[i]).indices(source.size)[:2]
                    for i in rows
                ]
                parts = [bytearray(max(0, end - at)) for at, end in asked]
                _haulway.read_many(
                    source, [(at, part)
                             for (at, _), part in zip(asked, parts)]
                )
                found = map(bytes, parts)
            except Exception as error:
                if on_error == "raise":
                    raise
                found = [error] * len(rows)
            for i, one in zip(rows, found):
                results[i] = one
        return results

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        self._strip_protocol(path)
        with self._open(path, "wb") as out:
            out.write(value)

    def isdir(self, path):
        return folder_of(self._strip_protocol(path)) is not None

    def _parent(self, path):
        return self._strip_protocol(path).rpartition("/")[0]
