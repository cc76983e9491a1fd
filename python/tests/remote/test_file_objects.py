"""Seekable file objects are read by ranges."""

import functools
import gc
import gzip
import io
import os
import tarfile
import tempfile
import threading
import zipfile

import fsspec
import numpy as np
import pytest
import torch

import haulway
import haulway.torch
from compare import same_tensors
from haulway.tensorizer import TensorDeserializer


class Counting(io.RawIOBase):
    """A file object of an unknown type that counts reads."""

    def __init__(self, data, position=0, most=None):
        self.data, self.at, self.most = data, position, most
        self.read_bytes = self.calls = self.inside = 0

    def seekable(self):
        return True

    def readable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=io.SEEK_SET):
        base = {0: 0, 1: self.at, 2: len(self.data)}[whence]
        self.at = base + offset
        return self.at

    def readinto(self, buffer):
        self.inside += 1
        assert self.inside == 1, "two threads at once"
        part = self.data[self.at:self.at + len(buffer)][:self.most]
        buffer[:len(part)] = part
        self.at += len(part)
        self.read_bytes += len(part)
        self.calls += 1
        self.inside -= 1
        return len(part)


class WithoutReadinto:
    """The minimum that torch.load accepts."""

    def __init__(self, data):
        self._file = io.BytesIO(data)
        self.seek, self.tell, self.read = (
            self._file.seek, self._file.tell, self._file.read)
        self.seekable = self._file.seekable


TENSORS = {
    f"layer.{i}": torch.arange(i, i + 65_536, dtype=torch.float32)
    for i in range(8)
}
same = functools.partial(same_tensors, expected=TENSORS)


@pytest.fixture(scope="module", params=["x.pt", "x.safetensors", "x.tensors",
                                        "legacy.pt"])
def data(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("objects") / request.param
    if request.param == "legacy.pt":
        torch.save(TENSORS, path, _use_new_zipfile_serialization=False)
    else:
        haulway.save(TENSORS, path)
    return path.read_bytes()


def test_opening_reads_kilobytes(data):
    file = Counting(data)
    with haulway.open(file, "torch") as checkpoint:
        assert len(checkpoint) == 8
        # Opening a zip archive reads its last 64 KiB; opening other formats
        # reads their first 256 KiB.
        most = 300_000 if data[:4] != b"PK\3\4" else 100_000
        assert file.read_bytes < most
        assert torch.equal(checkpoint["layer.3"], TENSORS["layer.3"])
        assert file.read_bytes < most + 300_000
        found = checkpoint.get_slice("layer.5")[100:103]
        assert found.tolist() == [105, 106, 107]
        assert file.read_bytes < most + 500_000


@pytest.mark.parametrize("position", [0, 1, 4097])
@pytest.mark.parametrize("most", [None, 1000])
def test_every_call_reads_from_the_position_on(data, position, most):
    def file():
        return Counting(b"x" * position + data, position, most)

    same(haulway.load(file(), "torch", verify=True, threads=4))
    same(haulway.load(file(), "numpy"))
    same(dict(haulway.iterate(file(), "torch")))
    same(haulway.shard(file(), 0, 1, framework="torch"))
    same(haulway.load(file(), "torch", destination="shm"))
    target = {name: torch.zeros(65_536) for name in TENSORS}
    haulway.load_into(target, file())
    same(target)
    assert haulway.verify(file()).ok
    assert haulway.plan_reads(file()).tensor_bytes == 8 * 65_536 * 4


def test_meta_reads_no_payload(tmp_path):
    path = tmp_path / "x.pt"
    torch.save(TENSORS, path)
    file = Counting(path.read_bytes())
    found = haulway.torch.load(file, map_location="meta")
    assert found["layer.1"].is_meta
    assert file.read_bytes < 100_000


def test_torch_load_takes_any_file_object(tmp_path):
    path = tmp_path / "x.pt"
    torch.save(TENSORS, path)
    same(haulway.torch.load(WithoutReadinto(path.read_bytes())))
    stream = io.BytesIO()
    stream.write(b"head")
    torch.save(TENSORS, stream)
    stream.seek(4)
    same(haulway.torch.load(stream))


def test_stacked_objects_are_read_one_after_the_other():
    stream = io.BytesIO()
    for i in range(3):
        torch.save([torch.tensor([i])], stream,
                   _use_new_zipfile_serialization=False)
    file = Counting(stream.getvalue())
    for i in range(3):
        assert haulway.torch.load(file)[0].item() == i
    assert file.tell() == len(stream.getvalue())


def test_lazy_tensorizer_reads_only_what_is_asked(tmp_path):
    path = tmp_path / "x.tensors"
    haulway.save(TENSORS, path)
    file = Counting(path.read_bytes())
    with TensorDeserializer(file, device="cpu", lazy_load=True) as tensors:
        before = file.read_bytes
        assert before < 300_000 < 1_000_000 < path.stat().st_size
        assert torch.equal(tensors["layer.2"], TENSORS["layer.2"])
        assert file.read_bytes - before < 300_000


def test_fsspec_fetches_ranges(tmp_path):
    path = tmp_path / "x.pt"
    torch.save(TENSORS, path)
    system = fsspec.filesystem("memory")
    system.pipe_file("/haulway/x.pt", path.read_bytes())

    class Remote(fsspec.spec.AbstractBufferedFile):
        def _fetch_range(self, start, end):
            raise AssertionError("ranges are fetched by the file system")

    class System(fsspec.AbstractFileSystem):
        fetched = []

        def info(self, path, **options):
            return {"name": path, "type": "file",
                    "size": system.size("/haulway/x.pt")}

        def cat_file(self, path, start=None, end=None, **options):
            self.fetched.append(end - start)
            return system.cat_file("/haulway/x.pt", start, end)

    remote = System()
    with Remote(remote, "x.pt", mode="rb") as file:
        with haulway.open(file, "torch") as checkpoint:
            assert 0 < sum(remote.fetched) < 100_000
            assert torch.equal(checkpoint["layer.1"], TENSORS["layer.1"])
        same(haulway.load(file, "torch"))
    with system.open("/haulway/x.pt", "rb") as file:
        same(haulway.load(file, "torch"))
    with fsspec.open(str(path), "rb") as file:
        same(haulway.load(file, "torch"))
    with fsspec.open(str(path), "rb") as raw, gzip.GzipFile(
        fileobj=io.BytesIO(gzip.compress(path.read_bytes()))
    ) as file:
        same(haulway.load(file, "torch"))
        same(haulway.load(raw, "torch"))


def test_streams_within_archives(tmp_path):
    path = tmp_path / "x.pt"
    torch.save(TENSORS, path)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(path, "x.pt")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        with archive.open("x.pt") as file:
            same(haulway.load(file, "torch"))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(path, "x.pt")
    with tarfile.open(tmp_path / "a.tar") as archive:
        same(haulway.load(archive.extractfile("x.pt"), "torch"))


def test_pipes_are_read_whole(tmp_path):
    path = tmp_path / "x.safetensors"
    haulway.save({"a": torch.ones(3)}, path)
    reader, writer = os.pipe()
    os.write(writer, path.read_bytes())
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert haulway.load(pipe, "numpy")["a"].tolist() == [1, 1, 1]


class Failing(Counting):
    def __init__(self, data, error, after, times=1 << 30):
        super().__init__(data)
        self.error, self.after, self.times = error, after, times

    def readinto(self, buffer):
        if self.calls >= self.after and self.times > 0:
            self.times -= 1
            raise self.error
        return super().readinto(buffer)


@pytest.mark.parametrize(("error", "code"), [
    (OSError("the disk is wet"), "kIoError"),
    (ConnectionResetError("gone"), "kUnavailable"),
    (TimeoutError("late"), "kTimeout"),
    (ValueError("I/O operation on closed file"), "kIoError"),
    (RuntimeError(), "kIoError"),
    (UnicodeError("\udcff"), "kIoError"),
])
@pytest.mark.parametrize("after", [0, 4])
def test_what_a_file_object_raises_is_an_error(tmp_path, error, code, after):
    path = tmp_path / "x.pt"
    torch.save(TENSORS, path)
    with pytest.raises(haulway.Error, match="the file object raised "
                       + type(error).__name__) as caught:
        haulway.load(Failing(path.read_bytes(), error, after), "torch",
                     retries=0)
    assert caught.value.code == code


def test_what_passes_is_tried_again(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"a": torch.zeros(4 << 20)}, path)
    stats = {}
    probe = Counting(path.read_bytes())
    haulway.open(probe)
    # Failures during opening and during reading.
    for after in (0, probe.calls - 1, probe.calls):
        file = Failing(path.read_bytes(), TimeoutError("late"), after, times=2)
        assert haulway.load(file, "torch", stats=stats)["a"].sum() == 0
        assert file.times == 0
    assert stats["retries"] == 2
    file = Failing(path.read_bytes(), TimeoutError("late"), 0, times=2)
    with pytest.raises(haulway.TimedOutError):
        haulway.open(file, retries=1)


def test_a_file_object_that_ends_early_is_truncated(tmp_path):
    path = tmp_path / "x.pt"
    torch.save(TENSORS, path)

    class Shrinking(Counting):
        def readinto(self, buffer):
            if self.calls == 5:
                self.data = self.data[:100_000]
            return super().readinto(buffer)

    with pytest.raises(haulway.TruncatedError, match="ends .* bytes early"):
        haulway.load(Shrinking(path.read_bytes()), "torch", retries=0)


@pytest.mark.parametrize("wrong", [lambda count: count + 1,
                                   lambda count: 10 * count,
                                   lambda count: -count])
def test_a_file_object_that_miscounts_is_an_error(tmp_path, wrong):
    path = tmp_path / "x.pt"
    torch.save(TENSORS, path)

    class Miscounting(Counting):
        def readinto(self, buffer):
            count = super().readinto(buffer)
            return wrong(count) if self.calls > 5 else count

    with pytest.raises(haulway.IoError, match="it read -?\\d+ bytes into \\d+"):
        haulway.load(Miscounting(path.read_bytes()), "torch", retries=0)


def test_nothing_keeps_the_buffers_of_a_read(tmp_path):
    path = tmp_path / "x.pt"
    torch.save(TENSORS, path)
    kept = []

    class Keeping(Counting):
        def readinto(self, buffer):
            kept.append(buffer)
            return super().readinto(buffer)

    haulway.load(Keeping(path.read_bytes()), "torch")
    for view in kept:
        with pytest.raises(ValueError, match="released"):
            len(view)


def test_threads_share_a_file_object(data):
    file = Counting(data)
    found, failed = [], []
    with haulway.open(file, "numpy") as checkpoint:
        def work(i):
            try:
                for _ in range(5):
                    array = checkpoint[f"layer.{i}"]
                    assert np.array_equal(array, TENSORS[f"layer.{i}"].numpy())
                found.append(i)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed and sorted(found) == list(range(8))


def test_the_file_object_is_let_go_of(data):
    import weakref

    file = Counting(data)
    alive = weakref.ref(file)
    checkpoint = haulway.open(file, "torch")
    tensor = checkpoint["layer.0"]
    del file, checkpoint
    gc.collect()
    assert alive() is None and tensor[1] == 1


@pytest.mark.parametrize("call", [haulway.open, haulway.load, haulway.verify,
                                  haulway.scan, haulway.torch.load])
def test_a_file_that_is_open_as_text_is_refused(tmp_path, call):
    torch.save(TENSORS, tmp_path / "a.pt")
    with open(tmp_path / "a.pt") as file:
        with pytest.raises(haulway.ArgumentTypeError,
                           match="a.pt is open as text.*'rb'"):
            call(file)
    with pytest.raises(haulway.ArgumentTypeError, match="open as text"):
        call(io.StringIO("x"))


@pytest.mark.parametrize("save", [haulway.save, haulway.torch.save])
def test_nothing_is_saved_to_a_text_file(tmp_path, save):
    with open(tmp_path / "a.pt", "w") as file:
        with pytest.raises(haulway.ArgumentTypeError,
                           match="a.pt is open as text.*'wb'"):
            save(TENSORS, file)


@pytest.mark.parametrize("make", [
    io.BytesIO, tempfile.TemporaryFile, tempfile.SpooledTemporaryFile,
    functools.partial(Counting, b""),
])
def test_a_file_object_at_its_end_says_so(data, make):
    file = make()
    if isinstance(file, Counting):
        file.data = data
    else:
        file.write(data)
    file.seek(0, io.SEEK_END)
    with pytest.raises(haulway.TruncatedError,
                       match=f"at its end, byte {len(data)}, "):
        haulway.load(file)
    file.seek(0)
    same_tensors(haulway.load(file), TENSORS)


@pytest.mark.parametrize("name, format", [
    ("a.safetensors", "safetensors"), ("a.TENSORS", "tensorizer"),
    ("a.pt", "torch"), ("a", "torch"), ("a.safetensors.gz", "torch"),
])
def test_the_name_of_a_file_object_decides_the_format(tmp_path, name, format):
    with open(tmp_path / name, "wb") as file:
        haulway.save(TENSORS, file)
    assert haulway.open(tmp_path / name).format == format
    with open(tmp_path / name, "wb") as file:
        haulway.save(TENSORS, file, "npz")
    assert haulway.open(tmp_path / name).format == "npz"
