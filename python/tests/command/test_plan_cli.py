"""haulway plan, and all kinds of slices for it and for haulway cat."""

import json

import numpy as np
import pytest
import torch

import haulway


@pytest.fixture(autouse=True)
def checkpoint(tmp_path):
    torch.save(
        {
            "big": torch.arange(700_000.0).reshape(700, 1000),
            "small": torch.arange(12).reshape(3, 4),
            "a=b": torch.ones(3),
            "meta": torch.ones(3, device="meta"),
        },
        tmp_path / "x.pt",
    )


def test_plan_is_that_of_the_library(run, tmp_path):
    plan = json.loads(run("plan", "x.pt", "--json").stdout)
    library = haulway.plan_reads(tmp_path / "x.pt")
    assert plan["file"] == "x.pt"
    assert [(r["offset"], r["bytes"]) for r in plan["reads"]] == library.reads
    assert plan["tensor_bytes"] == library.tensor_bytes == 2_800_108
    assert plan["read_bytes"] == library.read_bytes
    assert sum(r["bytes"] for r in plan["reads"]) == plan["read_bytes"]


def test_plan_of_a_slice_reads_only_that(run):
    plan = json.loads(
        run("plan", "x.pt", "--slice", "big=100:187,:", "--json").stdout
    )
    assert plan["tensor_bytes"] == 87 * 4000
    assert plan["read_bytes"] < 87 * 4000 + 1000
    # The slice applies to its tensor only, not to the selected tensors.
    both = json.loads(
        run("plan", "x.pt", "--include", "small", "--slice", "big=0", "--slice",
            "a=b=1:", "--json").stdout
    )
    assert both["tensor_bytes"] == 4000 + 8 + 96


def test_plan_filters_and_prints_a_table(run):
    told = run("plan", "x.pt", "--exclude", "big", "--bytes").stdout
    assert told.startswith("read   offset  bytes")
    assert "3 tensors, 108; 1 read" in told
    run("plan", "x.pt", "--include", "none", code=3)


def test_plan_says_what_is_wrong(run):
    assert "no tensor 'none'" in run(
        "plan", "x.pt", "--slice", "none=0", code=3
    ).stderr
    for wrong in ("big=700", "big=0:1:0", "big=0,0,0", "big"):
        told = run("plan", "x.pt", "--slice", wrong, "--json", code=4)
        assert "slice" in told.stderr
        assert json.loads(told.stdout)["error"]["code"] == "kInvalidArgument"


@pytest.mark.parametrize(
    "text, index",
    [
        ("::-1", np.s_[::-1]),
        ("2,::-2", np.s_[2, ::-2]),
        ("-1", np.s_[-1]),
        ("...,-1", np.s_[..., -1]),
        ("2:0:-1,1:3", np.s_[2:0:-1, 1:3]),
        ("5:", np.s_[5:]),
        ("::-9223372036854775808", np.s_[:: -(2**63)]),
        (":,::9223372036854775807", np.s_[:, :: 2**63 - 1]),
    ],
)
def test_cat_slices_as_numpy_does(run, tmp_path, text, index):
    run("cat", "x.pt", "small", "--slice", text, "--out", "x.npy")
    wanted = np.arange(12).reshape(3, 4)[index]
    found = np.load(tmp_path / "x.npy")
    assert found.shape == wanted.shape and (found == wanted).all()


def test_cat_does_not_fill_memory_with_one_element(run, tmp_path):
    torch.save({"t": torch.zeros(1).expand(1 << 40)}, tmp_path / "huge.pt")
    told = run("cat", "huge.pt", "t", code=1)
    assert "repeats a storage of 4" in told.stderr
    assert run("cat", "huge.pt", "t", "--slice", "5:7").stdout == "[0, 0]\n"
