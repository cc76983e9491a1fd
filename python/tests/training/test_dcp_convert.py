"""haulway.convert to DCP directories, checked with torch's own reader."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import haulway
from haulway.torch.dcp import Reader
from torch_versions import needs_no_dist

pytestmark = [
    needs_no_dist,
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
]
DTYPES = [
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    torch.float8_e4m3fn, torch.float8_e5m2,
]


def state():
    torch.manual_seed(7)
    tensors = {
        f"dtype.{i}": torch.arange(16, dtype=torch.uint8).view(torch.int64)
        .clone().view(torch.uint8).remainder(2).view(dtype)
        for i, dtype in enumerate(DTYPES)
    }
    return tensors | {
        "w": torch.randn(40, 30), "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3), "deep": torch.randn(1, 2, 3, 1, 2),
        "é": torch.ones(3),
    }


def same(found, wanted):
    return found.keys() == wanted.keys() and all(
        found[name].dtype == one.dtype and found[name].shape == one.shape
        and torch.equal(found[name].reshape(-1).view(torch.uint8),
                        one.reshape(-1).view(torch.uint8))
        for name, one in wanted.items())


def emptied(tensors):
    return {name: torch.zeros_like(one) for name, one in tensors.items()}


def loaded(folder, tensors):
    found = emptied(tensors)
    dcp.load(found, checkpoint_id=folder, no_dist=True)
    return found


@pytest.fixture
def file(tmp_path):
    haulway.save(state(), tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


@pytest.mark.parametrize("shard", [None, 300])
def test_torchs_reader_finds_what_was_converted(file, tmp_path, shard):
    report = haulway.convert(file, tmp_path / "c", "torch-dcp", shard=shard,
                             proof=True)
    assert len(report.proof) == len(state()) == report.tensors
    assert report.files[-1] == f"{tmp_path}/c/.metadata"
    assert sorted(report.files) == sorted(map(str, (tmp_path / "c").iterdir()))
    assert (len(report.files) > 2) == (shard is not None)
    assert all(
        re.fullmatch(r"__0_\d+-[0-9a-f]{12}\.distcp", pathlib.Path(one).name)
        for one in report.files[:-1])
    assert same(loaded(tmp_path / "c", state()), state())
    dcp_to_torch_save(tmp_path / "c", tmp_path / "m.pt")
    assert same(torch.load(tmp_path / "m.pt"), state())
    assert same(haulway.load(tmp_path / "c"), state())
    assert haulway.verify(tmp_path / "c").ok
    assert haulway.diff(file, tmp_path / "c").equal


def test_directories_are_those_of_torchs_writer(file, tmp_path):
    """Equal metadata, and equal bytes of every chunk."""
    tensors = haulway.load(file)
    dcp.save(tensors, checkpoint_id=tmp_path / "theirs", no_dist=True)
    haulway.convert(file, tmp_path / "ours", "torch-dcp")
    ours, theirs = (
        dcp.FileSystemReader(tmp_path / name).read_metadata()
        for name in ("ours", "theirs"))
    for entry in theirs.state_dict_metadata.values():
        # Torch writes strides since 2.15; older releases cannot read them.
        entry.properties.strides = None
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.planner_data == theirs.planner_data
    assert ours.version == theirs.version
    assert ours.storage_data.keys() == theirs.storage_data.keys()

    def archive(name, place):
        data = (tmp_path / name / place.relative_path).read_bytes()
        return data[place.offset:place.offset + place.length]

    for index, place in theirs.storage_data.items():
        assert archive("ours", ours.storage_data[index]) == archive(
            "theirs", place), index


def test_the_checkpoint_before_is_replaced(file, tmp_path):
    folder = tmp_path / "c"
    dcp.save({"old": torch.ones(4)}, checkpoint_id=folder, no_dist=True)
    (folder / "__1.metadata").write_bytes(b"of a rank")
    (folder / "notes.txt").write_text("stay")
    report = haulway.convert(file, folder, "torch-dcp")
    assert {pathlib.Path(one).name for one in report.removed} == {
        "__0_0.distcp", "__1.metadata"}
    assert same(loaded(folder, state()), state())
    haulway.convert(file, folder, "torch-dcp", shard="1KB")
    assert same(loaded(folder, state()), state())
    assert (folder / "notes.txt").read_text() == "stay"


def test_there_and_back(file, tmp_path):
    haulway.convert(file, tmp_path / "c", "torch-dcp", shard=1000)
    haulway.convert(tmp_path / "c", tmp_path / "back.safetensors")
    haulway.convert(tmp_path / "c", tmp_path / "again", "torch-dcp",
                    include=["w", "dtype.*"])
    assert same(haulway.load(tmp_path / "back.safetensors"), state())
    chosen = {name: one for name, one in state().items()
              if name == "w" or name.startswith("dtype")}
    assert same(loaded(tmp_path / "again", chosen), chosen)


def test_what_cannot_be_written_is_refused_before_a_file_is_there(
    file, tmp_path
):
    one = torch.ones(4)
    haulway.torch.save({"a": one, "b": one}, tmp_path / "tied.pt")
    with pytest.raises(haulway.UnsupportedError, match="share memory"):
        haulway.convert(tmp_path / "tied.pt", tmp_path / "c", "torch-dcp")
    assert not (tmp_path / "c").exists()
    haulway.convert(tmp_path / "tied.pt", tmp_path / "c", "torch-dcp",
                    ties="copy")
    with pytest.raises(haulway.InvalidArgumentError, match="another folder"):
        haulway.convert(tmp_path / "c", tmp_path / "c", "torch-dcp")
    with pytest.raises(haulway.UnsupportedError, match="cannot be a directory"):
        haulway.convert(file, "redis://localhost/m", "torch-dcp")
    with pytest.raises(haulway.UnsupportedError, match="or 'torch-dcp'"):
        haulway.convert(file, tmp_path / "d", "torch-tar")
    with pytest.raises(haulway.UnsupportedError, match="not written"):
        haulway.save(state(), tmp_path / "d", format="torch-dcp")


def test_the_command_writes_them_too(command, file, tmp_path):
    done = subprocess.run(
        [command, "convert", file, tmp_path / "c", "--to", "torch-dcp",
         "--shard", "2KB", "--proof", tmp_path / "proof.json"],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "digests agree" in done.stdout
    assert same(loaded(tmp_path / "c", state()), state())


def test_only_what_is_wanted_is_read(tmp_path, command):
    tensors = {f"{'model' if i % 3 == 0 else 'optimizer'}.{i}":
               torch.full((1 << 20,), float(i)) for i in range(48)}
    dcp.save(tensors, no_dist=True, storage_writer=dcp.FileSystemWriter(
        tmp_path / "c", thread_count=8))
    wanted = {name: one for name, one in tensors.items() if "model" in name}
    process = subprocess.Popen(
        [command, "convert", tmp_path / "c", tmp_path / "m.safetensors",
         "--include", "model.*"], stdout=subprocess.DEVNULL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    counted = dict(
        line.split(": ") for line in
        pathlib.Path(f"/proc/{process.pid}/io").read_text().splitlines())
    assert process.wait() == 0
    assert same(haulway.load(tmp_path / "m.safetensors"), wanted)
    size = sum(one.nbytes for one in wanted.values())
    assert size <= int(counted["rchar"]) <= 1.1 * size


# Prints the peak memory of a program in KiB; in a child of this process, this
# process's memory would count.
MEMORY = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(status, usage.ru_maxrss)
"""


def test_memory_does_not_grow_with_the_checkpoint(tmp_path, program):
    tensors = {f"w{i}": torch.full((1 << 20,), float(i)) for i in range(48)}
    dcp.save(tensors, checkpoint_id=tmp_path / "c", no_dist=True)
    for source, target, to in (
        ("c", "m.safetensors", "safetensors"), ("c", "m.pt", "torch"),
        ("m.safetensors", "back", "torch-dcp"), ("m.pt", "again", "torch-dcp"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, program, "convert", source, target,
             "--to", to, "--proof", "proof.json"], cwd=tmp_path,
            capture_output=True, text=True, check=True)
        status, memory = map(int, done.stdout.split())
        assert status == 0, done.stderr
        assert memory < 96 << 10  # Half of the tensors' size.
    assert same(loaded(tmp_path / "again", tensors), tensors)


def test_a_conversion_that_is_killed_leaves_old_or_new(file, tmp_path, command):
    """At every call that changes files."""
    library = tmp_path / "kill_at.so"
    tests = pathlib.Path(__file__).parents[1]
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library,
                    tests / "kill_at.c", "-ldl"], check=True)
    old, found = {"w": torch.zeros(40, 30)}, []
    dcp.save(old, checkpoint_id=tmp_path / "old", no_dist=True)
    for call in range(1000):
        target = tmp_path / "target"
        shutil.copytree(tmp_path / "old", target)
        done = subprocess.run(
            [command, "convert", file, target, "--to", "torch-dcp",
             "--shard", "3KB", "--threads", "1"],
            env={**os.environ, "LD_PRELOAD": str(library),
                 "KILL_AT": str(call)}, capture_output=True)
        names = Reader(target).read_metadata().state_dict_metadata
        wanted = old if len(names) == 1 else state()
        assert same(loaded(target, wanted), wanted)
        found.append(len(names) > 1)
        shutil.rmtree(target)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(found) >= 6 and found == sorted(found) and set(found) == {
        False, True}


def test_a_store_gets_metadata_last(file, tmp_path, bucket, endpoint, monkeypatch):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_ENDPOINT_URL_S3": endpoint, "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    haulway.convert(file, "s3://bkt/run/c", "torch-dcp", shard=2000)
    written = {one["Key"]: one["LastModified"] for one in bucket.list_objects_v2(
        Bucket="bkt", Prefix="run/")["Contents"]}
    assert written["run/c/.metadata"] >= max(written.values())
    assert not bucket.list_multipart_uploads(Bucket="bkt").get("Uploads")
    assert same(haulway.load("s3://bkt/run/c/.metadata"), state())


