"""Folders of shards in safetensors files, opened without torch.distributed:
the format "safetensors-dcp"."""

import json

import numpy
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from test_dcp_reader import DTYPES, bits
from test_dcp_safetensors import STATE, shards
from torch.distributed.checkpoint._consolidate_hf_safetensors import (
    consolidate_safetensors_files,
)
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

import haulway
from haulway.torch.dcp import SafetensorsReader, SafetensorsWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")
SECOND = "shard-00002-model-00001-of-00001.safetensors"


@pytest.fixture
def folder(tmp_path):
    return shards(tmp_path / "c", [10, 6])


def test_a_folder_opens_as_whole_tensors(folder):
    with haulway.open(folder) as opened:
        assert opened.format == "safetensors-dcp"
        assert opened.keys() == ["w"]
        assert opened.info("w").shape == (10, 6)
        assert torch.equal(opened["w"], STATE["w"])
        # A slice across the files of all three processes.
        assert torch.equal(opened.get_slice("w")[2:9, 1::2], STATE["w"][2:9, 1::2])


def test_every_call_that_reads_takes_it(folder, tmp_path):
    assert torch.equal(haulway.load(folder)["w"], STATE["w"])
    assert torch.equal(dict(haulway.iterate(folder))["w"], STATE["w"])
    assert numpy.array_equal(haulway.load(folder, "numpy")["w"], STATE["w"].numpy())
    target = {"w": torch.zeros(10, 6)}
    haulway.load_into(target, folder)
    assert torch.equal(target["w"], STATE["w"])
    whole = tmp_path / "whole.safetensors"
    safetensors.torch.save_file({"w": STATE["w"]}, whole)
    assert haulway.manifest(folder)["w"] == haulway.manifest(whole)["w"]
    assert haulway.diff(folder, whole).equal
    assert haulway.scan(folder).verdict == "SAFE"


def test_the_command_joins_the_shards(folder, run, tmp_path):
    info = json.loads(run("info", folder, "--json").stdout)
    assert info["format"] == "safetensors-dcp"
    out = tmp_path / "model.safetensors"
    run("convert", folder, out)
    assert torch.equal(safetensors.torch.load_file(out)["w"], STATE["w"])


@pytest.mark.parametrize("writer", [SafetensorsWriter, HuggingFaceStorageWriter])
def test_what_dcp_saved_is_joined_as_torch_does(tmp_path, writer):
    # torch's consolidation refuses integers.
    dense = {name: STATE[name].contiguous() for name in ("w", "b")}
    saved, ours, theirs = (tmp_path / name for name in ("c", "ours", "theirs"))
    dcp.save(dense, no_dist=True, storage_writer=writer(
        str(saved), fqn_to_index_mapping={"w": 1, "b": 2},
        save_distributed=True))
    ours.mkdir()
    theirs.mkdir()
    haulway.convert(saved, ours / "model.safetensors")
    consolidate_safetensors_files(
        str(saved), str(theirs), dict.fromkeys(dense, 1))
    wanted = {}
    for file in theirs.glob("*.safetensors"):
        wanted.update(safetensors.torch.load_file(file))
    found = safetensors.torch.load_file(ours / "model.safetensors")
    assert found.keys() == wanted.keys() == dense.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


# torch's consolidation fails for other dtypes, or writes unreadable files.
JOINED_BY_TORCH = {
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
}


def of_dtype(dtype):
    raw = torch.arange(96, dtype=torch.uint8) % 2
    return (raw.bool() if dtype is torch.bool else raw.view(dtype)).reshape(6, -1)


def save_halves(whole, folder):
    folder.mkdir()
    for number, begin in ((1, 0), (2, 3)):
        said = json.dumps({"w": {"saved_offsets": [begin, 0]}})
        safetensors.torch.save_file(
            {"w": whole[begin:begin + 3].clone()},
            folder / f"shard-0000{number}-model-00001-of-00001.safetensors",
            metadata={"DCP_SHARDING_INFO": said, "DCP_VERSION": "1.0",
                      "format": "pt"})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_joined(tmp_path, dtype):
    whole, folder = of_dtype(dtype), tmp_path / "c"
    out = tmp_path / "model.safetensors"
    if dtype in (torch.complex32, torch.complex128):
        with pytest.raises(KeyError):  # These files cannot hold such tensors.
            save_halves(whole, folder)
        return
    save_halves(whole, folder)
    if dtype is torch.float4_e2m1fn_x2:
        with pytest.raises(haulway.UnsupportedError, match="less than a byte"):
            haulway.convert(folder, out)
        return
    haulway.convert(folder, out)
    found = haulway.load(out)["w"]
    assert (found.dtype, found.shape, bits(found)) == (
        dtype, whole.shape, bits(whole))
    data = out.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0  # torch's consolidation does not align data.
    assert json.loads(data[8:8 + length])["__metadata__"] == {"format": "pt"}
    if dtype in JOINED_BY_TORCH:
        (tmp_path / "theirs").mkdir()
        consolidate_safetensors_files(
            str(folder), str(tmp_path / "theirs"), {"w": 1})
        theirs = safetensors.torch.load_file(
            tmp_path / "theirs/model-00001-of-00001.safetensors")["w"]
        assert (theirs.dtype, bits(theirs)) == (found.dtype, bits(found))


def test_a_missing_shard_a_hole_and_an_overlap_are_errors(tmp_path, folder):
    (folder / SECOND).rename(tmp_path / "kept")
    with pytest.raises(haulway.CorruptError, match="shard 2"):
        haulway.load(folder)
    (tmp_path / "kept").rename(folder / SECOND)
    for begin, said in ((5, "overlap|elements"), (3, "overlap|elements")):
        safetensors.torch.save_file(
            {"w": STATE["w"][4:7].clone()}, folder / SECOND,
            metadata={
                "DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [begin, 0]}}),
                "DCP_TENSOR_SIZES": json.dumps({"w": [10, 6]}),
            })
        with pytest.raises(haulway.CorruptError, match=said):
            haulway.load(folder)


@pytest.mark.parametrize("length", [0, 7, 40, 200])
def test_a_shard_that_is_cut_is_an_error(folder, length):
    data = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(data[:length])
    with pytest.raises(haulway.Error):
        haulway.load(folder)


def test_one_shard_by_its_name_is_a_file_like_any_other(folder):
    with haulway.open(folder / SECOND) as opened:
        assert opened.format == "safetensors"
        assert opened.info("w").shape == (3, 6)


def test_the_plug_in_reads_the_same(folder):
    into = {"w": torch.zeros(10, 6)}
    dcp.load(into, storage_reader=SafetensorsReader(folder), no_dist=True)
    assert torch.equal(into["w"], haulway.load(folder)["w"])
