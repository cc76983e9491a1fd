"""The Python half of `haulway bulk`. The other half, cli/bulk.cc, reads the
command line and starts this module."""

# Design: standard output is for results alone, so this module keeps it for itself
# and gives everything else in the process standard error in its place. Output that
# cannot be written is an error like any other: one line, exit code 2.
#
# Leaving standard output to Python was not enough: ray writes its lines there, and
# what a buffer still holds at exit fails with a traceback and exit code 120.

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys

from .. import _haulway
from .._errors import Error, InvalidArgumentError
from .inputs import of_system
from .progress import ProgressLine
from .report import outcome_of
from .run import bulk
from .text import shown, size_text
from .verbs import FAILED, VERBS, error_of

_INTERRUPTED = 130
_NO_MATCH = 3
# A byte that is not UTF-8, as Python has it in names of files.
_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def main(request, journal, out, inputs):
    """Runs the request of the command line and ends the process.

    request: JSON, as cli/bulk.cc makes it.
    """
    request = json.loads(request)
    output = _Output()
    received = []

    def stop(number, frame):
        received.append(number)
        raise KeyboardInterrupt

    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, stop)
        # cli/bulk.cc has held an interrupt back while Python started.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        code = _run(request, journal, out, inputs, output)
    except KeyboardInterrupt:
        code = 128 + received[0] if received else _INTERRUPTED
    except BrokenPipeError:  # The reader has closed the pipe.
        code = FAILED
    except (Error, OSError, ImportError) as error:
        code = _fail(request, error, output)
    sys.exit(code)


class _Output:
    """The standard output of the command, for results only: what anything else
    writes there, as ray does, goes to standard error."""

    def __init__(self):
        # Python's own stream would report at exit what it could not write.
        try:
            self._file = os.dup(1)
            os.dup2(2, 1)
        except OSError as error:
            raise of_system(error, "cannot use standard output") from error

    def line(self, text):
        """Writes a line, which readers of a pipe see at once."""
        data = f"{text}\n".encode("utf-8", "surrogateescape")
        try:
            while data:
                data = data[os.write(self._file, data):]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise of_system(error, "cannot write to standard output") from error


def _tell(text):
    """Prints a message to standard error. Ignores errors."""
    with contextlib.suppress(OSError):
        os.write(2, f"haulway: {text}\n".encode("utf-8", "surrogateescape"))


def _run(request, journal, out, inputs, output):
    if request["version"] != _haulway.__version__:
        raise InvalidArgumentError(
            f"the command is haulway {request['version']}, the Python package "
            f"{_haulway.__version__}: expected the same", "kInvalidArgument",
        )
    options = options_of(request, out)
    line = None
    if sys.stderr.isatty() and not request["no_progress"]:
        line = ProgressLine()
    printer = _Printer(request, line, output)
    report = bulk(
        request["verb"], inputs, engine=request["engine"],
        journal=journal or None, options=options, jobs=request["jobs"] or None,
        each=printer.print, progress=line,
    )
    printer.finish(report)
    return report.exit


# The options of bulk() that the command's options have another name for.
_NAMED = {
    "allow": "safe_globals", "no-sync": "durability", "keyfile": "key",
    "key-env": "key", "passphrase-file": "passphrase",
    "bearer-env": "bearer_token", "header": "headers",
    "no-ignore-git-paths": "ignore_git_paths",
}


def _check_taken(verb, given):
    for flag in given:
        option = _NAMED.get(flag, flag.replace("-", "_"))
        if option not in VERBS[verb].takes:
            others = [one for one in VERBS if option in VERBS[one].takes]
            raise InvalidArgumentError(
                f"bulk {verb} has no option --{flag}: expected it for "
                f"{' or '.join(others)} only", "kInvalidArgument",
            )


def options_of(request, out=""):
    """Returns the options of bulk() for the command line's options: True for a
    flag, otherwise a list of texts."""
    given = request["options"]
    _check_taken(request["verb"], [*given, *(["out"] if out else [])])
    options = {"out": out} if out else {}
    for name, texts in given.items():
        if name == "allow":
            options["safe_globals"] = texts
        elif name in ("include", "exclude", "certificate-chain", "ignore-paths"):
            options[name.replace("-", "_")] = texts
        elif name == "no-ignore-git-paths":
            options["ignore_git_paths"] = False
        elif name == "rename":
            options[name] = [tuple(text.split("=", 1)) for text in texts]
        elif name == "no-sync":
            options["durability"] = "none"
        elif name == "lora":
            options[name] = list(zip(texts[::2], map(float, texts[1::2])))
        elif texts is True:
            options[name.replace("-", "_")] = True
        elif name == "bearer-env":
            options["bearer_token"] = os.environ[texts[-1]]
        elif name == "keyfile":
            options["key"] = _key(_read(texts[-1]))
        elif name == "passphrase-file":
            options["passphrase"] = _read(texts[-1]).rstrip(b"\r\n")
        elif name == "key-env":
            if texts[-1] not in os.environ:
                raise InvalidArgumentError(
                    f"no environment variable {texts[-1]}", "kInvalidArgument"
                )
            options["key"] = os.environ[texts[-1]].strip()
        else:
            options[name.replace("-", "_")] = texts[-1]
    if request["headers"]:
        options["headers"] = "\n".join(request["headers"])
    return options


def _read(path):
    with open(path, "rb") as file:
        return file.read(65536)


def _key(data):
    """Returns a key from a file: 32 bytes, or 64 hexadecimal digits."""
    return data if len(data) == 32 else data.decode("ascii", "replace").strip()


def _fail(request, error, output):
    told, code = error_of(error)
    if isinstance(error, ImportError):
        told["code"], told["message"] = "kUnsupported", str(error)
    if told["code"] == "kInvalidArgument":
        code = 4
    _tell(shown(told["message"]))
    if request["json"]:
        # The error may be that nothing can be written there.
        with contextlib.suppress(Error, OSError):
            output.line(_line({"error": told}))
    return code


def _line(value):
    """Returns a value as JSON. As in the output of the other verbs, a byte of a
    name that is not UTF-8 becomes \\u00NN: many programs refuse half of a
    surrogate pair."""
    text = json.dumps(value)
    return json.dumps(_readable(value)) if r"\udc" in text else text


def _readable(value):
    if isinstance(value, str):
        return _NOT_UTF8.sub(lambda byte: chr(ord(byte[0]) - 0xDC00), value)
    if isinstance(value, dict):
        return {_readable(key): _readable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_readable(item) for item in value]
    return value


class _Printer:
    """Prints results and, at the end, a summary."""

    def __init__(self, request, line, output):
        self._request, self._line, self._output = request, line, output

    def print(self, result):
        if self._request["json"]:
            text = _line(result)
        else:
            text = self._text(result)
        if text is None:
            return
        if self._line is not None:
            self._line.clear()
        self._output.line(text)

    def _text(self, result):
        verb, exact = self._request["verb"], self._request["bytes"]
        name = shown(result["input"])
        if result["error"] is not None:
            # Most messages name the file, but not those about the worker.
            return f"ERROR   {name}: {shown(result['error']['message'])}"
        outcome = outcome_of(verb, {"result": result, "error": None})
        if self._request["quiet"] and outcome in (
            "OK", "SAFE", "not a checkpoint"
        ):
            return None
        if verb == "verify":
            if result["ok"] is None:
                return f"-       {name}: not a checkpoint"
            lines = [f"{outcome:<7} {name}: "
                     f"{size_text(result['checked_bytes'], exact)} checked"]
            lines += [f"  {shown(found['message'])}"
                      for found in result["findings"]]
            return "\n".join(lines)
        if verb == "scan":
            why = "" if result["safe"] else f"\n  {shown(result['reason'])}"
            return f"{outcome:<7} {name}{why}"
        if verb == "manifest":
            return f"OK      {name}: {len(result['tensors'])} tensors"
        if verb == "convert":
            return (f"OK      {name}: {shown(result['out'])}, "
                    f"{result['tensors']} tensors, "
                    f"{size_text(result['bytes'], exact)}")
        return (f"OK      {name}: {result['format']}, "
                f"{result['tensor_count']} tensors, "
                f"{size_text(result['total_bytes'], exact)}")

    def finish(self, report):
        if self._line is not None:
            self._line.clear()
        if self._request["json"]:
            self._output.line(_line({"summary": report.summary()}))
            return
        if report.exit == _NO_MATCH:
            _tell("there are no inputs")
            return
        self._output.line(table_of(report, self._request["bytes"]))


def table_of(report, exact=False):
    """Returns the table for the end of a run."""
    rows = [
        (outcome, f"{files:,}", size_text(total, exact))
        for outcome, (files, total) in sorted(report.outcomes.items())
    ]
    rows.append(("in all", f"{report.inputs:,}", size_text(report.bytes, exact)))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        f"{name:<{widths[0]}}  {files:>{widths[1]}}  {size:>{widths[2]}}"
        for name, files, size in rows
    ]
    skipped = ""
    if report.skipped:
        skipped = f"; {report.skipped:,} of them done before, as the journal says"
    speed = report.bytes / report.seconds if report.seconds else 0
    lines[-1] += f"  in {report.seconds:.1f} s, {size_text(speed, exact)}/s{skipped}"
    return "\n".join(lines)
