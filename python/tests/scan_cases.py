"""Files that run code in some reader, constructed and random.

`evil_files()` returns complete files by name; `odd_pickles()` returns opcode
streams from a seeded generator, most of which are broken somewhere.
"""

import gzip
import io
import json
import pickle
import random
import struct
import tarfile
import zipfile
import zlib

CALL = b"(S'x'\ntR."


class Ran:
    """Runs canary.ran when it is unpickled."""

    def __reduce__(self):
        import canary

        return canary.ran, ("x",)


def evil(protocol):
    """Returns a pickle that runs canary.ran, in each protocol's way."""
    if protocol < 2:
        return b"ccanary\nran\n" + CALL
    head = bytes([0x80, protocol])
    if protocol < 4:
        return head + b"ccanary\nran\nU\x01x\x85R."
    return head + b"\x8c\x06canary\x8c\x03ran\x93\x8c\x01x\x85R."


def framed_past_the_end():
    """FRAME with an argument that ends after the frame: C and Python differ."""
    hidden = b"\x8c\x06canary\x8c\x03ran\x93\x8c\x01x\x85R."
    # The text that begins in the frame: the C unpickler reads it after the
    # frame.
    frame = b"\x8c" + bytes([len(hidden)]) + b"abc"
    tail = b"y" * len(hidden) + hidden
    yield b"\x80\x04\x95" + struct.pack("<Q", len(frame)) + frame + tail
    cover = b"0N."
    shown = b"\x8c\x20" + b"z" * 3
    yield (b"\x80\x04\x95" + struct.pack("<Q", len(shown)) + shown
           + hidden.ljust(32, b"N") + cover)
    yield (b"\x95" + struct.pack("<Q", 2) + b"\x8c\x10" + hidden[:16]
           + hidden + b"N.")


def zipped(members, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def torch_zip(data, name="archive/data.pkl", method=zipfile.ZIP_STORED):
    return zipped({name: data, "archive/version": b"3\n",
                   "archive/byteorder": b"little"}, method)


def tarred(members, **fields):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in fields.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _summed(block, signed=False, form=b"%06o\0 "):
    """Returns the block with a checksum."""
    block = bytearray(block)
    block[148:156] = b" " * 8
    values = [v - 256 if signed and v > 127 else v for v in block]
    block[148:156] = (form % sum(values)).ljust(8, b"\0")[:8]
    return bytes(block)


def torch_tar_members(data):
    good = pickle.dumps({}, 2)
    count = pickle.dumps(0, 2)
    return {"storages": count + pickle.dumps([], 2), "tensors": count,
            "pickle": data, "sys_info": good}


def odd_tars(data):
    """Tars of torch's old format with numbers that only Python parses."""
    plain = bytearray(tarred(torch_tar_members(data)))
    first = bytes(plain[:512])
    size = first[124:136]
    number = int(size.rstrip(b"\0 "), 8)
    spellings = {
        "space": b" %o " % number,
        "tab": b"\t%o\t" % number,
        "plus": b"+%o" % number,
        "underscore": b"0_%o" % number,
        "prefix": b"0o%o" % number,
        "base256": b"\x80" + number.to_bytes(11, "big"),
    }
    for name, spelling in spellings.items():
        block = bytearray(first)
        block[124:136] = spelling.ljust(12, b"\0")[:12]
        yield name, _summed(block) + bytes(plain[512:])
    signed = bytearray(first)
    signed[265:269] = b"\xff\xfe\xfd\xfc"
    yield "signed", _summed(signed, signed=True) + bytes(plain[512:])
    yield "sum-plus", _summed(first, form=b"+%o") + bytes(plain[512:])
    yield "sum-under", _summed(first, form=b"0_%o") + bytes(plain[512:])


def legacy_under_tar(data):
    """Pickles in torch.save()'s old format with a tar checksum at the start."""
    parts = [pickle.dumps(0x1950A86A20F9469CFC6C, 2), pickle.dumps(1001, 2),
             pickle.dumps({"little_endian": True}, 2), pickle.dumps({}, 2),
             pickle.dumps([], 2)]
    head = bytearray(b"".join(parts).ljust(512, b"\0"))
    head[124:136] = b"\0" * 12
    head[156] = ord("0")
    return _summed(head) + tarred(torch_tar_members(data))


def safetensors_pickle():
    """A safetensors file whose length and header are also a pickle."""
    # The length 0x2858 begins with "X" and "(": a text of 0x28 bytes, which
    # ends after the spaces. The opcodes follow; the header is no valid JSON.
    code = "ccanary\nran\n(S'x'\ntR."
    head = "{" + " " * 36
    header = (head + code).ljust(0x2858)
    return struct.pack("<Q", len(header)) + header.encode()


def legacy(data, position):
    parts = [pickle.dumps(0x1950A86A20F9469CFC6C, 2), pickle.dumps(1001, 2),
             pickle.dumps({"little_endian": True}, 2), pickle.dumps({}, 2),
             pickle.dumps([], 2)]
    parts[position] = data
    return b"".join(parts)


def object_array(data):
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    header = header.ljust(117) + b"\n"
    return (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
            + data)


def escaped_object_array(data):
    header = b"{'descr': '|\\x4f', 'fortran_order': False, 'shape': (1,), }"
    header = header.ljust(117) + b"\n"
    return (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
            + data)


def joblib_files():
    import joblib
    import numpy

    objects = numpy.array([Ran()], dtype=object)
    for name, value in {"object": Ran(), "array": objects,
                        "beside": [numpy.arange(9.0), Ran()]}.items():
        for compress in (0, ("zlib", 3), ("gzip", 3), ("bz2", 3), ("xz", 3)):
            out = io.BytesIO()
            joblib.dump(value, out, compress=compress)
            yield f"joblib-{name}-{compress and compress[0]}", out.getvalue()
    # Padding before an array, which pickle.load() reads as opcodes.
    out = io.BytesIO()
    joblib.dump(numpy.frombuffer(b"numbers!" * 8, dtype="u1").copy(), out)
    data = out.getvalue()
    at = data.index(b"numbers!")
    begin = next(at - 1 - n for n in range(17)
                 if data[at - 1 - n] == n and data[at - n:at] == b"\xff" * n)
    code = evil(0).ljust(ord("("), b"0")
    yield "joblib-padding", data[:begin] + b"(" + code + data[at:]


def script_that_writes():
    """TorchScript with a __setstate__ that runs when it is loaded."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.x = 1

        @torch.jit.export
        def __getstate__(self):
            return (self.x, self.training)

        @torch.jit.export
        def __setstate__(self, state: tuple[int, bool]) -> None:
            self.x = torch.from_file("mark", True, 1).numel()
            self.training = state[1]

        def forward(self, a):
            return a + self.x

    out = io.BytesIO()
    torch.jit.save(torch.jit.script(Module()), out)
    return out.getvalue()


def program(expression):
    """A torch.export file with a different expression for a size."""
    import torch

    class Module(torch.nn.Module):
        def forward(self, a):
            return a + 1

    out = io.BytesIO()
    exported = torch.export.export(
        Module(), (torch.ones(4, 2),),
        dynamic_shapes=({0: torch.export.Dim("n")},),
    )
    torch.export.save(exported, out)
    made = io.BytesIO()
    text = json.dumps(expression).encode()
    with zipfile.ZipFile(out) as theirs, zipfile.ZipFile(made, "w") as ours:
        for info in theirs.infolist():
            data = theirs.read(info)
            if info.filename.endswith(".json") and b"expr_str" in data:
                head, _, tail = data.partition(b'"expr_str": "')
                data = head + b'"expr_str": ' + text + tail[tail.index(b'"') + 1:]
            ours.writestr(info.filename, data)
    return made.getvalue()


def evil_files(torch_too=True):
    """Yields pairs of a name and bytes; each runs code in some reader."""
    for protocol in range(6):
        data = evil(protocol)
        p = f"p{protocol}"
        yield f"plain-{p}", data
        yield f"second-{p}", pickle.dumps(1, 2) + data
        yield f"then-broken-{p}", data[:-1] + b"\xff\xff"
        yield f"cut-{p}", data[:-1]
        yield f"zip-{p}", torch_zip(data)
        yield f"zip-deflated-{p}", torch_zip(data, method=zipfile.ZIP_DEFLATED)
        yield f"zip-case-{p}", torch_zip(data, "archive/DATA.PKL")
        yield f"zip-any-name-{p}", zipped({"archive/whatever": data})
        yield f"zip-jpg-{p}", zipped({"a.jpg": data})
        yield f"zip-in-zip-{p}", zipped({"inner.pt": torch_zip(data)})
        yield f"zip-in-zip-twice-{p}", zipped(
            {"b": zipped({"inner.bin": torch_zip(data)})})
        yield f"zip-prefix-{p}", b"hello" + torch_zip(data)
        yield f"zip-after-pickle-{p}", pickle.dumps([], 2) + torch_zip(data)
        yield f"npy-{p}", object_array(data)
        yield f"npy-escaped-{p}", escaped_object_array(data)
        yield f"npz-{p}", zipped({"a.npy": object_array(data)})
        yield f"npz-deflated-{p}", zipped({"a.npy": object_array(data)},
                                          zipfile.ZIP_DEFLATED)
        yield f"tar-{p}", tarred({"x/y.bin": data})
        yield f"tar-torch-{p}", tarred(torch_tar_members(data))
        yield f"tar-npy-{p}", tarred({"a.npy": object_array(data)})
        yield f"tar-zip-{p}", tarred({"a": torch_zip(data)})
        for position in range(5):
            yield f"legacy-{position}-{p}", legacy(data, position)
        yield f"legacy-second-{p}", legacy(pickle.dumps({}, 2), 3) + data
        yield f"gzip-{p}", gzip.compress(data)
        yield f"zlib-{p}", zlib.compress(data)
        yield f"zlib-cut-{p}", zlib.compress(data)[:-3]
        yield f"crc-{p}", torch_zip(data).replace(
            struct.pack("<I", zlib.crc32(data)), b"\1\2\3\4")
    data = evil(2)
    for name, made in odd_tars(data):
        yield f"tar-odd-{name}", made
    yield "tar-over-legacy", legacy_under_tar(data)
    for i, made in enumerate(framed_past_the_end()):
        yield f"frame-{i}", made
        yield f"frame-zip-{i}", torch_zip(made)
        yield f"frame-legacy-{i}", legacy(made, 3)
    yield "inst", b"(S'x'\nicanary\nran\n."
    yield "obj", b"(ccanary\nran\nS'x'\no."
    yield "memo", (b"\x80\x04\x8c\x06canary\x940\x8c\x03ran\x940"
                   b"h\x00h\x01\x93\x8c\x01x\x85R.")
    yield "import-only", b"ccanary\nnothing\n."
    yield "import-unended", b"ccanary\nran"
    yield "protocol-later", b"ccanary\nran\n\x80\x04" + CALL
    yield "tar-name", _summed(
        (b"ccanary\nran\n(S'x'\ntR.").ljust(512, b"\0")) + bytes(1024)
    yield "safetensors", safetensors_pickle()
    if not torch_too:
        return
    yield from joblib_files()
    yield "script", script_that_writes()
    yield "program", program("__import__('canary').ran()")


# Pieces of a stream; more frequent pieces are repeated.
_PIECES = (
    b"(", b".", b"0", b"1", b"2", b"N", b"]", b")", b"}", b"a", b"b", b"d",
    b"e", b"l", b"o", b"s", b"t", b"u", b"R", b"\x81", b"\x85", b"\x86",
    b"\x87", b"\x88", b"\x89", b"\x8f", b"\x90", b"\x91", b"\x92", b"\x93",
    b"\x94", b"\x98", b"Q",
)


def odd_pickle(seed):
    """Returns a random opcode stream that is often meaningful."""
    chance = random.Random(seed)
    out = bytearray()

    def text():
        return chance.choice([b"os", b"system", b"builtins", b"eval", b"numpy",
                              b"a.b", b"__builtin__", b"Queue", b"x" * 9])

    def line():
        return chance.choice([text(), b"1", b"0", b"12", b"-1", b"0x1", b"'q'",
                              b'"q"', b"1L", b"1.5", b" 2 ", b"1_0", b"\\u0041",
                              b"", b"7\0z"])

    def piece():
        kind = chance.randrange(26)
        if kind < 6:
            return chance.choice(_PIECES)
        if kind < 9:
            return b"c" + text() + b"\n" + text() + b"\n"
        if kind == 9:
            return b"(i" + text() + b"\n" + text() + b"\n"
        if kind < 13:
            value = text()
            return chance.choice([
                b"\x8c" + bytes([len(value)]) + value,
                b"X" + struct.pack("<I", len(value)) + value,
                b"\x8d" + struct.pack("<Q", len(value)) + value,
                b"U" + bytes([len(value)]) + value,
                b"T" + struct.pack("<i", len(value)) + value,
                b"V" + value + b"\n",
                b"S'" + value + b"'\n",
            ])
        if kind == 13:
            value = text()
            return chance.choice([
                b"B" + struct.pack("<I", len(value)) + value,
                b"C" + bytes([len(value)]) + value,
                b"\x8e" + struct.pack("<Q", len(value)) + value,
                b"\x96" + struct.pack("<Q", len(value)) + value,
            ])
        if kind == 14:
            return bytes([0x80, chance.randrange(7)])
        if kind == 15:
            return b"\x95" + struct.pack("<Q", chance.randrange(40))
        if kind == 16:
            return chance.choice(b"FILSVPgp").to_bytes(1, "big") + line() + b"\n"
        if kind == 17:
            return chance.choice([
                b"K" + bytes([chance.randrange(256)]),
                b"M" + bytes(2), b"J" + bytes(4), b"G" + bytes(8),
                b"\x8a\x01\x05", b"\x8b\x01\0\0\0\x05",
            ])
        if kind < 20:
            number = chance.randrange(4)
            return chance.choice([
                b"q" + bytes([number]), b"h" + bytes([number]),
                b"r" + struct.pack("<I", number),
                b"j" + struct.pack("<I", number),
                b"p%d\n" % number, b"g%d\n" % number, b"\x94",
            ])
        if kind == 20:
            return chance.choice([b"\x82\x01", b"\x83\x01\0", b"\x84\x01\0\0\0"])
        return b"\x8c\x02os\x8c\x06system\x93"

    if chance.random() < 0.7:
        out += bytes([0x80, chance.randrange(6)])
    for _ in range(chance.randrange(1, 14)):
        out += piece()
    out += b"."
    if chance.random() < 0.3:
        for _ in range(chance.randrange(1, 4)):
            out[chance.randrange(len(out))] = chance.randrange(256)
    if chance.random() < 0.1:
        del out[chance.randrange(len(out)):]
    # An unpickler that reads a frame differently may take any byte for
    # LONG_BINPUT, and allocate a memo of that size.
    if _takes_memory(out):
        return odd_pickle(seed + 1_000_003)
    return bytes(out)


_ENUMERATION = (b"ctorch.distributed.checkpoint.metadata\n"
                b"_MEM_FORMAT_ENCODING\n")
_GETATTR_PIECES = (
    _ENUMERATION, b"cbuiltins\ngetattr\n", b"ccollections\nOrderedDict\n",
    b"X\x13\0\0\0TORCH_CHANNELS_LAST", b"X\x03\0\0\0mro",
    b"X\x09\0\0\0__class__", b"\x8c\x05value", b"K\x01", b"N", b"(", b"t",
    b"\x85", b"\x86", b"\x87", b"R", b"R", b"\x81", b"0", b"2", b"o", b"b", b"}",
    b"]", b"a", b"s", b"q\0", b"q\1", b"q\2", b"h\0", b"h\1", b"h\2", b"\x94",
    b"\x98", b"(ibuiltins\ngetattr\n",
)


def odd_getattr(seed):
    """Returns a stream that often accesses a member of an enumeration, and
    often other attributes."""
    chance = random.Random(seed)
    out = [b"cbuiltins\ngetattr\n", b"q\0", _ENUMERATION, b"q\1",
           b"X\x13\0\0\0TORCH_CHANNELS_LAST", b"\x86", b"q\2", b"R"]
    for _ in range(chance.randrange(3)):
        out += chance.choice([[b"h\0", b"h\2", b"R"],
                              [b"h\0", b"h\1", b"X\x13\0\0\0TORCH_CHANNELS_LAST",
                               b"\x86", b"R"]])
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(out) + 1)
        kind = chance.randrange(3)
        if kind == 0:
            out[at:at] = [chance.choice(_GETATTR_PIECES)]
        elif kind == 1:
            out[at : at + 1] = [chance.choice(_GETATTR_PIECES)]
        else:
            del out[at : at + 1]
    return b"\x80\x03" + b"".join(out) + b"."


def _takes_memory(data):
    return b"r" in data and b"\x95" in data or any(
        (opcode == 0x72 and int.from_bytes(data[i + 1 : i + 5], "little") > 9999)
        or (opcode == 0x96
            and int.from_bytes(data[i + 1 : i + 9], "little") > 9999)
        for i, opcode in enumerate(data)
    )
