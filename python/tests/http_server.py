"""HTTP servers for tests: one that misbehaves as a test tells it to, and
nginx."""

import contextlib
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import threading
import time


class Request:
    """A request as a handler gets it."""

    def __init__(self, connection, head, number, stopped):
        self.connection = connection
        self.number = number  # Counted over all connections to the server.
        self.closed = False
        self._stopped = stopped
        self.first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = f"{self.first}  ".split(" ", 2)
        self.headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()

    @property
    def range(self):
        """Returns (first, last) of the requested range, or None."""
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        return found and (int(found[1]), int(found[2]))

    def send(self, *parts):
        try:
            for part in parts:
                part = part.encode("latin-1") if isinstance(part, str) else part
                self.connection.sendall(part)
        except OSError:
            self.closed = True

    def answer(self, status, body=b"", **headers):
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
        lines += [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
        self.send("\r\n".join(lines) + "\r\n\r\n", body)

    def serve(self, data, **headers):
        """Answers as a correct server does."""
        if self.range is None:
            return self.answer(200, data, **headers)
        first, last = self.range
        if first >= len(data):
            return self.answer(416, Content_Range=f"bytes */{len(data)}")
        last = min(last, len(data) - 1)
        self.answer(206, data[first:last + 1], **headers,
                    Content_Range=f"bytes {first}-{last}/{len(data)}")

    def close(self):
        self.closed = True

    def reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                   struct.pack("ii", 1, 0))
        self.close()

    def stall(self):
        """Sends nothing until the server is stopped or the client is gone."""
        self.connection.settimeout(0.05)
        while not self._stopped.is_set():
            try:
                if not self.connection.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self.close()

    def drip(self, data, **headers):
        """Sends a byte now and then until the client is gone."""
        first, last = self.range
        last = min(last, len(data) - 1)
        lines = [f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items()]
        self.send(f"HTTP/1.1 206 X\r\nContent-Length: {last - first + 1}\r\n",
                  *lines,
                  f"Content-Range: bytes {first}-{last}/{len(data)}\r\n\r\n")
        for at in range(first, last + 1):
            if self.closed or self._stopped.wait(0.02):
                break
            self.send(data[at:at + 1])
        self.close()


def read_head(connection):
    """Returns the bytes up to the end of a request's head; none if the client
    leaves."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    return data


def requests_of(connection):
    """Yields each Request on a connection; requests have no body."""
    while head := read_head(connection):
        yield Request(connection, head.partition(b"\r\n\r\n")[0], 0, None)


class FaultServer:
    """Calls handler(request) for each request; each connection has a thread."""

    def __init__(self, handler):
        self.handler = handler
        self.requests = []
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.settimeout(0.05)
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def url(self, path="/model"):
        return f"http://127.0.0.1:{self.port}{path}"

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def leave(self):
        """Ends as a server that dies: connections end, and new ones are
        refused."""
        self._stopped.set()
        self._listener.close()

    def _accept(self):
        while not self._stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection):
        with contextlib.closing(connection):
            while True:
                head = b""
                connection.settimeout(0.05)
                while b"\r\n\r\n" not in head:
                    if self._stopped.is_set():
                        return
                    try:
                        more = connection.recv(65536)
                    except TimeoutError:
                        continue
                    except OSError:
                        return
                    if not more:
                        return
                    head += more
                connection.settimeout(10)
                with self._lock:
                    number = len(self.requests)
                    request = Request(connection, head.split(b"\r\n\r\n")[0],
                                      number, self._stopped)
                    self.requests.append(request)
                self.handler(request)
                if request.closed:
                    return


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def make_certificates(folder):
    """Makes ca.pem, and server.pem with server.key for localhost, signed by
    it."""
    run = lambda *words: subprocess.run(  # noqa: E731
        ["openssl", *map(str, words)], check=True, capture_output=True,
        cwd=folder)
    run("req", "-x509", "-newkey", "ec", "-pkeyopt",
        "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "ca.key", "-out",
        "ca.pem", "-days", "2", "-subj", "/CN=Test CA")
    run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-keyout", "server.key", "-out", "server.csr", "-subj",
        "/CN=localhost")
    (folder / "ext").write_text("subjectAltName=DNS:localhost\n")
    run("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey",
        "ca.key", "-CAcreateserial", "-out", "server.pem", "-days", "2",
        "-extfile", "ext")


class Nginx:
    """An nginx that serves a folder, plain and with TLS, and logs requests."""

    def __init__(self, folder):
        program = shutil.which("nginx") or "/usr/sbin/nginx"
        self.root = folder / "root"
        self.root.mkdir()
        self.folder = folder
        make_certificates(folder)
        self.ca = folder / "ca.pem"
        self.port, self.tls_port = free_port(), free_port()
        self._log = folder / "access.log"
        (folder / "nginx.conf").write_text(f"""
            {"user root;" if os.geteuid() == 0 else ""}
            daemon off; worker_processes 1; pid {folder}/pid;
            error_log {folder}/error.log;
            events {{ worker_connections 256; }}
            http {{
              log_format short '$request_method $uri $status $http_range';
              access_log {self._log} short;
              gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any;
              client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2;
              fastcgi_temp_path {folder}/t3; uwsgi_temp_path {folder}/t4;
              scgi_temp_path {folder}/t5; root {self.root};
              server {{
                listen 127.0.0.1:{self.port};
                listen 127.0.0.1:{self.tls_port} ssl;
                ssl_certificate server.pem; ssl_certificate_key server.key;
                keepalive_requests 20;
                location /whole/ {{ alias {self.root}/; max_ranges 0; }}
                location /down {{
                  return 302 http://127.0.0.1:{self.port}/model.safetensors;
                }}
                location /slow/ {{ alias {self.root}/; limit_rate 64k; }}
                location = /forbidden {{ return 403; }}
                location = /gone {{ return 410; }}
                location = /busy {{ return 503; }}
                location = /many {{ return 429; }}
                location /private/ {{
                  if ($http_authorization != "Bearer secret-token") {{
                    return 401;
                  }}
                  alias {self.root}/;
                }}
              }}
            }}""")
        self._process = subprocess.Popen(
            [program, "-p", str(folder), "-c", str(folder / "nginx.conf")],
            stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            time.sleep(0.02)

    def url(self, path):
        return f"http://127.0.0.1:{self.port}/{path}"

    def tls_url(self, path, host="localhost"):
        return f"https://{host}:{self.tls_port}/{path}"

    def put(self, path, data):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, pathlib.Path):
            shutil.copy(data, target)
        else:
            target.write_bytes(data)
        return self.url(path)

    def requests(self):
        """Returns the lines of the log since the last call."""
        # A line is written after the response was sent, by the one worker that
        # then answers this request.
        with socket.create_connection(("127.0.0.1", self.port)) as one:
            one.sendall(b"GET /last HTTP/1.0\r\n\r\n")
            while one.recv(4096):
                pass
        end = time.monotonic() + 20
        while "GET /last " not in (text := self._log.read_text()):
            assert time.monotonic() < end, "nginx writes no log"
            time.sleep(0.002)
        self._log.write_text("")
        return [line for line in text.lstrip("\0").splitlines()
                if line and not line.startswith("GET /last ")]

    def stop(self):
        self._process.terminate()
        self._process.wait()
