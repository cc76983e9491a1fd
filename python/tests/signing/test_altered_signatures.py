"""Alterations of a signature, of what it says, and of the model: each is
refused, with its class and exit code."""

import base64
import copy as copying
import json
import os
import shutil

import pytest

import haulway
from signed_models import (
    base64_of,
    bundle_of,
    copy,
    expected,
    golden,
    key,
    model_of,
    resource,
    sign,
    signed,
    statement_of,
    verifier,
    write,
)

KEY = {"public_key": str(key("p256.pub"))}


def codes(model, signature, **options):
    """Returns the codes of the findings, by the report."""
    report = haulway.verify(model, signature=signature, **options)
    assert report.ok is not bool(report.findings)
    return sorted({one.code for one in report.findings})


def golden_bundle(name="key-p256"):
    return json.loads(golden(f"sigs/{name}.sig").read_text())


def payload_of(bundle):
    return json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))


# Alterations of the bundle. Each takes and returns the parsed golden, or the
# text to write; with the code that refuses it.

def _material(bundle, **parts):
    bundle["verificationMaterial"] = {**bundle["verificationMaterial"], **parts}
    return bundle


def _envelope(bundle, **parts):
    bundle["dsseEnvelope"] = {**bundle["dsseEnvelope"], **parts}
    return bundle


def _signature(bundle, change):
    (one,) = bundle["dsseEnvelope"]["signatures"]
    one["sig"] = base64_of(change(base64.b64decode(one["sig"])))
    return bundle


def _statement(bundle, change):
    statement = payload_of(bundle)
    change(statement)
    return _envelope(bundle, payload=base64_of(json.dumps(statement).encode()))


def _text(bundle, old, new):
    text = json.dumps(bundle)
    assert old in text
    return text.replace(old, new, 1)


BUNDLES = {
    "not JSON": ("kCorrupt", lambda b: "signature"),
    "empty": ("kCorrupt", lambda b: ""),
    "a list": ("kCorrupt", lambda b: [b]),
    "cut": ("kCorrupt", lambda b: json.dumps(b)[:-1]),
    "more text": ("kCorrupt", lambda b: json.dumps(b) + "{}"),
    "UTF-16": ("kCorrupt", lambda b: json.dumps(b).encode("utf-16")),
    "no UTF-8": ("kCorrupt",
                 lambda b: json.dumps(b).replace("sig", "\x80").encode("latin1")),
    "a key twice": ("kCorrupt", lambda b: _text(
        b, '"mediaType"', '"mediaType": "", "mediaType"')),
    "a key twice, escaped": ("kCorrupt", lambda b: _text(
        b, '"payload"', '"\\u0070ayload": "", "payload"')),
    "a key twice, deep": ("kCorrupt", lambda b: _text(
        b, '"sig"', '"sig": "", "sig"')),
    "an unknown key": ("kCorrupt", lambda b: {**b, "more": 1}),
    "an unknown key, deep": ("kCorrupt", lambda b: _envelope(b, more=1)),
    "an unknown key of the key": ("kCorrupt", lambda b: _material(
        b, publicKey={"hint": "", "other": 1})),
    "no type": ("kCorrupt", lambda b: {
        name: value for name, value in b.items() if name != "mediaType"}),
    "no envelope": ("kCorrupt", lambda b: {
        name: value for name, value in b.items() if name != "dsseEnvelope"}),
    "no material": ("kCorrupt", lambda b: {
        name: value for name, value in b.items()
        if name != "verificationMaterial"}),
    "two kinds": ("kCorrupt", lambda b: _material(
        b, certificate={"rawBytes": "AAAA"})),
    "no kind": ("kCorrupt", lambda b: {
        **b, "verificationMaterial": {"tlogEntries": []}}),
    "an empty chain": ("kCorrupt", lambda b: {
        **b, "verificationMaterial": {
            "x509CertificateChain": {"certificates": []}}}),
    "no signatures": ("kCorrupt", lambda b: _envelope(b, signatures=[])),
    "two signatures": ("kCorrupt", lambda b: _envelope(
        b, signatures=b["dsseEnvelope"]["signatures"] * 2)),
    "an empty signature": ("kCorrupt", lambda b: _signature(
        b, lambda sig: b"")),
    "Base64 with a line": ("kCorrupt", lambda b: _envelope(
        b, payload=b["dsseEnvelope"]["payload"][:8] + "\n"
        + b["dsseEnvelope"]["payload"][8:])),
    "Base64 with junk": ("kCorrupt", lambda b: _envelope(
        b, payload="*" + b["dsseEnvelope"]["payload"])),
    "a number for text": ("kCorrupt", lambda b: _envelope(b, payload=1)),
    "nested deeply": ("kLimit", lambda b: _envelope(
        b, signatures=[{"sig": "AA==", "keyid": json.loads("[" * 99 + "]" * 99)}])),
    "another signature": ("kSignature", lambda b: _signature(
        b, lambda sig: sig[:-1] + bytes([sig[-1] ^ 1]))),
    "a cut signature": ("kSignature", lambda b: _signature(
        b, lambda sig: sig[:-1])),
    "a longer signature": ("kSignature", lambda b: _signature(
        b, lambda sig: sig + b"\0")),
    "another payload type": ("kSignature", lambda b: _envelope(
        b, payloadType="application/json")),
    "another hint": ("kSignature", lambda b: _material(
        b, publicKey={"hint": "0" * 64})),
    "the hint in upper case": ("kSignature", lambda b: _material(b, publicKey={
        "hint": b["verificationMaterial"]["publicKey"]["hint"].upper()})),
    "a certificate in place of the key": ("kSignature", lambda b: {
        **b, "verificationMaterial":
            golden_bundle("certificate")["verificationMaterial"]}),
    "another name in the statement": ("kSignature", lambda b: _statement(
        b, lambda s: s["subject"][0].update(name="other"))),
    "a resource less": ("kSignature", lambda b: _statement(
        b, lambda s: s["predicate"]["resources"].pop())),
    "more ignored": ("kSignature", lambda b: _statement(
        b, lambda s: s["predicate"]["serialization"]["ignore_paths"].append("."))),
    "other spaces": ("kSignature", lambda b: _statement(b, lambda s: None)),
}


@pytest.mark.parametrize("name", BUNDLES)
def test_an_altered_bundle_is_refused(run, tmp_path, name):
    code, change = BUNDLES[name]
    path = write(tmp_path / "a.sig", change(copying.deepcopy(golden_bundle())))
    model = golden("models/plain")
    assert codes(model, path, **KEY) == [code]
    done = run("verify", model, "--signature", path, "--public-key",
               key("p256.pub"), "--json", code=1)
    assert json.loads(done.stdout)["signature"] is None
    with pytest.raises(haulway.Error) as raised:
        haulway.load(model / "model.safetensors", "numpy", signature=path, **KEY)
    assert raised.value.code == code


FILE = b"content"
ONE = resource("file", FILE)


def _with(**changes):
    return {**statement_of([ONE]), **changes}


def _serialized(**changes):
    statement = statement_of([ONE])
    statement["predicate"]["serialization"].update(changes)
    return statement


def _pieces(*names, size=4):
    return statement_of(
        [{**resource(name, b""), "algorithm": f"sha256-sharded-{size}"}
         for name in names], "shards", shard_size=size)


# Statements that are signed, and say what no statement may.
STATEMENTS = {
    "not JSON": ("kCorrupt", b"statement"),
    "UTF-16": ("kCorrupt", json.dumps(_with()).encode("utf-16")),
    "a key twice": ("kCorrupt", json.dumps(_with()).replace(
        '"_type"', '"_type": "", "_type"').encode()),
    "a name twice in a resource": ("kCorrupt", json.dumps(_with()).replace(
        '"algorithm"', '"name": "a", "algorithm"').encode()),
    "nested deeply": ("kLimit", _with(more=json.loads("[" * 99 + "]" * 99))),
    "no subject": ("kCorrupt", _with(subject=[])),
    "two subjects": ("kCorrupt", _with(subject=_with()["subject"] * 2)),
    "another root": ("kCorrupt", _with(subject=[
        {"name": "m", "digest": {"sha256": "0" * 64}}])),
    "a short root": ("kCorrupt", _with(subject=[
        {"name": "m", "digest": {"sha256": "00"}}])),
    "no predicate": ("kCorrupt", {
        name: value for name, value in _with().items() if name != "predicate"}),
    "another type": ("kUnsupported", _with(_type="https://other")),
    "another predicate": ("kUnsupported", _with(predicateType="https://other")),
    "another method": ("kUnsupported", _serialized(method="other")),
    "another hash": ("kUnsupported", _serialized(hash_type="md5")),
    "a name twice": ("kCorrupt", statement_of([ONE, ONE])),
    "an empty name": ("kCorrupt", statement_of([resource("", FILE)])),
    "a parent": ("kCorrupt", statement_of([resource("../file", FILE)])),
    "a hidden parent": ("kCorrupt", statement_of([resource("a/../../file", FILE)])),
    "an absolute name": ("kCorrupt", statement_of([resource("/etc/hosts", FILE)])),
    "a leading dot": ("kCorrupt", statement_of([resource("./file", FILE)])),
    "a double slash": ("kCorrupt", statement_of([resource("d//file", FILE)])),
    "a slash at the end": ("kCorrupt", statement_of([resource("file/", FILE)])),
    "a NUL": ("kCorrupt", statement_of([resource("fi\0le", FILE)])),
    "the model and a file": ("kCorrupt", statement_of([
        resource(".", FILE), ONE])),
    "an algorithm of another hash": ("kCorrupt", statement_of([
        resource("file", FILE, "blake3")])),
    "a digest with spaces": ("kCorrupt", json.dumps(_with()).replace(
        ONE["digest"], ONE["digest"][:-1] + " ").encode()),
    "shards without a size": ("kCorrupt", _pieces("file:0:4", size=0)),
    "a shard without numbers": ("kCorrupt", _pieces("file")),
    "a shard with leading zeros": ("kCorrupt", _pieces("file:0:04")),
    "an empty shard": ("kCorrupt", _pieces("file:0:0")),
    "a shard backwards": ("kCorrupt", _pieces("file:4:0")),
    "a large shard": ("kCorrupt", _pieces("file:0:5")),
    "a gap between shards": ("kCorrupt", _pieces("file:0:4", "file:5:7")),
    "shards that overlap": ("kCorrupt", _pieces("file:0:4", "file:3:7")),
    "shards without the first": ("kCorrupt", _pieces("file:4:7")),
    "a negative size": ("kCorrupt", _serialized(method="shards", shard_size=-1)),
    "half a byte": ("kCorrupt", _serialized(method="shards", shard_size=0.5)),
}


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("ignore", [False, True])
def test_a_statement_that_says_too_much_is_refused(tmp_path, name, ignore):
    code, statement = STATEMENTS[name]
    model = tmp_path / "model"
    model.mkdir()
    (model / "file").write_bytes(FILE)
    (tmp_path / "file").write_bytes(FILE)
    path = sign(tmp_path / "a.sig", statement)
    options = {"ignore_unsigned_files": ignore, **KEY}
    if code == "kUnsupported":
        with pytest.raises(haulway.UnsupportedError):
            haulway.verify(model, signature=path, **options)
    else:
        assert codes(model, path, **options) == [code]


def test_what_the_reference_ignores_is_ignored(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "file").write_bytes(FILE)
    statement = statement_of([{**ONE, "digest": ONE["digest"].upper(),
                               "more": [1, {}]}], more=None)
    statement["subject"][0]["digest"]["sha512"] = "x"
    statement["predicate"]["more"] = statement["more"] = {"a": 1.5}
    assert codes(model, sign(tmp_path / "a.sig", statement), **KEY) == []
    loose = bundle_of(json.dumps(statement).encode())
    loose["dsseEnvelope"]["payload"] = loose["dsseEnvelope"]["payload"].replace(
        "+", "-").replace("/", "_").rstrip("=")
    assert codes(model, write(tmp_path / "b.sig", loose), **KEY) == []


# Alterations of the model, with what is named.

def _flip(model):
    data = bytearray((model / "config.json").read_bytes())
    data[-1] ^= 1
    (model / "config.json").write_bytes(data)
    return ["config.json"]


def _cut(model):
    with open(model / "config.json", "r+b") as file:
        file.truncate(5)
    return ["config.json"]


def _longer(model):
    with open(model / "model.safetensors", "ab") as file:
        file.write(b"\0")
    return ["model.safetensors"]


def _rename(model):
    os.rename(model / "A", model / "B")
    return ["A", "B"]


def _exchange(model):
    os.rename(model / "A", model / "C")
    os.rename(model / "a-b", model / "A")
    os.rename(model / "C", model / "a-b")
    return ["A", "a-b"]


def _made(make, name):
    def change(model):
        make(model / name)
        return [name]
    return change


def _in_place(make, name):
    def change(model):
        os.remove(model / name)
        make(model / name)
        return [name]
    return change


def _folder_link(model):
    shutil.copytree(model / "a", model.parent / "elsewhere")
    shutil.rmtree(model / "a")
    os.symlink(model.parent / "elsewhere", model / "a")
    return ["a", "a/b"]


MODELS = {
    "flipped": _flip,
    "cut": _cut,
    "longer": _longer,
    "emptied": _made(lambda path: path.write_bytes(b""), "config.json"),
    "missing": lambda model: os.remove(model / "a" / "b") or ["a/b"],
    "an additional file": _made(lambda path: path.write_bytes(b""), "new"),
    "an additional hidden file": _made(
        lambda path: path.write_bytes(b""), "sub/.new"),
    "renamed": _rename,
    "exchanged": _exchange,
    "a link": _made(lambda path: os.symlink("A", path), "new"),
    "a link in place": _in_place(lambda path: os.symlink("a/b", path), "A"),
    "a broken link": _made(lambda path: os.symlink("none", path), "new"),
    "a link to a folder": _folder_link,
    "a pipe": _made(os.mkfifo, "pipe"),
    "a pipe in place": _in_place(os.mkfifo, "A"),
    "git's files of a folder": _made(
        lambda path: path.write_bytes(b"x"), "sub/.gitignore"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sig", ["key-p256", "shards-1000"])
def test_an_altered_model_is_refused_by_name(run, tmp_path, name, sig):
    model = copy("models/plain", tmp_path / "model")
    named = MODELS[name](model)
    path = str(golden(f"sigs/{sig}.sig"))
    if sig.startswith("shards") and name in (
            "an additional file", "an additional hidden file"):
        for one in named:  # Shards say nothing of empty files.
            (model / one).write_bytes(b"x")
    report = haulway.verify(model, signature=path, **KEY)
    assert {one.code for one in report.findings} == {"kMismatch"}
    assert {one.file for one in report.findings} == set(named)
    assert report.signature.kind == "key"
    done = run("verify", model, "--signature", path, "--public-key",
               key("p256.pub"), "--json", code=1)
    assert {one["file"] for one in json.loads(done.stdout)["findings"]} == set(named)
    with pytest.raises(haulway.MismatchError) as raised:
        haulway.load(model / "model.safetensors", "numpy",
                     signature=write(model / "model.sig", golden(
                         f"sigs/{sig}.sig").read_bytes()), **KEY)
    assert any(one in str(raised.value) for one in named)


def test_a_renamed_model_verifies(tmp_path):
    model = copy("models/plain", tmp_path / "other")
    (model / ".gitignore").write_text("changed")  # Left out.
    os.mkdir(model / ".git")
    (model / ".git" / "config").write_text("x")
    assert codes(model, str(golden("sigs/key-p256.sig")), **KEY) == []


def test_files_that_are_not_signed_can_be_ignored(tmp_path):
    model = copy("models/plain", tmp_path / "model")
    (model / "new").write_text("x")
    os.mkfifo(model / "pipe")
    for sig in ("key-p256", "shards-1000"):
        path = str(golden(f"sigs/{sig}.sig"))
        assert codes(model, path, ignore_unsigned_files=True, **KEY) == []
    os.remove(model / "A")
    assert codes(model, path, ignore_unsigned_files=True, **KEY) == ["kMismatch"]


@pytest.mark.parametrize("sig", ["key-p384", "certificate", "links"])
def test_another_signer_is_refused(tmp_path, sig):
    row = expected()[sig]
    model = model_of(row)
    path = str(golden(row["sig"]))
    for options in ({"public_key": str(key("other.pub"))},
                    {"certificate_chain": [str(key("other-root.pem"))]},
                    {"identity": "x", "issuer": "https://x",
                     "trusted_root": str(key("trusted_root.json"))}):
        assert codes(model, path, **options) == ["kSignature"]


@pytest.mark.parametrize("chain", [["intermediate.pem"], ["leaf-p256.pem"],
                                   ["other-root.pem"]])
def test_a_chain_ends_at_a_trusted_root(chain):
    row = expected()["certificate"]
    assert codes(model_of(row), str(golden(row["sig"])),
                 certificate_chain=[str(key(one)) for one in chain]
                 ) == ["kSignature"]


def test_an_expired_certificate_is_refused_on_request():
    row = expected()["certificate-expired"]
    model, path = model_of(row), str(golden(row["sig"]))
    report = haulway.verify(model, signature=path, **verifier(row))
    assert report.ok and "expired" in report.notes[0]
    assert codes(model, path, at="now", **verifier(row)) == ["kSignature"]
    time = report.signature.time
    assert codes(model, path, at=time, **verifier(row)) == []


SIGSTORE = "v1.1.0-sigstore"
IDENTITIES = {
    "another identity": {"identity": "someone@example.com"},
    "the identity in upper case": {"identity": "STEFANB@us.ibm.com"},
    "another issuer": {"issuer": "https://example.com"},
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_another_identity_is_refused(name):
    row = expected()[SIGSTORE]
    assert codes(model_of(row), str(golden(row["sig"])),
                 ignore_paths=["ignore-me"],
                 **{**verifier(row), **IDENTITIES[name]}) == ["kSignature"]


def _entry(change):
    def alter(bundle):
        change(bundle["verificationMaterial"]["tlogEntries"][0])
    return alter


def _flipped(text):
    data = bytearray(base64.b64decode(text))
    data[len(data) // 2] ^= 1
    return base64_of(data)


def _flip_at(*path):
    def change(entry):
        for name in path[:-1]:
            entry = entry[name]
        entry[path[-1]] = _flipped(entry[path[-1]])
    return _entry(change)


def _set_at(value, *path):
    def change(entry):
        for name in path[:-1]:
            entry = entry[name]
        entry[path[-1]] = value
    return _entry(change)


def _certificate(bundle):
    holder = bundle["verificationMaterial"]["certificate"]
    data = bytearray(base64.b64decode(holder["rawBytes"]))
    data[-1] ^= 1
    holder["rawBytes"] = base64_of(data)


def _checkpoint(bundle):
    point = bundle["verificationMaterial"]["tlogEntries"][0]["inclusionProof"][
        "checkpoint"]
    point["envelope"] = point["envelope"].replace("rekor", "Rekor", 1)


def _without_proof_of_time(bundle):
    bundle["verificationMaterial"].pop("timestampVerificationData", None)
    bundle["verificationMaterial"]["tlogEntries"][0].pop("inclusionPromise")


def _other_signature(bundle):
    (one,) = bundle["dsseEnvelope"]["signatures"]
    one["sig"] = base64_of(
        signed(base64.b64decode(bundle["dsseEnvelope"]["payload"])))


ENTRIES = {
    "the certificate": ("kSignature", _certificate),
    "the signature": ("kSignature", _other_signature),
    "the body": ("kSignature", _flip_at("canonicalizedBody")),
    "the root hash": ("kSignature", _flip_at("inclusionProof", "rootHash")),
    "a hash of the path": ("kSignature", _entry(
        lambda entry: entry["inclusionProof"]["hashes"].reverse())),
    "a hash less": ("kSignature", _entry(
        lambda entry: entry["inclusionProof"]["hashes"].pop())),
    "another index": ("kSignature", _set_at("1", "inclusionProof", "logIndex")),
    "another size": ("kSignature", _set_at("9", "inclusionProof", "treeSize")),
    "no leaf": ("kSignature", _set_at("0", "inclusionProof", "treeSize")),
    "the checkpoint": ("kSignature", _checkpoint),
    "no checkpoint": ("kSignature", _set_at(
        {"envelope": ""}, "inclusionProof", "checkpoint")),
    "another log": ("kSignature", _flip_at("logId", "keyId")),
    "another time": ("kSignature", _set_at("1760062341", "integratedTime")),
    "a time long before": ("kSignature", _set_at("1", "integratedTime")),
    "another index in the log": ("kSignature", _set_at("7", "logIndex")),
    "the promise": ("kSignature", _flip_at(
        "inclusionPromise", "signedEntryTimestamp")),
    "nothing that proves a time": ("kSignature", _without_proof_of_time),
    "two entries": ("kCorrupt", lambda b: b["verificationMaterial"].update(
        tlogEntries=b["verificationMaterial"]["tlogEntries"] * 2)),
    "no entry": ("kCorrupt", lambda b: b["verificationMaterial"].update(
        tlogEntries=[])),
    "an unknown key of the entry": ("kCorrupt", _set_at(1, "more")),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_altered_log_entry_is_refused(tmp_path, name):
    row = expected()[SIGSTORE]
    bundle = json.loads(golden(row["sig"]).read_text())
    code, change = ENTRIES[name]
    change(bundle)
    assert codes(model_of(row), write(tmp_path / "a.sig", bundle),
                 ignore_paths=["ignore-me"], **verifier(row)) == [code]


def test_another_kind_of_entry_is_not_supported(tmp_path):
    row = expected()[SIGSTORE]
    bundle = json.loads(golden(row["sig"]).read_text())
    _set_at({"kind": "intoto", "version": "0.0.2"}, "kindVersion")(bundle)
    with pytest.raises(haulway.UnsupportedError, match="intoto"):
        haulway.verify(model_of(row), signature=write(tmp_path / "a.sig", bundle),
                       ignore_paths=["ignore-me"], **verifier(row))
