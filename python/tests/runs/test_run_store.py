"""Runs in an object store: the manifest comes last and goes first."""

import concurrent.futures
import hashlib
import http.client
import http.server
import json
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

import haulway
from haulway import _haulway
from haulway._writing import save as saving
from haulway._writing.call import Writing
from killed_run import KilledRun
from remote_servers import body_of
from run_folders import LAYOUTS, state

RUN = "s3://bkt/run"


@pytest.fixture
def store(bucket, endpoint, monkeypatch, tmp_path):
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "AKID",
        "AWS_SECRET_ACCESS_KEY": "s3cret", "AWS_REGION": "us-east-1",
        "TMPDIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    return bucket


def keys(store):
    return [one["Key"] for page in
            store.get_paginator("list_objects_v2").paginate(Bucket="bkt")
            for one in page.get("Contents", [])]


@pytest.mark.parametrize("format", ["pt", "safetensors", "torch-dcp"])
def test_a_loop(format, store, tmp_path, run):
    with haulway.Checkpoints(RUN, keep=2, format=format) as loop:
        assert loop.latest() is None
        for step in (8, 9, 10):
            loop.save({"w": torch.full((500,), float(step))}, step,
                      metadata={"step": step})
        loop.wait()
        found = loop.latest()
        assert found.step == 10 and found.metadata == {"step": 10}
        assert found.path.startswith(f"{RUN}/step-10/save-")
        assert torch.equal(loop.load()["w"], torch.full((500,), 10.0))
        assert torch.equal(loop.load(9)["w"], torch.full((500,), 9.0))
        assert [one.step for one in loop.list()] == [9, 10]
    assert {key.split("/")[1] for key in keys(store)} == {"step-9", "step-10"}
    assert os.listdir(tmp_path) == []  # What was staged is gone.
    assert run("latest", RUN).stdout.strip() == found.path
    haulway.prune(RUN, 1)
    assert {key.split("/")[1] for key in keys(store)} == {"step-10"}
    run("latest", "s3://bkt/none", code=3)


@pytest.mark.parametrize("format", ["pt", "safetensors"])
@pytest.mark.parametrize("is_async", [False, True])
def test_one_file_is_sent_while_it_is_written(format, is_async, store, tmp_path):
    # There is no room below TMPDIR: 12 MiB take three parts of an upload.
    tensor = torch.arange(3 << 20, dtype=torch.float32)
    code = f"""
import resource, torch, haulway
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
with haulway.Checkpoints({RUN!r}, format={format!r}) as run:
    saved = (run.save_async if {is_async} else run.save)(
        {{"w": torch.arange(3 << 20, dtype=torch.float32)}}, 5,
        metadata={{"a": 1}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    found = haulway.latest(RUN)
    assert found.step == 5 and found.metadata == {"a": 1}
    assert torch.equal(haulway.load(found.path)["w"], tensor)
    (manifest,) = (key for key in keys(store) if key.endswith("haulway.json"))
    files = json.loads(body_of(store, manifest))["files"]
    for name, facts in files.items():
        path = found.path.removeprefix("s3://bkt/")
        body = body_of(store, path + name)
        assert facts == {"bytes": len(body),
                         "sha256": hashlib.sha256(body).hexdigest()}
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_sent_goes_if_the_save_fails(store):
    with haulway.Checkpoints(RUN) as loop:
        loop.save(state(1), 1)
        before = keys(store)
        step = _haulway.run_begin(RUN, 2, False, 0, {})
        saving.prepare(state(2), f"{step.folder}/model.pt", "torch",
                       Writing("save", {}), copy=False,
                       target=step.file("model.pt"))()
        assert len(keys(store)) == len(before) + 1  # No manifest yet.
        assert loop.latest().step == 1
        step.discard()
    assert keys(store) == before


def test_a_first_save_that_did_not_end_is_no_checkpoint(store, run):
    store.put_object(Bucket="bkt", Key="run/step-1/save-0/model.pt", Body=b"x")
    assert haulway.latest(RUN) is None
    done = run("latest", RUN, code=3)
    assert "its save did not end" in done.stderr
    with haulway.Checkpoints(RUN, keep=1) as loop:
        loop.save(state(2), 2)
    assert {key.split("/")[1] for key in keys(store)} == {"step-2"}


def test_what_another_program_made_is_not_replaced(store):
    store.put_object(Bucket="bkt", Key="run/step-7/.metadata", Body=b"x")
    with haulway.Checkpoints(RUN, keep=1) as loop:
        with pytest.raises(haulway.InvalidArgumentError, match="another program"):
            loop.save(state(7), 7)
        assert keys(store) == ["run/step-7/.metadata"]
        loop.save(state(8), 8)
    assert "run/step-7/.metadata" in keys(store)


def test_a_step_again_leaves_one_save(store):
    with haulway.Checkpoints(RUN) as loop:
        for value in (1, 2):
            loop.save({"w": torch.full((5,), float(value))}, 7)
        assert loop.load()["w"][0] == 2
    assert len(keys(store)) == 2


def test_what_is_not_whole_is_passed_over(store, run):
    with haulway.Checkpoints(RUN, keep=0) as loop:
        for step in range(1, 6):
            loop.save(state(step), step)
    manifest = json.loads(body_of(store, "run/step-5/haulway.json"))
    store.delete_object(Bucket="bkt", Key="run/step-5/haulway.json")
    fourth = json.loads(body_of(store, "run/step-4/haulway.json"))
    data = f"run/step-4/{fourth['save']}/model.pt"
    body = bytearray(body_of(store, data))
    store.put_object(Bucket="bkt", Key=data, Body=bytes(body[:-1]))
    for verified in (True, "sizes"):
        found = haulway.latest(RUN, verified=verified)
        assert found.step == 3
        assert [one.step for one in found.skipped] == [5, 4]
    assert "haulway.json" in found.skipped[0].reason
    # The object has the right size, but other bytes.
    body[len(body) // 2] ^= 1
    store.put_object(Bucket="bkt", Key=data, Body=bytes(body))
    assert haulway.latest(RUN).step == 3
    assert haulway.latest(RUN, verified="sizes").step == 4
    report = haulway.prune(RUN, 1)
    assert report.removed == [f"{RUN}/step-2/", f"{RUN}/step-1/"]
    assert manifest["save"] in keys(store)[-1]  # It may be in the making.
    with haulway.Checkpoints(RUN, keep=1) as loop:
        loop.save(state(6), 6)
    assert {key.split("/")[1] for key in keys(store)} == {"step-6"}


def test_uploads_that_did_not_end_go(store):
    with haulway.Checkpoints(RUN, keep=1) as loop:
        loop.save(state(5), 5)
    for step in (3, 8):
        store.create_multipart_upload(
            Bucket="bkt", Key=f"run/step-{step}/save-1/model.pt")
    store.create_multipart_upload(Bucket="bkt", Key="running/step-3/save-1/x")
    haulway.prune(RUN, 1)
    left = store.list_multipart_uploads(Bucket="bkt")["Uploads"]
    assert sorted(one["Key"] for one in left) == [
        "run/step-8/save-1/model.pt", "running/step-3/save-1/x"]




@pytest.fixture
def requests(store, endpoint, monkeypatch):
    """Returns the list of requests that reach the store from now on."""
    seen = []
    place = endpoint.removeprefix("http://")

    class Passing(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            seen.append((self.command, self.path))
            behind = http.client.HTTPConnection(place)
            behind.request(self.command, self.path, headers=self.headers)
            answer = behind.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Passing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL",
                           f"http://127.0.0.1:{server.server_port}")
        yield seen
        server.shutdown()


def test_a_thousand_checkpoints_take_one_listing(store, request):
    with haulway.Checkpoints(RUN, keep=0) as loop:
        loop.save(state(1000), 1000)
    text = body_of(store, "run/step-1000/haulway.json").decode()

    def put(step):
        # Only the newest is looked into, so the others need no files.
        store.put_object(Bucket="bkt", Key=f"run/step-{step}/haulway.json",
                         Body=text.replace('"step": 1000,', f'"step": {step},'))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(put, range(1, 1000)))
    seen = request.getfixturevalue("requests")
    began = time.monotonic()
    found = haulway.latest(RUN, verified="sizes")
    seconds = time.monotonic() - began
    assert found.step == 1000 and found.skipped == []
    pages = [path for _, path in seen if "list-type=2" in path]
    others = {path.split("?")[0] for _, path in seen if "list-type=2" not in path}
    # A page has a thousand keys.
    assert len(pages) == 2 and others == {"/bkt/run/step-1000/haulway.json"}
    assert seconds < 10  # 0.2 s without other work.
    del seen[:]
    assert haulway.latest(RUN).path == found.path
    assert {path.split("?")[0].split("/")[3] for _, path in seen
            if "list-type=2" not in path} == {"step-1000"}


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"haulway"}))
def test_other_layouts(layout, store, tmp_path):
    paths = [LAYOUTS[layout](tmp_path / "local", step) for step in (9, 10)]
    for folder, _, names in os.walk(tmp_path / "local"):
        for name in names:
            path = os.path.join(folder, name)
            key = f"run/{os.path.relpath(path, tmp_path / 'local')}"
            store.upload_file(path, "bkt", key)
    found = haulway.latest(RUN)
    relative = os.path.relpath(paths[1], tmp_path / "local")
    assert found.path.rstrip("/") == f"{RUN}/{relative}" and found.step == 10
    report = haulway.prune(RUN, 1)
    assert len(report.removed) == 1
    assert haulway.latest(RUN).path == found.path
    before = os.path.relpath(paths[0], tmp_path / "local")
    assert not [key for key in keys(store) if key.startswith(f"run/{before}")]


def test_a_killed_loop_leaves_whole_checkpoints(store, tmp_path):
    killed = KilledRun(tmp_path / "kills", 3, RUN)
    killed.longest = 1.0
    counts = killed.kill_often(3)
    assert counts["kills"] == 3 and counts["steps"] > 0


def test_a_store_that_fails_leaves_the_run(store, monkeypatch):
    with haulway.Checkpoints(RUN) as loop:
        loop.save(state(1), 1)
    before = keys(store)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    loop = haulway.Checkpoints(RUN, timeout=1)
    with pytest.raises(haulway.Error):
        loop.save(state(2), 2)
    with pytest.raises(haulway.Error):
        haulway.latest(RUN, timeout=1)
    monkeypatch.undo()
    assert keys(store) == before
