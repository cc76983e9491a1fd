"""Ways to evade other scanners, and earlier versions of this one.

`ROWS` has for each way a name, who published it, the file, and the readers in
which it runs code here, or kills the process, which an attacker who knows the
process can turn into running code. Ways that no reader here runs (other
versions did, or the case represents a family) have no reader. Names that a
blocklist lacked are in test_scan.py, since scan needs no blocklist.
"""

import bz2
import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib

from scan_cases import (
    evil,
    legacy,
    object_array,
    tarred,
    torch_tar_members,
    torch_zip,
    zipped,
)

PICKLE = ("pickle", "pickle.loads", "pickle in Python")
TORCH = ("torch.load",)
JOBLIB = ("joblib",)
MEMBERS = ("members",)
NOBODY = ()

_MAGIC = 0x1950A86A20F9469CFC6C


def text(value):
    value = value.encode()
    return b"X" + struct.pack("<I", len(value)) + value


def name(module, attribute):
    """Names with STACK_GLOBAL, which may contain dots."""
    return text(module) + text(attribute) + b"\x93"


def number(value):
    return b"J" + struct.pack("<i", value)


def call(callee, *arguments):
    return callee + b"(" + b"".join(arguments) + b"tR"


def whole(*parts, protocol=4):
    return bytes([0x80, protocol]) + b"".join(parts) + b"."


RAN = name("canary", "ran")
GONE = call(RAN, text("x")) + b"0N"  # Called, with its result discarded.


# NumPy's types and arrays, as written by NumPy and with other state.


def dtype(code, copy=b"\x88"):
    return call(name("numpy", "dtype"), text(code), b"\x89", copy)


def state(flags, size=-1, names=b"N", fields=b"N"):
    return (b"(K\x03" + text("|") + b"N" + names + fields + number(size)
            + number(-1) + b"K" + bytes([flags]) + b"tb")


def field(at, kind="f8", key="a", opcode=b"s"):
    return text(key) + dtype(kind) + state(0) + at + b"\x86" + opcode


def fields_at(at, names=None, size=8, written=None):
    """Returns a type of eight bytes with an eight-byte field at `at`."""
    return dtype(f"V{size}") + state(
        16, size, names or text("a") + b"\x85", b"}" + field(at)).replace(
            number(size), written or number(size))


def fields_changed_later():
    """NumPy keeps the dict, which then gets another field of that name."""
    made = dtype("V8") + state(16, 8, text("a") + b"\x85",
                               b"}\x94" + field(b"K\x00"))
    return whole(made, b"0h\x00" + field(number(4096)))


def fields_shared_before():
    """The same through another reference to the dict."""
    return whole(dtype("f8"), b"0}\x94h\x00\x85\x940",
                 dtype("V8") + state(16, 8, text("a") + b"\x85",
                                     b"h\x00" + field(b"K\x00")))


def fields_of_objects(flags):
    fields = b"}" + text("a") + dtype("O8") + state(63) + b"K\x00\x86s"
    return dtype("V8") + state(flags, 8, text("a") + b"\x85", fields)


def from_buffer(kind, data=b"C\x08" + b"A" * 8, count=1):
    return call(name("numpy._core.numeric", "_frombuffer"), data, kind,
                number(count) + b"\x85", text("C"))


def as_list(value):
    return call(name("builtins", "list"), value)


def array(shape, kind=None, code="b"):
    made = call(name("numpy._core.multiarray", "_reconstruct"),
                name("numpy", "ndarray"), shape, text(code))
    if kind is None:
        return made
    return made + b"(K\x01K\x00\x85" + kind + b"\x89C\x00tb"


def array_freed_under_a_view():
    big = 1_000_000
    return whole(
        array(number(big) + b"\x85"), b"\x940",  # Memo 0 holds its own bytes.
        from_buffer(dtype("O8") + state(0), b"h\x00", big // 8), b"\x940",
        b"h\x00(K\x01K\x00\x85" + dtype("u1") + state(0) + b"\x89C\x00tb0",
        as_list(b"h\x01"))


def array_with_a_second_state():
    empty = dtype("u1") + state(0)
    again = b"(K\x01K\x00\x85" + empty + b"\x89C\x00tb"
    return whole(array(b"K\x00\x85", empty), again)


def type_made_otherwise(module, function):
    return whole(call(name(module, function), name("numpy", "dtype"),
                      *([name("numpy", "dtype")]
                        if function == "_reconstructor" else []),
                      text("O8")), state(0))


def keywords(module, attribute, word, *arguments):
    return whole(name(module, attribute), b"(", *arguments, b"t}", text(word),
                 b"\x8a\x06AAAAAA", b"s\x92")


def joblib_array(kind, rest):
    """A wrapper followed by two numbers."""
    return (b"\x80\x02]cjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81}("
            + text("subclass") + b"cnumpy\nndarray\n" + text("shape")
            + b"K\x02\x85" + text("order") + text("C") + text("dtype")
            + kind.replace(name("numpy", "dtype"), b"cnumpy\ndtype\n")
            + text("allow_mmap") + b"\x88ub" + rest)


# Archives.


def odd_magic(magic):
    """An old checkpoint whose magic number is encoded differently."""
    return magic + legacy(evil(2), 3)[len(pickle.dumps(_MAGIC, 2)):]


def patched(data, header, offset, value):
    """A zip with a changed field in each header of that kind."""
    changed = bytearray(data)
    at = changed.find(header)
    while at >= 0:
        changed[at + offset : at + offset + len(value)] = value
        at = changed.find(header, at + 4)
    return bytes(changed)


def local_name_differs():
    data = torch_zip(evil(2))
    return data.replace(b"archive/data.pkl", b"archive/data.txt", 1)


def tar_in(compress):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("a.pkl")
        info.size = len(evil(2))
        archive.addfile(info, io.BytesIO(evil(2)))
    return compress(out.getvalue())


def lzma_of_small_dictionary(data):
    filters = [{"id": lzma.FILTER_LZMA1, "dict_size": 4096}]
    return lzma.compress(data, format=lzma.FORMAT_ALONE, filters=filters)


def old_joblib(data, space=b""):
    return (b"ZF" + hex(len(data)).ljust(19).encode() + space
            + zlib.compress(data))


def structured_array(data):
    header = b"{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,)}"
    header = header.ljust(117) + b"\n"
    return (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
            + data)


_PAD = b"\x80\x02X" + struct.pack("<I", 400_000) + bytes(
    32 + i * i % 90 for i in range(400_000)) + b"0"
_FLAGS = b"\x01\x00"  # Claims to be encrypted.
_LOCAL, _CENTRAL = b"PK\x03\x04", b"PK\x01\x02"

ROWS = (
    # Names built in other ways than a scanner assumes.
    ("memo of PUT and MEMOIZE", "picklescan issue 14",
     whole(text("canary") + b"q\x000" + text("ran") + b"q\x010"
           + text("torch._utils") + b"\x940" + text("_rebuild") + b"\x940"
           + call(b"h\x00h\x01\x93", text("x"))), PICKLE + TORCH),
    ("memo written over", "picklescan issue 22",
     whole(text("collections") + b"q\x000" + text("canary") + b"q\x000"
           + call(b"h\x00" + text("ran") + b"\x93", text("x"))),
     PICKLE + TORCH),
    ("names set on a class", "modelscan issue 85",
     whole(name("argparse", "Namespace"), b"N}", text("a"), text("canary"),
           b"s\x86b0", name("argparse", "Namespace.a"), text("ran"), b"\x93",
           b"(", text("x"), b"tR"), PICKLE + TORCH),
    ("builtins of a module", "modelscan issue 330",
     whole(call(name("collections", "abc.sys.modules.get"), text("x"))),
     NOBODY),
    ("a module of a module", "picklescan GHSA-vvpj-8cmc-gx39",
     whole(call(name("argparse", "_os.symlink"), text("/"), text("mark"))),
     PICKLE + TORCH),
    ("a module of torch's", "picklescan CVE-2025-10157",
     whole(call(name("torch.serialization", "os.symlink"), text("/"),
                text("mark"))), PICKLE + TORCH),
    ("a name of Python 2", "picklescan, _unsafe_globals",
     b"\x80\x02c__builtin__\neval\n(U\x11open('mark', 'w')tR.", PICKLE + TORCH),
    ("a module of Python 2", "picklescan, _unsafe_globals",
     b"\x80\x02ccommands\ngetoutput\n(U\x0atouch marktR.", PICKLE + TORCH),
    ("INST", "fickling", b"(S'x'\nicanary\nran\n.", PICKLE + TORCH),
    ("OBJ", "fickling GHSA-mxhj-88fx-4pcv",
     b"(ccanary\nran\nS'x'\no.", PICKLE + TORCH),
    ("NEWOBJ of what is no class", "fickling",
     whole(RAN, b")\x81"), PICKLE + TORCH),
    ("result popped", "fickling", whole(GONE), PICKLE + TORCH),
    ("result built upon", "fickling GHSA-mhc9-48gj-9gp3",
     whole(call(RAN, call(name("argparse", "Namespace"))), b"}", text("a"),
           b"K\x01sb"), PICKLE + TORCH),
    ("called through __setstate__", "fickling",
     whole(call(name("argparse", "Namespace")), b"}", text("__setstate__"),
           RAN, b"sb}", text("a"), b"K\x01sb"), PICKLE + TORCH),
    ("called through append", "fickling",
     whole(call(name("argparse", "Namespace")), b"}", text("append"), RAN,
           b"sbK\x01a"), PICKLE + TORCH),
    ("import and no call", "fickling", b"ccanary\nnothing\n.",
     PICKLE + TORCH),
    ("an extension code", "fickling",
     whole(call(name("copyreg", "add_extension"), text("canary"),
                text("ran"), b"K\x07"), b"0", call(b"\x82\x07", text("x"))),
     PICKLE + TORCH),
    ("the extension code of another file", "fickling",
     whole(call(b"\x82\x07", text("x"))), NOBODY),
    # Broken or concatenated pickles.
    ("broken behind the call", "picklescan GHSA-9gvj-pp9x-gcfr",
     whole(GONE)[:-1] + b"\xff", PICKLE + TORCH),
    ("cut behind the call", "nullifAI", whole(GONE)[:-1], PICKLE + TORCH),
    ("PROTO again and again", "fickling",
     b"\x80\x02\x80\x04\x80\x02" + evil(2), PICKLE + TORCH),
    ("magic number computed", "picklescan, pytorch_magic_bypass",
     odd_magic(b"\x80\x02cbuiltins\nint\n" + text(str(_MAGIC)) + b"\x85R."),
     TORCH),
    ("magic number as text of Python 2", "picklescan, pytorch_magic_bypass",
     odd_magic(b"L%dL\n." % _MAGIC), TORCH),
    ("the same in a zip", "own",
     zipped({"x.pkl": odd_magic(b"L%dL\n." % _MAGIC)}), MEMBERS),
    # Zips with field values that readers ignore.
    ("flags of the directory", "picklescan CVE-2025-1945",
     patched(torch_zip(evil(2)), _CENTRAL, 8, _FLAGS), NOBODY),
    ("flags of the records", "picklescan CVE-2025-1945",
     patched(torch_zip(evil(2)), _LOCAL, 6, _FLAGS), TORCH),
    ("CRC of the directory", "picklescan CVE-2025-10156",
     patched(torch_zip(evil(2)), _CENTRAL, 16, bytes(4)), TORCH),
    ("CRC of both", "picklescan CVE-2025-10156",
     patched(patched(torch_zip(evil(2)), _CENTRAL, 16, bytes(4)), _LOCAL, 14,
             b"\1\2\3\4"), TORCH),
    ("another name in the record", "picklescan CVE-2025-1944",
     local_name_differs(), TORCH),
    ("a record of any name", "picklescan CVE-2025-1889",
     zipped({"config.p": evil(4)}), MEMBERS),
    # Compression.
    ("7z in a zip", "nullifAI", zipped({"a": b"7z\xbc\xaf\x27\x1c" + evil(2)}),
     NOBODY),
    ("tar.gz", "own", tar_in(gzip.compress), MEMBERS),
    ("tar.bz2", "own", tar_in(bz2.compress), MEMBERS),
    ("tar.xz", "own", tar_in(lzma.compress), MEMBERS),
    ("gzip behind an empty one", "own",
     gzip.compress(b"") + gzip.compress(evil(2)), NOBODY),
    ("lzma of a small dictionary", "own", lzma_of_small_dictionary(evil(2)),
     JOBLIB),
    ("joblib of old", "own", old_joblib(evil(2)), JOBLIB),
    ("joblib of old, by Python 2", "own", old_joblib(evil(2), b" "), JOBLIB),
    ("joblib of old in a zip", "own", zipped({"a": old_joblib(evil(2))}),
     NOBODY),
    # Records with names of tensors.
    ("pickle far into a record of numbers", "own",
     zipped({"a/data/0": _PAD + evil(2)}, zipfile.ZIP_DEFLATED), MEMBERS),
    ("zlib in a record of numbers", "own",
     zipped({"a/data/0": zlib.compress(evil(2))}), MEMBERS),
    ("gzip in a record of numbers", "own",
     zipped({"a/data/0": gzip.compress(evil(2))}), MEMBERS),
    ("zip behind numbers", "own",
     zipped({"a/data/0": b"numbers" + torch_zip(evil(2))}), NOBODY),
    ("second pickle of a record", "own",
     zipped({"x.pkl": pickle.dumps(1, 2) + evil(2)}), NOBODY),
    ("zip behind a pickle in a record", "own",
     zipped({"x.pkl": pickle.dumps([], 2) + torch_zip(evil(2))}), NOBODY),
    ("tar in a zip", "own",
     zipped({"a": tarred(torch_tar_members(evil(2)))}), NOBODY),
    ("joblib's array in a record", "own",
     zipped({"x.pkl": joblib_array(dtype("u1"), b"N." + evil(0)[:-1] + b"e.")}),
     MEMBERS),
    ("array with a field of objects", "own", structured_array(evil(2)),
     ("numpy",)),
    ("array of objects in a record", "own",
     zipped({"a": object_array(evil(2))}), MEMBERS),
    # Data descriptions that reach any byte of the process.
    ("type of objects said to be numbers", "own",
     whole(as_list(from_buffer(dtype("O8") + state(0)))), PICKLE + TORCH),
    ("field of objects said to be numbers", "own",
     whole(call(name("builtins", "set"),
                as_list(from_buffer(fields_of_objects(0))))),
     PICKLE + TORCH),
    ("numbers said to be objects", "own",
     joblib_array(dtype("f8") + state(63), evil(2) + b"N" * 9 + b"e."),
     JOBLIB),
    ("numbers of another size", "own",
     whole(dtype("V8"), state(0, 1 << 30)), NOBODY),
    ("field past the end", "own", whole(fields_at(number(4096))), NOBODY),
    ("field before the begin", "own", whole(fields_at(b"\x8a\x01\xf8")),
     NOBODY),
    ("field past the end in octal", "own",
     whole(fields_at(b"K\x00", size=10, written=b"I010\n")), NOBODY),
    ("name without a field", "own",
     whole(call(name("builtins", "set"), as_list(from_buffer(fields_at(
         b"K\x00", text("a") + text("b") + b"\x86"))))), PICKLE + TORCH),
    ("fields changed later", "own", fields_changed_later(), NOBODY),
    ("fields shared before", "own", fields_shared_before(), NOBODY),
    ("text of a negative size", "own",
     whole(dtype("S"), state(0, -1)), NOBODY),
    ("the type that all share", "own",
     whole(dtype("i8", b"\x89"), state(63)), NOBODY),
    ("type made by __newobj__", "own",
     type_made_otherwise("copyreg", "__newobj__"), NOBODY),
    ("type made by _reconstructor", "own",
     type_made_otherwise("copyreg", "_reconstructor"), NOBODY),
    ("array freed under a view", "own", array_freed_under_a_view(),
     PICKLE + TORCH),
    ("array with a second state", "own", array_with_a_second_state(), NOBODY),
    ("tensor at an address", "own",
     keywords("torch", "Tensor", "cdata"), PICKLE + TORCH),
    ("tensor of numbers at an address", "own",
     keywords("torch", "FloatTensor", "cdata"), PICKLE + TORCH),
    ("storage whose allocator is an address", "own",
     keywords("torch.storage", "UntypedStorage", "allocator", b"K\x10"),
     PICKLE + TORCH),
)
