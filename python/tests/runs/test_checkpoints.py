"""haulway.Checkpoints: saving, loading, and what is kept."""

import hashlib
import json
import os
import pathlib
import threading

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import haulway
from run_folders import flip, put, state, torchtitan
from torch_versions import needs_no_dist


@pytest.mark.parametrize("format", ["pt", "safetensors", "torch-dcp"])
@pytest.mark.parametrize("ways", ["save", "save_async"])
def test_a_loop(format, ways, tmp_path):
    run = haulway.Checkpoints(tmp_path / "run", keep=2, every=10, format=format)
    assert run.latest() is None and run.list() == []
    with pytest.raises(haulway.NotFoundError, match="save one first"):
        run.load()
    weights = torch.zeros(1000)
    for step in range(1, 51):
        weights += 1
        if run.due(step):
            made = getattr(run, ways)(
                {"w": weights}, step, metadata={"loss": 1 / step})
    run.wait()
    made = made.result() if ways == "save_async" else made
    found = run.latest()
    assert (found.step, found.path) == (50, str(tmp_path / "run" / "step-50"))
    assert made.path == found.path and made.bytes == found.bytes - os.path.getsize(
        tmp_path / "run/step-50/haulway.json")
    assert found.metadata == {"loss": 0.02} and found.layout == "haulway"
    assert [one.step for one in run.list()] == [40, 50]
    assert all(one.good for one in run.list())
    assert torch.equal(run.load()["w"], torch.full((1000,), 50.0))
    assert torch.equal(run.load(40)["w"], torch.full((1000,), 40.0))
    with pytest.raises(haulway.NotFoundError, match="of step 10"):
        run.load(10)
    run.close()
    run.close()
    with pytest.raises(haulway.InvalidArgumentError, match="is closed"):
        run.save({}, 60)
    assert sorted(os.listdir(tmp_path / "run")) == ["step-40", "step-50"]


def test_the_manifest_lists_sizes_and_digests(tmp_path):
    with haulway.Checkpoints(tmp_path) as run:
        run.save(state(7), 7, metadata={"loss": 0.5, "none": None})
    stored = json.loads((tmp_path / "step-7/haulway.json").read_text())
    data = (tmp_path / "step-7/model.pt").read_bytes()
    import hashlib

    assert stored.pop("created").endswith("Z")
    assert stored == {
        "version": 1, "step": 7, "format": "pt", "files": {"model.pt": {
            "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}},
        "metadata": {"loss": 0.5, "none": None}}
    assert torch.load(tmp_path / "step-7/model.pt")["step"] == 7


@pytest.mark.parametrize("format", ["pt", "safetensors"])
def test_a_large_step_has_its_digest(format, tmp_path):
    """It is written around the page cache, by several threads."""
    state = {f"w{i}": torch.arange(n, dtype=torch.int64) * 7 + i
             for i, n in enumerate((5_000_001, 3, 131_072, 1_000_003))}
    with haulway.Checkpoints(tmp_path, keep=0, format=format) as run:
        entry = run.save(state, 1)
        assert run.latest().step == 1 and run.latest().skipped == []
    [path] = [one for one in pathlib.Path(entry.path).iterdir()
              if one.suffix != ".json"]
    facts = json.loads((path.parent / "haulway.json").read_text())["files"]
    assert facts[path.name]["sha256"] == hashlib.sha256(
        path.read_bytes()).hexdigest()
    loaded = haulway.load(path)
    assert all(torch.equal(loaded[name], one) for name, one in state.items())


def test_a_step_is_saved_again(tmp_path):
    with haulway.Checkpoints(tmp_path, keep=3) as run:
        for value in (1, 2, 3):
            run.save({"w": torch.full((8,), float(value))}, 5)
        assert run.load()["w"][0] == 3
    assert os.listdir(tmp_path) == ["step-5"]


@pytest.mark.parametrize("format", ["pt", "torch-dcp"])
@pytest.mark.parametrize("what", ["torchtitan", "a folder", "a file", "a link"])
def test_what_another_program_made_is_not_replaced(what, format, tmp_path):
    root, place = tmp_path / "run", tmp_path / "run" / "step-20"
    root.mkdir()
    if what == "torchtitan":
        torchtitan(root, 20)
    elif what == "a folder":
        place.mkdir()
        (place / "precious.txt").write_text("x")
    elif what == "a file":
        place.write_text("x")
    else:
        os.symlink(tmp_path, place)
    before = sorted(root.rglob("*"))
    with haulway.Checkpoints(root, keep=1, format=format) as run:
        for save in (run.save, lambda *more: run.save_async(*more).result()):
            with pytest.raises(haulway.InvalidArgumentError,
                               match="another program made it.*step-20"):
                save({"w": torch.ones(8)}, 20)
        with pytest.raises(haulway.InvalidArgumentError, match="another program"):
            with run.writing(20):
                raise AssertionError("Nothing is to be written.")
        assert sorted(root.rglob("*")) == before
        run.save({"w": torch.ones(8)}, 30)
        run.wait()
    assert os.path.lexists(place)


def test_a_step_that_another_program_makes_meanwhile_stays(tmp_path):
    with haulway.Checkpoints(tmp_path) as run:
        with pytest.raises(haulway.InvalidArgumentError, match="another program"):
            with run.writing(20) as folder:
                put(f"{folder}/model.pt")
                put(tmp_path / "step-20" / "precious.txt", "x")
    assert os.listdir(tmp_path) == ["step-20"]
    assert os.listdir(tmp_path / "step-20") == ["precious.txt"]


def test_a_step_that_goes_back_stays(tmp_path):
    with haulway.Checkpoints(tmp_path, keep=2) as run:
        for step in (10, 20, 30):
            run.save(state(step), step)
        for step, left in ((15, [15, 20, 30]), (16, [16, 20, 30]),
                           (40, [30, 40])):
            entry = run.save(state(step), step)
            run.wait()
            assert entry.good and haulway.load(entry.path)["step"] == step
            assert [one.step for one in run.list()] == left


def test_a_step_that_is_loaded_is_named(tmp_path):
    with haulway.Checkpoints(tmp_path) as run:
        for step in (2, 3):
            run.save(state(step), step)
        flip(tmp_path / "step-3/model.pt")
        with pytest.raises(haulway.CorruptError,
                           match="checkpoint of step 3 is not good: .*digest"):
            run.load(3)
        assert run.load()["step"] == run.load(np.int64(2))["step"] == 2
        for wrong in ("3", 2.0, True):
            with pytest.raises(haulway.InvalidArgumentError, match="step is"):
                run.load(wrong)
        with pytest.raises(haulway.InvalidArgumentError, match="step: .* found -1"):
            run.load(-1)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), np.float64("nan")])
def test_metadata_that_json_has_no_number_for_is_refused(value, tmp_path):
    with haulway.Checkpoints(tmp_path) as run:
        for save in (run.save, run.save_async):
            with pytest.raises(haulway.InvalidArgumentError, match=(
                    r"metadata\['losses'\]\[1\] is (nan|-inf)")):
                save(state(1), 1, metadata={"losses": [1.0, value]})
    assert os.listdir(tmp_path) == []


def test_writing_gives_a_folder(tmp_path):
    with haulway.Checkpoints(tmp_path) as run:
        with run.writing(3, metadata={"epoch": 1}) as folder:
            put(f"{folder}/model.pt", {"w": torch.ones(4)})
            put(f"{folder}/inner/loader.json", {"position": 7})
            assert run.latest() is None
        found = run.latest()
        assert found.step == 3 and found.metadata == {"epoch": 1}
        files = json.loads(pathlib.Path(found.path, "haulway.json").read_text())
        assert sorted(files["files"]) == ["inner/loader.json", "model.pt"]
        with pytest.raises(RuntimeError, match="stop"):
            with run.writing(4) as folder:
                put(f"{folder}/model.pt")
                raise RuntimeError("stop")
        with pytest.raises(haulway.InvalidArgumentError, match="holds no file"):
            with run.writing(4):
                pass
        with pytest.raises(haulway.InvalidArgumentError, match="symbolic link"):
            with run.writing(4) as folder:
                os.symlink("/etc/passwd", f"{folder}/model.pt")
    assert os.listdir(tmp_path) == ["step-3"]


def test_the_state_of_random_numbers_goes_along(tmp_path):
    import random

    with haulway.Checkpoints(tmp_path) as run:
        run.save({
            "torch": torch.get_rng_state(), "python": random.getstate(),
            "numpy": np.random.get_state()[1].copy(),
        }, 1)
        before = (torch.rand(3), random.random())
        loaded = run.load()
    torch.set_rng_state(loaded["torch"])
    random.setstate(loaded["python"])
    assert torch.equal(torch.rand(3), before[0]) and random.random() == before[1]


def test_a_failed_save_leaves_the_run_as_it_was(tmp_path):
    with haulway.Checkpoints(tmp_path) as run:
        run.save(state(1), 1)
        with pytest.raises(haulway.UnsafeError):
            run.save({"w": object()}, 2)
        assert os.listdir(tmp_path) == ["step-1"]
        with pytest.raises(haulway.InvalidArgumentError, match="metadata"):
            run.save(state(2), 2, metadata={"x": object()})
        with pytest.raises(haulway.InvalidArgumentError, match="step"):
            run.save(state(2), -2)
        assert run.latest().step == 1


def test_a_failed_background_save_is_told_once(tmp_path, monkeypatch):
    def broken(*arguments, **more):
        raise haulway.IoError("the disk is full", "kIoError")

    for told_by in ("save", "save_async", "wait", "close"):
        root = tmp_path / told_by
        run = haulway.Checkpoints(root)
        run.save(state(1), 1)
        run.wait()
        with monkeypatch.context() as patch:
            from haulway._writing import save as saving

            patch.setattr(saving, "write", broken)
            run.save_async(state(2), 2)
            from haulway._writing import background

            background.wait([background._last])
        with pytest.raises(haulway.IoError, match="the disk is full"):
            getattr(run, told_by)(*((state(3), 3) if "save" in told_by else ()))
        assert os.listdir(root) == ["step-1"]
        if told_by != "close":
            run.save(state(4), 4)
            run.close()
        assert haulway.latest(root).step == (1 if told_by == "close" else 4)


def test_a_future_that_was_asked_is_not_told_again(tmp_path, monkeypatch):
    from haulway._writing import save as saving

    def broken(*arguments, **more):
        raise haulway.IoError("the disk is full", "kIoError")

    run = haulway.Checkpoints(tmp_path)
    monkeypatch.setattr(saving, "write", broken)
    future = run.save_async(state(2), 2)
    with pytest.raises(haulway.IoError):
        future.result()
    run.close()


def test_background_saves_are_copies_and_one_is_in_flight(tmp_path):
    weights = torch.zeros(1_000_000)
    with haulway.Checkpoints(tmp_path, keep=0) as run:
        futures = []
        for step in range(1, 6):
            weights += 1
            futures.append(run.save_async({"w": weights}, step))
            assert all(future.done() for future in futures[:-1])
        weights += 100
    for step, future in enumerate(futures, start=1):
        loaded = haulway.load(future.result().path)["w"]
        assert loaded.min() == step == loaded.max()


def test_a_removal_that_fails_is_told(tmp_path, monkeypatch):
    run = haulway.Checkpoints(tmp_path, keep=1)
    run.save(state(1), 1)
    run.wait()
    from haulway._writing import runs

    def broken(*arguments):
        raise haulway.PermissionDeniedError("no", "kPermissionDenied")

    monkeypatch.setattr(runs, "_prune", broken)
    run.save(state(2), 2)
    with pytest.raises(haulway.PermissionDeniedError):
        run.wait()
    monkeypatch.undo()
    run.save(state(3), 3)
    run.close()
    assert os.listdir(tmp_path) == ["step-3"]


def test_two_threads_of_two_objects(tmp_path):
    def loop(offset):
        with haulway.Checkpoints(tmp_path, keep=2) as run:
            for step in range(offset, offset + 8):
                run.save(state(step), step)

    threads = [threading.Thread(target=loop, args=(1 + 4 * n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = haulway.latest(tmp_path)
    assert found.step == 16 and haulway.load(found.path)["step"] == 16


@needs_no_dist
def test_dcp_is_read_by_torch(tmp_path):
    with haulway.Checkpoints(tmp_path, format="torch-dcp") as run:
        found = run.save({"w": torch.arange(10.0), "n": 3}, 1)
    loaded = {"w": torch.zeros(10), "n": 0}
    dcp.load(loaded, checkpoint_id=found.path, no_dist=True)
    assert torch.equal(loaded["w"], torch.arange(10.0)) and loaded["n"] == 3


def test_due():
    run = haulway.Checkpoints("run", every=5)
    assert [step for step in range(12) if run.due(step)] == [5, 10]
    assert [step for step in range(3) if haulway.Checkpoints("x").due(step)] == [
        1, 2]


@pytest.mark.parametrize("wrong", [
    {"format": "gguf"}, {"keep": -1}, {"keep": "many"}, {"every": 0},
    {"durability": "some"}, {"verify": 1}, {"stray": 1},
    {"format": "pt", "group": 3}, {"format": "safetensors", "compact": True},
])
def test_wrong_arguments(wrong):
    with pytest.raises((haulway.Error, TypeError)):
        haulway.Checkpoints("run", **wrong)


def manifest_of(files, **more):
    return json.dumps({"version": 1, "step": 2, "format": "pt", "files": files,
                       **more})


ONE = {"bytes": 1, "sha256": "0" * 64}
HOSTILE = {
    "duplicate file": manifest_of({"a": ONE, "b": ONE}).replace('"b"', '"a"'),
    "duplicate key": manifest_of({"a": ONE}, steq=2).replace("steq", "step"),
    "no files": manifest_of({}),
    "other step": manifest_of({"a": ONE}, step=1),
    "deep": '{"version":1,"metadata":' + "[" * 100_000 + "]" * 100_000 + "}",
    "a list": "[]", "empty": "", "cut": '{"version": 1, "st',
    "not text": manifest_of({"a": ONE}, format="\ud800"),
    "negative": manifest_of({"a": ONE}, step=-2),
    "float": manifest_of({"a": ONE}, step=2.5),
    "save outside": manifest_of({"a": ONE}, save="save-/../.."),
    "short digest": manifest_of({"a": {"bytes": 1, "sha256": "00"}}),
    "huge size": manifest_of({"a": {"bytes": 1 << 70, "sha256": "0" * 64}}),
    **{f"path {name!r}": manifest_of({name: ONE}) for name in (
        "/etc/passwd", "../step-1/model.pt", "a/../b", "./a", "a//b", "", "a/",
        "a\0b", "haulway.json")},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_manifest_is_passed_over(what, tmp_path):
    with haulway.Checkpoints(tmp_path) as run:
        run.save(state(1), 1)
        run.save(state(2), 2)
    manifest = tmp_path / "step-2/haulway.json"
    manifest.write_text(HOSTILE[what])
    found = haulway.latest(tmp_path)
    assert found.step == 1 and len(found.skipped) == 1


def test_a_huge_manifest_is_not_read(tmp_path):
    with haulway.Checkpoints(tmp_path) as run:
        run.save(state(1), 1)
        run.save(state(2), 2)
    with open(tmp_path / "step-2/haulway.json", "r+b") as file:
        file.truncate(1 << 40)
    found = haulway.latest(tmp_path)
    assert found.step == 1 and "expected at most" in found.skipped[0].reason


def test_a_newer_version_is_no_reason_to_go_back(tmp_path):
    with haulway.Checkpoints(tmp_path) as run:
        run.save(state(1), 1)
        run.save(state(2), 2)
    manifest = tmp_path / "step-2/haulway.json"
    manifest.write_text(manifest.read_text().replace('"version": 1',
                                                     '"version": 2'))
    with pytest.raises(haulway.UnsupportedError, match="version 2"):
        haulway.latest(tmp_path)
    with pytest.raises(haulway.UnsupportedError):
        haulway.prune(tmp_path, 1)


def test_every_flip_of_a_manifest_is_survived(tmp_path):
    with haulway.Checkpoints(tmp_path) as run:
        run.save(state(1), 1)
        run.save(state(2), 2)
    manifest = tmp_path / "step-2/haulway.json"
    whole = manifest.read_bytes()
    for at in range(0, len(whole), 7):
        manifest.write_bytes(whole)
        flip(manifest, at / len(whole))
        try:
            assert haulway.latest(tmp_path).step in (1, 2)
        except haulway.UnsupportedError as error:
            assert "version" in str(error)


def test_a_thousand_checkpoints(tmp_path):
    import time

    with haulway.Checkpoints(tmp_path, keep=0, durability="none") as run:
        run.save(state(1), 1)
    whole = (tmp_path / "step-1/haulway.json").read_text()
    for step in range(2, 1001):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        os.link(tmp_path / "step-1/model.pt", folder / "model.pt")
        (folder / "haulway.json").write_text(
            whole.replace('"step": 1', f'"step": {step}'))
    start = time.monotonic()
    assert haulway.latest(tmp_path).step == 1000
    assert time.monotonic() - start < 5  # 0.03 s without other work.
