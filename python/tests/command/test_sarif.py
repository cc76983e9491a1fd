"""`haulway scan --sarif`, and what the command prints without arguments."""

import json
import os
import pickle
import urllib.parse

import jsonschema
import pytest


def only(required, **properties):
    """Returns the schema of a SARIF object that has no other properties."""
    return {
        "type": "object", "required": required.split(),
        "properties": properties, "additionalProperties": False,
    }


# SARIF 2.1.0's requirements for the objects that are written, and what services
# need.
TEXT = only("text", text={"type": "string", "minLength": 1})
LEVEL = {"enum": ["none", "note", "warning", "error"]}
RULE = only(
    "id shortDescription", id={"type": "string"}, shortDescription=TEXT,
    defaultConfiguration=only("level", level=LEVEL),
)
PLACE = only("physicalLocation", physicalLocation=only(
    "artifactLocation",
    artifactLocation=only("uri", uri={"type": "string"}),
    region=only("byteOffset", byteOffset={"type": "integer", "minimum": 0}),
))
RESULT = only(
    "ruleId level message locations", ruleId={"enum": ["unsafe", "unknown"]},
    level=LEVEL, message=TEXT,
    locations={"type": "array", "items": PLACE, "minItems": 1},
)
RUN = only(
    "tool results invocations",
    tool=only("driver", driver=only(
        "name version rules", name={"const": "haulway"},
        version={"type": "string"}, rules={"type": "array", "items": RULE},
    )),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    invocations={"type": "array", "items": only(
        "executionSuccessful", executionSuccessful={"type": "boolean"},
        toolExecutionNotifications={"type": "array", "items": only(
            "message", message=TEXT, level=LEVEL)},
    )},
    results={"type": "array", "items": RESULT},
)
LOG = only(
    "$schema version runs", **{"$schema": {"type": "string"}},
    version={"const": "2.1.0"},
    runs={"type": "array", "items": RUN, "minItems": 1, "maxItems": 1},
)


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.fixture
def logged(run, tmp_path):
    """Returns the checked run that a scan of paths writes."""

    def logged(*paths, code):
        run("scan", *paths, "--sarif", "log.sarif", code=code)
        log = json.loads((tmp_path / "log.sarif").read_text())
        jsonschema.validate(log, LOG)
        return log["runs"][0]

    return logged


def test_findings_name_the_file_and_the_byte(logged, tmp_path, small):
    evil = tmp_path / "a b#%\u00e9.pkl"
    evil.write_bytes(pickle.dumps(Evil()))
    (tmp_path / "text.bin").write_bytes(b"no checkpoint")
    found = logged(evil, "text.bin", small, code=1)
    by_rule = {one["ruleId"]: one for one in found["results"]}
    unsafe = by_rule["unsafe"]["locations"][0]["physicalLocation"]
    uri = urllib.parse.urlsplit(unsafe["artifactLocation"]["uri"])
    assert uri.scheme == "file" and urllib.parse.unquote(uri.path) == str(evil)
    assert "posix.system" in by_rule["unsafe"]["message"]["text"]
    assert by_rule["unsafe"]["level"] == "error"
    assert f"at byte {unsafe['region']['byteOffset']}" in (
        by_rule["unsafe"]["message"]["text"])
    unknown = by_rule["unknown"]["locations"][0]["physicalLocation"]
    assert unknown["artifactLocation"]["uri"] == "text.bin"
    assert by_rule["unknown"]["level"] == "warning"
    assert not any("small" in json.dumps(one) for one in found["results"])
    assert found["invocations"][0]["executionSuccessful"]


def test_nothing_found_is_a_log_without_results(logged, small):
    assert logged(small, code=0)["results"] == []


def test_a_file_that_cannot_be_read_is_told(logged, small):
    (ended,) = logged(small, "missing.pt", code=5)["invocations"]
    assert not ended["executionSuccessful"]
    (told,) = ended["toolExecutionNotifications"]
    assert "missing.pt" in told["message"]["text"]


def test_a_log_that_cannot_be_written_is_a_failure(run, small):
    done = run("scan", small, "--sarif", "none/log.sarif", code=2)
    assert "none/log.sarif" in done.stderr


def test_the_command_alone_shows_what_there_is(run):
    done = run()
    assert done.stdout == run("--help").stdout and "scan" in done.stdout
    assert not done.stderr


def test_a_log_does_not_overwrite_what_is_scanned(tmp_path, run):
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps([1]))
    (tmp_path / "link").symlink_to("a.pkl")
    for scanned in ("a.pkl", "."):
        said = run("scan", scanned, "--sarif", "link", code=2)
        assert "would be overwritten" in said.stderr
    assert pickle.loads(path.read_bytes()) == [1]
