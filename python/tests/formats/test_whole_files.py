"""haulway.get and haulway.put, and calls that write directly to URLs."""

import functools
import hashlib
import os
import re
import signal
import subprocess
import sys
import time

import numpy
import pytest
import safetensors.torch
import torch

import haulway
from compare import same_tensors
from http_server import FaultServer
from remote_servers import ScriptedServer, store

TENSORS = {"w": torch.arange(3_000_000), "b": torch.ones(7)}
same = functools.partial(same_tensors, expected=TENSORS)


@pytest.fixture
def redis_url(redis_port):
    return f"redis://127.0.0.1:{redis_port}"


@pytest.fixture
def s3_of(monkeypatch):
    """Returns a function that selects the S3 server for a URL through the
    environment."""
    def name(url):
        for key, value in {
            "AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s3cret",
            "AWS_ENDPOINT_URL_S3": url,
        }.items():
            monkeypatch.setenv(key, value)

    return name


@pytest.fixture
def bucket(bucket, endpoint, s3_of):
    s3_of(endpoint)
    return bucket


def test_a_file_is_brought_whole(nginx, tmp_path):
    data = os.urandom((9 << 20) + 5)
    url = nginx.put("data.bin", data)
    seen, stats = [], {}
    done = haulway.get(
        url, tmp_path / "d", stats=stats,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert (tmp_path / "d").read_bytes() == data
    assert os.listdir(tmp_path) == ["d"]
    assert done == stats and done["bytes"] == len(data)
    assert done["requests"] >= 3 and done["resumed_bytes"] == 0
    assert seen[-1] == (len(data), len(data))
    with pytest.raises(haulway.NotFoundError):
        haulway.get(nginx.url("nothing"), tmp_path / "n")
    assert os.listdir(tmp_path) == ["d"]


def test_a_file_is_checked_before_it_takes_its_name(nginx, tmp_path):
    torch.save(TENSORS, tmp_path / "m.pt")
    good = (tmp_path / "m.pt").read_bytes()
    bad = bytearray(good)
    bad[len(bad) // 2] ^= 1
    haulway.get(nginx.put("m.pt", good), tmp_path / "good", verify=True)
    assert (tmp_path / "good").read_bytes() == good
    with pytest.raises(haulway.MismatchError):
        haulway.get(nginx.put("x.pt", bytes(bad)), tmp_path / "bad",
                    verify=True)
    assert sorted(os.listdir(tmp_path)) == ["good", "m.pt"]


def test_what_progress_raises_ends_it_and_the_rest_comes_later(nginx, tmp_path):
    data = os.urandom(200 << 20)
    url = nginx.put("long.bin", data)

    def stop(done, total):
        if done > total * 2 // 3:
            raise KeyError(done)

    with pytest.raises(KeyError):
        haulway.get(url, tmp_path / "d", progress=stop, connections=2)
    assert not (tmp_path / "d").exists()
    done = haulway.get(url, tmp_path / "d")
    assert done["resumed_bytes"] > len(data) // 2
    assert (tmp_path / "d").read_bytes() == data


def test_a_killed_process_is_gone_on_with(tmp_path):
    """Bytes that arrived before SIGKILL are not requested again."""
    data = os.urandom(120 << 20)
    held = {"now": True}

    def handle(request):
        # The last part is sent only to later requests.
        first = request.range[0] if request.range else 0
        if held["now"] and first > 100 << 20:
            return request.stall()
        return request.serve(data, ETag='"1"')

    with FaultServer(handle) as server:
        target = tmp_path / "d"
        program = f"import haulway; haulway.get({server.url()!r}, {str(target)!r})"
        process = subprocess.Popen([sys.executable, "-c", program])
        state = tmp_path / ".d.haulway-part.state"
        deadline = time.monotonic() + 60
        # Wait for marks of more than half of the blocks; '.' marks a missing
        # one.
        while not state.exists() or state.stat().st_size < 960 or (
            state.read_bytes().count(b".") > 0.45 * state.stat().st_size
        ):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not target.exists()
        held["now"] = False
        done = haulway.get(server.url(), target)
        assert done["resumed_bytes"] >= 60 << 20
        # Exclude those of the killed process, which the server may log late.
        asked = [request.range for request in server.requests[-done["requests"]:]]
        brought = sum(last - first + 1 for first, last in asked)
        assert brought <= len(data) - done["resumed_bytes"] + (1 << 20)
        assert target.read_bytes() == data
        assert os.listdir(tmp_path) == ["d"]


def test_a_file_is_put_whole(bucket, redis_url, tmp_path):
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file(TENSORS, path)
    done = haulway.put(path, "s3://bkt/m.safetensors", connections=3)
    assert done["bytes"] == path.stat().st_size
    same(haulway.load("s3://bkt/m.safetensors"))
    haulway.put(b"12345", "s3://bkt/five")
    with open(path, "rb") as file:
        haulway.put(file, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()
    haulway.put("s3://bkt/five", redis_url + "/?key=five")
    haulway.get(redis_url + "/?key=five", tmp_path / "five")
    assert (tmp_path / "five").read_bytes() == b"12345"


@pytest.mark.parametrize("is_url, most", [(False, 110), (True, 200)])
def test_putting_a_long_file_takes_little_memory(nginx, s3_of, is_url, most):
    """Parts of a local file are read when they are sent; parts of a remote
    source are kept while they are in transit."""
    program = ("import sys, haulway; haulway.put(*sys.argv[1:]); "
               "print(open('/proc/self/status').read())")
    with open(nginx.root / "long", "wb") as file:
        file.truncate(1 << 30)
    source = nginx.url("long") if is_url else nginx.root / "long"
    with ScriptedServer(store()) as server:
        s3_of(f"http://127.0.0.1:{server.port}")
        done = subprocess.run([sys.executable, "-c", program, source,
                               "s3://bkt/k"],
                              check=True, capture_output=True, text=True)
    (nginx.root / "long").unlink()
    used = re.search(r"VmHWM:\s+([0-9]+) kB", done.stdout)
    assert int(used[1]) < most << 10


def test_getting_a_long_file_takes_little_memory(nginx, tmp_path):
    """R31."""
    program = ("import sys, haulway; haulway.get(*sys.argv[1:]); "
               "print(open('/proc/self/status').read())")
    with open(nginx.root / "long", "wb") as file:
        file.truncate(1 << 30)
    done = subprocess.run([sys.executable, "-c", program, nginx.url("long"),
                           tmp_path / "long"],
                          check=True, capture_output=True, text=True)
    (nginx.root / "long").unlink()
    assert (tmp_path / "long").stat().st_size == 1 << 30
    (tmp_path / "long").unlink()
    used = re.search(r"VmHWM:\s+([0-9]+) kB", done.stdout)
    assert int(used[1]) < 200 << 10


@pytest.mark.parametrize("signing", ["true", "false"])
def test_parts_of_a_file_are_sent_again(s3_of, tmp_path, monkeypatch, signing):
    data = os.urandom((20 << 20) + 7)
    (tmp_path / "f").write_bytes(data)
    (tmp_path / "config").write_text(
        f"[default]\ns3 =\n  payload_signing_enabled = {signing}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    parts, failed, digests = {}, [], []

    def answer(head, body):
        number = re.search(rb"partNumber=(\d+)", head)
        if number is None:
            return None
        if number[1] == b"2" and not failed:
            failed.append(number)
            return b"HTTP/1.1 503 Slow\r\nContent-Length: 0\r\n\r\n"
        parts[int(number[1])] = body
        digest = re.search(rb"(?i)\nx-amz-content-sha256: (.*)\r", head)[1]
        digests.append((digest, hashlib.sha256(body).hexdigest().encode()))
        return None

    with ScriptedServer(store(answer)) as server:
        s3_of(f"http://127.0.0.1:{server.port}")
        haulway.put(tmp_path / "f", "s3://bkt/k")
    assert failed and sorted(parts) == [1, 2, 3]
    assert b"".join(parts[number] for number in sorted(parts)) == data
    for sent, expected in digests:
        assert sent == (expected if signing == "true" else b"UNSIGNED-PAYLOAD")


def test_a_url_is_put_in_few_requests(nginx, redis_url, tmp_path):
    path = tmp_path / "m.safetensors"
    haulway.save({"w": torch.rand(10 << 20)}, path)
    url = nginx.put(path.name, path)
    nginx.requests()
    haulway.put(url, redis_url + "/?key=m")
    assert len(nginx.requests()) < 10  # The file has 40 MiB.
    assert torch.equal(haulway.load(redis_url + "/?key=m")["w"],
                       haulway.load(path)["w"])


def test_what_is_there_is_kept_where_that_is_asked(bucket, tmp_path):
    haulway.put(b"1", "s3://bkt/a")
    for url in ("s3://bkt/a", tmp_path / "a"):
        haulway.put(b"1", url)
        with pytest.raises(haulway.Error):
            haulway.put(b"2", url, clobber=False)
        haulway.get(url, tmp_path / "b")
        assert (tmp_path / "b").read_bytes() == b"1"
        haulway.put(b"2", url, overwrite=True)
        haulway.get(url, tmp_path / "b")
        assert (tmp_path / "b").read_bytes() == b"2"
    with pytest.raises(ValueError, match="overwrite=True and clobber=False"):
        haulway.put(b"1", "s3://bkt/a", overwrite=True, clobber=False)


@pytest.mark.parametrize("ending", ["pt", "safetensors", "tensors", "npz"])
def test_saving_goes_straight_to_a_url(bucket, ending):
    url = f"s3://bkt/folder/m.{ending}"
    done = haulway.save(TENSORS, url, connections=2)
    assert done["tensor_bytes"] >= 24_000_028
    same(haulway.load(url))
    done = haulway.save_async({"c": numpy.ones(3)}, url).result()
    assert done["bytes"] > 0
    assert list(haulway.load(url)) == ["c"]
    assert not bucket.list_multipart_uploads(Bucket="bkt").get("Uploads")


def test_saving_to_redis(redis_url):
    url = redis_url + "/m"
    haulway.save(TENSORS, url, format="tensorizer")
    same(haulway.load(url))
    haulway.save(TENSORS, redis_url + "/?key=m.safetensors",
                 format="safetensors")
    same(haulway.load(redis_url + "/?key=m.safetensors"))


def test_a_writer_goes_to_a_url(bucket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = "s3://bkt/model.safetensors"
    with haulway.writer(url, connections=2) as out:
        out.add("b", TENSORS["b"])
        part = out.add_part("w", "int64", (3_000_000,))
        for rows in TENSORS["w"].split(1_000_000):
            part.write(rows)
        assert "Contents" not in bucket.list_objects_v2(Bucket="bkt")
        out.commit()
    same(haulway.load(url))
    with haulway.writer(url, shard="20MB") as out:
        for name, tensor in TENSORS.items():
            out.add(name, tensor)
        files = out.commit()["files"]
    assert files[-1] == "s3://bkt/model.safetensors.index.json"
    same(haulway.load(files[-1]))
    assert os.listdir(tmp_path) == []


def test_converting_goes_to_a_url_as_it_is_told(bucket, tmp_path):
    torch.save(TENSORS, tmp_path / "m.pt")
    haulway.convert(tmp_path / "m.pt", "s3://bkt/m.safetensors", connections=2)
    same(haulway.load("s3://bkt/m.safetensors"))


def test_options_of_urls_reach_what_is_written_to(monkeypatch, tmp_path):
    """Every call that writes uses the proxy."""
    seen = []

    def handle(request):
        if "HTTP/1.1" in request.first:  # Other data is a body.
            seen.append(request.target)
        request.answer(403)
        request.close()

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3.example")
    with FaultServer(handle) as server:
        told = {"proxy": server.url("")}
        torch.save(TENSORS, tmp_path / "m.pt")

        def write():
            with haulway.writer("s3://bkt/m.safetensors", **told) as out:
                out.add("b", TENSORS["b"])
                out.commit()

        for call in (
            lambda: haulway.save(TENSORS, "s3://bkt/m.pt", **told),
            lambda: haulway.save(TENSORS, "s3://bkt/m.tensors", **told),
            lambda: haulway.save_async(
                TENSORS, "s3://bkt/m.npz", **told).result(),
            lambda: haulway.put(b"12", "s3://bkt/m", **told),
            lambda: haulway.convert(
                tmp_path / "m.pt", "s3://bkt/m.npz", **told),
            write,
        ):
            seen.clear()
            with pytest.raises(PermissionError):
                call()
            assert seen and seen[0].startswith("http://s3.example/bkt/m")
        with pytest.raises(TypeError, match="no such option"):
            haulway.save(TENSORS, "s3://bkt/m.pt", header={})
