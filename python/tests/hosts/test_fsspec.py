"""fsspec in both directions: haulway:// URLs for fsspec, and its files for
Haulway."""

import functools
import gzip
import importlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import fsspec
import pytest
import safetensors.torch
import torch

import haulway
from compare import same_tensors
from haulway.fsspec import HaulwayFileSystem
from haulway.tensorizer import stream_io
from http_server import FaultServer
from remote_servers import redis_server

TENSORS = {"w": torch.arange(300_000.0), "b": torch.ones(3)}
same = functools.partial(same_tensors, expected=TENSORS)


@pytest.fixture(scope="module", autouse=True)
def registered():
    """Registers as the entry point does if the package is installed."""
    fsspec.register_implementation("haulway", HaulwayFileSystem, clobber=True)


def test_the_entry_point_names_the_file_system():
    text = pathlib.Path(__file__).parents[3].joinpath("pyproject.toml")
    section = text.read_text().partition('[project.entry-points."fsspec.specs"]')
    found = re.match(r'\s*haulway = "([^":]+):([^"]+)"\n', section[2])
    module, name = found.groups()
    assert getattr(importlib.import_module(module), name) is HaulwayFileSystem
    assert HaulwayFileSystem.protocol == "haulway"


def test_importing_does_not_import_fsspec():
    program = "import haulway, sys; haulway.save; haulway.load; " \
              "assert 'fsspec' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_urls_and_paths_are_opened(nginx, tmp_path):
    data = os.urandom(3 << 20)
    (tmp_path / "data").write_bytes(data)
    nginx.put("data", data)
    for name in (nginx.url("data"), str(tmp_path / "data")):
        with fsspec.open(f"haulway://{name}") as file:
            assert file.read(5) == data[:5]
            file.seek(-7, 2)
            assert file.read() == data[-7:]
        files = fsspec.filesystem("haulway")
        assert files.cat_file(f"haulway://{name}", 3, -9) == data[3:-9]
        assert files.cat(name) == data
        assert files.size(name) == len(data)
        assert files.info(name)["type"] == "file" and files.exists(name)
        assert not files.exists(name + "none")
        assert files.ls(name, detail=False) == [name]


def test_ranges_come_together(nginx):
    data = os.urandom(9 << 20)
    url = nginx.put("ranges", data)
    files = fsspec.filesystem("haulway", skip_instance_cache=True)
    nginx.requests()
    starts = [1 << 20, 5 << 20, None, -10]
    ends = [(1 << 20) + 9, (5 << 20) + 9, 4, None]
    found = files.cat_ranges([url] * 4, starts, ends)
    assert found == [data[a:b] for a, b in zip(starts, ends)]
    assert len(nginx.requests()) <= 4
    one, other = files.cat_ranges([url, url + "none"], 0, 5)
    assert one == data[:5] and isinstance(other, FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        files.cat_ranges([url + "none"], [0], [5], on_error="raise")


def test_options_say_how_urls_are_reached():
    def handle(request):
        if request.headers.get("authorization") != "Bearer s3cret":
            return request.answer(401)
        request.serve(b"x" * 10)

    with FaultServer(handle) as server:
        name = f"haulway://{server.url()}"
        with fsspec.open(name, bearer_token="s3cret") as file:
            assert file.read() == b"x" * 10
        with pytest.raises(haulway.PermissionDeniedError):
            fsspec.open(name, skip_instance_cache=True).open()


def test_what_is_written_appears_whole(tmp_path):
    with redis_server(tmp_path) as port:
        for name in (str(tmp_path / "new"), f"redis://127.0.0.1:{port}/?key=n"):
            with fsspec.open(f"haulway://{name}", "wb") as file:
                file.write(b"12345")
                with pytest.raises(FileNotFoundError):
                    fsspec.filesystem("haulway").cat_file(name)
            files = fsspec.filesystem("haulway")
            assert files.cat_file(name) == b"12345"
            with pytest.raises(KeyError):
                with files.open(name, "wb") as file:
                    file.write(b"1")
                    raise KeyError
            assert files.cat_file(name) == b"12345"
            files.pipe_file(name, b"6")
            assert files.cat_file(name) == b"6"
    with pytest.raises(ValueError, match="expected 'rb', 'wb', 'xb' or 'ab'"):
        fsspec.filesystem("haulway").open(str(tmp_path / "new"), "r+b")


def test_bytes_are_appended(tmp_path, bucket, endpoint, monkeypatch):
    for name, value in (("ACCESS_KEY_ID", "AKID"), ("REGION", "us-east-1"),
                        ("SECRET_ACCESS_KEY", "s3cret"),
                        ("ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(f"AWS_{name}", value)
    files = fsspec.filesystem("haulway")
    for name in (str(tmp_path / "new"), "s3://bkt/new"):
        for part in (b"1", b"23"):  # The first one makes the file.
            with fsspec.open(f"haulway://{name}", "ab") as file:
                file.write(part)
        assert files.cat_file(name) == b"123"
        with pytest.raises(KeyError):
            with files.open(name, "ab") as file:
                file.write(b"4")
                raise KeyError
        assert files.cat_file(name) == b"123"
        with files.open(name, "at") as file:
            file.write("4")
        assert files.cat_file(name) == b"1234"


def test_the_home_folder_has_its_short_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.txt").write_bytes(b"1")
    files = fsspec.filesystem("haulway")
    for name in ("haulway://~/d/a.txt", "~/d/a.txt", "haulway::file://~/d/a.txt"):
        with fsspec.open(name if "::" in name or name.startswith("haulway")
                         else f"haulway://{name}") as file:
            assert file.read() == b"1"
    assert files.ls("~/d", detail=False) == [str(tmp_path / "d" / "a.txt")]


def test_a_folder_is_no_file(tmp_path, bucket, endpoint, monkeypatch):
    for name, value in (("ACCESS_KEY_ID", "AKID"), ("REGION", "us-east-1"),
                        ("SECRET_ACCESS_KEY", "s3cret"),
                        ("ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(f"AWS_{name}", value)
    bucket.put_object(Bucket="bkt", Key="d/x", Body=b"1")
    files = fsspec.filesystem("haulway")
    for name in (str(tmp_path), "s3://bkt/d/"):
        for work in (
            lambda: files.open(name), lambda: files.open(name, "wb"),  # noqa: B023
            lambda: files.open(name, "ab"), lambda: files.cat_file(name),  # noqa: B023
            lambda: files.pipe_file(name, b"1"),  # noqa: B023
            lambda: files.head(name), lambda: files.read_bytes(name),  # noqa: B023
            lambda: files.cat_ranges([name], [0], [1], on_error="raise"),  # noqa: B023
        ):
            with pytest.raises(IsADirectoryError):
                work()


def test_folders_are_listed(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").mkdir()
    files = fsspec.filesystem("haulway")
    rows = files.ls(f"haulway://{tmp_path}")
    assert [(os.path.basename(row["name"]), row["type"]) for row in rows] == [
        ("a", "file"), ("b", "directory"),
    ]
    assert files.isdir(str(tmp_path)) and not files.isdir(f"{tmp_path}/a")


class Counting(fsspec.AbstractFileSystem):
    """A file system of one file that counts how it is read."""

    protocol = "counting"
    cachable = False

    def __init__(self, data):
        super().__init__()
        self.data = data
        self.calls = []

    def info(self, path, **kwargs):
        return {"name": path, "size": len(self.data), "type": "file"}

    def cat_ranges(self, paths, starts, ends, **kwargs):
        self.calls.append(len(paths))
        return [self.data[a:b] for a, b in zip(starts, ends)]

    def _fetch_range(self, *_):
        raise AssertionError("it was not read by cat_ranges")


def test_files_of_fsspec_are_read_by_their_ranges():
    files = Counting(safetensors.torch.save(TENSORS))
    opened = fsspec.core.OpenFile(files, "/m.safetensors")
    same(haulway.load(opened))
    assert files.calls and sum(files.calls) < 10
    with haulway.open(fsspec.core.OpenFile(files, "/m")) as checkpoint:
        assert torch.equal(checkpoint["b"], TENSORS["b"])


def test_open_files_of_fsspec_are_files(tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/m.safetensors", safetensors.torch.save(TENSORS))
    opened = fsspec.open("memory://m.safetensors")
    same(haulway.load(opened))
    with opened as file:
        same(haulway.load(file))
    (tmp_path / "m.gz").write_bytes(gzip.compress(b"1"))
    with pytest.raises(ValueError, match="compressed by gzip"):
        haulway.load(fsspec.open(str(tmp_path / "m.gz"), compression="gzip"))


def test_our_files_are_read_by_their_source(nginx, tmp_path):
    url = nginx.put("m.safetensors", safetensors.torch.save(TENSORS))
    nginx.requests()
    with fsspec.open(f"haulway://{url}") as file:
        same(haulway.load(file))
    assert len(nginx.requests()) <= 2


class Store(fsspec.AbstractFileSystem):
    """Replaces fsspec's own file system for s3://. Haulway uses it to remove
    files and, in a chained URL, to split the URL."""

    protocol = "s3"
    removed = []

    def rm_file(self, path):
        self.removed.append(path)


@pytest.fixture
def files_of_s3(endpoint, bucket, monkeypatch):
    for name, value in (("AWS_ENDPOINT_URL_S3", endpoint), ("AWS_REGION", "us-east-1"),
                        ("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")):
        monkeypatch.setenv(name, value)
    known = importlib.import_module("fsspec.registry")._registry
    monkeypatch.setitem(known, "s3", Store)
    return HaulwayFileSystem(skip_instance_cache=True)


def test_a_chain_names_what_is_behind(files_of_s3, tmp_path):
    data = os.urandom(1 << 20)
    files_of_s3.pipe_file("s3://bkt/chained", data)
    (tmp_path / "m").write_bytes(data[:9])
    with fsspec.open("haulway::s3://bkt/chained") as file:
        assert file.read() == data
    with fsspec.open(f"haulway::file://{tmp_path}/m") as file:
        assert file.read() == data[:9]
    files, path = fsspec.url_to_fs("haulway::s3://bkt/chained")
    assert type(files) is HaulwayFileSystem and files.size(path) == len(data)
    assert files.cat_file(path, 1, 4) == data[1:4]
    with pytest.raises(FileNotFoundError):
        fsspec.open("haulway::s3://bkt/none").open()


def test_files_and_folders_are_changed(tmp_path):
    files = fsspec.filesystem("haulway")
    top = f"haulway://{tmp_path}/top"
    files.makedirs(f"{top}/sub")
    files.makedirs(f"{top}/sub", exist_ok=True)
    with pytest.raises(FileExistsError):
        files.mkdir(f"{top}/sub")
    files.pipe_file(f"{top}/a", b"12")
    files.pipe({f"{top}/sub/b": b"3"})
    assert sorted(files.find(top)) == [f"{tmp_path}/top/a", f"{tmp_path}/top/sub/b"]
    files.mv(f"{top}/a", f"{top}/sub/c")
    files.cp_file(f"{top}/sub/c", f"{top}/d")
    assert files.cat(f"{top}/d") == b"12" and not files.exists(f"{top}/a")
    assert files.created(f"{top}/d").tzinfo and files.modified(f"{top}/d").tzinfo
    files.rm_file(f"{top}/d")
    files.mkdir(f"{top}/empty")
    files.rmdir(f"{top}/empty")
    assert sorted(os.listdir(tmp_path / "top")) == ["sub"]
    files.rm(top, recursive=True)
    assert os.listdir(tmp_path) == []


def test_links_are_removed_and_not_followed(tmp_path):
    files = fsspec.filesystem("haulway")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kept").write_bytes(b"1")
    (tmp_path / "run" / "sub").mkdir(parents=True)
    (tmp_path / "run" / "sub" / "a").write_bytes(b"2")
    (tmp_path / "run" / "link").symlink_to(tmp_path / "data")
    (tmp_path / "run" / "sub" / "up").symlink_to("..")
    run = str(tmp_path / "run")
    assert files.find(run) == [f"{run}/link", f"{run}/sub/a", f"{run}/sub/up"]
    with pytest.raises(OSError):
        files.rm(run)
    files.rm(run, recursive=True)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    files.rm(str(tmp_path / "link"), recursive=True)
    assert os.listdir(tmp_path) == ["data"]
    assert os.listdir(tmp_path / "data") == ["kept"]
    files.rm([f"{tmp_path}/data/*"])
    assert os.listdir(tmp_path / "data") == []


def test_folders_hold_more_than_files(tmp_path):
    (tmp_path / "file").write_bytes(b"12")
    (tmp_path / "blob").symlink_to("file")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    files = fsspec.filesystem("haulway")
    for name in (str(tmp_path), f"file://{tmp_path}", f"{tmp_path}/"):
        assert [(os.path.basename(row["name"]), row["type"], row["size"])
                for row in files.ls(name)] == [
            ("blob", "file", 2), ("file", "file", 2), ("gone", "other", 0),
            ("loop", "other", 0), ("pipe", "other", 0),
        ]
        assert files.ls(name, detail=False) == files.find(name)
    assert files.info(str(tmp_path / "pipe"))["type"] == "other"
    assert not files.exists(str(tmp_path / "gone"))


@pytest.fixture
def another_disk():
    """Returns a folder on another disk than temporary files."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield pathlib.Path(folder)


def test_moved_to_another_disk(tmp_path, another_disk):
    assert tmp_path.stat().st_dev != another_disk.stat().st_dev
    files = fsspec.filesystem("haulway", auto_mkdir=True)
    (tmp_path / "a").write_bytes(b"1")
    files.mv(str(tmp_path / "a"), str(another_disk / "new" / "a"))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_bytes(b"2")
    (tmp_path / "b" / "link").symlink_to("c")
    (another_disk / "b").mkdir()
    files.mv(str(tmp_path / "b"), str(another_disk / "b"))
    assert os.listdir(tmp_path) == []
    assert (another_disk / "new" / "a").read_bytes() == b"1"
    assert os.readlink(another_disk / "b" / "link") == "c"
    (tmp_path / "b").mkdir()
    with pytest.raises(OSError, match="not empty"):
        files.mv(str(tmp_path / "b"), str(another_disk / "b"))
    assert sorted(os.listdir(another_disk / "b")) == ["c", "link"]


def test_objects_are_changed(files_of_s3, tmp_path):
    files = files_of_s3
    files.makedirs("s3://bkt/run")
    files.pipe_file("s3://bkt/run/a", b"12")
    files.cp_file("s3://bkt/run/a", str(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == b"12"
    assert files.ls("s3://bkt/run", detail=False) == ["s3://bkt/run/a"]
    with pytest.raises(haulway.UnsupportedError, match="expected a local path"):
        files.created("s3://bkt/run/a")
    files.mv("s3://bkt/run/a", "s3://bkt/run/b")
    assert files.cat("s3://bkt/run/b") == b"12"
    assert Store.removed == ["bkt/run/a"]


def test_objects_are_listed_as_files(files_of_s3):
    files = files_of_s3
    files.pipe_file("s3://bkt/run/a", b"12")
    assert files.ls("s3://bkt/run/a", detail=False) == ["s3://bkt/run/a"]
    (found,) = files.ls("s3://bkt/run/a")
    assert (found["type"], found["size"]) == ("file", 2)
    for missing in ("s3://bkt/run/b", "s3://bkt/ru"):
        with pytest.raises(FileNotFoundError):
            files.ls(missing)
    files.makedirs("s3://bkt/none/")
    assert files.ls("s3://bkt/none/") == []


def test_lines_are_read_as_lines(tmp_path):
    """Not byte by byte."""
    lines = [b"%d\n" % (10 ** (i % 40)) for i in range(50_000)]
    lines[7] = b"x" * 300_000 + b"\n"
    (tmp_path / "x").write_bytes(b"".join(lines) + b"end")
    with fsspec.open(f"haulway://{tmp_path}/x") as file:
        assert file.readline(3) == lines[0][:3]
        file.seek(0)
        assert file.peek(1)[:1] == b"1" and file.tell() == 0
        before = file.read_operations
        assert list(file) == [*lines, b"end"]
        assert file.read_operations - before < len(lines) + 100
        assert file.readline() == file.peek() == b""
    with stream_io.open_stream(str(tmp_path / "x"), begin=1, end=9) as file:
        assert file.readlines() == [lines[0][1:], lines[1], lines[2][:4]]


def test_blocks_are_read(tmp_path):
    (tmp_path / "x").write_bytes(b"one\ntwo\nthree\n")
    files = fsspec.filesystem("haulway")
    assert files.read_block(str(tmp_path / "x"), 2, 3, b"\n") == b"two\n"


def test_transactions_are_refused(tmp_path):
    """A file appears when it is closed, whether the transaction ends or not."""
    files = fsspec.filesystem("haulway")
    with pytest.raises(haulway.UnsupportedError, match="transactions"):
        with files.transaction:
            files.pipe_file(str(tmp_path / "x"), b"12")
    assert not (tmp_path / "x").exists()
    files.pipe_file(str(tmp_path / "x"), b"12")
    assert (tmp_path / "x").read_bytes() == b"12"


def test_distributed_checkpoints_need_only_the_protocol(tmp_path):
    """dcp.save and dcp.load with a haulway:// checkpoint_id."""
    import torch.distributed.checkpoint as dcp

    state = {"w": torch.arange(12.0).reshape(3, 4), "n": {"b": torch.ones(2)}}
    place = f"haulway://{tmp_path}/ck"
    for number in (7, 8):  # The second save replaces the first.
        state["step"] = number
        dcp.save(state, checkpoint_id=place, no_dist=True)
    stock = {"w": torch.zeros(3, 4), "step": 0, "n": {"b": torch.zeros(2)}}
    dcp.load(stock, checkpoint_id=str(tmp_path / "ck"), no_dist=True)
    ours = {"w": torch.zeros(3, 4), "step": 0, "n": {"b": torch.zeros(2)}}
    dcp.load(ours, checkpoint_id=place, no_dist=True)
    for found in (stock, ours):
        assert found["step"] == 8
        same_tensors({"w": found["w"], "b": found["n"]["b"]},
                     {"w": state["w"], "b": state["n"]["b"]})


def test_distributed_checkpoints_behind_a_url(nginx, tmp_path):
    import torch.distributed.checkpoint as dcp

    dcp.save({"w": torch.arange(12.0)}, checkpoint_id=str(tmp_path), no_dist=True)
    for path in tmp_path.iterdir():
        nginx.put(f"ck/{path.name}", path.read_bytes())
    found = {"w": torch.zeros(12)}
    dcp.load(found, checkpoint_id=f"haulway://{nginx.url('ck')}", no_dist=True)
    assert torch.equal(found["w"], torch.arange(12.0))


def test_what_is_there_is_kept_if_asked_for(tmp_path):
    files = fsspec.filesystem("haulway")
    path = str(tmp_path / "a")
    files.pipe_file(path, b"old", mode="create")
    with pytest.raises(FileExistsError, match="a"):
        files.pipe_file(path, b"new", mode="create")
    with pytest.raises(FileExistsError):
        files.open(path, "xb")
    assert files.cat_file(path) == b"old"


def test_missing_folders_are_made_if_asked_for(tmp_path):
    path = str(tmp_path / "b/c/file")
    with pytest.raises(FileNotFoundError):
        fsspec.filesystem("haulway").pipe_file(path, b"x")
    made = fsspec.filesystem("haulway", auto_mkdir=True)
    made.pipe_file(path, b"x")
    made.cp_file(path, str(tmp_path / "d/e"))
    assert made.cat_file(str(tmp_path / "d/e")) == b"x"


def test_an_empty_folder_has_no_names(tmp_path):
    files = fsspec.filesystem("haulway")
    assert files.ls(str(tmp_path)) == files.ls(str(tmp_path), detail=False) == []
    with pytest.raises(FileNotFoundError):
        files.ls(str(tmp_path / "none"), detail=False)


def test_a_file_uri_names_the_local_file(tmp_path):
    (tmp_path / "a b").write_bytes(b"x")
    files = fsspec.filesystem("haulway")
    files.mv(f"file://{tmp_path}/a%20b", str(tmp_path / "c"))
    assert files.cat_file(str(tmp_path / "c")) == b"x"


@pytest.mark.parametrize("ask", [
    lambda files, url: files.open(url, "ab"),
    lambda files, url: files.exists(url),
    lambda files, url: files.isfile(url),
    lambda files, url: files.pipe_file(url, b"1", mode="create"),
])
def test_an_error_is_no_answer_that_a_file_is_not_there(ask):
    files = HaulwayFileSystem(retries=0, skip_instance_cache=True)
    with pytest.raises(haulway.UnavailableError):
        ask(files, "http://127.0.0.1:1/log.txt")  # Nobody listens there.


def test_what_lies_in_a_file_is_not_there(tmp_path):
    (tmp_path / "file").write_bytes(b"1")
    files = HaulwayFileSystem(skip_instance_cache=True)
    assert not files.exists(str(tmp_path / "file" / "x"))
    assert not files.isfile(str(tmp_path / "file" / "x"))
    assert not files.isfile(str(tmp_path))
    assert files.isfile(str(tmp_path / "file"))
