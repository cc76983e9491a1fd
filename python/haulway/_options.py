"""The options of reading and of writing: one table of each.

haulway.config, the environment and the keywords of every call that reads or
writes follow these; tools/make_docs.py makes their documentation and the type
stubs of them.
"""

# How: an option is a row: default, check, meaning, and what it excludes. Calls
# take **options and hand them to one function (_reading.py, _writing.py) that
# lays a call's own over those of the thread, the process and the environment;
# a row of writing also names the calls and formats that have it. So an option
# that is added here is a keyword everywhere, can be configured, and is
# documented.
#
# With each keyword in each signature every call would come to have a set of
# its own, as they had. Generating the functions' signatures at import was left
# out: type checkers see the stubs, which are made of this table, and importing
# would cost what most programs never use. Values are checked here,
# so that messages name the option and not the line that met it.


from __future__ import annotations

import mmap as _mmap
import os
import re
from collections.abc import Iterable, Mapping

from . import _secrets
from ._errors import ArgumentTypeError, InvalidArgumentError
from ._secrets import takes as _takes


class Option:
    """An option: its default, how a value is checked, and what it means.

    check: takes a name for messages and a value, and returns the value to use;
        a str may come from the environment.
    meaning: for documentation, without a full stop.
    group: a name shared by options that say the same thing in different ways.
        The option of a group that is set nearest to the call hides the others.
    variables: environment variables in addition to HAULWAY_SECTION_NAME; they
        count if they are "1".
    of_call: the option can be given to a call only, not configured.
    secret: the value is never shown.
    calls: for an option of writing, the functions that take it.
    formats: for an option of writing, the names of the formats that have it;
        None: every format.
    """

    __slots__ = (
        "default", "check", "meaning", "group", "variables", "of_call",
        "secret", "calls", "formats",
    )

    def __init__(self, default, check, meaning, group=None, variables=(),
                 of_call=False, secret=False, calls=(), formats=None):
        self.default = default
        self.check = check
        self.meaning = meaning
        self.group = group
        self.variables = variables
        self.of_call = of_call
        self.secret = secret
        self.calls = calls
        self.formats = formats


def _wrong(name, expected, found):
    raise InvalidArgumentError(
        f"{name}: expected {expected}, found {found!r}", "kInvalidArgument"
    )


@_takes("bool")
def check_flag(name, value):
    if isinstance(value, str):
        lowered = value.lower()
        if lowered in ("1", "true", "yes", "on"):
            return True
        if lowered in ("0", "false", "no", "off"):
            return False
    if isinstance(value, bool):
        return value
    return _wrong(name, "a bool", value)


def number(name, value, most=(1 << 63) - 1):
    found = value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value) if len(value) < 20 else most + 1
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value <= most:
            return value
    return _wrong(name, f"a number from 0 to {most}", found)


@_takes("int")
def _count(name, value):
    return number(name, value)


@_takes("int")
def _threads(name, value):
    return number(name, value, 65535)


@_takes("int")
def _retries(name, value):
    return number(name, value, 1000)


# As the command line has them: 5GB, 512MiB, 1.5G.
_SIZE = re.compile(r"([0-9]{1,18})(?:\.([0-9]{0,9}))?\s*(?:([kmgt])(i?))?b?")


@_takes("int | str")
def size(name, value, least=0):
    """Bytes: a number, or text such as "512MiB"."""
    found = value
    if isinstance(value, str):
        parts = _SIZE.fullmatch(value.strip().lower())
        if not parts:
            _wrong(name, "a size such as 1000000, '64MiB' or '2G'", found)
        whole, part, unit, binary = parts.groups(default="")
        factor = (1024 if binary else 1000) ** (" kmgt".index(unit or " "))
        value = int(whole + part) * factor // 10 ** len(part)
    value = number(name, value)
    if value < least:
        _wrong(name, f"a size of {least} at least", found)
    return value


@_takes("float")
def _seconds(name, value):
    found = value
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            pass
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if 0 < value <= 1e9:
            return float(value)
    return _wrong(name, "a number of seconds above 0", found)


@_takes("int")
def _connections(name, value):
    value = number(name, value, 1000)
    return value if value else _wrong(name, "a number from 1 to 1000", value)


@_takes("str")
def text(name, value):
    if not isinstance(value, str):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected a str",
            "kInvalidArgument",
        )
    return value


def names(name, value):
    """Names as a list: a str is one name, and not its characters."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable) or isinstance(
        value, (bytes, bytearray, memoryview, os.PathLike)
    ):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected a name, or several",
            "kInvalidArgument",
        )
    value = list(value)
    for item in value:
        if not isinstance(item, str):
            raise ArgumentTypeError(
                f"{name} holds {item!r}: expected names", "kInvalidArgument"
            )
    return value


@_takes("_Path")
def _path(name, value):
    if not isinstance(value, (str, os.PathLike)):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected a path",
            "kInvalidArgument",
        )
    path = os.fsdecode(os.fspath(value))
    return path if path else _wrong(name, "a path", path)


@_takes("Mapping[str, str]")
def _headers(name, value):
    if isinstance(value, str):  # From the environment: one a line.
        lines = [line for line in value.splitlines() if line.strip()]
        if not all(":" in line for line in lines):
            raise InvalidArgumentError(
                f"{name}: expected lines of the form NAME: VALUE",
                "kInvalidArgument",
            )
        value = dict(line.split(":", 1) for line in lines)
    try:
        pairs = list(dict(value).items())
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected a dict of headers",
            "kInvalidArgument",
        ) from None
    if not all(isinstance(part, str) for pair in pairs for part in pair):
        raise ArgumentTypeError(
            f"{name} holds what is no str: expected a dict of headers",
            "kInvalidArgument",
        )
    return {key.strip(): text.strip() for key, text in pairs}


@_takes("int")
def _alignment(name, value):
    value = number(name, value)
    if not 1 <= value <= 32768 or value & (value - 1):
        _wrong(name, "a power of two from 1 to 32768", value)
    return value


def one_of(*words):
    @_takes(f"Literal{list(words)}".replace("'", '"'))
    def check(name, value):
        if not isinstance(value, str) or value not in words:
            _wrong(name, " or ".join(map(repr, words)), value)
        return value

    return check


@_takes("int")
def _mmap_flags(name, value):
    value = number(name, value)
    if value not in (_mmap.MAP_PRIVATE, _mmap.MAP_SHARED):
        _wrong(name, "mmap.MAP_PRIVATE or mmap.MAP_SHARED", value)
    return value


def _or_none(check):
    @_takes(check.types)
    def checked(name, value):
        if value is None:
            return None
        return check(name, value)

    return checked


@_takes("Callable[[int, int], object]")
def _progress(name, value):
    if not callable(value):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected a function of the "
            "bytes done and the bytes in all",
            "kInvalidArgument",
        )
    return value


@_takes("MutableMapping[str, Any]")
def _stats(name, value):
    return check_stats(value, name)


def check_stats(stats, name="stats"):
    """Refuses what cannot be filled with statistics; None can be, with none."""
    if stats is not None and not hasattr(stats, "update"):
        raise ArgumentTypeError(
            f"{name} is {type(stats).__name__}: expected a dict to fill",
            "kInvalidArgument",
        )
    return stats


@_takes("Iterable[_SafeGlobal] | str")
def _safe_globals(name, value):
    if isinstance(value, str):
        value = [full for full in re.split(r"[,\s]+", value) if full]
    if not isinstance(value, Iterable):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected a list of names and "
            "classes",
            "kInvalidArgument",
        )
    checked = []
    for item in value:
        pair = item if isinstance(item, tuple) else (item, None)
        named = None
        if len(pair) == 2:
            named = pair[0] if pair[1] is None else pair[1]
        if not isinstance(named, str) and not hasattr(named, "__qualname__"):
            _wrong(
                name,
                "full names, classes, or pairs of a class and a full name",
                item,
            )
        checked.append(item)
    return tuple(checked)


# Options of how an index is understood, whatever holds it.
INDEX = {
    "lenient": Option(
        False, check_flag,
        "accept what other readers accept, not only what the format "
        "allows; see docs/formats"),
    "keep_meta": Option(
        False, check_flag,
        "return tensors that have a shape but no data in the file as "
        "meta tensors, instead of zeros"),
    "endianness": Option(
        None, _or_none(one_of("native", "little", "big")),
        "byte order of files that do not state theirs; None: little"),
    "safe_globals": Option(
        (), _safe_globals,
        "names that pickles may contain in addition to those always "
        "allowed: full names, which are kept as data, classes, or pairs "
        "of a class and a full name; see also "
        "haulway.torch.safe_globals()"),
}
# And of how what is behind a URL is reached.
REMOTE = {
    "headers": Option(
        None, _or_none(_headers),
        "dict of headers, sent to the host in the URL and to no other "
        "host that it redirects to",
        secret=True),
    "bearer_token": Option(
        None, _or_none(_secrets.token),
        "bearer token, sent to the same host as `headers`",
        secret=True),
    "netrc": Option(
        None, _or_none(_path),
        "file in the format of ~/.netrc with the credentials of hosts"),
    "ca_file": Option(
        None, _or_none(_path),
        "PEM file with the certificates to trust; None: those of "
        "CURL_CA_BUNDLE, SSL_CERT_FILE and SSL_CERT_DIR, otherwise the "
        "system's"),
    "client_certificate": Option(
        None, _or_none(_path), "PEM file with the client certificate"),
    "client_key": Option(
        None, _or_none(_path),
        "PEM file with the client's key; None: it is in the same file"),
    "insecure": Option(
        False, check_flag,
        "accept any server certificate: anyone between this machine and "
        "the server can then read and change the data"),
    "proxy": Option(
        None, _or_none(text),
        "URL of a proxy; None: http_proxy, https_proxy, all_proxy and "
        "no_proxy of the environment",
        secret=True),
    "connect_timeout": Option(
        None, _or_none(_seconds),
        "time limit for connecting, in seconds; None: 10"),
    "stall_timeout": Option(
        None, _or_none(_seconds),
        "seconds after which a request that receives less than 1 kB per "
        "second is repeated; None: 30"),
    "timeout": Option(
        None, _or_none(_seconds),
        "time limit in seconds for each read, including its retries; "
        "None: no limit"),
    "connections": Option(
        None, _or_none(_connections),
        "maximum number of requests in flight; None: 16"),
    "cache_dir": Option(
        None, _or_none(_path),
        "folder that caches what is read from URLs, also for other "
        "processes; see docs/remote.md"),
    "cache_size": Option(
        None, _or_none(size),
        "maximum size of the cache folder in bytes; None: 64 GiB"),
}
# And of how a file is opened.
OPENING = {
    **INDEX,
    **REMOTE,
    "io": Option(
        "auto",
        one_of("auto", "mmap", "pread", "direct", "uring", "snapshot"),
        "how to read: 'mmap' maps the file; 'snapshot' maps the file and "
        "copies it just before another program changes it; 'pread', "
        "'direct' (bypassing the page cache) and 'uring' (many such "
        "reads at a time) read into new memory; 'auto' chooses by "
        "looking at the file and the machine",
        group="way"),
    "mmap": Option(
        None, _or_none(check_flag),
        "True means io='mmap'; False means any other way", group="way"),
    "mmap_flags": Option(
        _mmap.MAP_PRIVATE, _mmap_flags,
        "flags of mappings: with mmap.MAP_SHARED, writing to a tensor "
        "changes the file"),
    "key": Option(
        None, _or_none(_secrets.key),
        "key of an encrypted file: 32 bytes, or 64 hexadecimal digits",
        group="secret", secret=True),
    "passphrase": Option(
        None, _or_none(_secrets.passphrase),
        "passphrase of an encrypted file: a str or bytes; listing the "
        "tensors does not need it",
        group="secret", secret=True),
    "calculate_storage_offsets": Option(
        True, check_flag,
        "compute the offsets of storages and check them when the "
        "storages are read; False reads the header of every storage when "
        "the file is opened"),
    "debug": Option(
        False, check_flag,
        "compare every computed offset with the one in its header when "
        "the file is opened",
        variables=("HAULWAY_SERIALIZATION_DEBUG",
                   "TORCH_SERIALIZATION_DEBUG")),
}
# Options of the library's engine, which takes "io" too.
ENGINE = {
    "verify": Option(
        False, check_flag, "check every checksum in the same pass"),
    "threads": Option(
        0, _threads, "number of threads; 0: as many as this process may use"),
    "memory_budget": Option(
        None, _or_none(size),
        "limit in bytes for memory beside the tensors', used for "
        "decoding and for what waits to be taken; None: 256 MiB"),
    "drop_cache": Option(
        False, check_flag, "drop the page cache of the ranges that were read"),
    "retries": Option(
        None, _or_none(_retries),
        "how often a failed read or request is repeated; None: 5 times"),
}
# And of how tensors are read.
READING = {
    **OPENING,
    **ENGINE,
    "progress": Option(
        None, _or_none(_progress),
        "function called as progress(bytes done, bytes in all)", of_call=True),
    "stats": Option(
        None, _stats,
        "dict that receives statistics of the call: bytes, requests, the "
        "seconds of each stage, the io that was chosen and the reason",
        of_call=True),
}

# How writing treats tensors that share memory.
TIES = ("keep", "drop", "copy", "error")


@_takes("Mapping[str, Any]")
def _metadata(name, value):
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected a dict by strings",
            "kInvalidArgument",
        )
    for key in value:
        if not isinstance(key, str):
            raise ArgumentTypeError(
                f"{name} holds the key {key!r}: expected a dict by strings",
                "kInvalidArgument",
            )
    return dict(value)


@_takes("int | str")
def _shard(name, value):
    return size(name, value, least=1)


_SAVE = ("save", "save_async")
_OF_NAMES = ("safetensors", "npz", "npy", "gguf")
WRITING = {
    "compute_crc32": Option(
        True, check_flag, "store a CRC-32 of every record",
        calls=(*_SAVE, "plan"), formats=("torch",)),
    "storage_alignment": Option(
        64, _alignment,
        "alignment of payloads in the file, in bytes: a power of two up to "
        "32768",
        calls=(*_SAVE, "plan"), formats=("torch",)),
    "durability": Option(
        "full", one_of("full", "none"),
        "'full': the file survives a loss of power; 'none': it appears "
        "complete, but may be lost if the machine stops",
        calls=(*_SAVE, "convert", "writer", "edit", "repair", "put",
               "create")),
    "threads": Option(
        0, _threads, "number of threads; 0: as many as this process may use",
        calls=(*_SAVE, "convert", "writer", "commit")),
    "use_pinned_memory_for_d2h": Option(
        False, check_flag, "copy from devices through pinned memory"),
    "progress": Option(
        None, _or_none(_progress),
        "called as progress(bytes done, bytes in all)", of_call=True,
        calls=(*_SAVE, "torch.save", "convert", "writer")),
    "stats": Option(
        None, _stats,
        "a dict that is filled with what happened; see docs/saving.md",
        of_call=True, calls=(*_SAVE, "torch.save", "convert", "commit")),
    "memory_budget": Option(
        None, _or_none(size),
        "bytes of memory beside that of the tensors, for what is copied, cast "
        "or encrypted on its way; None: 256 MiB, 0: as few as can be",
        of_call=True, calls=(*_SAVE, "convert", "writer", "repair")),
    "compact": Option(
        False, check_flag, "leave out bytes of storages that no tensor uses",
        of_call=True, calls=(*_SAVE, "convert"), formats=("torch",)),
    "ties": Option(
        None, _or_none(one_of(*TIES)),
        "tensors that share memory: 'keep' writes them so, and refuses where "
        "the format cannot; 'drop' writes the first of those that are the "
        "same tensor, 'copy' each in full, 'error' refuses; None: as usual "
        "for the call and the format",
        of_call=True, calls=(*_SAVE, "convert")),
    "key": Option(
        None, _or_none(_secrets.key),
        "encrypts with 32 bytes, or as many in hexadecimal digits",
        of_call=True, secret=True, calls=_SAVE, formats=("tensorizer",)),
    "passphrase": Option(
        None, _or_none(_secrets.passphrase), "encrypts with a str or bytes",
        of_call=True, secret=True, calls=_SAVE, formats=("tensorizer",)),
    "layout": Option(
        None, _or_none(one_of("interleaved", "segments", "segments-pr170")),
        "'interleaved', which every release of tensorizer reads; 'segments', "
        "which edit() changes in place; or 'segments-pr170', that layout as "
        "tensorizer's pull request 170 has it; None: 'interleaved'",
        of_call=True, calls=_SAVE, formats=("tensorizer",)),
    "room_for": Option(
        None, _or_none(_count),
        "for layout 'segments': number of tensors that can be appended before "
        "the file must be rearranged; None: 16",
        of_call=True, calls=(*_SAVE, "edit"), formats=("tensorizer",)),
    "data_file": Option(
        None, _or_none(text),
        "for layout 'segments': the name of a second, new file beside this "
        "one for the data",
        of_call=True, calls=_SAVE, formats=("tensorizer",)),
    "metadata": Option(
        None, _or_none(_metadata),
        "a dict of strings, for formats that store metadata; 'gguf' also "
        "takes bools, numbers and lists of one of them, and NumPy's scalars "
        "and arrays define the type in which a value is written",
        of_call=True, calls=(*_SAVE, "convert", "writer"),
        formats=(*_OF_NAMES, "tensorizer")),
    "alignment": Option(
        None, _or_none(_count),
        "where tensors start: every offset is a multiple of this number of "
        "bytes. For 'safetensors' a multiple of 8, for 'gguf' a power of two "
        "(32 by default), for 'tensorizer' any number up to 1 MiB",
        of_call=True, calls=(*_SAVE, "convert", "edit"),
        formats=(*_OF_NAMES, "tensorizer")),
    "authenticate_metadata": Option(
        True, check_flag,
        "let readers with the key of an encrypted file detect a changed name, "
        "type, shape or order",
        of_call=True, calls=_SAVE, formats=("tensorizer",)),
    "shard": Option(
        None, _or_none(_shard),
        "maximum bytes of tensors in one file, or a size like '5GB'. If one "
        "file is not enough, several are written, "
        "'model-00001-of-00003.safetensors', and an index, named and split as "
        "huggingface_hub does; None: one file",
        of_call=True, calls=("convert", "writer")),
    "proof": Option(
        False, check_flag,
        "compare the SHA-256 of every tensor, as read and as written",
        of_call=True, calls=("convert",)),
    "verify": Option(
        True, check_flag, "check the checksums of the bytes that are read",
        of_call=True, calls=("convert",)),
    "untie": Option(
        False, check_flag, "write each of the tensors that share memory in full",
        of_call=True, calls=("edit",)),
    "dry_run": Option(
        False, check_flag, "write nothing; report what would be done and written",
        of_call=True, calls=("edit",)),
    "in_place": Option(
        False, check_flag,
        "overwrite the header in the file, or fail; after a crash the next "
        "edit() or repair() restores the old header",
        of_call=True, calls=("edit",)),
    "room": Option(
        "auto", one_of("auto", "insert", "move"),
        "for layout 'segments', what to do if index or headers are full: "
        "'insert' blocks, 'move' them to the end, or 'auto'",
        of_call=True, calls=("edit",)),
    "overwrite": Option(
        False, check_flag, "replace an existing object, or a prefix in Redis",
        of_call=True, calls=("put",)),
    "clobber": Option(
        True, check_flag, "False fails instead of replacing anything",
        of_call=True, calls=("put",)),
}


def writing_of(call):
    """The options of writing that a function has, by its name."""
    return {name: option for name, option in WRITING.items()
            if call in option.calls}


SECTIONS = {"save": WRITING, "load": READING}


def completed(docstring, mark, options):
    """The docstring with what the options mean in place of the line `mark`.

    From Python 3.13 on, the compiler removes the indentation of docstrings.
    """
    for margin in ("    ", ""):
        head, found, tail = docstring.partition(f"\n{margin}{mark}\n")
        if found:
            return f"{head}\n{described(options, margin)}\n{tail}"
    raise AssertionError(f"{mark} is in no line of its own")


def described(options, margin="    "):
    """The options as lines of a docstring."""
    import textwrap

    return "\n".join(
        textwrap.fill(
            f"{name}: {option.meaning}.", 79, initial_indent=margin,
            subsequent_indent=f"{margin}    ",
        )
        for name, option in options.items()
    )
