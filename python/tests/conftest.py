import gzip
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys

import pytest

from http_server import Nginx
from remote_servers import bucket_of, moto_server, redis_server

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def pytest_configure():
    # Tests choose the trusted certificates themselves, and programs behave as
    # they do for users.
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE",
                 "AWS_CA_BUNDLE", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
        os.environ.pop(name, None)
    # The interpreter with the package, for `haulway bulk`.
    os.environ.setdefault("HAULWAY_PYTHON", sys.executable)
    # A shell ignores SIGINT in background jobs, which all processes that tests
    # start would inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    # A failure that depends on drawn values comes again when the test is run
    # again.
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter):
    """Adds to the file that tools/not_possible.py reads."""
    if path := os.environ.get("HAULWAY_NOT_POSSIBLE"):
        with open(path, "a") as file:
            for report in terminalreporter.stats.get("skipped", []):
                file.write(report.longrepr[2].removeprefix("Skipped: ") + "\n")


@pytest.fixture
def interrupt():
    """Returns a function that interrupts the test, as Ctrl-C does, 0.3 s after
    it was called."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.3)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def small():
    """The path of a real training checkpoint."""
    return ROOT / "testdata" / "small.pt"


@pytest.fixture
def golden(tmp_path):
    """Unpacks a golden Tensorizer file by its name, and returns its path."""
    def unpack(name):
        path = tmp_path / f"{name}.tensors"
        packed = ROOT / f"testdata/golden/tensorizer/{name}.tensors.gz"
        path.write_bytes(gzip.decompress(packed.read_bytes()))
        return path
    return unpack


@pytest.fixture(scope="session")
def examples():
    """Returns the folder with the built examples."""
    folders = [os.environ.get("HAULWAY_EXAMPLES", "")]
    folders += sorted(map(str, ROOT.glob("build*/examples")))
    folders += sorted(map(str, ROOT.glob("build/*/examples")))
    for folder in folders:
        if os.path.exists(os.path.join(folder, "arena_producer")):
            return pathlib.Path(folder)
    raise AssertionError("the examples are not built")


@pytest.fixture(scope="session")
def command():
    """Returns the path of the haulway command: HAULWAY_COMMAND, or the one that
    `pip install .` installed."""
    if named := os.environ.get("HAULWAY_COMMAND"):
        return named
    beside = pathlib.Path(sys.executable).with_name("haulway")
    found = str(beside) if beside.exists() else shutil.which("haulway")
    assert found, "pip install . brings the command"
    return found


@pytest.fixture(scope="session")
def program(command):
    """Returns the path of the standalone program, which needs no Python."""
    built = sorted(map(str, ROOT.glob("build/*/cli/haulway")))
    for path in (command, *built):
        with open(path, "rb") as file:
            if file.read(4) == b"\x7fELF":
                return path
    raise AssertionError("the command is not built")


@pytest.fixture
def run(command, tmp_path):
    """Runs the command in tmp_path; if `code` is given, it must exit with
    it. No message may name a place twice."""

    def run(*arguments, code=0, cwd=tmp_path, text=True, **options):
        done = subprocess.run([command, *map(str, arguments)], cwd=cwd,
                              capture_output=True, text=text, **options)
        assert code in (None, done.returncode), (done.stdout, done.stderr)
        if text:
            for line in done.stderr.splitlines():
                places = [part for part in line.split("; ")
                          if part.startswith(("at ", "in ", "of "))]
                assert len(places) == len(set(places)), line
        return done

    return run


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory):
    """Returns a function that builds a library of this folder, to be preloaded,
    and returns its path."""
    folder = tmp_path_factory.mktemp("preloaded")

    def preloaded(name, *options):
        built = folder / f"{'_'.join([name, *options])}.so"
        if not built.exists():
            subprocess.run(
                ["cc", "-shared", "-fPIC", *options, "-o", built,
                 pathlib.Path(__file__).with_name(f"{name}.c"), "-ldl"], check=True)
        return str(built)

    return preloaded


@pytest.fixture
def watched(preloaded, tmp_path_factory):
    """Runs code with the library, and returns its exit code, its errors and
    the logged calls."""
    log = tmp_path_factory.mktemp("log") / "calls"

    def watched(code, *arguments, **faults):
        log.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True, text=True,
            env={**os.environ, "LD_PRELOAD": preloaded("watch_calls"),
                 "WATCH_LOG": str(log), **faults})
        calls = log.read_text().splitlines() if log.exists() else []
        return done.returncode, done.stderr, calls

    return watched


@pytest.fixture(scope="module")
def nginx(tmp_path_factory):
    server = Nginx(tmp_path_factory.mktemp("nginx"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def model(tensors):
    """Returns a module's tensors as a safetensors file."""
    import safetensors.torch

    return safetensors.torch.save(tensors)


@pytest.fixture(scope="module")
def endpoint():
    """Returns the URL of an S3 server."""
    with moto_server() as url:
        yield url


@pytest.fixture
def bucket(endpoint):
    """Returns boto3's client of an S3 server that has the bucket "bkt"."""
    with bucket_of(endpoint) as client:
        yield client


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis")) as port:
        yield port


@pytest.fixture
def client(redis_port):
    """Returns a redis client of an empty server."""
    import redis

    with redis.Redis("127.0.0.1", redis_port) as client:
        client.flushall()
        yield client


def pytest_collection_modifyitems(items):
    # Set by scripts/test-pythons.
    if "HAULWAY_WITHOUT_TORCH" not in os.environ:
        return
    from optional_torch import needs_torch  # Importing torch takes a second.

    for item in items:
        if needs_torch(item):
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
