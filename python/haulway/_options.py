"""The options of reading and of writing: one table of each.

haulway.config, the environment and the keywords of every call that reads or
writes follow these; tools/make_docs.py makes their documentation and the type
stubs of them.
"""

# Design: an option is a row: default, check, meaning, and group of options that
# exclude one another. Calls take **options and pass them to one class
# (_reading/call.py, _writing/call.py), which lays a call's own values over
# those of the thread, the process and the environment. A row of a writing
# option also names the calls and formats that have it.
#
# Most options come from the library's tables (haulway/fields.h): a row there
# becomes a row here, with a check by the type of its member, and so becomes a
# keyword everywhere, configurable and documented. Only options that exist in
# Python alone (functions, classes, `mmap`), or that have another meaning than
# in the library, have a row here.
#
# With every keyword in every signature, the options of the calls drifted apart.
# Generating signatures at import was left out: type checkers use the stubs,
# which are made from this table, and importing would cost time for what most
# programs never use. Values are checked here, so that messages name the option,
# not the line that first used the value.


from __future__ import annotations

import functools
import math
import mmap as _mmap
import numbers
import operator
import os
import re
from collections.abc import Iterable, Mapping

from . import _haulway, _secrets
from ._errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    NotFoundError,
)
from ._importing import importing
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
    engine: the library takes the option by this name.
    holds: True counts wherever it is set, whatever is set nearer to the call.
    """

    __slots__ = (
        "default", "check", "meaning", "group", "variables", "of_call",
        "secret", "calls", "formats", "engine", "holds",
    )

    def __init__(self, default, check, meaning, group=None, variables=(),
                 of_call=False, secret=False, calls=(), formats=None,
                 engine=False, holds=False):
        self.default = default
        self.check = check
        self.meaning = meaning
        self.group = group
        self.variables = variables
        self.of_call = of_call
        self.secret = secret
        self.calls = calls
        self.formats = formats
        self.engine = engine
        self.holds = holds


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


def number(name, value, most=(1 << 63) - 1, least=0):
    found = value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value) if len(value) < 20 else most + 1
    if isinstance(value, int) and not isinstance(value, bool):
        if least <= value <= most:
            return value
    return _wrong(name, f"a number from {least} to {most}", found)


def whole(name, value, least=None):
    """Checks a whole number of any integer type, NumPy's included, but not a
    bool."""
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None:
        raise ArgumentTypeError(
            f"{name} is {value!r}: expected a number", "kInvalidArgument"
        )
    if least is not None and found < least:
        raise InvalidArgumentError(
            f"{name} is {found}: expected at least {least}", "kInvalidArgument"
        )
    return found


def similar(name, known, call=""):
    """Returns the end of a message about an unknown keyword: the name that was
    probably meant, or "".

    known: names of options.
    call: a function of the package, whose own parameters are looked at too.
    """
    with importing:
        import difflib
        import inspect
        import sys

    if not isinstance(name, str):
        return ""
    names = list(known)
    found = getattr(sys.modules[__package__], call, None) if call else None
    if inspect.isfunction(found):
        names += (one.name for one in inspect.signature(found).parameters.values()
                  if one.kind is not one.VAR_KEYWORD)
    near = difflib.get_close_matches(name, names, 1, 0.75)
    return f"; did you mean {near[0]!r}?" if near else ""


def function(name, value, arguments):
    """Checks a function, or None.

    arguments: what it is called with, in words.
    """
    if value is not None and not callable(value):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected a function of "
            f"{arguments}", "kInvalidArgument",
        )
    return value


def by_name(name, value, what):
    """Checks a mapping by names, or None.

    what: what it is expected to be.
    """
    if value is not None and not isinstance(value, Mapping):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected {what}",
            "kInvalidArgument",
        )
    return value


# The spelling of the command line: 5GB, 512MiB, 1.5G. Compiled when it is used.
_SIZE = r"([0-9]{1,18})(?:\.([0-9]{0,9}))?\s*(?:([kmgt])(i?))?b?"


@_takes("int | str")
def size(name, value, least=0):
    """Checks a size in bytes: a number, or text such as "512MiB"."""
    found = value
    if isinstance(value, str):
        parts = re.fullmatch(_SIZE, value.strip().lower())
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


@_takes("str")
def text(name, value):
    if not isinstance(value, str):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected a str",
            "kInvalidArgument",
        )
    return value


def names(name, value):
    """Checks names and returns a list; a str is one name."""
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
    return check_home(path) if path else _wrong(name, "a path", path)


def check_home(path):
    """Returns a path; raises for one in a home folder that nobody expanded."""
    # A folder may be called "~", too.
    if path[:2] not in ("~", "~/") or os.path.lexists("~"):
        return path
    raise NotFoundError(
        f"cannot open {path!r}: a shell expands '~', this call does not: pass "
        f"os.path.expanduser({path!r})", "kNotFound",
    )


@_takes("_Path | bytes")
def pem(name, value):
    """Checks a path, or PEM text as bytes, which begins with -----BEGIN."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = bytes(value)
        if not value.lstrip().startswith(b"-----BEGIN"):
            _wrong(name, "a path, or PEM as bytes: -----BEGIN ...", "other bytes")
        return value.decode("latin-1")
    return _path(name, value)


def _several(check):
    """Returns a check of one value, or several, that returns a tuple."""

    @_takes(f"Iterable[{check.types}] | {check.types}")
    def checked(name, value):
        if isinstance(value, str) and not value.lstrip().startswith("-----BEGIN"):
            # From the environment, and for one path.
            value = [part for part in value.split(os.pathsep) if part]
        elif isinstance(value, (str, bytes, bytearray, memoryview, os.PathLike)):
            value = [value]
        if not isinstance(value, Iterable):
            raise ArgumentTypeError(
                f"{name} is {type(value).__name__}: expected a path, or several",
                "kInvalidArgument",
            )
        return tuple(check(name, one) for one in value)

    return checked


@_takes("Mapping[str, str]")
def _headers(name, value):
    # From an environment variable: one name per line.
    if isinstance(value, str):
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
    return function(name, value, "the bytes done and the bytes in all")


@_takes("MutableMapping[str, Any]")
def _stats(name, value):
    return check_stats(value, name)


def check_stats(stats, name="stats"):
    """Raises if `stats` cannot be filled with statistics; None is allowed."""
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


@_takes("_Adapter | Iterable[_Adapter] | Mapping[_Path, float]")
def _lora(name, value):
    """Checks adapters and returns a tuple of pairs (path, weight)."""
    if isinstance(value, (str, os.PathLike)) or _is_weighted(value):
        value = [value]
    if isinstance(value, Mapping):
        value = value.items()
    if not isinstance(value, Iterable):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected a path, a pair of a "
            "path and a weight, or several", "kInvalidArgument",
        )
    checked = []
    for one in value:
        is_weighted = _is_weighted(one)
        if not is_weighted and not isinstance(one, (str, os.PathLike)):
            raise ArgumentTypeError(
                f"{name} holds {one!r}: expected a path, or a pair of a path and "
                "a weight, which is a number", "kInvalidArgument",
            )
        path, weight = one if is_weighted else (one, 1.0)
        weight = float(weight)
        if not math.isfinite(weight):
            _wrong(name, "a weight that is finite", weight)
        checked.append((_path(name, path), weight))
    return tuple(checked)


def _is_weighted(value):
    return isinstance(value, (tuple, list)) and len(value) == 2 and (
        isinstance(value[1], numbers.Real) and not isinstance(value[1], bool))


@_takes("_Path | Sequence[Mapping[str, Any]]")
def _rules(name, value):
    """Checks rules and returns a path or preset, or a tuple of dicts."""
    if isinstance(value, (str, os.PathLike)):
        return _path(name, value)
    if not isinstance(value, Iterable) or isinstance(value, Mapping):
        raise ArgumentTypeError(
            f"{name} is {type(value).__name__}: expected a preset, a path, or "
            "a list of dicts", "kInvalidArgument",
        )
    value = tuple(value)
    for rule in value:
        if not isinstance(rule, Mapping):
            _wrong(name, "a list of dicts", rule)
        if "apply" in rule and not callable(rule["apply"]):
            _wrong(f"'apply' of {name}", "a function of a list of tensors",
                   rule["apply"])
    return value


# Functions that return the check for a library row, by the row's kind.
_CHECKS = {
    "flag": lambda row: check_flag,
    "number": lambda row: _takes("int")(
        lambda name, value: number(name, value, row["most"], row["least"])),
    "alignment": lambda row: _takes("int")(
        lambda name, value: _alignment(name, value, row["most"])),
    "size": lambda row: _takes("int | str")(
        lambda name, value: size(name, value, row["least"])),
    "seconds": lambda row: _seconds,
    "text": lambda row: text,
    "path": lambda row: _path,
    "headers": lambda row: _headers,
    "paths": lambda row: _several(_path),
    "words": lambda row: one_of(*row["words"]),
}


def _alignment(name, value, most):
    value = number(name, value)
    if not 1 <= value <= most or value & (value - 1):
        _wrong(name, f"a power of two from 1 to {most}", value)
    return value


def _said(row):
    """Returns the default of a library row in words, "" if it is empty. A
    number with such a default is None in Python."""
    value = row["default"]
    if not value or row["kind"] not in ("number", "size", "seconds"):
        return ""
    if row["kind"] == "size":
        for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
            if value % factor == 0:
                return f"{value // factor} {unit}"
    return f"{value:g}" if row["kind"] == "seconds" else str(value)


def _option_of(row, **own):
    """Returns the option of a library row.

    own: fields that differ from the library's row.
    """
    check = own.pop("check", None) or _CHECKS[row["kind"]](row)
    said = _said(row)
    default = row["default"]
    if said or row["kind"] in ("size", "seconds"):
        default = None
    calls = []
    for call in row["calls"]:
        calls += ("save", "save_async") if call == "save" else (call,)
    return Option(
        default, _or_none(check) if default is None else check,
        row["meaning"] + (f"; default: {said}" if said else ""),
        of_call=not row["configured"], secret=row["secret"],
        calls=tuple(calls), formats=row["formats"] or None, engine=True, **own,
    )


def _of_library(*tables, **own):
    """Returns the options in these tables of the library, by name. An option in
    several tables gets the calls of all of them, and the formats of the first.

    own: by option, the fields that differ from the library's row.
    """
    options = {}
    for table in tables:
        for row in _ROWS[table]:
            if not row["in_python"]:
                continue
            name = row["name"]
            option = _option_of(row, **own.get(name, {}))
            if name not in options:
                options[name] = option
                continue
            known = options[name]
            known.calls = tuple(dict.fromkeys((*known.calls, *option.calls)))
    return options


_ROWS = _haulway.option_rows()
_OF_OPENING = _of_library("OpenOptions", debug={
    "variables": ("HAULWAY_SERIALIZATION_DEBUG", "TORCH_SERIALIZATION_DEBUG"),
}, lora={"check": _lora}, rules={"check": _rules})
_OF_LOADING = _of_library("LoadOptions", io={"group": "way"})

# Options for interpreting an index, whatever the source.
_DEBUG = _OF_OPENING.pop("debug")
INDEX = {
    **_OF_OPENING,
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
# Options for reaching URLs.
REMOTE = _of_library("RemoteOptions", bearer_token={"check": _secrets.token})
# Options that choose what a name means.
NAMING = _of_library("SourceOptions")
# Options that say who must have signed a model.
SIGNING = _of_library(
    "SignatureOptions", public_key={"check": pem},
    certificate_chain={"check": _several(pem)},
    require_signature={"holds": True})
# Options for opening a file.
OPENING = {
    **INDEX,
    **NAMING,
    **SIGNING,
    **REMOTE,
    "io": _OF_LOADING.pop("io"),
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
    "debug": _DEBUG,
}
# The same for calls that cannot check a signature: they change files.
UNSIGNED = {name: option for name, option in OPENING.items()
            if name not in SIGNING}
# Options that the library's engine takes, in addition to "io".
ENGINE = _OF_LOADING
# Options for reading tensors.
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


_SAVE = ("save", "save_async")
_OF_WRITING = _of_library(
    "ArchiveWriterOptions", "FileSinkOptions", "TensorizerOptions",
    "ConvertOptions", "TensorWriterOptions", "EditOptions",
    "TensorizerEditOptions", "RepairOptions",
)
TIES = next(row["words"] for row in _ROWS["ConvertOptions"]
            if row["name"] == "ties")
WRITING = {
    **_OF_WRITING,
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
    "metadata": Option(
        None, _or_none(_metadata),
        "a dict of strings, for formats that store metadata; 'gguf' also "
        "takes bools, numbers and lists of one of them, and NumPy's scalars "
        "and arrays define the type in which a value is written",
        of_call=True, calls=(*_SAVE, "convert", "writer"),
        formats=("safetensors", "gguf", "tensorizer")),
    "untie": Option(
        False, check_flag, "write each of the tensors that share memory in full",
        of_call=True, calls=("edit",)),
    "overwrite": Option(
        False, check_flag,
        "replace what a URL names already: a prefix in Redis too, which is "
        "refused otherwise",
        of_call=True, calls=("put", *_SAVE, "convert", "writer")),
    "clobber": Option(
        True, check_flag, "False fails instead of replacing anything",
        of_call=True, calls=("put",)),
}


@functools.cache
def writing_of(call):
    """Returns the writing options that a function has, by name. Read-only."""
    return {name: option for name, option in WRITING.items()
            if call in option.calls}


@functools.cache
def taken_of(call, format=None):
    """Returns the names of those options that the library takes.

    format: leave out options that this format does not have.
    """
    return tuple(
        name for name, option in writing_of(call).items()
        if option.engine and (
            None in (format, option.formats) or format in option.formats)
    )


SECTIONS = {"save": WRITING, "load": READING}


def completed(docstring, mark, options):
    """Returns the docstring with the options' meanings in place of the line
    `mark`.

    From Python 3.13 on, the compiler removes the indentation of docstrings.
    """
    for margin in ("    ", ""):
        head, found, tail = docstring.partition(f"\n{margin}{mark}\n")
        if found:
            return f"{head}\n{described(options, margin)}\n{tail}"
    raise AssertionError(f"{mark} is in no line of its own")


def described(options, margin="    "):
    """Formats the options as lines of a docstring.

    This runs for each function when its module is imported. textwrap, which
    splits words too, takes seven times as long: 1.2 ms of a first load().
    """
    lines = []
    for name, option in options.items():
        line = f"{margin}{name}:"
        for word in f"{option.meaning}.".split():
            if len(line) + 1 + len(word) > 79:
                lines.append(line)
                line = f"{margin}    {word}"
            else:
                line += f" {word}"
        lines.append(line)
    return "\n".join(lines)
