"""Pickles and arrays that a reader interprets differently from how they look.

`ROWS` has the form of scan_bypasses.py; each file was once called SAFE or could
have been. `odd_files()` makes random ones: harmless pickles, arrays and
sequences of them whose names, types, memo numbers and call arguments are
encoded in unusual ways.
"""

import io
import json
import pickle
import random
import struct

import numpy

from scan_bypasses import (
    JOBLIB,
    MEMBERS,
    NOBODY,
    PICKLE,
    TORCH,
    array,
    call,
    dtype,
    name,
    state,
    text,
    whole,
)
from scan_cases import evil, tarred, torch_tar_members, zipped

PYTHON = ("pickle in Python",)
NUMPY = ("numpy",)
ON = ("numpy again and again",)
SAME = ("one Unpickler again and again",)
AGAIN = ("pickle again and again",)
BUFFERS = ("pickle with buffers",)

_HUGE = b"36893488147419103233\n"  # 2**65 + 1.
_MEMBER = name("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING")
_WRAPPER = b"cjoblib.numpy_pickle\nNumpyArrayWrapper\n"


def computed(value):
    """A text made by a call."""
    return call(name("builtins", "str"), text(value))


COMPUTED = call(computed("canary") + computed("ran") + b"\x93", text("x"))


def array_of(descr, data, order="False", shape="(1,)", version=1):
    header = (f"{{'descr': {descr}, 'fortran_order': {order}, "
              f"'shape': {shape}, }}").encode()
    header = header.ljust(117) + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + data


def tar_of(data):
    """A tar whose first member has `data` as its name."""
    block = data.ljust(100, b"\0")
    assert len(block) == 100
    whole = bytearray(tarred({"x": b"numbers"}))
    whole[:100] = block
    whole[148:156] = b" " * 8
    whole[148:156] = b"%06o\0 " % sum(whole[:512])
    return bytes(whole)


def saved(value):
    out = io.BytesIO()
    numpy.save(out, value)
    return out.getvalue()


def polyglot_of_safetensors():
    """A safetensors file whose length and header are also a pickle with names
    made by calls."""
    # "X" and "(" begin a text of 0x28 bytes, which ends in the header. The
    # header must be UTF-8, so it has only ASCII opcodes. INST takes no computed
    # name, so the code calls a codec.
    code = (b"cbuiltins\nstr\n(S'canary'\ntRp1\n0c_codecs\nencode\n"
            b"(S'x'\nS'punycode'\ntR.")
    head = b"{" + b" " * 36
    header = (head + code).ljust(0x2858)
    return struct.pack("<Q", len(header)) + header


def wrapper_state(kind, shape=b"K\x02\x85", more=b""):
    return (b"}(" + text("subclass") + b"cnumpy\nndarray\n" + text("shape")
            + shape + text("order") + text("C") + text("dtype") + kind
            + text("allow_mmap") + b"\x88" + more + b"u")


_F8 = dtype("f8") + state(0)
_O8 = dtype("O8") + state(63)
_PAYLOAD = evil(2)


def of_joblib(made, given, data, end=b"N."):
    return b"\x80\x04]" + made + given + b"b" + data + end


def joblib_key_computed():
    """The dict has a second 'dtype', whose key is made by a call."""
    given = (wrapper_state(_F8)[:-1] + computed("dtype") + _O8 + b"u")
    return of_joblib(_WRAPPER + b")\x81", given, _PAYLOAD + b"N" * 40)


def joblib_made_by(made):
    return of_joblib(made, wrapper_state(_O8), _PAYLOAD + b"N" * 40)


def joblib_padded():
    """An object that is not a number acts as the padding."""
    given = wrapper_state(dtype("u1") + state(0), b"K\x03\x85",
                          text("numpy_array_alignment_bytes") + text("x"))
    return of_joblib(_WRAPPER + b")\x81", given,
                     b"\x03" + b"N00" + b"abc" + evil(0)[:-1] + b"0N.")


def memo_counted_twice():
    """MEMOIZE after a PUT with a large number, before those with small ones."""
    puts = [b"Nr" + struct.pack("<I", n) + b"0"
            for n in (3000, 0, 1000, 2900, 3100, 3000, 6, 7)]
    # Eight memo entries exist, including this one: MEMOIZE overwrites it.
    return whole(*puts, text("collections") + b"q\x080",
                 text("canary") + b"\x940", b"h\x08" + text("OrderedDict")
                 + b"\x93")


def memo_shared():
    first = whole(text("canary") + b"\x94" + text("ran") + b"\x940")
    second = whole(text("collections") + b"\x940" + text("Counter") + b"\x940",
                   b"h\x00h\x01\x930N")
    return first + second


def memo_shared_later():
    """The first pickle leaves nothing in the memo."""
    return whole(b"N") + memo_shared()


def joblib_padded_before():
    """The dict announces padding before the wrapper is named, so that joblib
    reads one byte more."""
    given = (b"h\x07(" + wrapper_state(dtype("u1") + state(0))[2:])
    code = b"ccanary\nran\n(S'x'\ntR0N."
    return (b"\x80\x02}" + text("numpy_array_alignment_bytes") + b"K\x10sq\x070]"
            + _WRAPPER + b")\x81" + given + b"b" + b"\0\0" + b"X"
            + struct.pack("<I", len(code) + 4)[:4].replace(b"\0", b"\0")
            + code + b"N" * 4 + b".")


def joblib_changed_through_another(more):
    """The dict belongs to another object, which gets a state."""
    alias = (call(name("argparse", "Namespace")) + b"N}" + text("__dict__")
             + b"h\x07s\x86b}" + more + b"sb0")
    given = wrapper_state(_F8)
    return (b"\x80\x04]" + _WRAPPER + b")\x81" + given + b"q\x07" + alias + b"b"
            + _PAYLOAD + b"N" * 40 + b"N.")


_ADDRESS = text("__array_interface__")


def with_address(letters=_ADDRESS):
    """An object that tells NumPy to read at an address."""
    address = (b"}(" + text("data") + b"\x8a\x06AAAAAA\x89\x86"
               + text("typestr") + text("<u8") + text("shape") + b"K\x01\x85"
               + text("version") + b"K\x03u")
    return (call(name("types", "SimpleNamespace")) + b"}" + letters + address
            + b"sb")


def number_through_append(value):
    """A number type of NumPy that is called as the attribute of an object."""
    return whole(call(name("types", "SimpleNamespace")), b"}", text("append"),
                 name("numpy", "float32"), b"sb", value, b"a")


def text_scalar(value):
    return call(name("numpy._core.multiarray", "scalar"),
                dtype(f"U{len(value)}") + state(0, 4 * len(value)),
                b"C" + bytes([4 * len(value)]) + value.encode("utf-32-le"))


def item_of_an_array():
    zeros = (array(b"K\x00\x85")
             + b"(K\x01K\x01\x85" + dtype("u8") + state(0) + b"\x89C\x08"
             + bytes(8) + b"tb")
    return whole(zeros, call(name("builtins", "slice"), b"N"), with_address(),
                 b"s")


def class_with_methods():
    """_reconstructor() calls methods of an object that is not a class."""
    base = (call(name("types", "SimpleNamespace")) + b"}" + text("__new__")
            + name("builtins", "slice") + b"s" + text("__init__")
            + name("builtins", "slice") + b"sb")
    return whole(call(name("copyreg", "_reconstructor"),
                      name("collections", "OrderedDict"), base, b"N"))


def joblib_before_code():
    return of_joblib(_WRAPPER + b")\x81", wrapper_state(_F8),
                     bytes(range(16)), evil(0)[:-1] + b"0N.")


def many_arrays_of_joblib(count):
    """Arrays whose numbers are opcodes, so that the file goes on as a pickle
    behind each of them."""
    given = wrapper_state(dtype("u1") + state(0))
    array_between = _WRAPPER + b")\x81" + given + b"bN00"
    return b"\x80\x02]" + array_between * count + b"."


def two_pickles_in_safetensors(code):
    """A safetensors file that is also two pickles: opcodes skip the header, and
    a tensor's numbers begin with the end of the first pickle."""
    size = 0x474E  # "NG": None, and a float that covers the length.
    payload = b"." + code
    tail = (f'":{{"dtype":"U8","shape":[{len(payload)}],'
            f'"data_offsets":[0,{len(payload)}]}}}}').encode()
    header = bytearray(b'{"' + b"a" * (size - 2 - len(tail)) + tail)
    at = 2
    while at < size:
        left = size - at - 2
        skipped = left if 32 <= left < 127 else 90  # SHORT_BINSTRING.
        header[at : at + 2] = b"U" + bytes([skipped])
        at += 2 + skipped
    return struct.pack("<Q", size) + bytes(header) + payload


def rebuilt(function, kind, arguments, given=b"}"):
    return call(name("torch._tensor", "_rebuild_from_type_v2"), function, kind,
                b"(" + arguments + b"t", given)


_STR = b"cbuiltins\nstr\n"
_SHORT = (b"\x80\x04" + _STR + b"(S'canary'\ntR" + _STR
          + b"(S'ran'\ntR\x93(S'x'\ntR.")


ROWS = (
    # Headers of arrays.
    ("type in two strings", "own", array_of("'obj' 'ect'", evil(2)), NUMPY),
    ("type in two strings, in an npz", "own",
     zipped({"a.npy": array_of("'obj' 'ect'", evil(4))}), NUMPY),
    ("type with a prefix", "own", array_of("u'obj' r'ect'", evil(2)), NUMPY),
    ("type in parentheses", "own", array_of("('obj' 'ect')", evil(2)), NUMPY),
    ("type of three quotes", "own", array_of("'''obj''' 'ect'", evil(2)),
     NUMPY),
    ("type that is there twice", "own",
     array_of("'f8', 'descr': 'obj' 'ect'", evil(2)), NUMPY),
    ("field in two strings", "own",
     array_of("[('a', 'obj' 'ect')]", evil(2)), NUMPY),
    ("field behind a comment", "own",
     array_of("[('a', #')]\n 'obj' 'ect')]", evil(2)), NUMPY),
    ("type with a shape in two strings", "own",
     array_of("('obj' 'ect', (2,))", evil(2)), NUMPY),
    ("version 3", "own", array_of("'obj' 'ect'", evil(2), version=3), NUMPY),
    ("pickle behind an array", "own", saved(numpy.arange(3.0)) + evil(4), ON),
    ("array behind an array", "own",
     saved(numpy.arange(3)) + array_of("'obj' 'ect'", evil(2)), ON),
    ("array of objects behind a pickle", "own",
     pickle.dumps(1, 2) + array_of("'|O'", evil(2)), ON),
    ("array behind an array of objects", "own",
     saved(numpy.array([None])) + array_of("'|O'", evil(2)), ON),
    # Memo numbers.
    ("PUT beyond 64 bits", "own", b"Np" + _HUGE + b"0" + evil(0), PYTHON + JOBLIB),
    ("GET beyond 64 bits", "own",
     b"Vcanary\np" + _HUGE + b"0I1\n0g" + _HUGE + b"Vran\n\x93(Vx\ntR.",
     PYTHON + JOBLIB),
    ("MEMOIZE counted twice", "own", memo_counted_twice(),
     PICKLE + TORCH),
    ("memo of the pickle before", "own", memo_shared(), SAME),
    # Out-of-band buffers.
    ("NEXT_BUFFER", "own", b"\x970" + evil(0), BUFFERS),
    ("READONLY_BUFFER", "own", b"\x97\x980" + evil(4)[2:], BUFFERS),
    # Computed names and codecs.
    ("names made by str", "own", whole(COMPUTED), PICKLE + TORCH),
    ("names made by str in a tar's name", "own", tar_of(_SHORT),
     PICKLE),
    ("codec in a header of safetensors", "own", polyglot_of_safetensors(),
     NOBODY),
    ("names made by str in a zip's numbers", "own",
     zipped({"m/data/0": whole(COMPUTED)}), ("members",)),
    ("names made by encode and str", "own",
     whole(call(call(name("builtins", "str"), call(
         name("_codecs", "encode"), text("canary"), text("latin1")),
         text("latin1")) + text("ran") + b"\x93", text("x"))), PICKLE + TORCH),
    ("names given back", "own",
     whole(call(name("torch.jit._pickle", "restore_type_tag"),
                text("canary"), text("x")) + text("ran") + b"\x93)R"),
     PICKLE + TORCH),
    ("codec", "own", whole(call(name("_codecs", "encode"), text("x"),
                                text("punycode"))), NOBODY),
    ("codec that is computed", "own",
     whole(call(name("_codecs", "encode"), text("x"), computed("latin1"))),
     NOBODY),
    ("codec of bytes", "own",
     whole(call(name("builtins", "bytes"), text("x"), text("punycode"))),
     NOBODY),
    ("codec of str", "own",
     whole(call(name("builtins", "str"), b"C\x01x", text("punycode"))), NOBODY),
    ("codec by NEWOBJ", "own",
     whole(name("builtins", "bytearray"), text("x"), text("punycode"),
           b"\x86\x81"), NOBODY),
    ("codec by INST", "own",
     b"(S'x'\nS'punycode'\nibuiltins\nbytes\n.", NOBODY),
    ("codec by OBJ", "own",
     whole(b"(", name("builtins", "bytes"), text("x"), text("punycode"), b"o"),
     NOBODY),
    ("codec by a list", "own",
     whole(name("_codecs", "encode"), b"]", text("x"), b"a", text("punycode"),
           b"aR"), NOBODY),
    ("codec by older arguments", "own",
     whole(name("_codecs", "encode"), text("x") + text("punycode")
           + b"\x86\x940N\x850h\x00R"), NOBODY),
    ("codec through __newobj__", "own",
     whole(call(name("copyreg", "__newobj__"), name("builtins", "bytes"),
                text("x"), text("punycode"))), NOBODY),
    ("codec through torch", "own",
     whole(rebuilt(name("_codecs", "encode"), name("builtins", "bytes"),
                   text("x") + text("punycode"))), NOBODY),
    ("codec of numpy.str_", "own",
     whole(call(name("numpy", "str_"), b"C\x01x", text("punycode"))), NOBODY),
    # State shared in a process.
    ("state of a member", "own",
     whole(call(_MEMBER, b"K\x00"), b"}", text("a"), b"K\x01sb"), NOBODY),
    ("state of a member by __newobj__", "own",
     whole(call(name("copyreg", "__newobj__"), _MEMBER, b"K\x00"), b"}",
           text("a"), b"K\x01sb"), NOBODY),
    ("state of a member through torch", "own",
     whole(rebuilt(_MEMBER, _MEMBER, b"K\x00", b"}" + text("a") + b"K\x01s")),
     NOBODY),
    ("state of a class that was given back", "own",
     whole(call(name("torch.jit._pickle", "restore_type_tag"),
                name("collections", "OrderedDict"), text("")),
           b"N}", text("a"), b"K\x01s\x86b"), NOBODY),
    # joblib arrays.
    ("wrapper made by a call", "own",
     joblib_made_by(_WRAPPER + b"(cnumpy\nndarray\n)" + text("C") + _O8 + b"tR"),
     JOBLIB),
    ("wrapper made by _reconstructor", "own",
     joblib_made_by(b"ccopyreg\n_reconstructor\n(" + _WRAPPER
                    + b"cbuiltins\nobject\nNtR"), JOBLIB),
    ("wrapper made by __newobj__", "own",
     joblib_made_by(b"ccopyreg\n__newobj__\n(" + _WRAPPER + b"tR"), JOBLIB),
    ("wrapper's key computed", "own", joblib_key_computed(), JOBLIB),
    ("wrapper's padding said before", "own", joblib_padded_before(), NOBODY),
    ("wrapper's type changed through another object", "own",
     joblib_changed_through_another(text("dtype") + _O8), JOBLIB),
    ("memo of the pickle but one before", "own", memo_shared_later(), SAME),
    ("object given back by NumPy", "own",
     whole(call(name("numpy._core.multiarray", "scalar"), dtype("O8") + state(63),
                name("collections", "OrderedDict")), b"N}" + text("a")
           + b"K\x01s\x86b"), NOBODY),
    ("codec through __setstate__", "own",
     whole(call(name("argparse", "Namespace")), b"}", text("__setstate__"),
           name("copyreg", "__newobj__"), b"sb", _MEMBER, b"b"), NOBODY),
    # NumPy and addresses.
    ("number at an address", "own",
     whole(call(name("numpy", "float32"), with_address())), PICKLE + TORCH),
    ("number at an address, by NEWOBJ", "own",
     whole(name("numpy", "int64"), with_address(), b"\x85\x81"),
     PICKLE + TORCH),
    ("number at an address, by INST", "own",
     b"(" + with_address() + b"inumpy\nint64\n.", PICKLE + TORCH),
    ("number at an address in a list", "own",
     whole(name("numpy", "int64"), b"]", with_address(), b"a\x85R"),
     PICKLE + TORCH),
    ("number at an address through __newobj__", "own",
     whole(call(name("copyreg", "__newobj__"), name("numpy", "int64"),
                with_address())), PICKLE + TORCH),
    ("number at an address through append", "own",
     number_through_append(with_address()), PICKLE + TORCH),
    ("the same with a line of text", "own",
     number_through_append(with_address(b"V__\\u0061rray_interface__\n")),
     PICKLE + TORCH),
    ("the same with a text that is computed", "own",
     number_through_append(with_address(call(
         name("builtins", "str"), b"C\x13__array_interface__",
         text("latin1")))), PICKLE + TORCH),
    ("the same with a text of NumPy", "own",
     number_through_append(with_address(text_scalar("__array_interface__"))),
     PICKLE + TORCH),
    ("item of an array at an address", "own", item_of_an_array(),
     PICKLE + TORCH),
    ("class that is none", "own", class_with_methods(), NOBODY),
    ("text of one byte with a negative size", "own",
     whole(call(name("numpy._core.multiarray", "scalar"),
                dtype("c") + state(0, -1), b"C\x08" + b"A" * 8)), NOBODY),
    # Later pickles in what is something else.
    ("joblib's array in a record of numbers", "own",
     zipped({"m/data.pkl": pickle.dumps({}, 2), "m/data/0":
             joblib_before_code()}), MEMBERS),
    ("second pickle in a record of numbers", "own",
     zipped({"m/data.pkl": pickle.dumps({}, 2), "m/data/0": b"N." + evil(2)}),
     MEMBERS),
    ("second pickle in a tar's name", "own",
     tar_of((b"N." + evil(0)).ljust(94, b"/") + b"/a.txt"), AGAIN),
    ("second pickle in safetensors", "own",
     two_pickles_in_safetensors(evil(2)), AGAIN),
    ("pickle behind the storages of a tar", "own",
     tarred({**torch_tar_members(pickle.dumps({}, 2)), "storages":
             pickle.dumps(0, 2) + pickle.dumps([], 2) + evil(2)}), MEMBERS),
    ("wrapper's padding is no number", "own", joblib_padded(), NOBODY),
    ("wrapper of objects", "own", joblib_made_by(_WRAPPER + b")\x81"), JOBLIB),
)


def _pieces(chance):
    """Opcodes that push one value or none; some run canary.ran."""
    def word(value):
        kind = chance.randrange(7)
        if kind == 0:
            return b"\x8c" + bytes([len(value)]) + value.encode()
        if kind == 1:
            return b"V" + value.encode() + b"\n"
        if kind == 2:
            return b"S'" + value.encode() + b"'\n"
        if kind == 3:
            return computed(value)
        if kind == 4:
            return call(name("torch.jit._pickle", "restore_type_tag"),
                        text(value), text(""))
        if kind == 5:
            number = chance.choice([b"7\n", b"+7\n", b"0_7\n", _HUGE, b"-1\n",
                                    b"9223372036854775807\n"])
            return text(value) + b"p" + number + b"0g" + number
        return text(value) + b"\x94"

    def arguments(*values):
        joined = b"".join(values)
        kind = chance.randrange(5)
        if kind == 0 and len(values) == 1:
            return joined + b"\x85"
        if kind == 1:
            return b"](" + joined + b"e"
        if kind == 2:
            return call(name("builtins", "tuple"), b"](" + joined + b"e")
        if kind == 3:
            return b"(" + joined + b"tq\x09N\x850"
        return b"(" + joined + b"t"

    def target():
        return chance.choice([
            lambda: word("canary") + word("ran") + b"\x93",
            lambda: b"ccanary\nran\n",
            lambda: word("collections") + word("OrderedDict") + b"\x93",
            lambda: word("builtins") + word("str") + b"\x93",
            lambda: word("canary.ran") + word("ran") + b"\x93",
            lambda: word("builtins") + word("list.__class__") + b"\x93",
        ])()

    def called():
        kind = chance.randrange(7)
        if kind == 0:
            return target() + arguments(word("x")) + b"R"
        if kind == 1:
            return b"(" + target() + word("x") + b"o"
        if kind == 2:
            return b"(" + word("x") + b"icanary\nran\n"
        if kind == 3:
            return target() + arguments(word("x")) + b"\x81"
        if kind == 4:
            return (name("copyreg", "__newobj__")
                    + arguments(target(), word("x")) + b"R")
        if kind == 5:
            return (name("torch._tensor", "_rebuild_from_type_v2")
                    + arguments(target(), name("builtins", "str"),
                                arguments(word("x")), b"}") + b"R")
        return (call(name("argparse", "Namespace")) + b"}" + word("append")
                + target() + b"sb" + word("x") + b"a")

    return chance.choice([called, called, target, lambda: word("x") + b"0N",
                          lambda: b"\x970N", lambda: b"(1N", lambda: b"N20"])()


def _odd_header(chance):
    quoted = [lambda v: f"'{v}'", lambda v: f'"{v}"', lambda v: f"u'{v}'",
              lambda v: f"'{v[:1]}' '{v[1:]}'", lambda v: f"('{v}')",
              lambda v: f"'''{v}'''", lambda v: f"r'{v[:2]}' '{v[2:]}'",
              lambda v: json.dumps(v).replace("O", "\\u004f"),
              lambda v: f"'{v}' #\n"]
    kind = chance.choice(["object", "|O", "O8", "f8", "V8", "i4,O", "O,O"])
    descr = chance.choice(quoted)(kind)
    if chance.random() < 0.4:
        descr = chance.choice([
            "[('a', {})]", "[('a', 'f8'), ('b', {})]", "({}, (1,))",
            "[('a', [('b', {})])]", "[(('t', 'a'), {})]", "[('', {})]",
            "[('a', {}, (1,))]",
        ]).format(descr)
    return array_of(descr, evil(chance.randrange(6)),
                    chance.choice(["False", "True", "0", "not 1"]),
                    chance.choice(["(1,)", "(1L,)", "()", "(1, 1)", "[1]"]),
                    chance.choice((1, 2, 3)))


def odd_file(seed):
    """Returns a random pickle, array or sequence of them."""
    chance = random.Random(seed)

    def one():
        kind = chance.randrange(8)
        if kind == 0:
            return _odd_header(chance)
        if kind == 1:
            return saved(numpy.arange(chance.randrange(3)))
        if kind == 2:
            made = chance.choice([
                _WRAPPER + b")\x81", b"(o" + _WRAPPER, _WRAPPER + b")R",
                b"ccopyreg\n__newobj__\n(" + _WRAPPER + b"tR",
                b"(" + _WRAPPER + b"o", _WRAPPER + b")\x81\x94N0"])
            kind = chance.choice([_F8, _O8, dtype("V8"), dtype("u1") + state(0)])
            more = chance.choice([b"", computed("dtype") + _O8,
                                  computed("shape") + b"K\x00\x85",
                                  text("numpy_array_alignment_bytes")
                                  + chance.choice([b"N", b"K\x10", b"]"])])
            return of_joblib(made, wrapper_state(kind, more=more),
                             evil(2) + b"N" * chance.randrange(40),
                             evil(0)[:-1] + b"0.")
        head = b"\x80" + bytes([chance.randrange(6)])
        parts = [_pieces(chance) for _ in range(chance.randrange(1, 4))]
        return (chance.choice([head, head, b""]) + b"".join(parts)
                + chance.choice([b".", b".", b"N.", b""]))

    data = b"".join(one() for _ in range(chance.choice((1, 1, 1, 2, 3))))
    kind = chance.randrange(8)
    if kind == 0:
        return zipped({chance.choice(("m/data/0", "m/data.pkl", "a.npy", "x")):
                       data})
    if kind == 1:
        return tarred({chance.choice(("x", "a.npy")): data})
    return data
