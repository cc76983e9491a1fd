"""Downloading a file: complete or not at all, resumable, and verified."""

import errno
import io
import json
import os
import resource
import signal
import subprocess
import threading
import time

import pytest
import torch

import haulway
from http_server import FaultServer


@pytest.fixture(scope="module")
def tensors():
    return {"w": torch.randn(400, 100)}


@pytest.mark.parametrize("verify", [False, True])
def test_get(nginx, model, tmp_path, run, verify):
    url = nginx.put("model.safetensors", model)
    out = tmp_path / "out" / "copy.safetensors"
    out.parent.mkdir()
    told = json.loads(run("get", url, out, "--json",
                          *(["--verify"] if verify else [])).stdout)
    assert out.read_bytes() == model
    assert told["bytes"] == len(model)
    assert told["resumed_bytes"] == 0
    assert told["requests"] >= 1
    assert os.listdir(out.parent) == [out.name]
    run("get", url.replace("model.", "missing."), out, code=None)
    assert out.read_bytes() == model


def test_get_goes_on_where_it_was_stopped(tmp_path, run, command):
    data = os.urandom(40 << 20)
    gate = threading.Event()

    def handler(request):
        if request.range and request.range[0] >= 20 << 20 and not gate.is_set():
            return request.stall()
        request.serve(data, ETag='"v"')

    out = tmp_path / "out" / "big.bin"
    out.parent.mkdir()
    with FaultServer(handler) as server:
        child = subprocess.Popen([command, "get", server.url(), str(out),
                                  "--connections", "2"])
        state = out.parent / ".big.bin.haulway-part.state"
        deadline = time.monotonic() + 20
        while len([r for r in server.requests
                   if r.range[0] >= 20 << 20]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert not out.exists()
        # A regular stop, so that received blocks are recorded.
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=10) == 130
        assert state.exists()
        gate.set()
        told = json.loads(run("get", server.url(), out, "--json").stdout)
    assert told["resumed_bytes"] >= 12 << 20
    assert out.read_bytes() == data
    assert os.listdir(out.parent) == [out.name]


def test_get_goes_on_where_it_was_killed(tmp_path, run, command):
    data = os.urandom(160 << 20)
    gate = threading.Event()

    def handler(request):
        if request.range and request.range[0] >= 120 << 20 and not gate.is_set():
            return request.stall()
        request.serve(data, ETag='"v"')

    out = tmp_path / "big.bin"
    with FaultServer(handler) as server:
        child = subprocess.Popen([command, "get", server.url(), str(out),
                                  "--connections", "2"])
        deadline = time.monotonic() + 20
        while len([r for r in server.requests
                   if r.range[0] >= 120 << 20]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        child.kill()
        child.wait(timeout=10)
        gate.set()
        told = json.loads(run("get", server.url(), out, "--json").stdout)
    # All received blocks had been recorded, except the last.
    assert told["resumed_bytes"] >= 64 << 20
    assert out.read_bytes() == data
    assert os.listdir(tmp_path) == [out.name]


def test_a_killed_get_keeps_what_had_arrived(tmp_path, run, command):
    """Includes parts of requests that were not completed."""
    data = os.urandom(40 << 20)
    gate = threading.Event()
    served = []

    def handler(request):
        first, last = request.range
        if first == 0 or gate.is_set():
            return request.serve(data, ETag='"v"')
        last = min(last, len(data) - 1)
        request.send(f"HTTP/1.1 206 X\r\nContent-Length: {last - first + 1}\r\n"
                     f'ETag: "v"\r\nContent-Range: bytes {first}-{last}/'
                     f"{len(data)}\r\n\r\n", data[first:first + (900 << 10)])
        served.append(first)
        request.stall()

    out = tmp_path / "big.bin"
    state = tmp_path / ".big.bin.haulway-part.state"
    with FaultServer(handler) as server:
        child = subprocess.Popen([command, "get", server.url(), str(out),
                                  "--connections", "4"])
        deadline = time.monotonic() + 30
        # Seven blocks of 128 KiB of each request.
        while not state.exists() or state.read_bytes().count(b"w") < 4 * 7:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert len(served) == 4
        child.kill()
        child.wait(timeout=10)
        gate.set()
        del server.requests[:]
        told = json.loads(run("get", server.url(), out, "--json").stdout)
        again = sum(min(r.range[1], len(data) - 1) - r.range[0] + 1
                    for r in server.requests if r.range[0])
    assert told["resumed_bytes"] >= 4 * 7 * (128 << 10)
    assert again <= len(data) - told["resumed_bytes"]
    assert out.read_bytes() == data
    assert os.listdir(tmp_path) == [out.name]


def test_after_another_boot_only_what_is_on_the_disk_counts(
    tmp_path, run, command
):
    data = os.urandom(9 << 20)
    out = tmp_path / "x.bin"
    state = tmp_path / ".x.bin.haulway-part.state"
    gate = threading.Event()

    def handler(request):
        if request.range[0] >= 8 << 20 and not gate.is_set():
            return request.answer(404)
        request.serve(data, ETag='"v"')

    with FaultServer(handler) as server:
        run("get", server.url(), out, "--connections", "1", code=None)
        head, boot, marks = state.read_bytes().rsplit(b"\n", 2)
        assert marks.count(b"w") == 64
        state.write_bytes(head + b"\n" + b"0" * len(boot) + b"\n"
                          + b"d" * 8 + marks[8:])
        gate.set()
        told = json.loads(run("get", server.url(), out, "--json").stdout)
    assert told["resumed_bytes"] == 1 << 20
    assert out.read_bytes() == data


def test_get_starts_anew_where_the_object_changed(tmp_path, run, command):
    old, new = os.urandom(9 << 20), os.urandom(9 << 20)
    out = tmp_path / "x.bin"
    changed = threading.Event()

    def handler(request):
        if changed.is_set():
            return request.serve(new, ETag='"new"')
        if request.range[0] >= 8 << 20:
            return request.answer(404)
        request.serve(old, ETag='"old"')

    with FaultServer(handler) as server:
        run("get", server.url(), out, code=None)
        assert (tmp_path / ".x.bin.haulway-part").exists()
        changed.set()
        told = json.loads(run("get", server.url(), out, "--json").stdout)
    assert told["resumed_bytes"] == 0
    assert out.read_bytes() == new
    assert sorted(os.listdir(tmp_path)) == ["x.bin"]


@pytest.mark.parametrize("status", [202, 203, 204, 226])
def test_a_success_without_the_file_replaces_nothing(tmp_path, run, status):
    """A store that still restores the object, or a firewall's challenge."""
    out = tmp_path / "x.bin"
    out.write_bytes(b"old")
    with FaultServer(lambda request: request.answer(status)) as server:
        said = run("get", server.url(), out, code=2).stderr
        assert f"the server answers {status}, without the object" in said
        with pytest.raises(haulway.IoError, match="without the object"):
            haulway.open(server.url())
    assert out.read_bytes() == b"old"


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can be somebody else")
@pytest.mark.parametrize("name", ["", ".state"])
def test_get_does_not_go_on_with_a_file_of_another_user(tmp_path, run, name):
    data = os.urandom(9 << 20)
    out = tmp_path / "x.bin"

    def first(request):
        if request.range[0] >= 8 << 20:
            return request.answer(404)
        request.serve(data, ETag='"v"')

    with FaultServer(first) as server:
        run("get", server.url(), out, "--connections", "1", code=None)
    os.chown(tmp_path / f".x.bin.haulway-part{name}", 65534, -1)
    with FaultServer(lambda r: r.serve(data, ETag='"v"')) as server:
        said = run("get", server.url(), out, code=None).stderr
        assert "belongs to user 65534" in said
        assert not out.exists()
        # The owner of the folder can change its files anyway.
        os.chown(tmp_path, 65534, -1)
        run("get", server.url(), out)
    assert out.read_bytes() == data


def test_get_does_not_go_on_with_another_object_of_the_same_etag(
    tmp_path, run
):
    """Servers make ETags of a time and a size."""
    one, other = os.urandom(9 << 20), os.urandom(9 << 20)
    out = tmp_path / "x.bin"

    def handler(request):
        if request.target == "/other":
            return request.serve(other, ETag='"v"')
        if request.range[0] >= 8 << 20:
            return request.answer(404)
        request.serve(one, ETag='"v"')

    with FaultServer(handler) as server:
        run("get", server.url("/one"), out, code=None)
        assert (tmp_path / ".x.bin.haulway-part").exists()
        told = json.loads(run("get", server.url("/other"), out, "--json").stdout)
    assert told["resumed_bytes"] == 0
    assert out.read_bytes() == other


def test_get_does_not_keep_what_does_not_verify(nginx, model, tmp_path, run):
    url = nginx.put("broken.safetensors", model[:-7])
    out = tmp_path / "o" / "x.safetensors"
    out.parent.mkdir()
    run("get", url, out, "--verify", code=1)
    assert os.listdir(out.parent) == []


def test_get_checks_what_is_encrypted_with_its_key(tmp_path, run):
    key, other = bytes(range(32)), bytes(32)
    path, out = tmp_path / "x.tensors", tmp_path / "o" / "x.tensors"
    out.parent.mkdir()
    haulway.save({"w": torch.ones(1 << 10)}, path, key=key)
    data = bytearray(path.read_bytes())
    for name, text in (("key", key), ("other", other)):
        (tmp_path / name).write_bytes(text)

    def serve(request):
        request.serve(data)

    with FaultServer(serve) as server:
        url = server.url()
        run("get", url, out, "--verify", "--keyfile", tmp_path / "key")
        haulway.get(url, out, verify=True, key=key)
        assert out.read_bytes() == data
        out.unlink()
        run("get", url, out, "--verify", "--keyfile", tmp_path / "other", code=1)
        with pytest.raises(haulway.DecryptError):
            haulway.get(url, out, verify=True, key=other)
        assert os.listdir(out.parent) == []
    data[-1000] ^= 1  # A byte of the payload.
    with FaultServer(serve) as server:
        url = server.url()
        run("get", url, out, "--verify", "--keyfile", tmp_path / "key", code=1)
        with pytest.raises(haulway.Error):
            haulway.get(url, out, verify=True, key=key)
        assert os.listdir(out.parent) == []


def test_get_checks_as_it_is_told(nginx, tmp_path, run):
    torch.save({"w": torch.ones(3)}, tmp_path / "x.pt")
    # No file of Haulway has trailing bytes; PyTorch accepts them.
    url = nginx.put("x.pt", (tmp_path / "x.pt").read_bytes() + b"more")
    out = tmp_path / "o" / "x.pt"
    out.parent.mkdir()
    run("get", url, out, "--verify", code=1)
    with pytest.raises(haulway.Error):
        haulway.get(url, out, verify=True)
    run("get", url, out, "--verify", "--lenient")
    haulway.get(url, out, verify=True, lenient=True)


@pytest.mark.parametrize("mib, number", [(1, "1"), (100, "1"), (100, "2")])
def test_nothing_is_kept_after_a_failed_sync(tmp_path, watched, mib, number):
    """Pages that could not be written count as clean afterwards."""
    data = os.urandom(1 << 20) * mib
    code = ("import sys, haulway\n"
            "print(haulway.get(sys.argv[1], sys.argv[2])['resumed_bytes'],"
            " file=sys.stderr)")
    out = tmp_path / "out" / "x.bin"
    out.parent.mkdir()
    with FaultServer(lambda request: request.serve(data, ETag='"v"')) as server:
        status, errors, _ = watched(code, server.url(), out, FAIL_FSYNC=number)
        assert status != 0 and "Input/output error" in errors
        assert os.listdir(out.parent) == []
        status, errors, _ = watched(code, server.url(), out)
    assert status == 0 and errors == "0\n"
    assert out.read_bytes() == data


@pytest.mark.parametrize("error", ["ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def test_a_file_system_without_locks_will_do(tmp_path, watched, error):
    """Lustre has locks only if it is mounted so."""
    data = os.urandom(1 << 20)
    code = ("import sys, haulway, numpy\n"
            "haulway.get(sys.argv[1], sys.argv[2])\n"
            "haulway.save({'w': numpy.ones(3)}, sys.argv[3])\n"
            "haulway.edit(sys.argv[3], set={'a': 'b'})\n")
    with FaultServer(lambda request: request.serve(data, ETag='"v"')) as server:
        status, errors, _ = watched(
            code, server.url(), tmp_path / "x.bin", tmp_path / "x.safetensors",
            FAIL_FLOCK=str(getattr(errno, error)))
    assert (status, errors) == (0, "")
    assert (tmp_path / "x.bin").read_bytes() == data


@pytest.fixture
def fill():
    """Returns a function after which no file grows beyond 1 MiB, as on a full
    disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, old[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_full_disk_is_named_with_the_file(tmp_path, fill):
    data = io.BytesIO(bytes(24 << 20))
    with pytest.raises(haulway.IoError,
                       match="write failed: File too large.*; of .*/y.pt$"):
        haulway.get(data, tmp_path / "y.pt", threads=1, progress=fill)


def test_a_full_disk_is_named_with_the_tensor_and_the_file(tmp_path, fill):
    fill()
    with haulway.writer(tmp_path / "y.pt") as out:
        with pytest.raises(haulway.IoError,
                           match="write failed: .*; in 'w'; of .*/y.pt$"):
            out.add("w", torch.zeros(1 << 20))
