"""haulway.delta.publisher, judged by the receivers of others."""

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zlib

import numpy as np
import pytest
import torch
import zstandard

import haulway
import haulway.delta
from delta_versions import (
    INDEX,
    bytes_of,
    model,
    read_index,
    receive,
    same,
    save_delta,
    save_full,
    step,
)
from haulway._writing.versions import _batches

ENCODINGS = ["xor", "overwrite"]
CHECKSUMS = ["xxh3-128", "blake3", "adler32"]


@pytest.fixture
def base(tmp_path):
    """Returns a base checkpoint's state; it lies in tmp_path/base."""
    state = model(size=40_000)
    save_full(tmp_path / "base", state, shards=2)
    (tmp_path / "base" / "config.json").write_text('{"hidden": 40}')
    return state


def states_from(state, count, seed=1):
    states = [state]
    for i in range(count):
        states.append(step(states[-1], seed + i, 0.02))
    return states


def hidden(folder):
    return [name for name in os.listdir(folder)
            if name.startswith(".") and name.endswith("haulway-tmp")]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("checksum", CHECKSUMS)
@pytest.mark.parametrize("shard", [None, 500])
def test_receivers_apply_what_is_published(tmp_path, base, encoding, checksum,
                                           shard):
    run = tmp_path / "run"
    states = states_from(base, 3)
    states.append(states[-1])  # A version without a change.
    with haulway.delta.publisher(run, tmp_path / "base", encoding=encoding,
                                 checksum=checksum, shard=shard) as publisher:
        assert publisher.version == 0
        for number, state in enumerate(states[1:], 1):
            made = publisher.publish(state)
            assert publisher.version == made.number == number
            assert made.complete and made.kind == "delta"
            (listed,) = [one for one in haulway.delta.versions(run)
                         if one.number == number]
            assert vars(listed) == vars(made)
    assert made.tensors == 0
    assert sorted(os.listdir(run / "weight_v000004")) == [INDEX]
    local = shutil.copytree(tmp_path / "base", tmp_path / "local")
    for number, state in enumerate(states[1:], 1):
        receive(local, run, number)
        assert same(haulway.load(local), state)
    assert haulway.delta.verify(run, base=tmp_path / "base").ok
    assert hidden(run) == []


def test_files_are_those_that_write_makes(tmp_path, base):
    states = states_from(base, 1)
    save_full(tmp_path / "full1", states[1])
    with haulway.delta.publisher(tmp_path / "run", tmp_path / "base") as one:
        one.publish({name: states[1][name] for name in sorted(states[1])})
    haulway.delta.write(tmp_path / "base", tmp_path / "full1",
                        tmp_path / "other" / "weight_v000001", version=1,
                        base_version=0)
    ours, theirs = (tmp_path / run / "weight_v000001" for run in ("run", "other"))
    assert sorted(os.listdir(ours)) == sorted(os.listdir(theirs))
    assert read_index(ours) == read_index(theirs)
    shards = [haulway.open(folder / "model-00000-of-00001.safetensors",
                           alone=True) for folder in (ours, theirs)]
    assert shards[0].metadata == shards[1].metadata
    assert same(dict(shards[0]), dict(shards[1]))


def test_the_copy_is_its_own(tmp_path, base):
    # The caller changes its tensors in place, as optimizers do.
    state = {name: tensor.clone() for name, tensor in base.items()}
    with haulway.delta.publisher(tmp_path / "run", state) as publisher:
        for number in (1, 2, 3):
            state["c.scale"] += 1
            state["g.step"] += 1
            made = publisher.publish(state)
            assert made.tensors == 2
            found = haulway.load(made.path, base=tmp_path / "base")
            assert torch.equal(found["c.scale"], base["c.scale"] + number) or (
                same(found, state))
            assert same(found, state)


def test_numpy_and_tensors_that_are_not_dense(tmp_path):
    array = np.arange(60_000, dtype="f4").reshape(200, 300)
    state = {"n": array.T, "half": array[::2].astype("f2"), "big": array[0, ::2],
             "bool": array > 3, "swapped": array[:2].astype(">f4"),
             "scalar": np.float64(3), "empty": np.zeros((0, 2), "i8")}
    state = {name: np.asarray(value) for name, value in state.items()}
    tensors = {"t": torch.arange(6000).reshape(60, 100).t(),
               "x": torch.arange(50.)[::5]}
    with haulway.delta.publisher(tmp_path / "run", {**state, **tensors}) as one:
        full = one.publish({**state, **tensors}, full=True)
        assert full.kind == "full"
        state["n"] = state["n"] + (np.arange(200) == 7)
        state["scalar"] = np.asarray(4.0)
        tensors["t"] = (tensors["t"].t() + 1).t()
        tensors["x"] = torch.arange(50.).flip(0)[4::5].flip(0) * 2
        made = one.publish({**state, **tensors})
    assert made.tensors == 4
    found = haulway.load(made.path, "numpy")
    for name, value in {**state, **tensors}.items():
        expected = np.asarray(value)
        assert found[name].dtype == expected.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found[name], expected)


def test_full_versions(tmp_path, base):
    run = tmp_path / "run"
    states = states_from(base, 5)
    with haulway.delta.publisher(run, tmp_path / "base", full_every=2,
                                 shard="60KB") as publisher:
        made = [publisher.publish(state) for state in states[1:]]
    assert [one.kind for one in made] == ["delta", "full"] * 2 + ["delta"]
    folder = run / "weight_v000002"
    index = read_index(folder)
    total = sum(t.numel() * t.element_size() for t in base.values())
    assert index["metadata"] == {"version": "000002", "total_size": total}
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 1 and [path.name for path in shards] == [
        f"model-{i:05}-of-{len(shards):05}.safetensors"
        for i in range(1, len(shards) + 1)]
    for path in shards:
        assert haulway.open(path).metadata == {"format": "pt"}
        assert path.stat().st_size < 110_000
    # A receiver replaces all files by those of a full version.
    assert (folder / "config.json").read_text() == '{"hidden": 40}'
    local = shutil.copytree(tmp_path / "base", tmp_path / "local")
    shutil.rmtree(tmp_path / "base")
    assert same(haulway.load(folder), states[2])
    assert same(haulway.load(made[4].path), states[5])
    assert haulway.delta.verify(run).unchecked == ["000001"]
    for number, state in enumerate(states[1:], 1):
        receive(local, run, number)
        assert same(haulway.load(local), state)
    assert (local / "config.json").read_text() == '{"hidden": 40}'


def test_a_full_version_may_have_other_tensors(tmp_path, base):
    run = tmp_path / "run"
    state = {**base, "new": torch.ones(5), "c.scale": torch.ones(3, 4),
             "g.step": torch.tensor(1.5)}
    del state["f.frozen"]
    with haulway.delta.publisher(run, tmp_path / "base") as publisher:
        made = publisher.publish(state, full=True)
        assert made.kind == "full" and made.tensors == len(state)
        after = {**state, "new": torch.zeros(5)}
        made = publisher.publish(after)
        assert (made.kind, made.tensors, made.base) == ("delta", 1, "000001")
        assert same(haulway.load(made.path), after)
        with pytest.raises(haulway.MismatchError, match="'f.frozen' is new"):
            publisher.publish({**after, "f.frozen": torch.ones(1)})
    with haulway.delta.publisher(run, tmp_path / "none") as publisher:
        assert publisher.publish(after).tensors == 0


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_refusals_write_nothing_and_it_goes_on(tmp_path, base, encoding):
    run = tmp_path / "run"
    states = states_from(base, 3)
    publisher = haulway.delta.publisher(run, tmp_path / "base", encoding=encoding)
    publisher.publish(states[1])
    wrong = {
        "'new' is new": {**states[3], "new": torch.zeros(3)},
        "'a.weight' is missing": {name: tensor for name, tensor in
                                  states[3].items() if name != "a.weight"},
        "'a.weight' has another dtype .expected BF16, found F16":
            {**states[3], "a.weight": states[3]["a.weight"].half()},
        "'b.weight' has another shape":
            {**states[3], "b.weight": states[3]["b.weight"].reshape(-1)},
        "'g.step' has another shape":
            {**states[3], "g.step": states[3]["g.step"].reshape(1)},
    }
    before = sorted(os.listdir(run))
    for message, state in wrong.items():
        with pytest.raises(haulway.MismatchError, match=message):
            publisher.publish(state)
    sparse = torch.eye(3).to_sparse()
    for state, kind in (({**states[3], "a.weight": 3}, TypeError),
                        ({**states[3], 7: torch.ones(1)}, TypeError),
                        ([1], TypeError),
                        ({**states[3], "c.scale": sparse},
                         haulway.UnsupportedError)):
        with pytest.raises(kind):
            publisher.publish(state)
    # The folder of the next version is taken.
    (run / "weight_v000002").mkdir()
    with pytest.raises(haulway.InvalidArgumentError, match="exists"):
        publisher.publish(states[3])
    (run / "weight_v000002").rmdir()
    assert sorted(os.listdir(run)) == before and publisher.version == 1
    made = publisher.publish(states[2])
    assert made.number == 2
    assert same(haulway.load(made.path, base=tmp_path / "base"), states[2])
    publisher.close()
    with pytest.raises(haulway.InvalidArgumentError, match="closed"):
        publisher.publish(states[2])


def test_spooled_frames_and_a_full_disk(tmp_path, base, monkeypatch):
    # No memory is left for the spool's file: frames of random tensors do not
    # fit the memory of the spool.
    state = {"w": torch.randint(0, 255, (80 << 20,), dtype=torch.uint8),
             "v": torch.zeros(100)}
    publisher = haulway.delta.publisher(tmp_path / "run", state,
                                        durability="none")
    other = {"w": torch.randint(0, 255, (80 << 20,), dtype=torch.uint8),
             "v": torch.ones(100)}
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(haulway.NotFoundError):
        publisher.publish(other)
    monkeypatch.delenv("TMPDIR")
    assert publisher.publish(state).tensors == 0
    made = publisher.publish(other)
    assert made.tensors == 2
    save_full(tmp_path / "base2", state)
    assert same(haulway.load(made.path, base=tmp_path / "base2"), other)


def test_it_goes_on_after_the_newest_whole_version(tmp_path, base):
    run = tmp_path / "run"
    states = states_from(base, 4)
    with haulway.delta.publisher(run, tmp_path / "base") as publisher:
        publisher.publish(states[1])
    # Others' versions count, too.
    save_delta(run / "weight_v000002", states[1], states[2], 2)
    with haulway.delta.publisher(run, tmp_path / "base",
                                 encoding="overwrite") as publisher:
        assert publisher.version == 2
        made = publisher.publish(states[3])
        assert (made.id, made.base) == ("000003", "000002")
    assert same(haulway.load(made.path, base=tmp_path / "base"), states[3])
    with pytest.raises(haulway.InvalidArgumentError, match="layout"):
        haulway.delta.publisher(run, tmp_path / "base", layout="v")
    (run / "weight_v000004").mkdir()
    (run / "weight_v000004" / "model-00000-of-00001.safetensors").write_bytes(b"")
    with pytest.raises(haulway.InvalidArgumentError, match="not complete"):
        haulway.delta.publisher(run, tmp_path / "base")
    shutil.rmtree(run / "weight_v000004")
    with pytest.raises(haulway.NotFoundError, match="base"):
        haulway.delta.publisher(run, {"w": torch.ones(1)})


def test_one_publisher_a_folder(tmp_path, base):
    run = tmp_path / "run"
    first = haulway.delta.publisher(run, tmp_path / "base")
    with pytest.raises(haulway.UnavailableError, match="another publisher"):
        haulway.delta.publisher(run, tmp_path / "base")
    # A forked child does not have the folder.
    child = os.fork()
    if child == 0:
        try:
            first.publish(base)
        except haulway.InvalidArgumentError:
            time.sleep(30)
        os._exit(1)
    first.close()
    del first
    gc.collect()
    time.sleep(0.2)
    with haulway.delta.publisher(run, tmp_path / "base") as second:
        assert second.publish(base).number == 1
    os.kill(child, 9)
    os.waitpid(child, 0)


def test_a_run_that_was_removed(tmp_path, base):
    """Nobody could read a version that builds on those that are gone. slime
    removes the folder when it starts."""
    run = tmp_path / "run"
    states = states_from(base, 2)
    with haulway.delta.publisher(run, tmp_path / "base") as publisher:
        publisher.publish(states[1])
        shutil.rmtree(run)
        with haulway.delta.publisher(run, tmp_path / "base") as other:
            with pytest.raises(haulway.NotFoundError, match="was removed.*run"):
                publisher.publish(states[2])
            made = other.publish(states[2])
    assert made.number == 1
    assert same(haulway.load(made.path, base=tmp_path / "base"), states[2])


def receive_as_modelexpress(local, folder, version, base):
    """Applies a delta as ModelExpress does, as its code was read: the index
    decides what is read, and every text is compared as it is."""
    index = read_index(folder)
    facts = {"version": version, "base_version": base, "delta_encoding": "xor",
             "checksum_format": "adler32", "compression_format": "zstd"}
    assert index["metadata"] == facts
    for name, file in index["weight_map"].items():
        assert os.path.basename(file) == file and file.endswith(".safetensors")
        with haulway.open(folder / file, "numpy", alone=True) as shard:
            reader = zstandard.ZstdDecompressor().stream_reader(
                shard[name].tobytes())
            expected = shard.metadata[name]
        old = np.frombuffer(bytes_of(local[name]), np.uint8)
        mask = np.frombuffer(reader.read(old.size), np.uint8)
        assert mask.size == old.size and reader.read(1) == b""
        new = old ^ mask
        assert f"{zlib.adler32(new):08x}" == expected
        tensor = torch.from_numpy(new.copy()).view(local[name].dtype)
        local[name] = tensor.reshape(local[name].shape)


def test_names_for_modelexpress(tmp_path, base):
    states = states_from(base, 2)
    with haulway.delta.publisher(tmp_path / "run", tmp_path / "base", layout="v",
                                 checksum="adler32", shard=500) as publisher:
        made = [publisher.publish(state) for state in states[1:]]
    assert [(one.id, one.base) for one in made] == [("v1", "v0"), ("v2", "v1")]
    local = dict(base)
    for one, state in zip(made, states[1:]):
        receive_as_modelexpress(local, tmp_path / "run" / one.id, one.id, one.base)
        assert same(local, state)
    assert sorted(name for name in os.listdir(tmp_path / "run")
                  if not name.startswith(".")) == ["v1", "v2"]
    assert same(haulway.load(made[1].path, base=tmp_path / "base"), states[2])


def test_keep(tmp_path, base):
    run = tmp_path / "run"
    states = states_from(base, 7)
    with haulway.delta.publisher(run, tmp_path / "base", full_every=3,
                                 keep=2) as publisher:
        for number, state in enumerate(states[1:], 1):
            made = publisher.publish(state)
            if number == 4:
                assert [one.number for one in haulway.delta.versions(run)] == [
                    3, 4]
    assert [one.number for one in haulway.delta.versions(run)] == [6, 7]
    assert same(haulway.load(made.path), states[7])
    assert hidden(run) == []


def test_to_a_bucket(bucket, endpoint, tmp_path, base, monkeypatch):
    for name, value in (("AWS_ACCESS_KEY_ID", "AKID"),
                        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
                        ("AWS_REGION", "us-east-1"),
                        ("AWS_ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(name, value)

    def keys():
        listed = bucket.list_objects_v2(Bucket="bkt").get("Contents", [])
        return [one["Key"] for one in listed]

    states = states_from(base, 3)
    with haulway.delta.publisher("s3://bkt/run/", tmp_path / "base",
                                 full_every=2, keep=1) as publisher:
        made = publisher.publish(states[1])
        assert keys() == [f"run/weight_v000001/{name}" for name in (
            "model-00000-of-00001.safetensors", INDEX)]
        assert same(haulway.load(made.path, base=tmp_path / "base"),
                    states[1])
        made = publisher.publish(states[2])
        assert all(key.startswith("run/weight_v000002/") for key in keys())
    # A killed publisher leaves shards without an index.
    bucket.put_object(Bucket="bkt", Key="run/weight_v000003/model-00000-of-00002"
                      ".safetensors", Body=b"x")
    with haulway.delta.publisher("s3://bkt/run", tmp_path / "base") as publisher:
        assert not any("weight_v000003" in key for key in keys())
        with pytest.raises(haulway.MismatchError):
            publisher.publish({**states[3], "new": torch.ones(1)})
        assert not any("weight_v000003" in key for key in keys())
        made = publisher.publish(states[3])
    assert same(haulway.load(made.path), states[3])
    with pytest.raises(haulway.UnsupportedError):
        haulway.delta.publisher("http://127.0.0.1:1/run", tmp_path / "base")


@pytest.fixture
def store(endpoint, monkeypatch):
    for name, value in (("AWS_ACCESS_KEY_ID", "AKID"),
                        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
                        ("AWS_REGION", "us-east-1"),
                        ("AWS_ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(name, value)


class Steps:
    """A publisher that takes its steps one at a time."""

    def __init__(self, base):
        self.publisher = haulway.delta.publisher("s3://bkt/run", base)
        self.core = self.publisher._core

    def shards(self, state, full):
        self.core.begin(full)
        for rows in _batches(state, 1 << 30):
            self.core.add(iter(rows))
        self.added = self.core.added()
        self.core.enter_folder(None)
        self.written = self.core.write_shards(0, self.core.shards)

    def index(self):
        made = self.core.commit(*self.written)
        self.core.accept(self.added)
        return made

    def close(self):
        self.core.discard()
        self.publisher.close()


ORDERS = {
    # Both opened the run before either published.
    "index first": ("open a", "open b", "shards a", "index a", "shards b"),
    "shards first": ("open a", "open b", "shards a", "shards b", "index a"),
    # The second one takes the shards of the first for those of a killed one.
    "cleared": ("open a", "shards a", "open b", "index a", "shards b", "index b"),
    "replaced": ("open a", "shards a", "open b", "shards b", "index a", "index b"),
    "replaced late": ("open a", "shards a", "open b", "shards b", "index b",
                      "index a"),
}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_two_publishers_of_a_bucket(bucket, store, tmp_path, base, order, full):
    publishers, states, made, refused = {}, {}, [], []
    for i, name in enumerate("ab"):
        states[name] = step(base, 10 + i)
    for one in ORDERS[order]:
        what, name = one.split()
        if name in refused:
            continue
        try:
            if what == "open":
                publishers[name] = Steps(tmp_path / "base")
            elif what == "shards":
                publishers[name].shards(states[name], full)
            else:
                made.append((name, publishers[name].index()))
        except haulway.UnavailableError as error:
            assert "another" in str(error)
            refused.append(name)
            publishers[name].core.discard()
    assert len(refused) == len(made) == 1
    for one in publishers.values():
        one.close()
    (name, version), = made
    assert same(haulway.load(version["path"], base=tmp_path / "base"),
                states[name])
    keys = bucket.list_objects_v2(Bucket="bkt").get("Contents", [])
    # The version of the one that made it, and nothing else: a full one has a
    # configuration, too.
    assert len(keys) == (3 if full else 2) * len(made)
    with haulway.delta.publisher("s3://bkt/run", tmp_path / "base") as publisher:
        assert publisher.version == len(made)
        again = publisher.publish(step(base, 30))
        assert same(haulway.load(again.path, base=tmp_path / "base"),
                    step(base, 30))


def test_processes_of_a_group_share_a_version(bucket, store, tmp_path, base):
    """What a process that does not lead wrote stays."""
    options = {"encoding": "xor", "checksum": "xxh3-128", "shard": 0,
               "full_every": 0, "keep": 0, "layout": "weight_v", "threads": 1,
               "is_fast": True, "remote": {}}
    state = step(base, 3)
    parts = [{name: tensor for i, (name, tensor) in enumerate(state.items())
              if i % 2 == rank} for rank in range(2)]
    with haulway.delta.publisher("s3://bkt/run", tmp_path / "base") as publisher:
        leader = publisher._core
        other = type(leader).open("s3://bkt/run", str(tmp_path / "base"),
                                  options, False)
        cores = [leader, other]
        for core, part in zip(cores, parts):
            core.begin(False)
            for rows in _batches(part, 1 << 30):
                core.add(iter(rows))
        merged = [one for core in cores for one in core.added()]
        counts = [core.shards for core in cores]
        other.enter_folder(leader.enter_folder(None))
        written = [core.write_shards(sum(counts[:rank]), sum(counts))
                   for rank, core in enumerate(cores)]
        made = leader.commit([pair for one in written for pair in one[0]],
                             sum(one[1] for one in written),
                             sum(one[2] for one in written))
        for core in cores:
            core.accept(merged)
            core.discard()
        other.close()
    assert same(haulway.load(made["path"], base=tmp_path / "base"), state)


def test_two_publishers_at_once(bucket, store, tmp_path, base):
    """Each of many rounds has one winner at most, and its weights are there."""
    states = [base]
    meet = threading.Barrier(2)

    def publish(state, made):
        with haulway.delta.publisher("s3://bkt/run",
                                     tmp_path / "base") as publisher:
            meet.wait()
            try:
                publisher.publish(state)
                made.append(state)
            except haulway.UnavailableError:
                pass

    for turn in range(6):
        made = []
        threads = [threading.Thread(target=publish, args=(
            step(states[-1], 100 + 2 * turn + i), made)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) <= 1
        states += made
    states.append(step(states[-1], 200))
    with haulway.delta.publisher("s3://bkt/run", tmp_path / "base") as publisher:
        publisher.publish(states[-1])
    newest = haulway.delta.versions("s3://bkt/run")
    assert [one.number for one in newest] == list(range(1, len(states)))
    assert same(haulway.load(newest[-1].path, base=tmp_path / "base"), states[-1])


def test_peak_memory(tmp_path):
    # The kept copy, and little besides: not the frames, nor a second copy.
    program = """
import sys, numpy as np, haulway, haulway.delta
rng = np.random.default_rng(0)
state = {f"l{i}": rng.integers(0, 65535, 32 << 20, "u2") for i in range(4)}
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if "VmHWM" in line)
publisher = haulway.delta.publisher(sys.argv[1], state, threads=2,
                                    durability="none")
before = peak()
for value in state.values():
    value[rng.integers(0, value.size, value.size // 50)] ^= 1
drawn = peak()
publisher.publish(state)
publisher.publish(state, full=True)
print(max(0, peak() - max(before, drawn)) // 1024)
"""
    grown = int(subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run")],
        check=True, capture_output=True, text=True).stdout)
    assert grown < 100, f"{grown} MiB"


def test_arguments(tmp_path, base):
    for wrong in ({"encoding": "add"}, {"checksum": "md5"}, {"layout": "w"},
                  {"durability": "no"}, {"shard": 0}, {"full_every": 0},
                  {"keep": 0}):
        with pytest.raises(haulway.InvalidArgumentError):
            haulway.delta.publisher(tmp_path / "run", tmp_path / "base", **wrong)
    for wrong in ({"group": 3}, {"keep": "x"}, {"no_such": 1}):
        with pytest.raises(TypeError):
            haulway.delta.publisher(tmp_path / "run", tmp_path / "base", **wrong)
    assert not (tmp_path / "run").exists()
    with pytest.raises(haulway.NotFoundError):
        haulway.delta.publisher(tmp_path / "run", tmp_path / "nothing")
    with haulway.delta.publisher(tmp_path / "run", tmp_path / "base") as one:
        assert "version 0" in repr(one)
        with pytest.raises(TypeError):
            one.publish(base, full=1)
    assert "closed" in repr(one)


def test_threads_take_turns(tmp_path, base):
    states = states_from(base, 8)
    with haulway.delta.publisher(tmp_path / "run", tmp_path / "base") as one:
        threads = [threading.Thread(target=one.publish, args=(state,))
                   for state in states[1:]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert one.version == 8
    assert haulway.delta.verify(tmp_path / "run", base=tmp_path / "base").ok
    assert json.dumps(read_index(tmp_path / "run" / "weight_v000008"))
