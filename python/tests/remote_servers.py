"""Real servers for tests, on free ports and in their own folders."""

import contextlib
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

from http_server import free_port, read_head


def await_port(port, process, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, "the server ended"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.02)
    raise AssertionError("the server does not answer")


@contextlib.contextmanager
def redis_server(folder, *options, port=None):
    """A Redis server; yields its port. A `port` of 0 disables TCP."""
    program = shutil.which("redis-server")
    assert program, "scripts/setup tests installs redis-server"
    port = free_port() if port is None else port
    process = subprocess.Popen(
        [program, "--port", str(port), "--save", "", "--dir", str(folder),
         "--bind", "127.0.0.1", *options],
        stdout=subprocess.DEVNULL,
    )
    try:
        if port:
            await_port(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


def certificate(folder, host="localhost"):
    """Makes (certificate, key) of a server, signed by its own authority."""
    folder = pathlib.Path(folder)
    crt, key = folder / "server.crt", folder / "server.key"
    kind = "IP" if host[0].isdigit() else "DNS"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
         "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
         f"/CN={host}", "-addext", f"subjectAltName={kind}:{host}", "-keyout",
         key, "-out", crt],
        check=True, capture_output=True,
    )
    return crt, key


class ScriptedServer:
    """A server on one port that handles each connection by `serve`."""

    def __init__(self, serve):
        self._serve = serve
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.connections = 0
        self._open = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def limit_window(self, size):
        """Sets how many bytes the kernel takes of a connection before serve()
        does."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.leave()

    def leave(self):
        """Ends as a server that dies: connections end, and new ones are
        refused."""
        if self._socket.fileno() < 0:
            return
        # The thread must not wait on a later socket with the same number.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _run(self):
        while True:
            try:
                one, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(one)
            threading.Thread(target=self._answer, args=(one,),
                             daemon=True).start()

    def _answer(self, one):
        with one, contextlib.suppress(OSError):
            self._serve(one)


@contextlib.contextmanager
def bucket_of(endpoint):
    """A new bucket "bkt" on an S3 server, emptied at the end; yields boto3's
    client."""
    import boto3

    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1",
        aws_access_key_id="AKID", aws_secret_access_key="s3cret",
    )
    client.create_bucket(Bucket="bkt")
    yield client
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="bkt"):
        for key in page.get("Contents", []):
            client.delete_object(Bucket="bkt", Key=key["Key"])
    client.delete_bucket(Bucket="bkt")


def body_of(client, key):
    """Returns an object of the bucket "bkt"."""
    return client.get_object(Bucket="bkt", Key=key)["Body"].read()


@contextlib.contextmanager
def moto_server():
    """A moto S3 server; yields its URL. It checks no signature."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        await_port(port, process, 60)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _stored(head):
    """Returns an object store's response to a successful upload."""
    answer = b""
    if head.startswith(b"POST"):
        name = b"Initiate" if b"uploads" in head.split()[1] else b"Complete"
        answer = (b"<%sMultipartUploadResult><UploadId>1</UploadId>"
                  b"<ETag>\"1\"</ETag></%sMultipartUploadResult>"
                  % (name, name))
    return (b"HTTP/1.1 200 OK\r\nETag: \"1\"\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(answer), answer))


def store(answer=None):
    """An object store for ScriptedServer. answer(head, body) returns the
    response; without it, uploads are discarded."""
    def serve(one):
        memory = memoryview(bytearray(1 << 20))
        while head := read_head(one):
            text, _, body = head.partition(b"\r\n\r\n")
            found = re.search(rb"\ncontent-length: *(\d+)", text.lower())
            left = (int(found[1]) if found else 0) - len(body)
            body = bytearray(body)
            while left > 0:
                more = one.recv_into(memory[:left])
                assert more, "the client left"
                left -= more
                if answer is not None:
                    body += memory[:more]
            special = answer and answer(text, bytes(body))
            one.sendall(special or _stored(text))

    return serve
