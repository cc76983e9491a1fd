"""Checkpoints behind http and https URLs: from a real nginx, and from a server
that misbehaves. The numbers R1 to R34 are those of
docs/remote-checklist.md."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import safetensors.torch
import torch

import haulway
import haulway.safetensors.numpy
import haulway.safetensors.torch
from compare import same_tensors
from haulway.archive import PyTorchFileReader
from haulway.safetensors import safe_open
from haulway.tensorizer import stream_io
from http_server import FaultServer

QUICK = {"stall_timeout": 0.3, "retries": 3}


@pytest.fixture(scope="module")
def tensors():
    torch.manual_seed(3)
    return {f"layer.{i}.weight": torch.randn(50, 100 + i) for i in range(40)}


def many_tensors(path, count):
    torch.save({f"module.{i}.weight": torch.full((16,), i) for i in range(count)},
               path)


def test_a_url_is_a_name_of_every_call(nginx, model, tensors, run):
    url = nginx.put("model.safetensors", model)
    same_tensors(haulway.load(url), tensors)
    with haulway.open(url) as checkpoint:
        name = next(iter(tensors))
        assert torch.equal(checkpoint[name], tensors[name])
        assert checkpoint.metadata == {}
    assert bool(haulway.verify(url))
    assert bool(haulway.scan(url))
    same_tensors(dict(haulway.iterate(url)), tensors)
    listed = json.loads(run("ls", url, "--json").stdout)
    assert [t["name"] for t in listed["tensors"]] == sorted(tensors)
    assert json.loads(run("info", url, "--json").stdout)["file"] == url
    run("verify", url)
    done = run("load", "--no-progress", url)
    assert f"({len(tensors)} storages, " in done.stdout


@pytest.mark.parametrize("count", [10, 2_000, 10_000])
def test_a_pt_opens_in_three_requests(nginx, tmp_path, count, monkeypatch):
    """R32, R33."""
    # Debugging reads the header of every record.
    monkeypatch.delenv("HAULWAY_SERIALIZATION_DEBUG", raising=False)
    path = tmp_path / "model.pt"
    many_tensors(path, count)
    url = nginx.put(f"many{count}.pt", path)
    nginx.requests()
    with haulway.open(url) as checkpoint:
        assert len(checkpoint) == count
        assert len(nginx.requests()) <= 3
        last = f"module.{count - 1}.weight"
        assert checkpoint[last].tolist() == [count - 1] * 16
        assert len(nginx.requests()) <= 1
    stats = {}
    loaded = haulway.load(url, stats=stats)
    assert loaded[last].tolist() == [count - 1] * 16
    found = nginx.requests()
    # Merged: far fewer requests than tensors, and counted.
    assert len(found) <= 8
    assert stats["requests"] == len(found)
    # Bytes in the first response are not read again.
    assert stats["read_bytes"] >= stats["tensor_bytes"] or count == 10
    assert all(line.startswith("GET ") and " 206 bytes=" in line
               and "," not in line and "bytes=-" not in line
               for line in found)  # R8, R9, R15.


def test_checksums_cost_no_requests(nginx, tmp_path):
    haulway.save({str(i): torch.rand(1 << 17) for i in range(32)},
                 tmp_path / "x.tensors")
    url = nginx.put("x.tensors", tmp_path / "x.tensors")
    counts = []
    for verify in (False, True):
        nginx.requests()
        haulway.load(url, verify=verify)
        counts.append(len(nginx.requests()))
    assert counts[0] == counts[1] <= 8


def test_the_verb_load_asks_for_many_tensors_at_once(nginx, tmp_path, run):
    haulway.save({str(i): torch.rand(1 << 17) for i in range(32)},
                 tmp_path / "y.tensors")
    url = nginx.put("y.tensors", tmp_path / "y.tensors")
    nginx.requests()
    run("load", url)
    assert len(nginx.requests()) <= 8


def test_verifying_waits_for_many_answers_at_once(tmp_path):
    haulway.save({str(i): torch.rand(1 << 16) for i in range(40)},
                 tmp_path / "x.pt")
    data = (tmp_path / "x.pt").read_bytes()
    lock, under_way, enough = threading.Lock(), [], threading.Event()

    def handler(request):
        with lock:
            under_way.append(1)
            if len(under_way) >= 8:
                enough.set()
        enough.wait(0.3)
        request.serve(data)
        with lock:
            under_way.pop()

    with FaultServer(handler) as server:
        assert haulway.verify(server.url()).ok
    assert enough.is_set()


@pytest.mark.parametrize("options", [
    {}, {"layout": "segments"}, {"key": bytes(32)}])
def test_tensors_are_verified_many_at_once(tmp_path, options):
    path = tmp_path / "x.tensors"
    haulway.save({str(i): torch.rand(1 << 14) for i in range(256)}, path,
                 **options)
    key = {"key": options["key"]} if "key" in options else {}
    data = bytearray(path.read_bytes())
    with FaultServer(lambda request: request.serve(data)) as server:
        # 16 MiB, of which each waiting thread has two requests.
        report = haulway.verify(server.url(), **key)
        assert report.ok
        assert report.checked_bytes > 256 << 16
        assert len(server.requests) <= 20
    data[len(data) // 2] ^= 1
    with FaultServer(lambda request: request.serve(data)) as server:
        assert len(haulway.verify(server.url(), **key).findings) == 1


def test_verifying_reads_nothing_that_is_locked(tmp_path):
    haulway.save({str(i): torch.rand(1 << 18) for i in range(8)},
                 tmp_path / "x.tensors", key=bytes(32))
    data = (tmp_path / "x.tensors").read_bytes()
    with FaultServer(lambda request: request.serve(data)) as server:
        unchecked = haulway.verify(server.url()).unchecked
        ranges = [request.range for request in server.requests]
    assert sum("is encrypted" in one.what for one in unchecked) == 8
    assert sum(last + 1 - first for first, last in ranges) < len(data) // 2


def test_other_formats_open_in_two_requests(nginx, tmp_path, tensors):
    """R32: however large the index is."""
    many = {f"a.rather.long.name.of.a.tensor.{i}": torch.full((4,), i)
            for i in range(8_000)}
    import gguf
    import tensorizer

    safetensors.torch.save_file(many, tmp_path / "x.safetensors")
    with open(tmp_path / "x.tensors", "wb+") as file:
        serializer = tensorizer.TensorSerializer(file)
        serializer.write_state_dict(dict(list(many.items())[:3000]))
        serializer.close()
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_token_list([f"token {i}" for i in range(60_000)])
    writer.add_tensor("w", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for name in ("x.safetensors", "x.tensors", "x.gguf"):
        url = nginx.put(name, tmp_path / name)
        nginx.requests()
        haulway.open(url).close()
        found = nginx.requests()
        assert len(found) <= 2, found


def test_shards_take_two_requests_each(nginx, tmp_path, tensors):
    haulway.convert(nginx.put("whole.safetensors",
                              safetensors.torch.save(tensors)),
                    tmp_path / "model.safetensors", shard=200_000)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 3
    for file in tmp_path.iterdir():
        nginx.put(f"sharded/{file.name}", file)
    nginx.requests()
    with haulway.open(
        nginx.url("sharded/model.safetensors.index.json")
    ) as checkpoint:
        assert len(nginx.requests()) <= 1 + 2 * len(shards)
        same_tensors({name: checkpoint[name] for name in tensors}, tensors)


def test_small_files_take_one_request(nginx):
    url = nginx.put("tiny.safetensors", safetensors.torch.save(
        {"a": torch.arange(5)}))
    nginx.requests()
    assert haulway.load(url)["a"].tolist() == [0, 1, 2, 3, 4]
    assert len(nginx.requests()) == 1


def test_empty_files_are_said_to_be_empty(nginx):
    """R6, R7."""
    with pytest.raises(haulway.TruncatedError, match="file is empty"):
        haulway.open(nginx.put("empty.pt", b""))
    for headers in ({"Content_Range": "bytes */0"}, {}):
        def answer(request, headers=headers):
            request.answer(416 if request.range else 200, **headers)

        with FaultServer(answer) as server:
            with pytest.raises(haulway.TruncatedError, match="file is empty"):
                haulway.open(server.url())
            # Without a length, another request finds that the file is empty.
            assert len(server.requests) == 1 + (not headers)


def test_a_416_is_no_empty_file_where_there_is_one(model, tensors):
    def answer(request):
        if request.range:
            request.answer(416)
        else:
            request.answer(200, model)

    with FaultServer(answer) as server:
        same_tensors(haulway.load(server.url()), tensors)
        assert len(server.requests) == 2


def test_servers_without_ranges_are_read_once(nginx, model, tensors):
    """R5, R29."""
    nginx.put("model.safetensors", model)
    nginx.requests()
    same_tensors(haulway.load(nginx.url("whole/model.safetensors")), tensors)
    assert len(nginx.requests()) == 1

    for head in (f"Content-Length: {len(model)}\r\n", ""):
        def old(request, head=head):
            request.send(f"HTTP/1.0 200 OK\r\n{head}\r\n", model)
            request.close()

        with FaultServer(old) as server:
            if head:
                same_tensors(haulway.load(server.url()), tensors)
            else:  # The body may have been cut.
                with pytest.raises(haulway.UnsupportedError,
                                   match="does not say how long"):
                    haulway.load(server.url())
            assert len(server.requests) == 1


def test_every_request_is_for_the_object_that_was_opened(model):
    """R10, R14."""
    with FaultServer(lambda r: r.serve(model, ETag='"v1"')) as server:
        haulway.load(server.url())
        first, *others = server.requests
        assert "if-match" not in first.headers
        assert others
        for request in server.requests:
            assert request.headers["accept-encoding"] == "identity"
        for request in others:
            assert request.headers["if-match"] == '"v1"'
    weak = {"ETag": 'W/"v1"', "Last_Modified": "Sun, 06 Nov 1994 08:49:37 GMT"}
    with FaultServer(lambda r: r.serve(model, **weak)) as server:
        haulway.load(server.url())  # R12
        for request in server.requests[1:]:
            assert "if-match" not in request.headers
            assert (request.headers["if-unmodified-since"]
                    == weak["Last_Modified"])


CHANGES = {
    "etag": lambda r, data: r.serve(
        data, ETag='"old"' if r.number == 0 else '"new"'),
    "weak etag": lambda r, data: r.serve(
        data, ETag='W/"old"' if r.number == 0 else 'W/"new"'),
    "date": lambda r, data: r.serve(
        data, Last_Modified=f"Sun, 06 Nov 1994 08:49:3{r.number % 2} GMT"),
    "size": lambda r, data: r.serve(data if r.number == 0 else data + b"x"),
    "412": lambda r, data: r.serve(data, ETag='"v"') if r.number == 0
    else r.answer(412),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_object_is_an_error(model, what):
    """R11."""
    with FaultServer(lambda r: CHANGES[what](r, model)) as server:
        with pytest.raises(haulway.CorruptError, match="the object changed"):
            haulway.load(server.url(), **QUICK)


def wrong_range(request, data):
    first, last = request.range
    last = min(last, len(data) - 1)
    by = -1 if first else 1
    request.answer(206, data[first + by:last + by + 1],
                   Content_Range=f"bytes {first + by}-{last + by}/{len(data)}")


def too_long(request, data):
    first, last = request.range
    last = min(last, len(data) - 2)
    request.send(f"HTTP/1.1 206 X\r\nContent-Range: bytes {first}-{last}/"
                 f"{len(data)}\r\n\r\n", data[first:last + 2])
    request.close()


def several_parts(request, data):
    request.answer(206, b"--x\r\n", Content_Type="multipart/byteranges; boundary=x")


def coded(request, data):
    request.answer(200, gzip.compress(data, 1), Content_Encoding="gzip")


def endless(request, data):
    request.send("HTTP/1.1 206 X\r\n", *[f"X-{i}: {'x' * 90}\r\n"
                                          for i in range(9999)])


def shorter_than_it_is(request, data):
    first, last = request.range
    request.answer(206, b"", Content_Range=f"bytes {first}-{last}/{len(data)}")


LIES = {
    "another range": (wrong_range, haulway.CorruptError,
                      "the answer is another range: expected bytes"),
    "more than the range": (too_long, haulway.CorruptError, "longer than"),
    "several parts": (several_parts, haulway.CorruptError, "several parts"),
    "a coding": (coded, haulway.UnsupportedError, "content coding 'gzip'"),
    "no end of headers": (endless, haulway.CorruptError, "head has no end"),
    "a length of its own": (shorter_than_it_is, haulway.CorruptError,
                            "contradicts itself"),
    "no range": (lambda r, d: r.answer(206, d), haulway.CorruptError,
                 "has Content-Range ''"),
    # What is said of it is libcurl's.
    "nonsense": (lambda r, d: r.send("220 smtp ready\r\n\r\n") or r.close(),
                 haulway.CorruptError, "."),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("from_request", [0, 1])
def test_lies_are_seen_through(model, lie, from_request):
    """R1, R2, R3, R14: detected at once, without a retry."""
    tell, error, text = LIES[lie]

    def handler(request):
        if request.number < from_request:
            request.serve(model)
        else:
            tell(request, model)

    with FaultServer(handler) as server:
        with pytest.raises(error, match=text):
            # Says nothing about a stall: on a busy machine a response is late.
            haulway.load(server.url(), connections=1, threads=1, retries=3)
        assert len(server.requests) == from_request + 1


PASSING = {
    "reset": lambda r, d: r.reset(),
    "close": lambda r, d: r.close(),
    "stall": lambda r, d: r.stall(),
    "drip": lambda r, d: r.drip(d, ETag='"v"'),
    "head alone": lambda r, d: r.send("HTTP/1.1 206 X\r\nContent-Le") or r.reset(),
    "500": lambda r, d: r.answer(500),
    "503": lambda r, d: r.answer(503, Retry_After="0"),
    "429": lambda r, d: r.answer(429, Retry_After="x"),
    "408": lambda r, d: r.answer(408),
}


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_tried_again(model, tensors, fault):
    """R20, R23, R24: every second request fails."""

    def handler(request):
        if request.number % 2 == 0:
            PASSING[fault](request, model)
        else:
            request.serve(model, ETag='"v"')

    with FaultServer(handler) as server:
        stats = {}
        same_tensors(haulway.load(server.url(), stats=stats, **QUICK), tensors)
        # A closed idle connection costs no retry (R25).
        assert stats["retries"] >= 1 or fault in ("reset", "close")


@pytest.mark.parametrize("at", [0, 1, 1000, 99_999])
def test_ranges_go_on_at_the_first_missing_byte(model, tensors, at):
    """R4."""
    cut = set()

    def handler(request):
        first, last = request.range
        last = min(last, len(model) - 1)
        if last - first >= at and first not in cut and last not in cut:
            cut.add(last)
            request.send(f"HTTP/1.1 206 X\r\nContent-Length: {last - first + 1}"
                         f"\r\nContent-Range: bytes {first}-{last}/{len(model)}"
                         "\r\n\r\n", model[first:first + at])
            return request.reset() if at % 2 else request.close()
        request.serve(model)

    with FaultServer(handler) as server:
        same_tensors(haulway.load(server.url(), **QUICK), tensors)
        starts = [request.range[0] for request in server.requests]
        assert not at or starts[0] + at in starts


def test_retries_have_an_end(model):
    """R20."""
    with FaultServer(lambda r: r.answer(503)) as server:
        with pytest.raises(haulway.UnavailableError, match="answers 503"):
            haulway.load(server.url(), retries=2)
        assert len(server.requests) == 3


@pytest.mark.parametrize(("retries", "count"), [(0, 1), (2, 3), (None, 6)])
def test_opening_adds_no_retries_of_its_own(tmp_path, retries, count):
    """R20: for requests after the server was found."""
    many_tensors(tmp_path / "model.pt", 3000)
    data = (tmp_path / "model.pt").read_bytes()

    def handler(request):
        if request.range[0] == 0:
            return request.serve(data)
        request.answer(503)

    with FaultServer(handler) as server:
        with pytest.raises(haulway.UnavailableError, match="answers 503"):
            haulway.open(server.url(), retries=retries)
        assert len(server.requests) == 1 + count


def test_clients_do_not_retry_in_step(model):
    """R22: each client waits for a random time, initially up to 0.2 s."""
    waits = []
    for _ in range(8):
        failed = []

        def handler(request, failed=failed):
            failed.append(time.monotonic())
            request.serve(model) if failed[1:] else request.answer(503)

        with FaultServer(handler) as server:
            haulway.open(server.url()).close()
            waits.append(failed[1] - failed[0])
    assert max(waits) - min(waits) > 0.02


def test_statuses_are_errors_of_their_kind():
    kinds = {404: haulway.NotFoundError, 410: haulway.NotFoundError,
             403: PermissionError, 401: haulway.Error}
    for status, kind in kinds.items():
        with FaultServer(lambda r: r.answer(status, b"secret body")) as server:  # noqa: B023
            with pytest.raises(kind) as caught:
                haulway.open(server.url("/m?X-Amz-Signature=secret"))
            assert "secret" not in str(caught.value)
            assert len(server.requests) == 1


@pytest.mark.parametrize("store", ["Amz", "Goog"])
def test_an_expired_url_says_when_it_ended(store):
    """R39."""
    query = (f"/m?X-{store}-Date=20261122T120000Z&X-{store}-Expires=900"
             f"&X-{store}-Signature=abc")
    with FaultServer(lambda r: r.answer(403)) as server:
        with pytest.raises(PermissionError,
                           match="expired at 2026-11-22T12:15:00Z") as caught:
            haulway.open(server.url(query))
        assert "abc" not in str(caught.value)


def test_redirects(model, tensors):
    """R16, R17, R18."""
    with FaultServer(lambda r: r.serve(model)) as other:
        def handler(request):
            request.answer(302, Location={
                "/model": other.url("/elsewhere"), "/loop": "/loop",
                "/file": "file:///etc/passwd", "/ftp": "ftp://x/y",
            }[request.target])

        with FaultServer(handler) as server:
            secret = {"headers": {"X-Token": "secret", "Cookie": "secret"},
                      "bearer_token": "secret"}
            same_tensors(haulway.load(server.url(), **secret), tensors)
            assert server.requests[0].headers["x-token"] == "secret"
            assert (server.requests[0].headers["authorization"]
                    == "Bearer secret")
            for request in other.requests:
                assert "secret" not in str(request.headers)
            # The target of the redirect is remembered.
            assert len(server.requests) == 1
            with pytest.raises(haulway.LimitError, match="more than 10"):
                haulway.load(server.url("/loop"))
            for path in ("/file", "/ftp"):
                with pytest.raises(haulway.UnsupportedError,
                                   match="cannot be followed"):
                    haulway.load(server.url(path))


def test_a_netrcs_default_goes_to_no_other_host(model, tensors, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("default login u password secret\n")
    with FaultServer(lambda r: r.serve(model)) as other:
        with FaultServer(
            lambda r: r.answer(302, Location=other.url("/elsewhere"))
        ) as server:
            same_tensors(haulway.load(server.url(), netrc=netrc), tensors)
            assert "authorization" in server.requests[0].headers
        assert other.requests
        for request in other.requests:
            assert "authorization" not in request.headers


def test_passwords_in_urls_are_used_and_not_shown(model, tensors, tmp_path):
    """R30."""
    def handler(request):
        if request.headers.get("authorization") != "Basic dTpwQHNz":  # u:p@ss
            return request.answer(401)
        request.serve(model)

    with FaultServer(handler) as server:
        url = server.url().replace("//", "//u:p%40ss@")
        same_tensors(haulway.load(url), tensors)
        with pytest.raises(haulway.Error) as caught:
            haulway.load(url.replace("p%40ss", "wrongword"))
        assert "wrongword" not in str(caught.value)
        netrc = tmp_path / "netrc"
        netrc.write_text("machine 127.0.0.1 login u password p@ss\n")
        same_tensors(haulway.load(server.url(), netrc=netrc), tensors)


def test_a_netrc_that_cannot_be_read_is_said(model, run, tmp_path):
    with FaultServer(lambda request: request.serve(model)) as server:
        with pytest.raises(haulway.NotFoundError, match="cannot read netrc"):
            haulway.load(server.url(), netrc=tmp_path / "none")
        with pytest.raises(ValueError, match="netrc .* is a folder"):
            haulway.load(server.url(), netrc=tmp_path)
        done = run("ls", "--netrc", "none", server.url(), code=2)
        assert "cannot read netrc 'none'" in done.stderr
        assert not server.requests


def _read_stream(url):
    with stream_io.open_stream(url) as stream:
        return stream.read()


@pytest.mark.parametrize("call", [
    haulway.load, lambda url: haulway.open(url)["layer.0.weight"],
    lambda url: list(haulway.iterate(url)), haulway.verify, haulway.scan,
    lambda url: safe_open(url, "pt").get_slice("layer.0.weight")[3:5],
    lambda url: safe_open(url, "pt").get_tensors(),
    lambda url: safe_open(url, "np", backend="pread").get_tensors(),
    haulway.safetensors.torch.load_file, haulway.safetensors.numpy.load_file,
    _read_stream, lambda url: stream_io.CURLStreamFile(url).read(),
    lambda url: PyTorchFileReader(f"{url}.pt").get_all_records(),
])
def test_every_call_follows_what_is_configured_for_urls(model, call, tmp_path):
    many_tensors(tmp_path / "model.pt", 3)
    archive = (tmp_path / "model.pt").read_bytes()
    with FaultServer(lambda request: request.serve(
        archive if request.target == "/model.pt" else model
    )) as server:
        with haulway.config(load={"headers": {"X-Who": "me"},
                                  "bearer_token": "secret"}):
            call(server.url())
        assert server.requests
        for request in server.requests:
            assert request.headers["x-who"] == "me"
            assert request.headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("verb", [
    "ls", "ls --tree", "ls --stats", "info", "verify", "scan", "load", "cat w",
    "cat nothing", "plan-reads", "plan-reads --include nothing", "manifest",
    "map -o out.html", "get out", "convert out.npz", "repack out.safetensors",
    "repair out.safetensors", "encrypt out.tensors --keyfile key",
    "edit --set a=b", "diff URL", "put redis://u:passw0rd@127.0.0.1:9/x",
])
@pytest.mark.parametrize("name", ["model.safetensors", "broken", "nothing"])
def test_no_verb_shows_what_is_secret_in_a_url(
    nginx, model, run, tmp_path, verb, name
):
    nginx.put("model.safetensors", model)
    nginx.put("broken", b"12345678abcdef")
    (tmp_path / "key").write_bytes(b"k" * 32)
    url = nginx.url(name).replace("://", "://me:passw0rd@")
    url += "?X-Amz-Signature=s3cret"
    verb, *more = verb.replace("URL", url).split()
    for form in ([], ["--json"]):
        done = run(verb, url, *more, *form, code=None)
        written = [one.read_bytes() for one in tmp_path.iterdir()]
        for text in (done.stdout.encode(), done.stderr.encode(), *written):
            assert b"s3cret" not in text and b"passw0rd" not in text


def test_bearer_tokens(nginx, model, tensors, run):
    nginx.put("model.safetensors", model)
    url = nginx.url("private/model.safetensors")
    same_tensors(haulway.load(url, bearer_token="secret-token"), tensors)
    with pytest.raises(haulway.Error, match="401"):
        haulway.load(url)
    done = run("ls", url, "--bearer-env", "TOKEN",
               env={**os.environ, "TOKEN": "secret-token"})
    assert "secret-token" not in done.stdout + done.stderr
    run("ls", url, "--header", "Authorization: Bearer secret-token")


def test_every_verb_of_files_asks_as_its_options_say(nginx, model, run, tmp_path):
    nginx.put("model.safetensors", model)
    url = nginx.url("private/model.safetensors")
    (tmp_path / "x.safetensors").write_bytes(model)
    for verb in (["ls", url, "--stats"], ["manifest", url],
                 ["diff", url, "x.safetensors"], ["diff", "x.safetensors", url],
                 ["repair", url, "out.safetensors"],
                 ["repair", "x.safetensors", "out.safetensors", "--from", url],
                 ["convert", url, "out.pt"], ["map", url, "--json"],
                 ["verify", url], ["scan", url], ["info", url]):
        refused = run(*verb, code=None)
        assert refused.returncode != 0 and "401" in refused.stderr, verb
        run(*verb, "--header", "Authorization: Bearer secret-token")


def test_tls(nginx, model, tensors, run, monkeypatch, tmp_path):
    """R28."""
    nginx.put("model.safetensors", model)
    url = nginx.tls_url("model.safetensors")
    same_tensors(haulway.load(url, ca_file=nginx.ca), tensors)
    with pytest.raises(haulway.Error, match="certificate"):
        haulway.load(url)
    with pytest.raises(haulway.Error, match="127.0.0.1"):
        haulway.load(nginx.tls_url("model.safetensors", "127.0.0.1"),
                     ca_file=nginx.ca)
    with pytest.warns(UserWarning, match="insecure") as warned:
        same_tensors(haulway.load(url, insecure=True), tensors)
    assert [warning.filename for warning in warned] == [__file__]
    assert "warning" in run("ls", "--insecure", url).stderr
    run("ls", "--ca-file", nginx.ca, url)
    for variable in ("CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(variable, str(nginx.ca))
        same_tensors(haulway.load(url), tensors)
        monkeypatch.delenv(variable)
    folder = tmp_path / "certificates"
    folder.mkdir()
    shutil.copy(nginx.ca, folder / "ca.pem")
    subprocess.run(["openssl", "rehash", folder], check=True)
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    same_tensors(haulway.load(url), tensors)
    other = tmp_path / "other.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
         "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
         "/CN=other", "-keyout", tmp_path / "key", "-out", other],
        check=True, capture_output=True)
    with pytest.raises(haulway.Error, match="certificate"):
        haulway.load(url, ca_file=other)
    run("ls", "--ca-file", other, url, code=2)
    monkeypatch.delenv("SSL_CERT_DIR")
    with pytest.raises(haulway.UnsupportedError,  # R19
                       match="redirects from https to http"):
        haulway.load(nginx.tls_url("down"), ca_file=nginx.ca)


def test_a_folder_is_opened_without_being_listed(nginx, model, tensors, run):
    nginx.put("folder/model.safetensors", model)
    nginx.requests()
    same_tensors(haulway.load(nginx.url("folder/")), tensors)
    assert [line.split()[1:3] for line in nginx.requests()][:1] == [
        ["/folder/model.safetensors", "206"]]
    assert "w" in run("ls", nginx.url("folder/")).stdout
    nginx.put("shards/a.safetensors", model)
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "a.safetensors")}
    nginx.put("shards/model.safetensors.index.json", json.dumps(index).encode())
    same_tensors(haulway.load(nginx.url("shards/")), tensors)
    (nginx.root / "none").mkdir()
    # nginx does not list the folder.
    with pytest.raises(haulway.PermissionDeniedError,
                       match="answers 403.*a folder with one of model.safe"):
        haulway.open(nginx.url("none/"))
    with pytest.raises(haulway.NotFoundError, match="has none of model.safe"):
        haulway.open(nginx.url("nowhere/"))


def test_a_url_that_ends_in_a_slash_may_be_a_file(model, tensors):
    def handler(request):
        if request.target != "/download/?x=1":
            return request.answer(404)
        request.serve(model)

    with FaultServer(handler) as server:
        same_tensors(haulway.load(server.url("/download/?x=1")), tensors)


def test_a_length_that_is_not_told_is_told_of_a_source():
    def handler(request):
        first, last = request.range
        request.answer(206, bytes(last - first + 1),
                       Content_Range=f"bytes {first}-{last}/*")

    with FaultServer(handler) as server:
        with pytest.raises(haulway.UnsupportedError,
                           match=f"how long the object is; of {server.url()}"):
            haulway.open(server.url())


def test_proxies(model, tensors, monkeypatch):
    """R27."""
    with FaultServer(lambda r: r.serve(model)) as proxy:
        address = f"http://127.0.0.1:{proxy.port}"
        same_tensors(haulway.load("http://model.example/m", proxy=address), tensors)
        assert proxy.requests[0].target == "http://model.example/m"
        monkeypatch.setenv("http_proxy", address)
        same_tensors(haulway.load("http://other.example/m"), tensors)
        before = len(proxy.requests)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with FaultServer(lambda r: r.serve(model)) as server:
            same_tensors(haulway.load(server.url()), tensors)
        assert len(proxy.requests) == before


@pytest.mark.parametrize("proxy", [
    "http://u:s3cret@[::1", "http://u:s3cret@127.0.0.1:99999",
    "foo://u:s3cret@127.0.0.1:1", "http://u:s3cret@127.0.0.1:1",
    "u:s3cret@no host",
])
def test_a_proxys_password_is_not_shown(proxy):
    with pytest.raises(haulway.Error) as caught:
        haulway.load("http://model.example/m", proxy=proxy, retries=0)
    assert "s3cret" not in str(caught.value)


def test_an_interrupt_ends_a_read_at_once():
    """R26."""
    with FaultServer(lambda r: r.stall()) as server:
        child = subprocess.Popen(
            [sys.executable, "-c",
             "import haulway, sys; haulway.open(sys.argv[1])", server.url()],
            stderr=subprocess.PIPE, text=True)
        while not server.requests:
            assert child.poll() is None
            time.sleep(0.02)
        time.sleep(0.1)
        start = time.monotonic()
        child.send_signal(signal.SIGINT)
        _, error = child.communicate(timeout=20)
        assert time.monotonic() - start < 8
        assert "KeyboardInterrupt" in error


def test_many_requests_of_one_connection(nginx, tmp_path):
    """R34: this nginx closes each connection after twenty requests."""
    url = nginx.put("rows.npy", b"")
    np.save(nginx.root / "rows.npy", np.arange(3 << 20, dtype=np.uint8))
    nginx.requests()
    with haulway.open(url, framework="numpy", connections=1) as checkpoint:
        rows = checkpoint.get_slice(next(iter(checkpoint)))
        for i in range(60):
            at = 1_100_000 + i * 1000
            assert rows[at:at + 3].tolist() == [at % 256, (at + 1) % 256,
                                                (at + 2) % 256]
    assert len(nginx.requests()) >= 60


def test_names_are_encoded(nginx, model, tensors):
    nginx.put("a folder/ä b.safetensors", model)
    same_tensors(haulway.load(nginx.url("a folder/ä b.safetensors#part")), tensors)
