"""An S3 server that verifies requests: Ceph's radosgw, with all its
dependencies.

It takes about 15 seconds to start; scripts/test-radosgw installs it.
"""

import contextlib
import os
import pathlib
import subprocess
import tempfile
import uuid

import boto3
import pytest

from http_server import free_port
from remote_servers import await_port, certificate

ACCESS_KEY, SECRET_KEY = "AKIDEXAMPLE", "s3cret+/key"
_WHO = ("client.admin", "client.rgw.a", "mgr.x", "osd.0")
_ALL = ("--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr",
        "allow *")


def _configuration(folder, fsid, monitor, older, frontends):
    return f"""
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{monitor}/0,v1:127.0.0.1:{older}/0]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
mon allow pool size one = true
osd crush chooseleaf type = 0
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
pid file = {folder}/$name.pid
keyring = {folder}/keyring
[mon.a]
mon data = {folder}/mon
[osd.0]
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 4294967296
[mgr.x]
mgr data = {folder}/mgr
[client.rgw.a]
rgw frontends = {frontends}
"""


class Gateway:
    """A running gateway: its URLs, and the authority that signed its
    certificate."""

    def __init__(self, url, tls_url, ca):
        self.url, self.tls_url, self.ca = url, tls_url, ca


@contextlib.contextmanager
def radosgw():
    with contextlib.ExitStack() as stack:
        # Paths of its sockets must be short.
        folder = pathlib.Path(stack.enter_context(
            tempfile.TemporaryDirectory(prefix="rgw")))
        for name in ("mon", "osd", "mgr"):
            (folder / name).mkdir()
        fsid = str(uuid.uuid4())
        monitor, older, port, tls = (free_port() for _ in range(4))
        crt, key = certificate(folder)
        (folder / "ceph.conf").write_text(_configuration(
            folder, fsid, monitor, older,
            f"beast endpoint=127.0.0.1:{port} ssl_endpoint=127.0.0.1:{tls} "
            f"ssl_certificate={crt} ssl_private_key={key}"))

        def ran(*words):
            subprocess.run(list(map(str, words)), check=True, cwd=folder,
                           capture_output=True)

        def serves(*words):
            with open(folder / "out", "ab") as out:
                process = subprocess.Popen(
                    [*words, "-f", "-c", "ceph.conf"], cwd=folder, stdout=out,
                    stderr=out)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        ran("ceph-authtool", "--create-keyring", "keyring", "--gen-key", "-n",
            "mon.", "--cap", "mon", "allow *")
        for who in _WHO:
            ran("ceph-authtool", "keyring", "--gen-key", "-n", who, *_ALL)
        ran("monmaptool", "--create", "--fsid", fsid, "--addv", "a",
            f"[v2:127.0.0.1:{monitor},v1:127.0.0.1:{older}]", "monmap")
        ran("ceph-mon", "--mkfs", "-i", "a", "-c", "ceph.conf", "--monmap",
            "monmap", "--keyring", "keyring")
        serves("ceph-mon", "-i", "a")
        ran("ceph", "-c", "ceph.conf", "osd", "create")
        ran("ceph-osd", "-i", "0", "-c", "ceph.conf", "--mkfs")
        ran("ceph", "-c", "ceph.conf", "osd", "crush", "add", "osd.0", "1.0",
            "root=default", "host=h0")
        serves("ceph-osd", "-i", "0")
        serves("ceph-mgr", "-i", "x")
        gateway = serves("radosgw", "-n", "client.rgw.a")
        ran("radosgw-admin", "-c", "ceph.conf", "user", "create", "--uid", "t",
            "--display-name", "t", "--access-key", ACCESS_KEY, "--secret-key",
            SECRET_KEY)
        await_port(port, gateway, 120)
        yield Gateway(f"http://127.0.0.1:{port}", f"https://localhost:{tls}",
                      crt)


@pytest.fixture(scope="session")
def gateway():
    with radosgw() as one:
        yield one


@pytest.fixture(scope="session")
def client(gateway):
    """Returns boto3's client of a gateway that has the bucket "bkt"."""
    client = boto3.client(
        "s3", endpoint_url=gateway.url, region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
    )
    client.create_bucket(Bucket="bkt")
    return client


@pytest.fixture
def s3(client, gateway, monkeypatch, tmp_path):
    """The same client, with only this gateway in the environment."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "SSL_CERT_")) or name == "CURL_CA_BUNDLE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", gateway.url)
    return client
