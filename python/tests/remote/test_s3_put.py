"""Uploads to S3 by the command, with moto's server."""

import base64
import hashlib
import io
import json
import os
import re
import signal
import time
import zlib

import pytest
import safetensors.torch
import torch

import haulway
import haulway.archive
from http_server import FaultServer
from remote_servers import ScriptedServer, body_of, store

SECRET = "s3cret+/never-shown"


@pytest.fixture
def environment(endpoint, tmp_path):
    return {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path),
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL_S3": endpoint,
    }


@pytest.fixture
def client(bucket):
    return bucket


@pytest.mark.parametrize("size", [0, 5, 8 << 20, (20 << 20) + 7])
def test_an_object_is_the_file(run, tmp_path, client, environment, size):
    data = os.urandom(size)
    (tmp_path / "f").write_bytes(data)
    done = run("put", "f", "s3://bkt/a b/c+d?e", "--json", env=environment)
    assert json.loads(done.stdout)["bytes"] == size
    assert body_of(client, "a b/c+d?e") == data
    assert not client.list_multipart_uploads(Bucket="bkt").get("Uploads")


def test_converting_writes_straight_there(run, tmp_path, client, environment):
    torch.save({"w": torch.arange(3_000_000)}, tmp_path / "m.pt")
    run("repack", "m.pt", "s3://bkt/again.pt", env=environment)
    (tmp_path / "again.pt").write_bytes(body_of(client, "again.pt"))
    found = torch.load(tmp_path / "again.pt")
    assert torch.equal(found["w"], torch.arange(3_000_000))
    run("convert", "m.pt", "s3://bkt/m.safetensors", env=environment)
    found = safetensors.torch.load(body_of(client, "m.safetensors"))
    assert torch.equal(found["w"], torch.arange(3_000_000))
    refused = run("convert", "--proof", "p.json", "m.pt", "s3://bkt/p.npz",
                  code=2, env=environment)
    assert "cannot be read back before it is whole" in refused.stderr


def test_objects_are_read_where_paths_are(
    run, tmp_path, client, environment, monkeypatch
):
    tensors = {"w": torch.arange(3_000_000), "b": torch.ones(7)}
    torch.save(tensors, tmp_path / "m.pt")
    safetensors.torch.save_file(tensors, tmp_path / "m.safetensors")
    run("put", "m.pt", "s3://bkt/models/m.pt", env=environment)
    run("put", "m.safetensors", "s3://bkt/models/m.safetensors", env=environment)
    listed = run("ls", "--json", "s3://bkt/models/m.pt", env=environment)
    assert {t["name"] for t in json.loads(listed.stdout)["tensors"]} == set(tensors)
    run("verify", "s3://bkt/models/m.pt", env=environment)
    missing = run("ls", "s3://bkt/models/none.pt", env=environment, code=2)
    assert SECRET not in missing.stderr
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in ("m.pt", "m.safetensors"):
        found = haulway.load(f"s3://bkt/models/{name}")
        assert all(torch.equal(found[key], tensors[key]) for key in tensors)


def test_what_is_there_stays_if_asked(run, tmp_path, client, environment):
    """R54."""
    client.put_object(Bucket="bkt", Key="k", Body=b"old")
    (tmp_path / "small").write_bytes(b"new")
    (tmp_path / "large").write_bytes(bytes(9 << 20))
    for name in ("small", "large"):
        done = run("put", name, "s3://bkt/k", "--no-clobber", code=2,
                   env=environment)
        assert "is there already" in done.stderr
        assert body_of(client, "k") == b"old"
    run("put", "small", "s3://bkt/k", env=environment)
    assert body_of(client, "k") == b"new"


def test_uploads_that_were_left_are_ended(run, client, environment):
    for key in ("m/a", "m/b", "n"):
        client.create_multipart_upload(Bucket="bkt", Key=key)
    done = run("put", "--abort", "s3://bkt/m/", env=environment)
    assert done.stdout == "2 uploads ended\n"
    left = client.list_multipart_uploads(Bucket="bkt")["Uploads"]
    assert [one["Key"] for one in left] == ["n"]
    run("put", "--abort", "s3://bkt/n", env=environment)


@pytest.mark.parametrize("wanted, checksum", [
    ("when_supported", "y/Q5Jg=="), ("when_required", None), ("", None),
])
def test_checksums_go_along_where_they_are_wanted(
    run, tmp_path, environment, wanted, checksum
):
    (tmp_path / "f").write_bytes(b"123456789")
    with FaultServer(lambda r: r.answer(200, ETag='"e"')) as server:
        run("put", "f", "s3://bkt/k", env=environment | {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{server.port}",
            "AWS_REQUEST_CHECKSUM_CALCULATION": wanted,
        })
        headers = server.requests[-1].headers
        assert headers.get("x-amz-checksum-crc32") == checksum


def test_parts_with_checksums_are_put_together(
    run, tmp_path, client, environment
):
    data = os.urandom(9 << 20)
    (tmp_path / "f").write_bytes(data)
    run("put", "f", "s3://bkt/k", env=environment |
        {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_supported"})
    assert body_of(client, "k") == data


@pytest.mark.parametrize("missing, message", [
    ({"AWS_SECRET_ACCESS_KEY": ""}, "credentials of the environment are not"),
    ({"AWS_ACCESS_KEY_ID": ""}, "no credentials for S3 were found"),
    ({"AWS_PROFILE": "nobody"}, "there is no profile 'nobody'"),
    ({"AWS_ENDPOINT_URL_S3": "ftp://x"}, "the endpoint of S3 is no URL"),
])
def test_what_is_missing_is_said(run, tmp_path, environment, missing, message):
    """R58."""
    (tmp_path / "f").write_bytes(b"x")
    done = run("put", "f", "s3://bkt/k", code=None, env=environment | missing |
               {"AWS_EC2_METADATA_DISABLED": "true"})
    assert done.returncode != 0
    assert message in done.stderr
    assert SECRET not in done.stderr + done.stdout


def test_a_slow_upload_does_not_stall(environment, monkeypatch):
    """What counts is what was sent, not when the next buffer is filled."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    answer = store()
    received = []

    class Slow:
        """A connection that takes about 0.5 MB/s: a buffer of libcurl in 2 s."""

        def __init__(self, one):
            self.recv, self.sendall = one.recv, one.sendall
            self._one = one

        def recv_into(self, memory):
            time.sleep(0.032)
            got = self._one.recv_into(memory[:1 << 14])
            received.append(got)
            return got

    server = ScriptedServer(lambda one: answer(Slow(one)))
    # Before anybody connects: a window that shrinks later makes TCP crawl.
    server.limit_window(1 << 14)
    with server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3",
                           f"http://127.0.0.1:{server.port}")
        haulway.put(bytes(3 << 20), "s3://bkt/k", stall_timeout=1)
    assert 2 << 20 < sum(received) < 4 << 20


def test_a_missing_bucket_is_said(run, tmp_path, client, environment):
    for size in (1, 9 << 20):
        (tmp_path / "f").write_bytes(bytes(size))
        done = run("put", "f", "s3://none/k", code=2, env=environment)
        assert "of s3://none/k" in done.stderr
        assert "404" in done.stderr
        assert SECRET not in done.stderr


def test_profiles_are_read(run, tmp_path, client, environment, endpoint):
    """R40."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(
        f"[p]\naws_access_key_id = AKIDEXAMPLE\n"
        f"aws_secret_access_key = {SECRET}\n"
    )
    (tmp_path / ".aws/config").write_text(
        "[profile p]\nservices = local\nregion = eu-west-1\n"
        f"[services local]\ns3 =\n  endpoint_url = {endpoint}\n"
    )
    (tmp_path / "f").write_bytes(b"by profile")
    only = {"PATH": environment["PATH"], "HOME": str(tmp_path)}
    run("put", "f", "s3://bkt/k", env=only | {"AWS_PROFILE": "p"})
    assert body_of(client, "k") == b"by profile"
    (tmp_path / ".aws/config").write_text(
        "[profile p]\ncredential_process = printf "
        "'{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\"}'\n"
        f"endpoint_url = {endpoint}\n"
    )
    (tmp_path / ".aws/credentials").unlink()
    (tmp_path / "f").write_bytes(b"by process")
    run("put", "f", "s3://bkt/k", env=only | {"AWS_PROFILE": "p"})
    assert body_of(client, "k") == b"by process"


def test_a_forked_child_leaves_the_upload_of_its_parent_alone(
        client, environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    data = os.urandom(30 << 20)
    writer = haulway.archive.PyTorchFileWriter("s3://bkt/x.pt")
    writer.write_record("data/0", data)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        del writer
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.write_end_of_file()
    reader = haulway.archive.PyTorchFileReader(
        io.BytesIO(body_of(client, "x.pt")))
    assert reader.get_record("data/0") == data


@pytest.mark.parametrize("size", [9, 9 << 20])
@pytest.mark.parametrize("header", [
    b'ETag: "00000000000000000000000000000000"',
    b'ETag: "1"\r\nx-amz-checksum-crc32: AAAAAA=='])
def test_an_answer_that_names_other_bytes_is_seen(
    environment, monkeypatch, size, header
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")

    def answer(head, body):
        if head.startswith(b"PUT"):
            return b"HTTP/1.1 200 X\r\n%s\r\nContent-Length: 0\r\n\r\n" % header
        return None

    with ScriptedServer(store(answer)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3",
                           f"http://127.0.0.1:{server.port}")
        with pytest.raises(haulway.MismatchError):
            haulway.put(b"1" * size, "s3://bkt/k")


def parts_store(joined, kind=b""):
    """A store that answers parts with their MD5 and the end of an upload with
    `joined`: a function of the parts by number. kind: a header of all answers.
    """
    parts = {}

    def answer(head, body):
        if number := re.search(rb"partNumber=(\d+)", head):
            parts[int(number[1])] = body
            tag, text = hashlib.md5(body).hexdigest().encode(), b""
        elif head.startswith(b"POST") and b"uploads" not in head.split()[1]:
            text = (b"<CompleteMultipartUploadResult>%s"
                    b"</CompleteMultipartUploadResult>"
                    % joined([parts[i] for i in sorted(parts)]))
            tag = b"1"
        elif head.startswith(b"POST"):
            text, tag = (b"<InitiateMultipartUploadResult><UploadId>1</UploadId>"
                         b"</InitiateMultipartUploadResult>"), b"1"
        else:
            return None
        return (b"HTTP/1.1 200 OK\r\nETag: \"%s\"\r\n%sContent-Length: %d"
                b"\r\n\r\n%s" % (tag, kind, len(text), text))

    return store(answer)


def etag_of(parts):
    md5s = b"".join(hashlib.md5(one).digest() for one in parts)
    return (f'<ETag>"{hashlib.md5(md5s).hexdigest()}-{len(parts)}"</ETag>'
            .encode())


def crc_of(parts):
    crcs = b"".join(zlib.crc32(one).to_bytes(4, "big") for one in parts)
    text = base64.b64encode(zlib.crc32(crcs).to_bytes(4, "big"))
    return b"<ETag>1</ETag><ChecksumCRC32>%s-%d</ChecksumCRC32>" % (
        text, len(parts))


@pytest.mark.parametrize("by_path", [True, False])
@pytest.mark.parametrize("joined", [etag_of, crc_of])
def test_parts_together_are_those_that_were_sent(
    environment, monkeypatch, tmp_path, joined, by_path
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if joined is crc_of:
        monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
    data = os.urandom((17 << 20) + 5)
    path = tmp_path / "f"
    path.write_bytes(data)

    def put(of_parts, kind=b""):
        with ScriptedServer(parts_store(of_parts, kind)) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3",
                               f"http://127.0.0.1:{server.port}")
            haulway.put(path if by_path else data, "s3://bkt/k")

    put(joined)
    # A part is missing, changed, or in another place.
    for change in (lambda parts: parts[:-1],
                   lambda parts: [parts[0][:-1] + bytes([parts[0][-1] ^ 1]),
                                  *parts[1:]],
                   lambda parts: parts[::-1]):
        def lie(parts, change=change):
            return joined(change(parts))

        with pytest.raises(haulway.MismatchError, match="the store's"):
            put(lie)
        if joined is etag_of:  # The ETags of such an object are no MD5s.
            put(lie, b"x-amz-server-side-encryption: aws:kms\r\n")
