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
import torch.distributed as dist

import haulway
import haulway.distributed

MODULES = (
    "haulway", "haulway.archive", "haulway.delta", "haulway.distributed",
    "haulway.hooks", "haulway.safetensors", "haulway.safetensors.numpy",
    "haulway.safetensors.torch", "haulway.tensorizer",
    "haulway.tensorizer.stream_io", "haulway.torch", "haulway.torch.dcp",
)
# Parameters that name what is read, and those that name what is written.
SOURCES = {"path", "url", "file", "filename", "a", "b", "src", "uri", "f",
           "path_uri", "name_or_buffer", "file_obj", "old", "new", "base",
           "dir_or_url", "source_dir"}
TARGETS = {"path", "url", "out", "dst", "path_uri", "target_uri",
           "haulway.delta.apply: target"}
# Values of other parameters that have no default.
VALUES = {
    "framework": "pt", "rank": 0, "world": 1, "target": dict,
    "model": torch.nn.Module, "name": "source-calls", "dim": 0, "keep": 1,
    "version": 1, "base_version": 0, "start": 0, "to": 1, "target_version": 1,
}
# First parameters of calls that read no source.
OTHERS = {
    "obj", "tensors", "tensor_dict", "tensor", "data", "verb", "handle", "state",
    "nbytes", "message", "bytes", "safe_globals", "key", "section", "core",
    "module", "code", "value", "options", "dtype", "args", "read_item",
}
# These only write, whatever their parameters' names.
WRITES = ("save", "writer", "s3_upload", "PyTorchFileWriter",
          "TensorSerializer", "Writer", "SafetensorsWriter")


def _required(call):
    return [one.name for one in inspect.signature(call).parameters.values()
            if one.default is one.empty
            and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]


def _public():
    """Yields (name, function, parameters without a default) of each call."""
    for module in map(importlib.import_module, MODULES):
        names = getattr(module, "__all__", None)
        for name in names or vars(module):
            call = getattr(module, name)
            home = getattr(call, "__module__", None) or ""
            known = home.startswith("haulway") if names else (
                home == module.__name__ and not name.startswith("_"))
            # Classes of the package itself are what its calls return.
            is_result = inspect.isclass(call) and (
                module.__name__ in ("haulway", "haulway.delta")
                or issubclass(call, BaseException))
            if not callable(call) or not known or is_result:
                continue
            try:
                required = _required(call)
            except ValueError:  # A class of the engine.
                continue
            yield f"{module.__name__}.{name}", call, required


def _calls():
    """Yields (name, function(source, target)) of each call that reads."""
    for name, call, required in _public():
        if (not required or required[0] in OTHERS
                or name.rpartition(".")[2].startswith(WRITES)):
            continue
        if not SOURCES.intersection(required):
            assert required[0] in VALUES, f"{name}: what is {required[0]}?"
            continue
        yield name, _bound(call, name, required)


def writing():
    """Returns the names of the calls that write, or may."""
    return {name for name, call, required in _public()
            if name.rpartition(".")[2].startswith(WRITES)
            or "out" in inspect.signature(call).parameters
            or [one for one in required
                if TARGETS.intersection((one, f"{name}: {one}"))
                and one != _read(required)]}


def _read(required):
    return next((one for one in required if one in SOURCES), None)


def _bound(call, name, required):
    read = _read(required)
    for one in required:
        assert one in SOURCES | TARGETS | VALUES.keys(), f"{name}: what is {one}?"

    def bound(source, target, **values):
        for one in required:
            if one == read or one in ("b", "new", "base"):
                values[one] = source
            elif TARGETS.intersection((one, f"{name}: {one}")):
                values[one] = target
            else:
                value = VALUES[one]
                values[one] = value() if callable(value) else value
        return call(**values)

    return bound


def _of_fsspec(method, *more):
    def call(source, target, **options):
        files = importlib.import_module("haulway.fsspec").HaulwayFileSystem(
            skip_instance_cache=True, **options)
        words = (target if one == "target" else one for one in more)
        return getattr(files, method)(source, *words)

    return call


def _of_run(method):
    return lambda source, target: getattr(haulway.Checkpoints(source), method)()


def _together(source, target):
    """Loads in a group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return haulway.distributed.load(source)
    finally:
        dist.destroy_process_group()


CALLS = dict(_calls()) | {
    "haulway.distributed.load": _together,
    # Without a time-out it waits for ever, as it should.
    "haulway.delta.follow": lambda source, target: next(
        haulway.delta.follow(source, timeout=0.3)),
} | {
    f"haulway.fsspec.{method}": _of_fsspec(method, *more) for method, *more in (
        ("info",), ("cat_file",), ("open",), ("ls",), ("get_file", "target"))
} | {
    f"haulway.Checkpoints.{method}": _of_run(method)
    for method in ("latest", "list", "load", "prune")}


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
    if hasattr(value, "read_metadata"):
        return plain(value.read_metadata())
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
    found = {path.relative_to(folder): path for path in folder.rglob("*")}
    return {str(name): _digest(path.read_bytes()) for name, path in found.items()
            if path.is_file()
            and not any(part.startswith(".") for part in name.parts)}


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


def save_files(folder, shape):
    """Writes the files that WAYS name, with three tensors each."""
    rng = np.random.default_rng(1)
    tensors = {name: rng.random(shape, "f4") for name in "abc"}
    for name in ("file.pt", "plain.pt", "cut.pt", "file.safetensors",
                 "plain.safetensors", "file.tensors"):
        haulway.save(tensors, folder / name)
    (folder / "key").write_bytes(bytes(range(32)))
    haulway.save(tensors, folder / "file.secret", format="tensorizer",
                 key=bytes(range(32)), authenticate_metadata=False)
