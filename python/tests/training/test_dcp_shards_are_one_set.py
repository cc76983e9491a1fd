"""The shards of several processes become visible as one: whoever reads them sees
the old ones, the new ones or an error, whichever process dies and when.

test_a_set_is_one_thing.py kills one process at every call, too.
"""

import gc
import json
import os
import signal
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import dcp_shard_saves
import haulway
from dcp_shard_saves import LATER, NEW, OLD, Save, found, names, save, shards, state
from haulway.torch.dcp import SafetensorsReader, SafetensorsWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


def test_nothing_is_seen_before_the_last_step(tmp_path):
    first = Save(tmp_path, OLD)
    assert found(tmp_path) is None
    first.finish()
    assert (found(tmp_path), names(tmp_path)) == (OLD, shards())
    second = Save(tmp_path, NEW)
    assert found(tmp_path) == OLD
    second.finish()
    assert (found(tmp_path), names(tmp_path)) == (NEW, shards())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_ends_before_leaves_the_old_ones(tmp_path, rank):
    save(tmp_path, OLD)
    one = Save(tmp_path, NEW)
    one.writers[rank].reset()
    with pytest.raises(haulway.NotFoundError):
        one.finish()
    assert found(tmp_path) == OLD
    del one
    gc.collect()
    assert names(tmp_path) == shards()


def test_a_set_that_was_killed_between_its_names_says_what_to_do(tmp_path):
    save(tmp_path, OLD)
    mark = tmp_path / ".haulway-set.1-0.haulway-tmp"
    mark.touch()
    for read in (haulway.load, haulway.open,
                 lambda path: SafetensorsReader(path).read_metadata()):
        with pytest.raises(haulway.NotFoundError) as caught:
            read(tmp_path)
        assert "goes on, or did not end: save again" in str(caught.value)
        assert str(tmp_path)[:50] in str(caught.value)
    save(tmp_path, NEW)
    assert (found(tmp_path), names(tmp_path)) == (NEW, shards())


def test_processes_that_are_killed_leave_files_that_go(tmp_path):
    save(tmp_path, OLD)
    child = os.fork()
    if child == 0:
        one = Save(tmp_path, NEW)
        os.kill(os.getpid(), signal.SIGKILL)
        del one
    os.waitpid(child, 0)
    assert len(names(tmp_path)) == 4 and found(tmp_path) == OLD
    save(tmp_path, LATER)
    assert (found(tmp_path), names(tmp_path)) == (LATER, shards())


@pytest.mark.parametrize("old, new", [(2, 2), (3, 2), (2, 3), (1, 1)])
def test_the_first_process_is_killed_at_every_call(
    tmp_path, preloaded, old, new
):
    """Those of the old and of the new number of processes are never together."""
    done = subprocess.run(
        [sys.executable, dcp_shard_saves.__file__, tmp_path, str(old), str(new)],
        env={**os.environ, "LD_PRELOAD": preloaded("kill_at")},
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [killed for killed, *_ in told] == [True] * (len(told) - 1) + [False]
    numbers = [number for _, number, *_ in told]
    assert set(numbers) <= {OLD, NEW, None}
    assert numbers[-1] == NEW and len(told) > 3
    assert all(after == [LATER, shards(new)] for *_, after in (
        (*one[:2], list(one[2:])) for one in told))


def test_files_of_one_process_replace_those_of_several(tmp_path):
    """And an index of an older save does not stay."""
    tensors = {**state(0, OLD), **state(1, OLD)}
    dcp.save(tensors, storage_writer=SafetensorsWriter(tmp_path), no_dist=True)
    assert "model.safetensors.index.json" in names(tmp_path)
    save(tmp_path, NEW)
    assert (found(tmp_path), names(tmp_path)) == (NEW, shards())
    dcp.save(tensors, storage_writer=SafetensorsWriter(tmp_path), no_dist=True)
    assert found(tmp_path) == OLD and len(names(tmp_path)) == 2


def test_a_reader_meets_another_save(tmp_path):
    """After it read the metadata: the first values are gone."""
    save(tmp_path, OLD)
    reader = SafetensorsReader(tmp_path)
    read = reader.read_metadata

    def read_metadata():
        metadata = read()
        save(tmp_path, NEW)
        return metadata

    reader.read_metadata = read_metadata
    into = {name: torch.zeros(50) for rank in range(2)
            for name in state(rank, 0)}
    with pytest.raises(CheckpointException) as caught:
        dcp.load(into, storage_reader=reader, no_dist=True)
    assert "another save replaced" in str(caught.value)
    assert {value for one in into.values() for value in one.tolist()} <= {0.0}


def test_processes_that_do_not_know_one_another_are_refused(tmp_path):
    """They would give their files the same names."""
    with pytest.raises(haulway.UnsupportedError, match="use_collectives"):
        SafetensorsWriter(tmp_path).set_up_storage_writer(
            True, rank=0, use_collectives=False)
