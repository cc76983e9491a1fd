"""haulway.bulk: verbs, engines, and workers that die."""

import itertools
import os
import shutil
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest

import haulway
from bulk_files import add_faults, damage, make_files
from haulway._bulk.local import WorkerKilled
from haulway._bulk.verbs import run_task


def by_name(report):
    return {os.path.basename(one["input"]): one for one in report.results()}


def test_verify_judges_every_file_of_a_folder(tmp_path):
    paths = make_files(tmp_path, 3)
    damage(paths[1])
    (tmp_path / "note.txt").write_text("no checkpoint")
    report = haulway.bulk("verify", tmp_path)
    assert (report.inputs, report.done, report.failed) == (4, 4, 0)
    assert not report and report.exit == 1
    found = by_name(report)
    assert found["note.txt"]["ok"] is None
    for path in paths:
        one = found[os.path.basename(path)]
        alone = haulway.verify(path).to_dict()
        assert {**alone, "input": path, "error": None} == one
    assert report.bytes == sum(
        one.stat().st_size for one in tmp_path.iterdir())


def test_scan_gives_the_verdict_of_each_file(tmp_path, small):
    shutil.copy(small, tmp_path / "small.pt")
    (tmp_path / "evil.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    os.mkfifo(tmp_path / "fifo")
    report = haulway.bulk("scan", tmp_path)
    found = by_name(report)
    assert {name: one["verdict"] for name, one in found.items()} == {
        "small.pt": "SAFE", "evil.pkl": "UNSAFE", "fifo": "UNKNOWN"}
    assert report.exit == 1  # UNSAFE outranks UNKNOWN.
    assert report.outcomes["UNSAFE"][0] == 1
    one = haulway.scan(tmp_path / "small.pt").to_dict()
    assert found["small.pt"]["pickles"] == one["pickles"]


def test_manifest_and_info(tmp_path):
    (path,) = make_files(tmp_path, 1)
    (one,) = haulway.bulk("manifest", path).results()
    ((name, (dtype, shape, sha256)),) = haulway.manifest(path).items()
    assert one["tensors"] == [{"name": name, "dtype": dtype,
                               "shape": list(shape), "sha256": sha256}]
    (one,) = haulway.bulk("info", path).results()
    assert (one["format"], one["tensor_count"], one["total_bytes"],
            one["dtypes"]) == ("torch", 1, 16, {"F32": 1})


def test_convert_writes_below_a_folder(tmp_path):
    make_files(tmp_path / "in/a", 2)
    report = haulway.bulk("convert", tmp_path / "in", options={
        "to": "safetensors", "out": tmp_path / "out"})
    assert report and report.done == 2
    for path in sorted(tmp_path.glob("in/a/*.pt")):
        out = tmp_path / "out/a" / f"{path.stem}.safetensors"
        assert haulway.manifest(out) == haulway.manifest(path)


def test_two_inputs_do_not_write_one_output(tmp_path):
    paths = make_files(tmp_path / "a", 1) + make_files(tmp_path / "b", 1)
    report = haulway.bulk("convert", paths, options={
        "to": "safetensors", "out": tmp_path / "out"})
    assert (report.done, report.failed, report.exit) == (1, 1, 2)
    (error,) = [one["error"] for one in report.results() if one["error"]]
    assert f"is also that of input '{paths[0]}'" in error["message"]


def test_what_is_wrong_with_an_input_is_in_its_result(tmp_path):
    (path,) = make_files(tmp_path, 1)
    (tmp_path / "torn.pt").write_bytes(open(path, "rb").read()[:200])
    inputs = [path, tmp_path / "torn.pt", tmp_path / "missing.pt"]
    seen = []
    report = haulway.bulk("info", inputs, each=seen.append)
    errors = {name: one["error"] and one["error"]["code"]
              for name, one in by_name(report).items()}
    assert errors["missing.pt"] == "kNotFound"
    assert errors["torn.pt"] in ("kTruncated", "kCorrupt")
    assert errors[os.path.basename(path)] is None
    assert report.exit == 2 and report.failed == 2
    assert sorted(map(str, seen)) == sorted(map(str, report.results()))


def test_an_input_counts_once(tmp_path):
    (path,) = make_files(tmp_path, 1)
    assert haulway.bulk("info", [path, path, tmp_path]).inputs == 1


@pytest.mark.parametrize("make", [
    lambda: ThreadPoolExecutor(2),
    lambda: ProcessPoolExecutor(2, get_context("spawn")),
])
def test_any_executor_is_an_engine(tmp_path, make):
    paths = make_files(tmp_path, 40)
    with make() as executor:
        report = haulway.bulk("verify", paths, engine=executor)
        # The executor is still open.
        assert executor.submit(len, "abc").result() == 3
    assert report and report.done == 40


def test_inputs_are_taken_as_there_is_room(tmp_path):
    (path,) = make_files(tmp_path, 1)
    taken = 0
    most = 0
    done = 0

    def endless():
        nonlocal taken
        for i in itertools.count():
            taken += 1
            name = tmp_path / f"{i}.pt"
            os.link(path, name)
            yield name

    class EnoughError(Exception):
        pass

    def each(result):
        nonlocal done, most
        done += 1
        most = max(most, taken - done)
        if done == 1000:
            raise EnoughError

    with pytest.raises(EnoughError):
        haulway.bulk("info", endless(), each=each, jobs=2)
    assert most <= 200


def test_a_worker_that_is_killed_is_told_of(tmp_path, monkeypatch):
    add_faults(tmp_path / "faults", monkeypatch)
    paths = make_files(tmp_path / "in", 40)
    for name in ("killer.pt", "once.pt"):
        shutil.copy(paths[0], tmp_path / "in" / name)
    report = haulway.bulk("info", tmp_path / "in", jobs=2)
    found = by_name(report)
    assert (report.done, report.failed, report.exit) == (41, 1, 2)
    assert found["once.pt"]["error"] is None
    assert "tried twice: worker process was killed by SIGKILL" in (
        found["killer.pt"]["error"]["message"])


def test_killed_workers_of_an_executor(tmp_path, monkeypatch):
    add_faults(tmp_path / "faults", monkeypatch)
    (path,) = make_files(tmp_path, 1)
    shutil.copy(path, tmp_path / "killer.pt")
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        report = haulway.bulk("info", tmp_path / "killer.pt", engine=executor)
    assert report.failed == 1 and report.exit == 2


def test_progress_reaches_all_bytes(tmp_path):
    paths = make_files(tmp_path, 40)
    told = []
    report = haulway.bulk(
        "verify", paths, progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == report.bytes
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_progress_takes_no_names_from_a_pipe(tmp_path):
    paths = make_files(tmp_path / "in", 3) * 2000
    reader, writer = os.pipe()

    def write():
        with os.fdopen(writer, "w") as file:
            for i, path in enumerate(paths):
                file.write(f"{path}{i}\n")

    thread = threading.Thread(target=write)
    thread.start()
    report = haulway.bulk("info", f"@/dev/fd/{reader}",
                          progress=lambda done, total: None)
    thread.join()
    os.close(reader)
    assert report.inputs == len(paths)


def test_a_list_that_is_missing_is_reported_once(tmp_path, capfd):
    with pytest.raises(haulway.NotFoundError, match="cannot read the list"):
        haulway.bulk("info", f"@{tmp_path}/none",
                     progress=lambda done, total: None)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("arguments", "said"), [
    ({"verb": "load"}, "expected scan, verify, manifest, convert, info"),
    ({"engine": "spark"}, "expected local, ray, dask or an executor"),
    ({"jobs": 0}, "jobs: expected a number of 1 or more"),
    ({"options": {"colour": 1}}, "colour: bulk info has no such option"),
    ({"options": {"lenient": "maybe"}}, "lenient: expected a bool"),
    ({"verb": "convert"}, "out: bulk convert needs the folder"),
])
def test_wrong_arguments_are_refused(tmp_path, arguments, said):
    with pytest.raises(haulway.Error, match=said):
        haulway.bulk(**{"verb": "info", "inputs": tmp_path, **arguments})


def test_large_files_get_all_threads(tmp_path, monkeypatch):
    from haulway._bulk import run

    paths = make_files(tmp_path, 3)
    monkeypatch.setattr(run, "_LARGE_BYTES", 1)
    tasks = []
    real = run._Run._task

    def noted(self, inputs, threads):
        tasks.append(real(self, inputs, threads))
        return tasks[-1]

    monkeypatch.setattr(run._Run, "_task", noted)
    assert haulway.bulk("verify", paths, jobs=2).done == 3
    assert [(len(task.items), task.threads) for task in tasks] == [(1, 2)] * 3


class _OneWorker:
    """An engine whose worker, when it dies, takes the waiting tasks with it, as
    dask's do."""

    jobs, threads, shares_deaths = 2, 1, True

    def __init__(self):
        self._waiting, self._ended = [], []

    def submit(self, ticket, task):
        self._waiting.append((ticket, task))

    def next(self, tell):
        if not self._ended:
            ticket, task = self._waiting.pop(0)
            if not any("killer" in item[0] for item in task.items):
                return ticket, run_task(task)
            waited = [one for one, _ in self._waiting]
            self._ended = [
                (one, WorkerKilled("gone")) for one in (ticket, *waited)]
            self._waiting.clear()
        return self._ended.pop(0)

    def close(self, kill=False):
        pass


def test_a_death_that_takes_others_along_fails_one_input(
        tmp_path, monkeypatch):
    paths = make_files(tmp_path / "in", 100)
    paths.insert(50, str(tmp_path / "in" / "killer.pt"))
    shutil.copy(paths[0], paths[50])
    monkeypatch.setattr(
        "haulway._bulk.run.engine_of", lambda engine, jobs: _OneWorker())
    report = haulway.bulk("info", paths)
    failed = [name for name, one in by_name(report).items() if one["error"]]
    assert failed == ["killer.pt"]
    assert (report.done, report.failed) == (100, 1)
