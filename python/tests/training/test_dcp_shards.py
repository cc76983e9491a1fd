"""Folders of shards in safetensors files, opened without torch.distributed:
the format "safetensors-dcp"."""

import json

import numpy
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
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
        # A slice that crosses the files of all three processes.
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
    # torch's way refuses integers.
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
