"""haulway.delta.versions and verify, and the verb delta."""

import json
import re
import shutil
import subprocess
import sys

import pytest

import haulway
import haulway.delta
from delta_versions import (
    GOLDENS,
    INDEX,
    SUMS,
    chain,
    read_index,
    save_delta,
    save_full,
    save_shard,
    step,
    write_index,
)

SHARD = "model-00000-of-00001.safetensors"


@pytest.fixture
def run_of(tmp_path):
    """Returns (the states, the folder of the versions): two deltas, a full
    version, and two deltas on that."""
    states = chain(tmp_path, count=2)
    root = tmp_path / "run"
    states.append(step(states[-1], 11))
    save_full(root / "weight_v000003", states[-1], 2, {"version": "000003"})
    for version in (4, 5):
        states.append(step(states[-1], 20 + version))
        save_delta(root / f"weight_v{version:06}", *states[-2:], version,
                   encoding="overwrite", checksum="blake3")
    return states, root


def test_versions_are_listed_by_number(run_of):
    states, root = run_of
    found = haulway.delta.versions(root)
    assert [one.id for one in found] == [f"{n:06}" for n in range(1, 6)]
    assert [one.number for one in found] == [1, 2, 3, 4, 5]
    assert [one.kind for one in found] == ["delta", "delta", "full", "delta",
                                           "delta"]
    assert [one.base for one in found] == ["000000", "000001", None, "000003",
                                           "000004"]
    assert [one.encoding for one in found] == ["xor", "xor", None, "overwrite",
                                               "overwrite"]
    assert {one.checksum for one in found} == {"xxh3-128", None, "blake3"}
    assert all(one.complete and one.missing == [] and one for one in found)
    assert found[2].tensors == len(states[0])
    assert found[0].path == str(root / "weight_v000001")
    assert found[0].bytes == (root / "weight_v000001" / SHARD).stat().st_size


def test_incomplete_versions_are_listed(run_of):
    _, root = run_of
    (root / "weight_v000005" / INDEX).unlink()
    shard = root / "weight_v000004" / SHARD
    shard.write_bytes(shard.read_bytes()[:-1])
    (root / "weight_v000003" / "model-00002-of-00002.safetensors").unlink()
    (root / "weight_v000002" / INDEX).write_text("{")
    (root / ".weight_v000009").mkdir()
    (root / "notes").mkdir()
    shutil.copytree(root / "weight_v000001", root / "weight_v000001.bak")
    found = {one.number: one for one in haulway.delta.versions(root)}
    assert sorted(found) == [1, 2, 3, 4, 5]
    assert [n for n, one in found.items() if one.complete] == [1]
    assert found[5].missing == [INDEX] and found[2].missing == [INDEX]
    assert found[4].missing == [SHARD]
    assert found[3].missing == ["model-00002-of-00002.safetensors"]


def test_copies_and_links_are_no_versions(run_of, tmp_path):
    _, root = run_of
    shutil.copytree(root / "weight_v000003", root / "before the crash")
    shutil.copytree(root / "weight_v000001", root / "weight_v000001 (copy)")
    for name in ("v3", "weight_v000009", "newest"):
        (root / name).symlink_to("weight_v000003")
    found = haulway.delta.versions(root)
    assert [one.id for one in found] == [f"{n:06}" for n in range(1, 6)]
    assert all(one.complete for one in found)
    assert haulway.delta.verify(root, base=tmp_path / "base").versions == 5
    haulway.delta.apply(tmp_path / "target", root, durability="none")
    assert haulway.delta.prune(root).removed == ["000002", "000001"]
    left = sorted(path.name for path in root.iterdir())
    assert left == ["before the crash", "newest", "v3", "weight_v000001 (copy)",
                    "weight_v000003", "weight_v000004", "weight_v000005",
                    "weight_v000009"]


@pytest.mark.parametrize("name", ["weight_v5", "v5", "updates/weight_v000005"])
@pytest.mark.parametrize("version", ["5", 5])
def test_one_version_in_two_folders(run_of, tmp_path, name, version):
    """Nobody can tell which one others mean, whatever the spelling."""
    _, root = run_of
    other = root / name
    shutil.copytree(root / "weight_v000005", other)
    index = read_index(other)
    index["metadata"]["version"] = version
    write_index(other, index)
    base = tmp_path / "base"
    calls = [
        lambda: haulway.delta.versions(root),
        lambda: haulway.delta.verify(root, base=base),
        lambda: haulway.delta.prune(root),
        lambda: haulway.delta.apply(tmp_path / "target", root, base=base),
        lambda: haulway.delta.apply(tmp_path / "target", root, base=base, to=5),
        lambda: haulway.delta.fold(root, tmp_path / "folded", start=3, to=5),
        lambda: haulway.delta.compact(root, tmp_path / "whole", base=base),
        lambda: haulway.delta.publisher(root, base),
        lambda: next(haulway.delta.follow(root, newer_than=4, timeout=5)),
    ]
    for call in calls:
        with pytest.raises(haulway.MismatchError) as raised:
            call()
        assert "is also in" in str(raised.value)
        assert f"{root / 'weight_v000005'}" in str(raised.value)
        assert f"{other}" in str(raised.value)
    # The rest of the run can be used, and one of the two alone.
    assert haulway.delta.apply(tmp_path / "target", root, base=base, to=4).to == (
        "000004")
    (other / INDEX).unlink()
    assert len(haulway.delta.versions(root)) == 6
    assert haulway.delta.apply(tmp_path / "target", root).versions == 1


def test_a_link_that_names_a_version(run_of):
    """A folder of another name appears as a version by a link."""
    _, root = run_of
    (root / "weight_v000005").rename(root / "written")
    (root / "weight_v000005").symlink_to("written")
    (root / "v4").symlink_to("weight_v000004")
    assert len(haulway.delta.versions(root)) == 5
    following = haulway.delta.follow(root, newer_than=3, timeout=5)
    assert [next(following).id for _ in range(2)] == ["000004", "000005"]


def test_prune_leaves_links_to_other_places(run_of, tmp_path):
    _, root = run_of
    (tmp_path / "elsewhere").mkdir()
    shutil.move(root / "weight_v000002", tmp_path / "elsewhere")
    (root / "weight_v000002").symlink_to(tmp_path / "elsewhere/weight_v000002")
    assert len(haulway.delta.versions(root)) == 5
    report = haulway.delta.prune(root)
    assert report.removed == ["000001"] and "000002" in report.kept
    assert (root / "weight_v000002").is_symlink()
    assert len(list((tmp_path / "elsewhere/weight_v000002").iterdir())) == 2


def test_a_version_is_named_by_its_folder(tmp_path):
    states = chain(tmp_path, count=1)
    save_delta(tmp_path / "named" / "second", *states, "second", "first")
    (one,) = haulway.delta.versions(tmp_path / "named")
    assert (one.id, one.base) == ("second", "first")


OTHER_USER = """
import os, sys
import haulway, haulway.delta
os.chdir(sys.argv[1])
os.geteuid() or os.setuid(65534)
for call in (haulway.delta.versions, haulway.delta.verify, haulway.delta.prune):
    try:
        call("run")
    except PermissionError as error:
        print(isinstance(error, haulway.Error), error)
"""


@pytest.mark.parametrize("what", ["", INDEX, SHARD])
def test_versions_that_cannot_be_read(run_of, tmp_path, what):
    """They are not left out, and not taken for incomplete ones."""
    _, root = run_of
    for path in root.rglob("*"):
        path.chmod(0o755)
    place = root / "weight_v000002" / what
    place.chmod(0)
    tmp_path.chmod(0o755)
    try:
        done = subprocess.run([sys.executable, "-c", OTHER_USER, tmp_path],
                              capture_output=True, text=True, check=True)
    finally:
        place.chmod(0o755)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout
    assert all(line.startswith("True cannot ") and "run/weight_v000002" in line
               for line in lines)


def test_versions_below_updates_and_of_a_server(tmp_path):
    states = chain(tmp_path, count=2)
    (tmp_path / "other").mkdir()
    shutil.move(tmp_path / "run", tmp_path / "other" / "updates")
    assert [v.number for v in haulway.delta.versions(tmp_path / "other")] == [1, 2]
    save_delta(tmp_path / "mx" / "v7", *states[:2], "7f3a", "6be1",
               checksum="adler32")
    (one,) = haulway.delta.versions(tmp_path / "mx")
    assert (one.id, one.number, one.base) == ("7f3a", 7, "6be1")


def test_golden_versions(tmp_path):
    for name, ids in (
        ("slime-xor-xxh3", ["000001", "000002", "000003", "000004"]),
        ("mx-xor-adler32-full", ["v1", "v2", "v3", "v4"]),
        ("miles-xor-blake3-full", ["000001", "000002", "000003", "000004"]),
    ):
        root, base = GOLDENS / name / "run", GOLDENS / name / "base"
        assert [one.id for one in haulway.delta.versions(root)] == ids
        report = haulway.delta.verify(root, base=base)
        assert report and report.ok and report.versions == len(ids)
        assert report.checked_bytes > 7000 and report.findings == []


def test_verify_names_the_version_and_the_tensor(run_of, tmp_path):
    _, root = run_of
    base = tmp_path / "base"
    assert haulway.delta.verify(root, base=base).ok
    # A wrong checksum in the middle of a chain, which the next version repairs.
    folder = root / "weight_v000001"
    frames, sums = {}, {}
    whole = haulway.load(folder / SHARD, alone=True)
    for name, frame in whole.items():
        frames[name] = frame.numpy().tobytes()
        sums[name] = SUMS["xxh3-128"](bytes(1))
    save_shard(folder / SHARD, frames, sums)
    report = haulway.delta.verify(root, base=base)
    assert not report and not report.ok
    assert {one.version for one in report.findings} == {"000001"}
    assert {one.tensor for one in report.findings} == set(frames)
    assert {one.code for one in report.findings} == {"kMismatch"}
    # The newest version is right, and so it is loaded.
    assert haulway.load(root / "weight_v000002", base=base)
    assert not haulway.verify(root / "weight_v000002" / INDEX, base=base).ok


def test_verify_finds_every_faulty_version(run_of, tmp_path):
    _, root = run_of
    (root / "weight_v000005" / INDEX).unlink()
    index = read_index(root / "weight_v000002")
    index["metadata"]["delta_encoding"] = "add"
    write_index(root / "weight_v000002", index)
    report = haulway.delta.verify(root, base=tmp_path / "base")
    found = {one.version: one for one in report.findings}
    assert sorted(found) == ["000002", "000005"]
    assert found["000002"].code == "kUnsupported"
    assert found["000005"].code == "kNotFound"
    assert found["000005"].tensor is None
    # Without the base, the first chain cannot be checked.
    report = haulway.delta.verify(root)
    assert {one.version for one in report.findings} == {"000002", "000005"}
    assert report.unchecked == ["000001"]


def test_without_the_base_nothing_is_wrong(run_of, run, tmp_path):
    """That the base is not named is no fault of a version, and no "no match"."""
    _, root = run_of
    report = haulway.delta.verify(root)
    assert not report and not report.ok and report.findings == []
    assert report.unchecked == ["000001", "000002"] and report.versions == 5
    said = run("delta", "verify", root, code=2).stdout
    assert "version 000001 and 1 more: not checked" in said and "--base" in said
    for words in (("verify", root / "weight_v000002"),
                  ("ls", root / "weight_v000002"),
                  ("delta", "compact", root, tmp_path / "full", "--version", "2"),
                  ("delta", "apply", tmp_path / "target", root, "--to", "2")):
        said = run(*words, code=2).stderr
        assert "'000000'" in said and " base" in said
    assert run("delta", "verify", root, "--base", tmp_path / "base")
    with pytest.raises(haulway.NotFoundError, match="the option base"):
        haulway.verify(root / "weight_v000001" / INDEX)


ACTIONS = {
    "ls": ("--bytes",),
    "verify": ("--base", "--bytes", "--threads"),
    "apply": ("--base", "--bytes", "--from", "--no-sync", "--threads", "--to"),
    "fold": ("--bytes", "--from", "--no-sync", "--threads", "--to"),
    "compact": ("--base", "--bytes", "--no-sync", "--shard", "--threads",
                "--version"),
    "write": ("--base", "--base-version", "--bytes", "--checksum", "--encoding",
              "--no-sync", "--shard", "--threads", "--version"),
    "prune": ("--dry-run", "--keep"),
}
VALUES = {"--bytes": (), "--no-sync": (), "--dry-run": (), "--threads": ("1",),
          "--keep": ("1",), "--shard": ("1k",), "--encoding": ("xor",),
          "--checksum": ("blake3",)}


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_has_its_own_options(run, tmp_path, action):
    shown = run("delta", action, "--help").stdout
    every = {one for options in ACTIONS.values() for one in options}
    for option in sorted(every):
        is_own = option in ACTIONS[action]
        assert bool(re.search(rf"(?<![\w-]){option}(?![\w-])", shown)) == is_own, (
            action, option)
        if not is_own:
            value = VALUES.get(option, ("1",))
            said = run("delta", action, "a", "b", option, *value, code=4).stderr
            assert f"{action}: no option '{option}'" in said
    assert all(option in run("delta", "--help").stdout for option in every)
    for needless in set(ACTIONS) - {action}:
        assert f"For {needless}" not in shown


def test_checksums_of_full_versions(tmp_path):
    root = tmp_path / "run"
    shutil.copytree(GOLDENS / "mx-xor-adler32-full" / "run", root)
    path = root / "v3" / "model-00002-of-00002.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    shutil.rmtree(root / "v4")
    report = haulway.delta.verify(root, base=GOLDENS / "mx-xor-adler32-full/base")
    (found,) = report.findings
    assert found.version == "v3" and found.tensor and found.code == "kMismatch"
    assert not haulway.verify(root / "v3" / INDEX).ok


def test_nothing_to_list(tmp_path):
    with pytest.raises(haulway.NotFoundError):
        haulway.delta.versions(tmp_path / "none")
    assert haulway.delta.versions(tmp_path) == []
    with pytest.raises(haulway.NotFoundError, match="no versions"):
        haulway.delta.verify(tmp_path)
    with pytest.raises(haulway.UnsupportedError):
        haulway.delta.versions("http://127.0.0.1:1/run/")
    with pytest.raises(TypeError):
        haulway.delta.versions(7)
    with pytest.raises(haulway.ArgumentTypeError, match="no_such"):
        haulway.delta.versions(tmp_path, no_such=1)


def test_versions_of_a_bucket(bucket, endpoint, run_of, tmp_path, monkeypatch):
    for name, value in (("AWS_ACCESS_KEY_ID", "AKID"),
                        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
                        ("AWS_REGION", "us-east-1"),
                        ("AWS_ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(name, value)
    _, root = run_of
    for file in sorted(root.rglob("*")):
        if file.is_file():
            bucket.upload_file(str(file), "bkt", str(file.relative_to(tmp_path)))
    for url in ("s3://bkt/run/", "s3://bkt/run"):
        found = haulway.delta.versions(url)
        assert [one.number for one in found] == [1, 2, 3, 4, 5]
        assert all(one.complete for one in found)
        assert found[0].path == "s3://bkt/run/weight_v000001"
        assert haulway.delta.verify(url, base=tmp_path / "base").ok


def test_the_verb(run_of, run, tmp_path):
    _, root = run_of
    listed = json.loads(run("delta", "ls", root, "--json").stdout)["versions"]
    assert [one["id"] for one in listed] == [f"{n:06}" for n in range(1, 6)]
    assert {"id", "number", "kind", "base", "encoding", "checksum", "tensors",
            "bytes", "complete", "path"} <= listed[0].keys()
    table = run("delta", "ls", root).stdout
    assert "000003" in table and "complete" in table
    good = run("delta", "verify", root, "--base", tmp_path / "base", "--json")
    report = json.loads(good.stdout)
    assert report["ok"] and report["versions"] == 5 and report["checked_bytes"]
    assert report["findings"] == []
    run("delta", "verify", root, "--base", tmp_path / "base")
    (root / "weight_v000004" / SHARD).unlink()
    assert "lacks " + SHARD in run("delta", "ls", root).stdout
    bad = run("delta", "verify", root, "--base", tmp_path / "base", "--json",
              code=1)
    (finding,) = json.loads(bad.stdout)["findings"]
    assert finding["version"] == "000004" and SHARD in finding["message"]
    said = run("delta", "verify", root, "--base", tmp_path / "base",
               code=1).stdout
    assert "version 000004: cannot open" in said and "kNotFound" not in said
    run("delta", "ls", tmp_path / "base", code=3)
    run("delta", "ls", tmp_path / "none", code=None)
