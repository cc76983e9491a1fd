"""`bulk verify --signature`: a registry of signed models."""

import json
import os
import sys

import numpy
import pytest

import haulway
from signed_models import key


@pytest.fixture(autouse=True)
def this_python(monkeypatch):
    monkeypatch.setenv("HAULWAY_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


@pytest.fixture
def registry(tmp_path):
    """Four models: two that are right, one that is changed, one that nobody
    signed."""
    top = tmp_path / "models"
    for name in ("a", "team/b", "changed", "unsigned"):
        (top / name).mkdir(parents=True)
        haulway.save({"x": numpy.arange(100)}, top / name / "m.safetensors")
        if name != "unsigned":
            haulway.sign(top / name, top / name / "model.sig",
                         private_key=key("p256.pem"))
    with open(top / "changed" / "m.safetensors", "ab") as file:
        file.write(b"x")
    return top


def test_each_signed_folder_is_a_model(run, registry):
    done = run("bulk", "verify", registry, "--signature", "model.sig",
               "--public-key", key("p256.pub"), "--json", code=1)
    *lines, last = [json.loads(line) for line in done.stdout.splitlines()]
    found = {os.path.relpath(os.path.dirname(one["input"]), registry): one
             for one in lines}
    assert {name: one.get("ok") for name, one in found.items()} == {
        "a": True, "team/b": True, "changed": False, "unsigned": None}
    assert found["a"]["signature"]["kind"] == "key" and found["a"]["files"] == 1
    assert found["changed"]["findings"][0]["file"] == "m.safetensors"
    assert found["unsigned"]["error"]["code"] == "kSignature"
    assert last["summary"]["inputs"] == 4


def test_a_run_that_goes_on_verifies_again(registry, tmp_path):
    options = {"signature": "model.sig", "public_key": str(key("p256.pub"))}
    journal = tmp_path / "journal"
    first = haulway.bulk("verify", registry / "a", journal=journal,
                         options=options)
    assert first and first.inputs == 1
    with open(registry / "a" / "m.safetensors", "ab") as file:
        file.write(b"x")
    again = haulway.bulk("verify", registry / "a", journal=journal,
                         options=options)
    assert again.exit == 1 and again.skipped == 0


def test_another_key_is_a_finding(registry):
    report = haulway.bulk("verify", registry / "a", options={
        "signature": "model.sig", "public_key": str(key("other.pub"))})
    (one,) = report.results()
    assert one["signature"] is None
    assert one["findings"][0]["code"] == "kSignature" and report.exit == 1
