"""haulway.delta.apply, beside the receiver of SGLang."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import pytest

import haulway
import haulway.delta
from delta_versions import (
    GOLDENS,
    INDEX,
    SUMS,
    chain,
    compress,
    digests,
    expected_of,
    read_index,
    receive,
    same,
    save_delta,
    save_full,
    save_shard,
    step,
    write_index,
)
from killed_apply import KilledApply

SHARD = "model-00000-of-00001.safetensors"
TESTS = pathlib.Path(__file__).resolve().parent.parent


def state_of(target):
    """Returns the version that the target states, None without one."""
    path = target / ".weight_sync" / "state.json"
    return json.loads(path.read_text())["version"] if path.exists() else None


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()
            if path.is_file()}


def is_clean(target):
    """Returns whether the target's own folder has the lock and the marker
    only."""
    found = sorted(os.listdir(target / ".weight_sync"))
    return found == ["lock", "state.json"]


def source_of(report):
    return getattr(report, "from")


@pytest.fixture
def run_of(tmp_path):
    """Returns a function that makes the states of a run and its folder."""
    def make(**options):
        states = chain(tmp_path, **options)
        (tmp_path / "base" / "config.json").write_text("{}")
        return states, tmp_path
    return make


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("checksum", SUMS)
def test_a_target_is_what_sglang_makes_of_it(run_of, encoding, checksum):
    states, root = run_of(encoding=encoding, checksum=checksum, shards=2)
    theirs = shutil.copytree(root / "base", root / "theirs")
    receive(theirs, root / "run", 3)
    ours = root / "ours"
    report = haulway.delta.apply(ours, root / "run", base=root / "base")
    assert report.to == "000003" and source_of(report) is None
    assert report.versions == 3 and report.tensors == 3 * 6
    assert report.written_bytes > 0 and not report.resumed
    assert report.seconds > 0
    assert files_of(ours) == files_of(theirs)
    marker = ".weight_sync/state.json"
    assert (ours / marker).read_bytes() == (theirs / marker).read_bytes()
    assert is_clean(ours)
    assert same(haulway.load(ours), states[3])


def test_receivers_take_turns(run_of):
    states, root = run_of()
    target = root / "target"
    assert haulway.delta.apply(target, root / "run", to=1,
                               base=root / "base").to == "000001"
    receive(target, root / "run", 2)
    report = haulway.delta.apply(target, root / "run")
    assert (source_of(report), report.to) == ("000002", "000003")
    assert report.versions == 1
    assert same(haulway.load(target), states[3])
    again = haulway.delta.apply(target, root / "run")
    assert (again.versions, again.tensors, again.written_bytes) == (0, 0, 0)
    assert haulway.delta.apply(target, root / "run", to="3").to == "000003"


def test_the_base_alone(run_of):
    states, root = run_of()
    for run in (root / "run", root / "no run"):
        target = root / f"target of {run.name}"
        report = haulway.delta.apply(target, run, to=0, base=root / "base")
        assert report.to == state_of(target) == "000000"
        assert report.versions == report.tensors == 0
        assert files_of(target) == files_of(root / "base")
    assert haulway.delta.apply(target, root / "run", to=2).versions == 2
    assert same(haulway.load(target), states[2])


def test_full_versions_replace_the_weights(run_of):
    states, root = run_of(count=2)
    states.append(step(states[-1], 9))
    save_full(root / "run" / "weight_v000003", states[-1], 3,
              {"version": "000003"})
    states.append(step(states[-1], 10))
    save_delta(root / "run" / "weight_v000004", *states[-2:], 4)
    target = root / "target"
    haulway.delta.apply(target, root / "run", to=2, base=root / "base")
    report = haulway.delta.apply(target, root / "run")
    assert (source_of(report), report.to, report.versions) == (
        "000002", "000004", 2)
    assert same(haulway.load(target), states[4])
    # SGLang's receiver makes the same, but a server needs its configuration.
    theirs = shutil.copytree(root / "base", root / "theirs")
    receive(theirs, root / "run", 4)
    assert files_of(target) == {**files_of(theirs), "config.json": b"{}"}
    # An empty one needs no base.
    fresh = root / "fresh"
    assert haulway.delta.apply(fresh, root / "run").to == "000004"
    assert files_of(fresh) == files_of(theirs)


def test_an_empty_target_gets_the_configuration_of_the_base(run_of):
    states, root = run_of(count=1)
    full = save_full(root / "run" / "weight_v000002", states[1], 1,
                     {"version": "000002"})
    (root / "base" / "config.json").write_text("the base's")
    (root / "base" / "tokenizer.json").write_text("the base's")
    (root / "base" / "pytorch_model.bin").write_bytes(b"old weights")
    (full / "tokenizer.json").write_text("the version's")
    target = root / "target"
    report = haulway.delta.apply(target, root / "run", base=root / "base")
    assert files_of(target) == {**files_of(full), "config.json": b"the base's"}
    assert report.written_bytes == sum(map(len, files_of(target).values()))
    # A user who removed a file has no use for it.
    save_full(root / "run" / "weight_v000003", states[0], 1)
    (target / "config.json").unlink()
    haulway.delta.apply(target, root / "run", base=root / "base")
    assert same(haulway.load(target), states[0])
    assert not (target / "config.json").exists()
    # A base that is one file has none.
    haulway.save(states[0], root / "one.safetensors")
    haulway.delta.apply(root / "other", root / "run", to=2,
                        base=root / "one.safetensors")
    assert files_of(root / "other") == files_of(full)


@pytest.mark.parametrize("name", [
    "slime-xor-xxh3", "slime-overwrite-adler32", "miles-xor-blake3-full",
    "mx-xor-adler32-full"])
def test_what_others_wrote(name, tmp_path):
    expected = expected_of(name)
    for folder in sorted(expected.keys() - {"base"}):
        number = int(folder.rpartition("v")[2])
        report = haulway.delta.apply(tmp_path / "target", GOLDENS / name / "run",
                                     to=number, base=GOLDENS / name / "base")
        assert int(report.to.removeprefix("v")) == number
        assert digests(haulway.load(tmp_path / "target")) == {
            tensor: sha for tensor, (_, _, sha) in expected[folder].items()}


def wrong_sum(folder, name="d.codes"):
    """Changes the checksum of a tensor in a version."""
    frames, sums = {}, {}
    with haulway.open(folder / SHARD, alone=True) as shard:
        for key in shard.keys():
            frames[key] = bytes(shard[key].numpy())
            sums[key] = shard.metadata[key]
    digit = "0" if sums[name][-1] != "0" else "1"
    sums[name] = sums[name][:-1] + digit
    save_shard(folder / SHARD, frames, sums)


def bad_end(folder, name="d.codes"):
    """Damages the end of a frame."""
    with haulway.open(folder / SHARD, alone=True) as shard:
        frames = {key: bytearray(shard[key].numpy()) for key in shard.keys()}
        sums = dict(shard.metadata)
    for i in range(1, 9):
        frames[name][-i] ^= 0x5A
    save_shard(folder / SHARD, frames, sums)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("damage", [wrong_sum, bad_end])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_refused_version_changes_nothing(run_of, encoding, damage, threads):
    states, root = run_of(encoding=encoding, size=400_000)
    damage(root / "run" / "weight_v000003")
    target = root / "target"
    with pytest.raises(haulway.Error) as raised:
        haulway.delta.apply(target, root / "run", base=root / "base",
                            threads=threads)
    assert raised.value.code in ("kMismatch", "kCorrupt", "kTruncated")
    assert "'d.codes'" in str(raised.value)
    assert f"{root}/run/weight_v000003/{SHARD}" in str(raised.value)
    assert state_of(target) == "000002" and is_clean(target)
    assert same(haulway.load(target), states[2])
    theirs = shutil.copytree(root / "base", root / "theirs")
    receive(theirs, root / "run", 2)
    assert files_of(target) == files_of(theirs)


def test_what_is_refused_before_a_byte_changes(run_of):
    states, root = run_of(count=2)
    target = root / "target"
    haulway.delta.apply(target, root / "run", to=1, base=root / "base")
    before = {path: path.stat().st_mtime_ns for path in target.iterdir()}
    version = root / "run" / "weight_v000002"
    whole = read_index(version)
    frames = {"a.weight": compress(b"\0" * 17)}
    for index, saved, message in [
        ({}, frames, "another tensor"),
        ({"delta_encoding": "sum"}, None, "delta_encoding 'sum'"),
        ({"checksum_format": "blake3"}, None, "no blake3"),
        ({"base_version": "000009"}, None, "version '000009'"),
        ({"version": "000007"}, None, "holds version '000007'"),
    ]:
        work = shutil.copytree(root / "run", root / "work",
                               dirs_exist_ok=True)
        folder = work / version.name
        facts = {"metadata": {**whole["metadata"], **index},
                 "weight_map": whole["weight_map"]}
        if saved:
            save_shard(folder / SHARD, saved,
                       dict.fromkeys(saved, "0" * 32))
            facts["weight_map"] = dict.fromkeys(saved, SHARD)
        write_index(folder, facts)
        goal = index.get("version", 2)
        with pytest.raises(haulway.Error, match=message):
            haulway.delta.apply(target, work, to=goal)
        assert state_of(target) == "000001" and is_clean(target)
        shutil.rmtree(work)
    name, other = "slime-new-tensor", root / "other"
    with pytest.raises(haulway.MismatchError, match="model.extra"):
        haulway.delta.apply(other, GOLDENS / name / "run",
                            base=GOLDENS / name / "base")
    assert state_of(other) == "000000"
    assert {path: path.stat().st_mtime_ns
            for path in target.iterdir() if path.is_file()}.items() <= (
                before.items())
    assert same(haulway.load(target), states[1])


def test_a_target_without_a_version(run_of):
    states, root = run_of()
    target = shutil.copytree(root / "base", root / "target")
    with pytest.raises(haulway.InvalidArgumentError, match="states no version"):
        haulway.delta.apply(target, root / "run", base=root / "base")
    assert state_of(target) is None
    assert same(haulway.load(target), states[0])
    report = haulway.delta.apply(target, root / "run", start=0)
    assert (source_of(report), report.to) == ("000000", "000003")
    assert same(haulway.load(target), states[3])
    with pytest.raises(haulway.InvalidArgumentError,
                       match="holds version '000003', not '000001'"):
        haulway.delta.apply(target, root / "run", start=1)
    with pytest.raises(haulway.InvalidArgumentError, match="newer than"):
        haulway.delta.apply(target, root / "run", to=1)
    with pytest.raises(haulway.NotFoundError, match="version '9' is not here"):
        haulway.delta.apply(target, root / "run", to="9")
    with pytest.raises(haulway.NotFoundError, match="base="):
        haulway.delta.apply(root / "empty", root / "run")
    with pytest.raises(haulway.InvalidArgumentError,
                       match="empty, and does not hold version '000002'.*empty"):
        haulway.delta.apply(root / "empty", root / "run", base=root / "base",
                            start=2)
    with pytest.raises(haulway.UnsupportedError, match="put the file into one"):
        haulway.delta.apply(root / "empty", root / "run", base=next(
            (root / "base").glob("*.safetensors")))
    (target / ".weight_sync" / "state.json").write_text("{}")
    with pytest.raises(haulway.CorruptError, match="states no version"):
        haulway.delta.apply(target, root / "run")


def test_a_wrong_start_is_not_kept(run_of):
    states, root = run_of()
    target = shutil.copytree(root / "base", root / "target")
    with pytest.raises(haulway.MismatchError):
        haulway.delta.apply(target, root / "run", start=1)
    assert state_of(target) is None
    assert same(haulway.load(target), states[0])
    with pytest.raises(haulway.NotFoundError):
        haulway.delta.apply(target, root / "run", start=0, to=9)
    assert haulway.delta.apply(target, root / "run", start=0, to=2).versions == 2
    # What was applied after a right one is kept.
    path = root / "run" / "weight_v000003" / "model-00000-of-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(data)
    target = shutil.copytree(root / "base", root / "second")
    with pytest.raises(haulway.Error):
        haulway.delta.apply(target, root / "run", start=0)
    assert state_of(target) == "000002"


def test_links_are_replaced(run_of):
    states, root = run_of()
    target = root / "target"
    target.mkdir()
    blobs = root / "blobs"
    shutil.copytree(root / "base", blobs)
    before = files_of(blobs)
    for i, path in enumerate(sorted(blobs.iterdir())):
        if i % 2:
            (target / path.name).symlink_to(path)
        else:
            (target / path.name).hardlink_to(path)
    haulway.delta.apply(target, root / "run", start=0)
    assert files_of(blobs) == before
    assert same(haulway.load(target), states[3])
    assert not any(path.is_symlink() for path in target.glob("*.safetensors"))
    assert {path.stat().st_nlink for path in target.glob("*.safetensors")} == {1}


def test_four_at_once(run_of):
    states, root = run_of(count=8, size=100_000)
    target, reports = root / "target", []

    def apply():
        reports.append(haulway.delta.apply(target, root / "run",
                                           base=root / "base"))

    threads = [threading.Thread(target=apply) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.to for report in reports] == 4 * ["000008"]
    assert sum(report.versions for report in reports) == 8
    assert same(haulway.load(target), states[8])


@pytest.fixture(scope="module")
def killing(tmp_path_factory):
    """Returns a library that kills a process at a call that changes files."""
    built = tmp_path_factory.mktemp("kill") / "kill_at.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", built,
                    TESTS / "kill_at.c", "-ldl"], check=True)
    return built


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_a_killed_call_is_ended_by_the_next(run_of, encoding, killing, command):
    """At calls that change files, from the first to the last."""
    states, root = run_of(count=1, encoding=encoding, size=1_000_000)
    start = root / "start"
    haulway.delta.apply(start, root / "run", to=0, base=root / "base")
    theirs = shutil.copytree(root / "base", root / "theirs")
    receive(theirs, root / "run", 1)
    wanted, told = files_of(theirs), root / "calls"

    def apply(target, **environment):
        return subprocess.run(
            [command, "delta", "apply", target, root / "run", "--json",
             "--no-sync", "--threads", "2"],
            env={**os.environ, **environment}, capture_output=True)

    def target_of(name):
        return shutil.copytree(start, root / name)

    apply(target_of("count"), LD_PRELOAD=str(killing), KILL_AT="1000000",
          CALLS_TO=str(told))
    count = int(told.read_text())
    assert count > 15
    seen = set()
    for i in range(15):
        target = target_of(f"target{i}")
        done = apply(target, LD_PRELOAD=str(killing),
                     KILL_AT=str(i * count // 15))
        assert done.returncode == -9
        version = state_of(target)
        seen.add(version)
        if version is None:
            link = root / f"link{i}.safetensors"
            link.symlink_to(target / "model-00001-of-00002.safetensors")
            for path in (target, target / INDEX, link):
                with pytest.raises(haulway.TruncatedError,
                                   match="haulway delta apply"):
                    haulway.load(path)
        else:
            assert same(haulway.load(target), states[int(version)])
        report = json.loads(apply(target).stdout)
        assert report["resumed"] == (version is None)
        assert report["to"] == state_of(target) == "000001"
        assert files_of(target) == wanted and is_clean(target)
        shutil.rmtree(target)
    assert seen >= {"000000", None}


def test_a_killed_refusal_is_ended_by_the_next(run_of, killing, command):
    """The version is undone, even if its folder is no longer there."""
    states, root = run_of(count=1, size=1_000_000)
    wrong_sum(root / "run" / "weight_v000001")
    target = root / "target"
    haulway.delta.apply(target, root / "run", to=0, base=root / "base")
    words = [command, "delta", "apply", target, root / "run", "--no-sync"]
    for at in range(1, 100):
        done = subprocess.run(words, capture_output=True, env={
            **os.environ, "LD_PRELOAD": str(killing), "KILL_AT": str(8 * at)})
        if done.returncode != -9:
            break
        if at % 2:
            continue  # Killed twice in a row.
        run = (root / "run").rename(root / "away")
        subprocess.run(words, capture_output=True)
        run.rename(root / "run")
        assert state_of(target) == "000000" and is_clean(target)
        assert same(haulway.load(target), states[0])
    assert done.returncode == 1 and at > 3
    assert state_of(target) == "000000"
    assert same(haulway.load(target), states[0])


def test_a_killed_full_version_is_ended_by_the_next(run_of, killing, command):
    states, root = run_of(count=1)
    newest = step(states[1], 5)
    save_full(root / "run" / "weight_v000002", newest, 3)
    start = root / "start"
    haulway.delta.apply(start, root / "run", to=1, base=root / "base")
    for at in range(100):
        target = shutil.copytree(start, root / f"target{at}")
        words = [command, "delta", "apply", target, root / "run", "--no-sync"]
        done = subprocess.run(words, capture_output=True, env={
            **os.environ, "LD_PRELOAD": str(killing), "KILL_AT": str(at)})
        if done.returncode == 0:
            break
        version = state_of(target)
        if version is None:
            with pytest.raises(haulway.TruncatedError):
                haulway.load(target)
        else:
            assert same(haulway.load(target),
                        newest if version == "000002" else states[1])
        assert subprocess.run(words, capture_output=True).returncode == 0
        assert same(haulway.load(target), newest) and is_clean(target)
        assert (target / "config.json").exists()
    assert at > 5


def test_after_a_loss_of_power_the_target_is_filled_anew(
        run_of, killing, command):
    states, root = run_of(count=1, size=1_000_000)
    target = root / "target"
    haulway.delta.apply(target, root / "run", to=0, base=root / "base")
    journal = target / ".weight_sync" / "haulway" / "journal"
    words = [command, "delta", "apply", target, root / "run", "--no-sync"]
    for at in range(100):
        subprocess.run(words, capture_output=True, env={
            **os.environ, "LD_PRELOAD": str(killing), "KILL_AT": str(at)})
        if state_of(target) is None:
            break
    head = bytearray(journal.read_bytes())
    head[8:44] = b"another-start-of-the-machine-was-here"[:36]
    journal.write_bytes(head)
    with pytest.raises(haulway.TruncatedError, match="filled anew"):
        haulway.delta.apply(target, root / "run")
    with pytest.raises(haulway.TruncatedError):
        haulway.load(target)
    report = haulway.delta.apply(target, root / "run", base=root / "base")
    assert report.resumed and report.to == "000001" and is_clean(target)
    assert same(haulway.load(target), states[1])


@pytest.mark.parametrize("refused", [False, True])
def test_a_killed_chain_is_ended_by_the_next(run_of, killing, command, refused):
    """Durable, and so with no version stated until the end of the chain."""
    states, root = run_of(count=4)
    if refused:
        wrong_sum(root / "run" / "weight_v000004")
    start = root / "start"
    haulway.delta.apply(start, root / "run", to=0, base=root / "base")
    code, end = (1, 3) if refused else (0, 4)
    seen = set()
    for at in range(1000):
        target = shutil.copytree(start, root / "target")
        words = [command, "delta", "apply", target, root / "run"]
        done = subprocess.run(words, capture_output=True, env={
            **os.environ, "LD_PRELOAD": str(killing), "KILL_AT": str(at)})
        if done.returncode == -9:
            version = state_of(target)
            seen.add(version)
            if version is None:
                with pytest.raises(haulway.TruncatedError, match="interrupted"):
                    haulway.load(target)
            else:
                assert same(haulway.load(target), states[int(version)])
            if at % 2:
                # The run is away: what was begun is ended alone.
                run = (root / "run").rename(root / "away")
                subprocess.run(words, capture_output=True)
                run.rename(root / "run")
                version = state_of(target)
                assert same(haulway.load(target), states[int(version)])
            again = subprocess.run(words, capture_output=True)
            assert again.returncode == code
        assert state_of(target) == f"{end:06}" and is_clean(target)
        assert same(haulway.load(target), states[end])
        shutil.rmtree(target)
        if done.returncode != -9:
            break
    assert done.returncode == code and at > 30
    assert seen == {"000000", None, f"{end:06}"}


def test_a_chain_is_made_durable_once(run_of, watched):
    """The number of syncs does not grow with the number of versions."""
    states, root = run_of(count=12)
    counts = []
    for name, goal in (("first", "2"), ("second", "12")):
        haulway.delta.apply(root / name, root / "run", to=0, base=root / "base")
        code, said, calls = watched(
            "import sys, haulway.delta as delta; "
            "delta.apply(sys.argv[1], sys.argv[2], to=sys.argv[3])",
            root / name, root / "run", goal)
        assert code == 0, said
        synced = [call for call in calls if "sync" in call.split()[0]]
        counts.append(len(synced))
        assert any(".safetensors" in call for call in synced)
    assert counts[0] == counts[1] > 4, counts
    assert same(haulway.load(root / "second"), states[12])


def test_after_a_loss_of_power_between_versions(run_of, killing, command):
    states, root = run_of(count=3)
    target = root / "target"
    held = target / ".weight_sync" / "haulway-version"
    for at in range(400):
        shutil.rmtree(target, ignore_errors=True)
        haulway.delta.apply(target, root / "run", to=0, base=root / "base")
        subprocess.run([command, "delta", "apply", target, root / "run"],
                       capture_output=True, env={
                           **os.environ, "LD_PRELOAD": str(killing),
                           "KILL_AT": str(at)})
        if state_of(target) is None and not (
                target / ".weight_sync" / "haulway").exists():
            break
    assert held.read_text().endswith("\n000001")
    held.write_text("another start of the machine\n000001")
    with pytest.raises(haulway.TruncatedError, match="filled anew"):
        haulway.delta.apply(target, root / "run")
    with pytest.raises(haulway.TruncatedError):
        haulway.load(target)
    report = haulway.delta.apply(target, root / "run", base=root / "base")
    assert report.to == "000003" and is_clean(target)
    assert same(haulway.load(target), states[3])


def test_the_run_itself_is_no_target(run_of, monkeypatch):
    states, root = run_of()
    monkeypatch.chdir(root)
    (root / "link").symlink_to("run")
    before = sorted(os.listdir("run"))
    for target in ("run", "./run/", root / "run", "link", "run/weight_v000002",
                   "run/weight_v000009", "run/updates/v4"):
        with pytest.raises(haulway.InvalidArgumentError,
                           match="the target is .* of the (run|versions)"):
            haulway.delta.apply(target, "run", base="base")
    assert sorted(os.listdir("run")) == before
    assert haulway.delta.verify("run", base="base").ok
    assert haulway.delta.apply("run/local", "run", base="base").to == "000003"


def test_killed_at_any_moment(tmp_path):
    """By the clock, so also between two stores; tools/crashtest_versions.py kills
    more. See also test_a_killed_call_is_ended_by_the_next."""
    counts = KilledApply(tmp_path, 3).kill(16)
    assert counts["kills that left no version"] > 0


def test_ctrl_c_undoes_the_version(run_of, interrupt, monkeypatch):
    states, root = run_of(count=1)
    target = root / "target"
    haulway.delta.apply(target, root / "run", to=0, base=root / "base")
    held = subprocess.Popen([sys.executable, "-c", (
        "import fcntl, sys, time; f = open(sys.argv[1], 'a'); "
        "fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); time.sleep(60)"),
        target / ".weight_sync" / "lock"], stdout=subprocess.PIPE)
    held.stdout.readline()
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        haulway.delta.apply(target, root / "run")
    held.kill()
    held.wait()
    assert state_of(target) == "000000"
    assert haulway.delta.apply(target, root / "run").to == "000001"


def test_the_verb(run_of, command):
    states, root = run_of()
    target = root / "target"
    for goal in ("1", "3"):
        done = subprocess.run(
            [command, "delta", "apply", target, root / "run", "--to", goal,
             "--base", root / "base", "--json"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["to"] == f"00000{goal}"
    assert report.keys() == {"from", "to", "versions", "tensors",
                             "written_bytes", "resumed", "seconds"}
    assert report["from"] == "000001" and report["versions"] == 2
    done = subprocess.run(
        [command, "delta", "apply", root / "base", root / "run", "--from", "0"],
        capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("version 000003: 3 versions applied, ")
    assert same(haulway.load(root / "base"), states[3])


def test_versions_and_base_in_a_bucket(run_of, endpoint, bucket, monkeypatch):
    for name, value in [("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
                        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
                        ("AWS_REGION", "us-east-1"),
                        ("AWS_ENDPOINT_URL_S3", endpoint)]:
        monkeypatch.setenv(name, value)
    states, root = run_of(shards=2)
    for path in [*(root / "run").rglob("*"), *(root / "base").iterdir()]:
        if path.is_file():
            bucket.upload_file(str(path), "bkt", str(path.relative_to(root)))
    target = root / "target"
    report = haulway.delta.apply(target, "s3://bkt/run/", to=2,
                                 base="s3://bkt/base")
    assert (report.to, report.versions) == ("000002", 2)
    assert same(haulway.load(target), states[2])
    assert (target / "config.json").read_text() == "{}"
    assert haulway.delta.apply(target, "s3://bkt/run").to == "000003"
    assert same(haulway.load(target), states[3])
    made = haulway.delta.fold("s3://bkt/run", root / "one", start=0, to=3)
    assert made.base == "000000"
    assert same(haulway.load(root / "one", base=root / "base"), states[3])
