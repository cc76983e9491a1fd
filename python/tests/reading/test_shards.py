"""Folders, lists and indexes of shards of every format form one checkpoint."""

import io
import json
import os
import pathlib

import numpy
import pytest
import safetensors.torch
import torch

import haulway

PARTS = [
    {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(3)},
    {"b.weight": torch.arange(8).reshape(4, 2).T, "b.scale": torch.tensor(2.5)},
]
BOTH = {**PARTS[0], **PARTS[1]}


def write_safetensors(part, path):
    part = {name: tensor.contiguous() for name, tensor in part.items()}
    safetensors.torch.save_file(part, path)


def write_torch(part, path):
    torch.save(part, path)


def write_legacy(part, path):
    torch.save(part, path, _use_new_zipfile_serialization=False)


KEY = bytes(range(32))


def write_encrypted(part, path, **secret):
    part = {name: tensor.contiguous() for name, tensor in part.items()}
    haulway.save(part, path, format="tensorizer", durability="none",
                 **(secret or {"key": KEY}))


KINDS = {
    "safetensors": ("model", "safetensors", write_safetensors),
    "torch": ("pytorch_model", "bin", write_torch),
    "legacy": ("pytorch_model", "bin", write_legacy),
    "tensorizer": ("model", "tensors", write_encrypted),
}


def write_model(kind, folder):
    stem, ending, write = KINDS[kind]
    map_ = {}
    for i, part in enumerate(PARTS, 1):
        name = f"{stem}-0000{i}-of-00002.{ending}"
        write(part, folder / name)
        map_.update(dict.fromkeys(part, name))
    index = {"metadata": {"total_size": 24 + 12 + 64 + 4}, "weight_map": map_}
    path = folder / f"{stem}.{ending}.index.json"
    path.write_text(json.dumps(index))
    (folder / "config.json").write_text('{"architectures": ["X"]}')
    (folder / "README.md").write_text("# A model\n")
    return path


@pytest.fixture(params=list(KINDS))
def model(request, tmp_path):
    """Returns (argument to open, option for the key)."""
    index = write_model(request.param, tmp_path)
    key = {"key": KEY} if request.param == "tensorizer" else {}
    return tmp_path, index, key


@pytest.fixture(params=["folder", "index", "list"])
def opened_as(request, model):
    folder, index, key = model
    shards = sorted(folder.glob("*-of-*"))
    return {"folder": folder, "index": str(index), "list": shards}[
        request.param
    ], key


@pytest.mark.parametrize("io_", ["auto", "pread", "mmap", "direct"])
def test_load_gives_one_dict(opened_as, io_):
    path, key = opened_as
    if key and io_ == "mmap":
        io_ = "auto"
    loaded = haulway.load(path, io=io_, verify=True, **key)
    assert set(loaded) == set(BOTH)
    for name, tensor in BOTH.items():
        assert torch.equal(loaded[name], tensor), name


def test_every_call_takes_it(opened_as):
    path, key = opened_as
    with haulway.open(path, framework="numpy", **key) as opened:
        assert set(opened) == set(BOTH)
        assert opened.container["shards"] == 2
        numpy.testing.assert_array_equal(opened["b.weight"], BOTH["b.weight"])
        part = opened.get_slice("a.weight")[1:]
        numpy.testing.assert_array_equal(part, BOTH["a.weight"][1:])
    for name, tensor in haulway.iterate(path, **key):
        assert torch.equal(tensor, BOTH[name])
    shard = haulway.shard(path, 1, 2, **key)
    assert torch.equal(shard["a.weight"], BOTH["a.weight"][1:])
    some = haulway.load(path, include="b.*", exclude="*.scale", **key)
    assert set(some) == {"b.weight"}
    target = {name: torch.zeros_like(t) for name, t in BOTH.items()}
    haulway.load_into(target, path, **key)
    assert torch.equal(target["b.scale"], BOTH["b.scale"])
    planned = haulway.plan_reads(path, include="a.*", **key)
    assert planned.tensor_bytes == 36
    report = haulway.verify(path, **key)
    assert report.ok and not report.findings
    shared = haulway.load(path, destination="shm", **key)
    attached = haulway.attach(shared.handle)
    assert torch.equal(attached["a.bias"], BOTH["a.bias"])


def test_a_passphrase_opens_every_shard(tmp_path):
    for i, part in enumerate(PARTS):
        write_encrypted(part, tmp_path / f"{i}.tensors", passphrase="secret")
    loaded = haulway.load(sorted(tmp_path.iterdir()), passphrase="secret")
    assert set(loaded) == set(BOTH)


def test_a_damaged_shard_is_named(model):
    folder, index, key = model
    shard = sorted(folder.glob("*-of-*"))[1]
    data = bytearray(shard.read_bytes())
    if shard.suffix == ".safetensors":
        data = data[:-1]
    else:
        data[-len(data) // 2] ^= 1
        data = data[:-100]
    shard.write_bytes(data)
    report = haulway.verify(index, **key)
    assert not report.ok
    assert shard.name in report.findings[0].message
    whole = haulway.verify(folder, **key)
    assert not whole.ok
    by_name = {pathlib.Path(one.file).name: one for one in whole.files}
    assert by_name["README.md"].ok is None
    assert by_name[sorted(folder.glob("*-of-*"))[0].name].ok
    assert not by_name[shard.name].ok
    assert any(finding.file == str(shard) for finding in whole.findings)


def test_verify_of_a_folder_has_every_file(model):
    folder, index, key = model
    (folder / "deep").mkdir()
    (folder / "deep" / "notes").write_text("")
    os.mkfifo(folder / "deep" / "pipe.pt")
    seen = []
    report = haulway.verify(
        folder, progress=lambda done, total: seen.append((done, total)), **key
    )
    assert report.ok
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [one.file for one in report.files] == sorted(map(str, files))
    none = [one.file for one in report.files if one.ok is None]
    assert [pathlib.Path(path).name for path in none] == [
        "README.md", "config.json", "notes",
    ]
    assert {one.reason for one in report.files if one.ok is None} == {
        "not a checkpoint"
    }
    assert seen == sorted(seen) and seen[-1][0] <= seen[-1][1]


def test_verify_of_a_folder_without_any(tmp_path):
    (tmp_path / "README.md").write_text("# nothing\n")
    with pytest.raises(haulway.NotFoundError, match="holds no checkpoint"):
        haulway.verify(tmp_path)
    with pytest.raises(haulway.NotFoundError, match="holds no checkpoint"):
        haulway.load(tmp_path)


def test_a_list_of_anything(tmp_path):
    write_torch(PARTS[0], tmp_path / "a.pt")
    stream = io.BytesIO()
    torch.save({"c": torch.zeros(1)}, stream)
    stream.seek(0)
    data = safetensors.torch.save({"d": torch.ones(2)})
    loaded = haulway.load([tmp_path / "a.pt", stream, data])
    assert set(loaded) == {*PARTS[0], "c", "d"}
    with haulway.open([str(tmp_path / "a.pt"), data]) as opened:
        assert opened.container["formats"] == "safetensors, torch"
    assert haulway.load([data])["d"].tolist() == [1, 1]


def test_lists_that_are_none(tmp_path):
    data = safetensors.torch.save({"d": torch.ones(2)})
    with pytest.raises(haulway.MismatchError, match="'d' is in two shards"):
        haulway.load([data, data])
    with pytest.raises(haulway.Error, match="list of shards is empty"):
        haulway.load([])
    with pytest.raises(haulway.Error, match="a list of them, found int"):
        haulway.load([data, 3])


def test_nested_objects_become_names(tmp_path):
    torch.save({"model": {"w": torch.ones(2)}, "epoch": 3}, tmp_path / "a.pt")
    write_safetensors({"x": torch.zeros(1)}, tmp_path / "b.safetensors")
    loaded = haulway.load(sorted(tmp_path.iterdir()))
    assert set(loaded) == {"model.w", "x"}


def test_an_index_of_torch_shards_that_lies(tmp_path):
    index = write_model("torch", tmp_path)
    said = json.loads(index.read_text())
    said["weight_map"]["a.bias"] = "pytorch_model-00002-of-00002.bin"
    index.write_text(json.dumps(said))
    with pytest.raises(haulway.MismatchError, match="in another shard"):
        haulway.load(index)
    del said["weight_map"]["a.bias"]
    index.write_text(json.dumps(said))
    with pytest.raises(haulway.MismatchError, match="'a.bias' is not in the"):
        haulway.load(index)
    assert "a.bias" not in haulway.load(index, lenient=True)


def test_folders_in_two_places_load_into_shared_memory(tmp_path):
    """Files with the same name in two folders are two files."""
    folders = [tmp_path / "x", tmp_path / "y"]
    for i, folder in enumerate(folders):
        folder.mkdir()
        write_safetensors({f"w{i}": torch.full((2,), i)}, folder / "1.safetensors")
        (folder / "m.index.json").write_text(
            json.dumps({"weight_map": {f"w{i}": "1.safetensors"}})
        )
    shared = haulway.load(folders, destination="shm")
    assert haulway.attach(shared.handle)["w1"].tolist() == [1, 1]


@pytest.mark.parametrize("uri", ["gs://x", "file2://x"])
def test_schemes_are_named(uri):
    scheme = uri.split(":")[0]
    with pytest.raises(haulway.UnsupportedError, match=f"^{scheme}:// is not"):
        haulway.load(uri)
    with pytest.raises(haulway.UnsupportedError, match=f"^{scheme}:// is not"):
        haulway.save(PARTS[0], uri)
    with pytest.raises(haulway.Error, match=f"^{scheme}:// is not"):
        haulway.tensorizer.TensorDeserializer(uri)


def test_file_uris(tmp_path):
    write_torch(PARTS[0], tmp_path / "a b.pt")
    uri = (tmp_path / "a b.pt").as_uri()
    assert "%20" in uri
    assert set(haulway.load(uri)) == set(PARTS[0])


def test_a_folder_below_pipes_does_not_wait(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(haulway.NotFoundError):
        haulway.load(tmp_path)
    with pytest.raises(haulway.UnsupportedError, match="not a regular file"):
        haulway.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize("call", [
    lambda path, **names: haulway.load(path, "numpy", **names),
    lambda path, **names: dict(haulway.iterate(path, "numpy", **names)),
    lambda path, **names: haulway.shard(path, 0, 1, framework="numpy", **names),
    lambda path, **names: haulway.load(
        haulway.convert(path, path.parent / "out.npz", **names).files[0], "numpy"),
])
def test_a_missing_shard_that_is_not_wanted_is_not_missed(tmp_path, run, call):
    folder = tmp_path / "model"
    folder.mkdir()
    where = {}
    for name in "abc":
        haulway.save({f"{name}.w": numpy.full(3, ord(name))},
                     folder / f"{name}.safetensors")
        where[f"{name}.w"] = f"{name}.safetensors"
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": where}))
    (folder / "b.safetensors").unlink()
    for names in {"include": "a.*"}, {"include": "*", "exclude": "/b/"}:
        if names["include"] == "a.*":
            assert list(call(folder, **names)) == ["a.w"]
        else:  # What is excluded is mentioned.
            with pytest.raises(haulway.NotFoundError, match="b.safetensors"):
                call(folder, **names)
    run("load", folder, "--include", "[ac].*")
    assert "b.w" not in run("ls", folder, "--include", "c.w").stdout
    with pytest.raises(haulway.NotFoundError, match="b.safetensors"):
        call(folder)
