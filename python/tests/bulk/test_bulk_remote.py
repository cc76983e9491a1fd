"""haulway.bulk over stores and servers, where ETags tell what changed."""

import pytest

import haulway
from bulk_files import make_files


@pytest.fixture
def store(bucket, endpoint, monkeypatch, tmp_path):
    """A bucket with three checkpoints and a note below "m/"."""
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
    # Another one, as large as before.
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
