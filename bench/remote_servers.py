"""Servers on this machine for bench/remote_bench.py, each in its own
process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

MIB = 1 << 20
_BEGUN = (b"<InitiateMultipartUploadResult><UploadId>1</UploadId>"
          b"</InitiateMultipartUploadResult>")
_DONE = (b"<CompleteMultipartUploadResult><ETag>\"1\"</ETag>"
         b"</CompleteMultipartUploadResult>")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def await_port(port):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            return socket.create_connection(("127.0.0.1", port)).close()
        time.sleep(0.02)
    raise RuntimeError("a server does not answer")


@contextlib.contextmanager
def running(command, port):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        await_port(port)
        yield
    finally:
        process.terminate()
        process.wait()


class Nginx:
    """Serves a folder by http, by https, and by http with a delay per request:
    a subrequest goes to a server that waits before it accepts."""

    def __init__(self, folder: Path, delay: float):
        self.root = folder / "root"
        self.root.mkdir()
        self.ca = folder / "server.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
             "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
             "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
             "-keyout", folder / "server.key", "-out", self.ca],
            check=True, capture_output=True)
        self._folder, self._delay = folder, delay
        self._port, self._tls_port = free_port(), free_port()
        self._waiting_port = free_port()
        (folder / "nginx.conf").write_text(f"""
            {"user root;" if os.geteuid() == 0 else ""}
            daemon off; worker_processes 1; pid {folder}/pid;
            error_log {folder}/error.log;
            events {{ worker_connections 512; }}
            http {{
              access_log off; sendfile on; keepalive_requests 100000;
              client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2;
              fastcgi_temp_path {folder}/t3; uwsgi_temp_path {folder}/t4;
              scgi_temp_path {folder}/t5; root {self.root};
              upstream waiting {{
                server 127.0.0.1:{self._waiting_port}; keepalive 64;
              }}
              server {{
                listen 127.0.0.1:{self._port};
                listen 127.0.0.1:{self._tls_port} ssl;
                ssl_certificate server.pem; ssl_certificate_key server.key;
                location /bucket/ {{ alias {self.root}/; }}
                location /late/ {{ auth_request /wait; alias {self.root}/; }}
                location = /wait {{
                  internal; proxy_pass http://waiting; proxy_http_version 1.1;
                  proxy_set_header Connection ""; proxy_pass_request_body off;
                  proxy_set_header Content-Length "";
                }}
              }}
            }}""")

    @contextlib.contextmanager
    def serving(self):
        program = shutil.which("nginx") or "/usr/sbin/nginx"
        waiting = [sys.executable, __file__, "wait", str(self._waiting_port),
                   str(self._delay)]
        nginx = [program, "-p", self._folder, "-c",
                 self._folder / "nginx.conf"]
        with running(waiting, self._waiting_port):
            with running(nginx, self._port):
                yield self

    def url(self, name):
        return f"http://127.0.0.1:{self._port}/{name}"

    def late_url(self, name):
        return f"http://127.0.0.1:{self._port}/late/{name}"

    def tls_url(self, name):
        return f"https://localhost:{self._tls_port}/{name}"


def wait(port, delay):
    """Answers each request after `delay` seconds."""
    import asyncio

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(delay)
                writer.write(b"HTTP/1.1 204 No\r\n\r\n")

    async def run():
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(run())


def take_uploads(port):
    """An object store that reads and discards uploads, whole or in parts."""
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_take, args=(connection,), daemon=True).start()


def _take(connection):
    memory = memoryview(bytearray(MIB))
    head = b""
    with connection, contextlib.suppress(OSError):
        while True:
            while b"\r\n\r\n" not in head:
                more = connection.recv(65536)
                if not more:
                    return
                head += more
            text, _, body = head.partition(b"\r\n\r\n")
            if b"100-continue" in text:
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            found = re.search(rb"\ncontent-length: *(\d+)", text.lower())
            left = (int(found[1]) if found else 0) - len(body)
            while left > 0:
                left -= connection.recv_into(memory[:min(left, MIB)])
            head = b""
            answer = b""
            if text.startswith(b"POST"):
                is_begun = b"uploads" in text.split(None, 2)[1]
                answer = _BEGUN if is_begun else _DONE
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nETag: \"%s\"\r\nContent-Length: %d\r\n\r\n"
                % (f"{uuid.uuid4()}".encode(), len(answer)) + answer)


@contextlib.contextmanager
def upload_server():
    port = free_port()
    with running([sys.executable, __file__, "take", str(port)], port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def redis_server(folder):
    port = free_port()
    with running(["redis-server", "--port", str(port), "--save", "", "--dir",
                  folder, "--bind", "127.0.0.1"], port):
        yield port


if __name__ == "__main__":
    if sys.argv[1] == "wait":
        wait(int(sys.argv[2]), float(sys.argv[3]))
    take_uploads(int(sys.argv[2]))
