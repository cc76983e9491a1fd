"""The functions that SGLang and slime call around versions of weights."""

import shutil

import numpy as np
import pytest

import haulway
import haulway.delta
import haulway.hooks


@pytest.fixture
def run(tmp_path):
    """Returns a folder of versions 1, 2 and 3."""
    states = [{"a": np.arange(400, dtype="f4"), "b": np.zeros(7, "i8")}]
    for number in (1, 2, 3):
        states.append({"a": states[-1]["a"].copy(), "b": states[-1]["b"]})
        states[-1]["a"][number] += 1
    for number, state in enumerate(states):
        haulway.save(state, tmp_path / f"{number}.safetensors")
    for number in (1, 2, 3):
        haulway.delta.write(
            tmp_path / f"{number - 1}.safetensors", tmp_path / f"{number}.safetensors",
            tmp_path / f"run/weight_v{number:06}",
            version=number, base_version=number - 1)
    return tmp_path / "run"


def after_write(run, number):
    return haulway.hooks.after_write(None, str(run / f"weight_v{number:06}"), [])


def before_pull(run, number):
    return haulway.hooks.before_pull(str(run), number)


@pytest.mark.parametrize("hook", [before_pull, after_write])
def test_a_whole_version_passes(hook, run):
    assert hook(run, 3) is None
    assert before_pull(run, 0) is None


@pytest.mark.parametrize("hook", [before_pull, after_write])
def test_a_version_that_is_not_whole_is_refused(hook, run):
    folder = run / "weight_v000003"
    index = folder / "model.safetensors.index.json"
    (shard,) = folder.glob("*.safetensors")
    kept = index.read_bytes()
    index.unlink()
    # SGLang would take the shards for a model.
    with pytest.raises(haulway.TruncatedError, match=f"{index.name} is missing"):
        hook(run, 3)
    index.write_bytes(kept)
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    with pytest.raises(haulway.TruncatedError, match=shard.name):
        hook(run, 3)
    shard.write_bytes(data)
    shutil.copy(shard, folder / "model-00007-of-00008.safetensors")
    with pytest.raises(haulway.CorruptError, match="model-00007.* not listed"):
        hook(run, 3)
    with pytest.raises(haulway.NotFoundError, match="000004|version 4"):
        hook(run, 4)


@pytest.mark.parametrize("base", ["000003", "000001", "v0"])
def test_a_pull_needs_older_versions(run, base):
    """SGLang reads numbers; a circle of them has no end."""
    index = run / "weight_v000001/model.safetensors.index.json"
    index.write_text(index.read_text().replace('"base_version": "000000"',
                                               f'"base_version": "{base}"'))
    with pytest.raises(haulway.Error, match="weight_v000001"):
        before_pull(run, 3)


def test_a_pull_needs_every_version_below(run):
    shard = next((run / "weight_v000001").glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(haulway.TruncatedError, match=r"weight_v000001.*version 000001"):
        before_pull(run, 3)
    assert after_write(run, 3) is None
    # A full version needs nothing below.
    haulway.convert(run.parent / "2.safetensors", f"{run}/weight_v000002x/",
                    to="safetensors")
    shutil.rmtree(run / "weight_v000002")
    (run / "weight_v000002x").rename(run / "weight_v000002")
    (run / "weight_v000002/model.safetensors.index.json").write_text(
        '{"metadata": {"total_size": 1656, "version": "000002"}, "weight_map": '
        '{"a": "model.safetensors", "b": "model.safetensors"}}')
    assert before_pull(run, 3) is None
