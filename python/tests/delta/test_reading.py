"""Versions of weights, opened as checkpoints by every call and verb."""

import json
import os
import shutil

import pytest
import torch

import haulway
from delta_versions import (
    GOLDENS,
    INDEX,
    chain,
    compress,
    expected_of,
    model,
    read_index,
    same,
    save_delta,
    save_full,
    step,
    write_index,
)

SETS = ["slime-xor-xxh3", "slime-overwrite-adler32", "miles-xor-blake3-full",
        "mx-xor-adler32-full"]


@pytest.fixture
def run_of(tmp_path):
    """Returns (states, folder of the newest version, base)."""
    states = chain(tmp_path)
    return states, tmp_path / "run" / "weight_v000003", tmp_path / "base"


@pytest.mark.parametrize("name", SETS)
def test_golden_versions_are_what_was_published(name):
    for folder, expected in expected_of(name).items():
        if folder == "base":
            continue
        path = GOLDENS / name / "run" / folder
        base = GOLDENS / name / "base"
        assert haulway.manifest(path, base=base) == expected
        loaded = haulway.load(path, base=base)
        assert {one: tuple(t.shape) for one, t in loaded.items()} == {
            one: shape for one, (_, shape, _) in expected.items()}
        assert haulway.verify(path, base=base).ok
        assert haulway.verify(path / INDEX, base=base).ok


@pytest.mark.parametrize("name", SETS)
def test_golden_versions_of_servers(name, nginx, bucket, endpoint, tmp_path,
                                    monkeypatch):
    for key, value in (("AWS_ACCESS_KEY_ID", "AKID"),
                       ("AWS_SECRET_ACCESS_KEY", "s3cret"),
                       ("AWS_REGION", "us-east-1"),
                       ("AWS_ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(key, value)
    shutil.copytree(GOLDENS / name, nginx.root / name)
    for file in (GOLDENS / name).rglob("*"):
        if file.is_file():
            bucket.upload_file(str(file), "bkt", str(file.relative_to(GOLDENS)))
    url = f"http://127.0.0.1:{nginx.port}/{name}"
    *_, (newest, expected) = sorted(expected_of(name).items())
    for root in (url, f"s3://bkt/{name}"):
        base, version = f"{root}/base/", f"{root}/run/{newest}/"
        assert haulway.manifest(version, base=base) == expected
        out = tmp_path / "out.safetensors"
        haulway.convert(version, out, base=base)
        assert haulway.manifest(out) == expected
        assert haulway.diff(version, out, base=base)
        assert haulway.verify(version, base=base).ok


def test_every_call_takes_a_version(run_of, tmp_path):
    states, path, base = run_of
    new = states[-1]
    for way in ({}, {"io": "mmap"}, {"io": "pread"}, {"threads": 1},
                {"verify": True}, {"destination": "shm"}):
        assert same(haulway.load(path, base=base, **way), new), way
    with haulway.open(path, base=base) as opened:
        assert opened.format == "safetensors-delta"
        assert same({name: opened[name] for name in opened}, new)
        part = opened.get_slice("a.weight")[3:7, 1:]
        assert torch.equal(part, new["a.weight"][3:7, 1:])
    assert same(dict(haulway.iterate(path, base=base)), new)
    target = {name: torch.zeros_like(t) for name, t in new.items()}
    haulway.load_into(target, path, base=base)
    assert same(target, new)
    for rank in range(2):
        shard = haulway.shard(path, rank, 2, base=base)
        rows = new["a.weight"].shape[0] // 2
        assert torch.equal(shard["a.weight"],
                           new["a.weight"][rank * rows:(rank + 1) * rows])
    save_full(tmp_path / "new", new)
    assert haulway.diff(path, tmp_path / "new", base=base)
    assert not haulway.diff(path, base, base=base)
    assert haulway.manifest(path, base=base) == haulway.manifest(tmp_path / "new")
    report = haulway.convert(path, tmp_path / "out.safetensors", base=base)
    assert report.tensors == len(new)
    assert same(haulway.load(tmp_path / "out.safetensors"), new)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_a_version_is_published_to_other_processes(run_of, framework, run):
    states, path, base = run_of
    name = f"delta-{os.getpid()}-{framework}"
    new = states[-1]
    if framework == "numpy":
        new = {name: t for name, t in new.items() if name in ("c.scale", "g.step")}
    with haulway.publish_file(name, path, base=base, framework=framework,
                              include=None if framework == "torch" else list(new)):
        found = haulway.subscribe(name, timeout=10).state
        assert same({name: torch.as_tensor(t.copy()) if framework == "numpy" else t
                     for name, t in found.items()}, new)
        # What cannot be decoded leaves the version before.
        (path / "model-00000-of-00001.safetensors").write_bytes(b"")
        with pytest.raises(haulway.Error, match="weight_v000003"):
            haulway.publish_file(name, path, base=base)
        assert haulway.subscribe(name, timeout=10).version == 1


def test_verbs_take_a_version(run_of, run, tmp_path):
    _, path, base = run_of
    at = (path, "--base", base)
    info = json.loads(run("info", *at, "--json").stdout)
    assert info["format"] == "safetensors-delta"
    container = info["container"]
    assert container["version"] == "000003"
    assert container["base"] == "000002"
    assert container["encoding"] == "xor"
    assert container["checksum"] == "xxh3-128"
    assert container["chain"] == [
        str(base / INDEX),
        *(str(path.with_name(f"weight_v{n:06}") / INDEX) for n in (1, 2, 3))]
    listed = json.loads(run("ls", *at, "--json").stdout)
    assert listed["format"] == "safetensors-delta"
    offsets = {one["name"]: one["offset"] for one in listed["tensors"]}
    assert offsets["a.weight"] is None and offsets["f.frozen"] is not None
    run("ls", *at)
    run("cat", *at, "a.weight")
    assert json.loads(run("verify", path / INDEX, "--base", base,
                          "--json").stdout)["ok"]
    run("verify", *at)
    run("manifest", *at)
    run("plan", *at)
    run("load", *at, code=None)
    run("diff", path, path, "--base", base)
    run("convert", path, "out.safetensors", "--base", base)
    run("scan", path)
    assert same(haulway.load(tmp_path / "out.safetensors"), run_of[0][-1])


def test_base_beside_the_versions_is_found(tmp_path):
    states = chain(tmp_path)
    shutil.move(tmp_path / "base", tmp_path / "run" / "weight_v000000")
    assert same(haulway.load(tmp_path / "run" / "weight_v000003"), states[-1])
    # Under another name, its index tells.
    other = tmp_path / "run" / "start"
    shutil.move(tmp_path / "run" / "weight_v000000", other)
    with pytest.raises(haulway.NotFoundError, match=r"'000000'.*option base"):
        haulway.load(tmp_path / "run" / "weight_v000003")
    index = read_index(other)
    index["metadata"]["version"] = "000000"
    write_index(other, index)
    assert same(haulway.load(tmp_path / "run" / "weight_v000003"), states[-1])


def test_relative_paths_find_the_base(tmp_path, monkeypatch):
    states = chain(tmp_path)
    shutil.move(tmp_path / "base", tmp_path / "run" / "weight_v000000")
    folder = tmp_path / "run" / "weight_v000003"
    monkeypatch.chdir(folder)
    assert same(haulway.load("."), states[-1])
    assert same(haulway.load(INDEX), states[-1])
    monkeypatch.chdir(tmp_path / "run")
    assert same(haulway.load("weight_v000003"), states[-1])
    assert same(haulway.load("./weight_v000003/" + INDEX), states[-1])


def test_chain_ends_at_a_full_version(tmp_path):
    states = chain(tmp_path, count=1)
    newer = step(states[-1], 9)
    save_full(tmp_path / "run" / "weight_v000002", newer, 2,
              {"version": "000002"})
    last = step(newer, 10)
    save_delta(tmp_path / "run" / "weight_v000003", newer, last, 3)
    # Nothing before the full version is touched.
    shutil.rmtree(tmp_path / "run" / "weight_v000001")
    shutil.rmtree(tmp_path / "base")
    assert same(haulway.load(tmp_path / "run" / "weight_v000003"), last)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("checksum", ["xxh3-128", "blake3", "adler32"])
def test_encodings_and_checksums(tmp_path, encoding, checksum):
    states = chain(tmp_path, encoding=encoding, checksum=checksum, shards=2)
    path = tmp_path / "run" / "weight_v000003"
    assert same(haulway.load(path, base=tmp_path / "base"), states[-1])


@pytest.mark.parametrize("options", [
    {"level": 19}, {"write_checksum": True}, {"write_content_size": False}])
def test_frames_of_every_kind_are_read(tmp_path, options):
    states = chain(tmp_path, frame=lambda data: compress(data, **options))
    assert same(haulway.load(tmp_path / "run" / "weight_v000003",
                             base=tmp_path / "base"), states[-1])


def test_stray_files_and_keys_are_ignored(tmp_path):
    states = chain(tmp_path)
    path = tmp_path / "run" / "weight_v000003"
    (path / "model-00007-of-00008.safetensors").write_bytes(b"stale")
    index = read_index(path)
    index["metadata"].update(synthetic_seed=7, version=3, base_version=2)
    write_index(path, index)
    assert same(haulway.load(path, base=tmp_path / "base"), states[-1])


def test_a_version_without_changes(tmp_path):
    states = chain(tmp_path, count=1)
    path = save_delta(tmp_path / "run" / "weight_v000002", states[1], states[1], 2)
    assert os.listdir(path) == [INDEX]
    assert same(haulway.load(path, base=tmp_path / "base"), states[1])
    assert haulway.verify(path, base=tmp_path / "base").ok


@pytest.mark.parametrize("to", ["torch", "tensorizer", "npz"])
def test_bases_of_other_formats(tmp_path, to):
    states = [{name: t for name, t in model().items()
               if t.dtype in (torch.float16, torch.float32, torch.int8)}]
    base = tmp_path / f"base.{to}"
    haulway.save(states[0], base, format=to)
    states.append(step(states[0], 1))
    path = save_delta(tmp_path / "weight_v000001", *states, 1)
    assert same(haulway.load(path, base=base), states[1])
    assert haulway.verify(path, base=base).ok


def test_an_encrypted_base(tmp_path):
    before = {"a": torch.randn(1000), "b": torch.randn(10)}
    key = bytes(range(32))
    haulway.save(before, tmp_path / "base.tensors", key=key)
    after = {**before, "a": before["a"] + 1}
    path = save_delta(tmp_path / "weight_v000001", before, after, 1)
    assert same(haulway.load(path, base=tmp_path / "base.tensors", key=key), after)


def test_a_view_in_the_base(tmp_path):
    whole = torch.randn(20, 30)
    before = {"view": whole.t(), "whole": whole}
    torch.save(before, tmp_path / "base.pt")
    after = {**before, "view": (before["view"] + 1).contiguous()}
    path = save_delta(tmp_path / "weight_v000001", before, after, 1)
    assert same(haulway.load(path, base=tmp_path / "base.pt"),
                {name: t.contiguous() for name, t in after.items()})


@pytest.mark.parametrize("missing", [1, 2])
def test_the_base_does_not_stand_for_a_missing_version(tmp_path, missing):
    chain(tmp_path, count=4)
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.rmtree(run / f"weight_v{missing:06}")
    message = f"'{missing:06}', which is missing, and .* does not say"
    for call in (haulway.load, haulway.open):
        with pytest.raises(haulway.MismatchError, match=message):
            call(run / "weight_v000004", base=base)
    report = haulway.delta.verify(run, base=base)
    assert [one.version for one in report.findings] == ["000004"]
    with pytest.raises(haulway.MismatchError, match=message):
        haulway.delta.apply(tmp_path / "target", run, base=base)
    assert not list((tmp_path / "target").glob("*.safetensors"))
    for call in (haulway.delta.publisher, haulway.delta.compact):
        with pytest.raises(haulway.MismatchError, match=message):
            call(*((run,) if call is haulway.delta.publisher else
                   (run, tmp_path / "full")), base=base)
    assert not (tmp_path / "full").exists()


@pytest.mark.parametrize("missing", [1, 2])
def test_a_gap_over_http(nginx, tmp_path, missing):
    root = nginx.root / f"gap{missing}"
    chain(root, count=4)
    shutil.rmtree(root / "run" / f"weight_v{missing:06}")
    url = f"http://127.0.0.1:{nginx.port}/gap{missing}"
    with pytest.raises(haulway.MismatchError, match=f"'{missing:06}', which is"):
        haulway.load(f"{url}/run/weight_v000004/", base=f"{url}/base/")


def test_a_base_that_says_which_version_it_is(tmp_path):
    states = chain(tmp_path, count=4)
    run = tmp_path / "run"
    for number in (1, 2, 3):
        shutil.rmtree(run / f"weight_v{number:06}")
    newest = run / "weight_v000004"
    # By its index, the name of its folder, or as receivers state it.
    bases = [save_full(tmp_path / "stated", states[3],
                       metadata={"version": "000003"}),
             save_full(tmp_path / "x" / "weight_v000003", states[3]),
             save_full(tmp_path / "received", states[3])]
    marker = bases[2] / ".weight_sync" / "state.json"
    marker.parent.mkdir()
    marker.write_text('{"version": "000003"}')
    for i, base in enumerate(bases):
        assert same(haulway.load(newest, base=base), states[4])
        haulway.delta.apply(tmp_path / f"target{i}", run, base=base)
        assert same(haulway.load(tmp_path / f"target{i}"), states[4])
    # A receiver's folder has gone on since, though its index does not say so.
    marker.write_text('{"version": "000002"}')
    write_index(bases[2], {**read_index(bases[2]),
                           "metadata": {"version": "000003"}})
    with pytest.raises(haulway.MismatchError, match="--base is version '000002'"):
        haulway.load(newest, base=bases[2])


def test_verify_says_what_proves_the_base(run_of, tmp_path):
    states, path, base = run_of
    (note,) = haulway.verify(path, base=base).notes
    assert "'000001' builds on version '000000'" in note
    assert "no checksum of their base" in note
    save_full(tmp_path / "run" / "weight_v000000", states[0],
              metadata={"version": "000000"})
    assert haulway.verify(path).notes == []


def test_a_base_that_is_not_there(run_of, tmp_path):
    _, path, _ = run_of
    with pytest.raises(haulway.NotFoundError,
                       match="^cannot open '[^']*/none': [^;]*; of [^;]*weight"):
        haulway.load(path, base=tmp_path / "none")


def test_versions_over_http(nginx, tmp_path):
    root = nginx.root / "deltas"
    states = chain(root)
    url = f"http://127.0.0.1:{nginx.port}/deltas"
    for path in (f"{url}/run/weight_v000003/", f"{url}/run/weight_v000003/{INDEX}"):
        assert same(haulway.load(path, base=root / "base"), states[-1])
        assert same(haulway.load(path, base=f"{url}/base/"), states[-1])
        assert haulway.verify(path, base=root / "base").ok
    with pytest.raises(haulway.NotFoundError, match="option base"):
        haulway.load(f"{url}/run/weight_v000003/")
    with pytest.raises(haulway.UnsupportedError,
                       match="local folder or an s3:// name; of http.*/run"):
        haulway.delta.versions(f"{url}/run")
    shutil.copytree(root / "base", root / "run" / "weight_v000000")
    assert same(haulway.load(f"{url}/run/weight_v000003/"), states[-1])


def test_the_name_of_a_base_does_not_lead_elsewhere(nginx):
    """A server decodes what an index says."""
    root = nginx.root / "elsewhere"
    states = chain(root, count=1)
    save_delta(root / "run" / "b2", *states, "2", "%2f..%2f..%2fbase")
    with pytest.raises(haulway.NotFoundError, match="option base"):
        haulway.load(f"http://127.0.0.1:{nginx.port}/elsewhere/run/b2/")


def test_versions_on_s3(bucket, endpoint, tmp_path, monkeypatch):
    for name, value in (("AWS_ACCESS_KEY_ID", "AKID"),
                        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
                        ("AWS_REGION", "us-east-1"),
                        ("AWS_ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(name, value)
    states = chain(tmp_path)
    for file in sorted((tmp_path / "run").rglob("*")):
        if file.is_file():
            bucket.upload_file(str(file), "bkt", str(file.relative_to(tmp_path)))
    path = "s3://bkt/run/weight_v000003/"
    base = tmp_path / "base"
    assert same(haulway.load(path, base=base), states[-1])
    for version in haulway.delta.versions("s3://bkt/run"):
        assert not version.path.endswith("/")
        assert same(haulway.load(version.path, base=base), states[version.number])
    for name in ("s3://bkt/run/weight_v000009", "s3://bkt/run/updates"):
        with pytest.raises(haulway.NotFoundError, match=f"{name[-9:]}$"):
            haulway.load(name, base=base)
    assert same(haulway.load(path + INDEX, base=base), states[-1])
    with pytest.raises(haulway.NotFoundError, match="option base"):
        haulway.load(path)
    index = read_index(base)
    index["metadata"]["version"] = "000000"
    write_index(base, index)
    for file in base.iterdir():
        bucket.upload_file(str(file), "bkt", f"run/start/{file.name}")
    assert same(haulway.load(path), states[-1])


def test_one_tensor_reads_its_own_bytes_only(tmp_path):
    states = [model()]
    states[0]["big"] = torch.randn(300_000)
    save_full(tmp_path / "base", states[0])
    for version in range(1, 26):
        states.append(step(states[-1], version))
        save_delta(tmp_path / "run" / f"weight_v{version:06}", *states[-2:],
                   version)
    path = tmp_path / "run" / "weight_v000025"
    stats = {}
    part = haulway.load(path, base=tmp_path / "base", include="a.weight",
                        stats=stats)
    assert same(part, {"a.weight": states[-1]["a.weight"]})
    assert stats["read_bytes"] < 60_000
    assert same(haulway.load(path, base=tmp_path / "base"), states[-1])
