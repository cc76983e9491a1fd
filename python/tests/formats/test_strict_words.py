"""Invalid input that torch or tarfile also refuses, or that no writer makes."""

import io
import pathlib
import pickle

import pytest
import torch

import haulway
from scan_cases import tarred

MUST_FAIL = pathlib.Path(__file__).parents[3] / "testdata" / "must_fail"


def test_a_tar_without_its_last_member_was_cut():
    empty = pickle.dumps([], 2)
    members = {
        "storages": pickle.dumps(0, 2) + empty,
        "tensors": pickle.dumps(0, 2),
        "pickle": empty,
        "sys_info": pickle.dumps({}, 2),
    }
    whole = tarred(members)
    assert haulway.verify(whole).ok and haulway.load(whole, "numpy") == []
    for missing in members:
        cut = tarred({k: v for k, v in members.items() if k != missing})
        with pytest.raises(haulway.CorruptError, match=missing):
            haulway.open(cut)
        report = haulway.verify(cut)
        assert not report.ok and missing in report.findings[0].message


@pytest.mark.parametrize("file, record", [
    ("version_text.pt", b"three"),
    ("version_zero.pt", b"0\n"),
    ("version_new.pt", b"11\n"),
    ("byteorder.pt", b"middle"),
    ("alignment_text.pt", b"6x"),
    ("alignment_edited.pt", b"4096"),
])
def test_errors_of_small_records_say_where_they_lie(file, record):
    data = (MUST_FAIL / file).read_bytes()
    with pytest.raises(haulway.Error) as caught:
        haulway.open(data)
    at = caught.value.byte
    assert data[at:at + len(record)] == record
    assert f"at byte {at}" in str(caught.value)


@pytest.mark.parametrize("file", ["byteorder_empty.pt", "alignment_empty.pt"])
def test_empty_records_are_refused_leniently_too(file):
    with pytest.raises(haulway.CorruptError, match="is wrong"):
        haulway.open(MUST_FAIL / file, lenient=True)


class TimesOut(io.RawIOBase):
    """Returns the head, and then times out."""

    def __init__(self, data, most):
        self.data, self.most, self.at = data, most, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=0):
        base = (0, self.at, len(self.data))[whence]
        self.at = base + offset
        return self.at

    def tell(self):
        return self.at

    def readinto(self, out):
        if self.at + len(out) > self.most:
            raise TimeoutError("no answer")
        out[:] = self.data[self.at:self.at + len(out)]
        self.at += len(out)
        return len(out)


@pytest.mark.parametrize("kind", ["tar", "stacked"])
def test_no_time_out_is_damage(kind):
    if kind == "tar":
        data = tarred({"storages": b"x" * 100_000})
    else:
        out = io.BytesIO()
        torch.save({"w": torch.zeros(1000)}, out,
                   _use_new_zipfile_serialization=False)
        data = out.getvalue()
    with pytest.raises(haulway.TimedOutError):
        haulway.verify(TimesOut(data, 600))
