"""Sets of files of every kind: how they are written, killed and read.

A model of number k has tensors of which every element is k, so that whoever
reads a mixture of two models sees two numbers.
"""

import atexit
import functools
import os
import pathlib
import re
import signal
import subprocess
import tempfile

import numpy
import safetensors.numpy

import haulway
import haulway.delta
import set_writers

TESTS = pathlib.Path(__file__).resolve().parent
TENSORS, ITEMS = 7, 600
BASE = 9  # The number of the model that versions of weights begin with.
SHARD = 2 * ITEMS * 4  # Bytes of two tensors.
KILLED = -signal.SIGKILL
ERROR, MIXTURE = "error", "mixture"
_METADATA = {"gguf": {"general.architecture": "llama"}}
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\..+)")

def source(folder, number):
    """Makes the source of a conversion; returns its path."""
    path = folder / f"source-{number}.safetensors"
    if not path.exists():
        safetensors.numpy.save_file(
            {f"layer.{i}": numpy.full(ITEMS, number, "f4")
             for i in range(TENSORS)}, path)
    return path


class Kind:
    """A way to write a set into a folder.

    name: what it is called in tests; the call, and how it is made.
    words: returns the words of a process that writes model `number`, or for
        Python the way and the arguments of set_writers.start().
    opens: the file that opens the set; "" for the folder.
    load: returns the arrays of the set in a folder.
    excludes: one of two writers at once may be refused.
    leaves: names of files that a failed write leaves until the next one.
    """

    def __init__(self, name, words, opens="", load=None, excludes=False,
                 leaves=""):
        self.name, self.words, self.opens = name, words, opens
        self.load = load or (lambda out: haulway.load(out / opens, "numpy"))
        self.excludes, self.leaves = excludes, re.compile(leaves)

    def __repr__(self):
        return self.name

    def start(self, command, work, out, number, **environment):
        """Starts a process that writes model `number` into the folder."""
        words = self.words(command, work, out, number)
        if isinstance(words, tuple):
            way, *arguments = words
            return set_writers.start(
                _library(), way, (out, number, *arguments), environment)
        return subprocess.Popen(
            words, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, **environment})

    def write(self, command, work, out, number, **environment):
        """Returns the exit code."""
        return self.start(command, work, out, number, **environment).wait(120)


def _converting(target, *more):
    def words(command, work, out, number):
        return [command, "convert", source(work, number), f"{out}/{target}",
                "--threads", "2", "--shard", str(SHARD), *more]
    return words


def _in_python(*words):
    return lambda command, work, out, number: words


def _shards(form, work):
    """Returns whether a format can be written in several files."""
    try:
        done = haulway.convert(
            source(work, 1), work / f"model{form.suffixes[0]}", form.name,
            shard=SHARD, metadata=_METADATA.get(form.name))
    except haulway.Error:
        return False  # It is only read, or has one array.
    return len(done.files) > 2


# Versions of weights


def _newest(out):
    """Loads the newest whole version in a folder."""
    newest = max((one.number, one.path) for one in haulway.delta.versions(out)
                 if one.complete)
    return haulway.load(newest[1], "numpy", base=source(out.parent, BASE))


def _deltas(work, number, version, steps):
    """Returns a folder with the deltas that make model `number` of BASE, of which
    the last one is `version`."""
    run = work / f"run-{number}-{version}-{steps}"
    old = source(work, BASE)
    for step in range(0 if run.exists() else steps):
        new = source(work, number if step == steps - 1 else BASE + 1)
        haulway.delta.write(
            old, new, run / f"weight_v{version - steps + 1 + step:06}",
            version=version - steps + 1 + step,
            base_version=0 if step == 0 else version - steps + step)
        old = new
    return run


def _versioning(verb):
    def words(command, work, out, number):
        version = 100 + len(list(out.glob("weight_v*")))
        target = out / f"weight_v{version:06}"
        base = source(work, BASE)
        if verb == "write":
            return [command, "delta", "write", base, source(work, number), target,
                    "--version", str(version), "--base-version", "0",
                    "--shard", str(SHARD)]
        if verb == "compact":
            return [command, "delta", "compact", _deltas(work, number, version, 1),
                    target, "--base", base, "--shard", str(SHARD)]
        return [command, "delta", "fold", _deltas(work, number, version, 2),
                target, "--from", "0", "--to", str(version)]
    return words


@functools.cache
def kinds():
    """Returns a Kind for each way to write each format."""
    found = [
        Kind("convert, torch-dcp", _converting("", "--to", "torch-dcp")),
        Kind("dcp.Writer", _in_python("save_dcp", "Writer"), excludes=True,
             leaves=r"__0_0-[0-9a-f]{12}\.distcp"),
        Kind("dcp.SafetensorsWriter", _in_python("save_dcp", "SafetensorsWriter"),
             "model.safetensors.index.json"),
        Kind("dcp.SafetensorsWriter, distributed",
             _in_python("save_dcp", "SafetensorsWriter", "True")),
        *(Kind(f"Checkpoints, {form}", _in_python("checkpoints", form),
               load=lambda out: haulway.load(haulway.latest(out).path, "numpy"))
          for form in ("pt", "safetensors", "torch-dcp")),
        *(Kind(f"delta.{verb}", _versioning(verb), load=_newest, excludes=True)
          for verb in ("write", "compact", "fold")),
        *(Kind(f"delta.publisher, {what}", _in_python("publish", full_every),
               load=_newest, excludes=True)
          for what, full_every in (("deltas", 1000), ("full", 1))),
        Kind("save, data_file", _in_python("segments"), "model.tensors"),
    ]
    for form in haulway.formats():
        with tempfile.TemporaryDirectory() as work:
            if not form.suffixes or not _shards(form, pathlib.Path(work)):
                continue
        name = f"model{form.suffixes[0]}"
        values = [word for pair in _METADATA.get(form.name, {}).items()
                  for word in ("--set", "=".join(pair))]
        found.append(Kind(f"convert, {form.name}", _converting(
            name, "--to", form.name, *values), f"{name}.index.json"))
        if not values:
            found.append(Kind(f"convert into a folder, {form.name}",
                              _converting("", "--to", form.name)))
            found.append(Kind(f"writer, {form.name}", _in_python("writer", name),
                              f"{name}.index.json"))
    return found


def library(folder):
    """Builds kill_at.c; returns its path."""
    built = folder / "kill_at.so"
    if not built.exists():
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", built,
                        TESTS / "kill_at.c", "-ldl"], check=True)
    return built


@functools.cache
def _library():
    """Returns kill_at.c as built for this process."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return library(pathlib.Path(folder.name))


def calls(kind, command, work, out, number):
    """Returns how many calls that change files a process makes that writes over
    what is in the folder."""
    told = work / "calls"
    assert kind.write(command, work, out, number, CALLS_TO=str(told),
                      LD_PRELOAD=str(library(work)), KILL_AT="1000000") == 0
    return int(told.read_text())


def seen(read):
    """Returns the number of the model that read() returns as a dict of arrays,
    ERROR if it raises, or MIXTURE."""
    try:
        tensors = read()
    except (haulway.Error, OSError, ValueError):
        return ERROR
    numbers = {float(value) for array in tensors.values()
               for value in numpy.unique(numpy.asarray(array))}
    if len(tensors) == TENSORS and len(numbers) == 1:
        return int(numbers.pop())
    return MIXTURE


def found(kind, out):
    """What Haulway reads."""
    return seen(lambda: kind.load(out))


def found_by_names(out):
    """What a program reads that takes all shards of a complete set, and knows
    of no index."""
    files = {}
    for path in out.iterdir():
        match = _PART.fullmatch(path.name)
        if match and not path.name.startswith("."):
            files.setdefault(match[3], {})[int(match[2])] = path

    def read():
        complete = [parts for count, parts in files.items()
                    if len(parts) == int(count)]
        if len(complete) != 1:
            raise ValueError("no complete set")
        tensors = {}
        for path in complete[0].values():
            tensors.update(haulway.load(path, "numpy"))
        return tensors

    return seen(read)


def hidden(out):
    """Returns the names of hidden files, but for the one that opens a
    directory, and the lock of publishers."""
    return sorted(path.name for path in out.iterdir()
                  if path.name.startswith(".")
                  and path.name not in (".metadata", ".haulway-publisher.lock"))


def named(kind, out):
    """Returns the names of files that are not hidden, but for those that a failed
    write may leave."""
    return sorted(path.name for path in out.iterdir()
                  if not path.name.startswith(".")
                  and not kind.leaves.fullmatch(path.name))
