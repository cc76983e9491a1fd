"""Named tensors as files of every format, compared with the formats' own
libraries."""

import os

import pytest
import torch
from test_safetensors import TORCH_DTYPES, sample

import haulway
from haulway import _haulway
from haulway._torch.factory import name_of_dtype
from haulway._writing.dense import memory_of


def write(tensors, path, format):
    rows = [
        (name, name_of_dtype(t.dtype), tuple(t.shape), memory_of(t))
        for name, t in tensors.items()
    ]
    return _haulway.write_tensors(
        os.fspath(path), format, rows, None, {"durability": "none"}, None
    )


def every_dtype():
    return {str(d).removeprefix("torch."): sample(d) for d in TORCH_DTYPES}


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"one": torch.arange(6.0).reshape(2, 3)},
        every_dtype(),
        {"scalar": torch.tensor(2.0), "empty": torch.empty(0, 3),
         "five": torch.zeros(1, 2, 1, 2, 1), "é\n": torch.zeros(1)},
        {f"layer.{i}.weight": torch.full((3,), float(i)) for i in range(12)},
        {str(i): torch.zeros(1) for i in range(1000)},
        {f"t{i}": torch.zeros(1) for i in range(2500)},
    ],
    ids=["none", "one", "dtypes", "shapes", "names", "1000", "2500"],
)
def test_the_bytes_are_those_of_torch(tmp_path, tensors):
    (tmp_path / "ours").mkdir()
    ours, theirs = tmp_path / "ours" / "model.v1.pt", tmp_path / "model.v1.pt"
    done = write(tensors, ours, "torch")
    torch.save(tensors, theirs)
    assert ours.read_bytes() == theirs.read_bytes()
    assert done["bytes"] == ours.stat().st_size


@pytest.mark.parametrize("format", ["torch", "safetensors", "tensorizer"])
def test_every_format_brings_them_back(tmp_path, format):
    tensors = {
        name: tensor
        for name, tensor in every_dtype().items()
        if name != "float4_e2m1fn_x2"
    }
    path = tmp_path / "a"
    write(tensors, path, format)
    loaded = haulway.load(path, verify=True)
    assert sorted(loaded) == sorted(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert loaded[name].view(torch.uint8).equal(tensor.view(torch.uint8))


def test_a_format_that_is_only_read_is_refused(tmp_path):
    with pytest.raises(haulway.Error, match="is not written"):
        write({}, tmp_path / "a", "torch-tar")
    assert os.listdir(tmp_path) == []
