"""Megatron's torch_dist directories."""

import json

import torch

import haulway
from rank_goldens import copy, expected, folder, found


def test_a_directory_with_its_plans(run):
    assert found(folder("mc_2")).items() >= expected("mc_2").items()
    info = json.loads(run("info", "--json", folder("mc_2")).stdout)
    assert info["format"] == "torch-dcp"
    assert info["container"]["megatron"]["sharded_backend"] == "torch_dist"
    assert haulway.verify(folder("mc_2"))
    state = haulway.load(folder("mc_2"))
    assert "decoder.layers.self_attention._extra_state/shard_0_3" in state


def test_the_newest_megatron_writes_no_common_file(tmp_path):
    """It saves what was in the file as an object of the directory."""
    work = copy("mc_2", tmp_path / "work")
    (work / "common.pt").unlink()
    assert found(work) == found(folder("mc_2"))
    assert haulway.verify(work)


def test_layers_are_split(run, tmp_path):
    whole = haulway.load(folder("mc_2"))
    run("convert", folder("mc_2"), "out.safetensors", "--split-layers",
        "--exclude", "*_extra_state*")
    out = haulway.load(tmp_path / "out.safetensors")
    for name in ("mlp.linear_fc1.weight", "input_layernorm.weight"):
        for layer in range(3):
            assert torch.equal(out[f"decoder.layers.{layer}.{name}"],
                               whole[f"decoder.layers.{name}"][layer])
        assert f"decoder.layers.{name}" not in out
    assert torch.equal(out["decoder.final_layernorm.weight"],
                       whole["decoder.final_layernorm.weight"])
    # The other file of the folder has no layers.
    listed = run("ls", folder("mc_2"), "--split-layers")
    assert "decoder.layers.2.mlp.linear_fc1.weight" in listed.stdout
    assert not listed.stderr
    opened = haulway.open(folder("mc_2"), split_layers=True)
    rows = opened.get_slice("decoder.layers.1.mlp.linear_fc1.weight")[2:5]
    assert torch.equal(rows,
                       whole["decoder.layers.mlp.linear_fc1.weight"][1, 2:5])


def test_scan_takes_the_plans_for_data():
    assert haulway.scan(folder("mc_2") / ".metadata").safe
