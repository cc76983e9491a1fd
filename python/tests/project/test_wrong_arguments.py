"""Arguments of a wrong type, for every call with arguments of its own.

The options that several calls share are tested by their tables
(test_reading_options.py, test_writing_options.py, test_secrets.py).
"""

import functools
import inspect
import os

import numpy as np
import pytest
import torch

import haulway
import haulway.archive
import haulway.fsspec
import haulway.ipc
import haulway.torch
from haulway.tensorizer import TensorSerializer

DATA = {"a": np.arange(6, dtype=np.float32)}
# A value of each type.
VALUES = {
    "text": "\0", "number": -7, "float": 0.5, "bytes": b"x", "list": [object()],
    "object": object(), "dict": {3: 3}, "set": {3}, "bool": True,
    "tuple": (1, 2, 3),
}
# The types in VALUES that an argument accepts, or refuses for a reason other
# than its type.
SOURCE = {"text", "bytes"}
PATH = {"text", "bytes"}
FLAG = {"bool"}
NUMBER = {"number"}
SECONDS = {"number", "float", "bool"}
TEXT = {"text"}
NOTHING = set()


def three():
    return range(3)


def _published(call, **arguments):
    call(f"wrong-{os.getpid()}", **arguments).close()


def _closed(kind, **arguments):
    kind(**arguments).close()


# The call, its other arguments, and the types that each argument accepts.
CALLS = {
    "latest": (haulway.latest, {"dir_or_url": "in"}, {
        "dir_or_url": PATH, "verified": FLAG, "layout": NOTHING}),
    "prune": (haulway.prune, {"dir_or_url": "in", "keep": 1}, {
        "dir_or_url": PATH, "keep": NUMBER, "dry_run": FLAG,
        "layout": NOTHING}),
    "Checkpoints": (haulway.Checkpoints, {"dir_or_url": "in"}, {
        "dir_or_url": PATH, "keep": NUMBER, "every": NUMBER, "format": NOTHING,
        "verify": FLAG, "durability": NOTHING, "group": NOTHING}),
    "open": (haulway.open, {"path": "in.pt", "framework": "numpy"},
             {"path": SOURCE, "framework": NOTHING, "mmap": FLAG}),
    "load": (haulway.load, {"path": "in.pt", "framework": "numpy"}, {
        "path": SOURCE, "framework": NOTHING, "include": TEXT, "exclude": TEXT,
        "device": NOTHING, "dtype": NOTHING, "destination": NOTHING}),
    "iterate": (lambda **o: list(haulway.iterate(**o)),
                {"path": "in.pt", "framework": "numpy"}, {
        "path": SOURCE, "framework": NOTHING, "include": TEXT, "exclude": TEXT,
        "order": NOTHING, "device": NOTHING}),
    "shard": (haulway.shard,
              {"path": "in.pt", "rank": 0, "world": 1, "framework": "numpy"}, {
        "path": SOURCE, "rank": NUMBER, "world": NOTHING, "dim": NUMBER,
        "framework": NOTHING, "include": TEXT, "exclude": TEXT,
        "dtype": NOTHING}),
    "load_into": (haulway.load_into,
                  {"target": {"a": np.zeros(6, np.float32)}, "path": "in.pt"}, {
        "target": NOTHING, "path": SOURCE, "strict": FLAG, "prefix": TEXT}),
    "plan_reads": (haulway.plan_reads, {"path": "in.pt"}, {
        "path": SOURCE, "include": TEXT, "exclude": TEXT, "slices": NOTHING}),
    "attach": (haulway.attach, {}, {"handle": NOTHING}),
    "publish": (functools.partial(_published, haulway.publish),
                {"state": DATA}, {"keep": NOTHING}),
    "publish_file": (
        functools.partial(_published, haulway.publish_file),
        {"path": "in.pt", "framework": "numpy"}, {
            "path": SOURCE, "keep": NOTHING, "framework": NOTHING,
            "include": TEXT, "exclude": TEXT}),
    "publish_buffer": (haulway.publish_buffer, {"name": "wrong", "nbytes": 1},
                       {"name": NOTHING, "nbytes": NOTHING}),
    "subscribe": (haulway.subscribe, {"name": "nobody", "timeout": 0.001}, {
        "name": NOTHING, "timeout": SECONDS, "version": NUMBER,
        "writable": FLAG}),
    "bulk": (haulway.bulk, {"verb": "info", "inputs": [], "jobs": 1}, {
        "verb": NOTHING, "inputs": TEXT, "engine": NOTHING,
        "journal": {"bytes"}, "options": NOTHING, "jobs": NOTHING,
        "each": NOTHING, "progress": NOTHING}),
    "verify": (haulway.verify, {"path": "in.pt"},
               {"path": SOURCE, "lenient": FLAG, "manifest": SOURCE}),
    "scan": (haulway.scan, {"path": "in.pt"},
             {"path": SOURCE, "allowed": TEXT, "allow": TEXT}),
    "diff": (haulway.diff, {"a": "in.pt", "b": "in.pt"}, {
        "a": SOURCE, "b": SOURCE, "include": TEXT, "exclude": TEXT,
        "ignore_dtype": FLAG, "atol": {"float"}, "rtol": {"float"}}),
    "manifest": (haulway.manifest, {"path": "in.pt"},
                 {"path": SOURCE, "include": TEXT, "exclude": TEXT}),
    "tensor_stats": (haulway.tensor_stats, {"path": "in.pt"},
                     {"path": SOURCE, "include": TEXT, "exclude": TEXT}),
    "sign": (haulway.sign, {"model": "in.pt", "private_key": "key.pem"}, {
        "model": PATH, "out": PATH, "private_key": PATH, "passphrase": SOURCE,
        "signing_certificate": PATH, "certificate_chain": PATH, "hash": TEXT,
        "shard_size": NUMBER | TEXT, "ignore_paths": PATH, "ignore_git_paths": FLAG,
        "allow_symlinks": FLAG, "threads": NUMBER, "progress": NOTHING}),
    "repair": (haulway.repair, {"path": "in.pt", "out": "out.pt"}, {
        "path": SOURCE, "out": PATH, "sources": SOURCE, "to": TEXT}),
    "save": (haulway.save, {"obj": DATA, "path": "out.pt"},
             {"path": PATH, "format": TEXT}),
    "save_async": (haulway.save_async, {"obj": DATA, "path": "out.pt"},
                   {"path": PATH, "format": TEXT}),
    "convert": (haulway.convert, {"src": "in.pt", "dst": "out.safetensors"}, {
        "src": SOURCE, "dst": PATH, "to": TEXT, "dtype": NOTHING,
        "include": TEXT, "exclude": TEXT, "rename": NOTHING}),
    "writer": (haulway.writer, {"path": "out.safetensors"},
               {"path": {"bytes"}, "format": TEXT}),
    "get": (haulway.get, {"url": "in.pt", "path": "out.pt"},
            {"url": SOURCE, "path": {"bytes"}, "verify": FLAG}),
    "put": (haulway.put, {"file": "in.pt", "url": "out.pt"},
            {"file": SOURCE, "url": PATH}),
    "edit": (haulway.edit, {"path": "in.pt", "dry_run": True}, {
        "path": PATH, "rename": NOTHING, "drop": TEXT, "set": NOTHING,
        "unset": TEXT, "dtype": NOTHING, "replace": NOTHING, "merge": SOURCE,
        "out": {"bytes"}}),
    "create": (haulway.plan(DATA).create, {}, {"path": {"bytes"}}),
    "torch.save": (haulway.torch.save, {"obj": DATA, "f": "out.pt"},
                   {"f": PATH, "pickle_protocol": {"number", "bool"}}),
    "PyTorchFileReader": (haulway.archive.PyTorchFileReader,
                          {"name_or_buffer": "in.pt"},
                          {"name_or_buffer": SOURCE, "strict": FLAG}),
    "PyTorchFileWriter": (haulway.archive.PyTorchFileWriter,
                          {"name_or_buffer": "out.pt"}, {
        "name_or_buffer": TEXT, "compute_crc32": FLAG,
        "storage_alignment": NOTHING, "durability": NOTHING,
        "threads": NOTHING}),
    "TensorSerializer": (TensorSerializer, {"file_obj": "out.tensors"}, {
        "encryption": NOTHING, "limit_cpu_concurrency": NOTHING,
        "authenticate_metadata": FLAG, "layout": NOTHING,
        "max_tensors": NOTHING}),
    "config": (haulway.config, {}, {
        "save": NOTHING, "load": NOTHING, "threads": NOTHING}),
    "DataLoader": (haulway.ipc.DataLoader, {"dataset": [1]},
                   {"max_shared_bytes": FLAG}),
    "SharedMemoryArena": (
        functools.partial(_closed, haulway.ipc.SharedMemoryArena),
        {"max_bytes": 1 << 20}, {
            "max_bytes": FLAG, "max_units": FLAG, "acquire_timeout": {"float"},
            "bytes_as": NOTHING, "read_only": FLAG, "huge_pages": FLAG,
            "prefault": FLAG, "consumers": FLAG, "overflow_bytes": FLAG}),
    "SharedMemorySegmentPool": (
        functools.partial(_closed, haulway.ipc.SharedMemorySegmentPool),
        {"segment_size": 1 << 16, "count": 2}, {
            "segment_size": FLAG, "count": FLAG, "acquire_timeout": {"float"},
            "bytes_as": NOTHING, "read_only": FLAG, "consumers": FLAG,
            "overflow_bytes": FLAG}),
    "SharedMemoryRingBuffer": (
        functools.partial(_closed, haulway.ipc.SharedMemoryRingBuffer),
        {"capacity": 1 << 20},
        {"capacity": FLAG, "acquire_timeout": {"float"}, "consumers": FLAG}),
    "iterate_in_subprocess": (haulway.ipc.iterate_in_subprocess, {"fn": three}, {
        "fn": NOTHING, "buffer_size": {"number", "bool"}, "initializer": NOTHING,
        "mp_context": NOTHING, "timeout": {"float"}, "daemon": FLAG,
        "buffer": NOTHING, "arena": NOTHING, "pickle_free": FLAG}),
    "iterate_in_program": (haulway.ipc.iterate_in_program,
                           {"command": ["true"]}, {
        "command": NOTHING, "buffer_size": {"number", "bool"},
        "timeout": {"float"}, "buffer": NOTHING, "arena": NOTHING,
        "env": NOTHING}),
}


@pytest.mark.parametrize("call, argument", [
    (call, argument) for call, (_, _, takes) in CALLS.items()
    for argument in takes
])
def test_a_wrong_type_is_refused(call, argument, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    haulway.save(DATA, "in.pt")
    before = (tmp_path / "in.pt").read_bytes()
    function, given, takes = CALLS[call]
    for kind, value in VALUES.items():
        if kind in takes[argument]:
            continue
        with pytest.raises(haulway.InvalidArgumentError) as caught:
            function(**{**given, argument: value})
        said = str(caught.value)
        assert argument in said or "expected" in said, (kind, said)
        for private in ("_haulway", "bad_cast", "incompatible function"):
            assert private not in said
        # A call that is refused early leaves no trace.
        assert [path.name for path in tmp_path.iterdir()] == ["in.pt"], kind
    assert (tmp_path / "in.pt").read_bytes() == before


def test_every_call_is_tried():
    """Except calls without arguments of their own, or whose argument may be any
    object."""
    for name in haulway.__all__:
        value = getattr(haulway, name)
        if inspect.isfunction(value) and inspect.signature(value).parameters:
            assert name in CALLS or name == "plan", name
    for name, (*_, takes) in CALLS.items():
        if not inspect.isfunction(getattr(haulway, name, None)):
            continue
        own = {
            parameter.name
            for parameter in inspect.signature(
                getattr(haulway, name)).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        }
        untried = own - takes.keys()
        # Any object can be saved and published, JAX need not be installed, and
        # appended values have their own tests.
        assert untried <= {"obj", "state", "name", "append", "framework"}, name


def test_text_that_is_no_dtype_is_none(tmp_path):
    haulway.save(DATA, tmp_path / "in.pt")
    for word in ("\0", "\x01", "a b"):
        with pytest.raises(haulway.InvalidArgumentError, match="dtype is "):
            haulway.load(tmp_path / "in.pt", "numpy", dtype=word)
    assert haulway.load(tmp_path / "in.pt", "numpy",
                        dtype="<f2")["a"].dtype == np.float16
    assert haulway.load(tmp_path / "in.pt", "torch",
                        dtype=torch.float64)["a"].dtype == torch.float64


@pytest.mark.parametrize("call, said", [
    (lambda: haulway.shard("x", 0, -7), "world is -7: expected at least 1"),
    (lambda: haulway.verify("in.pt", manifest=3), "manifest: expected a path"),
    (lambda: haulway.repair("in.pt", "o.pt", sources=3), "sources: expected a p"),
    (lambda: haulway.edit("in.pt", merge=[3]), "merge: expected a path"),
    (lambda: haulway.edit("in.pt", replace={"a": 3}), "replace: expected a path"),
    (lambda: haulway.edit("in.pt", set=3), "set: expected a dict of strings"),
    (lambda: haulway.edit("in.pt", out="\0"), "out holds a NUL byte"),
    (lambda: haulway.convert(3, "o.pt"), "src: expected a path"),
    (lambda: haulway.get(3, "o.pt"), "url: expected a path"),
    (lambda: haulway.get("in.pt", "o\0.pt"), "path holds a NUL byte"),
    (lambda: haulway.put(3, "o.pt"), "file: expected a path"),
    (lambda: haulway.writer("o\0.pt"), "path holds a NUL byte"),
    (lambda: haulway.bulk("info", [], journal="\0"), "journal holds a NUL byte"),
    (lambda: haulway.config(bogus=1), "no option 'bogus'"),
    (lambda: haulway.config(load={"bogus": 1}), "no option load.bogus"),
])
def test_messages_name_the_argument(call, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    haulway.save(DATA, "in.pt")
    with pytest.raises(haulway.InvalidArgumentError, match=f"^{said}"):
        call()
