"""Access to S3: addresses, expiring credentials, anonymous requests, killed
uploads, and client certificates. The R-numbers are those of docs/s3.md."""

import datetime
import functools
import json
import os
import signal
import ssl
import subprocess
import sys
import time

import pytest
import safetensors.torch
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import haulway
from compare import same_tensors
from haulway import _haulway
from http_server import FaultServer, Nginx, make_certificates, requests_of
from remote_servers import ScriptedServer

SECRET = "s3cret+/never-shown"
TENSORS = {f"layer.{i}": torch.randn(1000, 500 + i) for i in range(12)}
same = functools.partial(same_tensors, expected=TENSORS)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """Removes all credentials, files and settings of this machine."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def tls_of(folder):
    """Returns (authority, context) of a server whose certificate is made
    there."""
    make_certificates(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return folder / "ca.pem", context


@pytest.mark.parametrize("bucket, region, style, host", [
    ("bkt", None, None, "bkt.s3.amazonaws.com"),
    ("bkt", "eu-west-1", None, "bkt.s3.eu-west-1.amazonaws.com"),
    ("bkt", "cn-north-1", None, "bkt.s3.cn-north-1.amazonaws.com.cn"),
    ("a.dot", "eu-west-1", None, "s3.eu-west-1.amazonaws.com"),
    ("Upper", None, None, "s3.amazonaws.com"),
    ("bkt", "eu-west-1", "path", "s3.eu-west-1.amazonaws.com"),
])
def test_buckets_of_aws_are_hosts_where_they_can_be(
    keys, monkeypatch, tmp_path, bucket, region, style, host
):
    """R45."""
    if region:
        monkeypatch.setenv("AWS_REGION", region)
    if style:
        (tmp_path / "config").write_text(
            f"[default]\ns3 =\n  addressing_style = {style}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    def refuse(request):
        request.answer(403)
        request.close()

    with FaultServer(refuse) as proxy:
        with pytest.raises(haulway.Error):
            haulway.load(f"s3://{bucket}/k", proxy=proxy.url(""), retries=0)
        assert proxy.requests[0].first.split()[:2] == ["CONNECT", f"{host}:443"]


@pytest.mark.parametrize("style, target", [
    (None, "http://s3.example/base/bkt/a%20b"),
    ("path", "http://s3.example/base/bkt/a%20b"),
    ("virtual", "http://bkt.s3.example/base/a%20b"),
])
def test_buckets_of_other_endpoints_are_paths_unless_told(
    keys, monkeypatch, tmp_path, style, target
):
    """R45."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3.example/base")
    if style:
        (tmp_path / "config").write_text(
            f"[default]\ns3 =\n  addressing_style = {style}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    data = safetensors.torch.save(TENSORS)
    with FaultServer(lambda request: request.serve(data)) as proxy:
        same(haulway.load("s3://bkt/a b", proxy=proxy.url("")))
        assert proxy.requests[0].target == target


ENDPOINTS = ["option", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "services",
             "endpoint-url"]


@pytest.mark.parametrize("first", range(len(ENDPOINTS) + 1))
@pytest.mark.parametrize("ignores", [False, True])
def test_endpoints_are_taken_in_their_order(
    keys, monkeypatch, tmp_path, first, ignores
):
    """R44: the endpoints from `first` on are set, those before it are not."""
    there = ENDPOINTS[first:]
    lines = ["[default]"]
    if "services" in there:
        lines.append("services = mine")
    if "endpoint-url" in there:
        lines.append("endpoint_url = http://endpoint-url")
    lines += ["[services mine]", "s3 =", "  endpoint_url = http://services"]
    (tmp_path / "config").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in there:
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, f"http://{name.lower().replace('_', '-')}")
    if ignores:
        monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
        there = [name for name in there if name == "option"]
    options = {"endpoint": "http://option"} if first == 0 else {}
    url = _haulway.presign_s3("s3://bkt/k", 60, options)
    if there:
        host = there[0].lower().replace("_", "-")
        assert url.startswith(f"http://{host}/bkt/k?")
    else:
        assert url.startswith("https://bkt.s3.amazonaws.com/k?")


def test_nobody_asks_only_if_that_is_wanted(monkeypatch):
    """R48."""
    data = safetensors.torch.save(TENSORS)
    with FaultServer(lambda request: request.serve(data)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url(""))
        with pytest.raises(haulway.PermissionDeniedError) as caught:
            haulway.load("s3://bkt/k")
        for tried in ("AWS_ACCESS_KEY_ID", "web identity", "'default'",
                      "container", "instance", "AWS_NO_SIGN_REQUEST"):
            assert tried in str(caught.value)
        assert server.requests == []
        monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "yes")
        same(haulway.load("s3://bkt/k"))
        assert not any("authorization" in request.headers
                       for request in server.requests)


def test_credentials_that_end_in_the_middle_are_renewed(monkeypatch):
    """R41: bytes received before the renewal are not requested again."""
    data = safetensors.torch.save(TENSORS)
    given = []

    def give(request):
        given.append(f"KEY{len(given)}")
        body = {"AccessKeyId": given[-1], "SecretAccessKey": SECRET,
                "Token": f"token of {given[-1]}",
                "Expiration": "2099-01-01T00:00:00Z"}
        request.answer(200, json.dumps(body).encode())

    refused = []

    def store(request):
        login = request.headers["authorization"]
        if "KEY0/" in login and request.number >= 2:
            refused.append(request.range)
            return request.answer(
                400, b"<Error><Code>ExpiredToken</Code></Error>")
        request.serve(data, ETag='"1"')

    with FaultServer(give) as service, FaultServer(store) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", service.url())
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url(""))
        same(haulway.load("s3://bkt/k", connections=1))
        assert refused and given == ["KEY0", "KEY1"]
        last = server.requests[-1].headers
        assert last["x-amz-security-token"] == "token of KEY1"
        served = [r.range for r in server.requests if r.range not in refused]
        assert len(set(served)) == len(served)


def test_keys_of_customers_go_along_by_https(keys, monkeypatch, tmp_path):
    """R49: the key is sent with each request, and is never in a message."""
    data = safetensors.torch.save(TENSORS)
    heads = []

    def serve(one):
        with context.wrap_socket(one, server_side=True) as connection:
            for request in requests_of(connection):
                heads.append(request.headers)
                request.serve(data, ETag='"1"')

    ca, context = tls_of(tmp_path)
    with ScriptedServer(serve) as server:
        source = _haulway.open_s3_source(
            "s3://bkt/k",
            {"endpoint": f"https://localhost:{server.port}",
             "customer_key": b"k" * 31 + b"\xff"},
            {"ca_file": str(ca)},
        )
        middle = bytearray(9)
        _haulway.read_many(source, [(len(data) // 2, middle)])
        assert middle == data[len(data) // 2:len(data) // 2 + 9]
    name = "x-amz-server-side-encryption-customer"
    assert len(heads) == 2
    for headers in heads:
        assert headers[f"{name}-algorithm"] == "AES256"
        assert headers[f"{name}-key"] == "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra/8="
        assert len(headers[f"{name}-key-md5"]) == 24
        assert f"{name}-key;" in headers["authorization"]


def test_a_killed_upload_leaves_what_was_there(
    keys, bucket, endpoint, monkeypatch, run, tmp_path
):
    """R55: the unfinished upload is found and aborted."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    haulway.put(b"old", "s3://bkt/models/m")
    with open(tmp_path / "big", "wb") as big:
        big.truncate(400 << 20)

    def uploads():
        return bucket.list_multipart_uploads(Bucket="bkt").get("Uploads", [])

    program = "import sys, haulway; haulway.put(*sys.argv[1:])"
    process = subprocess.Popen([sys.executable, "-c", program,
                                tmp_path / "big", "s3://bkt/models/m"])
    deadline = time.monotonic() + 30
    while not uploads():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    body = bucket.get_object(Bucket="bkt", Key="models/m")["Body"].read()
    assert body == b"old" and len(uploads()) == 1
    ended = run("put", "--abort", "s3://bkt/models/", "--json").stdout
    assert json.loads(ended)["ended"] == 1 and uploads() == []


# Trust, both ways


def make_client_certificate(folder):
    def openssl(*words):
        subprocess.run(["openssl", *words], check=True, cwd=folder,
                       capture_output=True)

    openssl("req", "-newkey", "ec", "-pkeyopt",
            "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "client.key",
            "-out", "client.csr", "-subj", "/CN=me")
    openssl("x509", "-req", "-in", "client.csr", "-CA", "ca.pem", "-CAkey",
            "ca.key", "-CAcreateserial", "-out", "client.pem", "-days", "2")
    return folder / "client.pem", folder / "client.key"


def test_certificates_of_clients_stay_with_their_host(tmp_path):
    ca, context = tls_of(tmp_path)
    certificate, key = make_client_certificate(tmp_path)
    context.load_verify_locations(ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    data = safetensors.torch.save(TENSORS)
    shown = {"first": [], "other": []}

    def serving(name, answer):
        def serve(one):
            with context.wrap_socket(one, server_side=True) as connection:
                shown[name].append(connection.getpeercert())
                for request in requests_of(connection):
                    answer(request)

        return serve

    with ScriptedServer(serving("other", lambda r: r.serve(data))) as other:
        target = f"https://localhost:{other.port}/m"

        def redirect(request):
            request.answer(302, Location=target)

        with ScriptedServer(serving("first", redirect)) as first:
            same(haulway.load(
                f"https://localhost:{first.port}/m", ca_file=ca,
                client_certificate=certificate, client_key=key,
            ))
    assert shown["first"] and shown["other"]
    assert all(("commonName", "me") in name["subject"][0]
               for name in shown["first"])
    assert not any(shown["other"])


def make_expired_certificate(folder):
    """Returns (certificate, key) of localhost, self-signed, from the year
    2020."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2020, 1, 1))
        .not_valid_after(datetime.datetime(2020, 1, 2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]),
                       critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "old.pem").write_bytes(made.public_bytes(pem))
    (folder / "old.key").write_bytes(key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return folder / "old.pem", folder / "old.key"


def test_expired_certificates_are_refused(tmp_path):
    """R28: an expired certificate has its own message."""
    pem, key = make_expired_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)

    def serve(one):
        with context.wrap_socket(one, server_side=True):
            pytest.fail("it was taken")

    with ScriptedServer(serve) as server:
        with pytest.raises(haulway.CertificateError, match="has expired"):
            haulway.load(f"https://localhost:{server.port}/m", ca_file=pem)
        assert server.connections == 1


def test_certificates_are_those_of_the_variables(tmp_path, monkeypatch):
    for name in ("CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    nginx = Nginx(tmp_path)
    try:
        nginx.put("m.safetensors", safetensors.torch.save(TENSORS))
        url = nginx.tls_url("m.safetensors")
        with pytest.raises(haulway.CertificateError, match="does not verify"):
            haulway.load(url)
        for name in ("CURL_CA_BUNDLE", "SSL_CERT_FILE"):
            monkeypatch.setenv(name, str(nginx.ca))
            same(haulway.load(url))
            monkeypatch.delenv(name)
        folder = tmp_path / "trusted"
        folder.mkdir()
        (folder / "ca.pem").write_bytes(nginx.ca.read_bytes())
        subprocess.run(["openssl", "rehash", folder], check=True)
        monkeypatch.setenv("SSL_CERT_DIR", str(folder))
        same(haulway.load(url))
    finally:
        nginx.stop()


@pytest.mark.parametrize("name, value", [
    ("crc32", "y/Q5Jg=="), ("crc32c", "4waSgw=="),
    ("crc64nvme", "rosUhgp5mIg="),
    ("sha1", "98O8HYCOBHMq32eZZczDTKeuNEE="),
    ("sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
])
def test_a_checksum_of_the_store_is_compared(keys, monkeypatch, tmp_path, name,
                                             value):
    body = [b"123456789"]
    stated = [value]

    def answer(request):
        assert request.headers["x-amz-checksum-mode"] == "ENABLED"
        request.serve(body[0], **{f"x-amz-checksum-{name}": stated[0]})

    with FaultServer(answer) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3",
                           f"http://127.0.0.1:{server.port}")
        haulway.get("s3://bkt/k", tmp_path / "k")
        (tmp_path / "k").unlink()
        body[0] = b"123456780"
        with pytest.raises(haulway.MismatchError, match=f"{name} is not that"):
            haulway.get("s3://bkt/k", tmp_path / "k")
        assert not (tmp_path / "k").exists()
        stated[0] += "-2"  # As for an upload in parts.
        haulway.get("s3://bkt/k", tmp_path / "k")
