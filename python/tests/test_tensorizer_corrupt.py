"""Every row of what was seen of the reference with corrupt input: here each is
one typed error, or is taken on purpose, before anything is allocated.

The file is the specification's example with the index as short as it can be:
index entry at 73, header at 110, its hashes at 133, data at 184, end mark 196.
"""

import gzip
import pathlib
import struct

import pytest

import haulway
from haulway.tensorizer import HashMismatchError, TensorDeserializer

GOLDEN = pathlib.Path(__file__).parents[2] / "testdata/golden/tensorizer"
NAMES = {
    "kCorrupt": haulway.CorruptError,
    "kTruncated": haulway.TruncatedError,
    "kUnsupported": NotImplementedError,
    "kLimit": haulway.LimitError,
}


def example():
    data = bytearray(gzip.decompress(
        (GOLDEN / "2.11.1_v1_f32.tensors.gz").read_bytes()))
    slack = 262144 - 37
    struct.pack_into("<Q", data, 65, 37)
    for at in (86, 94):
        struct.pack_into(
            "<Q", data, at, struct.unpack_from("<Q", data, at)[0] - slack)
    del data[110 : 110 + slack]
    assert len(data) == 204
    return data


def put(*changes):
    def change(data):
        for at, value in changes:
            data[at : at + len(value)] = value
    return change


def cut(size):
    def change(data):
        del data[size:]
    return change


def u64(value):
    return struct.pack("<Q", value)


# What is refused whether hashes are checked or not.
REFUSED = {
    "bad magic": (put((0, b"|TZS|")), "kUnsupported"),
    "header cut": (cut(40), "kTruncated"),
    "index cut": (cut(100), "kTruncated"),
    "version 0": (put((5, b"\0")), "kUnsupported"),
    "version 6": (put((5, b"\6")), "kUnsupported"),
    "unknown flags": (put((9, b"\4")), "kCorrupt"),
    "count too small": (put((57, b"\0")), "kCorrupt"),
    "count too large": (put((57, b"\2")), "kCorrupt"),
    "count huge": (put((57, u64(2**62))), "kLimit"),
    "index longer than the file": (put((65, u64(1000))), "kTruncated"),
    "index of 2**40 bytes": (put((65, u64(2**40))), "kLimit"),
    "end mark missing": (cut(196), "kTruncated"),
    "end mark not zero": (put((199, b"x")), "kCorrupt"),
    "data cut": (cut(190), "kTruncated"),
    "name of the header differs": (put((123, b"v")), "kCorrupt"),
    "shape of the index differs": (put((82, b"\2"), (102, u64(8)),
                                      (41, u64(8))), "kCorrupt"),
    "shape of the header is smaller": (put((129, b"\2")), "kCorrupt"),
    "shape of the header is larger": (put((129, b"\xff")), "kCorrupt"),
    "dtype of the header differs": (put((126, b"i")), "kCorrupt"),
    "dtype is nonsense": (put((78, b"<zz")), "kCorrupt"),
    "dtype is big-endian": (put((78, b">f4")), "kCorrupt"),
    "type 3": (put((76, b"\3")), "kCorrupt"),
    "lengths of data differ": (put((176, b"\x0b")), "kCorrupt"),
    "length of data is negative": (put((176, u64(2**64 - 12))), "kCorrupt"),
    "header of 2**40 bytes": (put((110, u64(2**40))), "kCorrupt"),
    "header of no bytes": (put((110, u64(0))), "kCorrupt"),
    "header offset is wrong": (put((86, u64(109))), "kCorrupt"),
    "header offset is huge": (put((86, u64(2**63))), "kCorrupt"),
    "data offset is wrong": (put((94, u64(185))), None),
    "data length is huge": (put((82, b"\xff\xff\xff\xff"),
                                (102, u64(0xFFFFFFFF * 4))), None),
}


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("row", REFUSED)
def test_is_refused(tmp_path, row, verify):
    change, code = REFUSED[row]
    data = example()
    change(data)
    path = tmp_path / "x.tensors"
    path.write_bytes(data)
    with pytest.raises(haulway.Error) as caught:
        haulway.load(path, verify=verify)
    assert caught.value.code == (code or caught.value.code)
    if code in NAMES:
        assert isinstance(caught.value, NAMES[code])
    assert caught.value.code in (*NAMES, "kMismatch")
    message = str(caught.value)
    assert message and "\n" not in message and not message[0].isupper()
    with pytest.raises((ValueError, NotImplementedError)):
        TensorDeserializer(path, "cpu", verify_hash=verify)


# What only hashes find.
HASHED = {
    "a bit of the data": put((190, b"\x01")),
    "dtype of one size": put((79, b"i"), (126, b"i")),
    "the module": put((118, b"\7")),
    "the type": put((76, b"\1"), (120, b"\1")),
    "the name": put((75, b"v"), (123, b"v")),
}


@pytest.mark.parametrize("row", HASHED)
def test_is_found_by_hashes(tmp_path, row):
    data = example()
    HASHED[row](data)
    path = tmp_path / "x.tensors"
    path.write_bytes(data)
    assert len(haulway.load(path)) == 1
    with pytest.raises(haulway.MismatchError):
        haulway.load(path, verify=True)
    with pytest.raises(HashMismatchError):
        TensorDeserializer(path, "cpu", verify_hash=True)
    report = haulway.verify(path)
    assert [f.code for f in report.findings] == ["kMismatch"]


# What the reference refuses, or no format needs, and is taken here.


def test_an_empty_file_is_taken(tmp_path):
    data = example()
    del data[73:196]
    struct.pack_into("<Q", data, 41, 0)
    struct.pack_into("<QQ", data, 57, 0, 0)
    path = tmp_path / "x.tensors"
    path.write_bytes(data)
    assert haulway.load(path) == {}
    assert len(TensorDeserializer(path, "cpu")) == 0


def test_what_follows_the_end_is_not_looked_at(tmp_path):
    path = tmp_path / "x.tensors"
    path.write_bytes(example() + b"junk")
    assert haulway.load(path, verify=True)["w"].tolist() == [1, 2, 3]


def test_lenient_reading_takes_what_is_harmless(tmp_path):
    path = tmp_path / "x.tensors"
    for change in (cut(196), put((199, b"x")), put((41, b"\x0d")),
                   put((49, b"\1"))):
        data = example()
        change(data)
        path.write_bytes(data)
        assert not haulway.verify(path).ok
        assert haulway.verify(path, lenient=True).ok


def test_nothing_is_allocated_for_a_length_of_the_file(tmp_path):
    import resource

    path = tmp_path / "x.tensors"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for row in ("header of 2**40 bytes", "count huge", "data length is huge",
                "index of 2**40 bytes", "header offset is huge"):
        data = example()
        REFUSED[row][0](data)
        path.write_bytes(data)
        with pytest.raises(haulway.Error):
            haulway.load(path)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 64 << 10  # KiB
