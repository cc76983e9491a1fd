"""haulway.delta.prune and the verb: what is kept, and what a kill leaves."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import haulway
import haulway.delta
from delta_versions import (
    INDEX,
    chain,
    same,
    save_delta,
    save_full,
    step,
)


def long_run(tmp_path, count=8, full=(3, 6)):
    """Writes a run with full versions in between. Returns (states, folder)."""
    states = chain(tmp_path, count=1)
    run = tmp_path / "run"
    for number in range(2, count + 1):
        states.append(step(states[-1], number))
        folder = run / f"weight_v{number:06}"
        if number in full:
            save_full(folder, states[-1], 1, {"version": f"{number:06}"})
        else:
            save_delta(folder, states[-2], states[-1], number)
    return states, run


def numbers(run):
    return [one.number for one in haulway.delta.versions(run)]


def ids(*found):
    return [f"{number:06}" for number in found]


def test_what_versions_need_is_kept(tmp_path):
    states, run = long_run(tmp_path)
    report = haulway.delta.prune(run, keep=2, dry_run=True)
    assert report.removed == ids(5, 4, 3, 2, 1) and report.kept == ids(6, 7, 8)
    assert numbers(run) == list(range(1, 9))
    # Version 5 needs 3 and 4.
    report = haulway.delta.prune(run, keep=4)
    assert report.removed == ids(2, 1) and report.kept == ids(3, 4, 5, 6, 7, 8)
    assert numbers(run) == [3, 4, 5, 6, 7, 8]
    assert haulway.delta.prune(run).kept == ids(6, 7, 8)
    assert same(haulway.load(run / "weight_v000008"), states[8])
    assert haulway.delta.prune(run).removed == []
    assert sorted(os.listdir(run)) == [f"weight_v{n:06}" for n in (6, 7, 8)]


def test_without_full_versions_all_are_needed(tmp_path):
    _, run = long_run(tmp_path, 4, ())
    assert haulway.delta.prune(run).removed == []


def test_incomplete_versions(tmp_path):
    states, run = long_run(tmp_path)
    (run / "weight_v000002" / INDEX).unlink()
    # Newer than every whole one: it may be written just now.
    save_delta(run / "weight_v000009", states[7], states[8], 9)
    (run / "weight_v000009" / INDEX).unlink()
    report = haulway.delta.prune(run, keep=3)
    assert report.removed == ids(5, 4, 3, 2, 1)
    assert report.kept == ids(6, 7, 8, 9)


def test_below_updates_and_wrong_arguments(tmp_path):
    _, run = long_run(tmp_path)
    (tmp_path / "root").mkdir()
    run.rename(tmp_path / "root" / "updates")
    assert haulway.delta.prune(tmp_path / "root").kept == ids(6, 7, 8)
    with pytest.raises(haulway.InvalidArgumentError):
        haulway.delta.prune(run, keep=0)
    with pytest.raises(TypeError):
        haulway.delta.prune(run, keep="2")
    with pytest.raises(haulway.NotFoundError):
        haulway.delta.prune(tmp_path / "none")


def test_of_a_bucket(bucket, endpoint, tmp_path, monkeypatch):
    for name, value in (("AWS_ACCESS_KEY_ID", "AKID"),
                        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
                        ("AWS_REGION", "us-east-1"),
                        ("AWS_ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(name, value)
    states, run = long_run(tmp_path)
    for path in run.rglob("*"):
        if path.is_file():
            bucket.upload_file(str(path), "bkt", str(path.relative_to(tmp_path)))
    bucket.put_object(Bucket="bkt", Key="run/notes.txt", Body=b"x")
    report = haulway.delta.prune("s3://bkt/run", keep=1)
    assert report.removed == ids(5, 4, 3, 2, 1) and report.kept == ids(6, 7, 8)
    keys = [one["Key"] for one in bucket.list_objects_v2(Bucket="bkt")["Contents"]]
    assert {key.split("/")[1] for key in keys} == {
        "weight_v000006", "weight_v000007", "weight_v000008", "notes.txt"}
    assert same(haulway.load("s3://bkt/run/weight_v000008/"), states[8])


def test_a_kill_leaves_only_versions_that_open(tmp_path):
    states, _ = long_run(tmp_path / "first", 30, (10, 20, 28))
    kills = 0
    for attempt in range(20):
        run = tmp_path / f"copy{attempt}"
        subprocess.run(["cp", "-r", tmp_path / "first" / "run", run], check=True)
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys, haulway.delta\n"
             "print('begins', flush=True)\nsys.stdin.readline()\n"
             "haulway.delta.prune(sys.argv[1])", str(run)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        process.stdin.write("\n")
        process.stdin.flush()
        # From none to all of the versions are gone then.
        until = time.monotonic() + 5
        while (len(os.listdir(run)) > 30 - attempt * 1.4
               and time.monotonic() < until and process.poll() is None):
            time.sleep(0)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 3 < len(numbers(run)) < 30
        for one in haulway.delta.versions(run):
            assert one.complete
            found = haulway.load(one.path, base=tmp_path / "first" / "base")
            assert same(found, states[one.number])
        assert haulway.delta.prune(run).kept == ids(28, 29, 30)
        assert sorted(os.listdir(run)) == [
            f"weight_v{n:06}" for n in (28, 29, 30)]
        subprocess.run(["rm", "-r", run], check=True)
    assert kills >= 5


def test_the_verb(tmp_path, run):
    _, folder = long_run(tmp_path)
    for keep in ((), ("--keep", "0"), ("--keep=-3",)):
        said = run("delta", "prune", folder, *keep, code=4).stderr
        assert "expected --keep, at least 1" in said
    report = json.loads(run("delta", "prune", folder, "--keep", "1", "--dry-run",
                            "--json").stdout)
    assert report == {"removed": ids(5, 4, 3, 2, 1), "kept": ids(6, 7, 8)}
    assert "would remove 000005" in run("delta", "prune", folder, "--keep", "1",
                                        "--dry-run").stdout
    assert len(numbers(folder)) == 8
    said = run("delta", "prune", folder, "--keep", "1").stdout
    assert "removed 000001" in said and "kept 000008" in said
    assert numbers(folder) == [6, 7, 8]
    run("delta", "prune", tmp_path / "none", "--keep", "1", code=2)
