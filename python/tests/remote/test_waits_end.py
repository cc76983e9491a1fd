"""Every wait of every call and verb ends: by its time limit, by Ctrl-C within a
second, and soon after its peer is gone, whatever the source or the target does."""

import collections
import concurrent.futures
import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import haulway
from http_server import FaultServer
from remote_servers import ScriptedServer, redis_server
from source_calls import CALLS, WAYS, plain, save_files, words
from writing_calls import calls as writing_calls

# Seconds: tests share their machine. Without its end, each wait takes minutes.
SOON = 8
GONE = 20


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file of several answers."""
    path = tmp_path_factory.mktemp("data") / "m.safetensors"
    haulway.save({name: np.random.rand(400, 500) for name in "ab"}, path)
    return path.read_bytes()


class Http:
    """Answers truly until the `after`-th answer for a file, of which `share`
    comes, and then nothing; with share None, not even a head."""

    def __init__(self, data, after, share):
        self.data, self.after, self.share = data, after, share
        self.stalled = threading.Event()

    def __call__(self, request):
        self.seen[request.target] += 1
        if self.seen[request.target] <= self.after:
            return request.serve(self.data, ETag='"1"')
        if self.share is not None:
            first, last = request.range or (0, len(self.data) - 1)
            last = min(last, len(self.data) - 1)
            request.send(
                f"HTTP/1.1 206 X\r\nContent-Length: {last - first + 1}\r\n"
                f'ETag: "1"\r\nContent-Range: bytes {first}-{last}/'
                f"{len(self.data)}\r\n\r\n",
                self.data[first:first + int((last - first) * self.share)])
        self.stalled.set()
        request.stall()

    @contextlib.contextmanager
    def source(self, monkeypatch, folder):
        self.stalled.clear()
        self.seen = collections.Counter()
        with FaultServer(self) as server:
            yield server.url("/m.safetensors"), server.leave


class S3(Http):
    @contextlib.contextmanager
    def source(self, monkeypatch, folder):
        for name, value in {"AWS_ACCESS_KEY_ID": "AKID",
                            "AWS_SECRET_ACCESS_KEY": "s3cret",
                            "HOME": str(folder)}.items():
            monkeypatch.setenv(name, value)
        self.stalled.clear()
        self.seen = collections.Counter()
        with FaultServer(self) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3",
                               f"http://127.0.0.1:{server.port}")
            yield "s3://bkt/m.safetensors", server.leave


class Redis:
    """A plain value, of which `share` comes; with share None not even its
    length."""

    def __init__(self, data, share):
        self.data, self.share = data, share
        self.stalled = threading.Event()

    def serve(self, one):
        while asked := one.recv(4096):
            if b"WATCH" in asked:
                one.sendall(b"+OK\r\n")
            elif b"STRLEN" in asked and self.share is not None:
                one.sendall(b":%d\r\n" % len(self.data))
            elif b"MULTI" in asked:
                one.sendall(b"+OK\r\n*0\r\n")
            else:
                if b"GETRANGE" in asked and self.share is not None:
                    words = asked.split(b"\r\n")
                    first, last = int(words[6]), int(words[8])
                    one.sendall(b"$%d\r\n" % (last - first + 1))
                    one.sendall(self.data[
                        first:first + int((last - first) * self.share)])
                self.stalled.set()

    @contextlib.contextmanager
    def source(self, monkeypatch, folder):
        self.stalled.clear()
        with ScriptedServer(self.serve) as server:
            yield (f"redis://127.0.0.1:{server.port}/?key=m.safetensors",
                   server.leave)


SERVERS = {
    "http, before the first byte": lambda data: Http(data, 0, None),
    "http, after the head": lambda data: Http(data, 0, 0),
    "s3, before the first byte": lambda data: S3(data, 0, None),
    "s3, in the second answer": lambda data: S3(data, 1, 0.3),
    "redis, before the first byte": lambda data: Redis(data, None),
    "redis, in a value": lambda data: Redis(data, 0.3),
}


@pytest.fixture(params=SERVERS)
def stalling(request, data):
    return SERVERS[request.param](data)


def ended(work, errors):
    """Runs a call; returns how long it took to end with one of the errors, or
    without one."""
    start = time.monotonic()
    with contextlib.suppress(*errors):
        plain(work())
    return time.monotonic() - start


FAILURES = (haulway.Error, OSError, ValueError, RuntimeError, TypeError)


LIMITS = [{"timeout": 0.2}, {"stall_timeout": 0.2, "retries": 0}]


def of_all(calls, limits, threads=8):
    """Runs functions, at once. Returns a dict of how long each took."""
    def run(call):
        with haulway.config(load=limits):
            return ended(call, FAILURES)

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return dict(zip(calls, pool.map(run, calls.values())))


def named(url, number):
    """Returns the URL of another file of the same server."""
    return url.replace("m.safetensors", f"{number}.safetensors")


@pytest.mark.parametrize("limits", LIMITS)
def test_calls_end_by_their_time_limits(
    stalling, tmp_path, monkeypatch, limits
):
    with stalling.source(monkeypatch, tmp_path) as (url, _):
        took = of_all({
            name: lambda call=call, i=i: call(
                named(url, i), str(tmp_path / f"{i}.pt"))
            for i, (name, call) in enumerate(CALLS.items())}, limits)
    assert {name: one for name, one in took.items() if one >= SOON} == {}


def writing_to(url, folder, data):
    """Returns functions that write to files of a server."""
    source = folder / "source"
    source.write_bytes(data)
    return {name: lambda call=call, i=i: call(str(source), named(url, i))
            for i, (name, call) in enumerate(writing_calls().items())}


# Servers that are written to.
TARGETS = [name for name in SERVERS if name.endswith("before the first byte")]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("server", TARGETS)
def test_calls_that_write_end_by_their_time_limits(
    server, data, tmp_path, monkeypatch, limits
):
    with SERVERS[server](data).source(monkeypatch, tmp_path) as (url, _):
        took = of_all(writing_to(url, tmp_path, data), limits)
    assert {name: one for name, one in took.items() if one >= SOON} == {}


@pytest.mark.parametrize("server", TARGETS)
def test_calls_that_write_end_when_their_peer_is_gone(
    server, data, tmp_path, monkeypatch
):
    with SERVERS[server](data).source(monkeypatch, tmp_path) as (url, leave):
        calls = writing_to(url, tmp_path, data)
        timer = threading.Timer(1, leave)
        timer.start()
        took = of_all(calls, {"retries": 2}, len(calls))
        timer.join()
    assert {name: one for name, one in took.items() if one >= GONE} == {}


@pytest.mark.parametrize("server", TARGETS)
def test_calls_that_write_end_by_an_interrupt(
    server, data, tmp_path, monkeypatch
):
    stalling = SERVERS[server](data)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with stalling.source(monkeypatch, tmp_path) as (url, _):
            for name, call in writing_to(url, tmp_path, data).items():
                stalling.stalled.clear()
                seconds = interrupted(call, stalling.stalled)
                assert seconds is None or seconds < SOON, name
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", SERVERS)
def test_calls_end_by_an_interrupt(name, data, tmp_path, monkeypatch):
    stalling = SERVERS[name](data)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for name, call in CALLS.items():
            with stalling.source(monkeypatch, tmp_path) as (url, _):
                seconds = interrupted(
                    lambda: call(url, str(tmp_path / "out.pt")),  # noqa: B023
                    stalling.stalled)
            assert seconds is None or seconds < SOON, name
    finally:
        signal.signal(signal.SIGINT, before)


def interrupted(work, stalled):
    """Runs a call and interrupts it when its source has stalled. Returns how
    long it took to end then; None if it never got there."""
    sent = []
    over = threading.Event()

    def interrupt():
        while not stalled.wait(0.02):
            if over.is_set():
                return
        time.sleep(0.1)
        if not over.is_set():
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        try:
            plain(work())
        except (*FAILURES, KeyboardInterrupt):
            pass
        done = time.monotonic()
        over.set()
        thread.join()
    except KeyboardInterrupt:  # It came after the call.
        thread.join()
        return None
    return done - sent[0] if sent else None


def test_calls_end_when_their_peer_is_gone(stalling, tmp_path, monkeypatch):
    for name, call in CALLS.items():
        with stalling.source(monkeypatch, tmp_path) as (url, leave):
            def go():
                if stalling.stalled.wait(30):
                    leave()

            thread = threading.Thread(target=go)
            thread.start()
            with haulway.config(load={"retries": 2}):
                seconds = ended(
                    lambda: call(url, str(tmp_path / "out.pt")), FAILURES)  # noqa: B023
            stalling.stalled.set()
            thread.join()
        assert seconds < GONE, name


def test_verbs_end_by_their_time_limits_and_interrupts(
    stalling, command, tmp_path, monkeypatch
):
    (tmp_path / "key").write_bytes(bytes(32))
    for way in WAYS:
        limits = [["--timeout", "0.5"], None]
        for limit in limits:
            with stalling.source(monkeypatch, tmp_path) as (url, _):
                line = words(way, lambda name: url)  # noqa: B023
                if url not in line or way.startswith("bulk") and not limit:
                    continue
                start = time.monotonic()
                child = subprocess.Popen(
                    [command, *line, *(limit or [])], cwd=tmp_path,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    start_new_session=True)
                try:
                    if limit is None:
                        while not stalling.stalled.wait(0.02):
                            if child.poll() is not None:
                                break
                        time.sleep(0.1)
                        start = time.monotonic()
                        child.send_signal(signal.SIGINT)
                    child.wait(timeout=60)
                    seconds = time.monotonic() - start
                finally:
                    child.kill()
                    child.wait()
                assert seconds < SOON, (way, limit)


@pytest.mark.parametrize("server", TARGETS)
def test_verbs_that_write_end_by_their_time_limits(
    server, data, command, tmp_path, monkeypatch
):
    save_files(tmp_path, (40, 50))
    with SERVERS[server](data).source(monkeypatch, tmp_path) as (url, _):
        children = {}
        for way in WAYS:
            line = words(way, str)
            if any(word.startswith("out.") for word in line):
                line = [named(url, word) if word.startswith("out.") else word
                        for word in line]
                children[way] = subprocess.Popen(
                    [command, *line, "--timeout", "0.5"], cwd=tmp_path,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        late = []
        for way, child in children.items():
            try:
                child.wait(GONE)
            except subprocess.TimeoutExpired:
                late.append(way)
                child.kill()
                child.wait()
        assert late == []


def test_calls_end_that_wait_for_a_pipe(tmp_path):
    """Pipes have no time limits."""
    pipe = tmp_path / "m.safetensors"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    os.write(writer, b"1234")
    stalled = threading.Event()
    stalled.set()
    try:
        for name, call in CALLS.items():
            seconds = interrupted(
                lambda: call(str(pipe), str(tmp_path / "out.pt")), stalled)  # noqa: B023
            assert seconds is None or seconds < SOON, name
    finally:
        os.close(writer)


class Stalling(io.BytesIO):
    """A file object that reads truly `after` times, and then nothing."""

    def __init__(self, data, after):
        super().__init__(data)
        self.left, self.stalled = after, threading.Event()

    def read(self, *arguments):
        self.wait()
        return super().read(*arguments)

    def readinto(self, out):
        self.wait()
        return super().readinto(out)

    def wait(self):
        self.left -= 1
        if self.left < 0:
            self.stalled.set()
            time.sleep(60)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_calls_end_that_read_a_file_object(after, data, tmp_path):
    for name, call in CALLS.items():
        file = Stalling(data, after)
        seconds = interrupted(
            lambda: call(file, str(tmp_path / "out.pt")), file.stalled)  # noqa: B023
        assert seconds is None or seconds < SOON, name


FORKS = """
import os, signal, sys, threading, numpy, haulway
checkpoint = haulway.open(sys.argv[1], "numpy")
name = next(iter(checkpoint))
stop = threading.Event()

def read():
    while not stop.is_set():
        checkpoint.get_slice(name)[1:3]

threads = [threading.Thread(target=read) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        checkpoint.get_slice(name)[5:9]
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
"""


@contextlib.contextmanager
def true_redis(data, folder):
    with redis_server(folder) as port:
        url = f"redis://127.0.0.1:{port}/?key=m.safetensors"
        haulway.put(data, url)
        yield url, None


@pytest.mark.parametrize("kind", [Http, S3, Redis])
def test_a_child_forked_beside_reads_can_read(
    kind, data, tmp_path, monkeypatch
):
    server = (true_redis(data, tmp_path) if kind is Redis else
              kind(data, 1 << 30, None).source(monkeypatch, tmp_path))
    with server as (url, _):
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS, url],
                              capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
