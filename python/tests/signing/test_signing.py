"""haulway.sign and the verb sign."""

import base64
import json
import os

import pytest

import haulway
from signed_models import copy, expected, golden, key


@pytest.fixture
def model(tmp_path):
    return copy("models/plain", tmp_path / "plain")


def statement(path):
    bundle = json.loads(path.read_text())
    return json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))


SAME = {"key-p256": {}, "blake2b": {"hash": "blake2b"},
        "blake3": {"hash": "blake3"}, "git-signed": {"ignore_git_paths": False},
        "ignored": {"ignore_paths": ["sub", "a.b"]}}


@pytest.mark.parametrize("name", SAME)
def test_a_statement_says_what_the_reference_says(tmp_path, model, name):
    out = tmp_path / "a.sig"
    report = haulway.sign(model, out, private_key=key("p256.pem"), **SAME[name])
    row = expected()[name]
    says = statement(out)
    assert {one["name"]: one["digest"]
            for one in says["predicate"]["resources"]} == row["resources"]
    assert says["subject"] == [row["subject"]]
    wanted = dict(row["serialization"])
    ignored = sorted(wanted.pop("ignore_paths", []))
    found = says["predicate"]["serialization"]
    assert found.pop("ignore_paths", []) == ignored == report.ignore_paths
    assert found == wanted
    assert report.subject.sha256 == row["subject"]["digest"]["sha256"]
    assert haulway.verify(model, signature=out, public_key=key("p256.pub"))


def test_the_command(run, tmp_path, model):
    (tmp_path / "pass").write_text("correct horse\n")
    done = run("sign", model, "--private-key", key("p256-encrypted.pem"),
               "--passphrase-file", "pass", "--ignore-paths", "plain/sub",
               "--ignore-paths", model / "A", "--ignore-paths", "/elsewhere",
               "--json")
    report = json.loads(done.stdout)
    assert set(report) == {"file", "out", "subject", "method", "hash_type",
                           "shard_size", "files", "bytes", "ignore_paths"}
    assert report["out"] == "model.sig" and report["files"] == 9
    assert report["ignore_paths"] == [
        ".git", ".gitattributes", ".github", ".gitignore", "A", "sub"]
    assert "signed" in run("sign", model, "--private-key", key("p256.pem")).stdout
    run("verify", model, "--signature", "model.sig", "--public-key",
        key("p256.pub"))
    assert run("verify", model, "--signature", "model.sig", "--public-key",
               key("p384.pub"), code=1).stdout.startswith("FAILED")


@pytest.mark.parametrize(("arguments", "code"), [
    (["--private-key", "{other}"], 4),
    (["--private-key", "{public}"], 4),
    (["--private-key", "{encrypted}"], 4),
    (["--private-key", "missing.pem"], 2),
    (["--private-key", "{key}", "--certificate-chain", "{leaf}"], 4),
    (["--private-key", "{key}", "--signing-certificate", "{wrong}"], 4),
    (["--private-key", "{key}", "--hash", "md5"], 4),
    (["--private-key", "{key}", "--hash", "blake3", "--shard-size", "9"], 4),
    (["--private-key", "{key}", "--shard-size", "9"], 2),  # An empty file.
    ([], 4),
])
def test_what_is_wrong_writes_nothing(run, tmp_path, model, arguments, code):
    (tmp_path / "other.pem").write_text("text")
    names = {"other": "other.pem", "public": key("p256.pub"),
             "encrypted": key("p256-encrypted.pem"), "key": key("p256.pem"),
             "leaf": key("intermediate.pem"), "wrong": key("leaf-p384.pem")}
    done = run("sign", model, *[one.format(**names) for one in arguments],
               code=code)
    assert "PRIVATE" not in done.stderr and "MI" not in done.stderr
    assert not (tmp_path / "model.sig").exists()


def test_keys_and_certificates_as_bytes(tmp_path, model):
    out = tmp_path / "a.sig"
    haulway.sign(model, out, private_key=key("p384.pem").read_bytes(),
                 signing_certificate=key("leaf-p384.pem").read_bytes(),
                 certificate_chain=key("intermediate.pem").read_bytes())
    assert haulway.verify(model, signature=out,
                          certificate_chain=[key("root.pem").read_bytes()])
    haulway.sign(model, out, private_key=key("p256.pem").read_bytes())
    assert haulway.verify(model, signature=out,
                          public_key=key("p256.pub").read_bytes())
    with pytest.raises(haulway.InvalidArgumentError, match="PEM"):
        haulway.sign(model, out, private_key=b"key")


@pytest.mark.parametrize("make", [
    os.mkfifo, lambda path: os.symlink("none", path),
    lambda path: os.symlink("../a", path), lambda path: os.symlink("../A", path),
    lambda path: open(os.fsencode(path) + b"\xff", "wb").close(),
])
def test_what_cannot_be_signed_is_named(tmp_path, model, make):
    (model / "sub2").mkdir()
    make(model / "sub2" / "new")
    with pytest.raises(haulway.UnsupportedError, match="sub2/new"):
        haulway.sign(model, tmp_path / "a.sig", private_key=key("p256.pem"))
    assert haulway.sign(model, tmp_path / "a.sig", private_key=key("p256.pem"),
                        ignore_paths="sub2").files == 12


def test_shards_are_of_each_file(tmp_path, model):
    os.remove(model / "empty")
    out = tmp_path / "a.sig"
    report = haulway.sign(model, out, private_key=key("p256.pem"),
                          shard_size=1000)
    assert (report.method, report.shard_size) == ("shards", 1000)
    wanted = expected()["shards-1000"]["resources"]
    assert {one["name"]: one["digest"] for one in
            statement(out)["predicate"]["resources"]} == wanted
    assert haulway.verify(model, signature=out, public_key=key("p256.pub"))
    (model / "a:b").write_text("x")
    with pytest.raises(haulway.UnsupportedError, match="a:b"):
        haulway.sign(model, out, private_key=key("p256.pem"), shard_size=1000)


def test_an_empty_folder(tmp_path):
    out = tmp_path / "a.sig"
    (tmp_path / "m").mkdir()
    assert haulway.sign(tmp_path / "m", out, private_key=key("p256.pem")).files == 0
    assert haulway.verify(tmp_path / "m", signature=out,
                          public_key=key("p256.pub"))
    assert haulway.verify(golden("models/none"), signature=out,
                          public_key=key("p256.pub"))


def test_progress_counts_all_bytes(tmp_path, model):
    told = []
    haulway.sign(model, tmp_path / "a.sig", private_key=key("p256.pem"),
                 progress=lambda *numbers: told.append(numbers))
    assert told[-1][0] == told[-1][1] == sum(
        os.path.getsize(path) for path in model.rglob("*")
        if path.is_file() and path != model / ".gitignore")
