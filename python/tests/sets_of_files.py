"""Sets of files of every kind: how they are written, killed and read.

A model of number k has tensors of which every element is k, so that whoever
reads a mixture of two models sees two numbers.
"""

import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import numpy
import safetensors.numpy

import haulway

TESTS = pathlib.Path(__file__).resolve().parent
TENSORS, ITEMS = 7, 600
SHARD = 2 * ITEMS * 4  # Bytes of two tensors.
KILLED = -signal.SIGKILL
ERROR, MIXTURE = "error", "mixture"
_METADATA = {"gguf": {"general.architecture": "llama"}}
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\..+)")

_WRITER = """
import sys
import numpy, haulway
number, out, shard, tensors, items = sys.argv[1:]
with haulway.writer(out, shard=int(shard)) as writer:
    for i in range(int(tensors)):
        writer.add(f"layer.{i}", numpy.full((int(items),), int(number), "f4"))
    writer.commit()
"""

_DCP = """
import sys, warnings
import torch
import torch.distributed.checkpoint as dcp
import haulway.torch.dcp
warnings.simplefilter("ignore")
number, out, writer, distributed, tensors, items = sys.argv[1:]
names = [f"layer.{i}" for i in range(int(tensors))]
more = {} if writer == "Writer" else {
    "fqn_to_index_mapping": {name: 1 + i // 2 for i, name in enumerate(names)},
    "save_distributed": distributed == "True"}
dcp.save({name: torch.full((int(items),), float(number)) for name in names},
         storage_writer=getattr(haulway.torch.dcp, writer)(out, **more),
         no_dist=True)
"""


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

    name: what it is called in tests.
    words: returns the words of a process that writes model `number`.
    opens: the file that opens the set; "" for the folder.
    is_slow: a process takes seconds.
    """

    def __init__(self, name, words, opens, is_slow=False):
        self.name, self.words, self.opens = name, words, opens
        self.is_slow = is_slow

    def __repr__(self):
        return self.name

    def start(self, command, work, out, number, **environment):
        """Starts a process that writes model `number` into the folder."""
        return subprocess.Popen(
            self.words(command, work, out, number), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, **environment})

    def write(self, command, work, out, number, **environment):
        """Returns the exit code."""
        return self.start(command, work, out, number, **environment).wait(120)


def _converting(target, *more):
    def words(command, work, out, number):
        return [command, "convert", source(work, number), f"{out}/{target}",
                "--threads", "2", "--shard", str(SHARD), *more]
    return words


def _writing(target):
    def words(command, work, out, number):
        return [sys.executable, "-c", _WRITER, str(number), f"{out}/{target}",
                *map(str, (SHARD, TENSORS, ITEMS))]
    return words


def _values(form):
    return ["--set", "general.architecture=llama"] if form == "gguf" else []


def _shards(form, work):
    """Returns whether a format can be written in several files."""
    try:
        done = haulway.convert(
            source(work, 1), work / f"model{form.suffixes[0]}", form.name,
            shard=SHARD, metadata=_METADATA.get(form.name))
    except haulway.Error:
        return False  # It is only read, or has one array.
    return len(done.files) > 2


def _saving(writer, distributed=False):
    def words(command, work, out, number):
        return [sys.executable, "-c", _DCP, str(number), out, writer,
                *map(str, (distributed, TENSORS, ITEMS))]
    return words


@functools.cache
def kinds():
    """Returns a Kind for each way to write each format."""
    found = [
        Kind("convert, torch-dcp", _converting("", "--to", "torch-dcp"), ""),
        Kind("dcp.save, Writer", _saving("Writer"), "", is_slow=True),
        Kind("dcp.save, SafetensorsWriter", _saving("SafetensorsWriter"),
             "model.safetensors.index.json", is_slow=True),
        Kind("dcp.save, SafetensorsWriter, distributed",
             _saving("SafetensorsWriter", distributed=True), "", is_slow=True),
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
                              _converting("", "--to", form.name), ""))
            found.append(Kind(f"writer, {form.name}", _writing(name),
                              f"{name}.index.json"))
    return found


def library(folder):
    """Builds kill_at.c; returns its path."""
    built = folder / "kill_at.so"
    if not built.exists():
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", built,
                        TESTS / "kill_at.c", "-ldl"], check=True)
    return built


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
    return seen(lambda: haulway.load(out / kind.opens, "numpy"))


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
    directory."""
    return sorted(path.name for path in out.iterdir()
                  if path.name.startswith(".") and path.name != ".metadata")
