"""Directories that torch 2.15 wrote, which says more of each tensor."""

import hashlib
import json
import pathlib
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp

import haulway
import haulway.torch.dcp

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "testdata/dcp"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def flat(value, name=""):
    if not isinstance(value, dict):
        return {name: value}
    return {
        below: found for key, one in value.items()
        for below, found in flat(one, f"{name}.{key}" if name else key).items()
    }


def said(value):
    if not isinstance(value, torch.Tensor):
        return value
    data = value.contiguous().reshape(-1).view(torch.uint8)
    return [str(value.dtype).removeprefix("torch."), list(value.shape),
            hashlib.sha256(bytes(data.tolist())).hexdigest()]


@pytest.mark.parametrize("name", EXPECTED)
def test_it_is_what_torch_reads(name, tmp_path):
    folder = FOLDER / name
    loaded = flat(haulway.load(folder))
    assert {key: said(value) for key, value in loaded.items()} == EXPECTED[name]
    assert haulway.verify(folder)
    haulway.convert(folder, tmp_path / "x.safetensors")
    tensors = haulway.load(tmp_path / "x.safetensors")
    assert {key: said(value) for key, value in tensors.items()} == {
        key: value for key, value in EXPECTED[name].items()
        if isinstance(value, list)}


@pytest.mark.parametrize("name", EXPECTED)
def test_any_torch_reads_it_through_ours_and_what_ours_writes(name, tmp_path):
    def empty(value):
        return (torch.empty_like(value) if isinstance(value, torch.Tensor)
                else None)

    loaded = flat(haulway.load(FOLDER / name))
    state = {key: empty(value) for key, value in loaded.items()}
    dcp.load(state, storage_reader=haulway.torch.dcp.Reader(FOLDER / name),
             no_dist=True)
    assert {key: said(value) for key, value in state.items()} == EXPECTED[name]
    dcp.save(loaded, storage_writer=haulway.torch.dcp.Writer(tmp_path / "new"),
             no_dist=True)
    again = {key: empty(value) for key, value in loaded.items()}
    dcp.load(again, checkpoint_id=tmp_path / "new", no_dist=True)
    assert {key: said(value) for key, value in again.items()} == EXPECTED[name]


def test_chunks_of_one_process_are_no_tensor(tmp_path):
    folder = shutil.copytree(FOLDER / "chunks", tmp_path / "x")
    (folder / "__1_0.distcp").unlink()
    with pytest.raises(haulway.Error, match="__1_0.distcp"):
        haulway.load(folder)
    assert not haulway.verify(folder)
