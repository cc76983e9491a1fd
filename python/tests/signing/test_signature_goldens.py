"""What the reference signed verifies, and what it refuses does not."""

import json

import pytest

import haulway
from signed_models import expected, flags, golden, model_of, verifier

ROWS = expected()


def options_of(row):
    model = model_of(row)
    ignored = [str(model / path) if model.is_dir() else str(model.parent / path)
               for path in row.get("ignore_paths") or []]
    return {"signature": str(golden(row["sig"])), **verifier(row),
            **({"ignore_paths": ignored} if ignored else {})}


def check(report, row):
    assert report["ok"] is row["ok"], report["findings"]
    if not row["ok"]:
        assert report["signature"] is None
        assert [one["code"] for one in report["findings"]] == ["kSignature"]
        return
    assert report["findings"] == []
    facts, says = report["signature"], row["serialization"] or {}
    subject = row["subject"] or {"name": ""}  # Version 0.2.0 has none.
    assert facts["subject"]["name"] == subject["name"]
    assert facts["predicate_type"] == row["predicate_type"]
    assert facts["method"] == says.get("method", "files")
    assert facts["hash_type"] == says.get("hash_type", "sha256")
    assert facts["shard_size"] == (says.get("shard_size") or None)
    files = {name.rsplit(":", 2)[0] if facts["method"] == "shards" else name
             for name in row["resources"]}
    assert report["files"] == len(files)
    if "digest" in subject:
        assert facts["subject"]["sha256"] == subject["digest"]["sha256"]


@pytest.mark.parametrize("name", ROWS)
def test_by_python(name):
    row = ROWS[name]
    report = haulway.verify(model_of(row), **options_of(row))
    assert bool(report) is row["ok"]
    check(report.to_dict(), row)


@pytest.mark.parametrize("name", ROWS)
def test_by_command(run, name):
    row = ROWS[name]
    done = run("verify", model_of(row), "--json",
               *flags(options_of(row)), code=0 if row["ok"] else 1)
    check(json.loads(done.stdout), row)


@pytest.mark.parametrize("name", [
    name for name, row in ROWS.items()
    if row["ok"] and name.startswith("v") and row["model"].startswith("vectors")])
def test_the_signature_in_the_model_is_left_out(name):
    """Also without ignore_paths, as versions before 1.1.0 wrote."""
    row = ROWS[name]
    options = options_of(row)
    options["ignore_paths"] = [
        one for one in options["ignore_paths"] if not one.endswith("model.sig")]
    assert haulway.verify(model_of(row), **options)
