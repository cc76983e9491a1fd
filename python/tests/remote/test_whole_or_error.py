"""An answer is a part, or the whole, or an error: whatever a server says, each
call and each verb gives what it gives for true answers, or fails and leaves no
file."""

import gzip
import re

import pytest

import haulway
from http_server import FaultServer
from source_calls import (
    CALLS,
    WAYS,
    clear,
    outcome,
    save_files,
    without_varying,
    words,
    written,
)

TAGS = {"ETag": '"v1"', "Last_Modified": "Sun, 06 Nov 1994 08:49:37 GMT"}
PAGE = b"<!DOCTYPE html>\n<html><title>Log in</title>" + b" " * 2_000 + b"</html>"
ERROR = (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code>'
         b"<Message>no</Message></Error>")


def part(request, data):
    first, last = request.range or (0, len(data) - 1)
    last = min(last, len(data) - 1)
    return first, last, data[first:last + 1]


def range_of(request, data):
    first, last, _ = part(request, data)
    return f"bytes {first}-{last}/{len(data)}"


def raw(request, *lines, body=b""):
    request.send("\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]), body)
    request.close()


# A report of what is wrong.
NOT_OK = ("Report", False)


# Wrong from the first answer on.
LIES = {
    "a part as status 200": lambda r, d: r.answer(
        200, part(r, d)[2], Content_Range=range_of(r, d), **TAGS),
    "a part as status 200, without its range": lambda r, d: r.answer(
        200, part(r, d)[2], **TAGS),
    "a part as status 203": lambda r, d: r.answer(203, part(r, d)[2]),
    "half, ended by the connection": lambda r, d: raw(
        r, "Connection: close", body=d[:len(d) // 2]),
    "half, in chunks that do not end": lambda r, d: raw(
        r, "Transfer-Encoding: chunked",
        body=b"%x\r\n%s\r\n" % (len(d) // 2, d[:len(d) // 2])),
    "half, of the whole length": lambda r, d: raw(
        r, f"Content-Length: {len(d)}", body=d[:len(d) // 2]),
    "half, of two lengths": lambda r, d: raw(
        r, f"Content-Length: {len(d) // 2}", f"Content-Length: {len(d)}",
        body=d[:len(d) // 2]),
    "several parts": lambda r, d: r.answer(
        200, b"--x\r\n\r\n" + d[:9_000],
        Content_Type="multipart/byteranges; boundary=x"),
    "a part of another place": lambda r, d: r.answer(
        206, part(r, d)[2],
        Content_Range=f"bytes 1-{len(part(r, d)[2])}/{len(d)}"),
    "a part without its place": lambda r, d: r.answer(206, part(r, d)[2]),
    "a part longer than its place": lambda r, d: r.answer(
        206, part(r, d)[2] + b"x", Content_Range=range_of(r, d)),
    "a part of no total": lambda r, d: r.answer(
        206, part(r, d)[2],
        Content_Range=range_of(r, d).replace(f"/{len(d)}", "/*")),
    "compressed": lambda r, d: r.answer(
        200, gzip.compress(d, 1), Content_Encoding="gzip"),
    "a web page": lambda r, d: r.answer(200, PAGE, Content_Type="text/html"),
    "a web page, by ranges": lambda r, d: r.serve(PAGE),
    "a store's error": lambda r, d: r.answer(
        200, ERROR, Content_Type="application/xml"),
    "nothing": lambda r, d: r.answer(204),
}
# Wrong from the second answer on: of another object.
CHANGES = {
    "no validator": lambda r, d: r.serve(d),
    "another ETag": lambda r, d: r.serve(d, **{**TAGS, "ETag": '"v2"'}),
    "no ETag": lambda r, d: r.serve(
        d, Last_Modified=TAGS["Last_Modified"]),
    "another length": lambda r, d: r.serve(d + b"x", **TAGS),
    "the whole of another": lambda r, d: r.answer(
        200, bytes(len(d)), ETag='"v2"'),
    "the whole of one without a name": lambda r, d: r.answer(
        200, bytes(len(d))),
    "a web page": lambda r, d: r.answer(200, PAGE),
    "changed, says 412": lambda r, d: r.answer(412),
}


class Liar:
    """Serves files truly until it is told to lie."""

    def __init__(self, folder):
        self.folder = folder
        self.lie, self.after, self.seen = None, 0, {}

    def tell(self, lie, after=0):
        self.lie, self.after, self.seen = lie, after, {}

    def __call__(self, request):
        name = request.target.lstrip("/")
        path = self.folder / name
        if not path.is_file():
            return request.answer(404)
        count = self.seen[name] = self.seen.get(name, 0) + 1
        if self.lie is None or count <= self.after:
            return request.serve(path.read_bytes(), **TAGS)
        self.lie(request, path.read_bytes())


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The folder with files of several answers each."""
    folder = tmp_path_factory.mktemp("served")
    save_files(folder, (600, 500))
    return folder


@pytest.fixture(scope="module")
def liar(served):
    liar = Liar(served)
    with FaultServer(liar) as server:
        liar.server = server
        yield liar


CASES = [*((name, lie, 0) for name, lie in LIES.items()),
         *((name, lie, 1) for name, lie in CHANGES.items())]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def lie(request, liar):
    liar.tell(None)
    yield lambda: liar.tell(*request.param[1:])
    liar.tell(None)


def test_calls(liar, lie, tmp_path):
    with haulway.config(load={"stall_timeout": 5, "retries": 1}):
        for name, call in CALLS.items():
            for kind in ("pt", "safetensors", "tensors"):
                url = liar.server.url(f"/file.{kind}")
                liar.tell(None)
                true = outcome(call, url, tmp_path)
                lie()
                told = outcome(call, url, tmp_path)
                if isinstance(told[0], Exception) or told[0] == NOT_OK:
                    assert not told[1], (name, kind, told)
                else:
                    assert told == true, (name, kind)


def test_verbs(liar, lie, served, run, command, tmp_path):
    for way in WAYS:
        line = words(way, lambda name: liar.server.url(f"/{name}"))
        if not any("://" in word for word in line) or line[0] == "sign":
            continue  # Only what lies on this machine is signed.
        line = [str(served / word) if (served / word).exists() else word
                for word in line]
        told = []
        for tell in (lambda: liar.tell(None), lie):
            tell()
            clear(tmp_path)
            done = run(*line, "--retries", "1", code=None)
            assert done.returncode != 4, done.stderr
            said = without_varying(re.sub(r"[0-9.]+ s\b.*", "", done.stdout))
            files = written(tmp_path)
            if way.startswith("encrypt"):  # With other random bytes each time.
                for name in files:
                    key = line[line.index("--keyfile") + 1]
                    run("decrypt", name, f"{name}.plain", "--keyfile", key)
                    files = {**files, name: written(tmp_path)[f"{name}.plain"]}
            told.append((done.returncode, said, files))
        true, lied = told
        if lied[0] in (0, 3) or true[0] == lied[0] == 1:
            assert lied == true, way
        else:
            assert not lied[2], (way, lied)


def test_true_answers_are_taken(liar, served, tmp_path):
    """Of servers with little to say: no validator at all, weak ETags, dates."""
    data = (served / "file.safetensors").read_bytes()
    answers = {
        "nothing": {}, "a date": {"Last_Modified": TAGS["Last_Modified"]},
        "a weak ETag": {"ETag": 'W/"1"'},
        "both": {"ETag": 'W/"1"', "Last_Modified": TAGS["Last_Modified"]},
    }
    for headers in answers.values():
        with FaultServer(lambda r: r.serve(data, **headers)) as server:  # noqa: B023
            haulway.get(server.url("/m.safetensors"), tmp_path / "m")
            assert (tmp_path / "m").read_bytes() == data
    for headers in ({}, {"Content_Range": f"bytes 0-{len(data) - 1}/{len(data)}"}):
        with FaultServer(lambda r: r.answer(200, data, **headers)) as server:  # noqa: B023
            haulway.get(server.url("/m.safetensors"), tmp_path / "m")
            assert (tmp_path / "m").read_bytes() == data
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
    with FaultServer(lambda r: raw(
            r, "Transfer-Encoding: chunked", body=chunks)) as server:
        haulway.get(server.url("/m.safetensors"), tmp_path / "m")
        assert (tmp_path / "m").read_bytes() == data


def test_a_page_is_taken_where_it_is_asked_for(tmp_path):
    with FaultServer(lambda r: r.answer(200, PAGE)) as server:
        haulway.get(server.url("/download?id=1"), tmp_path / "page.html")
        assert (tmp_path / "page.html").read_bytes() == PAGE
        for url, name in (("/m.pt", "x.html"), ("/download?id=1", "m.pt"),
                          ("/x.html", "m.safetensors")):
            with pytest.raises(haulway.IoError, match="sends a web page"):
                haulway.get(server.url(url), tmp_path / name)
        assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
