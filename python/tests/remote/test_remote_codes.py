"""Each failure of a server gives the exception, the code and the exit code that
docs/errors.md promises. Servers are real: nginx, moto and Redis."""

import contextlib
import errno
import json
import os
import subprocess

import pytest
import redis
import torch

import haulway
from http_server import FaultServer, free_port
from remote_servers import bucket_of, certificate, moto_server, redis_server

CODES = {
    "kInvalidArgument": (haulway.InvalidArgumentError, 2),
    "kNotFound": (haulway.NotFoundError, 2),
    "kPermissionDenied": (haulway.PermissionDeniedError, 2),
    "kUnavailable": (haulway.UnavailableError, 2),
    "kTimeout": (haulway.TimedOutError, 2),
    "kIoError": (haulway.IoError, 2),
    "certificate": (haulway.CertificateError, 2),
    "kCorrupt": (haulway.CorruptError, 1),
}
OPTIONS = {
    "ca_file": "--ca-file", "proxy": "--proxy", "timeout": "--timeout",
    "client_certificate": "--client-certificate",
}
SECRET = "s3cret"


@pytest.fixture
def check(command, tmp_path, monkeypatch):
    """Opens a URL from Python and by the command; both must fail as
    expected."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "REDIS_", "SSL_CERT_", "CURL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def check(code, url, **options):
        error, exit_code = CODES[code]
        with pytest.raises(haulway.Error) as caught:
            haulway.open(url, retries=0, **options)
        name = "kIoError" if code == "certificate" else code
        assert type(caught.value) is error, caught.value
        assert caught.value.code == name
        assert SECRET not in str(caught.value)
        if code == "certificate":
            assert caught.value.errno == errno.EKEYREJECTED
        words = [word for key, value in options.items()
                 for word in (OPTIONS[key], str(value))]
        done = subprocess.run([command, "ls", "--json", "--retries", "0",
                               *words, url], capture_output=True, text=True)
        assert done.returncode == exit_code, done.stderr
        assert json.loads(done.stdout)["error"]["code"] == name
        assert SECRET not in done.stdout + done.stderr
        return str(caught.value)

    return check


def test_http(check, nginx, tmp_path):
    nginx.put("model.safetensors", b"12345678")
    for code, name in {
        "kNotFound": "none", "kPermissionDenied": "forbidden",
    }.items():
        check(code, nginx.url(name))
    check("kNotFound", nginx.url("gone"))
    check("kPermissionDenied", nginx.url("private/model.safetensors"))
    check("kUnavailable", nginx.url("busy"))
    check("kUnavailable", nginx.url("many"))
    check("kUnavailable", f"http://127.0.0.1:{free_port()}/m")
    check("kInvalidArgument", "http://")
    with FaultServer(lambda request: request.answer(400)) as server:
        check("kIoError", server.url())
    with FaultServer(lambda request: request.stall()) as server:
        check("kTimeout", server.url(), timeout=0.5)
    with FaultServer(lambda request: request.serve(
            b"x" * 9, Content_Encoding="br")) as server:
        with pytest.raises(haulway.UnsupportedError):
            haulway.open(server.url())


def test_proxies(check):
    for status in (403, 407):
        with FaultServer(lambda r: r.answer(status)) as proxy:  # noqa: B023
            address = f"http://127.0.0.1:{proxy.port}"
            check("kPermissionDenied", "http://model.example/m", proxy=address)
            # Here the proxy is first asked for a tunnel.
            said = check("kPermissionDenied", "https://model.example/m",
                         proxy=address)
            assert "proxy" in said
            assert len(proxy.requests) == 4


def test_tls(check, nginx, tmp_path):
    url = nginx.tls_url("model.safetensors")
    assert "does not verify" in check("certificate", url)
    check("certificate", nginx.tls_url("m", "127.0.0.1"), ca_file=nginx.ca)
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("none")
    check("kInvalidArgument", url, ca_file=wrong)
    check("kInvalidArgument", url, ca_file=nginx.ca, client_certificate=wrong)


def test_s3(check, monkeypatch, run, tmp_path):
    assert "no credentials" in check("kPermissionDenied", "s3://bkt/m")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    assert ("the environment are not whole: AWS_SECRET_ACCESS_KEY is missing"
            in check("kPermissionDenied", "s3://bkt/m"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with moto_server() as endpoint, bucket_of(endpoint):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
        check("kNotFound", "s3://bkt/none")
        check("kNotFound", "s3://other/none")
        (tmp_path / "f").write_bytes(b"x")
        run("put", "f", "s3://bkt/f")
        run("put", "f", "s3://bkt/f", "--no-clobber", code=2)
    # This moto checks credentials, and there are none.
    monkeypatch.setenv("INITIAL_NO_AUTH_ACTION_COUNT", "0")
    with moto_server() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
        check("kPermissionDenied", "s3://bkt/m")
        run("put", "f", "s3://bkt/f", code=2)


def test_s3_sessions_and_services(check, monkeypatch, tmp_path):
    def ended(request):
        request.answer(400, b"<Error><Code>ExpiredToken</Code></Error>")

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with FaultServer(ended) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url(""))
        check("kPermissionDenied", "s3://bkt/m")
        # The same for a server that issues credentials for a token.
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        token = tmp_path / "token"
        token.write_text(SECRET)
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")
        assert "STS" in check("kPermissionDenied", "s3://bkt/m")
    monkeypatch.delenv("AWS_WEB_IDENTITY_TOKEN_FILE")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(
        "[default]\ncredential_process = exit 1\n")
    assert "credential_process" in check("kPermissionDenied", "s3://bkt/m")


def test_redis(check, tmp_path):
    with redis_server(tmp_path, "--requirepass", "right") as port:
        place = f"127.0.0.1:{port}"
        assert "asks for a password" in check(
            "kPermissionDenied", f"redis://{place}/m")
        check("kPermissionDenied", f"redis://:{SECRET}@{place}/m")
        check("kPermissionDenied", f"redis://nobody:{SECRET}@{place}/m")
        check("kNotFound", f"redis://:right@{place}/m")
        check("kNotFound", f"redis://:right@{place}/?key=m")
        with redis.Redis("127.0.0.1", port, password="right") as client:
            client.rpush("list", "x")
            client.acl_setuser("reader", enabled=True, passwords=["+pw"])
        check("kCorrupt", f"redis://:right@{place}/?key=list")
        said = check("kPermissionDenied", f"redis://reader:pw@{place}/m")
        assert "may not do this" in said
    check("kUnavailable", f"redis://{place}/m")


def test_redis_over_tls(check, tmp_path):
    crt, key = certificate(tmp_path, "127.0.0.1")
    port = free_port()
    options = ["--tls-port", str(port), "--tls-cert-file", str(crt),
               "--tls-key-file", str(key), "--tls-ca-cert-file", str(crt),
               # Later TLS versions report it after the handshake, perhaps too
               # late.
               "--tls-protocols", "TLSv1.2"]
    url = f"rediss://127.0.0.1:{port}/m"
    with redis_server(tmp_path, *options, port=0):
        with contextlib.closing(redis.Redis("127.0.0.1", port, ssl=True,
                                            ssl_ca_certs=str(crt),
                                            ssl_certfile=str(crt),
                                            ssl_keyfile=str(key))) as client:
            while True:  # Until the server has started.
                with contextlib.suppress(redis.ConnectionError):
                    client.ping()
                    break
        assert "does not verify" in check("certificate", url)
        # The server does not know this certificate's issuer.
        (tmp_path / "other").mkdir()
        mine = tmp_path / "mine.pem"
        mine.write_bytes(b"".join(
            path.read_bytes() for path in certificate(tmp_path / "other")))
        said = check("kPermissionDenied", url, ca_file=crt,
                     client_certificate=mine)
        assert "unknown ca" in said


def test_a_refusal_is_no_damage(command, nginx, tmp_path):
    """verify and scan report that they could not read the file, not a fault of
    the file."""
    for verb in ("verify", "scan"):
        done = subprocess.run([command, verb, nginx.url("forbidden")],
                              capture_output=True, text=True)
        assert done.returncode == {"verify": 2, "scan": 5}[verb], (
            done.stdout + done.stderr)
    data = haulway.save({"w": torch.arange(4_000_000)}, tmp_path / "m.pt")
    assert data
    body = (tmp_path / "m.pt").read_bytes()

    def refuses_later(request):
        if request.range[0] < 1 << 20 or request.range[0] > 14 << 20:
            return request.serve(body, ETag='"1"')
        request.answer(403)

    with FaultServer(refuses_later) as server:
        done = subprocess.run([command, "verify", server.url()],
                              capture_output=True, text=True)
        assert done.returncode == 2, done.stdout + done.stderr
