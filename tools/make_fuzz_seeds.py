#!/usr/bin/env python3
"""Makes seeds for the fuzzers: make_fuzz_seeds.py TESTDATA SEEDS.

Every small file of TESTDATA, unpacked if it ends in .gz, seeds zip_fuzz and
torch_fuzz; its pickles seed pickle_fuzz, and the cases of
safetensors/verdicts.tsv seed the two fuzzers of safetensors. An archive, a few
pickles, indices of sharded models, and GGUF, npy and npz files are made here,
so that there is always a seed of each kind. Tensorizer files lose the unused
part of their index and seed tensorizer_fuzz, too; those in segments seed
tensorizer_segments_fuzz, in blocks of 512 bytes. Their indices, headers and
crypt blocks seed the fuzzers of these parts. Authentication records, manifests,
metadata and items of distributed checkpoints, training runs, texts for
scan_fuzz, and answers of S3 and Redis are made here. The files of
ranks/goldens.tar.xz seed the fuzzer of rank files; the signatures of
signing/goldens.tar.xz, and what they sign, seed theirs. All files seed
salvage_fuzz, whole and truncated.
"""

import base64
import gzip
import hashlib
import io
import json
import pathlib
import pickle
import re
import struct
import sys
import tarfile
import types
import zipfile
import zlib

from fuzz_seeds_of_arithmetic import adapted_models, quantized_models, ruled_models
from fuzz_seeds_of_training import rank_folders, run_markers

LARGEST = 64 << 10
INDEX = 73  # In a tensorizer file, the offset of the index,
RESERVED = 262144  # and its length in files of released writers.


def samples(testdata):
    for path in sorted(testdata.rglob("*")):
        if not path.is_file() or path.suffix in (".md", ".py", ".txt", ".json", ".tsv"):
            continue
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                data = file.read(RESERVED + LARGEST + 1)
            yield without_slack(data) if path.match("*.tensors.gz") else data
        else:
            with path.open("rb") as file:
                yield file.read(LARGEST + 1)


def without_slack(data):
    """Returns a tensorizer file with the shortest possible index."""
    if data[65:INDEX] != struct.pack("<Q", RESERVED):
        return data
    data = bytearray(data)
    tagged = data[9] & 2 or (data[5] == 5 and data[INDEX] != 0)
    if tagged:
        data[9] |= 2
    at, offsets = INDEX, []
    for _ in range(struct.unpack_from("<Q", data, 57)[0]):
        wide = False
        if tagged:
            wide = struct.unpack_from("<I", data, at)[0] == 5
            at += 4
        at += 2 + struct.unpack_from("<H", data, at)[0] + 1
        at += 1 + data[at]
        at += 1 + data[at] * (8 if wide else 4)
        offsets += [at, at + 8]
        at += 24
    slack = INDEX + RESERVED - at
    for place in offsets:
        value = struct.unpack_from("<Q", data, place)[0]
        struct.pack_into("<Q", data, place, value - slack)
    struct.pack_into("<Q", data, 65, at - INDEX)
    del data[at : at + slack]
    return bytes(data)


def in_small_blocks(data):
    """Returns a tensorizer file in segments with blocks of 512 bytes, not
    4096."""
    length = struct.unpack_from("<Q", data, 65)[0]
    at, entries, place, body = 75, [], 512, b""
    while at < 73 + length - 4:
        tag, size = struct.unpack_from("<BH", data, at)
        entries.append((tag, data[at + 3 : at + 3 + size]))
        at += 3 + size
    # Data last, since it may contain the others.
    for tag, fields in sorted(entries, key=lambda entry: entry[0] == 3):
        if len(fields) == 28:
            start, _, used, crc = struct.unpack("<QQQI", fields)
            kept = data[start : start + used + (8 if tag == 3 else 0)]
            kept += bytes(0 if tag == 3 else -len(kept) % 512)
            fields = struct.pack("<QQQI", place, place + len(kept), used, crc)
            place += len(kept)
            body += kept
        elif tag == 7:
            fields = struct.pack("<I", 512)
        entries = [(t, fields if t == tag else f) for t, f in entries]
    section = bytes([2, len(entries)]) + b"".join(
        struct.pack("<BH", tag, len(fields)) + fields for tag, fields in entries
    )
    head = data[:65] + struct.pack("<Q", len(section) + 4) + section
    head += struct.pack("<I", zlib.crc32(head))
    return head + bytes(512 - len(head)) + body


def is_segments(data):
    return data.startswith(b"|TZR|") and data[16] & 0x80 != 0


def tensorizer_parts(data):
    """Yields inputs of the fuzzers of parts, by fuzzer, from such a file."""
    if is_segments(data):
        return
    version, flags = data[5], data[9]
    encrypted = version == 3 or flags & 1
    count, length = struct.unpack_from("<QQ", data, 57)
    segments = length == 45 and data[INDEX : INDEX + 3] == b"\1\3\1"
    at = 118 + 8 if segments else INDEX
    if segments:
        (length,) = struct.unpack_from("<Q", data, 118)
    what = bool(flags & 2) | (version == 5 and not flags) << 1 | segments << 2
    (total,) = struct.unpack_from("<I", data, 41)
    start = struct.pack("<BBBII", version - 1, what, count & 255, total,
                        len(data))
    yield "tensorizer_index_fuzz", start + data[at : at + length]
    if segments or at + length + 8 > len(data):
        return
    at += length
    while at + 8 < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        header = data[at : at + length]
        if length < 16 or len(header) != length:
            return
        yield "tensorizer_header_fuzz", bytes([bool(encrypted)]) + header
        place = header.find(b"\x23\0\1\1\x20")
        if encrypted and place > 0:
            yield "tensorizer_crypt_fuzz", header[-8:] + header[place + 45 : -8]
        at += length + struct.unpack("<Q", header[-8:])[0]


def pickles_of(data):
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                if name.endswith(".pkl"):
                    yield archive.read(name)
    except Exception:
        # Hostile samples break Python's reader in many ways; if they are
        # pickles, or contain them, use the whole file.
        if data[:1] == b"\x80":
            yield data


def safetensors_of(table):
    """Yields the files that verdicts.tsv describes."""
    code = re.compile(rb"<(?:(\d+)\*([^>])|([0-9a-f]{2}))>")

    def expand(match):
        if match[1]:
            return match[2] * int(match[1])
        return bytes.fromhex(match[3].decode())

    for line in table.read_bytes().splitlines():
        if line.startswith(b"#"):
            continue
        _, length, header, data_bytes, *_ = line.split(b"\t")
        if length.startswith(b"none:"):
            yield code.sub(expand, length[5:])
            continue
        header = code.sub(expand, header)
        size = len(header) if length == b"=" else int(length)
        yield struct.pack("<Q", size) + header + bytes(int(data_bytes))


def indices():
    """Yields indices of sharded models, valid and invalid, over files "a" and
    "b"."""
    right = '{"metadata":{"total_size":8},"weight_map":{"a":"m-1","b":"m-1"}}'
    yield right.encode()
    yield right.replace("8", "8.0").encode()
    yield right.replace('"b":"m-1"', '"b":"sub/m-2"').encode()
    yield right.replace('"b":', '"a":').encode()
    yield right.replace('"b":', '"c":').encode()
    yield right.replace("m-1", "../m-1").encode()
    yield b'{"metadata":null,"weight_map":{}}'
    yield b'{"weight_map":{"a":1}}'
    yield b'{"metadata":{"x":[1,{"y":null}],"z":-1.5e300}}'


def shared_images():
    """Yields indices of shared memory after 16 bytes of storages, and a
    complete image."""
    header = json.dumps(
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    ).encode()
    read = struct.pack("<Q", len(header)) + header
    size = len(read) + 16

    def index(files, storages, entries):
        yield struct.pack("<I", len(files))
        for name, size, ranges in files:
            yield struct.pack("<I", len(name)) + name
            yield struct.pack("<QI", size, len(ranges))
            for offset, data in ranges:
                yield struct.pack("<QQ", offset, len(data)) + data
        yield struct.pack("<I", len(storages))
        for storage in storages:
            yield struct.pack("<QQ", *storage)
        some = entries is not None
        entries = entries or []
        yield struct.pack("<II", some, len(entries))
        yield struct.pack(f"<{len(entries)}I", *entries)

    one = b"".join(index([(b"", size, [(0, read)])], [(4096, 16)], None))
    yield b"\1" + one
    yield b"\1" + b"".join(
        index(
            [(b"", size, [(0, read[:8]), (8, read[8:])]), (b"b", 4, [])],
            [((1 << 64) - 1, 0)],
            [0],
        )
    )
    head = b"HAULSHM\1" + struct.pack("<QQ", 4112, len(one))
    yield head.ljust(4112, b"\0") + one


def authentication_records():
    """Yields a number of tensors, a bit to change, and a record for that
    number."""
    derivation = struct.pack("<QHHQQiH", 42, 1, 1, 1, 8192, 2, 16) + bytes(16)
    for count in (0, 1, 3, 255):
        for block in (struct.pack("<H", 0), struct.pack("<H", 1) + derivation):
            body = struct.pack("<Q", len(block)) + block
            body += bytes(32 + 16 * count)
            record = b"HW-AUTH1" + struct.pack("<Q", len(body)) + body
            yield struct.pack("<BH", count, 77 * count) + record
            yield struct.pack("<BH", count, 0) + record[:-1]
            yield struct.pack("<BH", count, 0) + record + b"more"


def made():
    """Yields an archive of an ordinary tool, and pickles of every protocol."""
    value = {"a": [1, 2.5, None, True], "b": (b"x", "y", {3}, 1 << 70)}
    pickles = [pickle.dumps(value, protocol) for protocol in range(6)]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickles[2])
        archive.writestr("archive/version", "3\n")
        archive.writestr(
            "archive/data/0", bytes(64), compress_type=zipfile.ZIP_DEFLATED
        )
    return file.getvalue(), pickles


def gguf_files():
    def text(words):
        return struct.pack("<Q", len(words)) + words

    def tensor(name, dims, kind, offset):
        return (text(name) + struct.pack("<I", len(dims))
                + struct.pack(f"<{len(dims)}Q", *dims)
                + struct.pack("<IQ", kind, offset))

    scalars = [b"\1", b"\xff", b"\1\2", b"\xff\xff", bytes(4), b"\xff" * 4,
               struct.pack("<f", 0.5), b"\1", text(b"llama"), None, bytes(8),
               b"\xff" * 8, struct.pack("<d", 0.1)]
    values = []
    for kind, value in enumerate(scalars):
        if value is not None:
            values.append(text(b"k%d" % kind) + struct.pack("<I", kind) + value)
            values.append(text(b"a%d" % kind)
                          + struct.pack("<IIQ", 9, kind, 2) + 2 * value)
    wide = text(b"general.alignment") + struct.pack("<II", 4, 64)
    architecture = (text(b"general.architecture") + struct.pack("<I", 8)
                    + text(b"llama"))
    values.append(architecture)
    for version, keys, alignment, tensors, sizes in (
        (3, [], 32, [], []),
        (2, values, 32, [tensor(b"w", (3, 2), 0, 0)], [24]),
        (3, [wide, architecture], 64, [tensor(b"q", (256, 2), 12, 0),
                         tensor(b"h", (5,), 1, 320)], [288, 10]),
    ):
        head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
        file = head + b"".join(keys + tensors)
        for size in [0, *sizes]:
            file += bytes(size)
            file += bytes(-len(file) % alignment)
        yield file


def arrays():
    """Yields npy files, and npz files of them."""
    made = {}
    for name, descr, shape, data, version, order in (
        ("a", "'<f4'", "(2, 3)", bytes(24), 1, False),
        ("b", "'>i8'", "(1, 2)", bytes(16), 2, True),
        ("c", "'|b1'", "()", b"\1", 3, False),
        ("o", "'|O'", "(1,)", b"\x80\4K\1.", 1, False),
        ("s", "[('x', '<f4'), ('y', '|S3')]", "(1L,)", bytes(7), 1, False),
    ):
        header = (f"{{'descr': {descr}, 'fortran_order': {order}, "
                  f"'shape': {shape}, }}\n").encode()
        length = struct.pack("<H" if version == 1 else "<I", len(header))
        made[name] = (b"\x93NUMPY" + bytes([version, 0]) + length + header
                      + data)
    yield from made.values()
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as archive:
            for name, data in made.items():
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), data, method)
        yield file.getvalue()


def texts():
    """Yields texts that scan must analyse, each under every name of
    scan_fuzz."""
    for text in (
        '{"a": [1, {"chat_template": "{{ x[\'y\'] }}"}]}\n{"b": NaN}\n',
        "%TAG ! tag:x\n---\na: !!python/name:x [!<y%20z> 1]\n",
        "{% for m in x[1:] %}{{ m.y.split('z')[-1] | trim }}{% endfor %}",
        "# words\nimport x; y()\n", "cmy module\nname\n(S'x'\ntR.",
    ):
        for name in range(8):
            yield bytes([name]) + text.encode()


def cut(files):
    """Yields files truncated at some of their bytes."""
    for data in files:
        for share in (0.3, 0.6, 0.9):
            yield data[: int(len(data) * share)]


def manifests():
    digest = "ab" * 32
    for entries in ([], [("a", "F32", [2, 3], digest)],
                    [("b\n\u00e9", "BF16", [], digest), ("c", "U8", [0], None)]):
        yield json.dumps({"tensors": [
            {"name": name, "dtype": dtype, "shape": shape, "sha256": sha256}
            for name, dtype, shape, sha256 in entries
        ]}).encode()


def answers_of_stores():
    yield (b"Key\n<?xml version=\"1.0\"?><R><C><Key>a&amp;b</Key></C>"
           b"<C><Key>&#x1F600;</Key></C><Key/></R>")
    yield b"Id\n<Result xmlns=\"x\"><Id>7</Id></Result>"


def answers_of_servers():
    partial, whole, with_total, with_etag = 1, 0, 2, 4

    def answer(kind, offset, length, total, *headers):
        return bytes([kind, offset, length - 1, total]) + "\n".join(headers).encode()

    yield answer(partial | with_total | with_etag, 4, 8, 20, "bytes 4-11/20", "8",
                 "", '"a"', "")
    yield answer(partial, 4, 8, 0, "bytes 4-9/*", "6", "identity", 'W/"a"', "120")
    yield answer(partial | with_total, 0, 8, 20, "bytes 0-7/21", "8")
    yield answer(whole | with_etag, 4, 8, 0, "", "20", "gzip", '"b"',
                 "Wed, 21 Oct 2026 07:28:00 GMT")
    yield answer(whole, 0, 1, 0, "bytes */20", "0", "", "",
                 "Fri, 31 Dec 9999 23:59:59 GMT")
    # Its other part takes the text as a URL.
    for url in ("https://u:p@h:8443/a/b?q=1#f", "http://[::1]/%7e?x=%2F", "../c/./d",
                "//h2/e", "http://h/?X-Amz-Date=20261021T072800Z&X-Amz-Expires=60",
                "http://h/?Expires=1792567680", "ftp://h/a"):
        yield bytes(4) + url.encode()


def replies_of_redis():
    head = bytes([3, 0, 1, 2, 3, 4, 14, 9, 0])
    for text in (b"+OK\r\n$-1\r\n:12\r\n*2\r\n$3\r\nabc\r\n", b"-LOADING x\r\n",
                 b"*-1\r\n", b"-MOVED 3 127.0.0.1:7\r\n", b"$4\r\nabcd\r\n"):
        yield head + text


def directories():
    """Yields metadata of distributed checkpoints, of one process and of four
    ranks, made with stand-ins for torch, which need not be installed."""
    checkpoint = "torch.distributed.checkpoint"

    def stand_in(module, name, base=object, **members):
        made = type(name, (base,), {"__module__": module, **members})
        holder = sys.modules.setdefault(module, types.ModuleType(module))
        setattr(holder, name, made)
        return made

    def filled(kind, state):
        made = kind()
        made.__dict__.update(state)
        return made

    stand_in("torch", "float32", __reduce__=lambda self: "float32")
    float32 = sys.modules["torch"].float32 = sys.modules["torch"].float32()
    size = stand_in(
        "torch", "Size", tuple, __reduce__=lambda self: (type(self), (tuple(self),))
    )
    layout = stand_in(
        "torch.serialization", "_get_layout", str,
        __reduce__=lambda self: (type(self), (str(self),)),
    )("torch.strided")
    encoding = stand_in(
        f"{checkpoint}.metadata", "_MEM_FORMAT_ENCODING", int,
        __reduce__=lambda self: (type(self), (int(self),)),
    )(0)
    whole, index, chunk, tensor, plain = (
        stand_in(f"{checkpoint}.metadata", name)
        for name in ("Metadata", "MetadataIndex", "ChunkStorageMetadata",
                     "TensorStorageMetadata", "BytesStorageMetadata")
    )
    stored = stand_in(f"{checkpoint}.filesystem", "_StorageInfo")
    properties = stand_in(
        f"{checkpoint}.metadata", "TensorProperties",
        __getstate__=lambda self: (float32, layout, False, encoding, False),
    )
    for ranks in (1, 4):
        chunks, places = [], {}
        for rank in range(ranks):
            rows = 8 // ranks
            at = size((rows * rank, 0))
            chunks.append(filled(chunk, {"offsets": at, "sizes": size((rows, 2))}))
            key = filled(index, {"fqn": "w", "offset": at, "index": rank})
            place = {"relative_path": f"__{rank}_0.distcp", "offset": 0, "length": 99}
            if rank % 2 == 1:
                place["transform_descriptors"] = ["stream.zstd/1"] * rank
            places[key] = filled(stored, place)
        key = filled(index, {"fqn": "n.s", "offset": None, "index": None})
        place = {"relative_path": "__0_0.distcp", "offset": 99, "length": 9}
        places[key] = filled(stored, place)
        entry = {"properties": properties(), "size": size((8, 2)), "chunks": chunks}
        metadata = filled(whole, {
            "state_dict_metadata": {"w": filled(tensor, entry), "n.s": plain()},
            "planner_data": {"w": ("w",), "n.s": ("n", 0)},
            "storage_data": places,
            "storage_meta": None,
            "version": "1.0.0",
        })
        for protocol in (2, 4):
            yield pickle.dumps(metadata, protocol=protocol)


def delta_indexes(testdata):
    """Yields indexes of versions of weights, and one of the fuzzer's files."""
    for path in sorted(testdata.glob("delta/*/run/*/*.index.json")):
        yield path.read_bytes()
    for encoding in ("xor", "overwrite"):
        yield json.dumps({
            "metadata": {
                "version": "000001", "base_version": "000000",
                "delta_encoding": encoding, "compression_format": "zstd",
                "checksum_format": "adler32"},
            "weight_map": {"b": "model-00000-of-00001.safetensors"},
        }).encode()


def delta_frames(testdata):
    """Yields the frames of changed tensors, as delta_frame_fuzz takes them."""
    widths = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8}
    for expected in sorted(testdata.glob("delta/*/expected.json")):
        facts = json.loads(expected.read_text())["base"]
        is_overwrite = "overwrite" in expected.parent.name
        for path in sorted(expected.parent.glob("run/*/model-00000-*")):
            data = path.read_bytes()
            start = 8 + int.from_bytes(data[:8], "little")
            for name, tensor in json.loads(data[8:start]).items():
                if name not in facts:
                    continue
                begin, end = tensor["data_offsets"]
                size = widths.get(facts[name]["dtype"], 1)
                for count in facts[name]["shape"]:
                    size *= count
                yield (bytes([is_overwrite]) + (size - 1).to_bytes(2, "little")
                       + data[start + begin:start + end])


def delta_masks(testdata):
    """Yields frames as delta_mask_fuzz takes them."""
    for frame in delta_frames(testdata):
        size = int.from_bytes(frame[1:3], "little") + 1
        if size % 5 == 1:
            yield (size // 5).to_bytes(2, "little") + b"\1" + frame[3:]
    for level in range(1, 23, 3):  # Bytes to compress.
        yield bytes(2) + bytes([level]) + bytes(range(256)) + bytes(4000)


def zstd_frame(content):
    """Returns a frame of one raw block (RFC 8878, 3.1.1)."""
    size = len(content)
    return (b"\x28\xb5\x2f\xfd" + bytes([0x60]) + struct.pack("<H", size - 256)
            + (1 | size << 3).to_bytes(3, "little") + content)


def compressed_items():
    """Yields items of distributed checkpoints as the extension compresses
    them: one and several frames, in each other, cut, with other bytes after
    them, and one that unpacks to much more. The first byte chooses how many
    times they were compressed."""
    content = bytes(range(256)) * 3
    frame = zstd_frame(content)
    zeros = frame[:5] + struct.pack("<H", 1000 - 256) + b"\x03\x1f\0\0"
    many = b"\x28\xb5\x2f\xfd\0\x58" + b"\2\0\x10\0" * 9 + b"\3\0\x10\0"
    for data in (frame, frame + frame, frame[:-5], frame + b"more", zeros, many):
        yield b"\0" + data
        yield b"\1" + zstd_frame(data if len(data) >= 256 else data + frame)
        yield b"\1" + zstd_frame(frame + frame) + zstd_frame(frame)
    yield b"\2" + zstd_frame(zstd_frame(frame))


def signatures(testdata):
    """Yields (the file of a signature, its statement)."""
    with tarfile.open(testdata / "signing/goldens.tar.xz") as archive:
        for member in archive:
            if member.name.endswith(".sig"):
                bundle = archive.extractfile(member).read()
                payload = json.loads(bundle)["dsseEnvelope"]["payload"]
                yield bundle, base64.b64decode(payload)


def roots_and_entries(testdata):
    """Yields trusted roots, and bodies of log entries."""
    with tarfile.open(testdata / "signing/goldens.tar.xz") as archive:
        root = archive.extractfile("signing/keys/trusted_root.json").read()
        yield root
        for member in archive:
            if "sigstore/model.sig" in member.name:
                bundle = json.loads(archive.extractfile(member).read())
                entry = bundle["verificationMaterial"]["tlogEntries"][0]
                yield base64.b64decode(entry["canonicalizedBody"])


def main():
    testdata, seeds = map(pathlib.Path, sys.argv[1:3])
    archive, pickles = made()
    files = [archive]
    for data in samples(testdata):
        if len(data) <= LARGEST:
            files.append(data)
            pickles += pickles_of(data)
    parts = {}
    for data in files:
        if data.startswith(b"|TZR|"):
            for name, part in tensorizer_parts(data):
                parts.setdefault(name, []).append(part)
    safetensors = list(
        safetensors_of(testdata / "safetensors" / "verdicts.tsv"))
    for name, contents in (
        *sorted(parts.items()),
        ("zip_fuzz", files),
        ("salvage_fuzz", [*files, *cut(files)]),
        ("manifest_fuzz", list(manifests())),
        ("http_answer_fuzz", list(answers_of_servers())),
        ("s3_xml_fuzz", list(answers_of_stores())),
        ("redis_reply_fuzz", list(replies_of_redis())),
        ("torch_fuzz", files),
        ("tensorizer_fuzz", [f for f in files if f.startswith(b"|TZR|")]),
        (
            "tensorizer_segments_fuzz",
            [in_small_blocks(f) for f in files if is_segments(f)],
        ),
        ("tensorizer_authentication_fuzz", list(authentication_records())),
        ("pickle_fuzz", pickles),
        ("pickle_roundtrip_fuzz", pickles),
        ("sharded_index_fuzz", list(indices())),
        ("delta_version_fuzz", list(delta_indexes(testdata))),
        ("delta_frame_fuzz", list(delta_frames(testdata))),
        ("delta_mask_fuzz", list(delta_masks(testdata))),
        ("signature_bundle_fuzz", [one[0] for one in signatures(testdata)]),
        ("signature_statement_fuzz",
         [one[1] for one in signatures(testdata)]
         + list(roots_and_entries(testdata))),
        ("dcp_metadata_fuzz", list(directories())),
        ("dcp_item_fuzz", list(compressed_items())),
        ("rank_files_fuzz", list(rank_folders(testdata))),
        ("run_markers_fuzz", list(run_markers(next(directories())))),
        ("shared_image_fuzz", list(shared_images())),
        ("gguf_fuzz", list(gguf_files())),
        ("npy_fuzz", list(arrays())),
        ("scan_fuzz", [b"\0" + data for data in files] + list(texts())),
        ("dequantize_fuzz", list(quantized_models())),
        ("rules_fuzz", list(ruled_models())),
        ("adapter_fuzz", list(adapted_models())),
        ("safetensors_fuzz", safetensors),
        ("safetensors_refusal_fuzz", safetensors),
    ):
        folder = seeds / name
        folder.mkdir(parents=True, exist_ok=True)
        for data in contents:
            (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
        print(f"{name}: {len(contents)} seeds")


if __name__ == "__main__":
    main()
