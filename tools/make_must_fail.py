#!/usr/bin/env python3
"""Writes testdata/must_fail/: files that must be refused, and the manifest.

Each file breaks one rule of docs/formats/torch.md, or uses a known way to make
a loader and a scanner see different things. They are built field by field here,
so that every field can be wrong. manifest.tsv has a line for each: file, rule,
the code with which opening or verifying must fail, and part of the message.
"""

import pathlib
import pickle
import struct
import zlib

OUT = pathlib.Path(__file__).resolve().parent.parent / "testdata" / "must_fail"
M = 0xFFFFFFFF


class Record:
    """One record as torch writes it; any field can be set before writing."""

    def __init__(self, name, data, folder="a"):
        self.name = (f"{folder}/{name}" if folder else name).encode()
        self.data = data
        self.method = 0
        self.stored = data
        self.crc = zlib.crc32(data)
        self.flags = 0x0808 if data else 0x0800
        self.size = len(data)
        self.csize = None  # Default: len(stored)
        self.local_name = None
        self.local_method = None
        self.local_flags = None
        self.local_crc = 0
        self.local_size = 0
        self.extra_pad = 0  # More padding than torch would write.
        self.descriptor = None  # Bytes to write in its place.
        self.central_extra = b""
        self.attributes = 0
        self.offset_lie = 0
        self.disk = 0
        self.central_signature = b"PK\1\2"
        self.local_signature = b"PK\3\4"
        self.gap = b""

    def deflate(self):
        maker = zlib.compressobj(9, zlib.DEFLATED, -15)
        self.stored = maker.compress(self.data) + maker.flush()
        self.method = 8
        return self


class Archive:
    def __init__(self, records):
        self.records = records
        self.prefix = b""
        self.suffix = b""
        self.comment = b""
        self.entries = None
        self.disk_entries = None
        self.directory_size_lie = 0
        self.directory_offset_lie = 0
        self.disk = 0
        self.locator_disks = 1
        self.locator_lie = 0
        self.zip64_size = 44
        self.zip64_entries_lie = 0
        self.zip64 = True
        self.directory_tail = b""

    def build(self):
        out = bytearray(self.prefix)
        directory = bytearray()
        for r in self.records:
            header = len(out)
            name = r.local_name if r.local_name is not None else r.name
            start = header + 30 + len(name) + 4
            pad = -start % 64 + r.extra_pad
            extra = b"FB" + struct.pack("<H", pad) + b"Z" * pad
            method = r.method if r.local_method is None else r.local_method
            flags = r.flags if r.local_flags is None else r.local_flags
            csize = len(r.stored) if r.csize is None else r.csize
            out += r.local_signature + struct.pack(
                "<HHHHHIIIHH", 0, flags, method, 0, 0, r.local_crc,
                r.local_size, r.local_size, len(name), len(extra),
            ) + name + extra + r.stored
            if r.descriptor is not None:
                out += r.descriptor
            elif r.size:
                out += b"PK\7\10" + struct.pack("<III", r.crc, csize, r.size)
            out += r.gap
            directory += r.central_signature + struct.pack(
                "<HHHHHHIIIHHHHHII", 0, 0, r.flags, r.method, 0, 0,
                r.crc if r.size else 0, csize, r.size, len(r.name),
                len(r.central_extra), 0, r.disk, 0, r.attributes,
                header + r.offset_lie,
            ) + r.name + r.central_extra
        offset = len(out) + self.directory_offset_lie
        directory += self.directory_tail
        size = len(directory) + self.directory_size_lie
        count = len(self.records) if self.entries is None else self.entries
        on_disk = count if self.disk_entries is None else self.disk_entries
        out += directory
        end64 = len(out)
        if self.zip64:
            out += b"PK\6\6" + struct.pack(
                "<QHHIIQQQQ", self.zip64_size, 0x031E, 45, 0, 0,
                on_disk + self.zip64_entries_lie,
                count + self.zip64_entries_lie, size, offset,
            )
            out += b"PK\6\7" + struct.pack(
                "<IQI", 0, end64 + self.locator_lie, self.locator_disks
            )
        end = b"PK\5\6" + struct.pack(
            "<HHHHIIH", self.disk, self.disk, on_disk, count, size, offset,
            len(self.comment),
        )
        out += end + self.comment
        return bytes(out + self.suffix)


def op_text(text):
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def op_int(value):
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def op_tuple(items):
    return b"(" + b"".join(items) + b"t"


def op_global(module, name):
    return f"c{module}\n{name}\n".encode()


def storage(key="0", numel=4, kind=("torch", "FloatStorage"), tag="storage"):
    return op_tuple([
        op_text(tag), op_global(*kind), op_text(key), op_text("cpu"),
        op_int(numel),
    ]) + b"Q"


def tensor(size=(4,), stride=(1,), offset=0, persistent=None, function="_rebuild_tensor_v2", more=()):
    return op_global("torch._utils", function) + op_tuple([
        persistent or storage(), op_int(offset),
        op_tuple([op_int(n) for n in size]),
        op_tuple([op_int(n) for n in stride]),
        b"\x89", op_global("collections", "OrderedDict") + b")R", *more,
    ]) + b"R"


def state(value, proto=2):
    return bytes([0x80, proto]) + b"}" + op_text("w") + value + b"s."


GOOD = state(tensor())
PAYLOAD = struct.pack("<4f", 1, 2, 3, 4)


def records(pkl=GOOD, payload=PAYLOAD, version=b"3\n", more=()):
    return [
        Record("data.pkl", pkl),
        Record(".format_version", b"1"),
        Record(".storage_alignment", b"64"),
        Record("byteorder", b"little"),
        Record("data/0", payload),
        *more,
        Record("version", version),
        Record(".data/serialization_id", b"1" * 40),
    ]


def archive(change_records=None, change=None, **settings):
    made = records(**settings)
    if change_records:
        change_records({r.name.decode()[2:]: r for r in made}, made)
    out = Archive(made)
    if change:
        change(out)
    return out.build()


def on(name, **fields):
    """Returns a function that sets fields of one record."""
    def change(by_name, _):
        for field, value in fields.items():
            setattr(by_name[name], field, value)
    return change


def whole(**fields):
    def change(made):
        for field, value in fields.items():
            setattr(made, field, value)
    return change


def enlarged(by_name, _):
    # Its extra field is longer, and the descriptor's bytes compensate for it in
    # the next gap: the chain is intact, the offset is wrong.
    r = by_name["data/0"]
    r.extra_pad = 16
    r.descriptor = b""


def deflated_short(by_name, _):
    r = by_name["byteorder"]
    r.data = b"little" * 20
    r.deflate()
    r.size = 60
    r.crc = zlib.crc32(r.data[:60])


def deflated_bomb(by_name, _):
    r = by_name["byteorder"]
    r.data = b"\0" * 200
    r.deflate()
    r.size = 60_000_000


def second_end():
    """The comment of the end record is itself an end record."""
    made = archive()
    return made[:-2] + struct.pack("<H", 22) + made[-22:]


def tar():
    import io
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name in ("storages", "tensors", "../pickle"):
            info = tarfile.TarInfo(name)
            data = pickle.dumps(0, 2)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return out.getvalue()


LEGACY_MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, 2)


def legacy(version=1001, system=None, numel=4):
    system = {"protocol_version": 1001, "little_endian": True,
              "type_sizes": {"short": 2, "int": 4, "long": 4}} if system is None else system
    legacy_storage = op_tuple([
        op_text("storage"), op_global("torch", "FloatStorage"), op_text("0"),
        op_text("cpu"), op_int(4), b"N",
    ]) + b"Q"
    return (LEGACY_MAGIC + pickle.dumps(version, 2) + pickle.dumps(system, 2)
            + state(tensor(persistent=legacy_storage))
            + pickle.dumps(["0"], 2) + struct.pack("<q", numel) + PAYLOAD)


def pickled(body):
    return archive(pkl=b"\x80\x02" + body)


C, T, U, S, L, X = ("kCorrupt", "kTruncated", "kUnsupported", "kUnsafe",
                    "kLimit", "kMismatch")

CASES = [
    ("preview", "Z01", U, "preview release", b"PYTORCH1" + b"\0" * 100),
    ("nothing", "Z02", U, "not a checkpoint", b"hello, world" * 10),
    ("empty", "Z02", T, "file is empty", b""),
    ("cut_in_half", "Z03", T, "failed finding central directory", archive()[:400]),
    ("second_end", "Z03", C, "second end record", second_end()),
    ("comment", "Z04", C, "bytes follow the end record", archive(change=whole(comment=b"hi"))),
    ("suffix", "Z04", C, "bytes follow the end record", archive(change=whole(suffix=b"\0" * 9))),
    ("prefix", "Z05", C, "precede the first record",
     archive(change=whole(prefix=b"PK\3\4" + b"\0" * 60))),
    ("disk", "Z06", C, "more than one disk", archive(change=whole(disk=1))),
    ("locator_disks", "Z06", C, "more than one disk", archive(change=whole(locator_disks=2))),
    ("locator_lie", "Z07", C, "does not point to a zip64 end record",
     archive(change=whole(locator_lie=-4))),
    ("zip64_short", "Z07", C, "too short", archive(change=whole(zip64_size=43))),
    ("zip64_long", "Z07", C, "does not end at its locator", archive(change=whole(zip64_size=45))),
    ("zip64_contradicts", "Z07", C, "contradicts", archive(change=whole(zip64_entries_lie=-1))),
    ("counts_differ", "Z08", C, "two numbers of entries",
     archive(change=whole(disk_entries=3))),
    ("no_entries", "Z08", C, "does not contain any files", archive(change=whole(entries=0))),
    ("directory_small", "Z08", C, "directory is too small",
     archive(change=whole(directory_size_lie=-400))),
    ("directory_outside", "Z08", C, "runs into the end records",
     archive(change=whole(directory_offset_lie=500))),
    ("directory_rest", "Z08", C, "after its", archive(change=whole(directory_tail=b"\0" * 8))),
    ("entry_signature", "Z09", C, "has no signature", archive(on("byteorder", central_signature=b"PK\1\3"))),
    ("entry_disk", "Z09", C, "another disk", archive(on("data/0", disk=1))),
    ("entry_outside", "Z09", C, "runs into the directory",
     archive(on("data/0", offset_lie=100000))),
    ("method", "Z10", U, "compression method", archive(on("data/0", method=12))),
    ("encrypted", "Z11", U, "encrypted", archive(on("data/0", flags=0x0809))),
    ("masked", "Z11", U, "encrypted", archive(on("data/0", flags=0x2808))),
    ("stored_lie", "Z12", C, "is stored in", archive(on("data/0", size=20))),
    ("size_without_bytes", "Z13", C, "has a size and no bytes",
     archive(lambda n, _: (n["data/0"].deflate(), setattr(n["data/0"], "csize", 0)))),
    ("folder_with_data", "Z14", C, "folder with data", archive(on("data/0", attributes=0x10))),
    ("dot_dot", "Z15", C, "unsafe path", archive(more=[Record("../x", b"1")])),
    ("backslash", "Z15", C, "unsafe path", archive(more=[Record("b\\c", b"1")])),
    ("nul", "Z15", C, "unsafe path", archive(more=[Record("b\0c", b"1")])),
    ("outside_folder", "Z16", C, "not in a subdirectory", archive(more=[Record("x", b"1", "b")])),
    ("no_folder", "Z16", C, "not in a subdirectory",
     Archive([Record("data.pkl", GOOD, "")]).build()),
    ("duplicate", "Z17", C, "duplicate record", archive(more=[Record("data.pkl", GOOD)])),
    ("case_folded", "Z17", C, "duplicate record", archive(more=[Record("Data.pkl", GOOD)])),
    ("local_name", "Z18", C, "has another name", archive(on("data.pkl", local_name=b"a/evil.pkl"[:10]))),
    ("local_method", "Z18", C, "has another method", archive(on("data.pkl", local_method=8))),
    ("local_flags", "Z18", C, "has other flags", archive(on("data.pkl", local_flags=0x0800))),
    ("local_crc", "Z18", C, "has another CRC-32", archive(on("data.pkl", local_crc=7))),
    ("local_size", "Z18", C, "has another size", archive(on("data.pkl", local_size=7))),
    ("local_signature", "Z18", C, "payload of record", archive(on("data/0", local_signature=b"PK\3\5"))),
    ("descriptor_wrong", "Z19", C, "data descriptor",
     archive(on("data/0", descriptor=b"PK\7\10" + b"\1" * 12))),
    ("overlap", "Z20", C, "overlaps", archive(lambda n, r: setattr(n["data/0"], "offset_lie", -30))),
    ("crc", "Z21", X, "CRC-32", archive(lambda n, _: setattr(n["data/0"], "stored", PAYLOAD[::-1]))),
    ("crc_of_pickle", "Z21", X, "CRC-32", archive(on("data.pkl", stored=GOOD.replace(b"w", b"v")))),
    ("deflated_short", "Z22", C, "inflate", archive(deflated_short)),
    ("deflated_bomb", "Z22", L, "max_metadata_inflate_ratio",
     archive(deflated_bomb)),
    ("no_version", "Z23", C, "no version", archive(lambda n, r: r.remove(n["version"]))),
    ("version_text", "Z23", C, "parse the version", archive(version=b"three")),
    ("version_junk", "Z23", C, "parse the version", archive(version=b"3 ")),
    ("version_new", "Z23", U, "version is out of range", archive(version=b"11\n")),
    ("version_zero", "Z23", C, "version is out of range", archive(version=b"0\n")),
    ("byteorder", "Z24", C, "byteorder is wrong",
     archive(lambda n, r: r.__setitem__(3, Record("byteorder", b"middle")))),
    ("alignment_text", "Z25", C, "alignment is wrong",
     archive(lambda n, r: r.__setitem__(2, Record(".storage_alignment", b"6x")))),
    ("alignment_zero", "Z25", C, "alignment is wrong",
     archive(lambda n, r: r.__setitem__(2, Record(".storage_alignment", b"0")))),
    ("byteorder_empty", "Z24", C, "byteorder is wrong",
     archive(lambda n, r: r.__setitem__(3, Record("byteorder", b"")))),
    ("alignment_empty", "Z25", C, "alignment is wrong",
     archive(lambda n, r: r.__setitem__(2, Record(".storage_alignment", b"")))),
    ("alignment_edited", "Z25", C, "is not that of the records",
     archive(lambda n, r: r.__setitem__(2, Record(".storage_alignment", b"4096")))),
    ("no_pickle", "Z02", U, "no data.pkl", archive(lambda n, r: r.remove(n["data.pkl"]))),
    ("protocol", "P01", U, "protocol", archive(pkl=state(tensor(), proto=6))),
    ("opcode", "P02", C, "unknown opcode", pickled(b"\xff.")),
    ("extension", "P02", S, "", pickled(b"\x82\x01.")),
    ("os_system", "P03", S, "'posix.system' is not allowed",
     pickled(op_global("posix", "system") + op_tuple([op_text("id")]) + b"R.")),
    ("eval", "P03", S, "'builtins.eval' is not allowed",
     pickled(op_global("__builtin__", "eval") + op_tuple([op_text("1")]) + b"R.")),
    ("getattr", "P03", S, "'builtins.getattr' is not allowed",
     pickled(op_global("__builtin__", "getattr") + b".")),
    ("stack_global", "P03", S, "'os.system' is not allowed",
     archive(pkl=b"\x80\x04" + op_text("os") + op_text("system") + b"\x93.")),
    ("inst", "P03", S, "'os.system' is not allowed", pickled(b"(" + op_text("id") + b"ios\nsystem\n.")),
    ("before_it_breaks", "P03", S, "is not allowed",
     pickled(op_global("os", "system") + op_tuple([op_text("id")]) + b"R\xff\xff")),
    ("reduce_string", "P04", C, "", pickled(op_text("x") + b")R.")),
    ("build_class", "P04", S, "__class__",
     pickled(op_global("collections", "OrderedDict") + b")R}" + op_text("__class__")
             + b"}sb.")),
    ("state_twice", "P04", C, "has a state already", archive(pkl=state(tensor() + b"}b}b"))),
    ("setitem_on_tensor", "P05", S, "expected a dict", pickled(tensor() + b"K\0K\0s.")),
    ("append_to_tuple", "P05", C, "", pickled(b")K\1a.")),
    ("persistent_module", "P06", S, "persistent id", archive(pkl=state(tensor(persistent=storage(tag="module"))))),
    ("persistent_text", "P06", C, "persistent id", archive(pkl=state(tensor(persistent=op_text("0") + b"Q")))),
    ("key_slash", "P07", C, "slash", archive(pkl=state(tensor(persistent=storage(key="../0"))))),
    ("key_missing", "P07", C, "has no record", archive(pkl=state(tensor(persistent=storage(key="9"))))),
    ("numel_large", "P08", C, "does not match", archive(pkl=state(tensor(persistent=storage(numel=5))))),
    ("numel_small", "P08", C, "does not match", archive(pkl=state(tensor(size=(3,), persistent=storage(numel=3))))),
    ("numel_overflow", "P08", C, "overflows", archive(pkl=state(tensor(persistent=storage(numel=2**62))))),
    ("depth", "P09", L, "max_depth", pickled(b"]" * 2000 + b"a" * 1999 + b".")),
    ("underflow", "P10", C, "underflow", pickled(b"R.")),
    ("no_mark", "P10", C, "", pickled(b"t.")),
    ("no_memo", "P10", C, "", pickled(b"h\7.")),
    ("argument_cut", "P10", T, "remain", pickled(b"X" + struct.pack("<I", 300) + b"abc")),
    ("no_stop", "P11", T, "", archive(pkl=GOOD[:-1])),
    ("after_stop", "P11", C, "follow the pickle", archive(pkl=GOOD + b"os.")),
    ("negative_size", "M01", C, "size is not a number", archive(pkl=state(tensor(size=(-1,))))),
    ("size_overflow", "M01", C, "overflows", archive(pkl=state(tensor(size=(2**40, 2**40), stride=(1, 1))))),
    ("negative_stride", "M02", C, "stride is not a number", archive(pkl=state(tensor(stride=(-1,))))),
    ("negative_offset", "M02", C, "offset is not a number", archive(pkl=state(tensor(offset=-1)))),
    ("past_storage", "M03", C, "ends past its storage", archive(pkl=state(tensor(size=(5,))))),
    ("stride_past", "M03", C, "ends past its storage", archive(pkl=state(tensor(size=(2,), stride=(4,))))),
    ("offset_past", "M03", C, "ends past its storage", archive(pkl=state(tensor(offset=1)))),
    ("extra_argument", "M01", C, "has 8 arguments",
     archive(pkl=state(tensor(more=[b"N", b"N"])))),
    ("legacy_tensor_of_a_size", "M01", C, "with arguments: expected none",
     archive(pkl=state(op_global("torch", "FloatTensor") + op_tuple([op_int(2**30)]) + b"R"))),
    ("ranks_differ", "M01", C, "stride has", archive(pkl=state(tensor(stride=(1, 1))))),
    ("legacy_version", "L01", C, "protocol version", legacy(version=1000)),
    ("legacy_system", "L01", C, "little_endian", legacy(system={})),
    ("legacy_numel", "L01", C, "number of elements", legacy(numel=5)),
    ("legacy_cut", "L01", T, "remain", legacy()[:-1]),
    ("tar_path", "L02", C, "tar member", tar()),
    ("chain_keeps", "O01", C, "payload of record", archive(enlarged)),
]


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.iterdir():
        old.unlink()
    lines = ["# file\trule\tcode\tpart of the message"]
    for name, rule, code, message, data in CASES:
        (OUT / f"{name}.pt").write_bytes(data)
        lines.append(f"{name}.pt\t{rule}\t{code}\t{message}")
    # Without a fault, the builder makes valid files: a bad file fails only
    # because of its fault.
    (OUT / "good.pt").write_bytes(archive())
    (OUT / "good_legacy.pt").write_bytes(legacy())
    lines.append("good.pt\t-\tkOk\t")
    lines.append("good_legacy.pt\t-\tkOk\t")
    (OUT / "manifest.tsv").write_text("\n".join(lines) + "\n")
    print(f"{len(CASES)} files")


if __name__ == "__main__":
    main()
