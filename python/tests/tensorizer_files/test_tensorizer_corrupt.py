"""Every known behaviour of the reference for corrupt input: Haulway raises one
typed error, or accepts the input on purpose, before it allocates anything.

The file is the specification's example with the shortest possible index: index
entry at 73, header at 110, its hashes at 133, data at 184, end mark 196.
"""

import gzip
import pathlib
import struct

import numpy as np
import pytest

import haulway
from haulway.tensorizer import HashMismatchError, TensorDeserializer

GOLDEN = pathlib.Path(__file__).parents[3] / "testdata/golden/tensorizer"
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


# Refused whether or not hashes are checked.
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


# Detected only by hashes.
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


# Refused by the reference, or required by no format, but accepted here.


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


# Rules that need a special file, which is built from parts.


def part(name=b"w", dtype=b"<f4", dims=(3,), data=bytes(12), kind=2,
         hashes=None, crypt=None, padding=b""):
    if hashes is None:
        hashes = [b"\0\4" + bytes(4), b"\1\x20" + bytes(32)]
    return {
        "name": struct.pack("<H", len(name)) + name, "kind": bytes([kind]),
        "dtype": bytes([len(dtype)]) + dtype, "dims": dims, "data": data,
        "hashes": bytes([len(hashes)]) + b"".join(hashes),
        "crypt": crypt, "padding": padding,
    }


def block(*chunks):
    """Returns a crypt block of chunks."""
    body = struct.pack("<H", len(chunks)) + b"".join(
        u64(len(chunk)) + chunk for chunk in chunks)
    return u64(len(body)) + body


CIPHER = struct.pack("<HQ24sQ16s", 2, 2 << 20, bytes(24), 1, bytes(16))
SEQUENTIAL = struct.pack("<H24s16s", 3, bytes(24), bytes(16))
DERIVATION = struct.pack("<HHQQiH16s", 1, 1, 1, 8192, 2, 16, bytes(16))


def built(*parts, version=1, flags=0, tagged=False, wide=False):
    headers, index_bytes = [], 0
    for p in parts:
        dims = struct.pack(f"<B{len(p['dims'])}{'Q' if wide else 'I'}",
                           len(p["dims"]), *p["dims"])
        head = b"\0\0" + p["kind"] + p["name"] + p["dtype"] + dims
        head += struct.pack("<H", len(p["hashes"])) + p["hashes"]
        head += (p["crypt"] or b"") + p["padding"] + u64(len(p["data"]))
        headers.append(u64(len(head) + 8) + head)
        p["entry"] = (struct.pack("<I", tagged) if tagged else b"")
        p["entry"] += p["name"] + p["kind"] + p["dtype"] + dims
        index_bytes += len(p["entry"]) + 24
    at, index, body = 73 + index_bytes, b"", b""
    for p, header in zip(parts, headers):
        index += p["entry"] + u64(at) + u64(at + len(header))
        index += u64(len(p["data"]))
        at += len(header) + len(p["data"])
        body += header + p["data"]
    total = sum(len(p["data"]) for p in parts)
    return (b"|TZR|" + struct.pack("<IQ24x", version, flags) + u64(total)
            + u64(0) + u64(len(parts)) + u64(index_bytes) + index + body
            + bytes(8))


def path_name(text):
    return b"\x1e" + text.encode()


RULES = {
    "I02 entry of version 3": (
        built(part(), version=5, flags=2, tagged=3), "unknown version"),
    "I03 empty name": (built(part(b"")), "name is empty"),
    "I03 not UTF-8": (built(part(b"\xff")), "UTF-8"),
    "I03 path of an object": (built(part(path_name('[{"a":1}]'))), "list"),
    "I03 path of a number": (built(part(path_name("[1.5]"))), "list"),
    "I03 negative position": (built(part(path_name("[-1]"))), "list"),
    "I03 null": (built(part(path_name("[null]"))), "list"),
    "I03 true": (built(part(path_name("[true]"))), "list"),
    "I03 nested": (built(part(path_name('[["a"]]'))), "list"),
    "I03 empty path": (built(part(path_name("[]"))), "list"),
    "I03 newline": (built(part(path_name('["a",\n1]'))), "list"),
    "I03 a path of a parameter": (
        built(part(path_name('["a",1]'), kind=0)), "no state dict"),
    "I04 one name twice": (built(part(b"a"), part(b"a")), "stands twice"),
    "I04 one name spelt twice": (
        built(part(b"a"), part(path_name('["a"]'))), "stands twice"),
    "I04 a leaf with leaves": (
        built(part(b"a"), part(path_name('["a","b"]'))), "another tensor"),
    "I04 leaves before the leaf": (
        built(part(path_name('["a","b"]')), part(b"a")), None),
    "I04 keys and positions": (
        built(part(path_name('["a",0]')), part(path_name('["a","b"]'))), None),
    "I05 type 3": (built(part(kind=3)), "unknown type"),
    "I06 unknown opaque type": (
        built(part(dtype=b"<V2\0torch.nothing", dims=(6,)), version=2), "dtype"),
    "I06 opaque type of another size": (
        built(part(dtype=b"<V4\0torch.bfloat16"), version=2), "dtype"),
    "I06 void without a name": (
        built(part(dtype=b"<V4"), version=2), "dtype"),
    "I06 two zero bytes": (
        built(part(dtype=b"<V2\0\0torch.bfloat16", dims=(6,)), version=2),
        "dtype"),
    "I07 shape that overflows": (
        built(part(dims=(2**31, 2**31, 8))), "overflows"),
    "I08 length of another shape": (built(part(dims=(2,))), "expected 8"),
    "I08 no data before version 4": (
        built(part(data=b"")), "version 4 introduced"),
    "I09 opaque type in version 1": (
        built(part(dtype=b"<V2\0torch.bfloat16", dims=(6,))), "version 2"),
    "H04 no hash": (built(part(hashes=[])), "no hash"),
    "H04 one hash twice": (
        built(part(hashes=[b"\0\4" + bytes(4)] * 2)), "twice"),
    "H04 unknown hash": (built(part(hashes=[b"\2\4" + bytes(4)])), "unknown"),
    "H04 hash of wrong size": (
        built(part(hashes=[b"\1\4" + bytes(4)])), "unknown"),
    "H06 padding": (built(part(padding=b"\0x")), "padding"),
    "H05 no crypt block": (built(part(), version=3), "crypt block"),
    "H07 data that is not encrypted": (
        built(part(crypt=block()), version=3), "not encrypted"),
    "C01 two ciphers": (
        built(part(crypt=block(CIPHER, CIPHER)), version=3), "two ciphers"),
    "C01 both ciphers": (
        built(part(crypt=block(CIPHER, SEQUENTIAL)), version=3),
        "two ciphers"),
    "C01 two derivations": (
        built(part(crypt=block(DERIVATION, DERIVATION, CIPHER)), version=3),
        "two key derivations"),
    "C01 only a derivation": (
        built(part(crypt=block(DERIVATION)), version=3), "not encrypted"),
    "C01 unknown chunk": (
        built(part(crypt=block(CIPHER, b"\x09\0")), version=3),
        "unknown chunk"),
}


@pytest.mark.parametrize("rule", RULES)
def test_rule_has_a_file_that_breaks_it(tmp_path, rule):
    data, message = RULES[rule]
    path = tmp_path / "x.tensors"
    path.write_bytes(data)
    with pytest.raises(haulway.CorruptError, match=message):
        with haulway.open(path) as checkpoint:
            for name in checkpoint.keys():
                checkpoint[name]
    assert not haulway.verify(path).ok


@pytest.mark.parametrize("data", [
    built(part()), built(part(), part(b"v")),
    built(part(padding=bytes(100))),
    built(part(dtype=b"<V2\0torch.bfloat16", dims=(6,)), version=2),
    built(part(data=b""), version=4),
    built(part(data=b"", dims=(0, 3))),
    built(part(hashes=[b"\1\x20" + bytes(32)])),
    built(part(path_name('["a",0]')), part(path_name('["a",1]'))),
    built(part(), version=5, flags=2, tagged=1),
    built(part(), version=5, flags=2, tagged=5, wide=True),
], ids=range(10))
def test_what_breaks_no_rule_is_taken(tmp_path, data):
    path = tmp_path / "x.tensors"
    path.write_bytes(data)
    haulway.load(path)
    report = haulway.verify(path)
    assert {f.code for f in report.findings} == {"kMismatch"}


@pytest.mark.parametrize("cipher", [CIPHER, SEQUENTIAL])
def test_a_mac_that_does_not_match(tmp_path, cipher):
    path = tmp_path / "x.tensors"
    path.write_bytes(built(part(crypt=block(cipher),
                                hashes=[b"\1\x20" + bytes(32)]), version=3))
    with haulway.open(path) as checkpoint:
        assert checkpoint.info("w").shape == (3,)
    with pytest.raises(haulway.DecryptError, match="decryption failed"):
        haulway.load(path, key=bytes(32))
    with pytest.raises(haulway.DecryptError, match="expected a key"):
        haulway.load(path)


def test_a_nonce_that_serves_twice_is_found_without_the_key(tmp_path):
    path = tmp_path / "x.tensors"
    hashes = [b"\1\x20" + bytes(32)]
    path.write_bytes(built(
        part(crypt=block(CIPHER), hashes=hashes),
        part(b"v", crypt=block(CIPHER), hashes=hashes), version=3))
    messages = [f.message for f in haulway.verify(path).findings]
    assert any("one nonce" in message for message in messages)


@pytest.mark.parametrize("key", [None, bytes(32)])
def test_of_tensors_that_are_digested_together_each_broken_one_is_named(
        tmp_path, key):
    # Tensors of several pieces each, more tensors than lanes, in two sizes.
    tensors = {f"t{i:02}": np.full(50_000 + 40_000 * (i % 2), i, np.float32)
               for i in range(70)}
    path = tmp_path / "x.tensors"
    haulway.save(tensors, path, key=key)
    data = bytearray(path.read_bytes())
    broken = ["t00", "t31", "t32", "t69"]
    for name in broken:
        offset, length = max(haulway.plan_reads(path, include=name).reads,
                             key=lambda read: read[1])
        data[offset + length // 2] ^= 1
    path.write_bytes(data)
    seen = []
    report = haulway.verify(path, key=key, progress=lambda *at: seen.append(at))
    assert not report
    assert sorted(name for name in tensors for finding in report.findings
                  if name in finding.message) == broken
    assert len(report.findings) == len(broken)
    done = [at[0] for at in seen]
    assert done == sorted(done) and seen[-1][0] == seen[-1][1]
