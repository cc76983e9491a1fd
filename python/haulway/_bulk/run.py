"""haulway.bulk: the loop between inputs, engine and journal."""

# Design: inputs are taken from their stream only when the engine has room, so only
# a window of them exists at a time. Small files share a task, because handing
# out a task costs as much as about ten small files take. A large file has a
# task of its own and, if the verb supports it, all threads of the engine's
# machine, since the library splits its work into ranges. If the worker of a
# task dies, the task's inputs are tried once more, one per task, so that the
# input that kills workers is identified and fails alone.
#
# Sorting inputs by size, largest first, was left out: the list would have to be
# complete before the first input is run.

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import threading
import time

from .. import _haulway
from .._errors import Error, InvalidArgumentError
from .._options import ENGINE, OPENING, REMOTE, by_name, function
from .._reading.source import path_of, path_to_write
from .engines import engine_of
from .inputs import check_inputs, expand, expand_signed, is_url
from .journal import Journal
from .outputs import Outputs
from .report import BulkReport, result_of
from .verbs import (
    FAILED,
    VERBS,
    Task,
    check_options,
    error_of,
    opening_of,
    stamp_with,
)

# Limits of one task: number of inputs and their total bytes.
_MOST_INPUTS = 32
_MOST_BYTES = 8 << 20
# Inputs of at least this size have a task of their own and several threads.
_LARGE_BYTES = 256 << 20
# Tasks per job that are queued ahead, so that no worker waits.
_AHEAD = 2
# The files of an adapter.
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors",
            "adapter_model.bin")
# Options that say how bytes are reached, read and written, but not what results;
# they are not compared with a journal's.
_NOT_NOTED = frozenset({
    *REMOTE, *ENGINE, "io", "mmap", "mmap_flags", "progress", "stats",
    "durability",
    *(name for name, option in OPENING.items() if option.secret),
}) - {"verify"}


def bulk(verb, inputs, *, engine="local", journal=None, options=None, jobs=None,
         each=None, progress=None):
    """Runs a verb on any number of inputs, in many processes.

        report = haulway.bulk("verify", "checkpoints/", journal="run.jsonl")
        for result in report.results():
            print(result["input"], result["ok"])

    verb: "scan", "verify", "manifest", "convert" or "info".
    inputs: a path or an iterable of paths, which is read while the run goes
        on: files, folders, globs, URLs, folders of stores
        ("s3://bucket/prefix/"), "@FILE" for the names in a file, one per
        line, and "-" for names on standard input.
    engine: "local" for processes on this machine, "ray", "dask", or a
        concurrent.futures.Executor.
    journal: path of a file that records every input when it is done. A run
        with the journal of an earlier run skips inputs that are recorded
        there and did not change since (size, time of change, ETag), and tries
        failed inputs again.
    options: a dict with the verb's options. "convert" needs `to`, a format,
        and `out`, the folder or URL to write to. "verify" with `signature`, the
        name of a file, verifies each folder that has such a file as a signed
        model, and refuses other checkpoints; see docs/signing.md.
    jobs: number of tasks at a time; None: one for each processor.
    each: called with the result of every input, as results() yields them, in
        the order in which inputs are done.
    progress: called as progress(done, total), in bytes; `total` is None until
        it is known.

    Returns a report: `inputs`, `done`, `skipped`, `failed`, `bytes`, `seconds`
    and `exit`, the worst exit code; true if that is 0. results() yields a dict
    for each input with the verb's fields, `input` and `error`, which is None or
    a dict of code, message and byte. Raises Error if the run as a whole fails;
    the error of an input is in its result.
    """
    if not isinstance(verb, str) or verb not in VERBS:
        raise InvalidArgumentError(
            f"verb: expected {', '.join(VERBS)}, found {verb!r}",
            "kInvalidArgument",
        )
    check_inputs(inputs)
    function("each", each, "a result")
    function("progress", progress, "the bytes done and the bytes in all")
    options = check_options(verb, by_name("options", options, "a dict") or {})
    if journal is not None:
        journal = path_to_write(journal, "journal")
    head = {"verb": verb, "options": _noted(options)}
    if journal is not None:
        head |= _stamps(options)
    log = Journal(journal, head)
    try:
        run = _Run(verb, inputs, options, log, each, progress)
        return run.run(engine_of(engine, jobs))
    finally:
        log.finish()


def _noted(options):
    """Returns the options that affect results, as in JSON. Of keys, only whether
    there is one."""
    def plain(value):
        if isinstance(value, (str, int, float, bool, type(None))):
            return value
        if isinstance(value, dict):
            return [[str(key), str(one)] for key, one in value.items()]
        if isinstance(value, (list, tuple, set)):
            return [plain(one) for one in value]
        if isinstance(value, os.PathLike):
            return os.fsdecode(value)
        return repr(value)

    noted = {
        name: plain(value) for name, value in sorted(options.items())
        if name not in _NOT_NOTED and value is not None
    }
    if any(options.get(name) is not None for name in ("key", "passphrase")):
        noted["key"] = "given"
    return noted


def _stamps(options):
    """Returns the stamps of the files that the options lora and rules name, for
    the head of a journal. A file that cannot be reached has none."""
    reading = opening_of(options)
    named = [file for path, _ in reading.lora or () for file in _adapter(path)]
    if isinstance(reading.rules, str) and reading.rules:
        named.append(reading.rules)
    stamps = {}
    for name in named:
        with contextlib.suppress(Error, OSError, ValueError):
            stamps[f"stamp of {name!r}"] = stamp_with(name, options)
    return stamps


def _adapter(path):
    """Returns the files of an adapter, which is a folder or a file."""
    if not _haulway.is_folder(path):
        return [path, os.path.join(os.path.dirname(path), _ADAPTER[0])]
    return [os.path.join(path, name) for name in _ADAPTER]


class _Run:
    """A single call of bulk()."""

    def __init__(self, verb, inputs, options, log, each, progress):
        self._verb, self._options, self._log = verb, options, log
        self._each, self._progress = each, progress
        self._inputs = inputs
        # The name of signatures to verify with, or None.
        self._signature = options.get("signature") if verb == "verify" else None
        self._remote = opening_of(options).remote
        self._outputs = Outputs(options, log) if verb == "convert" else None
        self._report = BulkReport(verb, log)
        self._bytes_done, self._bytes_told = 0, 0
        self._total = None
        self._stream = self._fresh()
        self._pushed_back = None
        # Inputs whose worker died, one per task: (task, item, input).
        self._again = collections.deque()
        # By ticket: (inputs, items, whether it is a retry).
        self._in_flight = {}
        self._tickets = itertools.count()

    def run(self, engine):
        start = time.monotonic()
        stop = threading.Event()
        counter = self._count_bytes(stop)
        try:
            self._loop(engine)
        except BaseException:
            engine.close(kill=True)
            raise
        else:
            engine.close()
        finally:
            stop.set()
            if counter is not None:
                counter.join()
        self._report.seconds = round(time.monotonic() - start, 6)
        return self._report

    def _loop(self, engine):
        while True:
            while self._has_room(engine):
                entry = self._next_entry()
                if entry is None:
                    break
                inputs, again = entry
                ticket = next(self._tickets)
                task = self._task(inputs, engine.threads)
                self._in_flight[ticket] = inputs, again
                engine.submit(ticket, task)
            if not self._in_flight:
                return
            self._take(*engine.next(self._tell))

    def _has_room(self, engine):
        if engine.shares_deaths and (
            self._again or any(again for _, again in self._in_flight.values())
        ):
            return not self._in_flight
        return len(self._in_flight) < engine.jobs * _AHEAD

    # Inputs

    def _found(self):
        if self._signature is not None:
            return expand_signed(self._inputs, self._remote, self._signature)
        found = expand(self._inputs, self._remote, VERBS[self._verb].taken)
        if self._outputs is None:
            return found
        return itertools.filterfalse(self._outputs.hides, found)

    def _is_complete(self, record, out):
        """Returns whether an earlier run finished an input, and its output, if
        it has one, is still there."""
        if record["error"] is not None or record["result"] is None:
            return False
        if out is not None and not self._log.wrote(out, record["input"]):
            return False
        files = record["result"].get("files", ())
        return all(is_url(file) or os.path.exists(file) for file in files)

    def _fresh(self):
        """Yields the inputs to work on, each with its record in the journal.
        Reports inputs that an earlier run finished."""
        for one in self._found():
            if self._outputs is not None and self._outputs.has(one):
                continue
            is_new, known = self._log.meet(one.name)
            if not is_new:
                continue
            self._report.inputs += 1
            if one.error is not None:
                self._fail(one, one.error)
                continue
            out = None
            if self._outputs is not None:
                try:
                    out = self._outputs.claim(one)
                except InvalidArgumentError as error:
                    self._fail(one, error)
                    continue
            if known is not None and (self._signature is not None
                                      or not self._is_complete(known, out)):
                known = None
            if known is not None and known["stamp"] == one.stamp:
                self._skip(one, known)
                continue
            # Only the worker can find out whether a URL's content has changed.
            stamp = known["stamp"] if known and is_url(one.name) else None
            yield one, known, (one.name, one.base, stamp, out)

    def _next_entry(self):
        """Returns (inputs, whether they are retried) for a task, or None."""
        if self._again:
            return [self._again.popleft()], True
        batch, size = [], 0
        while len(batch) < _MOST_INPUTS and size < _MOST_BYTES:
            entry, self._pushed_back = self._pushed_back, None
            if entry is None:
                entry = next(self._stream, None)
            if entry is None:
                break
            one = entry[0]
            is_alone = is_url(one.name) or one.size >= _LARGE_BYTES
            if is_alone and batch:
                self._pushed_back = entry
                break
            batch.append(entry)
            size += one.size
            if is_alone:
                break
        return (batch, False) if batch else None

    def _task(self, inputs, threads):
        is_large = inputs[0][0].size >= _LARGE_BYTES
        uses = VERBS[self._verb].uses_threads and is_large
        return Task(
            self._verb, self._options, [item for _, _, item in inputs],
            threads if uses else 1,
        )

    # Results

    def _take(self, ticket, answer):
        inputs, again = self._in_flight.pop(ticket)
        if isinstance(answer, Exception):
            self._take_failure(inputs, again, answer)
            return
        self._log.add([one for one in answer if not one.get("same")])
        for (one, known, _), record in zip(inputs, answer):
            if record.get("same"):
                self._skip(one, known)
            else:
                self._count(one, record)

    def _take_failure(self, inputs, again, error):
        self._bytes_told = 0
        if not again:
            self._again.extend(inputs)
            return
        for one, _, _ in inputs:
            self._finish(one, {
                "input": one.name, "stamp": None, "seconds": 0.0,
                "result": None, "exit": VERBS[self._verb].unread or FAILED,
                "error": {
                    "code": "kInternal",
                    "message": f"tried twice: {error or type(error).__name__}; "
                    f"of {one.name}",
                    "byte": None,
                },
            })

    def _fail(self, one, error):
        told, code = error_of(error, self._verb)
        self._finish(one, {
            "input": one.name, "stamp": None, "seconds": 0.0, "result": None,
            "error": told, "exit": code,
        })

    def _finish(self, one, record):
        self._log.add([record])
        self._count(one, record)

    def _count(self, one, record):
        size = one.size or (record["stamp"] or {}).get("size", 0)
        self._report._count(record, size, skipped=False)
        self._tell_done(size)
        if self._each is not None:
            self._each(result_of(record))

    def _skip(self, one, known):
        size = one.size or known["stamp"]["size"]
        self._report._count(known, size, skipped=True)
        self._tell_done(size)
        if self._each is not None:
            self._each(result_of(known))

    # Progress

    def _tell(self, count):
        """Adds progress, in bytes, of inputs in flight."""
        self._bytes_told += count
        self._show()

    def _tell_done(self, size):
        self._bytes_done += size
        self._bytes_told = max(0, self._bytes_told - size)
        self._show()

    def _show(self):
        if self._progress is not None:
            self._progress(self._bytes_done + self._bytes_told, self._total)

    def _count_bytes(self, stop):
        """Starts a thread that sums the sizes of all inputs, if the caller
        wants progress and the inputs can be listed twice."""
        if self._progress is None or not _can_be_listed_twice(self._inputs):
            return None

        def count():
            total = 0
            for one in self._found():
                if stop.is_set():
                    return
                if one.size == 0 and is_url(one.name):
                    return  # The sizes of remote inputs are unknown.
                total += one.size
            self._total = total

        def count_or_leave():
            # The loop reads the same lists, and reports what fails.
            with contextlib.suppress(Error):
                count()

        thread = threading.Thread(target=count_or_leave, daemon=True)
        thread.start()
        return thread


def _can_be_listed_twice(inputs):
    """Returns whether a second reader of the inputs takes nothing from the
    first, as it would from standard input or a list that is a pipe."""
    names = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
    if not isinstance(names, (list, tuple)):
        return False
    return all(
        os.path.isfile(name[1:]) if name.startswith("@") else name != "-"
        for name in (path_of(one, "an input") for one in names)
    )
