"""haulway.bulk on object stores and servers, where ETags show changes."""

import json
import os
import re
import subprocess
import sys

import pytest

import haulway
from bulk_files import make_files
from haulway._bulk.inputs import CHECKPOINTS, EVERY, WHOLE, expand
from http_server import FaultServer
from remote_servers import ScriptedServer
from remote_servers import store as answering


@pytest.fixture
def store(bucket, endpoint, monkeypatch, tmp_path):
    """A bucket with three checkpoints and a text file below "m/"."""
    for name, value in (("ACCESS_KEY_ID", "AKID"), ("REGION", "us-east-1"),
                        ("SECRET_ACCESS_KEY", "s3cret"),
                        ("ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(f"AWS_{name}", value)
    for path in make_files(tmp_path / "up", 3):
        bucket.upload_file(path, "bkt", f"m/{path[-12:]}")
    bucket.put_object(Bucket="bkt", Key="m/note.txt", Body=b"text")
    return bucket


def test_a_prefix_is_a_folder(store):
    report = haulway.bulk("verify", "s3://bkt/m/")
    assert report and report.inputs == 4
    assert haulway.bulk("info", "s3://bkt/m/").inputs == 3
    assert haulway.bulk("info", "s3://bkt/m/model-00[12].pt").inputs == 2
    (one,) = haulway.bulk("info", "s3://bkt/m/*.gguf").results()
    assert one["error"]["code"] == "kNotFound"


def test_objects_that_changed_are_done_again(store, tmp_path):
    journal = tmp_path / "run.jsonl"
    assert haulway.bulk("verify", "s3://bkt/m/", journal=journal).done == 4
    report = haulway.bulk("verify", "s3://bkt/m/", journal=journal)
    assert (report.done, report.skipped) == (0, 4)
    # Another file of the same size.
    (path,) = make_files(tmp_path / "same", 1)
    store.upload_file(path, "bkt", "m/model-001.pt")
    report = haulway.bulk("verify", "s3://bkt/m/", journal=journal)
    assert (report.done, report.skipped) == (1, 3)


def test_convert_from_and_to_a_store(store, tmp_path):
    report = haulway.bulk("convert", "s3://bkt/m/", options={
        "to": "safetensors", "out": "s3://bkt/new/"})
    assert report and report.done == 3
    assert haulway.manifest("s3://bkt/new/model-002.safetensors") == (
        haulway.manifest("s3://bkt/m/model-002.pt"))


def test_a_key_that_leads_out_of_its_folder_fails_alone(store, tmp_path):
    body = (tmp_path / "up/model-000.pt").read_bytes()
    store.put_object(Bucket="bkt", Key=f"m/{tmp_path}/rooted.pt", Body=body)
    store.put_object(Bucket="bkt", Key="m/../../up.pt", Body=body)
    out = tmp_path / "a/b/out"
    report = haulway.bulk("convert", "s3://bkt/m/", options={
        "to": "safetensors", "out": out})
    assert (report.done, report.failed) == (4, 1)
    assert "the key leads out of its folder" in str(list(report.results()))
    assert {path.relative_to(tmp_path) for path in
            tmp_path.rglob("*.safetensors")} == {
        (out / name).relative_to(tmp_path) for name in (
            *(f"model-{i:03}.safetensors" for i in range(3)),
            f"{str(tmp_path).strip('/')}/rooted.safetensors")}


@pytest.mark.parametrize("taken", [EVERY, WHOLE, CHECKPOINTS])
def test_a_bucket_gives_what_the_same_folder_gives(store, tmp_path, taken):
    top = tmp_path / "tree"
    for name in (
        "a.pt", "note.txt", "z-last.gguf",
        "dcp/.metadata", "dcp/__0.metadata", "dcp/__0_0.distcp", "dcp/a.pt",
        "dcp/meta.pt", "dcp/deeper/x.npz",
        "ranks/__0.metadata", "ranks/__0_0.distcp", "ranks/__1.metadata",
        "indexed/1.safetensors", "indexed/2.safetensors", "indexed/3.safetensors",
        "indexed/sub/4.safetensors", "other/x.index.json", "other/y.pt",
        "shards/shard-00001-model-00001-of-00001.safetensors",
        "shards/shard-00002-model-00001-of-00001.safetensors",
        "shards/config.json", "shards/sharded/x.pt",
        "mixed/shard-00001-model-00001-of-00001.safetensors", "mixed/x.pt",
    ):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(b"{}")
    (top / "indexed/model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    for folder, _, files in os.walk(top):
        for name in files:
            path = os.path.join(folder, name)
            store.upload_file(path, "bkt", f"t/{os.path.relpath(path, top)}")
    here = [one.name.removeprefix(f"{top}/") for one in expand(top, {}, taken)]
    there = [one.name.removeprefix("s3://bkt/t/")
             for one in expand("s3://bkt/t/", {}, taken)]
    assert sorted(here) == sorted(there)
    assert len(set(there)) == {EVERY: 25, WHOLE: 19, CHECKPOINTS: 14}[taken]
    if taken == WHOLE:
        listed = haulway._haulway.list_files_to_verify(str(top), {})
        assert sorted(here) == [one.removeprefix(f"{top}/") for one in listed]


def listing(count):
    """Returns a store with `count` keys below "m/", in pages of a thousand, and
    the numbers of the requested pages."""
    asked = []

    def answer(head, body):
        token = re.search(rb"continuation-token=(\d+)", head)
        start = int(token[1]) if token else 0
        asked.append(start)
        end = min(start + 1000, count)
        keys = "".join(f"<Contents><Key>m/model-{i:07}.pt</Key></Contents>"
                       for i in range(start, end))
        more = f"<NextContinuationToken>{end}</NextContinuationToken>"
        text = (f"<ListBucketResult>{keys}<IsTruncated>"
                f"{str(end < count).lower()}</IsTruncated>{more}"
                "</ListBucketResult>").encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (
            len(text), text)

    return ScriptedServer(answering(answer)), asked


# Workers that return every answer at once, so that only the run itself counts.
RUN = """
import os, sys
from concurrent.futures import Executor, Future
import haulway

class Answers(Executor):
    _max_workers = 4
    def submit(self, run, task):
        future = Future()
        future.set_result([{
            "input": item[0], "stamp": {"size": 1}, "exit": 0, "seconds": 0.0,
            "result": {"file": item[0], "verdict": "SAFE"}, "error": None,
        } for item in task.items])
        return future

def memory(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1])

def run(port):
    os.environ["AWS_ENDPOINT_URL_S3"] = f"http://127.0.0.1:{port}"
    return haulway.bulk(sys.argv[1], "s3://bkt/m/", engine=Answers()).done

few = run(sys.argv[2])
before = memory("VmRSS")
many = run(sys.argv[3])
print(few, many, memory("VmHWM") - before)
"""


@pytest.mark.parametrize("verb", ["scan", "info"])
def test_200_000_keys_take_no_more_memory_than_some(store, verb):
    few, _ = listing(3_000)
    many, _ = listing(200_000)
    with few, many:
        done = subprocess.run(
            [sys.executable, "-c", RUN, verb, str(few.port), str(many.port)],
            capture_output=True, text=True, check=True)
    counts = [int(word) for word in done.stdout.split()]
    assert counts[:2] == [3_000, 200_000]
    assert counts[2] < 8 << 10  # KiB; the names alone would take more.


def test_work_begins_before_the_list_is_complete(store, monkeypatch):
    server, asked = listing(50_000)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.port}")
    with server:
        inputs = expand("s3://bkt/m/", {}, EVERY)
        assert next(inputs).name == "s3://bkt/m/model-0000000.pt"
        assert asked == [0]
        assert sum(1 for _ in inputs) == 49_999


def test_objects_without_a_version_are_done_again(tmp_path):
    (path,) = make_files(tmp_path, 1)
    data = open(path, "rb").read()
    with FaultServer(lambda request: request.serve(data)) as server:
        url = server.url("/model.pt")
        for _ in range(2):
            report = haulway.bulk("info", url, journal=tmp_path / "run.jsonl")
            assert (report.done, report.skipped) == (1, 0)


def test_files_of_a_server(nginx, tmp_path):
    (path,) = make_files(tmp_path, 1)
    (nginx.root / "bulk.pt").write_bytes(open(path, "rb").read())
    base = f"http://127.0.0.1:{nginx.port}"
    journal = tmp_path / "run.jsonl"
    for skipped in (0, 1):
        report = haulway.bulk(
            "verify", [f"{base}/bulk.pt", f"{base}/nothing.pt"],
            journal=journal)
        assert (report.skipped, report.failed) == (skipped, 1)
