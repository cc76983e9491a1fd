"""Which inputs the names given to bulk() refer to."""

import io
import json
import os
import sys

import pytest

import haulway
from bulk_files import make_files
from haulway._bulk.inputs import CHECKPOINTS, EVERY, WHOLE, expand, stamp_of
from haulway._bulk.outputs import output_of


def names(inputs, taken=CHECKPOINTS):
    return [one.name for one in expand(inputs, {}, taken)]


def test_a_folder_gives_its_checkpoints_or_every_file(tmp_path):
    paths = make_files(tmp_path / "a", 2) + make_files(tmp_path / "a/b", 1)
    note = tmp_path / "a/note.txt"
    note.write_text("no checkpoint")
    assert sorted(names(tmp_path / "a")) == sorted(paths)
    assert sorted(names(tmp_path / "a", EVERY)) == sorted([*paths, str(note)])


def test_an_index_stands_for_its_shards(tmp_path):
    shard, other = make_files(tmp_path, 2, ".safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps(
        {"weight_map": {"weight": os.path.basename(shard)}}))
    assert sorted(names(tmp_path)) == sorted([str(index), other])
    assert len(names(tmp_path, EVERY)) == 3


def test_a_directory_of_torch_distributed_is_one_input(tmp_path):
    for name in (".metadata", "__0.metadata", "__0_0.distcp", "meta.pt"):
        (tmp_path / name).write_bytes(b"x")
    assert names(tmp_path) == [str(tmp_path / ".metadata")]
    assert names(tmp_path, WHOLE) == [str(tmp_path / ".metadata")]
    assert len(names(tmp_path, EVERY)) == 4


def test_a_folder_of_shards_of_processes_is_one_input(tmp_path):
    for number in (1, 2):
        name = f"shard-0000{number}-model-00001-of-00001.safetensors"
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / name).write_bytes(b"x")
    (tmp_path / "a/config.json").write_text("{}")
    assert names(tmp_path) == [f"{tmp_path}/a/"]
    assert names(tmp_path / "a", WHOLE) == [
        f"{tmp_path}/a/", f"{tmp_path}/a/config.json"]
    assert len(names(tmp_path, EVERY)) == 3
    before = stamp_of(f"{tmp_path}/a/")
    (tmp_path / "a" / name).unlink()
    assert stamp_of(f"{tmp_path}/a/") != before


def test_links_to_folders_are_not_followed(tmp_path):
    paths = make_files(tmp_path / "a", 1)
    (tmp_path / "a/loop").symlink_to(tmp_path / "a")
    assert names(tmp_path / "a") == names(tmp_path / "a", EVERY) == paths


@pytest.mark.parametrize("taken", [EVERY, WHOLE, CHECKPOINTS])
def test_a_folder_that_cannot_be_listed_hides_no_other(
    tmp_path, monkeypatch, taken
):
    paths = [*make_files(tmp_path / "a", 1), *make_files(tmp_path / "b", 1),
             *make_files(tmp_path / "c/d", 1)]
    closed = str(tmp_path / "b")
    real = os.scandir

    def scandir(path):
        if path == closed:
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = {one.name: one.error for one in expand(tmp_path, {}, taken)}
    assert found.keys() == {paths[0], closed, paths[2]}
    assert found[closed].code == "kPermissionDenied"
    assert found[closed].message == (
        f"cannot list {closed!r}: Permission denied (errno 13)")


@pytest.mark.parametrize("taken", [EVERY, WHOLE, CHECKPOINTS])
def test_links_that_lead_nowhere_hide_no_file(tmp_path, taken):
    paths = make_files(tmp_path, 2)
    for name, target in (("loop.pt", "loop.pt"), ("a.pt", "b.pt"),
                         ("b.pt", "a.pt")):
        (tmp_path / name).symlink_to(target)
    found = sorted(names(tmp_path, taken))
    links = [str(tmp_path / name) for name in ("a.pt", "b.pt", "loop.pt")]
    assert found == ([*links, *paths] if taken == EVERY else paths)


def test_folders_may_be_nested_deeply(tmp_path):
    folder = tmp_path
    for _ in range(600):
        folder = folder / "d"
    (path,) = make_files(folder, 1)
    assert names(tmp_path) == names(tmp_path, EVERY) == [path]


def test_globs_lists_and_standard_input(tmp_path, monkeypatch):
    paths = make_files(tmp_path / "a", 3)
    assert sorted(names(str(tmp_path / "*/model-*.pt"))) == paths
    assert sorted(names(str(tmp_path / "**"))) == paths
    assert sorted(names(str(tmp_path / "?"))) == paths
    text = "".join(f"{path}\n" for path in paths) + "\n"
    (tmp_path / "list.txt").write_text(text)
    assert names(f"@{tmp_path}/list.txt") == paths
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert names("-") == paths
    # Lists from Windows.
    text = text.replace("\n", "\r\n")
    (tmp_path / "list.txt").write_text(text)
    assert names(f"@{tmp_path}/list.txt") == paths
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert names("-") == paths


def test_a_file_uri_means_the_path(tmp_path):
    paths = sorted(make_files(tmp_path / "a b", 2))
    folder = f"file://{tmp_path}/a%20b"
    assert sorted(names(folder)) == sorted(names(f"{folder}/*.pt")) == paths


def test_a_name_with_the_signs_of_a_glob_is_a_file_if_there_is_one(tmp_path):
    (path,) = make_files(tmp_path, 1)
    os.rename(path, tmp_path / "a[1].pt")
    make_files(tmp_path, 1)
    (tmp_path / "list.txt").write_text(f"{tmp_path}/a[1].pt\n{tmp_path}/*.pt\n")
    assert names(str(tmp_path / "a[1].pt")) == [str(tmp_path / "a[1].pt")]
    # Lists hold names, not globs.
    assert names(f"@{tmp_path}/list.txt")[1] == f"{tmp_path}/*.pt"


@pytest.mark.parametrize(("name", "said"), [
    ("empty", "nothing to work on in folder"), ("*.gguf", "nothing matches"),
])
def test_names_that_lead_to_nothing_are_inputs_with_an_error(
    tmp_path, name, said
):
    (tmp_path / "empty").mkdir()
    (one,) = expand(str(tmp_path / name), {}, EVERY)
    assert one.error.code == "kNotFound" and said in one.error.message


def test_inputs_are_listed_as_they_are_asked_for(tmp_path):
    def endless():
        while True:
            yield str(tmp_path / "model.pt")

    stream = expand(endless(), {}, EVERY)
    assert [next(stream).name for _ in range(3)] == [
        str(tmp_path / "model.pt")] * 3


def test_a_stamp_changes_with_every_part(tmp_path):
    shards = make_files(tmp_path, 2, ".safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {
        str(i): os.path.basename(path) for i, path in enumerate(shards)}}))
    seen = [stamp_of(str(index))]
    assert seen[0]["size"] > os.path.getsize(shards[0]) * 2
    os.utime(shards[1], ns=(1, 1))
    seen.append(stamp_of(str(index)))
    os.remove(shards[0])
    seen.append(stamp_of(str(index)))
    assert len({stamp["parts"] for stamp in seen}) == 3


@pytest.mark.parametrize(("folder", "name", "out"), [
    ("", "x/model.pt", "out/model.safetensors"),
    ("x", "x/a/model.PT", "out/a/model.safetensors"),
    ("x/", "x/a/model.pt", "out/a/model.safetensors"),
    (".", "x/model.pt", "out/x/model.safetensors"),
    ("x", "x/m.safetensors.index.json", "out/m.safetensors"),
    ("x", "x/step-5/.metadata", "out/step-5.safetensors"),
    ("x", "x/step-5/", "out/step-5.safetensors"),
    ("x", "x/", "out/x.safetensors"),
    ("s3://b/x/", "s3://b/x/", "out/x.safetensors"),
    ("s3://b/x/", "s3://b/x/y/model.bin", "out/y/model.safetensors"),
    ("", "https://h/x/model.pt?token=1", "out/model.safetensors"),
    ("a/", "a/x/../model.pt", "out/model.safetensors"),
    ("s3://b/x", "s3://b/x//etc/model.pt", "out/etc/model.safetensors"),
    ("/x/step-5/..", "/x/step-5/../.metadata", "out/x.safetensors"),
])
def test_outputs_keep_their_place(folder, name, out):
    from haulway._bulk.inputs import Input

    options = {"to": "safetensors", "out": "out"}
    assert output_of(Input(name, folder), options) == out
    assert output_of(Input(name, folder), {**options, "out": "s3://b/out/"}) == (
        f"s3://b/{out}")


def test_the_current_folder_as_a_checkpoint_has_its_name(tmp_path, monkeypatch):
    from haulway._bulk.inputs import Input

    (tmp_path / "step-5").mkdir()
    monkeypatch.chdir(tmp_path / "step-5")
    options = {"to": "safetensors", "out": "out"}
    for one in (Input("./.metadata", "."), Input(".", ""), Input("./", ".")):
        assert output_of(one, options) == "out/step-5.safetensors"


def test_no_key_leads_out_of_the_folder(tmp_path):
    from haulway._bulk.inputs import Input

    for out in ("out", "s3://b/out/"):
        options = {"to": "safetensors", "out": out}
        for key in ("../model.pt", "a/../../model.pt", "/../../etc/model.pt"):
            with pytest.raises(haulway.Error, match="leads out of its folder"):
                output_of(Input(f"s3://b/x/{key}", "s3://b/x/"), options)
