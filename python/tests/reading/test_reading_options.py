"""The reading options: one table, which every call follows."""

import inspect
import io
import mmap
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

import haulway
import haulway.torch
from haulway import _options
from haulway._reading import compare, remote, report
from option_values import VALUES, check_refusal, wrong_values


@pytest.fixture
def flipped(tmp_path):
    """A checkpoint with one flipped bit in a payload."""
    path = tmp_path / "flipped.pt"
    haulway.save({"a": torch.arange(50_000), "b": torch.ones(3)}, path)
    data = bytearray(path.read_bytes())
    data[20_000] ^= 1
    path.write_bytes(data)
    return path


@pytest.fixture
def undated(tmp_path):
    """Returns a checkpoint that does not state its byte order, and its tensor
    if that is big-endian."""
    path = tmp_path / "undated.pt"
    tensor = torch.arange(1, 5, dtype=torch.int32)
    torch.save({"a": tensor}, path, _disable_byteorder_record=True)
    # torch always writes the record; readers use the default without one.
    import zipfile

    bare = tmp_path / "bare.pt"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(bare, "w") as new:
        for info in old.infolist():
            if not info.filename.endswith(("byteorder", ".storage_alignment",
                                           ".format_version")):
                new.writestr(info.filename, old.read(info))
    return bare, tensor.numpy().byteswap()


# Every call that loads tensor "a", by name.
CALLS = {
    "load": lambda path, **o: haulway.load(path, "numpy", **o)["a"],
    "load include": lambda path, **o: haulway.load(
        path, "numpy", include="a", **o)["a"],
    "load torch": lambda path, **o: haulway.load(path, "torch", **o)["a"],
    "load dtype": lambda path, **o: haulway.load(
        path, "numpy", dtype="F16", **o)["a"],
    "load shm": lambda path, **o: haulway.load(
        path, "numpy", destination="shm", **o)["a"],
    "open": lambda path, **o: haulway.open(path, "numpy", **o)["a"],
    "open slice": lambda path, **o: haulway.open(
        path, "numpy", **o).get_slice("a")[:],
    "iterate": lambda path, **o: dict(haulway.iterate(path, "numpy", **o))["a"],
    "shard": lambda path, **o: haulway.shard(
        path, 0, 1, framework="numpy", **o)["a"],
    "torch.load": lambda path, **o: haulway.torch.load(path, **o)["a"],
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_follows_the_configured_verify(call, flipped, monkeypatch):
    CALLS[call](flipped)
    with pytest.raises(haulway.MismatchError):
        CALLS[call](flipped, verify=True)
    with haulway.config(load={"verify": True}):
        with pytest.raises(haulway.MismatchError):
            CALLS[call](flipped)
        CALLS[call](flipped, verify=False)
    monkeypatch.setenv("HAULWAY_LOAD_VERIFY", "1")
    with pytest.raises(haulway.MismatchError):
        CALLS[call](flipped)


def test_load_into_follows_the_configured_verify(flipped):
    target = {"a": np.zeros(50_000, np.int64), "b": np.zeros(3, np.float32)}
    haulway.load_into(target, flipped)
    with haulway.config(load={"verify": True}):
        with pytest.raises(haulway.MismatchError):
            haulway.load_into(target, flipped)


@pytest.mark.parametrize("call", CALLS)
def test_every_call_follows_the_configured_endianness(call, undated):
    path, expected = undated
    plain = np.asarray(CALLS[call](path))
    with haulway.config(load={"endianness": "big"}):
        found = np.asarray(CALLS[call](path))
    assert (found == expected).all()
    assert (plain != expected).any()
    assert (np.asarray(CALLS[call](path, endianness="big")) == expected).all()


def test_load_into_follows_the_configured_endianness(undated):
    path, expected = undated
    target = {"a": np.zeros(4, np.int32)}
    haulway.load_into(target, path, endianness="big")
    assert (target["a"] == expected).all()


@pytest.mark.parametrize("call", ["load", "load torch", "iterate", "shard",
                                  "torch.load", "load include", "load shm"])
def test_every_call_tells_and_follows_threads_and_io(call, tmp_path):
    path = tmp_path / "x.pt"
    haulway.save({"a": torch.zeros(3 << 20)}, path)
    stats = {}
    with haulway.config(load={"threads": 3, "io": "pread"}):
        CALLS[call](path, stats=stats)
    assert (stats["io"], stats["threads"]) == ("pread", 3)
    if call in ("load shm", "shard"):
        return
    for configured in ({"mmap": True}, {"io": "mmap"}):
        with haulway.config(load=configured):
            CALLS[call](path, stats=stats)
            assert stats["io"] == "mmap"
            # An argument takes precedence.
            CALLS[call](path, stats=stats, io="pread")
            assert stats["io"] == "pread"


def test_progress_is_called_by_every_call(tmp_path):
    path = tmp_path / "x.pt"
    haulway.save({"a": torch.zeros(1 << 20)}, path)
    for name, call in CALLS.items():
        told = []
        call(path, progress=lambda done, total, told=told: told.append(done))
        assert told, name
    told = []
    haulway.verify(path, progress=lambda done, total: told.append(done))
    assert told


def test_shared_loading_keeps_lenient_and_keep_meta(tmp_path):
    path = tmp_path / "meta.tensors"
    haulway.save({"a": torch.empty(2, 3, device="meta"), "b": torch.ones(2)}, path)
    plain = haulway.load(path, "torch", destination="shm")
    assert not plain["a"].is_meta
    shared = haulway.load(path, "torch", destination="shm", keep_meta=True)
    assert shared["a"].is_meta and not shared["b"].is_meta
    again = haulway.attach(str(shared.handle), "torch", keep_meta=True)
    assert again["a"].is_meta
    unpickled = pickle.loads(pickle.dumps(shared))
    assert unpickled["a"].is_meta


LENIENT_CALLS = {
    **CALLS,
    "plan_reads": lambda path, **o: haulway.plan_reads(path, **o),
    "load_into": lambda path, **o: haulway.load_into(
        {"a": np.zeros(1000, np.int64)}, path, strict=False, **o),
}


@pytest.mark.parametrize("call", LENIENT_CALLS)
def test_every_call_takes_lenient(call, tmp_path):
    """A file outside the folder of the other records."""
    import zipfile

    path = tmp_path / "x.pt"
    torch.save({"a": torch.arange(1000)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("elsewhere.json", b"{}")
    with pytest.raises(haulway.CorruptError):
        LENIENT_CALLS[call](path)
    LENIENT_CALLS[call](path, lenient=True)
    with haulway.config(load={"lenient": True}):
        LENIENT_CALLS[call](path)
        assert haulway.verify(path).ok and not haulway.scan(path).findings
    assert not haulway.verify(path).ok


class Mine:
    """A class that only a caller can allow."""


@pytest.mark.parametrize("call", LENIENT_CALLS)
def test_every_call_takes_safe_globals(call, tmp_path):
    path = tmp_path / "x.pt"
    made = Mine()
    made.x = 1
    torch.save({"a": torch.arange(1000), "b": made}, path)
    full = f"{Mine.__module__}.{Mine.__qualname__}"
    if call in ("load", "load torch", "load dtype", "load shm", "torch.load"):
        with pytest.raises(haulway.UnsafeError):
            LENIENT_CALLS[call](path)
    LENIENT_CALLS[call](path, safe_globals=[Mine])
    with haulway.config(load={"safe_globals": [(Mine, full)]}):
        LENIENT_CALLS[call](path)
    with haulway.torch.safe_globals([Mine]):
        LENIENT_CALLS[call](path)
    if "torch" not in call:
        LENIENT_CALLS[call](path, safe_globals=full)


def test_scan_and_verify_take_safe_globals(tmp_path, monkeypatch):
    path = tmp_path / "x.pt"
    torch.save({"a": torch.arange(1000), "b": Mine()}, path)
    full = f"{Mine.__module__}.{Mine.__qualname__}"
    assert haulway.verify(path).ok  # The file is not damaged.
    assert haulway.verify(path, safe_globals=[Mine]).ok
    assert not haulway.scan(path).safe
    assert haulway.scan(path, safe_globals=[full]).safe
    assert haulway.scan(path, allowed=[full]).safe
    monkeypatch.setenv("HAULWAY_LOAD_SAFE_GLOBALS", f"{full},other.Name")
    assert haulway.scan(path).safe and haulway.verify(path).ok


def test_a_str_is_one_name(tmp_path):
    """A str is not a list of its characters."""
    path = tmp_path / "x.pt"
    torch.save({"a": torch.arange(1000), "b": Mine()}, path)
    full = f"{Mine.__module__}.{Mine.__qualname__}"
    for call in ({"allow": full}, {"allowed": full}, {"safe_globals": full}):
        assert haulway.scan(path, **call).safe, call
    with haulway.torch.safe_globals(full):
        assert haulway.scan(path).safe
        assert full in haulway.torch.get_safe_globals()
    for name in ("allow", "allowed"):
        for wrong in (3, b"a.b", [3]):
            with pytest.raises(haulway.ArgumentTypeError, match=f"^{name} "):
                haulway.scan(path, **{name: wrong})
    for call in (haulway.torch.safe_globals, haulway.torch.add_safe_globals):
        with pytest.raises(haulway.ArgumentTypeError, match="^safe_globals is"):
            call(3)


def test_open_reads_by_the_engine_where_it_has_something_to_do(tmp_path):
    path = tmp_path / "x.pt"
    haulway.save({"a": torch.zeros(1 << 20)}, path)
    stats = {}
    with haulway.open(path, "numpy", io="pread", threads=1, verify=True,
                      stats=stats) as checkpoint:
        assert checkpoint["a"].sum() == 0
    assert stats["tensors"] == 1 and stats["io"] == {"pread": 1}
    assert stats["verify_seconds"] > 0


@pytest.mark.parametrize(("options", "error", "words"), [
    ({"threads": "a"}, ValueError, "threads: expected a number"),
    ({"threads": -1}, ValueError, "threads: expected a number from 0"),
    ({"threads": 1 << 40}, ValueError, "threads: expected a number from 0"),
    ({"threads": 1.5}, ValueError, "found 1.5"),
    ({"retries": -1}, ValueError, "retries: expected a number"),
    ({"memory_budget": -1}, ValueError, "memory_budget: expected a number"),
    ({"memory_budget": "much"}, ValueError, "memory_budget: expected a size"),
    ({"verify": 2}, ValueError, "verify: expected a bool"),
    ({"io": "fast"}, ValueError, "io: expected 'auto' or 'mmap'"),
    ({"io": 3}, ValueError, "io: expected"),
    ({"io": "pread", "mmap": True}, ValueError, "expected one of them"),
    ({"io": "mmap", "mmap": False}, ValueError, "expected one of them"),
    ({"mmap_flags": 77}, ValueError, "MAP_PRIVATE"),
    ({"endianness": "middle"}, ValueError, "endianness: expected"),
    ({"progress": 1}, TypeError, "progress is int"),
    ({"stats": 1}, TypeError, "stats is int"),
    ({"key": 7}, TypeError, "key is int"),
    ({"key": b"1" * 32, "passphrase": "x"}, ValueError, "expected one"),
    ({"safe_globals": [3]}, ValueError, "safe_globals: expected full names"),
])
@pytest.mark.parametrize("call", ["load", "open", "iterate", "shard",
                                  "torch.load"])
def test_wrong_values_are_refused_everywhere(call, options, error, words, small):
    """Every call raises an Error that is also the exception Python users
    expect."""
    with pytest.raises(haulway.Error, match=words) as caught:
        CALLS[call](small, **options)
    assert isinstance(caught.value, error)
    assert caught.value.code == "kInvalidArgument"


# Every call that reads, with its options.
TABLES = {
    **{call: (_options.READING, CALLS[call])
       for call in ("load", "open", "iterate", "shard", "torch.load")},
    "load_into": (_options.READING, lambda path, **o: haulway.load_into(
        {"a": np.zeros(1)}, path, **o)),
    "verify": (report.VERIFYING, haulway.verify),
    "scan": (report.SCANNING, haulway.scan),
    "diff": (compare.DIFFING, lambda path, **o: haulway.diff(path, path, **o)),
    "manifest": (compare.COMPARING, haulway.manifest),
    "tensor_stats": (compare.MEASURING, haulway.tensor_stats),
    "get": (remote._GETTING, lambda path, **o: haulway.get(
        path, path.with_suffix(".new"), **o)),
    "configuration": (
        {name: option for name, option in _options.READING.items()
         if not option.of_call},
        lambda path, **o: haulway.config(load=o)),
}


@pytest.mark.parametrize("call", TABLES)
def test_a_value_of_a_wrong_type_is_refused_by_name(call, tmp_path):
    path = tmp_path / "a.pt"
    haulway.save({"a": np.ones(1)}, path)
    options, run = TABLES[call]
    prefix = "load." if call == "configuration" else ""
    for name, option in options.items():
        wrong = list(wrong_values(name, option))
        # An option that accepts any text, or any dict, refuses all other types.
        assert len(wrong) >= len(VALUES) - 2, name
        for value in wrong:
            with pytest.raises(haulway.InvalidArgumentError) as caught:
                run(path, **{name: value})
            check_refusal(caught.value, prefix + name, option, value)
    assert list(tmp_path.iterdir()) == [path]


def test_unknown_options_are_refused_by_name(small):
    for call in (*CALLS.values(), haulway.scan, haulway.verify,
                 haulway.plan_reads):
        with pytest.raises(TypeError, match="unexpected keyword .*'thread'"):
            call(small, thread=1)
    with pytest.raises(TypeError, match=r"'inclde'; did you mean 'include'\?$"):
        haulway.load(small, inclde="x")
    with pytest.raises(TypeError, match=r"'lenent'; did you mean 'lenient'\?$"):
        haulway.open(small, lenent=True)
    with pytest.raises(TypeError, match=r"'colour'$"):
        haulway.load(small, colour=1)
    with pytest.raises(AttributeError, match="did you mean 'threads'"):
        haulway.config.save.thraeds = 1
    with pytest.raises(haulway.OptionError, match="did you mean 'durability'"):
        haulway.config(durabilty="none")
    with pytest.raises(haulway.OptionError, match="did you mean 'retries'"):
        haulway.config(load={"retrys": 1})
    with pytest.raises(TypeError, match=r"scan\(\) got .*'retries'"):
        haulway.scan(small, retries=1)
    with pytest.raises(TypeError, match=r"attach\(\) got .*'threads'"):
        haulway.attach("none", threads=1)


def test_what_says_the_same_hides_one_another(monkeypatch):
    load = haulway.config.load
    with haulway.config(mmap=True), haulway.config(io="pread"):
        assert (load.io, load.mmap) == ("pread", None)
        assert load.origin("mmap") == "default"
    monkeypatch.setenv("HAULWAY_LOAD_PASSPHRASE", "word")
    assert load.passphrase == b"word"
    with haulway.config(load={"key": b"k" * 32}):
        assert (load.key, load.passphrase) == (b"k" * 32, None)
        assert "kkk" not in repr(haulway.config)
    assert "word" not in repr(haulway.config)
    monkeypatch.setenv("HAULWAY_LOAD_KEY", "6b" * 32)
    assert load.key == b"k" * 32
    monkeypatch.setenv("HAULWAY_LOAD_KEY", "six")
    with pytest.raises(ValueError, match="HAULWAY_LOAD_KEY: expected") as caught:
        _ = load.key
    assert "six" not in str(caught.value)


def test_sizes_have_units():
    with haulway.config(load={"memory_budget": "64MiB"}):
        assert haulway.config.load.memory_budget == 64 << 20
    for text, size in {"5g": 5 * 10**9, "5 GB": 5 * 10**9, "7": 7,
                       "2k": 2000, "1KiB": 1024, "3b": 3, "1.5G": 15 * 10**8,
                       "0.5KiB": 512, "2T": 2 * 10**12}.items():
        with haulway.config(load={"memory_budget": text}):
            assert haulway.config.load.memory_budget == size
    for text in "5i", "1e3", "G", "1.G.", "5 apples", "٣":
        with pytest.raises(haulway.InvalidArgumentError, match="a size such as"):
            haulway.config(load={"memory_budget": text})
    with pytest.raises(haulway.InvalidArgumentError, match="shard: expected a size"):
        haulway.writer("b.safetensors", shard="0GB")


def test_what_is_of_a_call_is_not_configured():
    with pytest.raises(TypeError, match="no option load.progress"):
        haulway.config(load={"progress": print})
    with pytest.raises(AttributeError):
        _ = haulway.config.load.stats


def test_every_option_is_documented_in_every_call():
    for call in (haulway.open, haulway.load, haulway.iterate, haulway.shard,
                 haulway.load_into, haulway.torch.load):
        text = inspect.getdoc(call)  # Python 3.13 takes the indentation away.
        for name in _options.READING:
            assert f"\n{name}: " in text, (call, name)
        assert "OPTIONS" not in text
        assert max(map(len, text.splitlines())) < 89


_DEBUGGING = ["HAULWAY_LOAD_DEBUG", "HAULWAY_SERIALIZATION_DEBUG",
              "TORCH_SERIALIZATION_DEBUG"]


@pytest.fixture
def undebugged(monkeypatch):
    """Removes the variables for debugging, which scripts/test sets."""
    for variable in _DEBUGGING:
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("variable", _DEBUGGING)
def test_debugging_compares_offsets(variable, tmp_path, monkeypatch, undebugged):
    """A local header whose name is longer than the directory says."""
    path = tmp_path / "x.pt"
    torch.save({"a": torch.arange(1000)}, path)
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x03\x04", data.index(b"data/0") - 64)
    data[at + 28] += 1  # The length of the extra field.
    path.write_bytes(data)
    haulway.open(path).close()
    with pytest.raises(haulway.CorruptError):
        haulway.open(path, debug=True)
    monkeypatch.setenv(variable, "1")
    with pytest.raises(haulway.CorruptError):
        haulway.open(path)
    with haulway.config(load={"debug": False}):
        haulway.open(path).close()


def test_offsets_that_are_not_calculated_are_read(tmp_path, undebugged):
    """With calculate_storage_offsets=False every header is read."""
    path = tmp_path / "x.pt"
    torch.save({"a": torch.arange(1000)}, path)
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x03\x04", data.index(b"data/0") - 64)
    data[at + 28] += 1
    path.write_bytes(data)
    haulway.open(path).close()
    with pytest.raises(haulway.CorruptError):
        haulway.open(path, calculate_storage_offsets=False)
    with haulway.config(load={"calculate_storage_offsets": False}):
        with pytest.raises(haulway.CorruptError):
            haulway.open(path)


def test_iterating_and_loading_exclude(tmp_path):
    path = tmp_path / "x.pt"
    haulway.save({"a": torch.ones(1), "b": torch.ones(2), "ab": torch.ones(3)},
                 path)
    assert sorted(dict(haulway.iterate(path, exclude="a*"))) == ["b"]
    assert sorted(haulway.load(path, include="*b", exclude="a*")) == ["b"]
    shared = haulway.load(path, exclude=["b"], destination="shm")
    assert sorted(shared.keys()) == ["a", "ab"]
    with pytest.raises(TypeError, match="include is PosixPath") as caught:
        haulway.load(path, include=path)
    assert isinstance(caught.value, haulway.Error)


def test_a_pipe_whose_name_is_a_number_is_named_in_words(tmp_path):
    import os

    reader, writer = os.pipe()
    os.write(writer, b"no checkpoint at all")
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        with pytest.raises(haulway.Error, match=f"file descriptor {reader}"):
            haulway.open(pipe)


def test_devices_that_are_none_are_errors(small):
    for call in (haulway.load, haulway.iterate):
        with pytest.raises(haulway.Error, match="device is 'toaster'") as caught:
            call(small, "torch", device="toaster")
        assert isinstance(caught.value, ValueError)
        with pytest.raises(haulway.Error, match="expected 'cpu' for NumPy"):
            call(small, "numpy", device="cuda")


def test_meta_as_device_reads_no_payload(tmp_path):
    path = tmp_path / "x.pt"
    haulway.save({"a": torch.ones(1 << 20)}, path)
    stats = {}
    for chosen in ({}, {"include": "a"}):
        found = haulway.load(path, "torch", device="meta", stats=stats, **chosen)
        assert found["a"].is_meta and found["a"].shape == (1 << 20,)
    assert stats == {}


def test_shards_of_views_are_cast(tmp_path):
    """A view whose elements repeat is loaded whole, and still cast."""
    path = tmp_path / "x.pt"
    base = torch.arange(8.0)
    torch.save({"v": base.as_strided((4, 4), (1, 1)), "b": torch.ones(4)}, path)
    for framework in ("torch", "numpy"):
        part = haulway.shard(path, 1, 2, framework=framework, dtype="F16")
        assert str(part["v"].dtype).endswith("float16")
        assert np.asarray(part["v"]).tolist() == [[2, 3, 4, 5], [3, 4, 5, 6]]


def test_modules_import_one_another_in_no_circle():
    """Functions import nothing of the package, except modules that need torch
    or NumPy, or that are large and seldom used."""
    import ast

    folder = pathlib.Path(haulway.__file__).parent
    paths = {
        ".".join(path.relative_to(folder).with_suffix("").parts): path
        for room in (".", "_*") for path in folder.glob(f"{room}/*.py")
        if path.name != "__init__.py"
    }
    assert "_reading.call" in paths and "_options" in paths
    heads, inner = {}, {}
    for module, path in paths.items():
        tree = ast.parse(path.read_text())
        heads[module] = set()
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            here = module.split(".")[:-node.level]
            base = [*here, *(node.module or "").split(".")] if node.module else here
            names = {".".join(base),
                     *(".".join([*base, alias.name]) for alias in node.names)}
            found = heads if node in tree.body else inner
            found.setdefault(module, set()).update(names & paths.keys())
    done, doing = set(), []

    def visit(module):
        assert module not in doing, [*doing, module]
        if module in done or module not in heads:
            return
        doing.append(module)
        for name in heads[module] | inner.get(module, set()):
            visit(name)
        doing.pop()
        done.add(module)

    for module in heads:
        visit(module)


def test_configuration_reaches_a_new_process(flipped):
    done = subprocess.run(
        [sys.executable, "-c",
         "import sys, haulway\nhaulway.load(sys.argv[1], 'numpy')", flipped],
        env={"HAULWAY_LOAD_VERIFY": "1", "PATH": ""}, capture_output=True,
        text=True,
    )
    assert "MismatchError" in done.stderr


def test_flags_of_mappings_are_those_of_the_module():
    assert haulway.config.load.mmap_flags == mmap.MAP_PRIVATE


SHARED = {"io": "mmap", "mmap_flags": mmap.MAP_SHARED}
# How to get a tensor "a" whose writes reach the file.
THROUGH = {
    "load": lambda path: haulway.load(path, "torch", **SHARED)["a"],
    "numpy": lambda path: haulway.load(path, "numpy", **SHARED)["a"],
    "include": lambda path: haulway.load(
        path, "torch", include="a", **SHARED)["a"],
    "open": lambda path: haulway.open(path, "torch", **SHARED)["a"],
    "iterate": lambda path: dict(
        haulway.iterate(path, "torch", **SHARED))["a"],
    "list": lambda path: haulway.load([path], "torch", **SHARED)["a"],
    "uri": lambda path: haulway.load(f"file://{path}", "torch", **SHARED)["a"],
    "file": lambda path: haulway.load(open(path, "rb"), "torch", **SHARED)["a"],
}


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
@pytest.mark.parametrize("way", THROUGH)
def test_shared_mappings_write_to_the_file(way, ending, tmp_path):
    path = tmp_path / f"x.{ending}"
    haulway.save({"a": torch.zeros(1000)}, path)
    tensor = THROUGH[way](path)
    tensor[5] = 7
    assert haulway.load(path, "numpy", io="pread")["a"][5] == 7
    del tensor


def test_torch_load_writes_through_as_torch_does(tmp_path):
    for module in (torch, haulway.torch):
        path = tmp_path / "x.pt"
        torch.save({"a": torch.zeros(10)}, path)
        with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
            module.load(str(path), mmap=True)["a"][0] = 7
        assert torch.load(path)["a"][0] == 7, module
    module.load(str(path), mmap=True)["a"][1] = 7
    assert torch.load(path)["a"][1] == 0


def test_torchs_flags_count_again_after_ours():
    with haulway.torch.serialization.set_default_mmap_options(mmap.MAP_PRIVATE):
        assert haulway.config.load.origin("mmap_flags") == "process"
        with haulway.torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
            assert haulway.config.load.mmap_flags == mmap.MAP_SHARED
        assert haulway.config.load.mmap_flags == mmap.MAP_PRIVATE
        assert haulway.config.load.origin("mmap_flags") == "process"
    assert haulway.config.load.origin("mmap_flags") == "default"


def test_shards_write_through_too(tmp_path):
    haulway.save({"a": torch.zeros(10)}, tmp_path / "s.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "s.safetensors"}}')
    haulway.load(tmp_path, "torch", **SHARED)["a"][0] = 7
    assert haulway.load(tmp_path, "numpy")["a"][0] == 7


@pytest.mark.parametrize("held", [bytes, io.BytesIO])
def test_what_no_mapping_writes_to_is_refused(held, tmp_path):
    path = tmp_path / "x.safetensors"
    haulway.save({"a": torch.zeros(10)}, path)
    with pytest.raises(haulway.UnsupportedError, match="no local file"):
        haulway.load(held(path.read_bytes()), **SHARED)
    with pytest.raises(haulway.UnsupportedError, match="not a local file"):
        haulway.load("http://localhost:1/x.safetensors", **SHARED)
    code = (
        "import os, sys, haulway\n"
        # Other users may have no access to the package's folder.
        "call = lambda **more: haulway.load(sys.argv[1], 'numpy', **more)\n"
        "call()\n"
        "os.geteuid() or os.setuid(65534)\n"
        "call(io='mmap', mmap_flags=1)"
    )
    path.chmod(0o444)
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o755)
    done = subprocess.run([sys.executable, "-c", code, path],
                          capture_output=True, text=True)
    assert "PermissionDeniedError" in done.stderr
    assert "for writing: Permission denied" in done.stderr


@pytest.mark.parametrize("caller", [
    {}, {"__name__": "haulway_tools"}, {"__name__": "__main__"},
])
def test_warnings_are_of_the_line_that_called(caller, small):
    code = compile("\nhaulway.open(path, insecure=True)", "caller.py", "exec")
    with pytest.warns(UserWarning, match="insecure") as warned:
        exec(code, {"haulway": haulway, "path": small, **caller})
    assert [(one.filename, one.lineno) for one in warned] == [("caller.py", 2)]


def test_little_is_loaded_without_another_thread(tmp_path):
    path = tmp_path / "little.safetensors"
    haulway.save({"a": torch.zeros(4096)}, path)
    stats = {}
    for source in (path, path.read_bytes()):
        haulway.load(source, stats=stats)
        assert stats["threads"] == 1
    haulway.load(path, stats=stats, threads=2)
    assert stats["threads"] == 2


@pytest.mark.parametrize("suffix", ["pt", "safetensors", "tensors"])
def test_bytes_are_read_once_into_memory_of_the_tensors(suffix, tmp_path):
    path = tmp_path / f"x.{suffix}"
    haulway.save({"a": torch.arange(5000), "b": torch.ones(3)}, path)
    data = path.read_bytes()
    stats = {}
    loaded = haulway.load(data, stats=stats)
    assert stats["io"] == "pread" and stats["read_bytes"] >= 40_012
    loaded["a"].zero_()
    assert (haulway.load(data)["a"] == torch.arange(5000)).all()
    haulway.load(data, stats=stats, io="mmap")
    assert stats["io"] == "mmap"
    haulway.load(data, "numpy", stats=stats)  # Arrays may be read-only.
    assert stats["io"] == "mmap"


def test_the_environment_is_read_at_each_use(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    haulway.save({"a": torch.zeros(4)}, path)
    monkeypatch.delenv("HAULWAY_LOAD_THREADS", raising=False)
    assert haulway.config.load.origin("threads") == "default"
    monkeypatch.setenv("HAULWAY_LOAD_THREADS", "3")
    assert haulway.config.load.threads == 3
    stats = {}
    haulway.load(path, stats=stats)
    assert stats["threads"] == 3
    monkeypatch.delenv("HAULWAY_LOAD_THREADS")
    assert haulway.config.load.origin("threads") == "default"
