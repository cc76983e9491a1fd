"""haulway.delta.fold and compact, and their verbs."""

import json
import shutil
import subprocess

import pytest

import haulway
import haulway.delta
from delta_versions import (
    GOLDENS,
    INDEX,
    SUMS,
    chain,
    digests,
    expected_of,
    read_index,
    receive,
    same,
    save_delta,
    save_full,
    step,
)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("checksum", SUMS)
def test_folded_deltas_make_the_same_version(tmp_path, encoding, checksum):
    states = chain(tmp_path, count=4, encoding=encoding, checksum=checksum,
                   shards=2)
    folded = tmp_path / "folded" / "weight_v000004"
    made = haulway.delta.fold(tmp_path / "run", folded, start=0, to=4)
    assert (made.id, made.base, made.kind) == ("000004", "000000", "delta")
    assert (made.encoding, made.checksum) == (encoding, checksum)
    (listed,) = haulway.delta.versions(folded.parent)
    assert vars(listed) == vars(made)
    assert same(haulway.load(folded, base=tmp_path / "base"), states[4])
    report = haulway.delta.verify(folded.parent, base=tmp_path / "base")
    assert report.ok and report.checked_bytes > 0
    # SGLang's receiver, at the version before, takes it for the next one.
    index = read_index(folded)
    assert index["metadata"].keys() == read_index(
        tmp_path / "run" / "weight_v000004")["metadata"].keys()
    renamed = shutil.copytree(folded, tmp_path / "renamed" / "weight_v000001")
    index["metadata"]["version"] = "000001"
    (renamed / INDEX).write_text(json.dumps(index))
    local = shutil.copytree(tmp_path / "base", tmp_path / "local")
    receive(local, tmp_path / "renamed", 1)
    assert same(haulway.load(local), states[4])


def test_a_part_of_a_chain_is_folded(tmp_path):
    states = chain(tmp_path, count=5)
    folded = tmp_path / "folded" / "weight_v000004"
    made = haulway.delta.fold(tmp_path / "run", folded, start="000002", to=4)
    assert made.base == "000002"
    for number in (1, 2):
        name = f"weight_v{number:06}"
        shutil.copytree(tmp_path / "run" / name, folded.parent / name)
    assert same(haulway.load(folded, base=tmp_path / "base"), states[4])


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_what_changed_back_is_not_listed(tmp_path, encoding):
    states = chain(tmp_path, count=1, encoding=encoding)
    states.append({**states[1], "d.codes": states[0]["d.codes"]})
    save_delta(tmp_path / "run" / "weight_v000002", *states[1:], 2,
               encoding=encoding)
    folded = tmp_path / "folded" / "weight_v000002"
    haulway.delta.fold(tmp_path / "run", folded, start=0, to=2)
    assert same(haulway.load(folded, base=tmp_path / "base"), states[2])
    listed = "d.codes" in read_index(folded)["weight_map"]
    assert listed == (encoding == "overwrite")  # Needs the old bytes to know.


def test_what_cannot_be_folded(tmp_path):
    states = chain(tmp_path, count=2)
    run, out = tmp_path / "run", tmp_path / "out"
    states.append(step(states[-1], 5))
    save_delta(run / "weight_v000003", *states[-2:], 3, checksum="blake3")
    with pytest.raises(haulway.UnsupportedError, match="'000003' has others"):
        haulway.delta.fold(run, out, start=0, to=3)
    save_full(run / "weight_v000004", states[-1], metadata={"version": "000004"})
    states.append(step(states[-1], 6))
    save_delta(run / "weight_v000005", *states[-2:], 5)
    with pytest.raises(haulway.UnsupportedError, match="'000004' is a full"):
        haulway.delta.fold(run, out, start=3, to=5)
    with pytest.raises(haulway.NotFoundError, match="version '000009'"):
        haulway.delta.fold(run, out, start=0, to=9)
    with pytest.raises(haulway.InvalidArgumentError, match="is the start"):
        haulway.delta.fold(run, out, start=2, to=2)
    assert not out.exists()
    out.mkdir()
    with pytest.raises(haulway.InvalidArgumentError, match="exists"):
        haulway.delta.fold(run, out, start=0, to=2)


@pytest.mark.parametrize("name", ["slime-xor-xxh3", "miles-xor-blake3-full",
                                  "mx-xor-adler32-full"])
def test_a_version_is_compacted(tmp_path, name):
    expected = expected_of(name)
    folder = sorted(expected.keys() - {"base"})[-1]
    out = tmp_path / "full"
    made = haulway.delta.compact(GOLDENS / name / "run", out,
                                 base=GOLDENS / name / "base", shard=4000)
    assert made.kind == "full" and made.base is None and made.complete
    index = read_index(out)
    assert index["metadata"].keys() == {"total_size", "version"}
    assert index["metadata"]["version"] == made.id
    assert len(set(index["weight_map"].values())) > 1
    state = haulway.load(out)
    assert digests(state) == {
        tensor: sha for tensor, (_, _, sha) in expected[folder].items()}
    assert index["metadata"]["total_size"] == sum(
        t.numel() * t.element_size() for t in state.values())


def test_a_compacted_version_replaces_what_was_before(tmp_path):
    states = chain(tmp_path)
    run = tmp_path / "run"
    made = haulway.delta.compact(run, tmp_path / "full", version=2,
                                 base=tmp_path / "base")
    assert made.id == "000002"
    for number in (1, 2):
        shutil.rmtree(run / f"weight_v{number:06}")
    (tmp_path / "full").rename(run / "weight_v000002")
    assert same(haulway.load(run / "weight_v000003"), states[3])
    target = tmp_path / "target"
    assert haulway.delta.apply(target, run).versions == 2
    assert same(haulway.load(target), states[3])


@pytest.mark.parametrize("join", ["fold", "compact"])
def test_a_folder_of_another_number(tmp_path, join):
    chain(tmp_path, count=3)
    options = {"start": 0, "to": 2} if join == "fold" else {
        "version": 2, "base": tmp_path / "base"}
    for name in ("weight_v000007", "weight_v000003/"):
        with pytest.raises(haulway.InvalidArgumentError,
                           match="folder 'weight_v.*' holds version '000002'"):
            getattr(haulway.delta, join)(
                tmp_path / "run", f"{tmp_path}/out/{name}", **options)
    assert not (tmp_path / "out").exists()
    for name in ("weight_v000002", "any"):
        getattr(haulway.delta, join)(tmp_path / "run", tmp_path / "out" / name,
                                     **options)


def test_the_verbs(tmp_path, command):
    states = chain(tmp_path)

    def run(*words):
        done = subprocess.run([command, "delta", *words, "--json"],
                              capture_output=True, text=True)
        return done.returncode, json.loads(done.stdout)

    code, made = run("fold", tmp_path / "run", tmp_path / "one", "--from", "0",
                     "--to", "3")
    assert (code, made["id"], made["base"]) == (0, "000003", "000000")
    assert same(haulway.load(tmp_path / "one", base=tmp_path / "base"),
                states[3])
    code, made = run("compact", tmp_path / "run", tmp_path / "full",
                     "--version", "2", "--base", tmp_path / "base")
    assert (code, made["kind"], made["id"]) == (0, "full", "000002")
    assert same(haulway.load(tmp_path / "full"), states[2])
    done = subprocess.run([command, "delta", "fold", "run", "out"],
                          capture_output=True, text=True)
    assert done.returncode == 4 and "--from and --to" in done.stderr
