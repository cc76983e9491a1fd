#!/usr/bin/env python3
"""Writes testdata/dangerous_pickles/: pickles that would run code.

If one is run after all, it makes an empty file named haulway-was-here in the
current folder and nothing else. manifest.tsv has a line for each: file, whether
Python's own unpickler runs it (`live`) or it only breaks a rule (`dead`), the
code with which loading fails, and part of the message.

    tools/make_dangerous_pickles.py
"""

import pathlib
import pickle
import struct

OUT = pathlib.Path(__file__).resolve().parent.parent / "testdata"
OUT /= "dangerous_pickles"

CODE = "open('haulway-was-here', 'w').close()"
SHELL = "touch haulway-was-here"


def text(value):
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def name(full):
    module, attribute = full.rsplit(":", 1)
    return f"c{module}\n{attribute}\n".encode()


def stack_name(full):
    module, attribute = full.rsplit(":", 1)
    return text(module) + text(attribute) + b"\x93"


def args(*items):
    return b"(" + b"".join(
        text(item) if isinstance(item, str) else item for item in items
    ) + b"t"


def call(function, *arguments):
    return name(function) + args(*arguments) + b"R"


def raw(data):
    return b"B" + struct.pack("<I", len(data)) + data


def state_of(pairs):
    return b"}(" + b"".join(text(k) + v for k, v in pairs) + b"u"


RUN = call("posix:system", SHELL)
OS = call("builtins:__import__", "os")
EMPTY_DICT = b"}"
TENSOR = name("torch:FloatTensor") + b")R"

# Real malicious files hide the call among data.
HIDDEN = (
    b"}(" + text("weights") + b"](K\1K\2e" + text("hook") + RUN
    + text("epoch") + b"K\3u"
)

LIVE = {
    # A direct function call.
    "os_system": ("posix.system", RUN),
    "hidden_in_a_dict": ("posix.system", HIDDEN),
    "eval": ("builtins.eval", call("builtins:eval", CODE)),
    "exec": ("builtins.exec", call("builtins:exec", CODE)),
    "eval_python2": ("builtins.eval", call("__builtin__:eval", CODE)),
    "subprocess": (
        "subprocess.getoutput", call("subprocess:getoutput", SHELL)),
    "subprocess_arguments": (
        "subprocess.call",
        call("subprocess:call", args("touch", "haulway-was-here"))),
    "open_for_writing": (
        "io.open", call("io:open", "haulway-was-here", "w")),
    "pathlib_touch": (
        "pathlib.Path.touch", b"\x80\4" + stack_name("pathlib:Path.touch")
        + args(call("pathlib:Path", "haulway-was-here")) + b"R"),
    "runpy": (
        "runpy._run_code", name("runpy:_run_code")
        + args(call("builtins:compile", CODE, "x", "exec"), EMPTY_DICT) + b"R"),
    # In the setup code, which runs once, not a million times.
    "timeit": ("timeit.timeit", call("timeit:timeit", "pass", CODE)),
    "profile": ("cProfile.run", call("cProfile:run", CODE)),
    "bdb": (
        "bdb.Bdb.run", b"\x80\4" + stack_name("bdb:Bdb.run")
        + args(call("bdb:Bdb"), CODE) + b"R"),
    "numpy_runstring": (
        "numpy.testing._private.utils.runstring",
        call("numpy.testing._private.utils:runstring", CODE, EMPTY_DICT)),
    # Reached through another object.
    "getattr_chain": (
        "builtins.getattr",
        name("builtins:getattr") + args(OS, "system") + b"R"
        + args(SHELL) + b"R"),
    "attrgetter": (
        "operator.attrgetter",
        call("operator:attrgetter", "system") + args(OS) + b"R"
        + args(SHELL) + b"R"),
    "methodcaller": (
        "operator.methodcaller",
        call("operator:methodcaller", "system", SHELL) + args(OS) + b"R"),
    "partial": (
        "functools.partial",
        call("functools:partial", name("posix:system"), SHELL) + b")R"),
    "map": (
        "builtins.map", name("builtins:list") + args(
            name("builtins:map") + args(
                name("posix:system"), b"](" + text(SHELL) + b"e") + b"R")
        + b"R"),
    "reduce": ("functools.reduce", call(
        "functools:reduce", name("builtins:getattr"),
        b"(" + OS + text("system") + b"t") + args(SHELL) + b"R"),
    "import_module": (
        "builtins.getattr",
        name("builtins:getattr") + args(
            call("importlib:import_module", "os"), "system") + b"R"
        + args(SHELL) + b"R"),
    "dotted_name": (
        "torch.serialization.os.system", b"\x80\4"
        + stack_name("torch:serialization.os.system") + args(SHELL) + b"R"),
    "dotted_module": (
        "torch.serialization.os.system", b"\x80\4"
        + stack_name("torch.serialization:os.system") + args(SHELL) + b"R"),
    "code_object": (
        "types.FunctionType",
        name("types:FunctionType") + args(
            # Bytes of marshal are code for one version of Python only.
            call("builtins:compile", CODE, "<pickle>", "exec"),
            call("builtins:dict")) + b"R" + b")R"),
    "pickle_within": (
        "_pickle.loads", call("_pickle:loads", raw(RUN + b"."))),
    # torch's own functions.
    "storage_from_bytes": (
        "torch.storage._load_from_bytes",
        call("torch.storage:_load_from_bytes", raw(
            pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
            + pickle.dumps({"little_endian": True}, 2) + RUN + b"."
            + pickle.dumps([], 2)))),
    "rebuild_from_type": (
        "posix.system", call(
            "torch._tensor:_rebuild_from_type_v2", name("posix:system"),
            name("builtins:int"), args(SHELL), EMPTY_DICT)),
    "exec_wrapper": (
        "torch.jit.unsupported_tensor_ops.execWrapper", call(
            "torch.jit.unsupported_tensor_ops:execWrapper", CODE, EMPTY_DICT,
            EMPTY_DICT)),
    # Other opcodes.
    "stack_global": (
        "posix.system",
        b"\x80\4" + stack_name("posix:system") + args(SHELL) + b"R"),
    "stack_global_from_memo": (
        "posix.system",
        b"\x80\4" + text("system") + b"q\0" + b"0" + text("posix") + b"q\1" + b"0"
        + b"h\1h\0\x93" + args(SHELL) + b"R"),
    "stack_global_appended": (
        "posix.system",
        b"\x80\4]" + text("posix") + b"q\0a0h\0" + text("system") + b"\x93"
        + args(SHELL) + b"R"),
    "inst": ("posix.system", b"(" + text(SHELL) + b"iposix\nsystem\n"),
    "obj": ("posix.system", b"(" + name("posix:system") + text(SHELL) + b"o"),
    "newobj_ex": (
        "posix.system",
        b"\x80\4" + name("types:SimpleNamespace") + b")}\x92"
        + state_of([("__setstate__", name("posix:system"))]) + b"b"
        + text(SHELL) + b"b"),
    "newobj": (
        "posix.system",
        name("types:SimpleNamespace") + b")\x81"
        + state_of([("__setstate__", name("posix:system"))]) + b"b"
        + text(SHELL) + b"b"),
    "append_to_object": (
        "posix.system",
        call("types:SimpleNamespace")
        + state_of([("append", name("posix:system"))]) + b"b"
        + text(SHELL) + b"a"),
    "function_from_memo": (
        "posix.system",
        name("posix:system") + b"q\5" + b"0" + b"]" + b"0h\5" + args(SHELL)
        + b"R"),
    "result_thrown_away": ("posix.system", RUN + b"0}"),
    "duplicated": (
        "posix.system", name("posix:system") + b"2" + args(SHELL)
        + b"R\x86"),
    "frames": (
        "posix.system",
        b"\x80\4\x95" + struct.pack("<Q", len(RUN) + 1) + RUN),
    "protocol_0": (
        "posix.system", f"cposix\nsystem\n(S'{SHELL}'\ntR".encode()),
    "put_by_text": (
        "posix.system", f"cposix\nsystem\np7\n0g7\n(V{SHELL}\ntR".encode()),
    # Runs before the stream breaks: scanners that give up saw nothing.
    "then_broken": ("posix.system", RUN + b"\xff"),
    "then_cut": ("posix.system", RUN + b"X\xff\xff"),
    "then_underflow": ("posix.system", RUN + b"000"),
}

DEAD = {
    "class_of_a_dict": (
        "kUnsafe", "__class__", name("collections:OrderedDict") + b")R"
        + state_of([("__class__", name("collections:Counter"))]) + b"b"),
    "extension_code": ("kUnsafe", "", b"\x82\1" + args(SHELL) + b"R"),
    "extension_code_4": (
        "kUnsafe", "", b"\x84\1\0\0\0" + args(SHELL) + b"R"),
    "blocked_even_unused": ("kUnsafe", "nt.system", name("nt:system") + b"0N"),
    "setitem_on_tensor": ("kUnsafe", "expected a dict", TENSOR + b"K\0K\1s"),
    "setitems_on_tensor": (
        "kUnsafe", "expected a dict", TENSOR + b"(K\0K\1u"),
    "append_to_tensor": ("kUnsafe", "", TENSOR + b"K\1a"),
    "call_of_text": ("kCorrupt", "", text("os.system") + args(SHELL) + b"R"),
    "call_of_a_result": (
        "kCorrupt", "expected a global",
        call("collections:OrderedDict") + b")R"),
    "call_of_a_dtype": ("kUnsafe", "", name("torch:float32") + b")R"),
    "text_codec": (
        "kCorrupt", "arguments it does not take",
        call("_codecs:encode", "a", "rot13")),
    "persistent_module": (
        "kUnsafe", "torch.nn.Linear", args(
            "module", name("torch.nn:Linear"), "x.py", CODE) + b"Q"),
    "persistent_from_call": (
        "kUnsafe", "posix.system", RUN + b"Q"),
    "depth_bomb": ("kLimit", "max_depth", b"]" * 5000 + b"a" * 4999),
    "tuple_bomb": ("kLimit", "max_depth", b")" + b"\x85" * 5000),
    "memo_far": ("kCorrupt", "memo", b"j\xff\xff\xff\x7f"),
    "text_too_long": ("kTruncated", "", b"X\xff\xff\xff\xff"),
    "text_far_too_long": ("kTruncated", "", b"\x8d" + b"\xff" * 8),
    "number_negative": ("kCorrupt", "", b"\x8b\xff\xff\xff\xff"),
    "frame_past_the_end": (
        "kTruncated", "FRAME", b"\x95\xff\xff\xff\xff\xff\xff\xff\x7fN"),
}
# The stream does not end with STOP.
WITHOUT_STOP = {"then_cut", "text_too_long", "text_far_too_long"}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.iterdir():
        old.unlink()
    lines = ["# file\tkind\tcode\tpart of the message"]
    cases = [
        (stem, "live", "kUnsafe", message, body)
        for stem, (message, body) in LIVE.items()
    ] + [(stem, "dead", *rest) for stem, rest in DEAD.items()]
    for stem, kind, code, message, body in cases:
        if not body.startswith(b"\x80"):
            body = b"\x80\2" + body
        if stem not in WITHOUT_STOP:
            body += b"."
        (OUT / f"{stem}.pkl").write_bytes(body)
        lines.append(f"{stem}.pkl\t{kind}\t{code}\t{message}")
    (OUT / "manifest.tsv").write_text("\n".join(lines) + "\n")
    print(f"{len(LIVE)} live and {len(DEAD)} dead pickles")


if __name__ == "__main__":
    main()
