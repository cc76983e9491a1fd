"""Tensorizer files and plain values in Redis, on a real server."""

import contextlib
import io
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

import numpy
import pytest
import redis
import tensorizer
import torch

import haulway
from compare import same_tensors
from haulway._reading.source import open_source
from haulway._reading.streams import read_range
from haulway.tensorizer.stream_io import open_stream
from remote_servers import ScriptedServer, certificate, free_port, redis_server

ODD = {
    "a.weight": torch.arange(6.0).reshape(2, 3),
    "b": torch.arange(5, dtype=torch.bfloat16),
    "x:y": torch.arange(3),
    "with space": torch.ones(2),
    "é\t": torch.zeros(1),
    "nested": {"1": torch.ones(4), "2": torch.zeros(2)},
    "empty": torch.empty(0),
}


@pytest.fixture
def url(redis_port):
    return f"redis://127.0.0.1:{redis_port}/"


def file_of(path, tensors):
    haulway.save(tensors, path)
    return path


def put_as_the_reference_does(client, prefix, path):
    reader = tensorizer.TensorDeserializer(str(path), lazy_load=True)
    reader.to_redis(client, prefix)


def values_of(client, prefix):
    cut = len(prefix.encode())
    return {
        key[cut:]: client.get(key) for key in client.keys("*")
        if key.startswith(prefix.encode() + b":")
    }


def test_the_keys_are_the_references(client, url, tmp_path):
    """R59, R61."""
    path = file_of(tmp_path / "t.tensors", ODD)
    put_as_the_reference_does(client, "p/q", path)
    haulway.save(ODD, url + "ours", format="tensorizer")
    theirs, ours = values_of(client, "p/q"), values_of(client, "ours")
    assert set(ours) == set(theirs)
    assert ours == theirs


def test_what_the_reference_wrote_is_read(client, url, tmp_path):
    """R59."""
    put_as_the_reference_does(
        client, "m", file_of(tmp_path / "t.tensors", ODD)
    )
    same_tensors(haulway.load(url + "m"), ODD)
    assert haulway.verify(url + "m").ok


def test_what_is_written_the_reference_reads(client, url):
    """R59."""
    tensors = {"a": torch.arange(6.0), "x:y": torch.ones(3)}
    haulway.save(tensors, url + "m", format="tensorizer")
    reader = tensorizer.TensorDeserializer(url + "m", verify_hash=True)
    same_tensors(dict(reader.items()), tensors)


def test_prefixes_that_begin_alike_are_never_mixed(client, url):
    """R60."""
    old, new = {"w": torch.zeros(3)}, {"w": torch.ones(3)}
    haulway.save(old, url + "m", format="tensorizer")
    haulway.save(new, url + "m:v2", format="tensorizer")
    haulway.save(new, url + "m*", format="tensorizer")
    same_tensors(haulway.load(url + "m"), old)
    same_tensors(haulway.load(url + "m:v2"), new)


def test_data_in_many_keys_is_joined(client, url, tmp_path):
    tensors = {"a": torch.rand(1 << 18), "b": torch.rand(7)}
    put_as_the_reference_does(
        client, "m", file_of(tmp_path / "t.tensors", tensors)
    )
    key = max(client.keys("m:a:*"), key=client.strlen)
    data, start = client.get(key), int(key.split(b":")[-1])
    client.delete(key)
    for at in range(0, len(data), 100_000):
        client.set(f"m:a:{start + at}", data[at:at + 100_000])
    same_tensors(haulway.load(url + "m"), tensors)


def test_long_data_is_cut_as_the_reference_can_read_it(client, url):
    """More data than a Redis value can hold (R63)."""
    tensors = {"a": torch.arange(150 << 20, dtype=torch.int32)}
    haulway.save(tensors, url + "m", format="tensorizer")
    sizes = [client.strlen(key) for key in client.keys("m:a:*")]
    assert max(sizes) == 64 << 20
    assert sum(sizes) > 600 << 20
    same_tensors(haulway.load(url + "m"), tensors)
    with tensorizer.TensorDeserializer(
        url + "m", device="cpu", verify_hash=True
    ) as reader:
        assert torch.equal(reader["a"], tensors["a"])


def test_what_is_there_is_not_replaced(client, url):
    """R62."""
    haulway.save({"w": torch.zeros(3)}, url + "m", format="tensorizer")
    with pytest.raises(haulway.Error, match="'m:header:0' is there already"):
        haulway.save({"w": torch.ones(3)}, url + "m", format="tensorizer")
    # This class has no such option, so the message names the calls that have.
    with pytest.raises(haulway.Error, match="which save, writer, convert"):
        with haulway.tensorizer.TensorSerializer(url + "m") as out:
            out.write_state_dict({"w": torch.ones(3)})
    same_tensors(haulway.load(url + "m"), {"w": torch.zeros(3)})


def write(prefix, tensors, **options):
    with haulway.writer(prefix, "tensorizer", **options) as out:
        for name, tensor in tensors.items():
            out.add(name, tensor)
        out.commit()


WRITERS = {
    "save": lambda to, path, tensors, **o: haulway.save(
        tensors, to, "tensorizer", **o),
    "save_async": lambda to, path, tensors, **o: haulway.save_async(
        tensors, to, "tensorizer", **o).result(),
    "writer": lambda to, path, tensors, **o: write(to, tensors, **o),
    "convert": lambda to, path, tensors, **o: haulway.convert(
        path, to, "tensorizer", **o),
    "put": lambda to, path, tensors, **o: haulway.put(path, to, **o),
}


@pytest.mark.parametrize("call", WRITERS)
def test_each_call_that_writes_can_replace_a_prefix(
    client, url, tmp_path, call
):
    """R62: what the message says, the call takes."""
    assert set(WRITERS) == set(haulway._options.WRITING["overwrite"].calls)
    new = {"w": torch.ones(3)}
    path = file_of(tmp_path / "t.tensors", new)
    haulway.save({"w": torch.zeros(3), "x": torch.zeros(2)}, url + "m",
                 format="tensorizer")
    with pytest.raises(haulway.Error, match="or the option overwrite"):
        WRITERS[call](url + "m", path, new)
    WRITERS[call](url + "m", path, new, overwrite=True)
    same_tensors(haulway.load(url + "m"), new)


@pytest.mark.parametrize("line", [
    "put t.tensors URL", "convert t.tensors URL --to tensorizer",
    "encrypt t.tensors URL --keyfile key --no-authenticate"])
def test_each_verb_that_writes_can_replace_a_prefix(
    client, url, tmp_path, run, line
):
    file_of(tmp_path / "t.tensors", {"w": torch.ones(3)})
    (tmp_path / "key").write_bytes(bytes(32))
    haulway.save({"w": torch.zeros(3)}, url + "m", format="tensorizer")
    words = line.replace("URL", url + "m").split()
    assert "or the option overwrite" in run(*words, code=2).stderr
    run(*words, "--overwrite")
    key = {"key": bytes(32)} if words[0] == "encrypt" else {}
    same_tensors(haulway.load(url + "m", **key), {"w": torch.ones(3)})


def test_a_file_that_was_replaced_meanwhile_is_an_error(client, url):
    haulway.save({"w": torch.zeros(3)}, url + "m", format="tensorizer")
    with haulway.open(url + "m") as checkpoint:
        client.set("m:header:0", client.get("m:header:0"))
        with pytest.raises(haulway.CorruptError, match="it was replaced"):
            checkpoint["w"]


def test_a_key_that_was_evicted_is_found_at_once(client, url):
    """R66."""
    haulway.save({"v": torch.ones(3), "w": torch.zeros(3)}, url + "m",
                 format="tensorizer")
    lost = max(client.keys("m:w:*"))
    client.delete(lost)
    with pytest.raises(haulway.CorruptError, match="was it evicted"):
        haulway.open(url + "m")


@pytest.mark.parametrize("length", [0, 5, 4_000_000])
def test_a_plain_value_is_a_file(client, url, length):
    array = numpy.arange(length, dtype=numpy.uint8)
    haulway.save(array, url + "?key=a b.npy", format="npy")
    out = io.BytesIO()
    numpy.save(out, array)
    assert client.get("a b.npy") == out.getvalue()
    found = haulway.load(url + "?key=a%20b.npy", framework="numpy")
    assert numpy.array_equal(next(iter(found.values()))
                             if isinstance(found, dict) else found, array)


def test_only_tensorizer_files_have_prefixes(client, url):
    with pytest.raises(haulway.Error, match=r"\?key=NAME"):
        haulway.save({"w": torch.ones(1)}, url + "m", format="torch")
    assert not client.keys("*")


@pytest.mark.parametrize("wrong, message", [
    ("none", "there is no key 'none:header:0'"),
    ("?key=none", "there is no key 'none'"),
    ("", "has neither prefix nor key"),
])
def test_names_that_lead_nowhere(client, url, wrong, message):
    with pytest.raises(haulway.Error, match=message):
        haulway.load(url + wrong)


def test_a_key_of_another_kind_is_named(client, url):
    client.rpush("m:header:0", "x")
    with pytest.raises(haulway.CorruptError,
                       match="'m:header:0'.*of redis://127.0.0.1"):
        haulway.load(url + "m")


def test_databases_are_apart(client, url):
    haulway.save({"w": torch.ones(1)}, url + "3/m", format="tensorizer")
    assert not client.keys("*")
    same_tensors(haulway.load(url + "3/m"), {"w": torch.ones(1)})


def test_a_process_that_was_forked_has_connections_of_its_own(client, url):
    tensors = {"w": torch.arange(100.0)}
    haulway.save(tensors, url + "m", format="tensorizer")
    with haulway.open(url + "m") as checkpoint:
        before = client.info("stats")["total_connections_received"]
        child = os.fork()
        if child == 0:
            same = False
            try:
                same = torch.equal(checkpoint["w"], tensors["w"])
            finally:
                os._exit(0 if same else 1)
        _, ended = os.waitpid(child, 0)
        assert ended == 0
        after = client.info("stats")["total_connections_received"]
        # Two connections watch, and at least one reads.
        assert after - before >= 3
        assert torch.equal(checkpoint["w"], tensors["w"])


@pytest.mark.parametrize("name", ["m", "?key=m.npz"])
def test_lost_connections_are_opened_again(client, url, name):
    tensors = {"v": torch.ones(9), "w": torch.arange(100.0)}
    haulway.save(tensors, url + name,
                 format="npz" if "?" in name else "tensorizer")
    with haulway.open(url + name) as checkpoint:
        for key, value in tensors.items():
            client.client_kill_filter(_type="normal")
            assert torch.equal(torch.as_tensor(checkpoint[key]), value)


def test_many_lost_connections_are_one_failure(client, url):
    client.set("v", bytes(16))
    source = open_source(url + "?key=v")
    together = threading.Barrier(12)

    def read():
        together.wait()
        for _ in range(20):
            read_range(source, 0, 16)

    threads = [threading.Thread(target=read) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # As a server does to idle connections, and when it starts again.
    client.client_kill_filter(_type="normal")
    assert read_range(source, 0, 16) == bytes(16)


@pytest.mark.parametrize("name", ["m", "?key=m.npz"])
def test_a_file_replaced_while_nobody_watched_is_an_error(client, url, name):
    form = "npz" if "?" in name else "tensorizer"
    haulway.save({"w": torch.zeros(3)}, url + name, format=form)
    with haulway.open(url + name) as checkpoint:
        client.client_kill_filter(_type="normal")
        client.delete("m:header:0")
        haulway.save({"w": torch.zeros(100)}, url + name, format=form)
        for _ in range(2):  # The error persists.
            with pytest.raises(haulway.CorruptError, match="it was replaced"):
                checkpoint["w"]


def test_a_file_that_is_replaced_leaves_no_key(client, url, tmp_path, run):
    """R62."""
    a, b = torch.ones(3), torch.zeros(9)
    haulway.save({"a": a, "b": b}, url + "m", format="tensorizer")
    path = file_of(tmp_path / "t.tensors", {"a": a})
    run("put", "--overwrite", path, url + "m")
    put_as_the_reference_does(client, "expected", path)
    assert values_of(client, "m") == values_of(client, "expected")
    same_tensors(haulway.load(url + "m"), {"a": a})


@pytest.mark.parametrize("name", ["m", "?key=m"])
def test_nothing_is_kept_on_the_way(client, url, tmp_path, monkeypatch, name):
    tensors = {"w": torch.rand(4_000_000), **ODD}
    path = file_of(tmp_path / "t.tensors", tensors)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    haulway.put(path, url + name)
    same_tensors(haulway.load(url + name), tensors)
    if name == "m":
        haulway.put(path.read_bytes(), url + "memory")
        put_as_the_reference_does(client, "expected", path)
        expected = values_of(client, "expected")
        assert values_of(client, "m") == expected
        assert values_of(client, "memory") == expected


def test_files_of_any_length_are_cut_right(client, url, tmp_path):
    haulway.put(file_of(tmp_path / "0.tensors", {}), url + "m")
    assert haulway.load(url + "m") == {}
    for count in (1, 2, 40):
        tensors = {f"{i}": torch.ones(i) for i in range(count)}
        path = file_of(tmp_path / "t.tensors", tensors)
        haulway.put(path, url + "m", overwrite=True)
        put_as_the_reference_does(client, f"expected{count}", path)
        assert values_of(client, "m") == values_of(client, f"expected{count}")


def test_values_are_there_when_all_of_them_are(client, url, tmp_path):
    old, new = {"w": torch.zeros(3)}, {"w": torch.rand(3_000_000)}
    path = file_of(tmp_path / "t.tensors", new)
    haulway.save(old, url + "m", format="tensorizer")
    haulway.save(old, url + "?key=v", format="npz")
    seen = []

    def look(done, total):
        seen.append(done)
        same_tensors(haulway.load(url + "m"), old)
        assert haulway.load(url + "?key=v")["w"].shape == (3,)
        reader = tensorizer.TensorDeserializer(url + "m", verify_hash=True)
        assert torch.equal(reader["w"], old["w"])
        staged = [key for key in client.keys("*") if b".haulway-" in key]
        assert all(0 < client.ttl(key) <= 86400 for key in staged)

    haulway.put(path, url + "m", overwrite=True, progress=look)
    same_tensors(haulway.load(url + "m"), new)
    haulway.put(path, url + "?key=v", progress=lambda done, total:
                seen.append(haulway.load(url + "?key=v")["w"].shape))
    assert len(seen) > 4 and seen[-1] == (3,)
    assert client.strlen("v") == path.stat().st_size
    assert {key.split(b":")[0] for key in client.keys("*")} == {b"m", b"v"}
    assert all(client.ttl(key) == -1 for key in client.keys("*"))


@pytest.mark.parametrize("name", ["m", "?key=m"])
def test_of_two_writers_the_first_one_counts(client, url, tmp_path, name):
    first, second = {"w": torch.ones(3)}, {"w": torch.rand(3_000_000)}
    path = file_of(tmp_path / "t.tensors", second)
    done = []

    def be_faster(*_):
        if not done:
            done.append(haulway.save(first, url + name, format="tensorizer"))

    with pytest.raises(haulway.Error, match="is there already"):
        haulway.put(path, url + name, clobber=False, progress=be_faster)
    same_tensors(haulway.load(url + name), first)
    assert all(key.startswith(b"m:") or key == b"m" for key in client.keys("*"))
    done.clear()
    haulway.put(path, url + name, overwrite=True, progress=lambda *_: (
        done or done.append(haulway.put(
            file_of(tmp_path / "1.tensors", first), url + name,
            overwrite=True))))
    same_tensors(haulway.load(url + name), second)


def test_a_killed_writer_leaves_the_old_file(client, url, tmp_path):
    old = {"w": torch.zeros(3)}
    haulway.save(old, url + "m", format="tensorizer")
    path = file_of(tmp_path / "t.tensors", {
        str(i): torch.rand(1_000_000) for i in range(8)})
    program = ("import os, sys, haulway; haulway.put(*sys.argv[1:], "
               "overwrite=True, progress=lambda done, total: "
               "done > total // 2 and os.kill(os.getpid(), 9))")
    done = subprocess.run([sys.executable, "-c", program, path, url + "m"],
                          check=False)
    assert done.returncode == -signal.SIGKILL
    same_tensors(haulway.load(url + "m"), old)
    left = [key for key in client.keys("*") if not key.startswith(b"m:")]
    assert left and all(0 < client.ttl(key) <= 86400 for key in left)


def test_what_was_not_committed_leaves_no_key(client, redis_port, tmp_path):
    tensors = {str(i): torch.ones(3) for i in range(9)}
    path = file_of(tmp_path / "t.tensors", tensors)
    client.acl_setuser("half", enabled=True, passwords=["+pw"], reset=True,
                       commands=["+@all"], keys=["m.haulway-*"])
    client.execute_command("ACL", "SETUSER", "half", "%R~m:header:0")
    with pytest.raises(haulway.Error, match="may not do this"):
        haulway.put(path, f"redis://half:pw@127.0.0.1:{redis_port}/m")
    assert not client.keys("*")
    with pytest.raises(KeyError):
        haulway.put(path, f"redis://127.0.0.1:{redis_port}/m",
                    progress=lambda done, total: {}[done])
    assert not client.keys("*")


def test_sockets_logins_and_the_environment(tmp_path, monkeypatch):
    """R64."""
    socket = tmp_path / "redis.sock"
    with redis_server(tmp_path, "--unixsocket", str(socket), "--requirepass",
                      "s3cr:et") as port:
        login = "redis://:s3cr%3Aet@127.0.0.1:"
        tensors = {"w": torch.ones(1)}
        haulway.save(tensors, f"{login}{port}/m", format="tensorizer")
        with redis.Redis("127.0.0.1", port, password="s3cr:et") as client:
            client.acl_setuser("reader", enabled=True, passwords=["+pw"],
                               keys=["*"], commands=["+strlen", "+get",
                                                     "+getrange", "+exists",
                                                     "+select"])
        # This user is not allowed to watch.
        same_tensors(haulway.load(f"redis://reader:pw@127.0.0.1:{port}/m"), tensors)
        same_tensors(haulway.load(
            f"redis+unix://:s3cr%3Aet@{socket}?prefix=m"), tensors)
        monkeypatch.setenv("REDIS_URL", f"{login}{port}/0")
        same_tensors(haulway.load("redis:///m"), tensors)
        for wrong in ("redis://", "redis://:s3cret-wrong@",
                      "redis://reader:s3cret-wrong@"):
            with pytest.raises(haulway.PermissionDeniedError) as caught:
                haulway.load(f"{wrong}127.0.0.1:{port}/m")
            assert "s3cret" not in str(caught.value)
        with pytest.raises(haulway.Error, match="may not do this"):
            haulway.save(tensors, f"redis://reader:pw@127.0.0.1:{port}/n",
                         format="tensorizer")


def test_tls_checks_the_server(tmp_path, monkeypatch):
    """R64."""
    # Uses addresses: a minimal system has no /etc/hosts with localhost.
    tensors = {"w": torch.rand(100_000)}
    for host, fails in (("127.0.0.1", None), ("localhost", "IP address mismatch")):
        crt, key = certificate(tmp_path, host)
        tls = free_port()
        url = f"rediss://127.0.0.1:{tls}/m"
        with redis_server(tmp_path, "--tls-port", str(tls), "--tls-cert-file",
                          crt, "--tls-key-file", key, "--tls-auth-clients",
                          "no"):
            with pytest.raises(haulway.Error, match="does not verify: self"):
                haulway.load(url)
            with monkeypatch.context() as patch:
                patch.delenv("CURL_CA_BUNDLE", raising=False)
                patch.setenv("SSL_CERT_FILE", str(crt))
                if fails is not None:
                    with pytest.raises(haulway.Error, match=fails):
                        haulway.load(url)
                    continue
                haulway.save(tensors, url, format="tensorizer")
                same_tensors(haulway.load(url), tensors)
            same_tensors(haulway.load(url, ca_file=crt), tensors)
            with pytest.warns(Warning, match="insecure"):
                same_tensors(haulway.load(url, insecure=True), tensors)
            with pytest.raises(haulway.Error, match="cannot read certificates"):
                haulway.load(url, ca_file=tmp_path / "none.pem")


def test_tls_tells_the_server_who_asks(tmp_path):
    """R64."""
    tensors = {"w": torch.rand(1000)}
    crt, key = certificate(tmp_path, "127.0.0.1")
    tls = free_port()
    url = f"rediss://127.0.0.1:{tls}/m"
    with redis_server(tmp_path, "--tls-port", str(tls), "--tls-cert-file", crt,
                      "--tls-key-file", key, "--tls-ca-cert-file", crt,
                      "--tls-auth-clients", "yes") as port:
        haulway.save(tensors, f"redis://127.0.0.1:{port}/m", format="tensorizer")
        with pytest.raises(haulway.Error):
            haulway.load(url, ca_file=crt)
        known = {"ca_file": crt, "client_certificate": crt, "client_key": key}
        same_tensors(haulway.load(url, **known), tensors)
        with pytest.raises(haulway.Error, match="cannot read the certificate"):
            haulway.load(url, ca_file=crt, client_certificate=tmp_path / "none.pem")


def test_a_server_that_leaves_kills_nobody(tmp_path, command):
    crt, key = certificate(tmp_path, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)

    def serve(one):
        with context.wrap_socket(one, server_side=True) as tls:
            if tls.recv(4096):
                tls.shutdown(socket.SHUT_WR)
                time.sleep(0.1)

    value = tmp_path / "value"
    value.write_bytes(bytes(64 << 20))
    with ScriptedServer(serve) as server:
        done = subprocess.run(
            [command, "put", value,
             f"rediss://127.0.0.1:{server.port}/?key=m"],
            env={**os.environ, "CURL_CA_BUNDLE": str(crt)}, timeout=60,
            capture_output=True, text=True, check=False,
            preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL),
        )
    assert done.returncode > 0, done
    assert "the connection was lost" in done.stderr


def test_what_a_login_is_answered_is_not_shown():
    def serve(sign):
        return lambda one: one.sendall(sign + one.recv(4096)[-11:])

    for sign in (b"", b"-", b"+", b":", b"\n"):
        with ScriptedServer(serve(sign)) as server:
            with pytest.raises(haulway.Error) as caught:
                haulway.load(f"redis://:s3cret-pw@127.0.0.1:{server.port}/m")
        assert "s3cret" not in str(caught.value)


def test_a_prefix_is_tensorizer_without_saying_so(tmp_path, run):
    tensors = {"w": torch.arange(6.0)}
    torch.save(tensors, tmp_path / "m.pt")
    with redis_server(tmp_path) as port:
        place = f"redis://127.0.0.1:{port}"
        haulway.save(tensors, f"{place}/a")
        haulway.save(tensors, f"{place}/m.pt")  # A name without an extension.
        run("convert", "m.pt", f"{place}/b")
        for prefix in ("a", "m.pt", "b"):
            with haulway.open(f"{place}/{prefix}") as checkpoint:
                assert checkpoint.format == "tensorizer"
            same_tensors(haulway.load(f"{place}/{prefix}"), tensors)


def test_a_full_server_is_said_and_nothing_stays(tmp_path):
    with redis_server(tmp_path, "--maxmemory", "8mb", "--maxmemory-policy",
                      "noeviction") as port:
        tensors = {str(i): torch.rand(500_000) for i in range(8)}
        with pytest.raises(haulway.IoError, match="is out of memory"):
            haulway.save(tensors, f"redis://127.0.0.1:{port}/m",
                         format="tensorizer")
        with redis.Redis("127.0.0.1", port) as client:
            assert not client.keys("*")


def test_a_server_that_says_nothing_is_waited_for_as_long_as_is_asked(tmp_path):
    def serve(one):
        if b"EXISTS" in one.recv(4096):
            one.sendall(b":0\r\n")
        while one.recv(1 << 20):
            pass

    path = file_of(tmp_path / "t.tensors", {"a": torch.ones(3)})
    with ScriptedServer(serve) as server:
        url = f"redis://127.0.0.1:{server.port}/m"
        for work in (
            lambda: haulway.put(path, url, stall_timeout=0.3),
            lambda: haulway.load(url, stall_timeout=0.3),
        ):
            before = time.monotonic()
            with pytest.raises(haulway.Error, match="no answer in 0.3 s"):
                work()
            assert time.monotonic() - before < 10


@pytest.mark.parametrize("pace", [0.0001, 0.05, None])
@pytest.mark.parametrize("tls", [False, True])
def test_a_read_ends_when_its_time_is_over(tmp_path, pace, tls):
    """Bytes arrive fast and without end, now and then, or never."""
    crt, key = certificate(tmp_path, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)

    def serve(one):
        with context.wrap_socket(one, server_side=True) if tls else one as one:
            while (asked := one.recv(4096)):
                if b"STRLEN" in asked:
                    one.sendall(b":4000000\r\n")
                if b"WATCH" in asked:
                    one.sendall(b"+OK\r\n")
                if b"GET" in asked:
                    one.sendall(b"$4000000\r\n")
                    one.settimeout(pace)
                    while True:
                        with contextlib.suppress(TimeoutError):
                            if not one.recv(1):
                                return
                        one.sendall(bytes(100))

    with ScriptedServer(serve) as server:
        url = f"redis{'s' * tls}://127.0.0.1:{server.port}/m"
        trust = {"ca_file": crt} if tls else {}
        before = time.monotonic()
        with pytest.raises(haulway.Error, match="no answer within 300 ms"):
            haulway.load(url, timeout=0.3, **trust)
        assert 0.2 < time.monotonic() - before < 5


def test_a_slow_server_does_not_stall():
    def serve(one):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        left = 2 << 20
        while left > 0:
            left -= len(one.recv(1 << 14))
            time.sleep(0.016)  # About 1 MB/s.
        one.sendall(b"+OK\r\n")

    with ScriptedServer(serve) as server:
        haulway.put(bytes(2 << 20), f"redis://127.0.0.1:{server.port}/?key=v",
                    stall_timeout=0.5)


def test_attempts_end_when_their_time_is_over():
    answer = b"-LOADING Redis is loading the dataset\r\n"

    def serve(one):
        while one.recv(4096):
            one.sendall(answer)

    with ScriptedServer(serve) as server:
        before = time.monotonic()
        with pytest.raises(haulway.Error, match="is still loading its data"):
            haulway.load(f"redis://127.0.0.1:{server.port}/m", timeout=1)
        assert time.monotonic() - before < 10


def test_a_server_that_loads_is_waited_for():
    answers = []

    def serve(one):
        while one.recv(4096):
            answers.append(1)
            if len(answers) < 4:
                one.sendall(b"-LOADING Redis is loading the dataset\r\n" * 2)
            else:
                one.sendall(b"-ERR stop here\r\n")

    with ScriptedServer(serve) as server:
        with pytest.raises(haulway.Error, match="stop here"):
            haulway.load(f"redis://127.0.0.1:{server.port}/m")
    assert len(answers) == 4


@pytest.mark.parametrize("answer, message", [
    (b"-ERR no such thing\r\n", "no such thing"),
    (b"-MOVED 3999 127.0.0.1:6381\r\n", "a cluster's other node"),
    (b"-NOAUTH Authentication required.\r\n", "asks for a password"),
    (b"HTTP/1.1 400 Bad Request\r\n", "does not speak Redis's protocol"),
    (b"+OK\r\n:99999999999999999999\r\n", "does not speak Redis's protocol"),
    (b"+OK\r\n:-5\r\n", "is missing"),
    (b"+OK\r\n:9000000000000000000\r\n", "expected at most 536870912 bytes"),
    (b"+OK\r\n:10\r\n$999999999999\r\n", "expected 10 bytes"),
    (b"+OK\r\n:10\r\n$-1\r\n", "is missing"),
    (b"+OK\r\n:10\r\n$10\r\n0123456789xy", "does not speak"),
    (b"+OK\r\n:10\r\n$10\r\n0123456789\r\n", "'m:header:0'"),
    (b"x" * 100_000, "does not speak Redis's protocol"),
])
def test_hostile_answers_are_errors(answer, message):
    """R65."""
    def serve(one):
        parts = answer.split(b"\r\n", 1)
        first = one.recv(4096)
        if b"WATCH" in first:
            one.sendall(b"+OK\r\n" if answer[:1] == b"+" else answer)
        else:
            one.sendall(parts[1] if answer[:1] == b"+" and b"STRLEN" in first
                        else answer)
        one.recv(4096)

    with ScriptedServer(serve) as server:
        with pytest.raises((haulway.Error, MemoryError), match=message):
            haulway.load(f"redis://127.0.0.1:{server.port}/m")


def test_streams_follow_what_is_configured():
    with ScriptedServer(lambda connection: connection.recv(1 << 16)
                        and time.sleep(5)) as server:
        began = time.monotonic()
        with haulway.config(load={"stall_timeout": 0.05}):
            with pytest.raises(haulway.TimedOutError, match="in 0.05 s"):
                open_stream(f"redis://127.0.0.1:{server.port}/m")
        assert time.monotonic() - began < 10
