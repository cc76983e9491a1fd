"""Tensorizer files in segments: saved, read, edited in place."""

import io
import os
import struct

import numpy
import pytest
import torch

import haulway


def state():
    return {
        "a": torch.arange(10, dtype=torch.float32),
        "n": {"x": torch.ones(2, 3, dtype=torch.bfloat16),
              "y": [torch.zeros(4, dtype=torch.uint8), torch.tensor(7)]},
        "empty": torch.empty(0, 3),
    }


def same(a, b):
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a.dtype == b.dtype and torch.equal(a, b)


def verify(path, **key):
    report = haulway.verify(path, **key)
    assert report, report
    return report


@pytest.mark.parametrize("layout", ["segments", "segments-pr170"])
@pytest.mark.parametrize("key", [None, bytes(range(32))])
def test_saved_and_loaded(tmp_path, layout, key):
    path = tmp_path / "x.tensors"
    haulway.save(state(), path, layout=layout, room_for=20, key=key)
    same(haulway.load(path, key=key), state())
    with haulway.open(path) as checkpoint:
        assert checkpoint.container["layout"] == "segments"
        assert checkpoint.container["version"] == 5
    verify(path, key=key)


def test_metadata_and_alignment(tmp_path):
    path = tmp_path / "x.tensors"
    haulway.save(state(), path, layout="segments", alignment=4096,
                 metadata={"step": "12", "ä": "ö"})
    with haulway.open(path) as checkpoint:
        assert checkpoint.metadata == {"step": "12", "ä": "ö"}
    same(haulway.load(path), state())


def test_to_a_file_object(tmp_path):
    path = tmp_path / "x.tensors"
    with open(path, "wb") as file:
        haulway.save(state(), file, "tensorizer", layout="segments",
                     metadata={"k": "v"})
    other = tmp_path / "y.tensors"
    haulway.save(state(), other, layout="segments", metadata={"k": "v"})
    assert path.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("layout", ["interleaved", "segments",
                                    "segments-pr170"])
@pytest.mark.parametrize("names", ["mw", "zw", "wz", "mzw", "wmzv", "m", "z"])
@pytest.mark.parametrize("options", [{}, {"alignment": 4096},
                                     {"key": bytes(32)}])
def test_streams_get_what_files_get(tmp_path, layout, names, options):
    """Tensors without data, and a destination that takes bytes in order."""
    kinds = {"m": torch.empty(2, 3, device="meta"), "z": torch.empty(0, 3),
             "w": torch.arange(3.0), "v": torch.ones(5000, dtype=torch.int8)}
    obj = {name: kinds[name] for name in names}
    path, stream = tmp_path / "x.tensors", io.BytesIO()
    haulway.save(obj, path, layout=layout, **options)
    haulway.save(obj, stream, "tensorizer", layout=layout, **options)
    key = options.get("key")
    if key is None:
        assert stream.getvalue() == path.read_bytes()
    assert haulway.verify(stream.getvalue(), key=key).ok
    loaded = haulway.load(stream.getvalue(), key=key, verify=True)
    for name in names:
        expected = kinds[name]
        if expected.is_meta:
            expected = torch.zeros(2, 3)
        assert torch.equal(loaded[name], expected)


def test_two_files(tmp_path):
    path = tmp_path / "x.tensors"
    haulway.save(state(), path, layout="segments", data_file="x.data")
    assert (tmp_path / "x.data").stat().st_size < 200
    same(haulway.load(path), state())
    verify(path)
    with pytest.raises(haulway.Error, match="exists already"):
        haulway.save(state(), path, layout="segments", data_file="x.data")
    same(haulway.load(path), state())

    haulway.edit(path, append={"z": torch.ones(5)})
    same(haulway.load(path), {**state(), "z": torch.ones(5)})
    (tmp_path / "x.data").rename(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="data file"):
        haulway.open(path)


@pytest.mark.parametrize("name", ["a/b", "..", "/etc/passwd"])
def test_data_lies_beside_the_index(tmp_path, name):
    with pytest.raises(haulway.Error, match="no name of a file beside"):
        haulway.save(state(), tmp_path / "x.tensors", layout="segments",
                     data_file=name)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("room", ["auto", "move"])
@pytest.mark.parametrize("secret", [
    {}, {"key": bytes(range(32))}, {"passphrase": "geheim"}
])
def test_edited(tmp_path, room, secret):
    path = tmp_path / "x.tensors"
    haulway.save(state(), path, layout="segments", room_for=0, **secret)
    expected = state()
    done = haulway.edit(
        path,
        append={"b": {"c": torch.full((3,), 2.5)},
                "numpy": numpy.arange(6).reshape(2, 3)},
        rename={"n.x": "renamed", "a": "first"},
        set={"step": "1"},
        room=room,
        **secret,
    )
    assert done["tensors"] == 7
    expected = {
        "first": expected["a"],
        "n": {"renamed": expected["n"]["x"], "y": expected["n"]["y"]},
        "empty": expected["empty"],
        "b": {"c": torch.full((3,), 2.5)},
        "numpy": torch.arange(6).reshape(2, 3),
    }
    same(haulway.load(path, **secret), expected)
    haulway.edit(path, set={"step": "2", "x": ""}, unset=["none"], **secret)
    with haulway.open(path) as checkpoint:
        assert checkpoint.metadata == {"step": "2", "x": ""}
    verify(path, **secret)


def test_wrong_key_appends_nothing(tmp_path):
    path = tmp_path / "x.tensors"
    haulway.save(state(), path, layout="segments", key=bytes(32))
    before = path.read_bytes()
    for secret in ({}, {"key": bytes(range(32))}):
        with pytest.raises(haulway.DecryptError):
            haulway.edit(path, append={"z": torch.ones(1)}, **secret)
    assert path.read_bytes() == before


def test_a_configured_key_edits(tmp_path):
    path = tmp_path / "x.tensors"
    key = bytes(range(32))
    haulway.save({"a": torch.ones(4)}, path, layout="segments", key=key)
    with haulway.config(load={"key": key}):
        haulway.edit(path, append={"b": torch.zeros(2)})
        haulway.edit(path, rename={"b": ("c", "d")})
        assert sorted(haulway.open(path)) == ["a", "c.d"]
    assert haulway.load(path, key=key, verify=True)["c"]["d"].tolist() == [0, 0]


def test_what_cannot_be_edited(tmp_path):
    path = tmp_path / "x.tensors"
    haulway.save(state(), path)
    with pytest.raises(NotImplementedError, match="only files in segments"):
        haulway.edit(path, set={"k": "v"})
    haulway.save(state(), path, layout="segments")
    before = path.read_bytes()
    for wrong in (
        {"append": {"a": torch.ones(1)}},
        {"rename": {"a": "empty"}},
        {"rename": {"no such": "x"}},
        {"set": {"k": 1}},
        {"unset": 5},
        {"rename": {"a": ("list", -1)}},
        {"rename": {"a": ()}},
        {"room": "x"},
        {"append": {"z": "text"}},
    ):
        with pytest.raises(haulway.Error):
            haulway.edit(path, **wrong)
    assert path.read_bytes() == before


def test_a_name_of_many_steps(tmp_path):
    path = tmp_path / "x.tensors"
    haulway.save({"a": torch.ones(1)}, path, layout="segments")
    haulway.edit(path, rename={"a": ("list", 0, "k")})
    same(haulway.load(path), {"list": [{"k": torch.ones(1)}]})


def test_serializer(tmp_path):
    from haulway.tensorizer import TensorDeserializer, TensorSerializer

    path = tmp_path / "x.tensors"
    module = torch.nn.Linear(3, 2)
    with TensorSerializer(path, layout="segments", max_tensors=9) as out:
        out.write_module(module)
    other = torch.nn.Linear(3, 2)
    with TensorDeserializer(path, device="cpu", verify_hash=True) as file:
        file.load_into_module(other)
    assert torch.equal(module.weight, other.weight)


def test_every_cut_and_changed_head_is_refused(tmp_path):
    path = tmp_path / "x.tensors"
    haulway.save({"a": torch.ones(2)}, path, layout="segments", room_for=0)
    whole = path.read_bytes()
    for size in [*range(520), *range(len(whole) - 40, len(whole))]:
        path.write_bytes(whole[:size])
        with pytest.raises(haulway.Error):
            haulway.load(path)
    for at in range(0, 512, 3):
        changed = bytearray(whole)
        changed[at] ^= 0x10
        path.write_bytes(changed)
        with pytest.raises(haulway.Error):
            haulway.load(path)
    assert struct.unpack_from("<Q", whole, 57) == (1,)
