"""The writing options: one table, and the values that it refuses."""

import inspect
import pathlib

import numpy as np
import pytest
import torch

import haulway
import haulway.torch
from haulway import _haulway, _options
from haulway.tensorizer import TensorSerializer
from option_values import VALUES, check_refusal, wrong_values

DATA = {"a": np.arange(6, dtype=np.float32)}
CALLS = {
    "save": lambda here, **o: haulway.save(DATA, here / "out.tensors", **o),
    "save_async": lambda here, **o: haulway.save_async(
        DATA, here / "out.tensors", **o),
    "torch.save": lambda here, **o: haulway.torch.save(
        DATA, here / "out.pt", **o),
    "convert": lambda here, **o: haulway.convert(
        here / "in.pt", here / "out.safetensors", **o),
    "writer": lambda here, **o: haulway.writer(here / "out.safetensors", **o),
    "edit": lambda here, **o: haulway.edit(
        here / "in.pt", rename={"a": "b"}, **o),
    "repair": lambda here, **o: haulway.repair(
        here / "in.pt", here / "out.pt", **o),
    "put": lambda here, **o: haulway.put(here / "in.pt", here / "out.pt", **o),
    "plan": lambda here, **o: haulway.plan(DATA, **o),
    "create": lambda here, **o: haulway.plan(DATA).create(
        here / "out.pt", **o),
    "commit": lambda here, **o: haulway.plan(DATA).create(
        here / "out.pt").commit(**o),
}


def _is_written(format):
    try:
        return bool(_haulway.format_to_write_by_name(format.name))
    except haulway.UnsupportedError:
        return False


_written = [one.name for one in haulway.formats() if _is_written(one)]


@pytest.fixture
def here(tmp_path):
    haulway.save(DATA, tmp_path / "in.pt")
    return tmp_path


def visible(folder):
    """Returns the files except a plan's file that is still open."""
    return [path.name for path in folder.iterdir() if path.name[0] != "."]


def test_every_call_of_the_table_is_tried():
    named = {call for row in _options.WRITING.values() for call in row.calls}
    assert named == set(CALLS)


@pytest.mark.parametrize("call, name", [
    (call, name) for name, row in _options.WRITING.items() for call in row.calls
])
def test_a_wrong_value_is_refused_by_name(call, name, here):
    before = (here / "in.pt").read_bytes()
    option = _options.WRITING[name]
    wrong = list(wrong_values(name, option))
    # An option that accepts any text, or any dict, refuses all other types.
    assert len(wrong) >= len(VALUES) - 2
    for value in wrong:
        with pytest.raises(haulway.InvalidArgumentError) as caught:
            CALLS[call](here, **{name: value})
        check_refusal(caught.value, name, option, value)
    assert visible(here) == ["in.pt"]
    assert (here / "in.pt").read_bytes() == before


@pytest.mark.parametrize("call", CALLS)
def test_an_option_of_another_call_says_of_which(call, here):
    if call == "torch.save":  # It has torch's signature.
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            CALLS[call](here, layout="segments")
        return
    own = _options.writing_of(call)
    reads = call in ("convert", "edit", "repair", "put")
    for name, row in _options.WRITING.items():
        if name in own or not row.calls or reads and name in _options.READING:
            continue
        with pytest.raises(haulway.OptionError) as caught:
            CALLS[call](here, **{name: row.default})
        assert str(caught.value) == (
            f"{name}: {call} has no such option: it is one of "
            f"{', '.join(row.calls)}")
    with pytest.raises(haulway.OptionError, match="bogus: .*: expected "):
        CALLS[call](here, bogus=1)
    if "durability" in own:
        with pytest.raises(haulway.OptionError,
                           match="option: did you mean 'durability'\\?$"):
            CALLS[call](here, durabilty="none")


@pytest.mark.parametrize("name", [
    name for name, row in _options.WRITING.items()
    if "save" in row.calls and row.formats
])
def test_an_option_of_another_format_says_of_which(name, tmp_path):
    row = _options.WRITING[name]
    value = {bool: not row.default, int: 64}.get(type(row.default), {
        "key": bytes(32), "passphrase": "p", "layout": "segments",
        "data_file": "d", "metadata": {"a": "b"},
    }.get(name, 8))
    others = {"torch", "safetensors", "tensorizer", "npz", "gguf"} - {*row.formats}
    assert others
    for format in others:
        with pytest.raises(haulway.OptionError, match=f"^{name}: ") as caught:
            haulway.save(DATA, tmp_path / "x", format=format, **{name: value})
        for known in row.formats:
            assert repr(known) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", _written)
@pytest.mark.parametrize("name, value", [
    ("alignment", 64), ("metadata", {"a": "b"}),
])
def test_a_format_takes_the_options_that_the_table_says(
        name, value, format, tmp_path):
    """Ensures that a new format, or a new option, is in the table."""
    given = {name: value}
    if format == "tensorizer" and name == "metadata":
        given["layout"] = "segments"
    if format == "gguf":
        given["metadata"] = {"general.architecture": "x", **(
            value if name == "metadata" else {})}
    path = tmp_path / "x"
    if format in _options.WRITING[name].formats:
        haulway.save(DATA, path, format=format, **given)
        assert haulway.verify(path)
        return
    with pytest.raises(haulway.OptionError, match=f"^{name}: the format"):
        haulway.save(DATA, path, format=format, **given)
    # The library would refuse it, too, except for torch, where another Python
    # option sets the alignment.
    if (format, name) == ("torch", "alignment"):
        return
    with pytest.raises(haulway.UnsupportedError):
        _haulway.write_tensors(
            str(path), format, [("tensor", "F32", (6,), DATA["a"])],
            given.get("metadata"),
            {one: other for one, other in given.items() if one != "metadata"},
            None)


@pytest.mark.parametrize("call", [
    lambda p: haulway.save(DATA, p / "x", format=3),
    lambda p: haulway.convert(p / "in.pt", p / "x.pt", to=3),
    lambda p: haulway.repair(p / "in.pt", p / "x.pt", to=3),
    lambda p: haulway.writer(p / "x.pt", format=3),
    lambda p: haulway.iterate(p / "in.pt", order=3),
    lambda p: haulway.diff(p / "in.pt", p / "in.pt", ignore_dtype="x"),
    lambda p: haulway.get(p / "in.pt", p / "x.pt", verify="x"),
    lambda p: haulway.put(p / "in.pt", 3),
    lambda p: haulway.edit(p / "in.pt", unset=3),
    lambda p: haulway.edit(p / "in.pt", drop=3),
    lambda p: haulway.edit(p / "in.pt", drop=[3]),
    lambda p: haulway.edit(p / "in.pt", rename=3),
    lambda p: haulway.edit(p / "in.pt", rename={3: "x"}),
    lambda p: haulway.edit(p / "in.pt", rename={"a": 3}),
    lambda p: haulway.edit(p / "in.pt", dtype=3),
    lambda p: haulway.edit(p / "in.pt", dtype={3: "bf16"}),
    lambda p: haulway.edit(p / "in.pt", merge=3),
    lambda p: haulway.edit(p / "in.pt", merge=[3]),
    lambda p: haulway.edit(p / "in.pt", replace={"a": 3}),
    lambda p: haulway.edit(p / "in.pt", out=3),
    lambda p: haulway.edit(p / "in.pt", append=3),
    lambda p: haulway.edit(p / "in.pt", set={"a": 3}),
    lambda p: haulway.plan(DATA).create(p / "x.pt").fill("data/0", b"", "x"),
    lambda p: haulway.writer(p / "x.pt").add_part("a", "f32", 3),
    lambda p: haulway.writer(p / "x.pt").add_part("a", "f32", ("x",)),
    lambda p: haulway.writer(p / "x.pt").add_part("a", "no", (1,)),
    lambda p: haulway.writer(p / "x.pt").add(3, DATA["a"]),
    lambda p: haulway.writer(p / "x.pt").add("a", 3),
    lambda p: haulway.torch.save(DATA, p / "x.pt", pickle_protocol="x"),
    lambda p: haulway.torch.save(DATA, 3),
    lambda p: TensorSerializer(3.5),
    lambda p: TensorSerializer(p / "x", authenticate_metadata="x"),
    lambda p: TensorSerializer(p / "x", layout=3),
    lambda p: TensorSerializer(p / "x", layout="wide"),
    lambda p: TensorSerializer(p / "x", max_tensors="x"),
    lambda p: TensorSerializer(p / "x", limit_cpu_concurrency="x"),
    lambda p: TensorSerializer(p / "x", encryption="x"),
], ids=lambda call: inspect.getsource(call).strip()[10:70])
def test_other_arguments_are_refused(call, here):
    with pytest.raises(haulway.InvalidArgumentError) as caught:
        call(here)
    for private in ("_haulway", "bad_cast", "incompatible function"):
        assert private not in str(caught.value)
    assert visible(here) == ["in.pt"]


@pytest.mark.parametrize("dtype", [
    "bf16", "BF16", "bfloat16", torch.bfloat16,
])
def test_a_dtype_is_said_in_one_way(dtype, here):
    path = here / "in.pt"
    assert haulway.load(path, "torch", dtype=dtype)["a"].dtype == torch.bfloat16
    assert haulway.shard(path, 0, 1, dtype=dtype)["a"].dtype == torch.bfloat16
    haulway.convert(path, here / "c.pt", dtype=dtype)
    haulway.edit(path, dtype=dtype)
    for written in (here / "c.pt", path):
        assert haulway.load(written, "torch")["a"].dtype == torch.bfloat16
    for call in (haulway.load, lambda p, **o: haulway.shard(p, 0, 1, **o),
                 lambda p, **o: haulway.convert(p, here / "d.pt", **o)):
        with pytest.raises(haulway.InvalidArgumentError, match="dtype is 'zz'"):
            call(path, dtype="zz")


def test_a_memory_budget_of_nothing_is_the_least(here):
    haulway.save(DATA, here / "s.pt", memory_budget=0)
    haulway.convert(here / "in.pt", here / "c.safetensors", memory_budget=0)
    assert haulway.repair(here / "in.pt", here / "r.pt", memory_budget="0")
    with haulway.writer(here / "w.safetensors", memory_budget=0) as out:
        out.add("a", DATA["a"])
        out.commit()
    for name in ("s.pt", "c.safetensors", "r.pt", "w.safetensors"):
        assert (haulway.load(here / name, "numpy")["a"] == DATA["a"]).all()


def test_convert_aligns_and_fills_stats(here):
    stats = {}
    done = haulway.convert(here / "in.pt", here / "c.safetensors",
                           alignment=4096, stats=stats)
    assert stats["bytes"] == done.bytes and stats["files"] == done.files
    header = int.from_bytes((here / "c.safetensors").read_bytes()[:8], "little")
    assert (8 + header) % 4096 == 0


def test_a_writer_tells_its_progress(here):
    told = []
    with haulway.writer(here / "w.safetensors",
                        progress=lambda *both: told.append(both)) as out:
        out.add("a", np.ones(1 << 20, np.float32))
        out.commit()
    assert told and told[-1][0] == told[-1][1] >= 4 << 20

    def stop(done, total):
        raise RuntimeError("enough")

    with haulway.writer(here / "v.safetensors", progress=stop) as out:
        out.add("a", DATA["a"])
        with pytest.raises(RuntimeError, match="enough"):
            out.commit()
    assert not (here / "v.safetensors").exists()


def test_a_dry_run_is_a_bool(here):
    before = pathlib.Path(here / "in.pt").read_bytes()
    with pytest.raises(haulway.InvalidArgumentError, match="dry_run: expected a "):
        haulway.edit(here / "in.pt", rename={"a": "b"}, dry_run="x")
    haulway.edit(here / "in.pt", rename={"a": "b"}, dry_run=True)
    assert (here / "in.pt").read_bytes() == before
