"""The safetensors variant of DCP, checked with torch's own."""

import json
import os
import shutil

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from test_dcp_reader import reason
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)

import haulway
from haulway.torch.dcp import SafetensorsReader, SafetensorsWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")
STATE = {"w": torch.arange(60.0).reshape(10, 6), "b": torch.ones(3).bfloat16(),
         "t": torch.arange(12).reshape(3, 4).t(), "s": torch.tensor(7)}


def load(reader):
    into = {name: torch.zeros_like(one) for name, one in STATE.items()}
    dcp.load(into, storage_reader=reader, no_dist=True)
    return all(torch.equal(into[name], STATE[name]) for name in STATE)


@pytest.mark.parametrize("mapping", [None, {"w": 1, "b": 2, "t": 3, "s": 2}])
@pytest.mark.parametrize("distributed", [False, True])
def test_each_reads_what_the_other_wrote(tmp_path, mapping, distributed):
    dense = {name: one.contiguous() for name, one in STATE.items()}
    for name, writer, state in (
        ("ours", SafetensorsWriter, STATE),
        ("theirs", HuggingFaceStorageWriter, dense),
    ):
        dcp.save(state, no_dist=True, storage_writer=writer(
            str(tmp_path / name), fqn_to_index_mapping=mapping,
            save_distributed=distributed))
        assert load(SafetensorsReader(tmp_path / name))
        assert load(HuggingFaceStorageReader(str(tmp_path / name)))
    names = sorted(os.listdir(tmp_path / "ours"))
    assert names == sorted(os.listdir(tmp_path / "theirs"))
    if not distributed:
        index = "model.safetensors.index.json"
        told = [json.loads((tmp_path / name / index).read_text())
                for name in ("ours", "theirs")]
        assert told[0]["weight_map"] == told[1]["weight_map"]


def shards(folder, sizes=None):
    """Writes rows 0 to 3, 4 to 6 and 7 to 9 of `w`, as three processes
    would."""
    folder.mkdir()
    for number, (begin, end) in enumerate(((0, 4), (4, 7), (7, 10)), 1):
        said = {"DCP_SHARDING_INFO": json.dumps(
            {"w": {"saved_offsets": [begin, 0]}})}
        if sizes:
            said["DCP_TENSOR_SIZES"] = json.dumps({"w": sizes})
        safetensors.torch.save_file(
            {"w": STATE["w"][begin:end].clone()},
            folder / f"shard-0000{number}-model-00001-of-00001.safetensors",
            metadata=said)
    return folder


def test_parts_of_shards_are_read(tmp_path):
    folder = shards(tmp_path / "c")
    into = {"w": torch.zeros(10, 6, dtype=torch.float64)}
    dcp.load(into, storage_reader=SafetensorsReader(folder), no_dist=True)
    assert torch.equal(into["w"], STATE["w"].double())
    with pytest.raises(CheckpointException) as caught:
        dcp.load(into, no_dist=True,
                 storage_reader=SafetensorsReader(folder, strict_dtype=True))
    assert isinstance(reason(caught), haulway.MismatchError)


@pytest.mark.parametrize(("number", "sizes", "said"), [
    (1, None, "file of shard 1 is missing: expected 1 to 3"),
    (2, None, "file of shard 2 is missing"),
    (3, [10, 6], r"chunks of w have 42 elements: expected 60"),
])
def test_a_missing_shard_is_an_error(tmp_path, number, sizes, said):
    folder = shards(tmp_path / "c", sizes)
    (folder / f"shard-0000{number}-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(haulway.CorruptError, match=said):
        SafetensorsReader(folder).read_metadata()


def test_a_hole_is_an_error_whatever_files_are_called(tmp_path):
    folder = shards(tmp_path / "c")
    for number, name in ((1, "a"), (3, "b")):
        shutil.move(folder / f"shard-0000{number}-model-00001-of-00001.safetensors",
                    folder / f"{name}.safetensors")
    (folder / "shard-00002-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(haulway.CorruptError, match="42 elements: expected 60"):
        SafetensorsReader(folder).read_metadata()


@pytest.mark.parametrize("said", ["[", "[1]"])
def test_offsets_must_be_a_dict(tmp_path, said):
    safetensors.torch.save_file({"w": torch.ones(2)}, tmp_path / "m.safetensors",
                                metadata={"DCP_SHARDING_INFO": said})
    with pytest.raises(haulway.CorruptError, match="DCP_SHARDING_INFO is"):
        SafetensorsReader(tmp_path).read_metadata()


def test_what_is_no_tensor_is_refused_before_a_file_is_there(tmp_path):
    with pytest.raises(CheckpointException) as caught:
        dcp.save({"w": torch.ones(3), "epoch": 5}, no_dist=True,
                 storage_writer=SafetensorsWriter(tmp_path / "c"))
    assert isinstance(reason(caught), haulway.UnsupportedError)
    assert "epoch is no tensor" in str(reason(caught))
    assert not (tmp_path / "c").exists()
    with pytest.raises(haulway.NotFoundError, match="no safetensors files"):
        SafetensorsReader(tmp_path).read_metadata()


def test_what_is_there_stays_if_asked(tmp_path):
    def save():
        dcp.save(STATE, no_dist=True,
                 storage_writer=SafetensorsWriter(tmp_path, overwrite=False))

    save()
    with pytest.raises(CheckpointException) as caught:
        save()
    assert isinstance(reason(caught), RuntimeError)
