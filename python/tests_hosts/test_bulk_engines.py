"""haulway.bulk on ray and dask, with workers that are killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import distributed
import pytest
import ray

import haulway
from bulk_files import add_faults, make_files

DRIVER = """
import sys, haulway
def each(result):
    print(result["input"], flush=True)
haulway.bulk("verify", "@list.txt", engine=sys.argv[1], journal="run.jsonl",
             jobs=1, each=each)
"""


@pytest.fixture(params=["ray", "dask"])
def engine(request):
    return request.param


@contextlib.contextmanager
def cluster(engine):
    """A cluster that this process is connected to, as in programs."""
    if engine == "dask":
        with distributed.Client(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ):
            yield
    else:
        ray.init(log_to_driver=False, include_dashboard=False)
        try:
            yield
            assert ray.is_initialized()  # bulk() leaves the cluster running.
        finally:
            ray.shutdown()


@pytest.fixture
def files(tmp_path):
    return make_files(tmp_path / "in", 70)


@pytest.fixture
def faults(tmp_path, monkeypatch):
    add_faults(tmp_path / "faults", monkeypatch)


def test_each_verb(engine, files, tmp_path):
    with cluster(engine):
        for verb in ("verify", "scan", "info", "manifest"):
            there = haulway.bulk(verb, files, engine=engine)
            here = haulway.bulk(verb, files)
            assert there and there.done == 70
            assert sorted(map(str, there.results())) == (
                sorted(map(str, here.results())))
        report = haulway.bulk("convert", files, engine=engine, options={
            "to": "safetensors", "out": tmp_path / "out"})
    assert report and len(os.listdir(tmp_path / "out")) == 70


def test_killed_workers(engine, files, faults, tmp_path):
    for name in ("killer.pt", "once.pt"):
        os.link(files[0], tmp_path / "in" / name)
    report = haulway.bulk("info", tmp_path / "in", engine=engine)
    errors = {os.path.basename(one["input"]): one["error"]
              for one in report.results() if one["error"]}
    assert list(errors) == ["killer.pt"] and "twice" in (
        errors["killer.pt"]["message"])
    assert (report.done, report.failed) == (71, 1)


def test_a_killed_driver(engine, files, faults, tmp_path, monkeypatch):
    files.insert(40, str(tmp_path / "in/waits.pt"))
    os.link(files[0], files[40])
    (tmp_path / "list.txt").write_text("".join(f"{path}\n" for path in files))
    with subprocess.Popen([sys.executable, "-c", DRIVER, engine],
                          cwd=tmp_path, stdout=subprocess.PIPE, text=True,
                          start_new_session=True) as child:
        first = [child.stdout.readline().strip() for _ in range(32)]
        os.killpg(child.pid, signal.SIGKILL)
    os.remove(tmp_path / "faults/sitecustomize.py")
    monkeypatch.chdir(tmp_path)
    report = haulway.bulk("verify", "@list.txt", journal="run.jsonl",
                          engine=engine)
    assert (report.skipped, report.done) == (32, 39) and report
    recorded = [json.loads(line).get("input")
                for line in open("run.jsonl").read().splitlines()]
    assert len(recorded) == len(set(recorded)) == 72
    assert set(first) <= set(recorded)
