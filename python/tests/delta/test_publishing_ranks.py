"""haulway.delta.publisher with a process group."""

import os
import pathlib
import shutil

import gloo_group
import haulway
import haulway.delta
from delta_versions import model, read_index, receive, same, save_full, step

PROGRAM = pathlib.Path(__file__).with_name("publishing_ranks.py")


def test_ranks_publish_one_version(tmp_path):
    states = [model(size=40_000)]
    for seed in (1, 2, 3):
        states.append(step(states[-1], seed, 0.02))
    save_full(tmp_path / "base", states[0], shards=2)
    world = 3
    said = [lines[-1] for lines in gloo_group.run(PROGRAM, tmp_path, world)]
    for one in said[1:]:
        assert one["made"] == said[0]["made"] and one["version"] == 4
    for refusals in zip(*(one["said"] for one in said)):
        assert all(refusals)
    differs, new, missing, alone = said[2]["said"]
    assert "'a.weight' differs between rank 0 and rank 1" in differs
    assert "'new' is new" in new and "'b.weight' is missing" in missing
    assert "'b.weight' is int" in alone
    assert "another publisher" in said[0]["second"]

    run = tmp_path / "run"
    assert [name for name in sorted(os.listdir(run)) if name[0] != "."] == [
        f"weight_v{n:06}" for n in (1, 2, 3, 4)]
    assert not [name for name in os.listdir(run) if name.endswith("tmp")]
    versions = haulway.delta.versions(run)
    assert [vars(one) for one in versions] == said[0]["made"]
    assert [one.kind for one in versions] == ["delta", "delta", "full", "delta"]
    assert versions[3].tensors == 0
    local = shutil.copytree(tmp_path / "base", tmp_path / "local")
    for number in (1, 2):
        folder = run / f"weight_v{number:06}"
        shards = sorted(path.name for path in folder.glob("*.safetensors"))
        assert len(shards) >= world and shards == [
            f"model-{i:05}-of-{len(shards):05}.safetensors"
            for i in range(len(shards))]
        # A tensor that all ranks have is written once.
        assert len(read_index(folder)["weight_map"]) == 6
        receive(local, run, number)
        assert same(haulway.load(local), states[number])
    assert same(haulway.load(versions[2].path), states[3])
    assert haulway.delta.verify(run, base=tmp_path / "base").ok
