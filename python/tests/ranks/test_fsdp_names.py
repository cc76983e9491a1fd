"""Files of FSDP as accelerate names them, flat parameters, and Megatron's older
folders."""

import shutil

import numpy
import pytest

import haulway
from rank_files import plain, write
from rank_goldens import expected, folder, found


def named(tmp_path, stem):
    """Returns a folder of the golden's files under accelerate's names."""
    work = tmp_path / stem
    work.mkdir()
    for rank in range(2):
        shutil.copy(folder("fsdp1_2") / f"model_world_size_2_rank_{rank}.pt",
                    work / f"{stem}_rank{rank}.bin")
    return work


@pytest.mark.parametrize("stem", ["pytorch_model_fsdp", "pytorch_model_fsdp_0"])
def test_accelerates_names_are_of_ranks(stem, tmp_path, run):
    work = named(tmp_path, stem)
    for rank in range(2):
        write(work / f"optimizer_0_rank{rank}.bin",
              {"state": {0: {"step": plain(numpy.ones(1, "f4"))}}})
    assert found(work) == expected("fsdp1_2")
    assert found(work, part=stem) == expected("fsdp1_2")
    state = haulway.load(work, part="optimizer_0")
    assert state["state"][0]["step"].item() == 1
    run("convert", work, tmp_path / "m.safetensors")
    assert found(tmp_path / "m.safetensors") == expected("fsdp1_2")
    with pytest.raises(haulway.NotFoundError, match="'optimizer_0'"):
        haulway.open(work, part="optimizer_1")


def test_a_missing_rank_is_named(tmp_path):
    work = named(tmp_path, "pytorch_model_fsdp_0")
    (work / "pytorch_model_fsdp_0_rank0.bin").unlink()
    with pytest.raises(haulway.MismatchError,
                       match=r"rank 0 of 2.*'pytorch_model_fsdp_0_rank0.bin'"):
        haulway.open(work)
    work = named(tmp_path, "pytorch_model_fsdp")
    # The names do not say that there is another one; the shards do.
    (work / "pytorch_model_fsdp_rank1.bin").unlink()
    with pytest.raises(haulway.CorruptError, match="leave a hole"):
        haulway.open(work)


@pytest.mark.parametrize("name", ["_flat_param", "layers.0._flat_param"])
def test_flat_parameters_are_refused_by_name(name, tmp_path, run):
    for rank in range(2):
        write(tmp_path / f"pytorch_model_fsdp_rank{rank}.bin",
              {name: plain(numpy.arange(4, dtype="f4") + rank)})
    with pytest.raises(haulway.UnsupportedError,
                       match=f"LOCAL_STATE_DICT.*{name}"):
        haulway.open(tmp_path)
    run("verify", tmp_path, code=2)


def test_megatrons_older_folder_is_named(tmp_path, run):
    for rank in range(2):
        part = tmp_path / "iter_0000010" / f"mp_rank_0{rank}"
        part.mkdir(parents=True)
        write(part / "model_optim_rng.pt",
              {"model": {"w": plain(numpy.ones((2, 2), "f4"))}})
    with pytest.raises(haulway.UnsupportedError,
                       match="Megatron's older format.*mp_rank_00"):
        haulway.open(tmp_path / "iter_0000010")
    assert haulway.load(part / "model_optim_rng.pt")["model"]["w"].sum() == 4
    run("convert", tmp_path / "iter_0000010", "out.pt", code=2)
