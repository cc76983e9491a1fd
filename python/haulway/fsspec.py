"""haulway:// for fsspec: whatever haulway.open() takes as a name, as a file.

    with fsspec.open("haulway://https://host/model.pt") as file: ...

fsspec finds this by its entry point; `import haulway` does not import it.
"""

# Design: fsspec's base class does what it can with a few methods, which are here.
# Reads are ranges of the library's sources. A written file is a temporary file
# that is uploaded when it is closed. Local folders are listed by the system, as
# by fsspec's own class for them: opening each file to learn its size, as at URLs,
# failed for pipes and for links that lead nowhere. A whole local tree is removed
# by the system too, since the base class would follow links out of it.

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import shutil
import stat

from . import _haulway
from ._config import for_saving
from ._describing import described, path_text
from ._errors import UnsupportedError
from ._host import import_host
from ._options import REMOTE
from ._reading.call import Reading
from ._reading.remote import target_of
from ._reading.source import folder_of, open_source
from ._reading.streams import SourceStream, UploadStream, read_range

__all__ = ["HaulwayFileSystem"]

_PREFIX = "haulway://"
_spec = import_host("fsspec.spec", "haulway.fsspec", "fsspec", "2026.9.0")


class HaulwayFileSystem(_spec.AbstractFileSystem):
    """Files by the names that haulway.open() takes: haulway://NAME, or chained
    before another URL, haulway::s3://bucket/key.

    fo, target_protocol: the rest of a chain, as fsspec passes it.
    target_options: a dict of options for it, merged with `options`.
    auto_mkdir: make the missing local folders of a file that is written.
    options: how URLs are reached; see docs/loading.md.

    The local file system and S3 have folders. Haulway cannot remove what a URL
    names: fsspec's own file system for the protocol does that. Threads may share
    one. Methods raise haulway.Error, which is an
    OSError where fsspec's users expect an OSError.
    """

    protocol = "haulway"

    def __init__(self, fo=None, target_protocol=None, target_options=None,
                 auto_mkdir=False, **options):
        options = {**options, **(target_options or {})}
        own = {name: options.pop(name) for name in REMOTE if name in options}
        super().__init__(**options)
        self._remote = Reading("haulway://", own, REMOTE).remote
        self._auto_mkdir = auto_mkdir
        # The target of the name "": the rest of a chained URL.
        self._chained = ""
        if target_protocol is not None:
            is_local = target_protocol in ("file", "local")
            self._chained = fo if is_local else f"{target_protocol}://{fo}"

    def __repr__(self):
        return described(self, self._chained and path_text(self._chained))

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        name = os.fspath(path).removeprefix(_PREFIX)
        local = _haulway.local_path(name)
        return name if local is None else os.path.expanduser(local)

    def _name(self, path):
        """Returns the library's name for an fsspec path."""
        return self._strip_protocol(path) or self._chained

    def _file(self, path):
        """Returns the library's name for the path of a file."""
        name = self._name(path)
        if folder_of(name) is not None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR),
                                    name)
        return name

    def _source(self, path):
        return open_source(self._file(path), remote=self._remote)

    def info(self, path, **kwargs):
        path = self._name(path)
        name = self._local(path)
        if name is not None:
            return _described(path, os.stat(name))
        if folder_of(path) is not None:
            return {"name": path, "size": 0, "type": "directory"}
        source = self._source(path)
        found = {"name": path, "size": source.size, "type": "file"}
        version = _haulway.source_stats(source)["version"]
        return {**found, "version": version} if version else found

    def ls(self, path, detail=True, **kwargs):
        path = self._name(path)
        name = self._local(path)
        if name is not None and os.path.isdir(name):
            found = _listed(name)
            return found if detail else [row["name"] for row in found]
        names = None if name is not None else self._names_in(path)
        # A file: its name counts if it is there.
        if names is None or not names and folder_of(path) is None:
            found = [self.info(path)]
            return found if detail else [path]
        return list(map(self.info, names)) if detail else names

    def _names_in(self, folder):
        """Returns the names in a folder at a URL; None if `folder` is not a
        folder."""
        # fsspec strips the trailing slash that marks a folder on S3.
        start = folder if folder.endswith("/") else folder + "/"
        if folder_of(start) is None:
            return None
        files = _haulway.list_files(start, self._remote)
        # Restore the slash for subfolders.
        parts = (name.removeprefix(start).partition("/")[:2] for name in files)
        return [start + "".join(one) for one in dict.fromkeys(parts)]

    def _open(self, path, mode="rb", autocommit=True, **kwargs):
        if mode == "rb":
            return SourceStream(self._source(path))
        if not autocommit:
            raise UnsupportedError(
                "transactions: expected files that appear when they are closed",
                "kUnsupported",
            )
        if mode not in ("wb", "xb", "ab"):
            raise ValueError(
                f"mode is {mode!r}: expected 'rb', 'wb', 'xb' or 'ab'")
        name = self._file(path)
        target = target_of(name, self._remote, existing="replace")
        if mode == "xb":
            self._refuse_existing(path)
            # A file that others make meanwhile is not replaced either.
            target = _haulway.Target(name, self._remote, existing="refuse")
        self._make_parent(path)
        before = None
        if mode == "ab":
            with contextlib.suppress(FileNotFoundError):
                before = SourceStream(self._source(path))
        return UploadStream(target, before=before)

    def _refuse_existing(self, path):
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST),
                                  path_text(self._name(path)))

    def _make_parent(self, path):
        """Makes the local folder of a file that is written, if asked for."""
        name = self._local(path)
        if self._auto_mkdir and name is not None:
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)

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

    def get_file(self, rpath, lpath, callback=None, outfile=None, **kwargs):
        """Copies a file to a local path, where it appears complete or not at
        all."""
        more = {} if callback is None else {"callback": callback}
        if outfile is not None or not isinstance(lpath, (str, os.PathLike)) or (
                self.isdir(rpath)):
            return super().get_file(rpath, lpath, outfile=outfile, **more,
                                    **kwargs)
        source, lpath = self._source(rpath), os.fspath(lpath)
        os.makedirs(os.path.dirname(lpath) or ".", exist_ok=True)
        _haulway.upload(source, lpath, for_saving(""), None)
        if callback is not None:
            callback.set_size(source.size)
            callback.relative_update(source.size)

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        with self.open(path, "xb" if mode == "create" else "wb") as out:
            out.write(value)

    def exists(self, path, **kwargs):
        """Returns whether there is a file or folder. Raises if a server does not
        say so: fsspec's own takes that for no."""
        try:
            self.info(path, **kwargs)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def isfile(self, path):
        """Returns whether there is a file. Raises as exists() does."""
        try:
            return self.info(path)["type"] == "file"
        except (FileNotFoundError, NotADirectoryError):
            return False

    def isdir(self, path):
        return folder_of(self._name(path)) is not None

    def created(self, path):
        """When a local file was last made or renamed, in UTC."""
        return self._time(path, "st_ctime")

    def modified(self, path):
        """When the bytes of a local file last changed, in UTC."""
        return self._time(path, "st_mtime")

    def _time(self, path, field):
        name = self._local(path)
        if name is None:
            raise UnsupportedError(
                f"times of {self._name(path)}: expected a local path",
                "kUnsupported",
            )
        seconds = getattr(os.stat(name), field)
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)

    # Changing files

    def _local(self, path):
        """Returns the local path, or None for a URL."""
        return _haulway.local_path(self._name(path))

    def mkdir(self, path, create_parents=True, **kwargs):
        name = self._local(path)
        if name is None:
            return  # Servers have no folders, only names with slashes.
        (os.makedirs if create_parents else os.mkdir)(name)

    def makedirs(self, path, exist_ok=False):
        name = self._local(path)
        if name is not None:
            os.makedirs(name, exist_ok=exist_ok)

    def rmdir(self, path):
        name = self._local(path)
        if name is not None:
            os.rmdir(name)

    def rm(self, path, recursive=False, maxdepth=None):
        """Removes files, and with `recursive` folders; of a link, the link."""
        for one in self.expand_path(path):
            name = self._local(one)
            if name is None or maxdepth is not None:
                super().rm(one, recursive=recursive, maxdepth=maxdepth)
            elif recursive and os.path.isdir(name) and not os.path.islink(name):
                shutil.rmtree(name)
            else:
                self.rm_file(one)

    def rm_file(self, path):
        name = self._local(path)
        if name is None:
            files, theirs = import_host(
                "fsspec.core", "haulway.fsspec", "fsspec", "2026.9.0"
            ).url_to_fs(self._name(path))
            files.rm_file(theirs)
        elif os.path.isdir(name) and not os.path.islink(name):
            os.rmdir(name)
        else:
            os.remove(name)

    def cp_file(self, path1, path2, **kwargs):
        if self.isdir(path1):
            return self.makedirs(path2, exist_ok=True)
        self._make_parent(path2)
        _haulway.upload(
            self._source(path1),
            _haulway.Target(self._name(path2), self._remote,
                            existing="replace"),
            for_saving(""), None,
        )

    def mv(self, path1, path2, recursive=False, maxdepth=None, **kwargs):
        """Renames local files and folders in one step; others, and those that
        go to another disk, are copied and then removed."""
        local = [self._local(path) for path in (path1, path2)]
        if None in local:
            return super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth)
        self._make_parent(path2)
        try:
            os.replace(*local)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._move_to_another_disk(*local)

    def _move_to_another_disk(self, before, after):
        if os.path.isfile(before) and not os.path.islink(before):
            self.cp_file(before, after)
            os.remove(before)
            return
        if os.path.isdir(after) and not os.path.islink(after):
            os.rmdir(after)  # Renaming replaces only an empty folder, too.
        shutil.move(before, after)

    def _parent(self, path):
        return self._strip_protocol(path).rpartition("/")[0]


def _described(name, found):
    """Returns fsspec's description of a file.

    found: its os.stat_result.
    """
    mode = found.st_mode
    kind = (
        "directory" if stat.S_ISDIR(mode)
        else "file" if stat.S_ISREG(mode) else "other"
    )
    return {"name": name, "size": found.st_size if kind == "file" else 0,
            "type": kind}


def _listed(folder):
    """Returns descriptions of what a local folder holds, in order.

    A link to a folder is no directory, so that a walk stays within a tree, and
    ends.
    """
    rows = []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            try:
                row = _described(entry.path, entry.stat())
            except OSError:
                if not entry.is_symlink():
                    continue  # It was removed meanwhile.
                row = {"name": entry.path, "size": 0, "type": "other"}
            if row["type"] == "directory" and entry.is_symlink():
                row["type"] = "other"
            rows.append(row)
    return rows
