"""Checks an installed package on a minimal system.

    python check_installed.py TESTDATA COMMAND FOLDER

FOLDER holds ca.pem, server.pem (certificate and key of localhost). Runs in a
minimal root with Python's standard library only.
"""

import concurrent.futures
import functools
import gzip
import http.server
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
import sysconfig
import tempfile
import threading

import haulway
import haulway.delta
from haulway.ipc import (
    SharedMemoryArena,
    iterate_in_subprocess,
    offload,
    restore,
)

# Where distributions store their certificates.
PLACES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
          "/etc/ssl/ca-bundle.pem",
          "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem")


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves whole files, and requested ranges of them."""

    def log_message(self, *_):
        pass

    def do_GET(self):  # noqa: N802 - the base class's name.
        if self.path.startswith("/bucket/") and not self.is_signed():
            return self.send_error(403)
        path = pathlib.Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        data = path.read_bytes()
        asked = self.headers.get("Range")
        first, last = 0, len(data) - 1
        if asked:
            begin, end = asked.removeprefix("bytes=").split("-")
            first, last = int(begin), min(int(end or last), last)
        self.send_response(206 if asked else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(last - first + 1))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[first:last + 1])

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self):  # noqa: N802
        """Accepts an object as S3 does."""
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.is_signed():
            return self.send_error(403)
        pathlib.Path(self.translate_path(self.path)).write_bytes(data)
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def is_signed(self):
        """Returns whether the request has an S3 signature, by any key."""
        return self.headers.get("Authorization", "").startswith(
            "AWS4-HMAC-SHA256 Credential=key/")


def serve(folder, pem=None):
    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if pem is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    scheme = "http" if pem is None else "https"
    return f"{scheme}://localhost:{server.server_port}"


def check_goldens(command, testdata, folder):
    """Opens and loads each golden, and compares its tensors with those saved.
    Tensors that another format can hold are saved in one and verified."""
    count = saved = 0
    out = folder / "golden.safetensors"
    for path in sorted((testdata / "golden").glob("*.pt.gz")):
        plain = folder / path.name.removesuffix(".gz")
        plain.write_bytes(gzip.decompress(path.read_bytes()))
        described = path.with_name(path.name.replace(".pt.gz", ".json"))
        tensors = json.loads(described.read_text())["tensors"]
        with haulway.open(plain, framework=None) as checkpoint:
            assert sorted(checkpoint) == sorted(one["name"] for one in tensors), path
        # A manifest has the bytes of a conjugate as it is read, not as it is
        # stored.
        digests = {digest for _, _, digest in haulway.manifest(plain).values()}
        assert digests >= {one.get("sha256") for one in tensors
                           if not one.get("conj") and not one.get("neg")}, path
        done = subprocess.run([command, "load", plain], capture_output=True)
        assert done.returncode in (0, 3), (path, done)
        count += 1
        try:
            haulway.convert(plain, out, ties="copy")
        except haulway.Error:
            continue
        assert haulway.verify(out).ok
        saved += 1
    assert count > 20 and saved > 10, (count, saved)
    assert haulway.verify(testdata / "small.pt").ok


def check_saving(testdata, folder):
    out = folder / "x.safetensors"
    haulway.convert(testdata / "small.pt", out, ties="copy")
    assert haulway.verify(out).ok
    with haulway.open(testdata / "small.pt", framework=None) as one:
        with haulway.open(out, framework=None) as other:
            assert sorted(one) == sorted(other)


def check_versions(testdata, folder):
    """Reads versions of weights with each encoding and checksum, and applies and
    writes them: what libzstd, libxxhash and the checksums of our own do."""
    for name in ("slime-xor-xxh3", "slime-overwrite-adler32",
                 "miles-xor-blake3-full"):
        golden = testdata / "delta" / name
        run, base = golden / "run", golden / "base"
        report = haulway.delta.verify(run, base=base)
        assert report.ok and report.checked_bytes > 7000, report
        newest = haulway.delta.versions(run)[-1]
        target = folder / name
        assert haulway.delta.apply(target, run, base=base).to == newest.id
        assert haulway.diff(target, newest.path, base=base)
        made = haulway.delta.write(base, target, folder / f"{name}-made",
                                   version="new", base_version="old",
                                   encoding=newest.encoding,
                                   checksum=newest.checksum)
        assert haulway.diff(made.path, target, base=base)


def check_network(testdata, certificates):
    expected = sorted(haulway.open(testdata / "small.pt", framework=None))
    for base in (serve(testdata),):
        with haulway.open(f"{base}/small.pt", framework=None) as checkpoint:
            assert sorted(checkpoint) == expected
    url = serve(testdata, certificates / "server.pem") + "/small.pt"
    program = ("import haulway, sys\n"
               "haulway.open(sys.argv[1], framework=None)\n")

    def fails_with():
        done = subprocess.run([sys.executable, "-c", program, url], text=True,
                              capture_output=True)
        return done.stderr.strip().splitlines()[-1] if done.returncode else None

    # A minimal system trusts nobody: it has no certificates, or an empty
    # folder.
    assert "certificate" in fails_with(), fails_with()
    places = [pathlib.Path(place) for place in PLACES]
    kept = {place: place.read_bytes() for place in places if place.exists()}
    for place in kept:
        place.unlink()
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((certificates / "ca.pem").read_bytes())
        said = fails_with()
        assert said is None, (place, said)
        place.unlink()
        for parent in place.parents:
            if str(parent) not in ("/", "/etc") and not any(parent.iterdir()):
                parent.rmdir()
    for place, text in kept.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text)
    os.environ["SSL_CERT_FILE"] = str(certificates / "ca.pem")
    assert fails_with() is None


def check_s3(testdata, folder):
    (folder / "bucket").mkdir()
    shutil.copy(testdata / "small.pt", folder / "bucket")
    os.environ.update(AWS_ENDPOINT_URL=serve(folder), AWS_ACCESS_KEY_ID="key",
                      AWS_SECRET_ACCESS_KEY="secret", AWS_REGION="us-east-1")
    with haulway.open("s3://bucket/small.pt", framework=None) as checkpoint:
        with haulway.open(testdata / "small.pt", framework=None) as expected:
            assert sorted(checkpoint) == sorted(expected)
    haulway.convert("s3://bucket/small.pt", "s3://bucket/out.safetensors",
                    ties="copy")
    assert haulway.verify(folder / "bucket/out.safetensors").ok


def make_items():
    for step in range(3):
        yield {"step": step, "data": bytes([step]) * 100_000}


def check_arena():
    """Checks that a worker process's items are correct and are stored in the
    arena."""
    arena = SharedMemoryArena(1 << 20, bytes_as="memoryview")
    steps = []
    with iterate_in_subprocess(make_items, arena=arena) as source:
        for item in source:
            assert isinstance(item["data"], memoryview), item
            assert item["data"] == bytes([item["step"]]) * 100_000
            steps.append(item["step"])
        assert arena.stats()["fallbacks"] == 0, arena.stats()
    assert steps == [0, 1, 2], steps


def check_threads(testdata, folder):
    """Threads open, load, save and use arenas at once, and a Python without the
    GIL stays without."""
    source = testdata / "small.pt"
    digests = haulway.manifest(source)
    shared = SharedMemoryArena(1 << 24)

    def work(number):
        own = SharedMemoryArena(1 << 20)
        path = folder / f"of-thread-{number}.safetensors"
        data = bytes([number]) * 100_000
        for _ in range(10):
            with haulway.open(source, framework=None) as checkpoint:
                assert sorted(checkpoint) == sorted(digests)
            haulway.convert(source, path, ties="copy")
            assert haulway.verify(path).ok
            assert haulway.manifest(path).keys() == digests.keys()
            envelope = offload({"data": data}, own.open_writer())
            assert restore(envelope, own.open_reader()) == {"data": data}
            shared.open_reader(), shared.stats()
        return number

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert not sys._is_gil_enabled()


def check_command(command, testdata):
    def run(*words, **options):
        return subprocess.run([command, *words], capture_output=True, text=True,
                              **options)

    said = run("info", "--json", testdata / "small.pt")
    assert said.returncode == 0 and json.loads(said.stdout), said
    assert run("--version").stdout.split()[1] == haulway.__version__
    assert run("nonsense").returncode == 4
    assert run("verify", testdata / "nothing.pt").returncode == 2
    # It ends as a program does if nobody reads its output.
    read, write = os.pipe()
    os.close(read)
    code = subprocess.run([command, "ls", testdata / "small.pt"], stdout=write,
                          stderr=subprocess.DEVNULL).returncode
    assert code == -13, code


def main():
    testdata, command, certificates = map(pathlib.Path, sys.argv[1:4])
    folder = pathlib.Path(tempfile.mkdtemp())
    checks = {
        "goldens": lambda: check_goldens(command, testdata, folder),
        "saving": lambda: check_saving(testdata, folder),
        "versions": lambda: check_versions(testdata, folder),
        "arena": check_arena,
        "threads": lambda: check_threads(testdata, folder),
        "command": lambda: check_command(command, testdata),
        "S3": lambda: check_s3(testdata, folder),
        "network": lambda: check_network(testdata, certificates),
    }
    for name, check in checks.items():
        check()
        print(f"  {name}: ok", flush=True)


if __name__ == "__main__":
    main()
