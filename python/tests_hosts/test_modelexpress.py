"""Versions of weights, applied by ModelExpress's own receiver.

HAULWAY_MODELEXPRESS is a folder with its package, unpacked. Its receiver runs
whole, with its folders of checkpoints and chains; only the catalogue is left
out, and a client of object storage that reads a local folder.
"""

import os
import pathlib
import shutil
import sys

import pytest

import haulway
import haulway.delta
from delta_versions import INDEX, model, same, save_full, step

sys.path.append(os.environ["HAULWAY_MODELEXPRESS"])

from modelexpress_rl.inference import receiver
from modelexpress_rl.object_storage import ObjectStorageType
from modelexpress_rl.train import WeightPayloadFormat


class Folder:
    """The requests that the receiver makes, of local files."""

    def get(self, uri):
        return pathlib.Path(uri).read_bytes()

    def size(self, uri):
        return pathlib.Path(uri).stat().st_size


class Receiver:
    """ModelExpress's receiver, which begins with a checkpoint as version v0."""

    def __init__(self, root, seed):
        self.checkpoint = receiver._LocalCheckpoint(
            model_name="model", s3=Folder(),
            config=receiver.ObjectStorageGeneratorConfig(
                list(ObjectStorageType)[0], "v0", seed, root))
        self.checkpoint.initialize()

    def take(self, *versions):
        """Prepares versions in one call, as for a server that missed some, and
        makes the last the active one. Returns its folder."""
        prepared = self.checkpoint.prepare_chain(tuple(
            receiver._S3Version(
                one.id, one.base,
                WeightPayloadFormat.XOR_DELTA if one.kind == "delta"
                else WeightPayloadFormat.FULL_HF_CHECKPOINT,
                f"{one.path}/{INDEX}")
            for one in versions))
        self.checkpoint.activate(prepared)
        return prepared.path


@pytest.fixture
def base(tmp_path):
    """Returns the state of the checkpoint in tmp_path/base."""
    state = model(size=40_000)
    save_full(tmp_path / "base", state, shards=2)
    (tmp_path / "base" / "config.json").write_text("{}")
    return state


@pytest.mark.parametrize("shard", [None, 3000])
def test_its_receiver_applies_what_is_written(tmp_path, base, shard):
    theirs = Receiver(tmp_path / "store", tmp_path / "base")
    states = [base]
    shutil.copytree(tmp_path / "base", tmp_path / "full0")
    for number in (1, 2, 3):
        # The last version has no change.
        states.append(step(states[-1], number) if number < 3 else states[-1])
        save_full(tmp_path / f"full{number}", states[-1], shards=2)
        made = haulway.delta.write(
            tmp_path / f"full{number - 1}", tmp_path / f"full{number}",
            tmp_path / "run" / f"v{number}", version=f"v{number}",
            base_version=f"v{number - 1}", checksum="adler32", shard=shard)
        assert same(haulway.load(theirs.take(made)), states[-1])
    assert [one.id for one in haulway.delta.versions(tmp_path / "run")] == [
        "v1", "v2", "v3"]


@pytest.mark.parametrize("shard", [None, "20KB"])
def test_its_receiver_applies_what_is_published(tmp_path, base, shard):
    """One after another, and a chain at once; with a full version in between
    and one without a change."""
    states, made = [base], []
    with haulway.delta.publisher(
            tmp_path / "run", tmp_path / "base", layout="v", checksum="adler32",
            shard=shard, full_every=4) as publisher:
        for number in range(1, 8):
            states.append(states[-1] if number == 6
                          else step(states[-1], number, 0.02))
            made.append(publisher.publish(states[-1]))
    assert [one.kind for one in made] == 3 * ["delta"] + ["full"] + 3 * ["delta"]
    assert made[5].tensors == 0
    one_by_one = Receiver(tmp_path / "store", tmp_path / "base")
    for version, state in zip(made, states[1:]):
        folder = one_by_one.take(version)
        assert same(haulway.load(folder), state)
        assert (folder / "config.json").exists()
    chains = Receiver(tmp_path / "other", tmp_path / "base")
    assert same(haulway.load(chains.take(*made[:3])), states[3])
    assert same(haulway.load(chains.take(*made[3:])), states[7])
    # Both end with what Haulway makes of the same run.
    haulway.delta.apply(tmp_path / "ours", tmp_path / "run",
                        base=tmp_path / "base")
    assert same(haulway.load(tmp_path / "ours"), states[7])


def test_it_refuses_the_other_encoding(tmp_path, base):
    """It knows xor and adler32 only, and says so before a byte changes."""
    for options, what in (({"encoding": "overwrite"}, "delta_encoding"),
                          ({"checksum": "xxh3-128"}, "checksum_format")):
        run = tmp_path / what
        with haulway.delta.publisher(
                run, tmp_path / "base", layout="v",
                **{"checksum": "adler32", **options}) as publisher:
            made = publisher.publish(step(base, 1))
        theirs = Receiver(tmp_path / f"store of {what}", tmp_path / "base")
        with pytest.raises(RuntimeError, match=what):
            theirs.take(made)
        assert same(haulway.load(theirs.checkpoint.local_checkpoint), base)
