"""Writing npy and npz, compared with NumPy."""

import os
import struct
import zipfile

import numpy
import pytest
import torch
from test_npz import DTYPES, SHAPES, noise, same

import haulway


def arrays():
    made = {
        f"{dtype}{i}": noise(shape, dtype, seed=i)
        for dtype in DTYPES
        for i, shape in enumerate(SHAPES)
    }
    made["größe"] = noise((3,), "f4")
    made["deep/name"] = noise((200, 300), "f8")
    return made


def bytes_of(path):
    """Returns NumPy's file in the form of zipfile from Python 3.11.4 on.

    Earlier versions seek back to local headers, and leave their zip64 fields
    unused.
    """
    data = bytearray(path.read_bytes())
    if data[4] == 45:
        return bytes(data)
    with zipfile.ZipFile(path) as archive:
        at = archive.start_dir
        for entry in archive.infolist():
            header = entry.header_offset
            data[header + 4] = data[at + 4] = data[at + 6] = 45
            struct.pack_into("<II", data, header + 18, 2**32 - 1, 2**32 - 1)
            at += 46 + sum(struct.unpack_from("<HHH", data, at + 28))
    return bytes(data)


def test_the_bytes_are_numpys(tmp_path):
    numpy.savez(tmp_path / "peer.npz", **arrays())
    haulway.save(arrays(), tmp_path / "ours.npz")
    ours = (tmp_path / "ours.npz").read_bytes()
    assert ours == bytes_of(tmp_path / "peer.npz")
    assert haulway.verify(tmp_path / "ours.npz").ok


def test_an_empty_dict_comes_back(tmp_path):
    numpy.savez(tmp_path / "peer.npz")
    haulway.save({}, tmp_path / "ours.npz")
    ours = (tmp_path / "ours.npz").read_bytes()
    assert ours == (tmp_path / "peer.npz").read_bytes()
    assert haulway.load(tmp_path / "ours.npz", "numpy") == {}


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_array_is_numpys_file(tmp_path, dtype):
    for i, shape in enumerate(SHAPES):
        array = noise(shape, dtype, seed=i)
        numpy.save(tmp_path / "peer.npy", array)
        haulway.save(array, tmp_path / "ours.npy")
        ours = (tmp_path / "ours.npy").read_bytes()
        assert ours == (tmp_path / "peer.npy").read_bytes()


def test_numpy_reads_what_torch_had(tmp_path):
    tensors = {"t": torch.arange(6.0).reshape(2, 3).T,
               "n": torch.randn(3), "b": torch.tensor([True, False])}
    haulway.save(tensors, tmp_path / "x.npz", threads=2)
    with numpy.load(tmp_path / "x.npz") as loaded:
        for name, tensor in tensors.items():
            assert numpy.array_equal(loaded[name], tensor.numpy())


def test_a_stream_gets_the_same_bytes(tmp_path):
    haulway.save(arrays(), tmp_path / "x.npz")
    with open(tmp_path / "y.npz", "wb") as stream:
        haulway.save(arrays(), stream, format="npz")
    assert (tmp_path / "x.npz").read_bytes() == (
        (tmp_path / "y.npz").read_bytes())


# A name is a key, of any length, and no path: nothing is unpacked.
@pytest.mark.parametrize("name", ["/a", "../up", "C:\\x", "x" * 60000, "a/"])
def test_any_name_is_a_key(tmp_path, run, name):
    numpy.savez(tmp_path / "theirs.npz", **{name: numpy.arange(3.0)})
    haulway.save({name: numpy.arange(3.0)}, tmp_path / "ours.npz")
    for path in tmp_path / "theirs.npz", tmp_path / "ours.npz":
        for found in haulway.load(path, "numpy"), numpy.load(path):
            assert list(found) == [name]
            assert numpy.array_equal(found[name], numpy.arange(3.0))
        assert haulway.verify(path).ok
        run("scan", path)
        run("convert", path, f"{path.stem}.safetensors")


@pytest.mark.parametrize("tensors, words", [
    ({"x": torch.zeros(1, dtype=torch.bfloat16)}, "no dtype BF16"),
    ({"x": torch.zeros(1, dtype=torch.float8_e5m2)}, "no dtype F8_E5M2"),
    ({"a\0x": numpy.zeros(1)}, "unsafe path"),
    ({"x" * 65532: numpy.zeros(1)}, "65536 bytes"),
])
def test_what_numpy_lacks_is_refused_before_a_file_is_there(
    tmp_path, tensors, words
):
    with pytest.raises(haulway.Error, match=words):
        haulway.save(tensors, tmp_path / "x.npz")
    assert os.listdir(tmp_path) == []


def test_options_that_it_has_not_are_refused(tmp_path):
    one = {"x": numpy.zeros(1)}
    for options in ({"metadata": {"a": "b"}}, {"alignment": 64}):
        with pytest.raises(haulway.Error):
            haulway.save(one, tmp_path / "x.npz", **options)
    with pytest.raises(haulway.Error, match="holds one array"):
        haulway.save({**one, "y": numpy.zeros(1)}, tmp_path / "x.npy")
    assert os.listdir(tmp_path) == []


def test_ties_are_refused_or_copied(tmp_path):
    tied = torch.ones(3)
    tensors = {"a": tied, "b": tied}
    with pytest.raises(haulway.Error):
        haulway.save(tensors, tmp_path / "x.npz")
    haulway.save(tensors, tmp_path / "x.npz", ties="copy")
    same(haulway.load(tmp_path / "x.npz", "numpy")["b"], tied.numpy())
