"""A version of weights, read by DCP."""

import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp
from test_dcp_reader import reason
from torch.distributed.checkpoint.api import CheckpointException

from delta_versions import INDEX, chain, same
from haulway.torch.dcp import LoadPlanner, SafetensorsReader

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


def load(path, like, **options):
    into = {name: torch.zeros_like(one) for name, one in like.items()}
    dcp.load(into, storage_reader=SafetensorsReader(path, **options),
             planner=LoadPlanner(), no_dist=True)
    return into


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_a_version_is_loaded(tmp_path, encoding):
    states = chain(tmp_path, encoding=encoding, shards=2)
    for number in (1, 3):
        path = tmp_path / "run" / f"weight_v{number:06}"
        found = load(path, states[number], base=tmp_path / "base")
        assert same(found, states[number])
    # A part of it, into tensors of another dtype.
    reader = SafetensorsReader(path, base=tmp_path / "base", threads=1)
    into = {"a.weight": torch.zeros(100, 40)}
    dcp.load(into, storage_reader=reader, no_dist=True)
    assert torch.equal(into["a.weight"], states[3]["a.weight"].float())
    assert reader.stats["read_bytes"] < 20_000


def test_base_beside_the_versions_is_found(tmp_path):
    states = chain(tmp_path)
    shutil.move(tmp_path / "base", tmp_path / "run" / "weight_v000000")
    assert same(load(tmp_path / "run" / "weight_v000002", states[2]), states[2])


def test_what_cannot_be_read_is_said(tmp_path):
    states = chain(tmp_path)
    path = tmp_path / "run" / "weight_v000002"
    with pytest.raises(CheckpointException) as raised:
        load(path, states[2])
    assert "option base" in str(reason(raised))
    shard = path / "model-00000-of-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(CheckpointException) as raised:
        load(path, states[2], base=tmp_path / "base")
    assert shard.name in str(reason(raised))
    # Without the index its shards are no model.
    (path / INDEX).unlink()
    for lenient in (False, True):
        with pytest.raises(CheckpointException):
            load(path, states[2], base=tmp_path / "base", lenient=lenient)


def test_from_a_server(nginx, tmp_path):
    root = nginx.root / "dcp-deltas"
    states = chain(root)
    url = f"http://127.0.0.1:{nginx.port}/dcp-deltas"
    found = load(f"{url}/run/weight_v000003", states[3], base=f"{url}/base/")
    assert same(found, states[3])
