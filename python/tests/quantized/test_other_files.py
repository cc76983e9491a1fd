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


def test_those_of_the_model_go_and_no_others(model, tmp_path):
    report = haulway.convert(model, f"{tmp_path}/new/", to="safetensors",
                             dtype="bf16")
    expected = {"tokenizer.json", "merges.txt", "LICENSE", "code.py", "config.json"}
    assert {*os.listdir(tmp_path / "new")} == expected | {"model.safetensors"}
    assert {os.path.basename(name) for name in report.copied} == expected
    assert json.loads((tmp_path / "new/config.json").read_text()) == {
        "dtype": "bfloat16", "n": 2}


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
