"""tensorizer.stream_io over networks, as programs and the reference's own tests
use it: http(s) from nginx, S3 from moto, Redis from redis-server."""

import contextlib
import os

import pytest
import redis
import tensorizer
import torch

from haulway.tensorizer import (
    TensorDeserializer,
    TensorSerializer,
    stream_io,
)
from http_server import FaultServer
from remote_servers import body_of, redis_server

TEXT = b"# GPT Neo\n\n[DOI](x) and so on, for a while.\n" * 40_000
TENSORS = {"a.weight": torch.arange(600_000.0), "b": torch.ones(3, 5)}
KEYS = {"s3_access_key_id": "AKID", "s3_secret_access_key": "s3cret"}


@pytest.fixture(scope="module")
def nginx(nginx):
    nginx.put("text", TEXT)
    return nginx


@pytest.fixture
def bucket(bucket, endpoint, monkeypatch, tmp_path):
    """An S3 bucket that the environment names, without credentials."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    return bucket


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.tensors"
    serializer = tensorizer.TensorSerializer(str(path))
    serializer.write_state_dict(TENSORS)
    serializer.close()
    return path


def same(tensors):
    assert sorted(tensors) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name].data, tensor)


# http


def test_a_url_is_read_as_a_stream(nginx):
    with stream_io.open_stream(nginx.url("text")) as stream:
        assert isinstance(stream, stream_io.CURLStreamFile)
        assert stream.read(9) == b"# GPT Neo" and stream.tell() == 9
        assert stream.read() == TEXT[9:]
        assert stream.read() == b"" and stream.read(5) == b""
        assert stream.response_headers["content-length"] == str(len(TEXT))
        assert stream.bytes_read == len(TEXT)
    assert stream.closed
    with pytest.raises(ValueError):
        stream.read(1)


def test_a_part_begins_and_ends_where_it_is_told(nginx):
    url = nginx.url("text")
    assert stream_io.CURLStreamFile(url, begin=2).read(7) == b"GPT Neo"
    assert stream_io.CURLStreamFile(url, end=2).read(5) == b"# "
    middle = stream_io.CURLStreamFile(url, begin=2, end=9)
    assert middle.tell() == 2 and middle.read() == b"GPT Neo"
    buffer = bytearray(5)
    assert stream_io.CURLStreamFile(url, end=2).readinto(buffer) == 2
    assert buffer == b"# \0\0\0"


@pytest.mark.parametrize("begin, end", [
    (-1, None), (None, -1), (None, 0), (5, 5), (5, 2),
])
def test_ranges_that_are_none_are_refused(nginx, begin, end):
    for open_one in (stream_io.CURLStreamFile, stream_io.open_stream):
        with pytest.raises(ValueError):
            open_one(nginx.url("text"), begin=begin, end=end)


def test_seeking_goes_both_ways(nginx):
    stream = stream_io.CURLStreamFile(nginx.url("text"))
    stream.seek(2)
    assert stream.read(7) == b"GPT Neo"
    stream.seek(6)
    assert stream.read(4) == b"Neo\n"
    stream.seek(11)
    assert stream.read(5) == b"[DOI]"
    stream.seek(-3, os.SEEK_END)
    assert stream.read() == TEXT[-3:]
    far = len(TEXT) - 700_000
    stream.seek(far)
    buffer = bytearray(300_000)
    assert stream.readinto(buffer) == 300_000
    assert buffer == TEXT[far:far + 300_000]


def test_pieces_in_order_are_read_ahead(nginx):
    nginx.requests()
    stream = stream_io.CURLStreamFile(nginx.url("text"))
    pieces = iter(lambda: stream.read(10_000), b"")
    assert b"".join(pieces) == TEXT
    assert len(nginx.requests()) <= 6  # There are 172 pieces.


def test_only_reading_is_for_urls(nginx):
    for mode in ("wb", "ab", "rb+", "r"):
        with pytest.raises(ValueError, match="Only the mode"):
            stream_io.open_stream(nginx.url("text"), mode)
        with pytest.raises(ValueError, match="Only the mode"):
            stream_io.open_stream("redis://localhost/t", mode)
    with pytest.raises(OSError):
        stream_io.open_stream(nginx.url("nothing"))


def test_headers_are_sent_to_the_host():
    with FaultServer(lambda request: request.serve(TEXT)) as server:
        stream = stream_io.CURLStreamFile(server.url(), headers={"X-A": 7})
        assert stream.read(5) == TEXT[:5]
        assert server.requests[0].headers["x-a"] == "7"


def test_certificates_are_handled_as_told(nginx, monkeypatch):
    url = nginx.tls_url("text")
    for name in ("CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OSError, match="certificate"):
        stream_io.open_stream(url)
    trusted = stream_io.CAInfo(cacert=str(nginx.ca))
    with stream_io.open_stream(url, certificate_handling=trusted) as stream:
        assert stream.read(9) == TEXT[:9]
    anybody = stream_io.CAInfo(allow_untrusted=True)
    with pytest.warns(UserWarning, match="certificates are not checked"):
        stream = stream_io.open_stream(url, certificate_handling=anybody)
    assert stream.read(9) == TEXT[:9]
    # The argument has no effect without TLS.
    for handling in (trusted, None):
        stream = stream_io.open_stream(
            nginx.url("text"), certificate_handling=handling
        )
        assert stream.read(9) == TEXT[:9]
    with pytest.raises(TypeError, match="CAInfo"):
        stream_io.open_stream(url, certificate_handling="ca.pem")


def test_a_folder_of_certificates_is_trusted(nginx, tmp_path):
    import subprocess

    (tmp_path / "ca.pem").write_bytes(nginx.ca.read_bytes())
    subprocess.run(["openssl", "rehash", tmp_path], check=True)
    for folder, is_trusted in ((tmp_path, True), (tmp_path / "none", False)):
        folder.mkdir(exist_ok=True)
        handling = stream_io.CAInfo(capath=str(folder))
        with contextlib.ExitStack() as stack:
            if not is_trusted:
                stack.enter_context(pytest.raises(OSError, match="certificate"))
            stream = stream_io.open_stream(
                nginx.tls_url("text"), certificate_handling=handling
            )
            assert stream.read(9) == TEXT[:9]


def test_ca_infos_say_one_thing(tmp_path):
    file = tmp_path / "ca.pem"
    file.write_text("")
    told = [
        {"cacert": str(file)}, {"capath": str(tmp_path)},
        {"allow_untrusted": True},
    ]
    for one in told:
        theirs = tensorizer.stream_io.CAInfo(**one)
        ours = stream_io.CAInfo(**one)
        assert ours.curl_flags == theirs.curl_flags
        assert hash(ours) == hash(stream_io.CAInfo(**one))
    for wrong in ({}, {**told[0], **told[1]}, {**told[0], **told[2]},
                  {"cacert": str(tmp_path)}, {"capath": str(file)}):
        with pytest.raises(ValueError):
            stream_io.CAInfo(**wrong)


def test_tensors_come_through_urls_and_their_streams(nginx, model):
    url = nginx.put("model.tensors", model)
    with TensorDeserializer(url, device="cpu") as found:
        same(found)
    nginx.requests()
    with stream_io.open_stream(url) as stream:
        with TensorDeserializer(stream, device="cpu") as found:
            same(found)
    assert len(nginx.requests()) <= 4  # Read by ranges, not piece by piece.
    nginx.put("behind.bin", b"12345678" + model.read_bytes())
    with stream_io.open_stream(nginx.url("behind.bin"), begin=8) as stream:
        same(TensorDeserializer(stream, device="cpu", lazy_load=True))


def test_an_error_tells_what_was_registered():
    cut = {"now": False}

    def handle(request):
        if cut["now"]:
            return request.answer(404)
        return request.serve(bytes(3 << 20), ETag='"1"')

    with FaultServer(handle) as server:
        stream = stream_io.CURLStreamFile(server.url())
        stream.register_error_context("the moon was full")
        cut["now"] = True
        with pytest.raises(OSError, match="the moon was full"):
            stream.read()


# S3


@pytest.mark.parametrize("mode", ["wb", "wb+", "ab"])
def test_what_is_written_is_an_object_when_it_is_closed(bucket, mode):
    stream = stream_io.open_stream("s3://bkt/a/b c", mode, **KEYS)
    stream.write(b"Hello" * 1024)
    stream.seek(0)
    stream.write(b"h")
    with pytest.raises(bucket.exceptions.NoSuchKey):
        body_of(bucket, "a/b c")
    stream.close()
    stream.close()
    assert body_of(bucket, "a/b c") == b"h" + (b"Hello" * 1024)[1:]


def test_half_a_file_is_no_object(bucket):
    with pytest.raises(KeyError):
        with stream_io.open_stream("s3://bkt/half", "wb", **KEYS) as stream:
            stream.write(b"1")
            raise KeyError
    with pytest.raises(bucket.exceptions.NoSuchKey):
        body_of(bucket, "half")


def test_an_object_is_read_as_a_stream(bucket):
    bucket.put_object(Bucket="bkt", Key="m", Body=TEXT)
    with stream_io.open_stream("s3://bkt/m", **KEYS) as stream:
        assert stream.read() == TEXT
    stream = stream_io.open_stream("s3://bkt/m", begin=2, end=9, **KEYS)
    assert stream.read() == b"GPT Neo"
    stream = stream_io.s3_download("s3://bkt/m", *KEYS.values(), begin=11)
    assert stream.read(5) == b"[DOI]"
    for mode in ("rb+", "r", "w"):
        with pytest.raises(ValueError, match="Only the modes"):
            stream_io.open_stream("s3://bkt/m", mode, **KEYS)


def test_a_file_is_uploaded(bucket, tmp_path):
    (tmp_path / "f").write_bytes(TEXT)
    stream_io.s3_upload(tmp_path / "f", "s3://bkt/up", *KEYS.values())
    assert body_of(bucket, "up") == TEXT


@pytest.mark.parametrize("through_stream", [False, True])
def test_tensors_go_to_s3_and_come_back(
    bucket, monkeypatch, tmp_path, through_stream
):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    uri = "s3://bkt/model.tensors"
    target = stream_io.open_stream(uri, "wb") if through_stream else uri
    serializer = TensorSerializer(target)
    serializer.write_state_dict(TENSORS)
    serializer.close()
    same(TensorDeserializer(uri, device="cpu"))
    with stream_io.open_stream(uri) as stream:
        same(TensorDeserializer(stream, device="cpu"))
    path = tmp_path / "down"
    path.write_bytes(body_of(bucket, "model.tensors"))
    with tensorizer.TensorDeserializer(str(path), device="cpu") as found:
        same(found)


def test_keys_come_from_s3cfg(bucket, endpoint, tmp_path, monkeypatch):
    bucket.put_object(Bucket="bkt", Key="m", Body=TEXT)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    host = endpoint.removeprefix("http://")
    config = tmp_path / ".s3cfg"
    config.write_text(
        f"[default]\naccess_key = A\nsecret_key = S%\nhost_base = {host}\n"
        "use_https = False\n"
    )
    with stream_io.open_stream("s3://bkt/m") as stream:
        assert stream.read(9) == TEXT[:9]
    moved = config.rename(tmp_path / "elsewhere")
    with stream_io.open_stream("s3://bkt/m", s3_config_path=moved) as stream:
        assert stream.read(9) == TEXT[:9]
    moved.write_text("[default]\naccess_key = A\n")
    with pytest.raises(ValueError, match="s3_secret_access_key is not given"):
        stream_io.open_stream("s3://bkt/m", s3_access_key_id="A",
                              s3_config_path=moved)
    moved.write_text("[other]\n")
    with pytest.raises(ValueError, match=r"\[default\]"):
        stream_io.open_stream("s3://bkt/m", s3_config_path=moved)


def test_tensors_are_asked_for_as_streams_are(
    bucket, endpoint, tmp_path, monkeypatch, model
):
    """With the credentials of .s3cfg, and anonymously for public objects."""
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    config = tmp_path / ".s3cfg"
    config.write_text(
        "[default]\naccess_key = AKID\nsecret_key = s3cret\nuse_https = False"
        f"\nhost_base = {endpoint.removeprefix('http://')}\n"
    )
    serializer = TensorSerializer("s3://bkt/ours.tensors")
    serializer.write_state_dict(TENSORS)
    serializer.close()
    same(TensorDeserializer("s3://bkt/ours.tensors", device="cpu"))
    config.unlink()
    bucket.put_object(Bucket="bkt", Key="public", Body=model.read_bytes(),
                      ACL="public-read")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    same(TensorDeserializer("s3://bkt/public", device="cpu"))


def test_who_asks_is_in_the_requests(bucket, monkeypatch):
    """Given credentials sign requests; empty or missing ones do not."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    with FaultServer(lambda request: request.serve(TEXT)) as server:
        where = {"s3_endpoint": server.url(""), "force_http": True}
        for keys, signs in (
            (KEYS, True),
            ({"s3_access_key_id": "", "s3_secret_access_key": ""}, False),
            ({}, False),
        ):
            stream = stream_io.open_stream("s3://bkt/m", **keys, **where)
            assert stream.read(9) == TEXT[:9]
            headers = server.requests[-1].headers
            assert ("authorization" in headers) == signs
            assert server.requests[-1].target == "/bkt/m"
            assert "s3cret" not in str(headers)
        stream_io.open_stream("s3://bkt/m", s3_region_name="eu-west-7", **KEYS,
                              **where)
        found = server.requests[-1].headers["authorization"]
        assert "/eu-west-7/s3/" in found


def test_endpoints_are_https_unless_told(bucket, endpoint):
    with pytest.raises(ValueError, match="Non-HTTPS"):
        stream_io.open_stream("s3://bkt/m", s3_endpoint=endpoint, **KEYS)
    with pytest.raises(NotImplementedError, match="version 4"):
        stream_io.open_stream("s3://bkt/m", s3_signature_version="s3", **KEYS)


def test_presigned_urls_let_anybody_in(bucket):
    bucket.put_object(Bucket="bkt", Key="m", Body=TEXT)
    url = stream_io._s3_download_url("s3://bkt/m", *KEYS.values())
    assert "/bkt/m?" in url and "X-Amz-Credential=AKID%2F" in url
    assert "X-Amz-Expires=86400" in url and "s3cret" not in url
    assert stream_io.CURLStreamFile(url).read() == TEXT


# Redis


def test_keys_are_read_as_a_stream(client, redis_port):
    """Reads within a key, across keys, and all of them."""
    parts = [b"Hello" * (1 << 18), b"World" * (1 << 14), b"!" * (1 << 18)]
    whole = b"".join(parts)
    client.set("t:hello:0", parts[0])
    client.set(f"t:world:{len(parts[0])}", parts[1])
    client.set(f"t:excl:{len(parts[0] + parts[1])}", parts[2])
    client.set("t:v2:x:0", b"another prefix")
    client.set("tt:x:0", b"another prefix")
    url = f"redis://127.0.0.1:{redis_port}/t"
    with stream_io.open_stream(url, mode="rb") as stream:
        assert stream.read(1024) == whole[:1024]
        stream.seek(0)
        assert stream.read(len(parts[0])) == parts[0]
        stream.seek(len(parts[0]) - 16)
        assert stream.read(16) == parts[0][-16:]
        stream.seek(len(parts[0]) - 16)
        assert stream.read(1024) == parts[0][-16:] + parts[1][:1008]
        stream.seek(0)
        assert stream.read(len(whole)) == whole
        assert stream.response_latencies and stream.setup_latency > 0
    with stream_io.open_stream(url, begin=3, end=8) as stream:
        assert stream.read() == b"loHel"
    with pytest.raises(OSError, match="no key begins"):
        stream_io.open_stream(f"redis://127.0.0.1:{redis_port}/nothing")


@pytest.mark.parametrize("lazy", [False, True])
def test_tensors_go_to_redis_and_come_back(client, redis_port, model, lazy):
    with TensorDeserializer(model, device="cpu", lazy_load=lazy) as found:
        found.to_redis(client, "m")
        found.to_redis(client, "m")  # The key exists.
    url = f"redis://127.0.0.1:{redis_port}/m"
    same(TensorDeserializer(url, device="cpu", lazy_load=lazy))
    with stream_io.open_stream(url) as stream:
        same(TensorDeserializer(stream, device="cpu", lazy_load=lazy))
    theirs = tensorizer.TensorDeserializer(url, device="cpu", lazy_load=lazy)
    same(theirs)
    theirs.close()


def test_keys_are_those_of_the_reference(client, model):
    def keys(prefix):
        found = {key: client.get(key) for key in client.keys(f"{prefix}:*")}
        return {key[len(prefix):]: value for key, value in found.items()}

    with tensorizer.TensorDeserializer(str(model), lazy_load=True) as theirs:
        theirs.to_redis(client, "t")
    with TensorDeserializer(model, lazy_load=True) as ours:
        ours.to_redis(client, "o")
    assert keys("t") == keys("o") and len(keys("t")) == 5


def test_another_file_is_replaced_by_force_only(
    client, redis_port, model, tmp_path
):
    with TensorDeserializer(model, lazy_load=True) as found:
        found.to_redis(client, "m")
    other = tmp_path / "other.tensors"
    serializer = TensorSerializer(other)
    serializer.write_state_dict({"c": torch.ones(2)})
    serializer.close()
    url = f"redis://127.0.0.1:{redis_port}/m"
    with TensorDeserializer(other, lazy_load=True) as found:
        with pytest.raises(ValueError):
            found.to_redis(client, "m")
        same(TensorDeserializer(url, device="cpu"))
        found.to_redis(client, "m", force=True)
    assert list(TensorDeserializer(url, device="cpu")) == ["c"]
    assert len(client.keys("m:*")) == 3


def test_clients_are_reached_as_they_say(tmp_path, model):
    socket = tmp_path / "redis.sock"
    options = ["--unixsocket", str(socket), "--requirepass", "p@ss/w:rd"]
    with redis_server(tmp_path, *options) as port:
        for where in ({"host": "127.0.0.1", "port": port},
                      {"unix_socket_path": str(socket)}):
            client = redis.Redis(password="p@ss/w:rd", db=3, **where)
            with TensorDeserializer(model, lazy_load=True) as found:
                found.to_redis(client, "a/b c", force=True)
            assert client.dbsize() == 5
            assert len(client.keys("a/b c:*")) == 5
