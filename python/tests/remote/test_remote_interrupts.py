"""Ctrl-C ends every wait for a silent server within a second."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch

import haulway
from http_server import FaultServer
from remote_servers import ScriptedServer, store

# Seconds: tests share their machine. Without an interrupt each call waits for
# 10 s and more.
SOON = 8
KEYBOARD_INTERRUPT = 7
# A call, without finalizing the interpreter.
PROGRAM = """
import os, sys, torch, haulway
url, file = sys.argv[1:]
try:
    {}
except KeyboardInterrupt:
    os._exit(7)
"""


def program(call, url, file):
    return [sys.executable, "-c", PROGRAM.format(call), url, file]



@pytest.fixture
def environment(tmp_path):
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path),
            "AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s3cret",
            "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture
def interrupted(environment):
    """Runs a program until `waiting` returns true, and interrupts it. It must
    end soon with the exit code: within a second on an idle machine."""

    def interrupted(words, waiting, code, **variables):
        child = subprocess.Popen(
            list(map(str, words)), env={**environment, **variables},
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            end = time.monotonic() + 60
            while not waiting():
                assert child.poll() is None, child.stderr.read()
                assert time.monotonic() < end
                time.sleep(0.02)
            time.sleep(0.2)
            start = time.monotonic()
            child.send_signal(signal.SIGINT)
            child.wait(timeout=20)
            seconds = time.monotonic() - start
            error = child.stderr.read()
        finally:
            child.kill()
            child.communicate()
        assert child.returncode == code, error
        assert seconds < SOON, (seconds, error)

    return interrupted


class Silent:
    """A port that accepts connections and never responds."""

    def __init__(self):
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.port = self._socket.getsockname()[1]
        self.taken = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                self.taken.append(self._socket.accept())
            except OSError:
                return

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection, _ in self.taken:
            connection.close()


@pytest.mark.parametrize("words", [
    ["get", "URL", "out"], ["ls", "URL"], ["info", "URL"], ["load", "URL"],
    ["verify", "URL"], ["scan", "URL"], ["cat", "URL", "w"], ["plan", "URL"],
    ["manifest", "URL"], ["diff", "URL", "URL"], ["convert", "URL", "out.npz"],
    ["ls", "URL", "URL"], ["put", "URL", "out"],
])
def test_verbs_that_open(command, interrupted, tmp_path, words):
    with Silent() as silent:
        for scheme in ("http", "redis", "rediss"):
            silent.taken.clear()
            url = f"{scheme}://127.0.0.1:{silent.port}/m"
            done = [word.replace("URL", url).replace("out", f"{tmp_path}/out")
                    for word in words]
            interrupted([command, *done], lambda: silent.taken, 130)
    assert not [name for name in os.listdir(tmp_path) if "out" in name]


@pytest.mark.parametrize("call", [
    "haulway.open(url)", "haulway.load(url)", "haulway.verify(url)",
    "haulway.scan(url)", "list(haulway.iterate(url))", "haulway.get(url, file)",
    "haulway.convert(url, file + '.npz')", "haulway.manifest(url)",
    "haulway.put(url, file)",
])
def test_calls_that_open(interrupted, tmp_path, call):
    with Silent() as silent:
        interrupted(
            program(call, f"http://127.0.0.1:{silent.port}/m", tmp_path / "out"),
            lambda: silent.taken, KEYBOARD_INTERRUPT)
    assert os.listdir(tmp_path) == []


class Stops:
    """Serves the beginning of a file, and stops in the middle of the rest."""

    def __init__(self, data):
        self.stalled = 0
        self.data = data

    def __call__(self, request):
        first, last = request.range
        if first == 0 or first > len(self.data) - (2 << 20):
            return request.serve(self.data, ETag='"1"')
        last = min(last, len(self.data) - 1)
        request.send(f"HTTP/1.1 206 X\r\nContent-Length: {last - first + 1}\r\n"
                     f'ETag: "1"\r\nContent-Range: bytes {first}-{last}/'
                     f"{len(self.data)}\r\n\r\n",
                     self.data[first:min(first + 300_000, last)])
        self.stalled += 1
        request.stall()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "m.pt"
    haulway.save({f"w{i}": torch.rand(1 << 20) for i in range(6)}, path)
    return path.read_bytes()


@pytest.mark.parametrize("words", [
    ["get", "URL", "out"], ["load", "URL"], ["verify", "URL"],
    ["cat", "URL", "w1"], ["manifest", "URL"], ["convert", "URL", "out.npz"],
    ["put", "URL", "out"],
])
def test_verbs_whose_server_stops_in_the_middle(
    command, interrupted, tmp_path, large, words
):
    stops = Stops(large)
    with FaultServer(stops) as server:
        done = [word.replace("URL", server.url()).replace("out", f"{tmp_path}/out")
                for word in words]
        interrupted([command, *done], lambda: stops.stalled, 130)
    left = {".out.haulway-part", ".out.haulway-part.state"}
    assert set(os.listdir(tmp_path)) == (left if words[0] == "get" else set())


@pytest.mark.parametrize("call", [
    "haulway.load(url)", "haulway.open(url)['w1']", "haulway.verify(url)",
    "haulway.open(url).get_slice('w1')[:9]",
    "list(haulway.iterate(url))", "haulway.get(url, file)",
    "haulway.manifest(url)", "haulway.convert(url, file + '.npz')",
])
def test_calls_whose_server_stops_in_the_middle(
    interrupted, tmp_path, large, call
):
    stops = Stops(large)
    with FaultServer(stops) as server:
        interrupted(program(call, server.url(), tmp_path / "out"),
                    lambda: stops.stalled, KEYBOARD_INTERRUPT)


def object_store(silent_at):
    """Returns the function of an object store that stops responding at the
    request that `silent_at` matches, and an Event that is set from then on."""
    reached = threading.Event()

    def answer(head, body):
        if silent_at(head):
            reached.set()
        if not reached.is_set():
            return None
        time.sleep(30)
        return None

    return store(answer), reached


PARTS = {
    "begin": lambda head: b"?uploads" in head,
    "a part": lambda head: b"partNumber=2" in head,
    "the end": lambda head: head.startswith(b"POST") and b"uploadId=" in head,
}


WRITES = {
    "haulway.put": "haulway.put(file, url)",
    "haulway.save": "haulway.save({'w': torch.zeros(9 << 20)}, url)",
}


@pytest.mark.parametrize("when", PARTS)
@pytest.mark.parametrize("how", ["put", "haulway.put", "haulway.save"])
def test_uploads(command, interrupted, tmp_path, when, how):
    (tmp_path / "f").write_bytes(bytes(20 << 20))
    serve, reached = object_store(PARTS[when])
    words = [command, "put", tmp_path / "f", "s3://bkt/k"]
    code = 130
    if how != "put":
        words = program(WRITES[how], "s3://bkt/k", tmp_path / "f")
        code = KEYBOARD_INTERRUPT
    with ScriptedServer(serve) as server:
        interrupted(words, reached.is_set, code,
                    AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{server.port}")


def test_an_upload_that_is_interrupted_is_ended(command, interrupted, tmp_path):
    """The store still responds to the abort request."""
    (tmp_path / "f").write_bytes(bytes(20 << 20))
    reached, heads = threading.Event(), []

    def answer(head, body):
        heads.append(head)
        if b"partNumber=2" in head:
            reached.set()
            time.sleep(30)
        if head.startswith(b"DELETE"):
            return b"HTTP/1.1 204 X\r\nContent-Length: 0\r\n\r\n"
        return None

    with ScriptedServer(store(answer)) as server:
        interrupted([command, "put", tmp_path / "f", "s3://bkt/k"], reached.is_set,
                    130, AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{server.port}")
    assert any(head.startswith(b"DELETE") for head in heads)


def redis_that_stops(commands):
    """Answers a number of commands of a writer, and then nothing."""
    reached = threading.Event()
    left = [commands]

    def serve(one):
        while data := one.recv(1 << 20):
            if b"EXISTS" in data and left[0] > 0:
                left[0] -= 1
                one.sendall(b":0\r\n")
                continue
            reached.set()

    return serve, reached


@pytest.mark.parametrize("how", ["put", "haulway.put", "haulway.save"])
def test_writing_to_redis(command, interrupted, tmp_path, how):
    haulway.save({"w": torch.zeros(9 << 20)}, tmp_path / "m.tensors")
    serve, reached = redis_that_stops(1)
    with ScriptedServer(serve) as server:
        url = f"redis://127.0.0.1:{server.port}/m"
        words = [command, "put", tmp_path / "m.tensors", url]
        code = 130
        if how != "put":
            words = program(WRITES[how], url, tmp_path / "m.tensors")
            code = KEYBOARD_INTERRUPT
        interrupted(words, reached.is_set, code)


def test_a_credential_process(command, interrupted, tmp_path):
    (tmp_path / ".aws").mkdir()
    mark = tmp_path / "mark"
    (tmp_path / ".aws" / "config").write_text(
        f"[default]\ncredential_process = echo $$ > {mark}; sleep 60; true\n")
    interrupted([command, "ls", "s3://bkt/k"],
                lambda: mark.exists() and mark.read_text(), 130,
                AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    with pytest.raises(ProcessLookupError):  # The child process has ended, too.
        os.kill(int(mark.read_text()), 0)


def test_standard_input(command, interrupted, tmp_path):
    start = time.monotonic()
    interrupted([command, "put", "-", tmp_path / "out"],
                lambda: time.monotonic() - start > 1, 130)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("scheme", ["http", "redis"])
def test_a_resolver_that_says_nothing(scheme, command, interrupted, preloaded,
                                      tmp_path):
    asked = tmp_path / "asked"
    interrupted([command, "ls", f"{scheme}://model.example/m"], asked.exists, 130,
                ASKED=str(asked), LD_PRELOAD=preloaded("silent_resolver"))
