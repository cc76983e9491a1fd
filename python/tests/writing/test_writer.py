"""haulway.writer: models written tensor by tensor."""

import json
import os
import subprocess
import sys

import numpy
import pytest
import safetensors.torch
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from test_convert import FORMATS, read, same, tensors

import haulway


@pytest.mark.parametrize("format", FORMATS)
def test_the_file_is_what_saving_all_of_it_writes(tmp_path, format):
    ours = tmp_path / "ours" / f"a{FORMATS[format]}"
    ours.parent.mkdir()
    with haulway.writer(ours) as out:
        for name, tensor in tensors().items():
            out.add(name, tensor)
        assert os.listdir(ours.parent) == []
        done = out.commit()
    assert done["files"] == [str(ours)]
    assert done["bytes"] == ours.stat().st_size
    theirs = tmp_path / ours.name
    haulway.save(tensors(), theirs)
    assert ours.read_bytes() == theirs.read_bytes()
    same(tensors(), read(ours, format))


def test_tensors_come_in_pieces(tmp_path):
    whole = torch.randn(1000, 64)
    with haulway.writer(tmp_path / "a.safetensors") as out:
        rows = out.add_part("rows", torch.float32, whole.shape)
        out.add("between", numpy.arange(3))
        for block in whole.split(300):
            rows.write(block)
        ends = out.add_part("ends", "F32", (4,))
        ends.write(numpy.array([3, 4], "f4"), offset=8)
        ends.write(b"\x00" * 8, offset=0)
        out.commit()
    same(
        {"rows": whole, "between": torch.arange(3),
         "ends": torch.tensor([0.0, 0, 3, 4])},
        read(tmp_path / "a.safetensors", "safetensors"),
    )


def test_a_tensor_may_change_when_add_returns(tmp_path):
    tensor = torch.ones(5)
    with haulway.writer(tmp_path / "a.pt") as out:
        for i in range(3):
            out.add(f"t{i}", tensor.fill_(i))
        out.commit()
    loaded = torch.load(tmp_path / "a.pt")
    assert [loaded[f"t{i}"][0].item() for i in range(3)] == [0, 1, 2]


def test_nothing_is_left_without_commit(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"old")
    with pytest.warns(RuntimeWarning), haulway.writer(path) as out:
        out.add("a", torch.ones(2))
    with pytest.raises(KeyError), haulway.writer(path) as out:
        out.add("a", torch.ones(2))
        raise KeyError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]
    with pytest.raises(haulway.Error, match="closed"):
        out.add("b", torch.ones(2))


@pytest.mark.parametrize("rows", [
    torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.float64),
    numpy.ones(2, "i4"), numpy.ones(2, "f2"), numpy.ma.array([1.0, 2.0]),
    [1.0, 2.0], None, "12345678", torch.ones(2, device="meta"),
])
def test_a_part_takes_only_elements_of_its_dtype(tmp_path, rows):
    with haulway.writer(tmp_path / "a.safetensors") as out:
        part = out.add_part("p", "F32", (2,))
        with pytest.raises(haulway.Error, match="'p'"):
            part.write(rows)
        part.write(torch.ones(2))
        out.commit()
    assert read(tmp_path / "a.safetensors", "safetensors")["p"].tolist() == [1, 1]


def test_a_part_takes_bytes_and_the_bits_of_a_dtype_that_numpy_lacks(tmp_path):
    ones = torch.ones(2, dtype=torch.bfloat16)
    bits = ones.view(torch.int16).numpy().view("u2")
    with haulway.writer(tmp_path / "a.safetensors") as out:
        part = out.add_part("p", "bf16", (8,))
        for rows in (ones, bits, bits.view("u1"), ones.view(torch.uint8)):
            part.write(rows)
        out.commit()
    read_back = read(tmp_path / "a.safetensors", "safetensors")["p"]
    assert torch.equal(read_back, torch.ones(8, dtype=torch.bfloat16))


def test_a_block_that_ends_without_commit_warns(tmp_path, recwarn):
    with pytest.warns(RuntimeWarning, match="a.pt' was not written.*commit"):
        with haulway.writer(tmp_path / "a.pt") as out:
            out.add("a", torch.ones(2))
    recwarn.clear()
    with haulway.writer(tmp_path / "a.pt"):
        pass
    with pytest.raises(KeyError), haulway.writer(tmp_path / "a.pt") as out:
        out.add("a", torch.ones(2))
        raise KeyError
    assert not recwarn.list
    assert os.listdir(tmp_path) == []


def test_what_is_missing_is_named(tmp_path):
    with haulway.writer(tmp_path / "a.pt") as out:
        part = out.add_part("w", "bf16", (2, 2))
        part.write(b"\x00" * 4)
        with pytest.raises(haulway.Error,
                           match="it has 8, and byte 4 was not written.*'w'"):
            out.commit()
    assert os.listdir(tmp_path) == []


def test_what_is_wrong_is_refused(tmp_path):
    with haulway.writer(tmp_path / "a.safetensors") as out:
        out.add("a", torch.ones(2))
        part = out.add_part("p", "F32", (2,))
        for wrong in (
            lambda: out.add("a", torch.ones(2)),
            lambda: out.add_part("a", "F32", (2,)),
            lambda: out.add(3, torch.ones(2)),
            lambda: out.add("b", [1.0]),
            lambda: out.add("b", torch.ones(2, device="meta")),
            lambda: out.add("b", torch.eye(2).to_sparse()),
            lambda: out.add_part("b", "F31", (2,)),
            lambda: out.add_part("b", "F32", (-1,)),
            lambda: out.add_part("b", "F32", "2"),
            lambda: out.add_part(torch.ones(1), "F32", (2,)),
            lambda: part.write(b"\x00" * 9),
            lambda: part.write(b"\x00", offset=8),
        ):
            with pytest.raises(haulway.Error):
                wrong()
        part.write(torch.zeros(2))
        out.commit()
    assert sorted(read(tmp_path / "a.safetensors", "safetensors")) == [
        "a", "p"
    ]
    for path, format in [("a.h5", None), ("a.pt", "safetensors"),
                         ("a", "torch-tar")]:
        with pytest.raises(haulway.Error):
            haulway.writer(tmp_path / path, format)


def test_metadata_and_shards(tmp_path):
    state = {f"n.{i}": torch.full((i + 1,), float(i)) for i in range(30)}
    with haulway.writer(tmp_path / "model.safetensors", shard=200,
                        metadata={"format": "pt"}) as out:
        for name, tensor in state.items():
            out.add(name, tensor)
        done = out.commit()
    split = split_torch_state_dict_into_shards(state, max_shard_size=200)
    assert done["files"][:-1] == [
        str(tmp_path / file) for file in split.filename_to_tensors
    ]
    index = tmp_path / "model.safetensors.index.json"
    assert index.read_text() == json.dumps(
        {"metadata": split.metadata, "weight_map": split.tensor_to_filename},
        indent=2)
    same(state, haulway.load(index))
    with safetensors.safe_open(done["files"][0], "pt") as shard:
        assert shard.metadata() == {"format": "pt"}


PEAK = """
import sys, numpy, haulway
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
block = numpy.ones((256, 4096), "f4")
before = peak()
with haulway.writer(sys.argv[1], memory_budget="16MiB", threads=2) as out:
    part = out.add_part("big", "F32", (256 * 50, 4096))
    for i in range(50):
        part.write(block)
    out.commit()
print(peak() - before)
"""


def test_memory_is_bounded(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path / "a.safetensors"],
        capture_output=True, text=True, check=True,
    )
    assert int(ran.stdout) < 48 << 10  # KiB, of 200 MiB.
