"""Opens paths, bytes, file objects and lists of them as sources."""

# Design: the library opens a path. A file object is read in the fastest way that
# is certain to give the object's own bytes: through its descriptor, if it is one
# of Python's own types over a regular file; by ranges, if it can seek; otherwise
# whole, at once. Faults of use that every
# way would report differently (an object that is open as text, or at its end)
# are looked for here.

import contextlib
import errno
import io
import mmap
import os
import re
import stat
import sys
import warnings

from .. import _haulway
from .._config import resolve
from .._errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    TruncatedError,
    UnsupportedError,
)
from .._importing import imported
from .._log import debug_log
from .._options import REMOTE, check_home
from .file_objects import ranges_of, ranges_of_open_file
from .signed import asked_by_config, open_signed, refuse_unsigned
from .streams import SourceStream


def is_path(file):
    return isinstance(file, (str, os.PathLike))


def path_of(path, what="path"):
    """Returns the text of a path or URL; raises for any other object, and for a
    path in a home folder that nobody expanded."""
    try:
        found = os.fsdecode(os.fspath(path))
    except TypeError as error:
        raise ArgumentTypeError(
            f"{what} is {type(path).__name__}: expected a path",
            "kInvalidArgument",
        ) from error
    return check_home(found)


def is_delta(index):
    """Returns whether the bytes of an index of shards are those of a version of
    weights that is a delta."""
    json = imported("json")  # Nothing else that loads needs it.
    try:
        metadata = json.loads(index)["metadata"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(metadata, dict) and "delta_encoding" in metadata


def path_to_write(path, what="path"):
    """Returns path_of() for a new file; raises if it has a NUL byte."""
    found = path_of(path, what)
    if "\0" in found:
        raise InvalidArgumentError(
            f"{what} holds a NUL byte", "kInvalidArgument"
        )
    return found


@contextlib.contextmanager
def naming(argument, errors=ArgumentTypeError):
    """Returns a `with` block that adds the argument's name to such errors."""
    try:
        yield
    except errors as error:
        raise type(error)(
            f"{argument}: {error.message}", error.code, error.byte
        ) from None


def are_files(file):
    """Returns whether `file` is a local path or a list of local paths."""
    if isinstance(file, (list, tuple)):
        return all(map(are_files, file))
    if not is_path(file):
        return False
    scheme, mark, _ = path_of(file).partition("://")
    return not mark or "/" in scheme or scheme.lower() == "file"


def may_map(file):
    """Returns whether `file` may be mapped unasked: local paths may, but not of
    file systems whose bytes come over a network or from a program, where each
    page that is touched is a request."""
    if isinstance(file, (list, tuple)):
        return all(map(may_map, file))
    return are_files(file) and not _haulway.is_on_remote(
        path_of(file).removeprefix("file://"))


def lasting(file):
    """Returns a name for the same file that stays valid if this process changes
    its folder: relative paths become absolute. For an unnamed object, returns
    its type."""
    if isinstance(file, (list, tuple)):
        return list(map(lasting, file))
    if not is_path(file):
        return type(file)
    path = path_of(file)
    if path.startswith("/") or path == "-" or not are_files(path):
        return path
    with contextlib.suppress(OSError):  # The folder may have been removed.
        path = os.path.join(os.getcwd(), path)
    return path


# Paths that mean something only in this process.
_OWN = ("/dev/fd/", "/dev/stdin", "/proc/self/", "/proc/thread-self/")


def check_for_others(file, what):
    """Raises ArgumentTypeError unless another process can open the file.

    file: from lasting().
    what: the object to pickle, for messages: "a Checkpoint".
    """
    for one in file if isinstance(file, list) else [file]:
        if isinstance(one, str) and one != "-" and not one.startswith(_OWN):
            continue
        found = repr(one) if isinstance(one, str) else one.__name__
        raise ArgumentTypeError(
            f"cannot pickle {what} of {found}: another process could not open "
            "it again; expected a path or URL",
            "kInvalidArgument",
        )


def folder_of(file):
    """Returns the path if it is a folder, else None."""
    if not is_path(file):
        return None
    path = path_of(file)
    return path if _haulway.is_folder(path) else None


def refuse_folder(file):
    """Raises IsADirectoryError, as Python's open() does, if `file` is the name
    of a folder."""
    folder = folder_of(file)
    if folder is not None:
        raise IsADirectoryError(
            errno.EISDIR, os.strerror(errno.EISDIR), folder
        )


def open_bytes_of(file, what, remote):
    """Opens what open_source() opens for the bytes of the file, whatever they
    are; raises InvalidArgumentError for a folder.

    what: the argument's name, for messages.
    """
    folder = folder_of(file)
    if folder is not None:
        raise InvalidArgumentError(
            f"{what} is a folder: expected a file; of {folder}",
            "kInvalidArgument",
        )
    with naming(what):
        return open_source(file, remote=remote)


# Compiled when it is used: that takes longer than the import of this module.
_PART = r"(.*)-\d{5}-of-(\d{5})(\.gguf)"


def parts_of(path):
    """Returns the paths of all parts of a model, if the path is named as one of
    them and opens the others; of any other path, the path."""
    if not path.lower().endswith(".gguf"):
        return [path]
    part = re.fullmatch(_PART, path, re.DOTALL | re.IGNORECASE)
    if part is None:
        return [path]
    stem, count, ending = part.groups()
    return [f"{stem}-{i:05}-of-{count}{ending}"
            for i in range(1, int(count) + 1)]


def _is_ours(module):
    return module == "haulway" or module.startswith("haulway.")


def _warn(text):
    """Warns at the line that called this package."""
    frame, level = sys._getframe(), 1
    while frame.f_back and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def remote_of(values):
    """Returns the options for reaching URLs as the library takes them.

    values: the values of all options by name, from resolve().
    """
    if values["insecure"]:
        _warn(
            "insecure: certificates are not checked, so that others may read "
            "and change what passes"
        )
    told = {name: values[name] for name in REMOTE}
    return {**told, "retries": values["retries"]}


def path_to_sign(file, asked):
    """Returns the path of a model that must be signed, or the first of several;
    raises SignatureError for an object that can have no signature.

    asked: from asked_signature().
    """
    one = file[0] if isinstance(file, (list, tuple)) and file else file
    if not is_path(one):
        refuse_unsigned(f"a {type(one).__name__}", asked)
    return path_of(one)


def open_source(file, mapped=False, flags=mmap.MAP_PRIVATE, remote=None,
                variant="", base="", signed=None, way=""):
    """Opens a path, bytes, a file object from its position on, or a list of
    them, which then form one checkpoint.

    A path names a file, a folder, or anything else that haulway/open.h lists.

    A file object over a regular file is read through its descriptor, without
    the object. A file object that can seek is read by ranges, and must stay
    open as long as the source is used. Any other file object is read
    completely, at once. The position of a file object afterwards is
    unspecified.

    flags: flags of the mapping, if the file is to be mapped.
    remote: the result of remote_of(); None: the configured options.
    variant, base: the options of these names.
    signed, way: the open SignedModel with which the file is compared, and how
        it is read then.
    """
    shared = flags == mmap.MAP_SHARED
    if is_path(file):
        return _open_path(
            path_of(file), mapped, shared, remote, variant, base, signed, way
        )
    if isinstance(file, (list, tuple)):
        return _haulway.list_sources(
            [open_source(one, mapped, flags, remote, variant, base, signed, way)
             for one in file]
        )
    if signed is not None:
        refuse_unsigned(f"a {type(file).__name__}", {"signature": True})
    if variant:
        raise InvalidArgumentError(
            "a variant is chosen in a folder, and this is a "
            f"{type(file).__name__}", "kInvalidArgument",
        )
    is_bytes = isinstance(file, (bytes, bytearray, memoryview))
    check_binary(file, "rb")
    if not is_bytes:
        source = _descriptor_source(file, mapped, shared)
        if source is not None:
            return source
    if mapped and shared:
        raise UnsupportedError(
            f"MAP_SHARED: {type(file).__name__} is no local file, which alone "
            "a mapping can write to",
            "kUnsupported",
        )
    if is_bytes:
        return _haulway.bytes_source(file, "memory")
    if isinstance(file, SourceStream):
        return file.source_from_here()
    ranges = ranges_of_open_file(file)
    if ranges is not None:
        reader, size = ranges
        return _haulway.file_object_source(
            reader, size, file.path, reader.parallel
        )
    if not hasattr(file, "read"):
        raise ArgumentTypeError(
            "expected a path, bytes, a file object or a list of them, found "
            f"{type(file).__name__}",
            "kInvalidArgument",
        )
    log = debug_log()
    if not isinstance(file, io.BytesIO):  # Its bytes are already in memory.
        ranges = ranges_of(file)
        if ranges is not None:
            reader, size = ranges
            if not size:
                _check_position(file)
            if log:
                log.debug("%s: a file object that is read by ranges",
                          name_of(file))
            return _haulway.file_object_source(
                reader, size, name_of(file), reader.parallel
            )
        if log:
            log.debug("%s: a file object that cannot seek; it is read whole",
                      name_of(file))
    data = file.read()
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ArgumentTypeError(
            f"{name_of(file)} gives {type(data).__name__}: expected a binary "
            "file object",
            "kInvalidArgument",
        )
    if not data:
        _check_position(file)
    return _haulway.bytes_source(data, name_of(file))


def open_as_configured(file, mapped, remote=None, base=""):
    """Opens what open_source() opens, compared with the signature that
    haulway.config and the environment ask for: for calls that take none of the
    options."""
    asked = asked_by_config()
    if not asked:
        return open_source(file, mapped, remote=remote, base=base)
    if remote is None:
        remote = remote_of(resolve("load")[0])
    signed = open_signed(path_to_sign(file, asked), asked, remote, base=base)
    return open_source(file, remote=remote, base=base, signed=signed, way="pread")


def check_binary(file, mode):
    """Raises ArgumentTypeError for a file object that is open as text.

    mode: the mode to open it with.
    """
    if isinstance(file, io.TextIOBase):
        raise ArgumentTypeError(
            f"{name_of(file)} is open as text: expected a binary file object, "
            f"as open(path, {mode!r}) returns",
            "kInvalidArgument",
        )


def _check_position(file):
    """Raises TruncatedError if nothing can be read from a file object because
    it is at its end: often it has just been written."""
    try:
        position = file.tell()
    except (AttributeError, OSError, ValueError):
        return
    if position:
        raise TruncatedError(
            f"nothing to read: the file object is at its end, byte {position}, "
            f"and is read from there; of {name_of(file)}",
            "kTruncated",
        )


def _open_path(path, mapped, shared, remote=None, variant="", base="",
               signed=None, way=""):
    if remote is None:
        remote = remote_of(resolve("load")[0]) if "://" in path else {}
    return _haulway.open_source(
        path, mapped, remote, write_through=mapped and shared,
        variant=variant or "", base=base or "", signed=signed, way=way,
    )


def name_of(file):
    """Returns a file object's name for messages; pipes have a number."""
    name = getattr(file, "name", None)
    if isinstance(name, int):
        return f"file descriptor {name}"
    if isinstance(name, bytes):
        return os.fsdecode(name)
    return name if isinstance(name, str) and name else "file object"


def _descriptor_source(file, mapped, shared):
    # Only for Python's own file types is it known that position and content are
    # those of the descriptor (a gzip file also has a descriptor).
    if not isinstance(
        file, (io.FileIO, io.BufferedReader, io.BufferedRandom)
    ) or not isinstance(getattr(file, "raw", file), io.FileIO):
        return None
    try:
        descriptor = file.fileno()
        position = file.tell()
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        if file.writable():
            file.flush()
        source = _open_path(f"/proc/self/fd/{descriptor}", mapped, shared)
    except (OSError, ValueError):
        if mapped and shared:
            raise  # Reading would lose later writes to the mapping.
        return None
    if position == 0:
        return source
    if position >= source.size:
        _check_position(file)
    return _haulway.slice_source(source, position, source.size - position)
