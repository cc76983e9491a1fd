"""The work of a worker: a verb on a batch of inputs, with a record for each."""

# Design: a verb is a row: the function that works on one input, and the options
# that it takes, which are those of the call of the same name. A worker notes an
# input's stamp before it reads the input, so a file that changes meanwhile has
# another stamp in the next run and is processed again. Faults of a file, and
# all other errors, become the error of its record.
#
# Running the command's verbs and reading their output was left out: starting a
# process for each of 20,000 tiny files takes longer than the work.

from __future__ import annotations

import json
import os
import stat
import time
from typing import NamedTuple

from .. import _haulway
from .._config import config
from .._errors import Error, InternalError, InvalidArgumentError, OptionError
from .._options import NAMING, OPENING, SIGNING, names, writing_of
from .._reading.call import Reading
from .._reading.compare import COMPARING, manifest
from .._reading.report import VERIFYING, scan, verify
from .._reading.source import path_of
from .._writing.call import Writing
from .._writing.convert import convert
from .inputs import CHECKPOINTS, EVERY, WHOLE, is_url, stamp_of

DONE, FOUND, FAILED, UNREAD = 0, 1, 2, 5
# The worker reports progress within inputs of at least this many bytes; smaller
# ones finish before the message would be read.
_TOLD_BYTES = 16 << 20
# Codes for a faulty file; other codes mean that the file could not be examined.
_FAULTS = frozenset(
    {"kTruncated", "kCorrupt", "kMismatch", "kUnsafe", "kLimit", "kAuth",
     "kSignature"}
)


class Task(NamedTuple):
    """A batch for a worker.

    items: for each input, its name, the base as in Input, the stamp in the
        journal if the worker has to compare it, and the output of convert.
    threads: number of threads for each input.
    """

    verb: str
    options: dict
    items: list
    threads: int


class Verb(NamedTuple):
    """A verb of bulk().

    run: run(name, item, options, threads, progress) returns a dict with the
        fields that the verb's --json prints.
    takes: the names of its options.
    taken: what folders give, as for expand().
    uses_threads: the verb can work on a large file with several threads.
    exit_of: returns the exit code of a result.
    unread: the exit code of an input with an error, if it is one of its own.
    order: the exit codes, from best to worst.
    """

    run: object
    takes: frozenset
    taken: str = CHECKPOINTS
    uses_threads: bool = False
    exit_of: object = lambda result: DONE
    unread: int | None = None
    order: tuple = (DONE, FOUND, FAILED)


def _verify(name, item, options, threads, progress):
    reading = Reading(
        "verify", {**options, "threads": threads, "progress": progress},
        VERIFYING,
    )
    if options.get("signature") is not None:
        return verify(
            os.path.dirname(name) or ".", progress=progress, threads=threads,
            **{**options, "signature": name},
        ).to_dict()
    reading.checks_signature = False
    report = _haulway.verify(
        reading.source(name), reading.opening(), reading.threads,
        reading.progress, found=bool(item[1]),
    )
    if report is None:
        return {
            "file": name, "ok": None, "reason": "not a checkpoint",
            "checked_bytes": 0, "unchecked": [], "notes": [], "findings": [],
        }
    return report


def _scan(name, item, options, threads, progress):
    if not is_url(name):
        kind = os.stat(name).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            return {
                "file": name, "verdict": "UNKNOWN", "safe": False,
                "reason": "not a regular file", "byte": None,
                "readable": True, "pickles": [], "findings": [],
            }
    return scan(name, **options).to_dict()


def _manifest(name, item, options, threads, progress):
    found = manifest(name, threads=threads, **options)
    return {
        "file": name,
        "tensors": [
            {"name": tensor, "dtype": dtype, "shape": list(shape), "sha256": sha256}
            for tensor, (dtype, shape, sha256) in found.items()
        ],
    }


def _convert(name, item, options, threads, progress):
    out = item[3]
    if not is_url(out):
        os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    done = convert(name, out, threads=threads, progress=progress, **options)
    return {"file": name, "out": out, **done.to_dict()}


def _info(name, item, options, threads, progress):
    core = opening_of(options).open(name)
    return {**json.loads(core.info_json("")), "file": name}


# Exit codes by the verdicts of verify and scan.
_OF_VERIFY = {True: DONE, None: DONE, False: FOUND}
_OF_SCAN = {"SAFE": DONE, "UNKNOWN": FAILED, "UNSAFE": FOUND}
# Every checkpoint in a folder is an input, so none is chosen.
_PER_RUN = {"progress", "stats", "threads", *NAMING}
_READ = frozenset({*OPENING, "retries"}) - _PER_RUN
_UNSIGNED = _READ - frozenset(SIGNING)  # Only verify finds signatures.
# What changes tensors, and what chooses those of a training: neither means
# anything to scan, and verify checks what is stored. Only casts ask for `raw`.
_COMPUTING = frozenset({"dequantize", "lora", "rules"})
_CHOOSING = frozenset({"part", "weights", "replicas", "split_layers"})
_RAW = frozenset({"raw"})
VERBS = {
    "scan": Verb(
        _scan,
        (_UNSIGNED | {"allow", "allowed"}) - _COMPUTING - _CHOOSING - _RAW,
        taken=EVERY,
        exit_of=lambda result: _OF_SCAN[result["verdict"]],
        # As in `haulway scan`, UNSAFE is worse than UNKNOWN.
        unread=UNREAD, order=(DONE, FAILED, UNREAD, FOUND),
    ),
    "verify": Verb(
        _verify,
        (_READ | frozenset(VERIFYING) - _PER_RUN) - _COMPUTING - _RAW,
        taken=WHOLE,
        uses_threads=True, exit_of=lambda result: _OF_VERIFY[result["ok"]],
    ),
    "manifest": Verb(
        _manifest,
        (_UNSIGNED | frozenset(COMPARING) | {"include", "exclude"})
        - _PER_RUN - frozenset(SIGNING) - _RAW,
        uses_threads=True,
    ),
    "convert": Verb(
        _convert,
        (_UNSIGNED | frozenset(writing_of("convert"))
         | {"to", "out", "dtype", "include", "exclude", "rename"}) - _PER_RUN,
        uses_threads=True,
    ),
    "info": Verb(_info, _UNSIGNED - _RAW),
}


def check_options(name, options):
    """Checks and returns the options of a run. Raises OptionError for an option
    that the verb does not have."""
    verb = VERBS[name]
    for option in options:
        if option not in verb.takes:
            raise OptionError(
                f"{option}: bulk {name} has no such option: expected "
                f"{', '.join(sorted(verb.takes))}", "kInvalidArgument",
            )
    with _retrying(options):
        opening_of(options).opening()
    checked = dict(options)
    if name == "convert":
        checked["out"] = _check_convert(options)
    for patterns in ("include", "exclude"):
        if options.get(patterns) is not None:
            names(patterns, options[patterns])
    return checked


def _check_convert(options):
    """Returns the folder or URL to write to."""
    for needed, what in (("out", "the folder or URL to write to"),
                         ("to", "a format")):
        if options.get(needed) is None:
            raise InvalidArgumentError(
                f"{needed}: bulk convert needs {what}", "kInvalidArgument"
            )
    out = path_of(options["out"], "out")
    known = [one.name for one in _haulway.formats()]
    if options["to"] not in known:
        raise InvalidArgumentError(
            f"to: expected {', '.join(known)}, found {options['to']!r}",
            "kInvalidArgument",
        )
    Writing("convert", {
        name: value for name, value in options.items()
        if name in writing_of("convert")
    })
    return _haulway.local_path(out) or out


def _retrying(options):
    """Returns a `with` block in which the option `retries` applies; verbs do
    not take the option themselves."""
    retries = options.get("retries")
    return config(load={} if retries is None else {"retries": retries})


def opening_of(options):
    """Returns the Reading that opens inputs, from the options of a run."""
    return Reading("bulk", {
        name: value for name, value in options.items() if name in OPENING
    }, OPENING)


def run_task(task, tell=None):
    """Returns the records of a batch, in order. The error of an input is in its
    record.

    tell: called with the number of bytes processed since the last call.
    """
    with _retrying(task.options):
        return [_run_one(task, item, tell) for item in task.items]


def _run_one(task, item, tell):
    name, _, known, _ = item
    verb = VERBS[task.verb]
    start = time.monotonic()
    record = {
        "input": name, "stamp": None, "exit": FAILED, "seconds": 0.0,
        "result": None, "error": None,
    }
    try:
        record["stamp"] = stamp = stamp_with(name, task.options)
        if known == stamp and (not is_url(name) or "version" in stamp):
            return {"input": name, "same": True}
        progress, options = None, dict(task.options)
        for name_of_run in ("out", "retries"):
            options.pop(name_of_run, None)
        if tell is not None and stamp["size"] >= _TOLD_BYTES:
            progress = _teller(tell, stamp)
        result = verb.run(name, item, options, task.threads, progress)
        record["result"] = result
        record["exit"] = verb.exit_of(result)
    except Exception as error:  # The other inputs must still be processed.
        record["error"], record["exit"] = error_of(error, task.verb)
    record["seconds"] = round(time.monotonic() - start, 6)
    return record


def stamp_with(name, options):
    """Returns the stamp of a path or a URL, which the options reach."""
    if not is_url(name):
        return stamp_of(name)
    source = _haulway.open_source(name, False, opening_of(options).remote)
    stamp = {"size": source.size}
    if source.version:
        stamp["version"] = source.version
    return stamp


def _teller(tell, stamp):
    """Returns a progress callback that calls tell() with parts of the input's
    size."""
    told = 0

    def progress(done, total):
        nonlocal told
        now = int(stamp["size"] * done / total) if total else 0
        if now > told:
            tell(now - told)
            told = now

    return progress


def error_of(error, verb=None):
    """Returns (the `error` of a record, its exit code) for an exception.

    verb: that of the input that has the error.
    """
    if not isinstance(error, Error):
        if isinstance(error, OSError) and error.filename is not None:
            what = (f"cannot use '{os.fsdecode(error.filename)}': "
                    f"{error.strerror} (errno {error.errno})")
            code = {
                FileNotFoundError: "kNotFound",
                PermissionError: "kPermissionDenied",
            }.get(type(error), "kIoError")
            error = Error(what, code)
        else:
            error = InternalError(f"{type(error).__name__}: {error}")
    told = {"code": error.code, "message": error.message, "byte": error.byte}
    unread = verb and VERBS[verb].unread
    return told, unread or (FOUND if error.code in _FAULTS else FAILED)
