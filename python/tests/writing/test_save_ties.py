"""Tensors that share memory, in formats that cannot express it."""

import os

import numpy
import pytest
import torch

import haulway


def tied():
    weight = torch.arange(12.0).reshape(3, 4)
    return {"embed": weight, "other": torch.ones(2), "head": weight}


FLAT = [".safetensors", ".tensors"]


@pytest.mark.parametrize("wish", ["error", "keep"])
@pytest.mark.parametrize("suffix", FLAT)
def test_they_are_refused_and_named(suffix, wish, tmp_path):
    with pytest.raises(ValueError, match="embed.*head.*share memory"):
        haulway.save(tied(), tmp_path / f"x{suffix}", ties=wish)
    assert os.listdir(tmp_path) == []


def test_safetensors_refuses_them_unless_told(tmp_path):
    with pytest.raises(ValueError, match="ties='drop' or 'copy'"):
        haulway.save(tied(), tmp_path / "x.safetensors")


@pytest.mark.parametrize("save", [haulway.save, haulway.save_async])
@pytest.mark.parametrize("suffix", FLAT)
def test_they_are_dropped_and_reported(suffix, save, tmp_path):
    path, stats = tmp_path / f"x{suffix}", {}
    done = save(tied(), path, ties="drop", stats=stats)
    done = done if isinstance(done, dict) else done.result()
    expected = "head" if suffix == ".safetensors" else "['head']"
    assert [row["done"] for row in done["ties"]] == ["dropped"]
    assert expected in done["ties"][0]["name"]
    assert stats["ties"] == done["ties"]
    assert sorted(haulway.load(path)) == ["embed", "other"]


@pytest.mark.parametrize("suffix", FLAT)
def test_they_are_copied_and_reported(suffix, tmp_path):
    path = tmp_path / f"x{suffix}"
    done = haulway.save(tied(), path, ties="copy")
    assert [row["done"] for row in done["ties"]] == ["copied"]
    loaded = haulway.load(path)
    assert torch.equal(loaded["head"], tied()["head"])
    assert torch.equal(loaded["embed"], tied()["embed"])


@pytest.mark.parametrize("suffix", FLAT)
def test_what_overlaps_and_differs_is_never_dropped(suffix, tmp_path):
    base = numpy.arange(10.0)
    views = {"all": base, "part": base[2:5]}
    with pytest.raises(ValueError, match="not the same"):
        haulway.save(views, tmp_path / f"x{suffix}", ties="drop")
    done = haulway.save(views, tmp_path / f"x{suffix}", ties="copy")
    assert len(done["ties"]) == 1
    loaded = haulway.load(tmp_path / f"x{suffix}", "numpy")
    assert loaded["part"].tolist() == [2.0, 3.0, 4.0]


def test_neighbours_share_nothing(tmp_path):
    base = torch.arange(10.0)
    halves = {"a": base[:5], "b": base[5:]}
    assert "ties" not in haulway.save(halves, tmp_path / "x.safetensors")


def test_arrays_are_copied_unless_told_otherwise(tmp_path):
    base = numpy.arange(10.0)
    views = {"a": base, "b": base}
    assert "ties" not in haulway.save(views, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="share memory"):
        haulway.save(views, tmp_path / "x.safetensors", ties="error")
    done = haulway.save(views, tmp_path / "x.safetensors", ties="drop")
    assert done["ties"][0]["done"] == "dropped"


def test_a_list_has_no_gaps(tmp_path):
    weight = torch.ones(3)
    with pytest.raises(ValueError, match="stands in a list"):
        haulway.save({"l": [weight, weight]}, tmp_path / "x.tensors",
                     ties="drop")


def test_torch_keeps_them(tmp_path):
    haulway.save(tied(), tmp_path / "x.pt", ties="keep")
    loaded = haulway.load(tmp_path / "x.pt")
    assert loaded["head"].data_ptr() == loaded["embed"].data_ptr()
