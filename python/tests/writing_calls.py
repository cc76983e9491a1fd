"""Every public call that writes a file, for tests of rules that hold for all of
them.

As a program, `python writing_calls.py FOLDER COUNT` with kill_at.c preloaded
makes each of them write over an old file, COUNT times, while one of the system's
calls fails that change files. It prints what was told and what the file holds
then, and the names that are in its folder at the end.
"""

import ctypes
import functools
import json
import os
import pathlib
import random
import sys
import tempfile

import numpy
import torch

import haulway
import haulway.archive
import haulway.fsspec
import haulway.safetensors.numpy
import haulway.safetensors.torch
import haulway.tensorizer
import haulway.torch
from signed_models import key

ARRAYS = {f"layer.{i}": numpy.full(5000, i, "f4") for i in range(4)}
TENSORS = {name: torch.from_numpy(array) for name, array in ARRAYS.items()}
OLD = b"old content\n" * 10_000
MOST = 1 << 40  # More calls than anyone makes.


def _write(arrays, out, **options):
    with haulway.writer(out, **options) as writer:
        for name, array in arrays.items():
            writer.add(name, array)
        writer.commit()


def _plan(source, out):
    plan = haulway.plan(TENSORS)
    plan.create(out)
    for record in plan.records:
        plan.fill(record.name, bytes(record.size))
    plan.commit()


def _archive(source, out):
    with haulway.archive.PyTorchFileWriter(out) as writer:
        writer.write_record("data.pkl", b"\x80\x02N.", 4)


def _tensorizer(source, out):
    serializer = haulway.tensorizer.TensorSerializer(out)
    serializer.write_state_dict(TENSORS)
    serializer.close()


def _files():
    return haulway.fsspec.HaulwayFileSystem(skip_instance_cache=True)


def _open(mode):
    def call(source, out):
        with _files().open(out, mode) as file:
            file.write(bytes(range(256)) * 500)
    return call


def _model():
    model = torch.nn.Linear(64, 64)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    return model


# function(source, out) by call; a source is a safetensors file. What follows a
# comma distinguishes several ways.
CALLS = {
    "haulway.save_async": lambda source, out: haulway.save_async(
        ARRAYS, out, "safetensors").result(),
    "haulway.edit": lambda source, out: haulway.edit(
        source, out=out, set={"a": "b"}),
    "haulway.repair": lambda source, out: haulway.repair(
        source, out, to="safetensors"),
    "haulway.sign": lambda source, out: haulway.sign(
        source, out, private_key=key("p256.pem")),
    "haulway.get": haulway.get,
    "haulway.put": haulway.put,
    "haulway.plan": _plan,
    "haulway.archive.PyTorchFileWriter": _archive,
    "haulway.safetensors.numpy.save_file": lambda source, out: (
        haulway.safetensors.numpy.save_file(ARRAYS, out)),
    "haulway.safetensors.torch.save_file": lambda source, out: (
        haulway.safetensors.torch.save_file(TENSORS, out)),
    "haulway.safetensors.torch.save_model": lambda source, out: (
        haulway.safetensors.torch.save_model(_model(), out)),
    "haulway.tensorizer.TensorSerializer": _tensorizer,
    "haulway.torch.save": lambda source, out: haulway.torch.save(TENSORS, out),
    "haulway.torch.save, legacy": lambda source, out: haulway.torch.save(
        TENSORS, out, _use_new_zipfile_serialization=False),
    "haulway.fsspec, wb": _open("wb"),
    "haulway.fsspec, ab": _open("ab"),
    "haulway.fsspec, cp_file": lambda source, out: _files().cp_file(source, out),
}


@functools.cache
def calls():
    """Returns CALLS and those for each format that can be written."""
    found = dict(CALLS)
    for form in haulway.formats():
        name = form.name
        arrays = {"layer.1": ARRAYS["layer.1"]} if name == "npy" else ARRAYS
        more = {"metadata": {"general.architecture": "llama"}} if (
            name == "gguf") else {}
        ways = {
            "save": lambda source, out, name=name, arrays=arrays, more=more: (
                haulway.save(arrays, out, name, **more)),
            "convert": lambda source, out, name=name, arrays=arrays, more=more: (
                haulway.convert(source, out, name, include=list(arrays), **more)),
            "writer": lambda source, out, name=name, arrays=arrays, more=more: (
                _write(arrays, out, format=name, **more)),
        }
        with tempfile.TemporaryDirectory() as folder:
            try:
                ways["writer"](None, f"{folder}/out")
            except haulway.Error:
                continue  # It is only read.
        found |= {f"haulway.{way}, {name}": call for way, call in ways.items()}
    return found


def _once(folder, name, call):
    """Writes over an old file in a process of its own, in which a call that
    changes files fails. Returns how many of them were left until then, and the
    error of `name`, or ""."""
    out = folder / "out" / "out.file"
    out.unlink(missing_ok=True)
    out.write_bytes(OLD)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told = "not an error of ours"
        try:
            library = ctypes.CDLL(None)
            library.kill_at(ctypes.c_long(call))
            try:
                calls()[name](str(folder / "source"), str(out))
                told = ""
            except (haulway.Error, OSError, RuntimeError) as error:
                told = str(error) or "no words"
            told = json.dumps((library.calls_left(), told))
            library.kill_at(ctypes.c_long(-1))
            os.write(writing, told.encode()[:60_000])
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return json.loads(told)


def _fail(folder, name, count):
    """Makes calls of `name` fail; returns what main() prints of it."""
    out = folder / "out" / "out.file"
    left, told = _once(folder, name, MOST)
    assert not told, (name, told)
    new, rows = out.read_bytes(), []
    made = range(MOST - left)
    for call in random.sample(made, min(count, len(made))):
        left, told = _once(folder, name, call)
        found = out.read_bytes()
        # A signature's length varies by a few bytes.
        rows.append((call, told, found == OLD,
                     abs(len(found) - len(new)) < 9))
    _once(folder, name, MOST)
    return {"is_new": new != OLD, "rows": rows,
            "left": sorted(os.listdir(out.parent))}


def main(folder, count):
    folder = pathlib.Path(folder)
    (folder / "out").mkdir()
    haulway.save(ARRAYS, folder / "source", "safetensors")
    print(json.dumps({name: _fail(folder, name, int(count)) for name in calls()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
