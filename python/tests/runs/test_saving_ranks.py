"""Ranks save one step: all of them, or none."""

import os
import pathlib

import pytest
import torch
import torch.distributed.checkpoint as dcp

import gloo_group
import haulway

PROGRAM = pathlib.Path(__file__).with_name("saving_ranks.py")


@pytest.mark.parametrize("way", ["killed", "fails", "steps"])
def test_four_ranks_save_a_step_or_none_does(way, tmp_path, monkeypatch):
    """Three steps, the last one in the background; at the fourth, rank 2 is
    killed, or rank 1 has something else to save, or another step."""
    monkeypatch.setenv("PYTHONPATH", str(PROGRAM.parent.parent))
    said, codes, errors = gloo_group.run(PROGRAM, tmp_path, 4, way, code=None)
    told = [lines[0]["told"] for lines in said if lines]
    assert len(told) >= 3 and None not in told, (said, errors)
    found = haulway.latest(tmp_path / "run")
    assert found.step == 3 and found.metadata == {"step": 3}
    assert sorted(name for name in os.listdir(tmp_path / "run")
                  if name[0] != ".") == ["step-2", "step-3"]
    into = {"w": torch.zeros(16, 4), "n": torch.zeros(1, dtype=torch.int64)}
    dcp.load(into, checkpoint_id=found.path, no_dist=True)
    assert torch.equal(into["w"], torch.arange(64.0).reshape(16, 4) + 3)
    assert into["n"] == 3
