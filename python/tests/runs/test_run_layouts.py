"""haulway.latest and the verb: the newest whole checkpoint of ten layouts."""

import json
import os
import pathlib
import pickle
import random
import shutil

import pytest
import torch

import haulway
from run_folders import DATA, LAST, LAYOUTS, cut, flip, put

STEPS = (8, 9, 10)


def written(layout, root, steps=STEPS):
    return [str(LAYOUTS[layout](root, step)) for step in steps]


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return request.param


def test_numbers_are_compared_as_numbers(layout, tmp_path):
    paths = written(layout, tmp_path, (10, 8, 9))
    if layout in ("megatron", "verl", "deepspeed"):
        written(layout, tmp_path, (10,))  # The pointer names the last one.
    for verified in (True, "sizes"):
        found = haulway.latest(tmp_path, verified=verified)
        assert (found.path, found.step, found.layout) == (paths[0], 10, layout)
        assert found.good and found.reason is None and found.skipped == []
        assert found.bytes > 0
    assert haulway.latest(tmp_path, layout=layout).path == paths[0]


def test_one_without_its_last_file_is_passed_over(layout, tmp_path):
    paths = written(layout, tmp_path)
    if layout == "nemo":
        put(paths[2].removesuffix(".ckpt") + "-unfinished", "")
    elif layout == "lightning":
        cut(paths[2])
    else:
        os.remove(os.path.join(paths[2], LAST[layout]))
    for verified in (True, "sizes"):
        found = haulway.latest(tmp_path, verified=verified)
        assert (found.path, found.step) == (paths[1], 9)
        [skipped] = found.skipped
        assert (skipped.path, skipped.step) == (paths[2], 10)
        last = LAST.get(layout, "").rpartition("/")[2].removeprefix("bf16_")
        assert last in skipped.reason and skipped.reason


@pytest.mark.parametrize("left", [0.5, 0])
@pytest.mark.parametrize("layout", DATA)
def test_one_with_a_cut_file_is_passed_over(layout, left, tmp_path):
    paths = written(layout, tmp_path)
    cut(os.path.join(paths[2], DATA[layout]) if DATA[layout] else paths[2], left)
    found = haulway.latest(tmp_path)
    assert found.path == paths[1] and found.skipped[0].path == paths[2]


DESTROYED = {
    "zeros": lambda data: bytes(4096),  # What a power cut leaves.
    "cut to 8": lambda data: data[:8],
    "cut to 4": lambda data: data[:4],
    "a page": lambda data: b"<!DOCTYPE html><html>Not found.</html>.",
    "random": lambda data: random.Random(5).randbytes(4096),
    "begins as a pickle": lambda data: b"\x80\x04" + bytes(4094),
}


@pytest.mark.parametrize("what", DESTROYED)
@pytest.mark.parametrize("layout, name", [
    ("trainer", "model.safetensors"), ("trainer", "optimizer.pt"),
    ("trainer", "scheduler.pt"), ("trainer", "rng_state_1.pth"),
    ("trainer", "training_args.bin"), ("lightning", ""), ("nemo", ""),
    ("accelerate", "model.safetensors"), ("accelerate", "optimizer.bin"),
    ("accelerate", "random_states_0.pkl"), ("megatron", "common.pt"),
    ("verl", "actor/optim_world_size_2_rank_1.pt"),
    ("deepspeed", "mp_rank_00_model_states.pt"), ("torchtitan", ".metadata"),
])
def test_a_file_of_no_format_is_passed_over(layout, name, what, tmp_path):
    paths = written(layout, tmp_path)
    file = pathlib.Path(paths[2], name) if name else pathlib.Path(paths[2])
    file.write_bytes(DESTROYED[what](file.read_bytes()))
    for verified in (True, "sizes"):
        found = haulway.latest(tmp_path, verified=verified)
        assert found.path == paths[1]
        assert (found.skipped[0].path, found.skipped[0].step) == (paths[2], 10)
        assert file.name in found.skipped[0].reason
    report = haulway.prune(tmp_path, 1)
    assert report.removed == paths[:1] and report.kept == paths[1:]


def test_zeros_in_a_part_are_seen(tmp_path):
    paths = written("torchtitan", tmp_path / "dcp")
    with open(os.path.join(paths[2], "__0_0.distcp"), "r+b") as file:
        file.write(bytes(os.fstat(file.fileno()).st_size))
    assert haulway.latest(tmp_path / "dcp").path == paths[1]
    paths = written("trainer", tmp_path)
    folder = tmp_path / "checkpoint-10"
    os.remove(folder / "model.safetensors")
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name, tensor in zip(names, "ab", strict=True):
        haulway.save({tensor: torch.ones(8)}, folder / name)
    put(folder / "model.safetensors.index.json", {
        "metadata": {}, "weight_map": dict(zip("ab", names, strict=True))})
    assert haulway.latest(tmp_path).path == paths[2]
    (folder / names[1]).write_bytes(bytes(4096))
    for verified in (True, "sizes"):
        found = haulway.latest(tmp_path, verified=verified)
        assert found.path == paths[1] and names[1] in found.skipped[0].reason
    os.remove(folder / "model.safetensors.index.json")
    assert haulway.latest(tmp_path).path == paths[1]


def test_a_pickle_that_is_no_zip_is_whole(tmp_path):
    paths = written("trainer", tmp_path)
    folder = pathlib.Path(paths[2])
    torch.save({"x": torch.ones(8)}, folder / "optimizer.pt",
               _use_new_zipfile_serialization=False)
    for protocol in range(2, 6):
        data = pickle.dumps({"lr": 0.1}, protocol)
        for name in ("training_args.bin", "state.pkl", "scheduler.pt"):
            (folder / name).write_bytes(data)
        for verified in (True, "sizes"):
            found = haulway.latest(tmp_path, verified=verified)
            assert (found.path, found.skipped) == (paths[2], [])
    (folder / "state.pkl").write_bytes(data[:-1])
    found = haulway.latest(tmp_path)
    assert found.path == paths[1]
    assert "state.pkl" in found.skipped[0].reason


@pytest.mark.parametrize("layout", LAST)  # Others are files.
def test_an_empty_folder_is_passed_over(layout, tmp_path):
    paths = written(layout, tmp_path)
    shutil.rmtree(paths[2])
    os.mkdir(paths[2])
    found = haulway.latest(tmp_path)
    assert found.path == paths[1]
    assert found.skipped[0].path == paths[2]


def test_nothing_good_and_nothing_there(layout, tmp_path, run):
    done = run("latest", tmp_path, code=3)
    assert done.stdout == "" and "no checkpoint" in done.stderr
    assert haulway.latest(tmp_path) is None
    assert haulway.latest(tmp_path / "none") is None
    done = run("latest", tmp_path / "none", code=3)
    assert "there is no such folder" in done.stderr
    paths = written(layout, tmp_path, (1, 2))
    good = run("latest", tmp_path, code=0)
    assert good.stdout == f"{paths[1]}\n"
    for path in paths:
        if os.path.isfile(path):
            cut(path, 0)
        else:
            os.remove(os.path.join(path, LAST[layout]))
    done = run("latest", tmp_path, code=1)
    assert done.stdout == ""
    assert all(os.path.basename(path) in done.stderr for path in paths)
    told = json.loads(run("latest", tmp_path, "--json", code=1).stdout)
    assert told["path"] is None
    # Without any manifest, the names are torchtitan's.
    assert told["layout"] == layout.replace("haulway", "torchtitan")
    assert len(told["skipped"]) >= 2
    with pytest.raises(haulway.CorruptError, match="no checkpoint of the run"):
        haulway.latest(tmp_path)


def test_the_verb_prints_json(tmp_path, run):
    paths = written("trainer", tmp_path)
    os.remove(os.path.join(paths[2], "trainer_state.json"))
    told = json.loads(run("latest", tmp_path, "--json", "--sizes").stdout)
    assert told == {
        "path": paths[1], "step": 9, "layout": "trainer", "verified": False,
        "skipped": [{"path": paths[2], "step": 10,
                     "reason": "lacks trainer_state.json"}]}
    assert json.loads(run("latest", tmp_path, "--json").stdout)["verified"]
    done = run("latest", tmp_path)
    assert done.stdout == f"{paths[1]}\n" and "lacks trainer_state" in done.stderr
    run("latest", tmp_path, "--layout", "keras", code=4)
    with pytest.raises(haulway.InvalidArgumentError, match="layout"):
        haulway.latest(tmp_path, layout="keras")


@pytest.mark.parametrize("layout, name, of", [
    ("megatron", "latest_checkpointed_iteration.txt", str),
    ("verl", "latest_checkpointed_iteration.txt", str),
    ("deepspeed", "latest", "global_step{}".format),
])
def test_pointers(layout, name, of, tmp_path):
    paths = written(layout, tmp_path)
    pointer = tmp_path / name
    # Behind: what is newer was not committed.
    pointer.write_text(of(9))
    found = haulway.latest(tmp_path)
    assert found.path == paths[1] and name in found.skipped[0].reason
    for text in ("", of(11), "../../etc", "x\n" * 5000):
        pointer.write_text(text)
        found = haulway.latest(tmp_path)
        assert found.path == paths[2] and found.skipped[0].path == str(pointer)
    pointer.unlink()
    found = haulway.latest(tmp_path)
    assert found.path == paths[2] and "is not there" in found.skipped[0].reason


def test_the_state_of_a_trainer_is_of_its_step(tmp_path):
    paths = written("trainer", tmp_path)
    put(tmp_path / "checkpoint-10/trainer_state.json", {"global_step": 9})
    found = haulway.latest(tmp_path)
    assert found.path == paths[1] and "step 9" in found.skipped[0].reason


@pytest.mark.parametrize("name", [
    "rng_state_0.pth", "optimizer.pt", "model.safetensors"])
def test_a_trainer_needs_all_of_its_files(name, tmp_path):
    paths = written("trainer", tmp_path)
    os.remove(os.path.join(paths[2], name))
    assert haulway.latest(tmp_path).path == paths[1]


def test_a_trainer_needs_every_shard_of_the_model(tmp_path):
    paths = written("trainer", tmp_path)
    folder = tmp_path / "checkpoint-10"
    os.remove(folder / "model.safetensors")
    put(folder / "model-00001-of-00002.safetensors")
    put(folder / "model.safetensors.index.json", {"weight_map": {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors"}})
    found = haulway.latest(tmp_path, verified="sizes")
    assert found.path == paths[1]
    assert "model-00002-of-00002" in found.skipped[0].reason
    put(folder / "model-00002-of-00002.safetensors")
    assert haulway.latest(tmp_path, verified="sizes").path == paths[2]


def test_lightning_reads_the_step_of_last(tmp_path):
    paths = written("lightning", tmp_path)
    put(tmp_path / "last.ckpt", {"global_step": 11})
    found = haulway.latest(tmp_path)
    assert found.path == str(tmp_path / "last.ckpt") and found.step == 11
    cut(tmp_path / "last.ckpt")
    found = haulway.latest(tmp_path)
    assert found.path == paths[2]
    assert found.skipped[0].path == str(tmp_path / "last.ckpt")
    # Of one step, the one that was saved later.
    shutil.copy(paths[2], tmp_path / "epoch=0-step=10-v1.ckpt")
    os.remove(tmp_path / "last.ckpt")
    os.symlink(paths[2], tmp_path / "last.ckpt")
    assert haulway.latest(tmp_path).path.endswith("step=10-v1.ckpt")


def test_a_damaged_byte_is_seen_only_with_digests(tmp_path):
    paths = written("haulway", tmp_path)
    flip(tmp_path / "step-10/model.pt")
    assert haulway.latest(tmp_path, verified="sizes").path == paths[2]
    found = haulway.latest(tmp_path)
    assert found.path == paths[1] and "digest" in found.skipped[0].reason


def test_the_folder_of_accelerate_may_be_given(tmp_path):
    paths = written("accelerate", tmp_path)
    assert haulway.latest(tmp_path / "checkpoints").path == paths[2]


def test_a_tag_of_deepspeed_may_have_any_name(tmp_path):
    paths = written("deepspeed", tmp_path)
    os.rename(paths[0], tmp_path / "best")
    (tmp_path / "latest").write_text("best")
    assert haulway.latest(tmp_path).path == str(tmp_path / "best")


def test_a_folder_may_be_a_link_and_a_file_may_not_be_a_pipe(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    written("torchtitan", elsewhere)
    here = tmp_path / "run"
    here.mkdir()
    os.symlink(elsewhere / "step-9", here / "step-9")
    os.symlink(elsewhere / "nothing", here / "step-11")
    assert haulway.latest(here).step == 9
    os.mkfifo(elsewhere / "step-9" / "pipe")
    with pytest.raises(haulway.CorruptError, match="not a file"):
        haulway.latest(here)


def test_a_foreign_ckpt_is_passed_over(tmp_path, run):
    paths = written("lightning", tmp_path)
    foreign = tmp_path / "vocabulary.ckpt"
    foreign.write_text("This is no checkpoint.")
    found = haulway.latest(tmp_path)
    assert found.path == paths[2]
    assert [one.path for one in found.skipped] == [str(foreign)]
    assert run("latest", tmp_path).stdout == f"{paths[2]}\n"
    report = haulway.prune(tmp_path, 1)
    assert report.removed == paths[1::-1] and foreign.exists()


def test_a_model_without_a_step_is_no_step_of_the_run(tmp_path):
    model = tmp_path / "vae-base.ckpt"
    put(model, {"state_dict": {"w": torch.ones(8)}})
    assert haulway.latest(tmp_path).path == str(model)  # There is nothing else.
    paths = written("lightning", tmp_path)
    assert haulway.latest(tmp_path).path == paths[2]
    for path in paths:
        cut(path)
    with pytest.raises(haulway.CorruptError, match="no checkpoint of the run"):
        haulway.latest(tmp_path)
