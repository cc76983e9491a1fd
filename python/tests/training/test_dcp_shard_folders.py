"""Folders of shards that torch processes saved as safetensors files, given to
every verb that accepts folders."""

import json
import os
import pathlib
import shutil
import sys

import pytest
import safetensors.torch
import torch

import gloo_group
import haulway

PROGRAM = pathlib.Path(__file__).parents[1] / "dcp_shard_writers.py"
KINDS = ["theirs-one", "theirs-two", "ours-one", "ours-two"]
ROWS = torch.arange(60.0).reshape(10, 6)
WHOLE = {"rows": ROWS, "columns": ROWS.bfloat16(), "same": ROWS[0]}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    gloo_group.run(PROGRAM, folder, 3)
    return folder


@pytest.fixture
def copy(written, tmp_path):
    """Returns a copy of a folder, for a test to damage."""

    def copy(name):
        return pathlib.Path(shutil.copytree(written / name, tmp_path / name))

    return copy


@pytest.fixture(autouse=True)
def this_python(monkeypatch):
    """Makes `haulway bulk` use this Python."""
    monkeypatch.setenv("HAULWAY_PYTHON", sys.executable)


def shard(folder, number):
    """Returns the last file of a process."""
    return max(folder.glob(f"shard-{number:05}-*"))


def verified(folder, run, code):
    """Returns the report of each way to verify a folder."""
    found = []
    for words in (("verify",), ("bulk", "verify")):
        done = run(*words, folder, "--json", code=code)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        found.append([one for one in lines if "summary" not in one])
    found.append([one.to_dict() for one in haulway.verify(folder).files])
    assert [len(reports) for reports in found] == [1, 1, 1], found
    for (report,) in found:
        assert report["ok"] == (code == 0)
        assert report["file"] == f"{folder}/"
    return [report for (report,) in found]


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_one_checkpoint(written, run, kind):
    folder = written / kind
    (listed,) = map(json.loads, run("ls", folder, "--json").stdout.splitlines())
    assert (listed["file"], listed["format"]) == (f"{folder}/", "safetensors-dcp")
    assert {one["name"]: one["shape"] for one in listed["tensors"]} == {
        name: list(tensor.shape) for name, tensor in WHOLE.items()}
    info = json.loads(run("info", folder, "--json").stdout)["container"]
    assert info["data_files"] == len(os.listdir(folder))
    assert info["shapes_stated"] == kind.startswith("ours")
    for report in verified(folder, run, 0):
        assert report["format"] == "safetensors-dcp"
        notes = "".join(report["notes"])
        assert ("missing last shard" in notes) == kind.startswith("theirs")
    loaded = haulway.load(folder)
    assert all(torch.equal(loaded[name], WHOLE[name]) for name in WHOLE)


def test_folders_in_a_folder_are_one_each(written, run):
    found = [line["file"] for line in map(
        json.loads, run("ls", written, "--json").stdout.splitlines())]
    joined = "joined/model-00001-of-00001.safetensors"
    index = "joined/model.safetensors.index.json"
    assert found == [f"{written}/{name}" for name in (
        index, "joined/sharded/", *(f"{kind}/" for kind in sorted(KINDS)))]
    report = haulway.verify(written)
    assert report.ok
    assert [one.file.removeprefix(f"{written}/") for one in report.files
            if one.ok] == sorted([joined, *(
                name.removeprefix(f"{written}/") for name in found)])
    bulk = haulway.bulk("manifest", str(written))
    assert bulk and sorted(one["input"] for one in bulk.results()) == found


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_shard_is_found(copy, run, kind):
    folder = copy(kind)
    for file in folder.glob("shard-00002-*"):
        file.unlink()
    for report in verified(folder, run, 1):
        (finding,) = report["findings"]
        assert "file of shard 2 is missing" in finding["message"]
    report = haulway.verify(folder, lenient=True)
    assert "hole" in report.findings[0].message


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_shard_is_missed_where_shapes_are_stated(copy, run, kind):
    folder = copy(kind)
    for file in folder.glob("shard-00003-*"):
        file.unlink()
    if kind.startswith("ours"):
        for report in verified(folder, run, 1):
            assert "hole" in report["findings"][0]["message"]
        with pytest.raises(haulway.CorruptError, match="leave a hole"):
            haulway.load(folder)
    else:
        for report in verified(folder, run, 0):
            assert "a missing last shard" in "".join(report["notes"])
        assert len(haulway.load(folder)["rows"]) < len(ROWS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_shard_is_found(copy, run, kind):
    folder = copy(kind)
    file = shard(folder, 2)
    data = file.read_bytes()
    for length in (0, 7, 40, len(data) - 1):
        file.write_bytes(data[:length])
        for report in verified(folder, run, 1):
            assert any(file.name in one["message"] for one in report["findings"])


def test_gaps_in_the_numbers_are_taken_if_asked(copy):
    """A process without data has no file."""
    folder = copy("theirs-one")
    shard(folder, 3).rename(folder / "shard-00009-model-00001-of-00001.safetensors")
    with pytest.raises(haulway.CorruptError, match="shard 3 is missing: exp.* 1 to 9"):
        haulway.load(folder)
    assert torch.equal(haulway.load(folder, lenient=True)["rows"], ROWS)


def test_other_checkpoints_beside_make_them_files(copy, run):
    folder = copy("theirs-one")
    safetensors.torch.save_file({"a": ROWS}, folder / "other.safetensors")
    done = run("verify", folder, "--json")
    assert len(done.stdout.splitlines()) == 4
    with pytest.raises(haulway.Error, match="several checkpoints"):
        haulway.open(folder)


def test_convert_joins_them_as_torch_does(written, tmp_path):
    theirs = safetensors.torch.load_file(
        written / "joined/model-00001-of-00001.safetensors")
    report = haulway.bulk(
        "convert", [str(written / kind) for kind in KINDS],
        options={"to": "safetensors", "out": str(tmp_path)})
    assert report, list(report.results())
    for kind in KINDS:
        ours = safetensors.torch.load_file(tmp_path / f"{kind}.safetensors")
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert ours[name].dtype == tensor.dtype
            assert torch.equal(ours[name], tensor)


def test_a_journal_sees_that_a_shard_changed(copy, tmp_path):
    folder, journal = copy("theirs-one"), tmp_path / "run.jsonl"
    for counts in ((1, 0), (0, 1)):
        report = haulway.bulk("verify", str(folder), journal=journal)
        assert (report.done, report.skipped) == counts
    os.utime(shard(folder, 2))
    assert haulway.bulk("verify", str(folder), journal=journal).done == 1


def test_shards_of_a_bucket_are_one(
    written, bucket, endpoint, monkeypatch, tmp_path, run
):
    for name, value in (("ACCESS_KEY_ID", "AKID"), ("REGION", "us-east-1"),
                        ("SECRET_ACCESS_KEY", "s3cret"),
                        ("ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(f"AWS_{name}", value)
    for file in (written / "theirs-two").iterdir():
        bucket.upload_file(str(file), "bkt", f"run/step-1/{file.name}")
    journal = tmp_path / "run.jsonl"
    for counts in ((1, 0), (0, 1)):
        report = haulway.bulk("verify", "s3://bkt/run/", journal=journal)
        assert report and (report.done, report.skipped) == counts
        assert [one["input"] for one in report.results()] == ["s3://bkt/run/step-1/"]
    listed = json.loads(run("ls", "s3://bkt/run/", "--json").stdout)
    assert listed["file"] == "s3://bkt/run/step-1/"
    second = shard(written / "theirs-two", 2).name
    bucket.delete_object(Bucket="bkt", Key=f"run/step-1/{second}")
    report = haulway.bulk("verify", "s3://bkt/run/", journal=journal)
    assert (report.exit, report.done) == (1, 1)
