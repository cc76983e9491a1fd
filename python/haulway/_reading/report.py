"""haulway.verify and haulway.scan."""

# Design: the library does the work and returns dicts with the names of --json.
# They become reports here, which are true if nothing was found. For a folder or
# a list, each file has its own report, and they are combined into one: verify
# adds up what was checked, scan returns the worst verdict.
#
# Raising an exception for a faulty file was left out: callers who check a
# folder want the result for every file. Only a path that cannot be read at all
# raises an Error.


from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from types import SimpleNamespace

from .. import _haulway
from .._describing import counted, described, public, shown, table
from .._errors import Cancelled, Error, InvalidArgumentError, NotFoundError
from .._importing import imported
from .._options import NAMING, OPENING, READING, SIGNING, names
from .call import Reading, reads
from .source import folder_of, naming, open_source, parts_of, path_of

# In order, the worst last.
_VERDICTS = ("SAFE", "UNKNOWN", "UNSAFE")


class Report(SimpleNamespace):
    """A report: its attributes have the names of the fields that --json
    prints.

    The report of a file is true if nothing is wrong with it: if it is `ok`
    (verify()) or `safe` (scan()); the report of diff() if the two are `equal`.

    A plain value: threads may share one that nobody changes. repr() begins
    with the first finding and counts lists; to_dict() has all of them. Its
    methods raise nothing.
    """

    def __bool__(self):
        for verdict in ("safe", "ok", "equal"):
            if hasattr(self, verdict):
                return bool(getattr(self, verdict))
        return True

    def to_dict(self):
        """Returns the whole report as dicts, lists and plain values."""
        return _plain(self)

    def __repr__(self):
        return described(self, *(
            f"{name}={_counted(value)}" if _is_long(value)
            else f"{name}={shown(value)}"
            for name, value in sorted(
                vars(self).items(),
                key=lambda field: field[0] != "findings" or not field[1])
        ))

    def _repr_html_(self):
        simple, parts = [], []
        for name, value in vars(self).items():
            if _is_long(value):
                parts.append((name, value))
            else:
                simple.append((name, shown(value, 400)))
        tables = [table(type(self).__name__, (), simple, len(simple))]
        for name, value in parts:
            rows = value.items() if isinstance(value, dict) else enumerate(value)
            tables.append(table(name, ("", "value"), (
                (shown(key), _in_cell(item)) for key, item in rows
            ), len(value)))
        return "".join(tables)


def _is_long(value):
    return isinstance(value, (list, dict))


def _counted(value):
    """Returns the length of a list or dict, and of findings the first."""
    length = counted(len(value), "item")
    first = value[0] if isinstance(value, list) and value else None
    message = getattr(first, "message", None)
    if message is None:
        return length
    cause = message.partition("; ")[0]
    return f"{length}: {shown(cause, max(len(cause), 1))}"


def _in_cell(value):
    """Returns an item of a list as one line; long lists in the item are shown
    by their length."""
    fields = vars(value) if isinstance(value, SimpleNamespace) else value
    if not isinstance(fields, dict):
        return shown(value, 200)
    return ", ".join(
        f"{shown(key)[1:-1]}: "
        + (counted(len(item), "item") if _is_long(item) else shown(item, 200))
        for key, item in itertools.islice(fields.items(), 20)
    )


def _plain(value):
    if isinstance(value, SimpleNamespace):
        return {key: _plain(item) for key, item in vars(value).items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def as_report(value):
    if isinstance(value, dict):
        return Report(**{key: as_report(item) for key, item in value.items()})
    if isinstance(value, list):
        return [as_report(item) for item in value]
    return value


VERIFYING = {
    **{name: option for name, option in OPENING.items()
       if name not in ("signature_scope", "require_signature")},
    "threads": READING["threads"], "progress": READING["progress"],
}


@reads(VERIFYING)
def verify(path, lenient=None, *, manifest=None, **options):
    """Checks the structure, every checksum and every cross-check of a file.

    path: as for load().
    manifest: what haulway.manifest() returned, or the path of a file that
        `haulway manifest` wrote, to compare with the tensors of an intact
        checkpoint; a folder then counts as one checkpoint.
    OPTIONS

    Returns a report with `ok`, `findings` (each with code, message, byte),
    `checked` (against what: "manifest", "checksums", or only the "structure"),
    `checked_bytes` and `unchecked` (each with what, offset, bytes, and
    needs_key: whether the file's key would allow the check). Faults of the
    file are in the report; Error is raised only if the file cannot be read or
    is not a checkpoint. Without the key or passphrase of an encrypted file,
    its data is listed as unchecked. `notes` are sentences about faults that
    change nothing for readers, such as the total_size of an index.

    For a folder without manifest or variant, every regular file in it and in its
    subfolders is checked, and the report lists them as `files`, each with a
    report of its own. For a file that is not a checkpoint `ok` is None and
    `reason` says so. Each finding and each unchecked part then names its
    `file`. A directory of torch.distributed.checkpoint is one checkpoint, whose
    `file` is its `.metadata`, or the folder if its files are safetensors.

    With `signature`, checks that the model, a file or folder, is what was signed
    by whom `public_key`, `certificate_chain`, or `identity`, `issuer` and
    `trusted_root` name; see docs/signing.md. The report has `ok`, `signature`
    (who signed what; None if the signature does not hold), `files`,
    `checked_bytes`, `findings` (each with code, message, file) and `notes`.
    haulway.config and the environment do not ask for a signature here.

    lenient: as among the options; it may be given by position.

    Raises ArgumentTypeError for an unknown option.
    """
    reading = Reading("verify", {**options, "lenient": lenient}, VERIFYING)
    signed = {name: options[name] for name in SIGNING
              if options.get(name) is not None}
    if signed:
        return _verify_signed(path, signed, manifest, reading)
    reading.checks_signature = False
    folder = folder_of(path)
    if folder is not None and manifest is None and not reading.variant:
        return as_report(_verify_folder(folder, reading))
    report = _haulway.verify(
        reading.source(path), reading.opening(), reading.threads,
        reading.progress,
    )
    if manifest is not None:
        with naming("manifest"):
            expected = (
                _json_of(manifest) if isinstance(manifest, Mapping)
                else _text_of(manifest, reading)
            )
        if report["ok"]:
            report["findings"] = _haulway.check_manifest(
                reading.open(path), expected, reading.threads)
            report["ok"] = not report["findings"]
            report["checked"] = "manifest"
    return as_report(report)


def _verify_signed(path, signed, manifest, reading):
    if "signature" not in signed or manifest is not None:
        raise InvalidArgumentError(
            "options of a signature need one, and no manifest: expected "
            "signature", "kInvalidArgument",
        )
    told = {name: getattr(reading, name) for name in signed}
    return as_report(_haulway.verify_signed(
        path_of(path), told, reading.remote, reading.opening(),
        reading.threads or 0, reading.progress,
    ))


def _json_of(manifest):
    """Returns the result of haulway.manifest() as `haulway manifest` writes
    it."""
    json = imported("json")
    try:
        return json.dumps({"tensors": [
            {"name": name, "dtype": dtype, "shape": list(shape),
             "sha256": sha256}
            for name, (dtype, shape, sha256) in manifest.items()
        ]})
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            "expected a path, or what haulway.manifest() returned: "
            f"{error}", "kInvalidArgument",
        ) from error


def _text_of(path, reading):
    """Returns the text of a file or URL."""
    source = open_source(path, remote=reading.remote)
    data = bytearray(source.size)
    _haulway.read_many(source, [(0, data)])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"the manifest is not JSON: {error}; of {source.name}",
            "kInvalidArgument", error.start,
        ) from error


def _verify_folder(folder, reading):
    paths = _haulway.list_files_to_verify(folder, reading.remote)
    *before, total = itertools.accumulate(map(_size_of, paths), initial=0)
    files = [
        _verify_found(path, reading, done, total)
        for path, done in zip(paths, before)
    ]
    found = [one for one in files if one["ok"] is not None]
    if not found:
        raise NotFoundError(
            f"folder {folder!r} holds no checkpoint", "kNotFound"
        )
    return {
        "file": folder,
        "ok": all(one["ok"] for one in found),
        "checked_bytes": sum(one["checked_bytes"] for one in found),
        "file_bytes": sum(one["file_bytes"] for one in found),
        **{
            name: [
                {**item, "file": one["file"]}
                for one in found for item in one[name]
            ]
            for name in ("unchecked", "findings")
        },
        "notes": [f"{note}; of {one['file']}"
                  for one in found for note in one["notes"]],
        "files": files,
    }


def _size_of(path):
    """Returns the size in bytes of a file to verify; for a directory, the sum
    of its files."""
    folder, name = os.path.split(path)
    try:
        if name in ("", ".metadata", "__0.metadata"):
            with os.scandir(folder) as parts:
                return sum(one.stat().st_size for one in parts if one.is_file())
        return sum(os.stat(part).st_size for part in parts_of(path))
    except OSError:
        return 0


def _verify_found(path, reading, before, total):
    """Returns the report of a file in a folder as a dict."""
    progress = reading.progress and (
        lambda done, _: reading.progress(before + done, total)
    )
    empty = {
        "file": path, "ok": None, "reason": "not a checkpoint",
        "checked_bytes": 0, "file_bytes": 0, "unchecked": [], "findings": [],
        "notes": [],
    }
    try:
        found = _haulway.verify(
            reading.source(path), reading.opening(), reading.threads, progress,
            found=True,
        )
    except Cancelled:
        raise
    except Error as error:  # The other files are still verified.
        finding = {
            "code": error.code, "message": error.message, "byte": error.byte
        }
        return {
            **empty, "ok": False, "reason": error.message,
            "findings": [finding],
        }
    return empty if found is None else found


# In a folder every file is scanned.
SCANNING = {
    name: option for name, option in OPENING.items()
    if name not in NAMING and name not in SIGNING
}


@reads(SCANNING)
def scan(path, *, allowed=(), allow=(), **options):
    """Returns whether a file would run code in programs that read it.

    Judges a file for pickle, torch.load(weights_only=False), torch.jit.load,
    torch.export.load, torch.package, joblib, numpy with allow_pickle, programs
    that open zips and tars, and programs that run files because of their
    content or name. Runs nothing. SAFE means that the kind of the file is
    proven.

    path: a path, bytes, a binary file object, read from its position, or a
        list of paths. In a folder every file is scanned, but those in `.git`.
    allow: names that may occur in pickles, as "module.name"; `allowed` and
        safe_globals are the same.
    OPTIONS

    Returns a report with `verdict` ("SAFE", "UNSAFE", "UNKNOWN"), `safe` (true
    only for SAFE; also the truth value of the report), `reason`, `byte`,
    `readable` (false if the file could not be read), `pickles` (each with
    member, globals, opcodes) and `findings`. For several files the verdict is
    the worst one, and `files` has a report of each.

    Raises Error only if a file cannot be read at all, and ArgumentTypeError
    for an unknown option.
    """
    more = [*names("allow", allow), *names("allowed", allowed)]
    if more:
        options["safe_globals"] = [
            *more, *READING["safe_globals"].check(
                "safe_globals", options.get("safe_globals") or ()
            )
        ]
    reading = Reading("scan", options, SCANNING)
    # The verdict must not depend on which modules are imported.
    opening = reading.opening(torch_too=False)
    if not isinstance(path, (str, os.PathLike, list, tuple)):
        return _scanned(_haulway.scan(reading.source(path), opening))
    paths = path if isinstance(path, (list, tuple)) else [path]
    files = [
        _scanned(report)
        for one in paths
        for report in _haulway.scan_path(
            os.fsencode(path_of(one)), opening, reading.remote
        )
    ]
    if len(files) == 1 and not isinstance(path, (list, tuple)):
        return files[0]
    return _of_several(path, files)


def _scanned(report):
    # Opcode names are keys: some are not valid attribute names.
    opcodes = [pickle.pop("opcodes") for pickle in report["pickles"]]
    result = as_report(report)
    for pickle, counts in zip(result.pickles, opcodes):
        pickle.opcodes = counts
    return result


def _of_several(path, files):
    worst = max(
        files, key=lambda report: _VERDICTS.index(report.verdict), default=None
    )
    several = isinstance(path, (list, tuple))
    if worst is None:
        reason = "no files"
    elif worst.safe:
        reason = f"all {len(files)} files are SAFE"
    else:
        reason = f"{worst.reason}; of {worst.file}"
    return Report(
        file=None if several else os.fspath(path),
        verdict="UNKNOWN" if worst is None else worst.verdict,
        safe=worst is not None and worst.safe,
        reason=reason,
        byte=None if worst is None else worst.byte,
        readable=all(report.readable for report in files),
        pickles=[pickle for report in files for pickle in report.pickles],
        findings=[found for report in files for found in report.findings],
        files=files,
    )


public("haulway", Report)
