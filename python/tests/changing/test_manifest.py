"""haulway.manifest and the command: digests that are equal for every format."""

import hashlib
import json

import gguf
import numpy
import pytest
import safetensors.torch
import torch

import haulway


def tensors():
    torch.manual_seed(4)
    return {
        "layer.0.weight": torch.randn(17, 32),
        "half": torch.randn(3, 1, 32).half(),
        "count": torch.arange(7),
        "b": torch.randn(3, 5).to(torch.bfloat16),
    }


def expected(made):
    return {
        name: (
            {torch.float32: "F32", torch.float16: "F16", torch.int64: "I64",
             torch.bfloat16: "BF16"}[t.dtype],
            tuple(t.shape),
            hashlib.sha256(
                t.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest(),
        )
        for name, t in sorted(made.items())
    }


def write_gguf(made, path):
    writer = gguf.GGUFWriter(path, "llama")
    for name, tensor in made.items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_it_is_that_of_hashlib_in_every_format(tmp_path, run):
    made = tensors()
    wanted = expected(made)
    torch.save(made, tmp_path / "m.pt")
    torch.save(made, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"model": made}, tmp_path / "nested.pt")
    safetensors.torch.save_file(made, tmp_path / "m.safetensors")
    haulway.convert(tmp_path / "m.pt", tmp_path / "m.tensors")
    for name in ("m.pt", "old.pt", "m.safetensors", "m.tensors"):
        found = haulway.manifest(tmp_path / name)
        assert found == wanted, name
        assert list(found) == sorted(found)
    written = set()
    for name in ("m.pt", "m.safetensors", "m.tensors"):
        run("manifest", name, "-o", "out.json")
        written.add((tmp_path / "out.json").read_bytes())
    assert len(written) == 1
    rows = json.loads(written.pop())["tensors"]
    assert {r["name"]: (r["dtype"], tuple(r["shape"]), r["sha256"])
            for r in rows} == wanted
    said = json.loads(run("manifest", "m.pt", "--json").stdout)
    assert said["tensors"] == rows and said["file"] == "m.pt"
    some = haulway.manifest(tmp_path / "m.pt", include="layer*")
    assert list(some) == ["layer.0.weight"]


def test_numpys_and_ggufs_are_the_same(tmp_path):
    made = {k: v for k, v in tensors().items() if k != "b"}
    numpy.savez(tmp_path / "m.npz", **{k: v.numpy() for k, v in made.items()})
    write_gguf(made, tmp_path / "m.gguf")
    for name in ("m.npz", "m.gguf"):
        assert haulway.manifest(tmp_path / name) == expected(made), name


def test_views_are_digested_as_they_read(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    torch.save({"t": base.t(), "same": base, "again": base}, tmp_path / "m.pt")
    found = haulway.manifest(tmp_path / "m.pt")
    assert found == expected({"t": base.t(), "same": base, "again": base})


@pytest.fixture
def noted(tmp_path, run):
    torch.save(tensors(), tmp_path / "m.pt")
    run("manifest", "m.pt", "-o", "m.json")
    return tmp_path


def test_verify_takes_it(noted, run):
    safetensors.torch.save_file(tensors(), noted / "m.safetensors")
    said = run("verify", "m.safetensors", "--manifest", "m.json").stdout
    assert "every tensor matches the manifest" in said
    assert "would not be detected" not in said
    # Standard input can be read only once.
    with open(noted / "m.safetensors", "rb") as file:
        said = run("verify", "-", "--manifest", "m.json", "--json", stdin=file)
    assert json.loads(said.stdout)["checked"] == "manifest"
    made = tensors()
    made["half"][0, 0, 0] += 1
    made["count"] = made["count"].int()
    del made["b"]
    made["fresh"] = torch.ones(2)
    safetensors.torch.save_file(made, noted / "n.safetensors")
    done = run("verify", "n.safetensors", "--manifest", "m.json", "--json",
               code=1)
    findings = json.loads(done.stdout)["findings"]
    assert [(f["code"], f["message"].split(":")[0]) for f in findings] == [
        ("kNotFound", "tensor 'b'"), ("kMismatch", "tensor 'count'"),
        ("kMismatch", "tensor 'fresh'"), ("kMismatch", "tensor 'half'")]


@pytest.mark.parametrize(("text", "words"), [
    ("", "not JSON"), ("[1]", "list of tensors"), ("{}", "list of tensors"),
    ('{"tensors":[{"name":"a"}]}', "tensor 0 of the manifest: expected a dtype"),
    ('{"tensors":[{"name":"a","dtype":"X","shape":[],"sha256":null}]}', "'X'"),
    ('{"tensors":[{"name":"a","dtype":"F32","shape":[-1],"sha256":null}]}',
     "shape"),
    ('{"tensors":[{"name":"a","dtype":"F32","shape":[],"sha256":"0g"}]}',
     "hexadecimal"),
    ('{"tensors":[' + ",".join(
        ['{"name":"a","dtype":"F32","shape":[],"sha256":null}'] * 2) + "]}",
     "two tensors 'a'"),
])
def test_what_is_no_manifest_is_refused(noted, run, text, words):
    (noted / "bad.json").write_text(text)
    done = run("verify", "m.pt", "--manifest", "bad.json", code=2)
    assert words in done.stderr and "bad.json" in done.stderr


def test_verify_compares_with_a_manifest(tmp_path, run):
    haulway.save({"a": torch.ones(2), "b": torch.zeros(3)}, tmp_path / "x.pt")
    run("manifest", "x.pt", "--out", "m.json")
    haulway.convert(tmp_path / "x.pt", tmp_path / "x.safetensors")
    manifest = tmp_path / "m.json"
    sound = haulway.verify(tmp_path / "x.safetensors", manifest=manifest)
    assert sound and sound.checked == "manifest"
    assert haulway.verify(tmp_path / "x.safetensors").checked == "structure"
    assert haulway.verify(tmp_path / "x.pt").checked == "checksums"
    haulway.save({"a": torch.ones(2), "c": torch.zeros(3)}, tmp_path / "y.npz")
    report = haulway.verify(tmp_path / "y.npz", manifest=manifest)
    assert not report
    assert [finding.message for finding in report.findings] == [
        "tensor 'b': the manifest has it, the file has not",
        "tensor 'c': the manifest does not have it",
    ]
    with pytest.raises(haulway.Error, match="folder"):
        haulway.verify(tmp_path, manifest=manifest)


def test_a_folder_is_compared_with_its_manifest(tmp_path, run):
    folder = tmp_path / "model"
    folder.mkdir()
    haulway.save(tensors(), tmp_path / "x.pt")
    haulway.convert(tmp_path / "x.pt", folder / "model.safetensors",
                    shard="1KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    run("manifest", "model", "--out", "m.json")
    run("manifest", "x.pt", "--out", "other.json")
    assert (tmp_path / "m.json").read_bytes() == (
        (tmp_path / "other.json").read_bytes()
    )
    done = run("verify", "model", "--manifest", "m.json")
    assert done.stdout.count("every tensor matches the manifest") == 1
    report = haulway.verify(folder, manifest=tmp_path / "m.json")
    assert report and report.checked == "manifest"
    haulway.edit(sorted(folder.glob("*.safetensors"))[0], dtype="f64")
    run("verify", "model", "--manifest", "m.json", code=1)


def test_verify_takes_what_manifest_returned(tmp_path):
    made = tensors()
    safetensors.torch.save_file(made, tmp_path / "a.safetensors")
    torch.save(made, tmp_path / "a.pt")
    digests = haulway.manifest(tmp_path / "a.safetensors")
    report = haulway.verify(tmp_path / "a.pt", manifest=digests)
    assert report.ok and report.checked == "manifest"
    digests["half"] = (*digests["half"][:2], "0" * 64)
    assert not haulway.verify(tmp_path / "a.pt", manifest=digests).ok
    for wrong in ({"a": 3}, {"a": ("F32", 3, None)}, {"a": ("F32", (1,), b"")}):
        with pytest.raises(haulway.InvalidArgumentError, match="manifest"):
            haulway.verify(tmp_path / "a.pt", manifest=wrong)
