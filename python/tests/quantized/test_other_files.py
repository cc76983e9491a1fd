"""The files that go with a model into a folder."""

import json
import os

import numpy
import pytest

import haulway


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    haulway.save({"w": numpy.ones((4, 4), "f4")}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"dtype": "float32", "n": 2}))
    for name in ("tokenizer.json", "merges.txt", "LICENSE", "code.py"):
        (folder / name).write_text(name)
    for name in ("film.mp4", "id_rsa", "model.sig", "data.zip", ".hidden",
                 "old.safetensors.index.json"):
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize("to", ["safetensors", "torch", "torch-dcp"])
def test_those_of_the_model_go_and_no_others(to, model, tmp_path):
    report = haulway.convert(model, f"{tmp_path}/new/", to=to, dtype="bf16")
    expected = {"tokenizer.json", "merges.txt", "LICENSE", "code.py", "config.json"}
    written = {os.path.basename(name) for name in report.files}
    assert {*os.listdir(tmp_path / "new")} == expected | written
    assert {os.path.basename(name) for name in report.copied} == expected
    assert json.loads((tmp_path / "new/config.json").read_text()) == {
        "dtype": "bfloat16", "n": 2}
    # And they go on from there.
    haulway.convert(tmp_path / "new", f"{tmp_path}/again/", to="safetensors")
    assert {*os.listdir(tmp_path / "again")} == expected | {"model.safetensors"}


def test_a_directory_of_dcp_needs_no_slash(model, tmp_path):
    report = haulway.convert(model, tmp_path / "step", to="torch-dcp", shard=40)
    assert len(report.copied) == 5
    assert (tmp_path / "step/config.json").exists()


def test_a_folder_that_became_a_file_is_told(model, tmp_path, run):
    note = "end its name with '/' to write a folder"
    assert note in run("convert", "model", "new", "--to", "safetensors").stdout
    for arguments in (
        ("model", "folder/", "--to", "safetensors"),
        ("model", "step", "--to", "torch-dcp"),
        ("model", "new.safetensors"),
        ("model/model.safetensors", "one", "--to", "safetensors"),
    ):
        assert note not in run("convert", *arguments).stdout


def test_links_of_the_model_are_followed(model, tmp_path):
    """In the cache of huggingface_hub, all files of a model are links."""
    cached = tmp_path / "cached"
    cached.mkdir()
    for path in model.iterdir():
        (cached / path.name).symlink_to(os.path.relpath(path, cached))
    haulway.convert(cached, f"{tmp_path}/new/", to="safetensors")
    copy = tmp_path / "new/tokenizer.json"
    assert copy.read_text() == "tokenizer.json" and not copy.is_symlink()


def test_links_in_the_folder_are_replaced_not_followed(model, tmp_path):
    new, other = tmp_path / "new", tmp_path / "other"
    new.mkdir()
    other.write_text("mine")
    (new / "config.json").symlink_to(model / "config.json")
    (new / "tokenizer.json").symlink_to(other)
    before = (model / "config.json").read_text()
    haulway.convert(model, f"{new}/", to="safetensors", dtype="bf16")
    assert (model / "config.json").read_text() == before
    assert other.read_text() == "mine"
    assert not (new / "config.json").is_symlink()
    assert (new / "tokenizer.json").read_text() == "tokenizer.json"
