"""`haulway edit` on tensorizer files in segments."""

import json

import torch

import haulway


def test_all_at_once(run, tmp_path):
    path = tmp_path / "x.tensors"
    haulway.save({"a": torch.ones(2), "n": [torch.zeros(3), torch.ones(1)]},
                 path, layout="segments")
    haulway.save({"w": torch.arange(3)}, tmp_path / "o.safetensors")
    done = run("edit", path, "--append", "o.safetensors", "--rename", "a=b=c",
               "--rename", "n.1=m.1", "--rename", "n.0=m.0", "--set",
               "k=v=w", "--set", "l=", "--json")
    found = json.loads(done.stdout)
    assert (found["tensors"], found["in_place"]) == (4, True)
    loaded = haulway.load(path)
    assert list(loaded) == ["b=c", "m", "w"]
    assert torch.equal(loaded["m"][0], torch.zeros(3))
    assert torch.equal(loaded["w"], torch.arange(3))
    with haulway.open(path) as checkpoint:
        assert checkpoint.metadata == {"k": "v=w", "l": ""}
    assert "4 tensors; in place" in run("edit", path, "--unset", "k",
                                          "--move").stdout
    assert json.loads(run("info", path, "--json").stdout)["metadata"] == {
        "l": ""
    }
    run("verify", path)


def test_what_is_refused(run, tmp_path):
    path = tmp_path / "x.tensors"
    haulway.save({"a": torch.ones(2)}, path, layout="segments")
    before = path.read_bytes()
    assert "no tensor 'z'" in run("edit", path, "--rename", "z=y",
                                  code=3).stderr
    run("edit", path, "--rename", "a", code=4)
    run("edit", path, "--append", "missing.pt", code=2)
    run("edit", path, "--append", path, code=2)
    assert path.read_bytes() == before
    haulway.save({"a": torch.ones(2)}, path)
    assert "only files in segments" in run("edit", path, "--set", "k=v",
                                           code=2).stderr


def test_encrypted(run, tmp_path):
    path = tmp_path / "x.tensors"
    key = bytes(range(32))
    (tmp_path / "key").write_bytes(key)
    haulway.save({"a": torch.ones(2)}, path, layout="segments", key=key)
    haulway.save({"w": torch.arange(3)}, tmp_path / "o.safetensors")
    run("edit", path, "--append", "o.safetensors", code=1)
    run("edit", path, "--append", "o.safetensors", "--keyfile", "key")
    assert torch.equal(haulway.load(path, key=key)["w"], torch.arange(3))
