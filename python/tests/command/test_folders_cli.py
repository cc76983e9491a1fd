"""The command on folders, indexes, file:// URLs and streams."""

import ctypes
import json
import os
import resource

import pytest
import safetensors.torch
import torch

import haulway

TENSORS = {"a": torch.arange(4.0), "b": torch.ones(3)}


@pytest.fixture
def model(tmp_path):
    """A folder with a model of two torch shards and other typical files."""
    folder = tmp_path / "model"
    folder.mkdir()
    map_ = {}
    for name, tensor in TENSORS.items():
        torch.save({name: tensor}, folder / f"{name}.bin")
        map_[name] = f"{name}.bin"
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": map_}))
    (folder / "config.json").write_text('{"a": 1}')
    return folder


def test_each_verb_takes_a_folder(run, model):
    listed = json.loads(run("ls", model, "--json").stdout)
    assert [t["name"] for t in listed["tensors"]] == ["a", "b"]
    for entry in listed["tensors"]:
        data = (model / entry["file"]).read_bytes()[entry["offset"] :]
        assert data.startswith(TENSORS[entry["name"]].numpy().tobytes())
    info = json.loads(run("info", model, "--json").stdout)
    assert info["format"] == "torch" and info["container"] == {"shards": 2}
    assert run("cat", model, "b").stdout.split() == ["[1,", "1,", "1]"]
    assert json.loads(run("load", model, "--json").stdout)["tensor_bytes"] == 28
    planned = json.loads(run("plan", model, "--include", "a", "--json").stdout)
    assert planned["tensor_bytes"] == 16
    run("info", f"file://{model}")


def test_an_object_is_not_made_of_shards(run, model):
    done = run("repack", model, "out.pt", code=2)
    assert "cannot repack several files as one" in done.stderr
    done = run("encrypt", model, "out.tensors", "--keyfile", "/dev/null",
               code=None)
    assert done.returncode != 0


def test_verify_lists_every_file_of_a_folder(run, model):
    lines = run("verify", model, "--json").stdout.splitlines()
    said = {os.path.basename(one["file"]): one for one in map(json.loads, lines)}
    assert {name: one["ok"] for name, one in said.items()} == {
        "a.bin": True, "b.bin": True, "config.json": None,
        "pytorch_model.bin.index.json": True,
    }
    assert said["config.json"]["reason"] == "not a checkpoint"
    text = run("verify", model).stdout
    assert f"-      {model}/config.json: not a checkpoint\n" in text
    assert "config" not in run("verify", "-q", model).stdout


def test_what_a_save_has_not_ended_is_no_file_of_the_folder(run, model):
    """Neither one that goes on nor one that was killed is a fault."""
    (model / ".b.bin.1-0.haulway-tmp").write_bytes(b"PK\3\4")
    for verb in ("ls", "verify", "info"):
        assert "haulway-tmp" not in run(verb, model).stdout
    for verb in ("verify", "manifest"):
        assert "haulway-tmp" not in run("bulk", verb, model).stdout
    assert "haulway-tmp" in run("scan", model, code=None).stdout


def test_the_worst_of_a_folder_counts(run, model):
    data = bytearray((model / "a.bin").read_bytes())
    data[data.index(b"\0\0\x80?")] ^= 1
    (model / "a.bin").write_bytes(data)
    done = run("verify", model, code=1)
    assert f"FAILED {model}/a.bin" in done.stdout
    assert f"OK     {model}/b.bin" in done.stdout
    (model / "c.bin").write_text("<html>")
    done = run("verify", model, code=2)
    assert "c.bin" in done.stderr


def test_verify_of_the_index_is_that_of_its_shards(run, model):
    index = model / "pytorch_model.bin.index.json"
    before = json.loads(run("verify", index, "--json").stdout)
    assert before["ok"] and before["checked_bytes"] >= 28
    (model / "b.bin").write_bytes((model / "b.bin").read_bytes()[:-30])
    assert "; of b.bin" in run("verify", index, code=1).stdout
    (model / "b.bin").unlink()
    assert "shard 'b.bin'" in run("verify", index, code=2).stderr


def test_folders_with_nothing_in_them(run, tmp_path):
    (tmp_path / "empty").mkdir()
    for verb in ("ls", "verify"):
        done = run(verb, "empty", code=3)
        assert "folder 'empty'" in done.stderr
    (tmp_path / "empty" / "words").write_text("words")
    assert "not a checkpoint" in run("verify", "empty", code=3).stdout
    assert "holds no checkpoint" in run("info", "empty", code=3).stderr


def test_a_folder_of_several_is_listed_but_not_opened(run, tmp_path):
    for name, tensor in TENSORS.items():
        safetensors.torch.save_file(
            {name: tensor}, tmp_path / f"{name}.safetensors"
        )
    lines = run("ls", tmp_path, "--json").stdout.splitlines()
    assert [os.path.basename(json.loads(line)["file"]) for line in lines] == [
        "a.safetensors", "b.safetensors",
    ]
    done = run("load", tmp_path, code=2)
    assert "found 'a.safetensors', 'b.safetensors'" in done.stderr


@pytest.mark.parametrize("uri", ["gs://bucket/m.pt", "x+y://z"])
def test_schemes_that_are_not_served_are_named(run, uri):
    done = run("ls", uri, code=2)
    assert done.stderr.startswith(f"haulway: {uri.split(':')[0]}:// is not ")
    assert "No such file" not in done.stderr


def test_streams(run, tmp_path):
    torch.save(TENSORS, tmp_path / "m.pt")
    data = (tmp_path / "m.pt").read_bytes()
    for name in ("-", "/dev/stdin"):
        done = run("cat", name, "b", input=data, text=False)
        assert done.stdout.split() == [b"[1,", b"1,", b"1]"]
    packed = run("repack", "m.pt", "-", text=False)
    (tmp_path / "again.pt").write_bytes(packed.stdout)
    loaded = torch.load(tmp_path / "again.pt")
    assert torch.equal(loaded["a"], TENSORS["a"])


@pytest.mark.parametrize("format, words", [
    ("safetensors", ("convert", "m.pt", "-", "--to", "safetensors",
                     "--ties", "drop")),
    ("torch", ("convert", "m.pt", "-", "--to", "torch")),
    ("torch", ("repair", "m.pt", "-", "--to", "torch")),
    ("torch", ("repack", "m.pt", "-")),
    ("torch", ("put", "m.pt", "-")),
])
def test_standard_output_gets_the_file_and_nothing_else(run, tmp_path, format,
                                                        words):
    torch.save({**TENSORS, "again": TENSORS["a"], "step": 3}, tmp_path / "m.pt")
    done = run(*words, text=False)
    assert haulway.open(done.stdout).format == format
    assert haulway.verify(done.stdout).ok
    assert b": it shares memory with" in done.stderr or format == "torch"
    if words[0] == "convert":
        assert b"left out step" in done.stderr
    if words[0] in ("convert", "repack") and format == "torch":
        assert b"archive/data.pkl" in done.stdout  # As torch names a buffer's.
    said = run(*words, "--json", code=4).stderr
    assert said.startswith("haulway: --json: the output - is standard output")


def test_standard_output_gets_sarif_alone(run, tmp_path):
    torch.save(TENSORS, tmp_path / "m.pt")
    done = run("scan", "m.pt", "--sarif", "-")
    assert json.loads(done.stdout)["version"] == "2.1.0"
    assert "--json: " in run("scan", "m.pt", "--sarif", "-", "--json",
                             code=4).stderr


@pytest.mark.parametrize("words", [
    ("get", "m.pt", "-"), ("edit", "m.pt", "--drop", "a", "--out", "-"),
    ("convert", "m.pt", "x.safetensors", "--proof", "-"),
    ("bulk", "convert", "m.pt", "--to", "safetensors", "--out", "-"),
])
def test_what_cannot_be_written_to_standard_output_says_so(run, tmp_path, words):
    torch.save(TENSORS, tmp_path / "m.pt")
    said = run(*words, code=4).stderr
    assert "expected a file, found -" in said
    assert os.listdir(tmp_path) == ["m.pt"]


@pytest.mark.parametrize("words, said", [
    (("ls", "--jsn", "x"), "no option '--jsn'; did you mean '--json'?"),
    (("ls", "x", "--inclde=*"), "no option '--inclde'; did you mean '--include'?"),
    (("ls", "x", "--keyfil", "k"), "no option '--keyfil'; did you mean '--keyfile'?"),
    (("ls", "x", "--nothing"), "no option '--nothing'"),
    (("info", "x", "y"), "unexpected argument 'y'"),
    (("convert", "x", "y.pt", "--dtype", "int8"),
     "--dtype: expected a floating-point dtype such as bf16 or F32: int8"),
    (("edit", "x", "--dtype", "C64"), "--dtype: expected a floating-point dtype"),
])
def test_a_wrong_word_is_named_with_the_one_that_was_meant(run, words, said):
    assert run(*words, code=4).stderr.startswith(f"haulway: {said}")


def test_usage_errors_say_where_help_is(run):
    for words in (["ls"], ["ls", "--nothing", "x"], ["load", "x", "--threads", "a"]):
        said = run(*words, code=4).stderr
        assert said.endswith(f"; see haulway {words[0]} --help\n"), said
    for threads in ("-1", "65536", "2000000000"):
        said = run("load", "x", f"--threads={threads}", code=4).stderr
        assert f"expected a number from 0 to 65535, found {threads}" in said
    assert "did you mean 'plan-reads'" in run("plan-read", code=4).stderr


def test_a_file_uri_means_the_path(run, model, tmp_path):
    new = tmp_path / "made" / "new"
    run("convert", model, f"file://{new}/", "--to", "safetensors",
        "--proof", "proof.json")
    assert safetensors.torch.load_file(new / "model.safetensors").keys() == {"a", "b"}
    run("edit", f"file://{new}/model.safetensors", "--rename", "a=c")
    assert safetensors.torch.load_file(new / "model.safetensors").keys() == {"b", "c"}
    run("convert", model, f"file://{tmp_path}/dcp", "--to", "torch-dcp")
    assert (tmp_path / "dcp" / ".metadata").exists()
    (model / "gone.bin").symlink_to("nowhere")
    done = run("scan", f"file://{model}", code=None)
    assert f"{model}/gone.bin" in done.stdout


def test_a_server_is_no_place_for_a_folder(run, model):
    done = run("convert", model, "http://127.0.0.1:1/x/", "--to", "torch-dcp", code=2)
    assert "expected a path or an s3:// name" in done.stderr


def test_a_path_may_have_the_marks_of_a_scheme(run, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("a/b:")
    safetensors.torch.save_file(TENSORS, "a/b:/c.safetensors")
    run("edit", "a/b://c.safetensors", "--rename", "a=d")
    assert safetensors.torch.load_file("a/b:/c.safetensors").keys() == {"b", "d"}


def obey_modes():
    """Makes root obey the modes of files after exec()."""
    pr_capbset_drop, cap_dac_override, cap_dac_read_search = 24, 1, 2
    libc = ctypes.CDLL(None)
    for capability in (cap_dac_override, cap_dac_read_search):
        libc.prctl(pr_capbset_drop, capability, 0, 0, 0)


def test_a_folder_that_cannot_be_listed_is_named(run, tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / "in" / name).mkdir(parents=True)
        haulway.save({"w": torch.ones(2)}, tmp_path / "in" / name / "m.safetensors")
    (tmp_path / "in/b").chmod(0)
    said = "cannot list 'in/b': Permission denied (errno 13)"
    done = run("verify", "in", code=2, preexec_fn=obey_modes)
    assert done.stderr == f"haulway: {said}\n"
    done = run("bulk", "verify", "in", "--json", code=2, preexec_fn=obey_modes)
    *lines, last = map(json.loads, done.stdout.splitlines())
    assert {one["input"]: one["error"] and one["error"]["message"]
            for one in lines} == {"in/a/m.safetensors": None, "in/b": said,
                                  "in/c/m.safetensors": None}
    assert last["summary"]["done"] == 2 and last["summary"]["failed"] == 1


@pytest.mark.parametrize("words", [
    ["new/deep/", "--to", "torch-dcp"],
    ["new/deep/", "--to", "safetensors", "--shard", "1KB"],
])
def test_a_conversion_that_fails_leaves_no_folder(run, model, tmp_path, words):
    def few_bytes():
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))

    done = run("convert", model, *words, code=2, preexec_fn=few_bytes)
    assert "File too large (errno 27)" in done.stderr
    assert not (tmp_path / "new").exists()
    # A folder that was there stays.
    (tmp_path / "new").mkdir()
    run("convert", model, *words, code=2, preexec_fn=few_bytes)
    assert os.listdir(tmp_path / "new") == []
    run("convert", model, *words)
    assert os.listdir(tmp_path / "new/deep")


@pytest.mark.parametrize(("to", "opened"), [
    ("safetensors", "many/model.safetensors.index.json"),
    ("torch-dcp", "many/.metadata"),
])
def test_more_shards_than_open_files(run, tmp_path, to, opened):
    haulway.save({f"t{i}": torch.full((4,), i) for i in range(100)},
                 tmp_path / "one.safetensors")

    def few_files():
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))

    run("convert", "one.safetensors", "many/", "--to", to, "--shard", "16",
        preexec_fn=few_files)
    run("verify", opened, preexec_fn=few_files)
    run("bulk", "verify", opened, preexec_fn=few_files)
    run("diff", "one.safetensors", "many", preexec_fn=few_files)
