"""haulway.convert: all its guarantees for every pair of formats."""

import hashlib

import numpy
import pytest
import torch

import haulway
from needed_metadata import needed

ENDINGS = ["pt", "safetensors", "tensors", "gguf", "npz"]


def tensors():
    torch.manual_seed(5)
    return {
        **{f"model.{i}.weight": torch.randn(40, 50) for i in range(4)},
        "model.steps": torch.arange(30, dtype=torch.int32),
        "optimizer.m": torch.ones(7),
    }


@pytest.mark.parametrize("source", ENDINGS)
@pytest.mark.parametrize("target", ENDINGS)
def test_all_options_at_once(source, target, tmp_path):
    haulway.save(tensors(), tmp_path / f"a.{source}", **needed(source))
    out = tmp_path / f"b.{target}"
    done = haulway.convert(
        tmp_path / f"a.{source}", out, dtype="f16", include="model.*",
        exclude="model.3.*", rename={r"^model\.": "m."}, shard=10_000,
        compact=True, proof=True, durability="none", **needed(target))
    expected = {
        "m." + name.removeprefix("model."):
            tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in tensors().items()
        if name.startswith("model.") and not name.startswith("model.3")
    }
    assert len(done.files) == 3 and done.files[-1].endswith(".index.json")
    found = haulway.load(done.files[-1])
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert numpy.array_equal(numpy.asarray(found[name]), tensor.numpy()), name
    assert {row.name: row.sha256 for row in done.proof} == {
        name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
        for name, tensor in expected.items()
    }


@pytest.mark.parametrize("target", ENDINGS)
def test_ties(target, tmp_path):
    shared = torch.arange(100.0)
    torch.save({"a": shared, "b": shared, "c": torch.ones(2)}, tmp_path / "a.pt")
    out = tmp_path / f"b.{target}"
    for ties, names in (("drop", ["a", "c"]), ("copy", ["a", "b", "c"])):
        done = haulway.convert(tmp_path / "a.pt", out, ties=ties, proof=True,
                               **needed(target))
        found = haulway.load(out)
        assert sorted(found) == names
        assert [(tie.name, tie.done) for tie in done.ties] == [
            ("b", "dropped" if ties == "drop" else "copied")]
        assert numpy.array_equal(numpy.asarray(found["a"]), shared.numpy())
    out.unlink()
    with pytest.raises(haulway.UnsupportedError, match="share memory"):
        haulway.convert(tmp_path / "a.pt", out, ties="error")
    if target == "pt":
        haulway.convert(tmp_path / "a.pt", out)
        found = torch.load(out)
        assert found["a"].data_ptr() == found["b"].data_ptr()
    else:
        with pytest.raises(haulway.UnsupportedError, match="share memory"):
            haulway.convert(tmp_path / "a.pt", out)


@pytest.mark.parametrize("source", ENDINGS)
@pytest.mark.parametrize("target", ["safetensors", "gguf", "npz", "pt"])
def test_the_kernel_moves_what_nobody_checks(source, target, tmp_path):
    haulway.save({"w": torch.arange(100_000.0)}, tmp_path / f"a.{source}",
                 **needed(source))
    done = haulway.convert(tmp_path / f"a.{source}", tmp_path / f"b.{target}",
                           **needed(target))
    # The others have checksums, of the input and of the output.
    moved = source in ("safetensors", "gguf") and target in ("safetensors", "gguf")
    assert done.copied_bytes == (400_000 if moved else 0)
    again = haulway.convert(tmp_path / f"a.{source}", tmp_path / f"b.{target}",
                            verify=False, **needed(target))
    moved = target in ("safetensors", "gguf")
    assert again.copied_bytes == (400_000 if moved else 0)
    found = haulway.load(tmp_path / f"b.{target}")["w"]
    assert numpy.array_equal(numpy.asarray(found), numpy.arange(100_000.0))
