"""Every public call that reads a source, and every verb, for tests of rules that
hold for all of them.

The calls are found by the names of their parameters, so a new one is covered
unless a parameter has a new name: then these tables must say what it is.
"""

import collections.abc
import hashlib
import importlib
import inspect
import json
import re
import shutil

import numpy as np
import torch

import haulway

MODULES = (
    "haulway", "haulway.archive", "haulway.safetensors",
    "haulway.safetensors.numpy", "haulway.safetensors.torch",
    "haulway.tensorizer", "haulway.tensorizer.stream_io", "haulway.torch",
)
# Parameters that name what is read, and those that name what is written.
SOURCES = {"path", "url", "file", "filename", "a", "b", "src", "uri", "f",
           "path_uri", "name_or_buffer", "file_obj"}
TARGETS = {"path", "url", "out", "dst", "path_uri", "target_uri"}
# Values of other parameters that have no default.
VALUES = {
    "framework": "pt", "rank": 0, "world": 1, "target": dict,
    "model": torch.nn.Module, "name": "source-calls", "dim": 0,
}
# First parameters of calls that read no source.
OTHERS = {
    "obj", "tensors", "tensor_dict", "tensor", "data", "verb", "handle", "state",
    "nbytes", "message", "bytes", "safe_globals", "key", "section", "core",
    "module", "code", "value", "options", "dtype", "dir_or_url",
}
# These only write, whatever their parameters' names.
WRITES = ("save", "writer", "s3_upload", "PyTorchFileWriter",
          "TensorSerializer")


def _required(call):
    return [one.name for one in inspect.signature(call).parameters.values()
            if one.default is one.empty
            and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]


def _calls():
    """Yields (name, function(source, target)) of each call."""
    for module in map(importlib.import_module, MODULES):
        names = getattr(module, "__all__", None)
        for name in names or vars(module):
            call = getattr(module, name)
            home = getattr(call, "__module__", None) or ""
            known = home.startswith("haulway") if names else (
                home == module.__name__ and not name.startswith("_"))
            # Classes of the package itself are what its calls return.
            is_result = inspect.isclass(call) and (
                module is haulway or issubclass(call, BaseException))
            if not callable(call) or not known or is_result:
                continue
            try:
                required = _required(call)
            except ValueError:  # A class of the engine.
                continue
            if not required or required[0] in OTHERS or name.startswith(WRITES):
                continue
            if not SOURCES.intersection(required):
                assert required[0] in VALUES, (
                    f"{module.__name__}.{name}: what is {required[0]}?")
                continue
            yield f"{module.__name__}.{name}", _bound(call, name, required)


def _bound(call, name, required):
    read = next(one for one in required if one in SOURCES)
    for one in required:
        assert one in SOURCES | TARGETS | VALUES.keys(), f"{name}: what is {one}?"

    def bound(source, target, **values):
        for one in required:
            if one == read or one == "b":
                values[one] = source
            elif one in TARGETS:
                values[one] = target
            else:
                value = VALUES[one]
                values[one] = value() if callable(value) else value
        return call(**values)

    return bound


def _of_fsspec(method):
    def call(source, target, **options):
        files = importlib.import_module("haulway.fsspec").HaulwayFileSystem(
            skip_instance_cache=True, **options)
        return getattr(files, method)(source)

    return call


CALLS = dict(_calls()) | {
    f"haulway.fsspec.{method}": _of_fsspec(method)
    for method in ("info", "cat_file", "open")}


def _varies(key):
    """Returns whether a statistic differs between calls that do the same."""
    return key.endswith("seconds") or key in ("requests", "retries", "threads")


def plain(value):
    """Returns what a call returned, read to its end, as data to compare, and
    closes it."""
    try:
        return _plain(value)
    finally:
        close = getattr(value, "close", None)
        if callable(close):
            close()


def _plain(value):
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape),
                _digest(value.detach().contiguous().view(-1)
                        .view(torch.uint8).numpy().tobytes()))
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, _digest(value.tobytes())
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _digest(value)
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, collections.abc.Mapping):
        return {str(k): plain(v) for k, v in value.items()
                if not _varies(str(k))}
    if hasattr(value, "get_tensor"):
        return {name: plain(value.get_tensor(name)) for name in value.keys()}
    if hasattr(value, "get_all_records"):
        return [plain(value.get_record(name))
                for name in value.get_all_records()]
    if hasattr(value, "read"):
        return plain(value.read())
    if isinstance(value, collections.abc.Iterable):
        return [plain(one) for one in value]
    return type(value).__name__, getattr(value, "ok", None)


def _digest(data):
    return hashlib.sha256(data).hexdigest()


def outcome(call, source, folder):
    """Returns what a call returns and the files that it makes in a folder, or
    its exception."""
    clear(folder)
    try:
        value = plain(call(source, str(folder / "out.safetensors")))
    except (haulway.Error, OSError, ValueError, RuntimeError) as error:
        value = error
    return value, written(folder)


def clear(folder):
    """Removes all that is in a folder."""
    for left in folder.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def written(folder):
    """Returns the digests of the files in a folder that a user sees."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    return {name: _digest(path.read_bytes()) for name, path in found.items()
            if path.is_file() and not name.startswith(".")}


def without_varying(text):
    """Returns the output of a verb without what differs each time."""
    try:
        told = json.loads(text)
    except ValueError:
        return text
    if not isinstance(told, dict):
        return told
    return {k: v for k, v in told.items() if not _varies(k)}


# Verbs

# Command lines by verb. FILE.pt stands for a .pt file. Words after a verb's
# name in the keys distinguish several ways to call the verb.
WAYS = {
    "ls": "FILE.pt",
    "ls --stats": "FILE.pt --stats",
    "info": "FILE.pt",
    "cat": "FILE.pt a",
    "verify": "FILE.pt",
    "sign": "FILE.pt --private-key key.pem --out out.sig",
    "verify --manifest": "plain.pt --manifest FILE.json",
    "scan": "FILE.pt",
    "load": "FILE.pt",
    "plan-reads": "FILE.pt",
    "repack": "FILE.pt out.pt",
    "convert": "FILE.pt out.safetensors",
    "diff": "plain.pt FILE.pt",
    "manifest": "FILE.pt",
    "repair": "FILE.pt out.pt",
    "repair --from": "cut.pt out.pt --from FILE.pt",
    "encrypt": "FILE.tensors out.tensors --keyfile key",
    "decrypt": "FILE.secret out.tensors --keyfile key",
    "edit": "FILE.pt --drop b",
    "edit --append": "plain.safetensors --append FILE.pt",
    "edit --replace": "plain.safetensors --replace c=FILE.safetensors",
    "map": "FILE.pt -o out.html",
    "map --json": "FILE.pt --json",
    "get": "FILE.pt out.pt --verify",
    "put": "FILE.pt out.pt",
    "delta": "write plain.pt FILE.pt out.version --version 1 --base-version 0",
    "latest": ".",
    "prune": ". --keep 1",
    "arena": "ls",
    "bulk": "info FILE.pt",
    "completion": "bash",
}


def words(way, file):
    """Returns the command line of a way with FILE replaced."""
    return words_of(way.split()[0] + " " + WAYS[way], file)


def words_of(line, file):
    """Returns a command line with FILE replaced."""
    return re.sub(r"FILE(\.\w+)", lambda m: file(f"file{m[1]}"), line).split()
