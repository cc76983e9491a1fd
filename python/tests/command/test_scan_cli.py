"""`haulway scan` on folders, as a pipeline runs it."""

import json
import os
import pickle

import pytest
import torch

import haulway

POINTER = ("version https://git-lfs.github.com/spec/v1\n"
           "oid sha256:" + "0" * 64 + "\nsize 12345\n")


class Attack:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.fixture
def folder(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "good.pt")
    (tmp_path / ".git" / "objects").mkdir(parents=True)
    (tmp_path / ".git" / "objects" / "evil.pkl").write_bytes(
        pickle.dumps(Attack()))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "notes.xyz").write_bytes(b"\0\1\2")
    return tmp_path


def test_the_folder_of_git_is_passed_over(run, folder):
    done = run("scan", ".", code=2, cwd=folder)
    assert ".git" not in done.stdout
    assert done.stdout.splitlines()[-1] == "2 files: 1 SAFE, 1 UNKNOWN"
    assert len(haulway.scan(folder).files) == 2
    assert ".git" not in run("bulk", "scan", ".", code=2, cwd=folder).stdout
    run("scan", ".git", code=1, cwd=folder)
    # A file of that name is a file.
    (folder / "sub").mkdir()
    (folder / "sub" / ".git").write_bytes(pickle.dumps(Attack()))
    run("scan", ".", code=1, cwd=folder)


def test_exclude_leaves_out_files_of_folders(run, folder):
    for pattern in ("docs/*", "*.xyz", "/^docs/"):
        done = run("scan", ".", "--exclude", pattern, cwd=folder)
        assert done.stdout.startswith("SAFE") and "xyz" not in done.stdout
        assert done.stderr == ""
    done = run("scan", ".", "--exclude", "dosc/*", code=2, cwd=folder)
    assert done.stderr == "haulway: no file matches --exclude dosc/*\n"


def test_quiet_prints_only_what_is_not_safe(run, folder):
    done = run("scan", ".", "-q", code=2, cwd=folder)
    assert "good.pt" not in done.stdout and "notes.xyz" in done.stdout
    assert "files:" not in done.stdout
    assert run("scan", "-q", "good.pt", cwd=folder).stdout == ""


def test_an_allowed_name_that_no_pickle_contains_is_said(run, folder):
    torch.save(torch.nn.Linear(2, 2), folder / "module.pt")
    name = "torch.nn.modules.linear.Linear"
    done = run("scan", "module.pt", "--allow", "torch.nn.Linear", code=1,
               cwd=folder)
    assert done.stderr == ("haulway: no pickle contains the name --allow "
                           f"torch.nn.Linear; did you mean {name}?\n")
    assert run("scan", "module.pt", "--allow", name, cwd=folder).stderr == ""


@pytest.mark.parametrize("text, why", [
    (POINTER, "a pointer of Git LFS"),
    ("<!DOCTYPE html>\n<p>Sign in</p>\n", "a web page"),
    ("<!doctype html>\n<p>Sign in</p>\n", "a web page"),
])
def test_what_is_taken_for_a_model_is_named_as_ls_names_it(run, tmp_path, text,
                                                           why):
    (tmp_path / "model.safetensors").write_text(text)
    done = run("scan", "model.safetensors", code=2, cwd=tmp_path)
    assert why in done.stdout
    assert why in run("ls", "model.safetensors", code=2, cwd=tmp_path).stderr


def test_what_cannot_be_read_has_an_exit_code_of_its_own(run, folder):
    assert run("scan", "none.pt", code=5, cwd=folder).stderr
    run("scan", "none.pt", "docs", code=5, cwd=folder)  # UNKNOWN is less.
    run("scan", "none.pt", ".git", code=1, cwd=folder)  # UNSAFE is more.
    (folder / "m.safetensors.index.json").write_text(
        '{"metadata": {}, "weight_map": {"a": "lost.safetensors"}}')
    done = run("scan", "m.safetensors.index.json", "--json", code=5, cwd=folder)
    shard = json.loads(done.stdout.splitlines()[-1])
    assert (shard["readable"], shard["verdict"]) == (False, "UNKNOWN")
    run("bulk", "scan", "none.pt", "docs", code=5, cwd=folder)
    run("bulk", "scan", "none.pt", ".git", code=1, cwd=folder)
    run("bulk", "verify", "none.pt", code=2, cwd=folder)


@pytest.mark.parametrize("words", [
    ["ls"], ["info"], ["verify"], ["load"], ["manifest"],
    ["convert", "--to", "safetensors"],
])
def test_verbs_say_that_a_file_calls_code(run, tmp_path, words):
    torch.save({"w": torch.ones(2), "hook": Attack()}, tmp_path / "evil.pt")
    verb, *rest = words
    out = ["out.safetensors"] if verb == "convert" else []
    done = run(verb, "evil.pt", *out, *rest, cwd=tmp_path)
    assert "posix.system" in done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("haulway scan tells more") == 1
    torch.save({"w": torch.ones(2)}, tmp_path / "good.pt")
    done = run(verb, "good.pt", *out, *rest, cwd=tmp_path)
    assert "haulway scan" not in done.stdout + done.stderr
