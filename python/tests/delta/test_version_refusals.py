"""Damaged and hostile versions: every one is refused by name, and verify says
no."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import zstandard

import haulway
import haulway.delta
from delta_versions import (
    GOLDENS,
    INDEX,
    SUMS,
    bytes_of,
    chain,
    compress,
    content,
    model,
    read_index,
    same,
    save_delta,
    save_full,
    save_shard,
    step,
    write_index,
)

SHARD = "model-00000-of-00001.safetensors"
CHANGED = "b.weight"


class Version:
    """A version with one delta, which a test damages."""

    def __init__(self, root, encoding="xor"):
        self.base = root / "base"
        self.path = root / "run" / "weight_v000001"
        self.encoding = encoding
        self.before = model()
        self.after = step(self.before, 1)
        save_full(self.base, self.before)
        save_delta(self.path, self.before, self.after, 1, encoding=encoding)
        self.shard = self.path / SHARD
        self.frames, self.sums = {}, {}
        for name in read_index(self.path)["weight_map"]:
            self.frames[name] = compress(self.content(name))
            self.sums[name] = SUMS["xxh3-128"](bytes_of(self.after[name]))

    def content(self, name):
        return content(bytes_of(self.before[name]), bytes_of(self.after[name]),
                       self.encoding)

    def rewrite(self, frame=None, name=CHANGED):
        """Writes the shard anew, with another frame for a tensor."""
        if frame is not None:
            self.frames[name] = frame
        save_shard(self.shard, self.frames, self.sums)

    def metadata(self, **changes):
        index = read_index(self.path)
        for key, value in changes.items():
            if value is None:
                del index["metadata"][key]
            else:
                index["metadata"][key] = value
        write_index(self.path, index)

    def refused(self, error, match, verified=True, applied=None):
        """Checks that the version is refused, and that verify says no, also of
        the index alone if that is `verified`; and that applying it fails in the
        same way, or as `applied` says, and changes nothing."""
        with pytest.raises(error, match=match) as raised:
            haulway.load(self.path, base=self.base)
        assert self.path.name in str(raised.value)
        with pytest.raises(error, match=match):
            for _ in haulway.iterate(self.path, base=self.base):
                pass
        if verified:
            assert not haulway.verify(self.path / INDEX, base=self.base).ok
        assert not haulway.verify(self.path, base=self.base).ok
        assert not haulway.delta.verify(self.path.parent, base=self.base).ok
        self.not_applied(*(applied or (error, match)))

    def not_applied(self, error, match):
        target = self.base.with_name("target")
        shutil.rmtree(target, ignore_errors=True)
        haulway.delta.apply(target, self.path.parent, to=0, base=self.base,
                            durability="none")
        with pytest.raises(error, match=match) as raised:
            haulway.delta.apply(target, self.path.parent, to=1, durability="none")
        assert self.path.parent.name in str(raised.value)
        for path in self.base.iterdir():
            assert (target / path.name).read_bytes() == path.read_bytes()
        state = (target / ".weight_sync" / "state.json").read_text()
        assert state == '{"version": "000000"}'


@pytest.fixture(params=["xor", "overwrite"])
def version(request, tmp_path):
    return Version(tmp_path, request.param)


@pytest.fixture
def xor(tmp_path):
    return Version(tmp_path)


def named(what):
    """Returns a pattern with the tensor and its file."""
    return rf"(?s){what}.*'{CHANGED}'.*{SHARD}"


def test_wrong_checksum(version):
    version.sums[CHANGED] = "0" * 32
    version.rewrite()
    version.refused(haulway.MismatchError, named("xxh3-128 of the tensor differs"))


def test_upper_case_checksum(version):
    version.sums[CHANGED] = version.sums[CHANGED].upper()
    version.rewrite()
    version.refused(haulway.MismatchError, named("lower-case"))


def test_no_checksum(version):
    del version.sums[CHANGED]
    version.rewrite()
    version.refused(haulway.MismatchError, named("has no xxh3-128"))


def test_no_checksum_at_all(version):
    version.sums = {}
    version.rewrite()
    version.refused(haulway.MismatchError, rf"(?s)has no xxh3-128.*'.*'.*{SHARD}")


def test_cut_frame(version):
    version.rewrite(version.frames[CHANGED][:-4])
    version.refused(haulway.TruncatedError, named("ends early"))


def test_empty_frame(version):
    version.rewrite(b"")
    version.refused(haulway.TruncatedError, named("empty"))


def test_bytes_after_the_frame(version):
    version.rewrite(version.frames[CHANGED] + b"\0")
    version.refused(haulway.CorruptError, named("1 bytes follow"))


def test_second_frame(version):
    version.rewrite(version.frames[CHANGED] * 2)
    version.refused(haulway.CorruptError, named("follow the zstd frame"))


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("more", [-2, 2])
def test_frame_of_another_length(version, sized, more):
    data = version.content(CHANGED)
    data = data[:more] if more < 0 else data + bytes(more)
    version.rewrite(compress(data, write_content_size=sized))
    version.refused(haulway.Error, named("frame"))


def test_no_frame(version):
    version.rewrite(b"not compressed")
    version.refused(haulway.CorruptError, named("signature"))


def test_dictionary(version):
    # A frame that names a dictionary: the flag and an id in its header.
    frame = bytearray(compress(version.content(CHANGED)))
    frame[4] |= 1
    frame[6:6] = b"\x07"
    version.rewrite(bytes(frame))
    version.refused(haulway.Error, f"'{CHANGED}'")


@pytest.mark.parametrize("numbers,values,what", [
    ([1, 4000], 1, "position"), ([2, 5, 5], 2, "position"),
    ([2, 6, 5], 2, "position"), ([0xFFFFFFFF], 0, "changes 4294967295"),
    ([5000], 0, "changes 5000"), ([2, 0, 1], 1, "frame"), ([2, 0, 1], 3, "frame"),
])
def test_overwritten_places(tmp_path, numbers, values, what):
    version = Version(tmp_path, "overwrite")
    assert len(bytes_of(version.after[CHANGED])) == 4000
    data = np.array(numbers, "<u4").tobytes() + bytes(values)
    version.rewrite(compress(data))
    version.refused(haulway.CorruptError, named(what))


def test_base_of_other_bytes(version):
    shutil.rmtree(version.base)
    save_full(version.base, step(version.before, 5, keep=()))
    version.refused(haulway.MismatchError, rf"(?s)differs.*'.*'.*{SHARD}")


def test_base_of_another_size(version):
    shutil.rmtree(version.base)
    save_full(version.base, {**version.before, CHANGED: torch.zeros(7)})
    version.refused(haulway.Error, named("frame|changes"))


def test_tensor_that_the_base_lacks(version):
    shutil.rmtree(version.base)
    save_full(version.base, {name: tensor for name, tensor in
                             version.before.items() if name != CHANGED})
    version.refused(haulway.MismatchError, rf"'{CHANGED}' is not in the base",
                    applied=(haulway.MismatchError,
                             named("the target has no bytes of this tensor")))


def test_golden_with_a_new_tensor():
    path = GOLDENS / "slime-new-tensor" / "run" / "weight_v000001"
    base = GOLDENS / "slime-new-tensor" / "base"
    with pytest.raises(haulway.MismatchError, match=r"'model\.extra' is not in"):
        haulway.load(path, base=base)
    assert not haulway.verify(path, base=base).ok


def test_missing_shard(version):
    version.shard.unlink()
    version.refused(haulway.NotFoundError, SHARD)


def test_cut_shard(version):
    data = version.shard.read_bytes()
    for size in (0, 7, 100, len(data) - 1):
        version.shard.write_bytes(data[:size])
        version.refused(haulway.Error, SHARD)


def test_longer_shard(version):
    version.shard.write_bytes(version.shard.read_bytes() + b"\0")
    version.refused(haulway.Error, SHARD)


@pytest.mark.parametrize("name", [
    "../model.safetensors", "/etc/passwd", "sub/" + SHARD, "..", "file:///etc/x"])
def test_names_that_leave_the_folder(version, name):
    index = read_index(version.path)
    index["weight_map"][CHANGED] = name
    write_index(version.path, index)
    version.refused(haulway.CorruptError, "outside its folder")


def test_tensor_in_two_shards(version):
    other = "model-00001-of-00002.safetensors"
    name = "c.scale"
    save_shard(version.path / other, {name: version.frames[name],
                                      CHANGED: version.frames[CHANGED]},
               {name: version.sums[name], CHANGED: version.sums[CHANGED]})
    index = read_index(version.path)
    index["weight_map"][name] = other
    write_index(version.path, index)
    version.refused(haulway.MismatchError, "(?s)another shard.*safetensors")


def test_unlisted_tensor(version):
    index = read_index(version.path)
    del index["weight_map"][CHANGED]
    write_index(version.path, index)
    version.refused(haulway.MismatchError, named("does not list"))


def test_lacking_tensor(version):
    del version.frames[CHANGED]
    version.rewrite()
    version.refused(haulway.MismatchError, named("lacks"))


@pytest.mark.parametrize("tensor", [
    torch.zeros(9, dtype=torch.int8), torch.zeros(3, 3, dtype=torch.uint8),
    torch.zeros(()), torch.zeros(4)])
def test_changes_that_are_no_bytes(version, tensor):
    import safetensors.torch

    frames = {name: torch.frombuffer(bytearray(frame), dtype=torch.uint8)
              for name, frame in version.frames.items()}
    safetensors.torch.save_file({**frames, CHANGED: tensor}, version.shard,
                                version.sums)
    version.refused(haulway.CorruptError, named("U8"))


@pytest.mark.parametrize("key,value", [
    ("delta_encoding", "add"), ("compression_format", "lz4"),
    ("checksum_format", "md5"), ("delta_encoding", "XOR")])
def test_unknown_ways(version, key, value):
    version.metadata(**{key: value})
    version.refused(haulway.UnsupportedError, rf"(?s){key} '{value}'.*{INDEX}")


@pytest.mark.parametrize("key", [
    "version", "base_version", "compression_format", "checksum_format"])
def test_lacking_facts(version, key):
    version.metadata(**{key: None})
    version.refused(haulway.CorruptError, rf"(?s)no {key}.*{INDEX}")
    version.metadata(**{key: True})
    version.refused(haulway.CorruptError, rf"no {key}")


@pytest.mark.parametrize("key", ["version", "base_version", "delta_encoding"])
def test_facts_that_are_there_twice(version, key):
    """Other readers take the last one."""
    index = version.path / INDEX
    index.write_text(index.read_text().replace(
        '"metadata": {', f'"metadata": {{"{key}": "000001", '))
    version.refused(haulway.CorruptError, rf"{key} more than once")


def test_folder_of_another_number(version):
    version.metadata(version="000002", base_version="000001")
    version.refused(haulway.MismatchError, "'weight_v000001' holds version",
                    applied=(haulway.NotFoundError, "version '000001' is not here"))


def test_version_on_itself(version):
    version.metadata(base_version="000001")
    version.refused(haulway.CorruptError, "builds on itself")


def test_circle(tmp_path):
    chain(tmp_path, count=3)
    first = tmp_path / "run" / "weight_v000001"
    index = read_index(first)
    index["metadata"]["base_version"] = "000003"
    write_index(first, index)
    with pytest.raises(haulway.CorruptError, match="circle"):
        haulway.load(tmp_path / "run" / "weight_v000003", base=tmp_path / "base")
    assert not haulway.verify(tmp_path / "run" / "weight_v000003" / INDEX,
                              base=tmp_path / "base").ok
    report = haulway.delta.verify(tmp_path / "run", base=tmp_path / "base")
    assert not report.ok and "circle" in report.findings[0].message
    with pytest.raises(haulway.CorruptError, match="circle"):
        haulway.delta.apply(tmp_path / "target", tmp_path / "run",
                            base=tmp_path / "base")


def test_a_newer_base(tmp_path):
    """Names of versions need not be in order: the checksums say what is right."""
    states = chain(tmp_path, count=1)
    run = tmp_path / "run"
    save_full(run / "weight_v000003", states[0], metadata={"version": "000003"})
    save_delta(run / "weight_v000002", *states, 2, 3)
    assert same(haulway.load(run / "weight_v000002"), states[1])
    assert haulway.delta.verify(run, base=tmp_path / "base").ok
    haulway.delta.apply(tmp_path / "target", run, to=2)
    assert same(haulway.load(tmp_path / "target"), states[1])
    # Of other weights it is refused.
    shutil.rmtree(run / "weight_v000003")
    save_full(run / "weight_v000003", model(3), metadata={"version": "000003"})
    with pytest.raises(haulway.MismatchError, match="'000002'"):
        haulway.load(run / "weight_v000002")
    assert not haulway.delta.verify(run, base=tmp_path / "base").ok


def test_no_base(version):
    with pytest.raises(haulway.NotFoundError, match=r"'000000'.*option base"):
        haulway.load(version.path)
    with pytest.raises(haulway.NotFoundError, match=r"'000000'.*option base"):
        haulway.verify(version.path / INDEX)
    with pytest.raises(haulway.NotFoundError):
        haulway.load(version.path, base=version.base / "nothing")


def test_full_version_of_another_number(tmp_path):
    states = chain(tmp_path, count=1)
    save_full(tmp_path / "run" / "weight_v000000", states[0],
              metadata={"version": "000009"})
    with pytest.raises(haulway.MismatchError, match="'000009'"):
        haulway.load(tmp_path / "run" / "weight_v000001")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"metadata": {}}', "null"])
def test_damaged_index(version, text):
    (version.path / INDEX).write_text(text)
    version.refused(haulway.Error, "index|empty|known format", verified=False)


def test_index_cut_anywhere(xor):
    whole = (xor.path / INDEX).read_bytes()
    for size in range(len(whole)):
        (xor.path / INDEX).write_bytes(whole[:size])
        with pytest.raises(haulway.Error):
            haulway.load(xor.path, base=xor.base)


def test_no_index(version, tmp_path):
    (version.path / INDEX).unlink()
    with pytest.raises(haulway.Error, match="shard of a delta"):
        haulway.load(version.path, base=version.base)
    assert not haulway.verify(version.path, base=version.base).ok
    with pytest.raises(haulway.Error, match="shard of a delta"):
        haulway.load(version.shard)
    assert not haulway.verify(version.shard).ok
    # An index without the facts of a delta does not make it a model.
    write_index(version.path, {
        "metadata": {}, "weight_map": dict.fromkeys(version.frames, SHARD)})
    version.refused(haulway.Error, "shard of a delta", verified=False)
    assert len(haulway.load(version.shard, alone=True)) == len(version.frames)


def test_every_flipped_bit_of_a_shard(xor):
    """Each flip is refused or changes nothing."""
    before = {"a": torch.randn(60)}
    after = {"a": before["a"] + 1}
    shutil.rmtree(xor.path)
    shutil.rmtree(xor.base)
    save_full(xor.base, before)
    save_delta(xor.path, before, after, 1)
    whole = xor.shard.read_bytes()
    for bit in range(len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << (bit % 8)
        xor.shard.write_bytes(data)
        try:
            found = haulway.load(xor.path, base=xor.base)
        except haulway.Error:
            continue
        assert torch.equal(found["a"], after["a"]), bit


HUGE = """
import sys, haulway, haulway.delta
path, base = sys.argv[1:]
for call in (lambda: haulway.load(path, base=base),
             lambda: haulway.delta.apply(base + "/target", path + "/..", base=base)):
    try:
        call()
    except haulway.Error as error:
        print(error)
# Not getrusage(), which begins with what the parent had.
(peak,) = [line for line in open("/proc/self/status") if "VmHWM" in line]
print(int(peak.split()[1]) >> 10)
"""


def test_a_huge_frame_needs_little_memory(version):
    """A frame of 4 GiB for a tensor of 4 KB."""
    compressor = zstandard.ZstdCompressor(
        level=1, write_content_size=False).compressobj()
    block = bytes(64 << 20)
    # An overwrite of 1000 bytes, or a mask.
    parts = [compressor.compress(np.uint32(1000).tobytes() + block[4:])]
    parts += [compressor.compress(block) for _ in range(63)]
    version.rewrite(b"".join([*parts, compressor.flush()]))
    done = subprocess.run(
        [sys.executable, "-c", HUGE, version.path, version.base],
        capture_output=True, text=True, check=True)
    *messages, mib = done.stdout.splitlines()
    assert len(messages) == 2
    assert all(CHANGED in one and SHARD in one for one in messages)
    assert int(mib) < 600
