"""haulway.torch.dcp.Writer: torch's own reader reads its checkpoints."""

import json
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed.checkpoint as dcp
from test_dcp_reader import emptied, reason, same, state
from torch.distributed.checkpoint.api import CheckpointException

import haulway
from haulway.torch.dcp import LoadPlanner, Reader, Writer
from torch_versions import needs_no_dist

TESTS = pathlib.Path(__file__).parents[1]
pytestmark = [
    needs_no_dist,
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
]


def save(value, folder, **options):
    return dcp.save(value, storage_writer=Writer(folder, **options),
                    no_dist=True)


def files_of(folder):
    return sorted(name for name in os.listdir(folder)
                  if name.endswith(".distcp"))


@pytest.mark.parametrize("options", [
    {}, {"thread_count": 3}, {"single_file_per_rank": False},
    {"single_file_per_rank": False, "thread_count": 2, "durability": "none"},
])
def test_torchs_reader_finds_what_was_saved(tmp_path, options):
    save(state(), tmp_path / "c", **options)
    found = emptied(state())
    dcp.load(found, checkpoint_id=tmp_path / "c", no_dist=True)
    assert same(found, state())
    again = emptied(state())
    dcp.load(again, storage_reader=Reader(tmp_path / "c", verify=True),
             planner=LoadPlanner(), no_dist=True)
    assert same(again, state())
    metadata = dcp.FileSystemReader(tmp_path / "c").read_metadata()
    count = len(metadata.storage_data)
    wanted = options.get("thread_count", 1) \
        if options.get("single_file_per_rank", True) else count
    assert len(files_of(tmp_path / "c")) == wanted
    # Every byte belongs to exactly one entry.
    ends = {}
    for place in sorted(metadata.storage_data.values(),
                        key=lambda one: (one.relative_path, one.offset)):
        assert place.offset == ends.get(place.relative_path, 0)
        ends[place.relative_path] = place.offset + place.length
    assert ends == {name: os.path.getsize(tmp_path / "c" / name)
                    for name in files_of(tmp_path / "c")}


def test_an_item_is_the_bytes_of_torchs_writer(tmp_path):
    value = {"w": torch.arange(1000.0), "part": torch.arange(9)[2:5], "n": 3}
    save(value, tmp_path / "ours")
    dcp.save(value, checkpoint_id=tmp_path / "theirs", no_dist=True)
    data = []
    for name in ("ours", "theirs"):
        (file,) = files_of(tmp_path / name)
        data.append((tmp_path / name / file).read_bytes())
    assert data[0] == data[1]


def test_files_of_an_older_save_go_and_others_stay(tmp_path):
    dcp.save({"a": torch.zeros(3)}, checkpoint_id=tmp_path, no_dist=True)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "model.distcp").write_text("mine too")
    before = os.listdir(tmp_path)
    save({"a": torch.ones(3)}, tmp_path)
    after = os.listdir(tmp_path)
    assert "__0_0.distcp" in before and "__0_0.distcp" not in after
    assert {"notes.txt", "model.distcp", ".metadata"} < set(after)
    assert len(after) == 4


def test_what_is_there_stays_if_asked(tmp_path):
    save({"a": torch.zeros(3)}, tmp_path, overwrite=False)
    with pytest.raises(CheckpointException) as caught:
        save({"a": torch.ones(3)}, tmp_path, overwrite=False)
    assert isinstance(reason(caught), RuntimeError)
    assert str(reason(caught)) == (
        "Checkpoint already exists and self.overwrite=False.")
    into = {"a": torch.ones(3)}
    dcp.load(into, checkpoint_id=tmp_path, no_dist=True)
    assert not into["a"].any()


def test_wrong_arguments_are_refused(tmp_path):
    for options in ({"thread_count": 0}, {"thread_count": True},
                    {"durability": "some"}, {"colour": "red"}):
        with pytest.raises(haulway.Error) as caught:
            Writer(tmp_path, **options)
        assert caught.value.code == "kInvalidArgument"


def test_a_failed_finish_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    save({"a": torch.zeros(3)}, tmp_path)
    monkeypatch.setattr(pickle, "dumps", None)
    with pytest.raises(CheckpointException):
        save({"a": torch.ones(3)}, tmp_path)
    monkeypatch.undo()
    into = {"a": torch.ones(3)}
    dcp.load(into, checkpoint_id=tmp_path, no_dist=True)
    assert not into["a"].any()


def test_a_save_that_is_killed_leaves_old_or_new(tmp_path):
    """At every call that changes files."""
    library = tmp_path / "kill_at.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library,
                    TESTS / "kill_at.c", "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, TESTS / "dcp_killed.py", tmp_path],
        env={**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    killed, numbers, tidy = zip(*results)
    assert all(killed[:-1]) and not killed[-1] and len(results) >= 10
    assert all(tidy)
    # The old state, and from some call on the new one.
    assert set(numbers) == {1, 2} and list(numbers) == sorted(numbers)


def test_a_store_gets_metadata_last(tmp_path, bucket, endpoint, monkeypatch):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_ENDPOINT_URL_S3": endpoint, "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    value = {"w": torch.arange(2_500_000), "n": 7}
    put, order = haulway._haulway.write_items, []

    def noted(target, *arguments):
        order.append(target)
        return put(target, *arguments)

    monkeypatch.setattr(haulway._haulway, "write_items", noted)
    save(value, "s3://bkt/run/step", thread_count=2)
    keys = [one["Key"] for one in bucket.list_objects_v2(
        Bucket="bkt", Prefix="run/")["Contents"]]
    assert len(keys) == 3 and "run/step/.metadata" in keys and len(order) == 3
    written = {one["Key"]: one["LastModified"] for one in bucket.list_objects_v2(
        Bucket="bkt", Prefix="run/")["Contents"]}
    assert max(written, key=written.get) is not None
    assert written["run/step/.metadata"] >= max(written.values())
    assert not bucket.list_multipart_uploads(Bucket="bkt").get("Uploads")
    into = {"w": torch.zeros(2_500_000, dtype=torch.int64), "n": 0}
    dcp.load(into, storage_reader=Reader("s3://bkt/run/step"),
             planner=LoadPlanner(), no_dist=True)
    assert same(into, value)
    with pytest.raises(CheckpointException) as caught:
        save(value, "s3://bkt/run/step", overwrite=False)
    assert "already exists" in str(reason(caught))


def test_names_of_data_files_are_of_one_save(tmp_path):
    save({"a": torch.zeros(3)}, tmp_path)
    first = files_of(tmp_path)
    save({"a": torch.zeros(3)}, tmp_path)
    second = files_of(tmp_path)
    assert first != second and len(first) == len(second) == 1
    assert re.fullmatch(r"__0_0-[0-9a-f]{12}\.distcp", first[0])
    shutil.rmtree(tmp_path)


def test_an_async_save_waits_for_the_one_before(tmp_path, monkeypatch):
    steps, second_began = [], threading.Event()
    write, finish = Writer.write_data, Writer.finish

    def writing(self, plan, planner):
        steps.append(f"write {self._path}")
        if self._path == "one":
            # Much longer than the other save takes, which must not begin.
            second_began.wait(1)
        else:
            second_began.set()
        return write(self, plan, planner)

    def finishing(self, metadata, results):
        finish(self, metadata, results)
        steps.append(f"finish {self._path}")

    monkeypatch.setattr(Writer, "write_data", writing)
    monkeypatch.setattr(Writer, "finish", finishing)
    monkeypatch.chdir(tmp_path)
    saves = [
        dcp.async_save({"w": torch.full((4,), number)}, no_dist=True,
                       storage_writer=Writer(name))
        for number, name in enumerate(("one", "two"))
    ]
    for save in saves:
        save.result()
    assert steps == ["write one", "finish one", "write two", "finish two"]
