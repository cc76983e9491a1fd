"""Checkpoints of DeepSpeed's ZeRO."""

import json
import shutil

import pytest
import torch

import haulway
from rank_goldens import copy, expected, folder, found

KINDS = ["ds2_2", "ds3_2"]


@pytest.mark.parametrize("kind", KINDS)
def test_master_weights_are_those_of_zero_to_fp32(kind):
    assert found(folder(kind)) == expected(kind)
    # The folder of the tag alone.
    assert found(folder(kind) / "global_step2") == expected(kind)
    state = haulway.load(folder(kind), verify=True)
    assert state["head.weight"].data_ptr() == state["emb.weight"].data_ptr()
    assert state["count"].dtype == torch.int64
    assert haulway.verify(folder(kind) / "global_step2")


@pytest.mark.parametrize("kind", KINDS)
def test_convert_and_info(kind, tmp_path, run):
    run("convert", folder(kind), "out.safetensors", "--ties", "copy")
    assert found(tmp_path / "out.safetensors") == expected(kind)
    info = json.loads(run("info", "--json", folder(kind)).stdout)
    assert info["format"] == "deepspeed"
    assert info["container"]["zero_stage"] == int(kind[2])
    assert info["container"]["world_size"] == 2
    assert info["container"]["ds_version"] == "0.19.8"


def test_weights_of_the_model():
    state = haulway.load(folder("ds2_2"), weights="model")
    want = haulway.load(folder("ds2_2") / "global_step2"
                        / "mp_rank_00_model_states.pt")["module"]
    assert state.keys() == want.keys()
    for name, value in want.items():
        assert torch.equal(state[name], value)
    assert state["a.weight"].dtype == torch.bfloat16
    with pytest.raises(haulway.Error, match="stage 3 saves no weights"):
        haulway.open(folder("ds3_2"), weights="model")


@pytest.mark.parametrize("kind", KINDS)
def test_state_of_the_optimizer(kind):
    state = haulway.load(folder(kind), part="optim")
    weights = haulway.load(folder(kind))
    for name in ("a.weight", "norm.bias", "head.weight", "five"):
        for one in ("exp_avg", "exp_avg_sq"):
            assert state[f"state.{name}.{one}"].shape == weights[name].shape
    assert (state["state.a.weight.exp_avg_sq"] >= 0).all()


def test_the_stages_have_the_same_optimizer():
    """Both runs trained the same model on the same data."""
    two = haulway.load(folder("ds2_2"), part="optim")
    three = haulway.load(folder("ds3_2"), part="optim")
    assert two.keys() == three.keys()


@pytest.mark.parametrize("world", [1, 3, 50])
@pytest.mark.parametrize("counts", [int, list])
def test_stage_1_in_32_bits(world, counts, tmp_path):
    """The same weights as those of stage 2, cut for other numbers of
    processes."""
    weights = haulway.load(folder("ds2_2"))
    model = torch.load(
        folder("ds2_2") / "global_step2/mp_rank_00_model_states.pt",
        weights_only=True)
    model["module"] = {
        name: one.float() if one.is_floating_point() else one
        for name, one in model["module"].items()}
    tag = tmp_path / "run" / "global_step2"
    tag.mkdir(parents=True)
    (tmp_path / "run" / "latest").write_text("global_step2")
    torch.save(model, tag / "mp_rank_00_model_states.pt")
    groups = [torch.cat([weights[name].reshape(-1) for name in shapes])
              for shapes in model["param_shapes"]]
    for rank in range(world):
        parts = []
        for vector in groups:
            part = -(-len(vector) // (2 * world)) * 2
            parts.append(vector[part * rank:][:part].clone())
        torch.save({"optimizer_state_dict": {
            "zero_stage": 1,
            "partition_count": world if counts is int else [world] * len(groups),
            "single_partition_of_fp32_groups": parts,
            "base_optimizer_state": {"state": {
                g: {"exp_avg": 2 * part} for g, part in enumerate(parts)}},
        }}, tag / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    assert found(tmp_path / "run") == expected("ds2_2")
    moments = haulway.load(tmp_path / "run", part="optim")
    for shapes in model["param_shapes"]:
        for name in shapes:
            assert torch.equal(moments[f"state.{name}.exp_avg"],
                               2 * weights[name])
    info = haulway.open(tmp_path / "run").container
    assert info["zero_stage"] == 1 and info["world_size"] == world


@pytest.mark.parametrize("kind", KINDS)
def test_missing_and_surplus_files(kind, tmp_path):
    work = copy(kind, tmp_path / "work")
    tag = work / "global_step2"
    last = tag / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    shutil.copy(last, tag / last.name.replace("rank_1", "rank_2"))
    with pytest.raises(haulway.MismatchError,
                       match="of 2 processes: found 3 optimizer files"):
        haulway.open(work)
    (tag / last.name.replace("rank_1", "rank_2")).unlink()
    last.unlink()
    with pytest.raises(haulway.MismatchError,
                       match="of 2 processes: found 1 optimizer files"):
        haulway.open(work)
    (tag / last.name.replace("rank_1", "rank_0")).rename(last)
    with pytest.raises(haulway.MismatchError,
                       match="optimizer file of rank 0 is missing"):
        haulway.open(work)


@pytest.mark.parametrize(("text", "error"), [
    ("../ds3_2", haulway.CorruptError), ("/tmp", haulway.CorruptError),
    ("", haulway.CorruptError), (".", haulway.CorruptError),
    ("global_step3", haulway.Error),
])
def test_latest_that_lies(text, error, tmp_path):
    work = copy("ds2_2", tmp_path / "work")
    (work / "latest").chmod(0o644)
    (work / "latest").write_text(text)
    with pytest.raises(error, match="latest"):
        haulway.open(work)


def test_other_parallelism_is_refused_by_name(tmp_path):
    work = copy("ds2_2", tmp_path / "work")
    name = "layer_00-model_00-model_states.pt"
    shutil.copy(work / "global_step2/mp_rank_00_model_states.pt",
                work / "global_step2" / name)
    with pytest.raises(haulway.Error, match=f"parallelism.*{name}"):
        haulway.open(work)


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_beyond_the_partitions(kind, tmp_path):
    work = copy(kind, tmp_path / "work")
    model = next(work.glob("global_step2/zero_pp_rank_0_*_model_states.pt"), None) or (
        work / "global_step2/mp_rank_00_model_states.pt")
    state = torch.load(model, weights_only=True)
    state["param_shapes"][0]["a.weight"] = torch.Size([1000, 6])
    model.chmod(0o644)
    torch.save(state, model)
    with pytest.raises(haulway.CorruptError, match="elements"):
        haulway.open(work)


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_parameters_keep_their_dtype(kind, tmp_path):
    """Takes a group's last parameter out of the vectors' reach: frozen."""
    work = copy(kind, tmp_path / "work")
    frozen = torch.arange(7.).to(torch.bfloat16)
    models = sorted(work.glob("global_step2/*_model_states.pt"))
    for rank, path in enumerate(models):
        state = torch.load(path, weights_only=True)
        state["frozen_param_shapes"] = {"ice": torch.Size([7])}
        part = torch.cat([frozen, torch.zeros(1, dtype=frozen.dtype)])
        state["frozen_param_fragments"] = {
            "ice": frozen if len(models) == 1 else part[rank * 4:][:4].clone()}
        path.chmod(0o644)
        torch.save(state, path)
    got = haulway.load(work)
    assert torch.equal(got["ice"], frozen)
    assert got["a.weight"].dtype == torch.float32
