"""haulway.delta.write and the verb, judged by the receivers of others."""

import json
import os
import shutil

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
    save_full,
    step,
)

ENCODINGS = ["xor", "overwrite"]
CHECKSUMS = ["xxh3-128", "blake3", "adler32"]


@pytest.fixture
def folders(tmp_path):
    """Returns three states, and the folders of the first and the last."""
    states = [model(size=40_000)]
    states.append(step(states[-1], 1, 0.02))
    states.append(step(states[-1], 2, 0.02))
    for i, state in enumerate(states):
        save_full(tmp_path / f"full{i}", state, shards=2)
    return states, tmp_path


def write(root, number, run="run", **options):
    return haulway.delta.write(
        root / f"full{number - 1}", root / f"full{number}",
        root / run / f"weight_v{number:06}", version=number,
        base_version=number - 1, **options)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("checksum", CHECKSUMS)
@pytest.mark.parametrize("shard", [None, 500])
def test_receivers_apply_what_is_written(folders, encoding, checksum, shard):
    states, root = folders
    for number in (1, 2):
        made = write(root, number, encoding=encoding, checksum=checksum,
                     shard=shard)
        assert made.complete and made.tensors == 6
        (listed,) = [one for one in haulway.delta.versions(root / "run")
                     if one.number == number]
        assert vars(listed) == vars(made)
    local = shutil.copytree(root / "full0", root / "local")
    receive(local, root / "run", 2)
    assert same(haulway.load(local), states[2])
    found = haulway.load(root / "run" / "weight_v000002", base=root / "full0")
    assert same(found, states[2])
    assert haulway.delta.verify(root / "run", base=root / "full0").ok
    shards = sorted((root / "run" / "weight_v000001").glob("*.safetensors"))
    count = len(shards)
    assert (count > 1) == (shard is not None)
    assert [path.name for path in shards] == [
        f"model-{i:05}-of-{count:05}.safetensors" for i in range(count)]


def test_the_index_is_as_trainers_write_it(folders):
    _, root = folders
    write(root, 1)
    text = (root / "run" / "weight_v000001" / INDEX).read_text()
    index = json.loads(text)
    assert text == json.dumps(index)
    assert list(index) == ["metadata", "weight_map"]
    assert index["metadata"] == {
        "version": "000001", "base_version": "000000", "delta_encoding": "xor",
        "compression_format": "zstd", "checksum_format": "xxh3-128"}
    assert "f.frozen" not in index["weight_map"]
    assert "h.empty" not in index["weight_map"]
    shard = root / "run" / "weight_v000001" / "model-00000-of-00001.safetensors"
    for frame in haulway.load(shard, alone=True).values():
        facts = zstandard.get_frame_parameters(frame.numpy().tobytes())
        assert facts.content_size and not facts.dict_id
        assert facts.window_size <= 128 << 20


def test_a_version_without_changes(folders):
    states, root = folders
    made = haulway.delta.write(root / "full0", root / "full0",
                               root / "run" / "weight_v000001", version=1,
                               base_version=0)
    assert (made.tensors, made.bytes) == (0, 0)
    assert os.listdir(made.path) == [INDEX]
    assert same(haulway.load(made.path, base=root / "full0"), states[0])


def test_names_of_a_server(folders):
    _, root = folders
    made = haulway.delta.write(root / "full0", root / "full1", root / "run" / "v1",
                               version="v1", base_version="v0",
                               checksum="adler32")
    assert (made.id, made.base, made.number) == ("v1", "v0", 1)
    made = haulway.delta.write(root / "full0", root / "full1", root / "run" / "v2",
                               version="7f3a", base_version="é\"\\x")
    assert read_index(root / "run" / "v2")["metadata"]["base_version"] == "é\"\\x"


def test_from_a_version_to_a_version(folders):
    states, root = folders
    write(root, 1)
    write(root, 2)
    made = haulway.delta.write(
        root / "full0", root / "run" / "weight_v000002",
        root / "skip" / "weight_v000002", version=2, base_version=0,
        base=root / "full0")
    assert same(haulway.load(made.path, base=root / "full0"), states[2])


def test_a_change_of_the_dtype_or_shape_is_refused(folders):
    states, root = folders
    out = root / "run" / "weight_v000001"
    for name, change in (
        ("a.weight", lambda t: t.half()), ("b.weight", lambda t: t.reshape(-1)),
        ("c.scale", lambda t: torch.cat([t, t])),
    ):
        path = root / f"wrong-{name}"
        save_full(path, {**states[1], name: change(states[1][name])})
        with pytest.raises(haulway.MismatchError, match=f"'{name}' has another"):
            haulway.delta.write(root / "full0", path, out, version=1,
                                base_version=0)
    save_full(root / "more", {**states[1], "new": torch.zeros(3)})
    with pytest.raises(haulway.MismatchError, match="'new' is not in the old"):
        haulway.delta.write(root / "full0", root / "more", out, version=1,
                            base_version=0)
    with pytest.raises(haulway.MismatchError, match="'new' is missing"):
        haulway.delta.write(root / "more", root / "full1", out, version=1,
                            base_version=0)
    assert not (root / "run").exists() or os.listdir(root / "run") == []


def test_nothing_is_replaced_or_left_behind(folders):
    _, root = folders
    made = write(root, 1)
    with pytest.raises(haulway.InvalidArgumentError, match="exists"):
        write(root, 1)
    assert os.listdir(root / "run") == ["weight_v000001"]
    assert haulway.delta.verify(root / "run", base=root / "full0").ok
    assert made.complete
    for wrong in ({"version": 2}, {"version": 1, "base_version": 1},
                  {"version": ""}):
        with pytest.raises(haulway.InvalidArgumentError):
            haulway.delta.write(root / "full0", root / "full1",
                                root / "other" / "weight_v000001",
                                **{"base_version": 0, **wrong})
    for wrong in ({"version": 7, "base_version": 9},
                  {"version": "v7", "base_version": "v9"},
                  {"version": 9, "base_version": "v9"}):
        with pytest.raises(haulway.InvalidArgumentError,
                           match="base_version is '.*': expected an older"):
            haulway.delta.write(root / "full0", root / "full1", root / "other",
                                **wrong)
    for wrong in ({"version": -1}, {"base_version": -1}, {"version": 2**64},
                  {"version": 2**64 - 1}, {"version": "a/b"}, {"version": "a\n"}):
        with pytest.raises(haulway.InvalidArgumentError,
                           match=f"^{next(iter(wrong))} is '.*expected a number"):
            haulway.delta.write(root / "full0", root / "full1", root / "other",
                                **{"version": 1, "base_version": 0, **wrong})
    for wrong in ({"encoding": "add"}, {"checksum": "md5"}, {"durability": "no"},
                  {"shard": 0}):
        with pytest.raises(haulway.InvalidArgumentError):
            write(root, 2, **wrong)
    with pytest.raises(TypeError):
        write(root, 2, no_such=1)
    with pytest.raises(haulway.ArgumentTypeError):
        haulway.delta.write(root / "full0", root / "full1", root / "x",
                            version=1.5, base_version=0)
    with pytest.raises(haulway.UnsupportedError):
        haulway.delta.write(root / "full0", root / "full1", "http://h/v1",
                            version=1, base_version=0)
    assert not (root / "other").exists()


def test_to_a_bucket(bucket, endpoint, folders, monkeypatch):
    for name, value in (("AWS_ACCESS_KEY_ID", "AKID"),
                        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
                        ("AWS_REGION", "us-east-1"),
                        ("AWS_ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(name, value)
    states, root = folders
    made = haulway.delta.write(root / "full0", root / "full1",
                               "s3://bkt/run/weight_v000001", version=1,
                               base_version=0, shard=2000)
    keys = [one["Key"] for one in bucket.list_objects_v2(Bucket="bkt")["Contents"]]
    assert len(keys) > 2 and all(key.startswith("run/weight_v000001/model")
                                 for key in keys)
    assert same(haulway.load("s3://bkt/run/weight_v000001/", base=root / "full0"),
                states[1])
    with pytest.raises(haulway.InvalidArgumentError, match="exists"):
        haulway.delta.write(root / "full0", root / "full1",
                            "s3://bkt/run/weight_v000001/", version=1,
                            base_version=0)
    assert made.path == "s3://bkt/run/weight_v000001"


def test_what_a_killed_writer_left_in_a_bucket(bucket, endpoint, folders,
                                               monkeypatch, run):
    """It is not removed, because its writer may be alive; what to do is said."""
    for name, value in (("AWS_ACCESS_KEY_ID", "AKID"),
                        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
                        ("AWS_REGION", "us-east-1"),
                        ("AWS_ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(name, value)
    states, root = folders
    words = ("delta", "write", root / "full0", root / "full1",
             "s3://bkt/run/weight_v000001", "--version", "1",
             "--base-version", "0")
    run(*words, "--shard", "2000")

    def keys():
        found = bucket.list_objects_v2(Bucket="bkt").get("Contents", [])
        return [one["Key"] for one in found]

    bucket.delete_object(Bucket="bkt", Key=f"run/weight_v000001/{INDEX}")
    left = keys()
    # The names of its shards may be others than those of the next one: receivers
    # would apply both.
    for shard in ("2000", "1GB"):
        done = run(*words, "--shard", shard, code=2)
        assert "without the index" in done.stderr
        assert "remove the folder, or open a publisher" in done.stderr
        assert left[0] in done.stderr
        assert keys() == left
    with haulway.delta.publisher("s3://bkt/run", root / "full0"):
        assert keys() == []
    run(*words)
    assert same(haulway.load("s3://bkt/run/weight_v000001", base=root / "full0"),
                states[1])


def test_the_verb(folders, run):
    states, root = folders
    words = ("delta", "write", root / "full0", root / "full1",
             root / "run" / "weight_v000001", "--version", "1")
    run(*words, code=4)
    done = run(*words, "--base-version", "0", "--checksum", "blake3",
               "--encoding", "overwrite", "--shard", "1k", "--no-sync", "--json")
    made = json.loads(done.stdout)
    assert made["id"] == "000001" and made["base"] == "000000"
    assert made["encoding"] == "overwrite" and made["checksum"] == "blake3"
    assert same(haulway.load(root / "run" / "weight_v000001",
                             base=root / "full0"), states[1])
    run(*words, "--base-version", "0", code=2)
    run("delta", "write", root / "full0", code=4)
    run("delta", "ls", root, root, code=4)


def test_changes_are_small(tmp_path):
    before = {"w": torch.randn(1 << 21).bfloat16()}
    after = step(before, 3, 0.02)
    save_full(tmp_path / "full0", before)
    save_full(tmp_path / "full1", after)
    made = write(tmp_path, 1)
    assert made.bytes * 60 < len(bytes_of(before["w"]))
