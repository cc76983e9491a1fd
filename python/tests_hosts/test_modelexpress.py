"""Versions of weights, applied by ModelExpress's own receiver.

HAULWAY_MODELEXPRESS is a folder with its package, unpacked. Only the functions
that read an index and apply shards are called; catalogue and storage are left
out.
"""

import os
import shutil
import sys
import types

import pytest

import haulway
import haulway.delta
from delta_versions import INDEX, model, same, save_full, step

sys.path.append(os.environ["HAULWAY_MODELEXPRESS"])

from modelexpress_rl.inference import receiver
from modelexpress_rl.train import WeightPayloadFormat
from modelexpress_rl.utils import index_checkpoint_tensors


def apply(local, folder, version, base):
    """Applies a version to a checkpoint in place."""
    facts = receiver._S3Version(
        version, base, list(WeightPayloadFormat)[0], str(folder / INDEX))
    metadata, weight_map = receiver._parse_index_manifest(
        (folder / INDEX).read_bytes(), is_delta=True, version=facts)
    _, locations, _ = index_checkpoint_tensors(local)
    shards = {
        name: ((folder / name).read_bytes(), tensors) for name, tensors in
        receiver._group_tensors_by_shard(weight_map).items()}
    receiver._LocalCheckpoint._apply_shards(
        types.SimpleNamespace(locations=locations), shards,
        index_metadata=metadata)
    return len(shards)


@pytest.mark.parametrize("shard", [None, 3000])
def test_its_receiver_applies_what_is_written(tmp_path, shard):
    states = [model(size=40_000)]
    save_full(tmp_path / "full0", states[0], shards=2)
    local = shutil.copytree(tmp_path / "full0", tmp_path / "local")
    for number in (1, 2, 3):
        # The last version has no change.
        states.append(step(states[-1], number) if number < 3 else states[-1])
        save_full(tmp_path / f"full{number}", states[-1], shards=2)
        made = haulway.delta.write(
            tmp_path / f"full{number - 1}", tmp_path / f"full{number}",
            tmp_path / "run" / f"v{number}", version=f"v{number}",
            base_version=f"v{number - 1}", checksum="adler32", shard=shard)
        count = apply(local, tmp_path / "run" / f"v{number}", made.id, made.base)
        assert count == (0 if number == 3 else 1 if shard is None else count)
        assert same(haulway.load(local), states[-1])
    assert [one.id for one in haulway.delta.versions(tmp_path / "run")] == [
        "v1", "v2", "v3"]
