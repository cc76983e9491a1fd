"""haulway.prune and the verb: what stays, whatever is there."""

import json
import os
import subprocess
import sys

import pytest
import torch

import haulway
from run_folders import LAST, LAYOUTS, flip, put

STEPS = (1, 2, 9, 10)


def written(layout, root, steps=STEPS):
    return [str(LAYOUTS[layout](root, step)) for step in steps]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_newest_good_ones_stay(layout, tmp_path, run):
    paths = written(layout, tmp_path)
    told = json.loads(
        run("prune", tmp_path, "--keep", 2, "--dry-run", "--json").stdout)
    assert told == {"removed": paths[1::-1], "kept": paths[2:], "refused": [],
                    "failed": False}
    assert all(map(os.path.exists, paths))
    done = run("prune", tmp_path, "--keep", 2)
    assert done.stdout.splitlines() == [
        f"removed {paths[1]}", f"removed {paths[0]}", f"kept {paths[2]}",
        f"kept {paths[3]}"]
    assert [os.path.exists(path) for path in paths] == [False, False, True, True]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
    assert haulway.latest(tmp_path).path == paths[3]
    assert haulway.prune(tmp_path, 5).removed == []


@pytest.mark.parametrize("layout", LAST)
def test_broken_ones_do_not_count(layout, tmp_path):
    paths = written(layout, tmp_path)
    for broken in (paths[1], paths[3]):
        os.remove(os.path.join(broken, LAST[layout]))
    report = haulway.prune(tmp_path, 1)
    # The newest may be in the making.
    assert report.kept == [paths[2], paths[3]]
    gone = [path for path in paths if not os.path.exists(path)]
    refused = [one.path for one in report.refused]
    assert sorted(report.removed + refused) == sorted(paths[:2])
    assert gone == sorted(report.removed)
    # Without a manifest it may be another program's.
    assert refused == ([paths[1]] if layout == "haulway" else [])


def test_nothing_goes_if_nothing_is_good(tmp_path):
    paths = written("haulway", tmp_path)
    for path in paths:
        flip(os.path.join(path, "model.pt"))
    report = haulway.prune(tmp_path, 1)
    assert report.removed == [] and report.kept == paths
    assert all(map(os.path.exists, paths))


def test_one_that_stays_is_verified(tmp_path):
    paths = written("haulway", tmp_path)
    for path in paths[2:]:
        flip(os.path.join(path, "model.pt"))  # Its size stays right.
    assert haulway.prune(tmp_path, 1).kept == paths[1:]
    assert haulway.load(paths[1])["step"] == 2


def test_fewer_than_one_is_refused(tmp_path, run):
    written("haulway", tmp_path, (1,))
    for keep in ("0", "-1", "many"):
        run("prune", tmp_path, "--keep", keep, code=4)
    run("prune", tmp_path, code=4)
    for keep in (0, -1):
        with pytest.raises(haulway.InvalidArgumentError, match="keep"):
            haulway.prune(tmp_path, keep)
    assert haulway.prune(tmp_path, 1).to_dict() == {
        "removed": [], "kept": [str(tmp_path / "step-1")], "refused": [],
        "failed": False}


def test_a_folder_that_is_not_there_is_told(tmp_path, run):
    with pytest.raises(haulway.NotFoundError, match="no such folder"):
        haulway.prune(tmp_path / "none", 1)
    done = run("prune", tmp_path / "none", "--keep", 1, code=3)
    assert "there is no such folder" in done.stderr
    assert haulway.prune(tmp_path, 1).removed == []


def test_a_removal_that_fails_is_no_success(tmp_path, run):
    paths = written("haulway", tmp_path / "run", (1, 2))
    rights = {}
    if os.geteuid() == 0:
        rights = {"user": 65534, "group": 65534, "extra_groups": []}
        for folder in (tmp_path, *tmp_path.parents[:-1]):
            folder.chmod(folder.stat().st_mode | 0o755)
    for folder in (*paths, tmp_path / "run"):
        os.chmod(folder, 0o555)
    for name in ("model.pt", "haulway.json"):
        os.chmod(os.path.join(paths[1], name), 0o444)
    done = run("prune", tmp_path / "run", "--keep", 1, code=1, **rights)
    assert f"refused {paths[0]}: " in done.stdout
    assert "Permission denied" in done.stdout
    told = json.loads(run("prune", tmp_path / "run", "--keep", 1, "--json",
                          code=1, **rights).stdout)
    assert told["failed"] and os.path.exists(paths[0])
    for folder in (*paths, tmp_path / "run"):
        os.chmod(folder, 0o755)
    assert not haulway.prune(tmp_path / "run", 1).failed


def test_no_link_is_followed(tmp_path):
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    written("torchtitan", elsewhere)
    written("torchtitan", run, (3, 4))
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    os.symlink(elsewhere / "step-1", run / "step-1")
    os.symlink(precious, run / "step-3" / "inside")
    report = haulway.prune(run, 1)
    assert report.removed == [str(run / "step-3")]
    [refused] = report.refused
    assert refused.path == str(run / "step-1") and "link" in refused.reason
    assert (elsewhere / "step-1" / ".metadata").exists()
    assert (precious / "file").exists()


def test_what_a_link_leads_to_stays(tmp_path):
    paths = written("lightning", tmp_path)
    os.symlink(os.path.basename(paths[0]), tmp_path / "best")
    os.symlink(paths[1], tmp_path / "last.ckpt")
    report = haulway.prune(tmp_path, 1)
    assert {one.path for one in report.refused} >= {paths[0], paths[1]}
    assert os.path.exists(tmp_path / "best")
    assert os.path.exists(tmp_path / "last.ckpt")


def test_a_model_whose_name_has_no_step_stays(tmp_path, run):
    paths = written("lightning", tmp_path)
    models = [tmp_path / "final.ckpt", tmp_path / "vae-base.ckpt",
              tmp_path / "v1-5.ckpt"]
    for model in models:
        put(model, {"state_dict": {"w": torch.ones(8)}})
    # One that was trained elsewhere, and for longer, does not count.
    put(models[2], {"state_dict": {"w": torch.ones(8)}, "global_step": 470_000})
    report = haulway.prune(tmp_path, 1)
    assert report.removed == paths[2::-1] and report.kept == paths[3:]
    assert sorted(one.path for one in report.refused) == sorted(map(str, models))
    assert {one.reason for one in report.refused} == {"its name has no step"}
    assert all(map(os.path.exists, models))
    os.remove(paths[3])
    told = run("prune", tmp_path, "--keep", 1).stdout.splitlines()
    assert sorted(told) == sorted(
        f"refused {model}: its name has no step" for model in models)


def test_the_last_of_lightning_is_a_step(tmp_path):
    paths = written("lightning", tmp_path)
    last = tmp_path / "last.ckpt"
    put(last, {"global_step": 11})
    assert haulway.prune(tmp_path, 1).kept == [str(last)]
    put(paths[0])
    put(last, {"global_step": 0})
    assert haulway.prune(tmp_path, 1).kept == [paths[0]]
    assert not last.exists()


def test_the_best_of_a_trainer_stays(tmp_path):
    paths = written("trainer", tmp_path)
    for step, best in ((9, 1), (10, 2)):
        put(tmp_path / f"checkpoint-{step}" / "trainer_state.json", {
            "global_step": step,
            "best_model_checkpoint": f"/before/it/moved/checkpoint-{best}"})
    report = haulway.prune(tmp_path, 1)
    assert report.kept == [paths[1], paths[3]]
    assert sorted(report.removed) == sorted([paths[0], paths[2]])
    put(tmp_path / "checkpoint-10" / "trainer_state.json", {
        "global_step": 10, "best_model_checkpoint": None})
    assert haulway.prune(tmp_path, 1).kept == paths[3:]


def test_what_another_program_made_stays(tmp_path):
    paths = written("haulway", tmp_path)
    put(tmp_path / "step-3" / "model.safetensors")
    put(tmp_path / "checkpoint-2" / "model.safetensors")
    (tmp_path / "notes").write_text("x")
    report = haulway.prune(tmp_path, 1)
    assert report.removed == paths[2::-1]
    [refused] = report.refused
    assert refused.path == str(tmp_path / "step-3")
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint-2", "notes", "step-10", "step-3"]


def test_leftovers_go_unless_somebody_uses_them(tmp_path):
    paths = written("haulway", tmp_path)
    for name in (".step-9.tmp-0123", ".step-11.tmp-0123", ".trash-0123"):
        put(tmp_path / name / "model.pt")
    (tmp_path / ".step-8.tmp-0123.lock").touch()
    with haulway.Checkpoints(tmp_path, keep=0) as run:
        with run.writing(5) as folder:
            put(f"{folder}/model.pt")
            haulway.prune(tmp_path, 4)
            left = {name for name in os.listdir(tmp_path) if name[0] == "."}
            own = os.path.basename(folder)
            assert left == {own, f"{own}.lock", ".step-11.tmp-0123"}
    assert os.path.exists(tmp_path / "step-5" / "haulway.json")
    assert haulway.latest(tmp_path).path == paths[3]


KILLED = """
import os, sys, threading, time, signal
sys.path.insert(0, sys.argv[3])
import haulway
print("ready", flush=True)
delay = float(sys.argv[2])
def kill():
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.readline()
threading.Thread(target=kill, daemon=True).start()
haulway.prune(sys.argv[1], 1)
"""


def test_a_kill_leaves_no_half_that_looks_whole(tmp_path):
    """scripts/kill-runs does so a hundred times."""
    for attempt in range(4):
        root = tmp_path / str(attempt)
        paths = written("haulway", root, range(1, 13))
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, root, str(0.0004 * attempt),
             os.path.dirname(os.path.dirname(haulway.__file__))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        child.stdout.readline()
        child.stdin.write("\n")
        child.stdin.flush()
        child.wait()
        for one in haulway.Checkpoints(root, keep=0).list():
            assert one.good, one
            assert haulway.load(one.path)["step"] == one.step
        assert haulway.latest(root).path == paths[-1]
        assert haulway.prune(root, 1).kept == paths[-1:]
        assert os.listdir(root) == ["step-12"]
