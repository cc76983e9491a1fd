"""haulway.edit and `haulway edit` for every writable format."""

import json
import os

import gguf
import numpy
import pytest
import safetensors
import torch

import haulway
from needed_metadata import needed

FORMATS = ["pt", "safetensors", "gguf", "npz", "tensors"]


def tensors():
    return {
        "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "b": torch.arange(5000, dtype=torch.int32),
        "c.d": torch.ones(5, dtype=torch.float32),
    }


def same(path, expected):
    found = haulway.load(path)
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert torch.equal(torch.as_tensor(found[name]), tensor), name


@pytest.fixture(params=FORMATS)
def path(request, tmp_path):
    path = tmp_path / f"x.{request.param}"
    haulway.save(tensors(), path, **needed(path))
    return path


@pytest.mark.parametrize("path", ["pt", "safetensors"], indirect=True)
def test_without_a_change_nothing_is_written(path, run):
    before = path.read_bytes(), path.stat().st_ino
    report = haulway.edit(path)
    assert (report["written_bytes"], report["in_place"]) == (0, True)
    assert json.loads(run("edit", path, "--json").stdout)["tensors"] == 3
    assert (path.read_bytes(), path.stat().st_ino) == before


def test_names(path):
    done = haulway.edit(path, rename={"a": "first"}, drop="b")
    expected = tensors()
    assert done["tensors"] == 2
    same(path, {"first": expected["a"], "c.d": expected["c.d"]})
    assert os.listdir(path.parent) == [path.name]


def test_other_tensors(path, tmp_path):
    numpy.save(tmp_path / "a.npy", numpy.full((3, 2), 7, dtype=numpy.float32))
    haulway.save({"m": torch.zeros(3)}, tmp_path / "m.safetensors")
    haulway.edit(path, replace={"a": tmp_path / "a.npy"},
                 merge=tmp_path / "m.safetensors", rename={"a": "n"})
    expected = tensors()
    del expected["a"]
    same(path, {**expected, "n": torch.full((3, 2), 7.0), "m": torch.zeros(3)})


def test_the_only_tensor_is_replaced(path, tmp_path):
    haulway.save({"a": torch.zeros(2)}, path, **needed(path))
    numpy.save(tmp_path / "x.npy", numpy.full(3, 7, dtype=numpy.float32))
    haulway.edit(path, replace={"a": tmp_path / "x.npy"})
    same(path, {"a": torch.full((3,), 7.0)})
    haulway.edit(path, drop="a", merge=tmp_path / "x.npy")
    same(path, {"tensor": torch.full((3,), 7.0)})


def test_dtype_by_name(path):
    done = haulway.edit(path, dtype={"c.d": "f16"}, drop="a")
    assert done["steps"] == ["drop 'a': F32 [2, 3]",
                             "cast 'c.d' from F32 to F16"]
    same(path, {"b": tensors()["b"], "c.d": torch.ones(5).half()})


def test_dtype_by_name_of_what_takes_a_tensors_place(path, tmp_path):
    numpy.save(tmp_path / "x.npy", numpy.full(3, 7, dtype=numpy.float32))
    haulway.edit(path, dtype={"c.d": "f16"},
                 replace={"c.d": tmp_path / "x.npy"})
    same(path, {**tensors(), "c.d": torch.full((3,), 7.0).half()})


@pytest.mark.parametrize("dtype, error, text", [
    ({"b": "f16"}, haulway.InvalidArgumentError,
     "dtype I32 cannot be cast to F16: only floating-point tensors are"),
    ({"z": "f16"}, haulway.NotFoundError, "no tensor 'z'"),
    ({"a": "i32"}, haulway.InvalidArgumentError,
     "dtype I32 is not a floating-point one"),
])
def test_dtypes_that_cannot_be(path, dtype, error, text):
    before = path.read_bytes()
    with pytest.raises(error, match=text):
        haulway.edit(path, dtype=dtype)
    assert path.read_bytes() == before


def test_views_of_one_storage_keep_one_dtype(tmp_path):
    whole = torch.arange(6.0)
    torch.save({"a": whole, "b": whole[2:]}, tmp_path / "x.pt")
    with pytest.raises(haulway.UnsupportedError, match="share memory as diff"):
        haulway.edit(tmp_path / "x.pt", dtype={"a": "bf16"})
    haulway.edit(tmp_path / "x.pt", dtype={"a": "bf16"}, untie=True)
    same(tmp_path / "x.pt", {"a": whole.bfloat16(), "b": whole[2:]})


def test_parts_of_one_storage_may_differ_in_dtype(tmp_path):
    whole = torch.arange(6.0)
    torch.save({"a": whole[:2], "b": whole[2:]}, tmp_path / "x.pt")
    haulway.edit(tmp_path / "x.pt", dtype={"a": "bf16"})
    same(tmp_path / "x.pt", {"a": whole[:2].bfloat16(), "b": whole[2:]})


def test_a_new_file_leaves_the_old_one(path):
    before = path.read_bytes()
    out = path.with_name(f"new{path.suffix}")
    done = haulway.edit(path, rename={"a": "z"}, out=out)
    assert done["steps"] == ["rename 'a' to 'z'"]
    assert done["in_place"] is False
    assert 0 < done["written_bytes"] <= out.stat().st_size
    assert path.read_bytes() == before
    expected = tensors()
    expected["z"] = expected.pop("a")
    same(out, expected)


def test_a_new_file_of_segments(tmp_path):
    path, out = tmp_path / "x.tensors", tmp_path / "y.tensors"
    haulway.save(tensors(), path, layout="segments")
    before = path.read_bytes()
    haulway.edit(path, set={"k": "v"}, out=out)
    assert path.read_bytes() == before
    same(out, tensors())
    with haulway.open(out) as checkpoint:
        assert checkpoint.metadata == {"k": "v"}


def test_a_small_change_goes_to_the_new_file_as_well(tmp_path):
    path, out = tmp_path / "x.safetensors", tmp_path / "y.safetensors"
    haulway.save(tensors(), path, metadata={"k": "1"})
    before = path.read_bytes()
    haulway.edit(path, set={"k": "2"}, out=out)
    assert path.read_bytes() == before
    assert haulway.open(out).metadata == {"format": "pt", "k": "2"}


def test_the_steps_of_everything(tmp_path):
    path = tmp_path / "x.safetensors"
    haulway.save(tensors(), path, metadata={"old": "1"})
    numpy.save(tmp_path / "a.npy", numpy.zeros(3, dtype=numpy.float32))
    haulway.save({"m": torch.zeros(3)}, tmp_path / "m.safetensors")
    done = haulway.edit(
        path, rename={"a": "n"}, drop="b", set={"k": "v"}, unset=["old"],
        dtype="bf16", replace={"a": tmp_path / "a.npy"},
        merge=tmp_path / "m.safetensors", untie=True, dry_run=True,
    )
    assert done["steps"] == [
        "rename 'a' to 'n'",
        "drop 'b': I32 [5000]",
        "set 'k' to 'v'",
        "unset 'old'",
        "cast 2 tensors to BF16",
        f"replace 'a': F32 [2, 3], by a tensor of '{tmp_path}/a.npy'",
        f"add 1 tensor of '{tmp_path}/m.safetensors'",
        "write tensors that share memory each in full",
    ]


def test_dtype(path):
    haulway.edit(path, dtype="f16")
    same(path, {name: tensor.half() if tensor.is_floating_point() else tensor
                for name, tensor in tensors().items()})


def state_dict():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2),
                                torch.nn.Linear(3, 2, bias=False))
    model[2].weight = model[0].weight
    return model, model.state_dict()


@pytest.mark.parametrize("change", [
    {"dtype": "f16"}, {"untie": True}, {"merge": {"more": torch.ones(2)}},
    {"replace": {"0.bias": torch.full((2,), 7.0)}}, {"drop": "0.bias"},
], ids=str)
def test_the_state_of_a_module_stays_one(tmp_path, change):
    path, other = tmp_path / "x.pt", tmp_path / "other.safetensors"
    model, state = state_dict()
    torch.save(state, path)
    given = dict(change)
    if "merge" in change:
        haulway.save(change["merge"], other)
        given["merge"] = other
    if "replace" in change:
        haulway.save(change["replace"], other)
        given["replace"] = {"0.bias": other}
    haulway.edit(path, **given)
    found = torch.load(path)
    assert type(found) is type(state) and found._metadata == state._metadata
    expected = {**state, **change.get("merge", {}), **change.get("replace", {})}
    if "drop" in change:
        del expected["0.bias"]
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        if "dtype" in change and tensor.is_floating_point():
            tensor = tensor.half()
        assert torch.equal(found[name], tensor), name
    if change in ({"dtype": "f16"}, {"untie": True}):
        assert model.load_state_dict(found).missing_keys == []
    tied = found["0.weight"].data_ptr() == found["2.weight"].data_ptr()
    assert tied == ("untie" not in change)


def test_what_is_more_than_a_dict_of_tensors_is_refused(tmp_path):
    path = tmp_path / "x.pt"
    noted = torch.nn.Linear(2, 2).state_dict()
    noted._metadata["tensor"] = torch.ones(3)
    for value in ({"model": tensors()}, {"a": torch.ones(1), "n": 3}, noted,
                  [torch.ones(1)]):
        torch.save(value, path)
        before = path.read_bytes()
        with pytest.raises(haulway.UnsupportedError):
            haulway.edit(path, dtype="f16")
        assert path.read_bytes() == before


def test_an_array_is_changed_and_has_no_name(tmp_path):
    path = tmp_path / "x.npy"
    numpy.save(path, numpy.arange(4, dtype=numpy.float32))
    haulway.edit(path, dtype="f16")
    assert numpy.load(path).dtype == numpy.float16
    with pytest.raises(haulway.UnsupportedError, match="npy file has no name"):
        haulway.edit(path, rename={"tensor": "x"})
    haulway.save({"other": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(haulway.Error, match="one array"):
        haulway.edit(path, merge=tmp_path / "other.safetensors")


def test_what_is_added_is_cast_too(path, tmp_path):
    haulway.save({"m": torch.ones(3), "n": torch.ones(2)},
                 tmp_path / "m.safetensors")
    haulway.edit(path, dtype="f16", merge=tmp_path / "m.safetensors")
    found = haulway.load(path)
    assert str(found["m"].dtype).endswith("float16")
    before = path.read_bytes()
    with pytest.raises(haulway.InvalidArgumentError, match="floating-point"):
        haulway.edit(path, dtype="i8")
    assert path.read_bytes() == before


def test_parts_of_a_sparse_tensor_are_not_added(path, tmp_path):
    torch.save({"s": torch.eye(3).to_sparse()}, tmp_path / "s.pt")
    before = path.read_bytes()
    with pytest.raises(haulway.UnsupportedError, match="sparse"):
        haulway.edit(path, merge=tmp_path / "s.pt")
    assert path.read_bytes() == before


def test_a_name_may_be_given_twice(path):
    assert haulway.edit(path, drop=["b", "b"])["tensors"] == 2


@pytest.mark.parametrize("layout", [{}, {"layout": "segments"}],
                         ids=["interleaved", "segments"])
def test_names_that_are_shown_otherwise(tmp_path, layout):
    path = tmp_path / "x.tensors"
    odd = {"x\ny": torch.ones(3), "b\\c": torch.zeros(2), "d": torch.ones(1)}
    haulway.save(odd, path, **layout)
    haulway.edit(path, rename={"x\ny": "z"})
    haulway.edit(path, drop="b\\c", rename={"z": "\n"})
    same(path, {"\n": odd["x\ny"], "d": odd["d"]})


def test_what_is_added_to_segments_is_checked(tmp_path):
    """A stream is held in memory and written after it was read completely."""
    path = tmp_path / "x.tensors"
    haulway.save(tensors(), path, layout="segments")
    conjugated = torch.complex(torch.ones(4), torch.ones(4)).conj()
    torch.save({"m": torch.arange(1000.0), "z": conjugated}, tmp_path / "m.pt")
    before = path.read_bytes()
    data = bytearray((tmp_path / "m.pt").read_bytes())
    data[2000] ^= 1
    (tmp_path / "damaged.pt").write_bytes(data)
    with pytest.raises(haulway.Error, match="CRC"):
        haulway.edit(path, merge=tmp_path / "damaged.pt")
    assert path.read_bytes() == before
    dry = haulway.edit(path, merge=tmp_path / "m.pt", dry_run=True)
    assert (dry["tensors"], dry["written_bytes"]) == (5, 4032)
    assert path.read_bytes() == before
    assert haulway.edit(path, merge=tmp_path / "m.pt")["in_place"]
    same(path, {**tensors(), "m": torch.arange(1000.0),
                "z": conjugated.resolve_conj()})


def test_a_dry_run_writes_nothing(path):
    before = path.read_bytes()
    done = haulway.edit(path, drop="b", dry_run=True)
    assert done["written_bytes"] > 44
    assert path.read_bytes() == before
    assert haulway.edit(path, drop="b")["in_place"] == done["in_place"]


@pytest.mark.parametrize("wrong", [
    {"rename": {"no such": "x"}}, {"drop": "no such"},
    {"rename": {"a": "b"}}, {"replace": {"no such": b""}},
])
def test_what_is_wrong_changes_nothing(path, wrong):
    before = path.read_bytes()
    with pytest.raises(haulway.Error):
        haulway.edit(path, **wrong)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def metadata(path):
    with haulway.open(path) as checkpoint:
        return checkpoint.metadata


def test_metadata_where_there_is_room_is_written_in_place(tmp_path):
    path = tmp_path / "x.safetensors"
    haulway.save(tensors(), path, metadata={"step": "1"})
    first = haulway.edit(path, set={"author": "me"})
    assert not first["in_place"]  # The writer leaves no free space.
    assert first["copied_bytes"] > 16000
    before = path.stat()
    second = haulway.edit(path, set={"step": "12", "note": "\u00e9"}, unset=["author"])
    after = path.stat()
    assert second["in_place"] and second["written_bytes"] <= 512
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)
    assert metadata(path) == {"format": "pt", "step": "12", "note": "\u00e9"}
    same(path, tensors())
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {
            "format": "pt", "step": "12", "note": "\u00e9"}
        assert torch.equal(file.get_tensor("a"), tensors()["a"])
    # A header that outgrows its sector requires a rewrite.
    assert not haulway.edit(path, set={"long": "x" * 600})["in_place"]
    assert metadata(path)["long"] == "x" * 600
    # No changes, no writes.
    assert haulway.edit(path, set={"long": "x" * 600})["written_bytes"] == 0


def test_values_keep_their_kind(tmp_path, run):
    path = tmp_path / "x.gguf"
    out = gguf.GGUFWriter(path, "llama")
    out.add_uint32("llama.block_count", 7)
    out.add_tensor("w", numpy.ones((4, 32), dtype=numpy.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    inode = path.stat().st_ino
    assert haulway.edit(path, set={"llama.block_count": "9"})["in_place"]
    assert path.stat().st_ino == inode
    field = gguf.GGUFReader(path).get_field("llama.block_count")
    assert (field.contents(), field.types) == (9, [gguf.GGUFValueType.UINT32])
    with pytest.raises(haulway.Error, match="not a number"):
        haulway.edit(path, set={"llama.block_count": "nine"})
    new = tmp_path / "y.gguf"
    run("convert", path, new, "--set", "llama.block_count=11")
    field = gguf.GGUFReader(new).get_field("llama.block_count")
    assert (field.contents(), field.types) == (11, [gguf.GGUFValueType.UINT32])
    run("convert", path, new, "--set", "llama.block_count=nine", code=2)
    assert gguf.GGUFReader(new).get_field("llama.block_count").contents() == 11


def test_a_number_that_its_kind_cannot_hold_is_refused(tmp_path):
    path = tmp_path / "x.gguf"
    metadata = {"general.architecture": "llama", "scale": numpy.float32(1),
                "count": numpy.uint8(1)}
    haulway.save(tensors(), path, metadata=metadata)
    for key, value in {"scale": "1e39", "count": "300"}.items():
        with pytest.raises(haulway.InvalidArgumentError, match="cannot be of"):
            haulway.edit(path, set={key: value})
    haulway.edit(path, set={"scale": "inf"})
    with haulway.open(path) as file:
        assert file.metadata == {**metadata, "scale": float("inf")}


def test_an_object_keeps_what_is_no_tensor(tmp_path):
    path = tmp_path / "x.pt"
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    torch.save({"epoch": 3, "model": model.state_dict(),
                "list": [torch.ones(1)]}, path)
    haulway.edit(path, rename={"model.0.weight": "model.first"},
                 drop=["model.1.weight", "model.0.bias"])
    loaded = torch.load(path, weights_only=True)
    assert loaded["epoch"] == 3 and torch.equal(loaded["list"][0], torch.ones(1))
    assert type(loaded["model"]).__name__ == "OrderedDict"
    assert loaded["model"]._metadata == model.state_dict()._metadata
    assert list(loaded["model"])[:2] == ["first", "1.bias"]
    assert torch.equal(loaded["model"]["first"], model[0].weight)
    before = path.read_bytes()
    for wrong, match in (
        ({"dtype": "f16"}, "would lose"),
        ({"rename": {"model.first": "other.first"}}, "begins with"),
        ({"drop": "list.0"}, "in no dict"),
        ({"set": {"k": "v"}}, "no room for metadata"),
    ):
        with pytest.raises(haulway.UnsupportedError, match=match):
            haulway.edit(path, **wrong)
    assert path.read_bytes() == before


@pytest.mark.parametrize("change", [
    {"rename": {"c": "d"}}, {"drop": "c"}, {"drop": "a", "dtype": "f64"},
    {"untie": True},
])
def test_damage_gets_no_new_checksum(tmp_path, change, run):
    path = tmp_path / "x.pt"
    weight = torch.arange(1000.0)
    torch.save({"a": weight, "b": weight[400:600], "c": torch.ones(2)}, path)
    held = bytearray(path.read_bytes())
    held[held.index(weight[500:510].numpy().tobytes())] ^= 1
    path.write_bytes(held)
    with pytest.raises(haulway.MismatchError):
        haulway.edit(path, **change)
    run("repack", path, tmp_path / "y.pt", code=1)
    assert path.read_bytes() == held
    assert os.listdir(tmp_path) == [path.name]


def test_ties_stay_until_they_are_untied(tmp_path):
    path = tmp_path / "x.pt"
    shared = torch.arange(1000.0)
    torch.save({"a": shared, "b": shared[10:20], "c": torch.ones(2)}, path)
    haulway.edit(path, drop="c")
    loaded = torch.load(path)
    assert loaded["a"].data_ptr() + 40 == loaded["b"].data_ptr()
    haulway.edit(path, untie=True)
    loaded = torch.load(path)
    assert loaded["b"].untyped_storage().nbytes() == 40
    assert torch.equal(loaded["b"], shared[10:20])


def test_tensorizer_keeps_kinds_and_paths(tmp_path):
    path = tmp_path / "x.tensors"
    key = bytes(range(32))
    for secret in ({}, {"key": key}):
        for layout in ({}, {"layout": "segments"}):
            haulway.save({"n": [torch.zeros(3), torch.ones(1)], "z": torch.ones(2)},
                         path, **layout, **secret)
            haulway.edit(path, drop="z", rename={"n.1": "n.2"}, **secret)
            loaded = haulway.load(path, **secret)
            assert list(loaded) == ["n"]
            assert torch.equal(loaded["n"][0], torch.zeros(3))
            assert haulway.verify(path, **secret)


def test_the_command(run, tmp_path):
    path = tmp_path / "x.safetensors"
    haulway.save({**tensors(), "x=b": torch.ones(1)}, path)
    numpy.save(tmp_path / "n.npy", numpy.zeros(2, dtype=numpy.float32))
    done = run("edit", path, "--rename", "x=b=c=d", "--drop", "c.*", "--replace",
               "b=n.npy", "--set", "k=v", "--json")
    found = json.loads(done.stdout)
    assert (found["tensors"], found["in_place"]) == (3, False)
    same(path, {"a": tensors()["a"], "b": torch.zeros(2), "c=d": torch.ones(1)})
    assert "in place" in run("edit", path, "--set", "k=w", "--dry-run").stdout
    assert metadata(path) == {"format": "pt", "k": "v"}
    run("edit", path, "--set", "k=w")
    assert metadata(path) == {"format": "pt", "k": "w"}
    assert "no tensor 'z*'" in run("edit", path, "--drop", "z*", code=3).stderr


def test_shards_are_refused(tmp_path):
    haulway.save(tensors(), tmp_path / "x.safetensors")
    haulway.convert(tmp_path / "x.safetensors", tmp_path / "m.safetensors",
                    shard=10_000)
    index = tmp_path / "m.safetensors.index.json"
    before = index.read_bytes()
    with pytest.raises(haulway.UnsupportedError, match="one by one"):
        haulway.edit(index, drop="a")
    assert index.read_bytes() == before


def test_one_edit_at_a_time(path):
    import fcntl

    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(haulway.Error, match="edited by someone else"):
            haulway.edit(path, drop="a")
    haulway.edit(path, drop="a")


def test_a_key_of_a_large_file_costs_one_sector(tmp_path):
    path = tmp_path / "large.safetensors"
    size = 4 << 30
    header = json.dumps({
        "__metadata__": {"step": "1"},
        "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
    }, separators=(",", ":"))
    header = header.replace(',"w"', " " * (4088 - len(header)) + ',"w"')
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        file.truncate(4096 + size)
    done = haulway.edit(path, set={"step": "1200", "author": "me"})
    assert done["in_place"] and done["written_bytes"] <= 512
    assert metadata(path) == {"step": "1200", "author": "me"}
    # Holes are still holes.
    assert path.stat().st_blocks * 512 < 1 << 20


def test_the_command_casts_by_globs_and_writes_elsewhere(run, tmp_path):
    path, out = tmp_path / "x.safetensors", tmp_path / "y.safetensors"
    haulway.save(tensors(), path)
    before = path.read_bytes()
    plan = run("edit", path, "--set-dtype", "*=bf16", "--set-dtype", "a=f16",
               "--dry-run").stdout
    assert plan.splitlines()[:2] == ["cast 'a' from F32 to F16",
                                     "cast 'c.d' from F32 to BF16"]
    assert not out.exists()
    done = json.loads(run("edit", path, "--set-dtype", "*=bf16",
                          "--set-dtype", "a=f16", "-o", out, "--json").stdout)
    assert done["steps"] == plan.splitlines()[:2]
    assert done["file"] == str(path)
    assert path.read_bytes() == before
    same(out, {"a": tensors()["a"].half(), "b": tensors()["b"],
               "c.d": torch.ones(5).bfloat16()})
    assert "no floating-point tensor 'b*'" in run(
        "edit", path, "--set-dtype", "b*=f16", code=3).stderr
    assert "only floating-point tensors are" in run(
        "edit", path, "--set-dtype", "b=f16", code=2).stderr
    run("edit", path, "--set-dtype", "a", code=4)


@pytest.mark.parametrize("held", ["tensors", "checkpoint"])
def test_no_blocks_are_inserted_below_what_is_mapped(tmp_path, held):
    """Insertion would move the bytes below views and open checkpoints."""
    path = tmp_path / "x.tensors"
    made = {f"t{i}": torch.full((5000,), float(i + 1)) for i in range(4)}
    haulway.save(made, path, layout="segments", room_for=1)
    if held == "tensors":
        found = haulway.load(path, io="mmap")
    else:
        found = haulway.open(path)
    with pytest.raises(haulway.UnsupportedError, match="mapped"):
        haulway.edit(path, set={"note": "x" * 20_000}, room="insert")
    report = haulway.edit(path, set={"note": "x" * 20_000})
    assert report["inserted_bytes"] == 0
    for name, tensor in made.items():
        assert torch.equal(found[name], tensor)
    same(path, made)
    del found
    haulway.edit(path, set={"more": "y" * 20_000})
    same(path, made)


@pytest.mark.parametrize("options", [
    {"append": {"n": torch.ones(1)}}, {"room_for": 3}, {"alignment": 4096},
])
@pytest.mark.parametrize("path", ["pt", "safetensors"], indirect=True)
def test_what_is_for_segments_is_refused_elsewhere(path, options):
    with pytest.raises(haulway.UnsupportedError,
                       match="are for tensorizer files in segments: .*; of "):
        haulway.edit(path, **options)


def optimizer(tmp_path):
    model = torch.nn.Linear(3, 2)
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    adam.step()
    path = tmp_path / "x.pt"
    torch.save({"model": model.state_dict(), "optimizer": adam.state_dict(),
                "epoch": 3}, path)
    return path


def test_tensors_below_numbers(tmp_path, run):
    """An optimizer's state is a dict by number."""
    path = optimizer(tmp_path)
    before = torch.load(path)
    old, new = "optimizer.state.0.exp_avg", "optimizer.state.0.average"
    done = haulway.edit(path, rename={old: new})
    names = haulway.open(path).keys()
    assert done["tensors"] == len(names)
    assert new in names and old not in names
    found = torch.load(path)
    assert list(found["optimizer"]["state"]) == [0, 1]
    assert torch.equal(found["optimizer"]["state"][0]["average"],
                       before["optimizer"]["state"][0]["exp_avg"])
    run("edit", path, "--drop", "optimizer.*")
    found = torch.load(path)
    assert found["optimizer"]["state"] == {0: {}, 1: {}}
    assert (found["optimizer"]["param_groups"]
            == before["optimizer"]["param_groups"])
    assert sorted(haulway.open(path).keys()) == ["model.bias", "model.weight"]


def test_tensors_with_a_number_as_key(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"n": {0: torch.ones(1), "0": torch.zeros(1), 2: torch.ones(3)}},
               path)
    assert sorted(haulway.open(path).keys()) == ["n.0", "n.2", "n.\\0"]
    with pytest.raises(haulway.UnsupportedError, match="key is not text"):
        haulway.edit(path, rename={"n.2": "n.3"})
    assert haulway.edit(path, drop="n.\\0", rename={"n.0": "n.1"})["tensors"] == 2
    found = torch.load(path)["n"]
    assert list(found) == ["1", 2] and torch.equal(found["1"], torch.zeros(1))


def test_a_dict_with_two_places_has_the_names_of_the_first(tmp_path):
    path = tmp_path / "x.pt"
    inner = {"w": torch.ones(2)}
    torch.save({"a": inner, "b": inner}, path)
    assert list(haulway.open(path).keys()) == ["a.w"]
    haulway.edit(path, rename={"a.w": "a.v"})
    found = torch.load(path)
    assert list(found["a"]) == ["v"] and found["a"] is found["b"]


def test_parameters_are_tensors(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"p": torch.nn.Parameter(torch.ones(2)), "q": torch.zeros(1),
                "n": {"r": torch.nn.Parameter(torch.ones(3))}}, path)
    haulway.edit(path, rename={"p": "s"}, drop="n.r")
    found = torch.load(path)
    assert list(found) == ["s", "q", "n"] and found["n"] == {}
    assert isinstance(found["s"], torch.nn.Parameter)


@pytest.mark.parametrize("words, said", [
    (["--rename", "a=x", "--rename", "a=y"], "'a' is renamed twice"),
    (["--drop", "*", "--rename", "a=x"], "'a' is dropped and renamed"),
    (["--drop", "a", "--replace", "a=a.npy"], "'a' is dropped and replaced"),
    (["--replace", "a=a.npy", "--replace", "a=a.npy"], "'a' is replaced twice"),
    (["--set", "k=1", "--set", "k=2"], "'k' is set twice"),
    (["--set", "k=1", "--unset", "k"], "'k' is unset and set"),
])
def test_changes_that_contradict_each_other(path, run, words, said):
    numpy.save(path.parent / "a.npy", numpy.zeros(3, dtype=numpy.float32))
    before = path.read_bytes()
    assert said in run("edit", path, *words, code=2).stderr
    assert said in run("edit", path, *words, "--dry-run", code=2).stderr
    assert path.read_bytes() == before


def test_a_cast_of_what_is_dropped_is_no_step(path, run):
    done = run("edit", path, "--drop", "a", "--set-dtype", "*=f16", "--json")
    assert json.loads(done.stdout)["steps"] == [
        "drop 'a': F32 [2, 3]", "cast 'c.d' from F32 to F16"]


def test_the_new_file_has_no_misleading_name(path, tmp_path):
    other = "y.npz" if path.suffix == ".pt" else "y.pt"
    with pytest.raises(haulway.UnsupportedError, match="suffix of"):
        haulway.edit(path, rename={"a": "z"}, out=tmp_path / other)
    with pytest.raises(haulway.UnsupportedError, match="not a local file"):
        haulway.edit(path, rename={"a": "z"}, out="s3://bucket/y" + path.suffix)
    assert os.listdir(tmp_path) == [path.name]
    out = tmp_path / f"y{path.suffix}"
    haulway.edit(path, rename={"a": "z"}, out=f"file://{out}")
    assert sorted(haulway.load(out)) == ["b", "c.d", "z"]
