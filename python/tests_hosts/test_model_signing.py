"""model-signing of OpenSSF verifies what Haulway signs, and both say the same;
Haulway verifies what it signs."""

import base64
import json
import os

import pytest
from model_signing import hashing, signing, verifying

import haulway
from signed_models import copy, expected, golden, key, statement_of

KEYS = {"p256": "p256.pub", "p384": "p384.pub", "p521": "p521.pub",
        "p256-sec1": "p256.pub", "p256-encrypted": "p256.pub"}
PASSPHRASE = {"p256-encrypted": "correct horse"}


@pytest.fixture
def model(tmp_path):
    return copy("models/plain", tmp_path / "plain")


def statement(path):
    bundle = json.loads(path.read_text())
    return json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))


def config(method="files", hash="sha256", shard_size=None, ignore=(), git=True,
           links=False):
    """Returns the reference's settings of hashing."""
    made = hashing.Config()
    name = {"blake2b": "blake2"}.get(hash, hash)
    if method == "files":
        made.use_file_serialization(hashing_algorithm=name, allow_symlinks=links)
    else:
        made.use_shard_serialization(hashing_algorithm=name,
                                     shard_size=shard_size,
                                     allow_symlinks=links)
    made.set_allow_symlinks(links)
    return made.set_ignored_paths(paths=ignore, ignore_git_paths=git)


def check(model, signature, settings, public="p256.pub"):
    verifying.Config().use_elliptic_key_verifier(
        public_key=key(public)).set_hashing_config(settings).verify(
            model, signature)


@pytest.mark.parametrize("name", KEYS)
def test_keys(tmp_path, model, name):
    out = tmp_path / "a.sig"
    haulway.sign(model, out, private_key=key(f"{name}.pem"),
                 passphrase=PASSPHRASE.get(name))
    check(model, out, config(), KEYS[name])
    with pytest.raises(Exception, match="ublic key|ignature"):
        check(model, out, config(), "other.pub")
    # Without settings, as its command verifies.
    verifying.Config().use_elliptic_key_verifier(
        public_key=key(KEYS[name])).verify(model, out)


CASES = {
    "files": {},
    "blake2b": {"hash": "blake2b"},
    "blake3": {"hash": "blake3"},
    "git's files": {"git": False},
    "ignored": {"ignore": ("a", "config.json")},
    "shards": {"shard_size": 100, "ignore": ("empty",)},
    "shards, blake2b": {"shard_size": 64, "hash": "blake2b",
                        "ignore": ("empty",)},
}


@pytest.mark.parametrize("name", CASES)
def test_settings(tmp_path, model, name):
    case = CASES[name]
    ignored = [model / path for path in case.get("ignore", ())]
    out, theirs = tmp_path / "a.sig", tmp_path / "b.sig"
    haulway.sign(model, out, private_key=key("p256.pem"),
                 hash=case.get("hash", "sha256"),
                 shard_size=case.get("shard_size"),
                 ignore_paths=case.get("ignore", ()),
                 ignore_git_paths=case.get("git", True))
    settings = config("shards" if "shard_size" in case else "files",
                      case.get("hash", "sha256"), case.get("shard_size"),
                      ignored, case.get("git", True))
    check(model, out, settings)
    signing.Config().use_elliptic_key_signer(
        private_key=key("p256.pem")).set_hashing_config(settings).sign(
            model, theirs)
    ours, other = statement(out), statement(theirs)
    for one in (ours, other):
        facts = one["predicate"]["serialization"]
        facts["ignore_paths"] = sorted(facts.get("ignore_paths", []))
    assert ours == other
    for path in (out, theirs):
        assert haulway.verify(model, signature=path,
                              public_key=key("p256.pub"))


def test_certificates(tmp_path, model):
    out = tmp_path / "a.sig"
    for leaf, private in (("leaf-p256", "p256"), ("leaf-p384", "p384")):
        haulway.sign(model, out, private_key=key(f"{private}.pem"),
                     signing_certificate=key(f"{leaf}.pem"),
                     certificate_chain=[key("intermediate.pem")])
        verifying.Config().use_certificate_verifier(
            certificate_chain=[key("root.pem")]).verify(model, out)
        report = haulway.verify(model, signature=out,
                                certificate_chain=key("root.pem"))
        assert report.ok and report.signature.kind == "certificate"


def test_links_and_odd_names(tmp_path):
    model = tmp_path / "odd"
    model.mkdir()
    for name in ("ü\U0001f600", " a ", "-", "..a", "\\", "q'\"", "t\tt"):
        (model / name).write_text(name)
    (model / "d" / "e").mkdir(parents=True)
    (model / "d" / "e" / "f").write_text("")
    os.symlink("d/e/f", model / "link")
    out = tmp_path / "a.sig"
    with pytest.raises(haulway.UnsupportedError, match="link"):
        haulway.sign(model, out, private_key=key("p256.pem"))
    assert not out.exists()
    haulway.sign(model, out, private_key=key("p256.pem"), allow_symlinks=True)
    check(model, out, config(links=True))
    assert haulway.verify(model, signature=out, public_key=key("p256.pub"))


def test_one_file(tmp_path):
    model = copy("models/single/model.safetensors", tmp_path / "m.safetensors")
    out = tmp_path / "a.sig"
    report = haulway.sign(model, out, private_key=key("p521.pem"))
    assert report.subject.name == "m.safetensors" and report.files == 1
    check(model, out, config(), "p521.pub")


def test_a_signature_in_the_model(tmp_path, model):
    out = model / "model.sig"
    for _ in range(2):  # The second leaves out the first.
        report = haulway.sign(model, out, private_key=key("p256.pem"))
    assert "model.sig" in report.ignore_paths
    check(model, out, config(ignore=[out]))


@pytest.mark.parametrize("name", [
    name for name, row in expected().items()
    if "public_key" in row and row["model"] == "plain"
    and name not in ("git-signed", "shards-1000", "blake2b", "blake3")])
def test_both_verify_the_goldens(name):
    row = expected()[name]
    check(golden("models/plain"), golden(row["sig"]),
          config(ignore=[golden("models/plain") / path for path in row[
              "serialization"]["ignore_paths"] if not path.startswith(".git")]),
          row["public_key"])


def test_what_both_refuse(tmp_path, model):
    out = tmp_path / "a.sig"
    haulway.sign(model, out, private_key=key("p256.pem"))
    (model / "A").write_text("other")
    with pytest.raises(ValueError, match="[Mm]ismatch"):
        check(model, out, config())
    assert not haulway.verify(model, signature=out, public_key=key("p256.pub"))
    assert statement_of([])["predicate"]["resources"] == []
