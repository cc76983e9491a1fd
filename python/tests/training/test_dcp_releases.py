"""haulway.torch.dcp with every release of torch: no option that one lacks."""

import pytest
import torch
import torch.distributed.checkpoint as dcp

import haulway
from haulway.torch.dcp import LoadPlanner, Reader, Writer

pytestmark = pytest.mark.filterwarnings("ignore")


def state(fill=None):
    tensors = {
        "a": torch.arange(12.0).view(3, 4),
        "b": {"c": torch.ones(2, dtype=torch.bfloat16)},
        "scalar": torch.tensor(2.5),
    }
    if fill is not None:
        for tensor in (tensors["a"], tensors["b"]["c"], tensors["scalar"]):
            tensor.fill_(fill)
    return {**tensors, "step": 3 if fill is None else 0}


def check_loaded(got):
    torch.testing.assert_close(got, state(), rtol=0, atol=0)


def test_torch_and_haulway_read_what_the_writer_saved(tmp_path):
    dcp.save(state(), storage_writer=Writer(tmp_path / "c"))
    for how in (
        {"storage_reader": Reader(tmp_path / "c")},
        {"storage_reader": Reader(tmp_path / "c"), "planner": LoadPlanner()},
        {"checkpoint_id": tmp_path / "c"},
    ):
        got = state(0)
        dcp.load(got, **how)
        check_loaded(got)


def test_haulway_reads_what_torch_saved(tmp_path):
    dcp.save(state(), checkpoint_id=tmp_path / "c")
    got = state(0)
    dcp.load(got, storage_reader=Reader(tmp_path / "c"), planner=LoadPlanner())
    check_loaded(got)
    loaded = haulway.load(tmp_path / "c")
    assert torch.equal(loaded["a"], state()["a"])
    assert haulway.verify(tmp_path / "c").ok


def test_metadata_are_those_that_torch_reads(tmp_path):
    dcp.save(state(), checkpoint_id=tmp_path / "c")
    ours = Reader(tmp_path / "c").read_metadata()
    theirs = dcp.FileSystemReader(tmp_path / "c").read_metadata()
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.storage_data == theirs.storage_data


def test_torch_reads_what_was_converted(tmp_path):
    haulway.save({"a": torch.arange(12.0).view(3, 4)}, tmp_path / "a.safetensors")
    haulway.convert(tmp_path / "a.safetensors", tmp_path / "c", "torch-dcp")
    got = {"a": torch.zeros(3, 4)}
    dcp.load(got, checkpoint_id=tmp_path / "c")
    assert torch.equal(got["a"], torch.arange(12.0).view(3, 4))
