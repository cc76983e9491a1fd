"""What scan says of bytes in zstd frames."""

import os
import pickle

import pytest
import zstandard

import haulway


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


def packed(data):
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize("pack", [
    packed, lambda data: packed(packed(data)),
    lambda data: packed(data[:5]) + packed(b"") + packed(data[5:]),
    lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
], ids=["one", "in each other", "several", "with a checksum"])
def test_pickles_in_frames_are_traced(pack, tmp_path):
    path = tmp_path / "state.pkl.zst"
    path.write_bytes(pack(pickle.dumps(Evil())))
    report = haulway.scan(path)
    assert report.verdict == "UNSAFE" and "system" in str(report)
    path.write_bytes(pack(pickle.dumps({"lr": 0.5})))
    assert haulway.scan(path).safe


@pytest.mark.parametrize("damage", [
    lambda frame: frame[:-3], lambda frame: frame + b"junk",
    lambda frame: frame[:9] + b"\xff" * 4 + frame[13:],
])
def test_damaged_frames_are_unknown(damage, tmp_path):
    path = tmp_path / "state.pkl.zst"
    path.write_bytes(damage(packed(pickle.dumps(list(range(3000))))))
    report = haulway.scan(path)
    assert report.verdict == "UNKNOWN" and "damaged" in str(report)


def test_a_bomb_is_unknown(tmp_path):
    path = tmp_path / "state.pkl.zst"
    path.write_bytes(packed(b"\x80\x04" + bytes(1 << 27)))
    report = haulway.scan(path)
    assert report.verdict == "UNKNOWN" and "inflates to more" in str(report)
