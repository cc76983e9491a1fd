"""Files that run code because of their type, their container, or their name.

`ROWS` has for each what it shows, the name of the file, its bytes, and the
readers of scan_readers.py in which it runs code here. If a reader goes by the
name (a shell, site), the bytes alone may be SAFE; `BY_NAME` has those readers.
Rows for programs that are not installed here (Keras, TorchServe, Windows) have
no readers.
"""

import bz2
import functools
import io
import json
import lzma
import pathlib
import pickle
import sqlite3
import struct
import tarfile
import tempfile
import zipfile
import zlib

import torch

from scan_bypasses import call, name, text, whole
from scan_cases import _summed, evil, script_that_writes, tarred, zipped

BY_NAME = {"YOLO", "dictConfig", "jinja by name", "named in YAML", "shell",
           "site"}
CODE = b"import canary\ncanary.ran()\n"
TOUCH = b"touch mark\n"

# A name that an allowed call returns: no opcode contains it.
COMPUTED = whole(
    call(name("builtins", "str"), text("canary")),
    call(name("builtins", "str"), text("ran")), b"\x93", b"(", text("x"),
    b"tR")


def scripted():
    out = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), out)
    return out.getvalue()


def added_to(data, members):
    """Returns a zip with more records in the folder of its others."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as theirs, \
            zipfile.ZipFile(made, "w") as ours:
        for info in theirs.infolist():
            ours.writestr(info.filename, theirs.read(info))
        folder = theirs.namelist()[0].split("/")[0]
        for path, content in members.items():
            ours.writestr(f"{folder}/{path}", content)
    return made.getvalue()


def packaged(modules, extern=("abc", "collections", "canary"), more=(),
             load="collections\nOrderedDict\n"):
    """Returns a torch.package whose pickle names a class of `load`."""
    members = {".data/version": b"6\n", ".data/extern_modules":
               "\n".join(extern).encode(), "byteorder": b"little",
               "model/model.pkl": b"\x80\x02c" + load.encode() + b")R."}
    members.update(modules)
    members.update(dict(more))
    return zipped({f"x/{path}": data for path, data in members.items()})


def gnu_tar_with_a_prefix(path=b"mark"):
    """A member `path` that tarfile extracts to "../mark" because of its
    prefix."""
    block = bytearray(tarred({path.decode(): b"x"})[:512])
    block[257:265] = b"ustar  \0"
    block[345:347] = b".."
    return _summed(block) + b"x".ljust(512, b"\0") + bytes(1024)


def tar_with_a_global_path(path="../mark"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT,
                      pax_headers={"path": path}) as archive:
        info = tarfile.TarInfo("harmless")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    return out.getvalue()


def tar_with_two_names(first, second):
    """A tar member that two headers before it name: a long name of GNU (L), and
    a header of pax (x)."""
    def block(kind, data, name="x"):
        info = tarfile.TarInfo(name)
        info.size, info.type = len(data), kind
        return info.tobuf(tarfile.USTAR_FORMAT) + data.ljust(512, b"\0")

    def header(kind, name):
        if kind == b"L":
            return block(kind, name.encode() + b"\0")
        line = f" path={name}\n"
        return block(kind, f"{len(line) + 2}{line}".encode())

    return (header(*first) + header(*second) + block(b"0", b"words\n")
            + bytes(1024))


def alone(data, **fields):
    filters = [{"id": lzma.FILTER_LZMA1, "dict_size": 1 << 16, **fields}]
    return lzma.compress(data, format=lzma.FORMAT_ALONE, filters=filters)


def module_that_is_a_tar():
    """Python up to 3.11 and tarfile both accept it; the tar header's name is
    code."""
    first = b"import canary;canary.ran();'''"
    block = bytearray(tarred({"a": b"words\n"}))
    block[:len(first)] = first
    return _summed(block[:512]) + bytes(block[512:])


def keras(config):
    return zipped({
        "metadata.json": json.dumps({"keras_version": "3.3.3"}).encode(),
        "config.json": json.dumps(config).encode(),
    })


LAMBDA = {"module": "keras", "class_name": "Functional", "config": {"layers": [
    {"module": "keras.layers", "class_name": "Lambda", "config": {"function": {
        "class_name": "__lambda__", "config": {"code": "4wEAAAA="}}}}]}}

def archive_in_safetensors(between=0, behind=0, wide=False):
    """TorchScript as the payload of a tensor, which torch's zip reader finds.

    between: bytes before the end record, where Python's reader expects the
    directory.
    behind: bytes after the archive.
    wide: with zip64 records, whose locator gives the offset of the first.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(script_that_writes())) as theirs, \
            zipfile.ZipFile(out, "w") as ours:
        for info in theirs.infolist():
            ours.writestr(info.filename, theirs.read(info))
    data = bytearray(out.getvalue())
    end = data.rfind(b"PK\5\6")
    count, size, directory = struct.unpack_from("<HII", data, end + 10)
    whole_size = len(data) + between + behind + (56 + 20 if wide else 0)
    header = json.dumps({"a": {
        "dtype": "U8", "shape": [whole_size],
        "data_offsets": [0, whole_size]}}).encode()
    begin = 8 + len(header)  # The archive begins here in the file.
    at = directory
    for _ in range(count):
        offset = struct.unpack_from("<I", data, at + 42)[0]
        struct.pack_into("<I", data, at + 42, begin + offset)
        at += 46 + sum(struct.unpack_from("<HHH", data, at + 28))
    struct.pack_into("<I", data, end + 16, begin + directory)
    tail = b"\1" * between + bytes(data[end:])
    if wide:
        tail = (b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count,
                                        count, size, begin + directory)
                + b"\1" * between
                + b"PK\6\7" + struct.pack("<IQI", 0, begin + end, 1)
                + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 65535, 65535,
                                          2**32 - 1, 2**32 - 1, 0))
    payload = (bytes(data[:end]) + tail).ljust(whole_size, b"\1")
    return struct.pack("<Q", len(header)) + header + payload


def gguf_with(metadata):
    """A GGUF file with texts as metadata."""
    def text(value):
        value = value.encode()
        return struct.pack("<Q", len(value)) + value

    values = {"general.architecture": "llama", **metadata}
    data = b"GGUF" + struct.pack("<IQQ", 3, 1, len(values))
    for key, value in values.items():
        data += text(key)
        if isinstance(value, list):
            data += struct.pack("<IIQ", 9, 8, len(value))
            data += b"".join(map(text, value))
        else:
            data += struct.pack("<I", 8) + text(value)
    data += text("a") + struct.pack("<IQIQ", 1, 8, 0, 0)
    return data.ljust((len(data) + 31) // 32 * 32, b"\0") + bytes(32)


def skops(module, name, loader="ObjectNode"):
    """A skops file: a dict with an object of a class."""
    def node(loader, module, name, **more):
        return {"__class__": name, "__module__": module, "__loader__": loader,
                **more}

    types = node("ListNode", "builtins", "list",
                 content=[node("TypeNode", "builtins", "str")])
    return zipped({"schema.json": json.dumps(node(
        "DictNode", "builtins", "dict", key_types=types,
        content={"a": node(loader, module, name)}, protocol=2)).encode()})


def pipeline(*part, **more):
    """The index of a diffusers pipeline with one part."""
    return json.dumps({"_class_name": "DDPMPipeline", "unet": part,
                       **more}).encode()


def database_of(value):
    """A database as shelve of Python 3.13 writes it."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "m.db"
        base = sqlite3.connect(path)
        base.execute("create table Dict (key blob, value blob)")
        base.execute("insert into Dict values (?, ?)", (b"k", value))
        base.commit()
        base.close()
        return path.read_bytes()


CALLED = "__import__('canary').ran()"
JINJA = ("{{ lipsum.__globals__['__builtins__']['__import__']('canary')"
         ".ran() }}")
HIDDEN_JINJA = ("{{ (lipsum|attr('_' * 2 ~ 'globals' ~ '_' * 2))"
                "['_' * 2 ~ 'builtins' ~ '_' * 2]"
                "['_' * 2 ~ 'import' ~ '_' * 2]('canary').ran() }}")
# Attributes of frames lead to modules.
FRAME_JINJA = ("{% set x = messages|map('upper') %}{% set loop = x.gi_frame"
               ".f_globals.re.enum.sys.modules.os.mkdir %}{{ loop('mark') }}")
# Jinja takes words for names of attributes, and a template may name a value
# like the loop, which it may call.
WORD_JINJA = (
    "{% set a = {'in': ''}.in['__class__'] %}"
    "{% set b = {'in': a}.in['__mro__'][1] %}"
    "{% set loop = {'in': b}.in['__subclasses__'] %}"
    "{% set found = namespace(x=0) %}{% for s in loop() %}"
    "{% if s|string == \"<class 'subprocess.Popen'>\" %}"
    "{% set found.x = s %}{% endif %}{% endfor %}"
    "{% set loop = found.x %}{{ loop(['touch', 'mark']) }}")
SUM_JINJA = (
    "{% set found = namespace(x=0) %}{% for m in [1] %}"
    "{% set found.x = [loop]|sum(attribute="
    "'__init__.__globals__.sys.modules._io.FileIO.__mro__', start=()) %}"
    "{% endfor %}{% set loop = found.x[0] %}{{ loop('mark', 'w') }}")
MACRO_JINJA = SUM_JINJA.replace(
    "{% set loop = found.x[0] %}{{ loop('mark', 'w') }}",
    "{% macro f(loop) %}{{ loop('mark', 'w') }}{% endmacro %}"
    "{{ f(found.x[0]) }}")
YAML = "!!python/object/apply:canary.ran ['x']\n"


@functools.cache
def rows():
    script = scripted()
    mar = {"MAR-INF/MANIFEST.json": json.dumps(
        {"model": {"handler": "handler.py"}}).encode()}
    return (
        # Zip records.
        ("names computed in a record of numbers", "m.pt",
         added_to(script, {"data/7": COMPUTED}), ("members",)),
        ("names computed in a record called data/x", "m.pt",
         zipped({"m/data.pkl": pickle.dumps({}, 2), "m/version": b"3\n",
                 "m/data/x": COMPUTED}), ("members",)),
        ("a pickle that is code of TorchScript", "m.pt",
         added_to(script, {"code/x.py": evil(2)}), ("members",)),
        ("the same with computed names", "m.pt",
         added_to(script, {"code/x.py": COMPUTED}), ("members",)),
        ("a module of Python in an archive of TorchScript", "m.pt",
         added_to(script, {"extra/x.py": CODE}), ("modules",)),
        ("a module of Python as code of TorchScript", "m.pt",
         added_to(script, {"code/x.py": CODE}), ("modules",)),
        *((f"code of TorchScript with {what}", "m.pt",
           added_to(script, {"code/x.py": code.encode()}), ("modules",))
          for what, code in (
              ("a call behind its arguments",
               f"def f(x) -> {CALLED}:\n  return x\n"),
              ("a class that is subscripted",
               f"class A:\n  def __class_getitem__(c, i):\n    {CALLED}\n"
               "class B:\n  x : A[0]\n"),
              ("exec as what subscripts a class",
               "class A:\n  __class_getitem__ = exec\n"
               "class B:\n  x : A[\"import canary\"]\n"),
              ("a class that is inherited",
               f"class Module:\n  def __init_subclass__(c):\n    {CALLED}\n"
               "class B(Module):\n  x : int\n"))),
        ("a member that leaves its folder", "m.zip",
         zipped({"../mark": b"x"}), ()),
        ("__main__ of a zip", "m.zip", zipped({"__main__.py": CODE}),
         ("python",)),
        # torch.package and TorchServe.
        ("a module of a package", "m.pt",
         packaged({"own.py": CODE}, load="own\ndict\n"), ("torch.package",)),
        ("a module of a package that shadows another", "m.pt",
         packaged({"collections.py": CODE + b"OrderedDict = dict\n"},
                  extern=("abc", "canary")), ("torch.package",)),
        ("a module of a package that looks like TorchScript", "m.pt",
         packaged({"code/__torch__/own.py": CODE},
                  more={"constants.pkl": pickle.dumps((), 2)},
                  load="code.__torch__.own\ndict\n"), ("torch.package",)),
        ("__torch__ of a package", "m.pt",
         packaged({"__torch__.py": CODE},
                  more={"constants.pkl": pickle.dumps((), 2)},
                  load="__torch__\ndict\n"), ("torch.package",)),
        ("a handler of TorchServe", "m.mar",
         zipped({**mar, "handler.py": CODE}), ("modules",)),
        ("the same beside TorchScript", "m.mar",
         added_to(script, {"../MAR-INF/MANIFEST.json": b"{}",
                           "handler.py": CODE}), ("modules",)),
        ("a manifest that names a handler elsewhere", "m.zip", zipped(mar), ()),
        # Archives that only one zip reader finds.
        ("an archive further from the end than Python looks", "m.safetensors",
         archive_in_safetensors(behind=68_000), ("torch.jit.load",)),
        ("an archive with bytes behind its directory", "m.safetensors",
         archive_in_safetensors(between=40), ("torch.jit.load",)),
        ("an archive whose locator points elsewhere", "m.safetensors",
         archive_in_safetensors(between=50, wide=True), ("torch.jit.load",)),
        # Tars.
        ("a prefix in a tar of GNU", "m.tar", gnu_tar_with_a_prefix(),
         ("extractall",)),
        ("a path for all members of a tar", "m.tar", tar_with_a_global_path(),
         ("extractall",)),
        ("a tar behind a tar", "m.tar",
         tarred({"a.txt": b"x"}) + tarred({"b.pkl": evil(2)}), ()),
        ("a module that is a tar", "m.py", module_that_is_a_tar(), ()),
        ("a tar that is bzip2", "m.tar", _summed(
            bz2.compress(evil(2)).ljust(512, b"\0")) + bytes(1024), ()),
        ("a long name before another in a tar", "m.tar",
         tar_with_two_names((b"L", "../mark"), (b"x", "ok.txt")),
         ("extractall",)),
        ("a long name behind another in a tar", "m.tar",
         tar_with_two_names((b"x", "../mark"), (b"L", "ok.txt")),
         ("extractall",)),
        # Compression.
        *((f"lzma {fields}", "m.pkl.xz", alone(evil(2), **fields),
           ("pickle of lzma",))
          for fields in ({"lc": 0, "lp": 0, "pb": 0}, {"lc": 1, "lp": 3},
                         {"lc": 4, "lp": 0, "pb": 4}, {"lp": 1, "pb": 0})),
        ("a tar in lzma", "m.tar.lzma", alone(tarred({"a": evil(2)}), lc=0),
         ("members",)),
        ("lzma that is cut", "m.pkl.xz", alone(evil(2), pb=0)[:-2],
         ("pickle of lzma",)),
        ("xz", "m.pkl.xz", lzma.compress(evil(2)), ("pickle of lzma",)),
        ("lzma and a tar", "m.tar", lzma_and_tar(), ("pickle of lzma",)),
        ("lzma in a record", "m.zip", zipped({"a": alone(evil(2), lc=0)}), ()),
        ("a stream of zlib behind another", "m.pkl.z",
         zlib.compress(pickle.dumps({})) + zlib.compress(evil(2)), ()),
        # Texts.
        ("prose that is a pickle", "m.txt", b"cmy canary\nran\n(S'x'\ntR.",
         ("pickle beside a module of an odd name",)),
        ("prose that is a pickle and no more", "LICENSE",
         b"cmy canary\nrights reserved\n",
         ("pickle beside a module of an odd name",)),
        ("tags of YAML", "m.yaml", YAML.encode(), ("yaml",)),
        ("tags of YAML in a text", "m.txt", b"a: " + YAML.encode(), ("yaml",)),
        ("tags of YAML, renamed", "m.txt",
         b"%TAG !p! tag:yaml.org,2002:python/object/\n---\n"
         b"!p!apply:canary.ran ['x']\n", ("yaml",)),
        ("tags of YAML, escaped", "m.txt",
         b"!!%70ython/object/apply:canary.ran ['x']\n", ("yaml",)),
        ("tags of YAML, whole", "m.txt",
         b"!<tag:yaml.org,2002:%70ython/object/apply:canary.ran> ['x']\n",
         ("yaml",)),
        ("tags of YAML in brackets", "m.md",
         b"# Words\n\na: [1,!!python/object/apply:canary.ran ['x']]\n",
         ("yaml",)),
        ("a module", "m.py", CODE, ("python",)),
        ("a module without an ending", "setup", CODE, ("python",)),
        ("a script", "m.sh", TOUCH, ("shell",)),
        ("a script without an ending", "run", TOUCH, ("shell",)),
        ("a script of an odd ending", "m.install", b"words=1\n" + TOUCH,
         ("shell",)),
        ("a script that is JSON", "run",
         b'{ "touch" : "mark"\n}\n', ("shell",)),
        ("a script that is a GIF", "run",
         b"GIF89a=1\n" + TOUCH + b"exit\n" + b"#" * 40 + b";", ("shell",)),
        ("a script that is a GIF with numbers", "run",
         b"GIF89a=1\n" + TOUCH + b"exit\n" + bytes(300) + b";", ("shell",)),
        ("TensorFlow that is SentencePiece", "saved_model.pb",
         b"\n\x08\n\1a\x15\0\0\0\0" + b"\x12\4\n\2\1\1" + b"\x1a\x20" + b"x" * 32,
         ()),
        ("a script in XML", "m.xml",
         b"<a xmlns='http://www.w3.org/1999/xhtml'><script>ran()</script></a>",
         ()),
        ("a line of site", "m.pth", CODE, ("site",)),
        ("a later line of site", "m.pth",
         b"# words\n" * 9999 + b"import canary; canary.ran()\n", ("site",)),
        ("a line of site behind a byte order mark", "m.pth",
         b"\xef\xbb\xbf#\nimport\tcanary; canary.ran()\n", ("site",)),
        ("a line of site in a pickle", "m.pth",
         b"V\nimport canary; canary.ran()\n.", ("site",)),
        # site splits lines so since Python 3.13.
        *((f"a line of site behind {mark!r}", "m.pth",
           f"V{mark}import canary; canary.ran()\n.".encode(), ())
          for mark in "\v\f\x1c\x1d\x1e\x85\u2028\u2029"),
        ("a template", "chat_template.jinja", JINJA.encode(), ("jinja",)),
        ("a template of hidden names", "chat_template.jinja",
         HIDDEN_JINJA.encode(), ("jinja",)),
        *((f"a template {why}", "chat_template.jinja", jinja.encode(),
           ("jinja",)) for why, jinja in (
               ("that reaches a frame", FRAME_JINJA),
               ("with a word as an attribute", WORD_JINJA),
               ("that adds attributes up", SUM_JINJA),
               ("that calls an argument", MACRO_JINJA))),
        ("a template that is a pickle", "chat_template.jinja",
         b"V" + JINJA.encode() + b"\n.", ("jinja by name",)),
        ("a template that is a tar", "chat_template.jinja",
         tarred({"a.md": JINJA.encode()}), ("jinja by name",)),
        ("a template that is a pickle, in a text", "chat_template.txt",
         b"V" + JINJA.encode() + b"\n.", ("jinja by name",)),
        ("a template in YAML", "m.yaml",
         f"model:\n  chat_template: |\n    {JINJA}\n".encode(), ()),
        ("a template in YAML, escaped", "m.yaml",
         b'prompt_template: "\\x7b{ x[y] }}"\n', ()),
        ("a template in JSON", "tokenizer_config.json",
         json.dumps({"chat_template": JINJA}).encode(), ("jinja",)),
        ("a template under an escaped key", "tokenizer_config.json",
         json.dumps({"model_max_length": 10**30, "chat_template": [
             {"name": "default", "template": HIDDEN_JINJA}]}).replace(
                 "chat_", "ch\\u0061t_").encode(), ("jinja",)),
        ("a template in GGUF", "m.gguf",
         gguf_with({"tokenizer.chat_template": JINJA}), ("gguf",)),
        ("a template with a name in GGUF", "m.gguf",
         gguf_with({"tokenizer.chat_template.tool_use": JINJA}), ("gguf",)),
        ("a list of templates in GGUF", "m.gguf",
         gguf_with({"tokenizer.chat_templates": ["default", JINJA]}), ()),
        ("a template in a text", "chat_template.txt", JINJA.encode(),
         ("jinja",)),
        ("templates in JSON under another key", "prompts.json",
         json.dumps({"prompt_template": JINJA}).encode(), ()),
        ("Keras with a Lambda", "m.keras", keras(LAMBDA), ()),
        ("HDF5 in a zip", "m.keras",
         zipped({"model.weights.h5": b"\x89HDF\r\n\x1a\n" + bytes(99)}), ()),
        ("jsonpickle", "m.json", b'{"py/object": "canary.Ran"}', ()),
        ("Hydra", "m.yaml", b"_target_: canary.ran\n", ()),
        ("Hydra, escaped", "m.yaml", b'"_tar\\x67et\\u005f": canary.ran\n', ()),
        ("Hydra, on two lines", "m.yaml",
         b'? "_tar\\\n  get_"\n: canary.ran\n', ()),
        ("Lightning's command line", "config.yaml",
         b"model:\n  class_path: canary.Ran\n", ()),
        ("a configuration of logging", "logging.ini",
         b"[loggers]\nkeys=\n[formatters]\nkeys=\n[handlers]\nkeys=b\n"
         b"[handler_b]\nclass=__import__('canary').ran\nargs=()\n",
         ("logging",)),
        # Configurations with values that programs import.
        ("skops", "m.skops", skops("canary", "ran"), ("named",)),
        ("a function of skops", "m.skops",
         skops("canary", "ran", "FunctionNode"), ("named",)),
        ("a loader of skops", "m.skops",
         skops("builtins", "dict", "OperatorFuncNode"), ()),
        ("sentence-transformers", "modules.json",
         b'[{"idx": 0, "name": "0", "path": "", "type": "canary.Model"}]',
         ("named",)),
        ("an activation of sentence-transformers", "config.json",
         b'{"in_features": 1, "activation_function": "canary.ran"}',
         ("named",)),
        ("a router of sentence-transformers", "router_config.json",
         b'{"types": {"query_0": "canary.Model"}}', ("named",)),
        ("diffusers", "model_index.json", pipeline("canary", "Model"),
         ("named",)),
        ("diffusers, in any order", "model_index.json",
         b'{"unet": ["canary", "M"], "_class_name": "DDPMPipeline"}',
         ("named",)),
        ("a pipeline of diffusers beside it", "model_index.json",
         b'{"_class_name": ["pipeline", "Mine"]}', ()),
        ("PEFT", "adapter_config.json", json.dumps({"auto_mapping": {
            "base_model_class": "M", "parent_library": "canary"}}).encode(),
         ("named",)),
        ("AllenNLP", "config.json", b'{"model": {"type": "canary.Model"}}',
         ("named",)),
        ("latent diffusion", "m.yaml",
         b"model:\n  target: canary.Model\n  params: {}\n", ("named in YAML",)),
        ("the same, folded and escaped", "m.yaml",
         b'? "t\\x61rget"\n: >-\n  canary.Model\n', ("named in YAML",)),
        ("the same by an alias", "m.yaml",
         b"a: &a canary.Model\ntarget: *a\n", ("named in YAML",)),
        ("the same by an alias of the key", "m.yaml",
         b"a: &k target\n*k : canary.Model\n", ("named in YAML",)),
        ("a configuration in JSON with escapes of YAML", "m.yaml",
         b'{"\\x74arget": "canary.Model"}', ("named in YAML",)),
        ("code from elsewhere", "config.json",
         b'{"trust_remote_code": true}', ()),
        ("a kernel from elsewhere", "config.json",
         b'{"attn_implementation": "somebody/kernel"}', ()),
        ("a data set of Ultralytics", "data.yaml",
         b"val: none\ndownload: |\n  import canary\n  canary.ran()\n", ()),
        ("a model of YOLO", "yolo.yaml",
         b"nc: 1\nbackbone:\n  [[-1, 1, canary.ran(), []]]\nhead:\n  []\n",
         ()),
        *((f"a model of YOLO {why}", "yolo.yaml", model.encode(), ("YOLO",))
          for why, model in (
              ("without a head", f"backbone: []\nactivation: {CALLED}\n"),
              ("with a # in a name",
               f"backbone:\n- [a#b, 1, {CALLED}, []]\nhead: []\n"),
              ("in JSON", json.dumps({"backbone": [[-1, 1, CALLED, []]],
                                      "head": []})),
              ("with an escaped head",
               f"backbone:\n- [-1, 1, \"{CALLED}\", []]\n"
               "\"h\\x65ad\": []\n"),
              ("with an escaped call",
               "backbone:\n- [-1, 1, \""
               + CALLED.replace("(", "\\x28") + "\", []]\nhead: []\n"))),
        ("a factory of logging", "logging.json", json.dumps(
            {"version": 1, "filters": {"a": {"()": "canary.ran"}}}).encode(),
         ("dictConfig",)),
        ("a factory of logging in YAML", "logging.yaml",
         b"version: 1\nfilters:\n  a:\n    (): canary.ran\n",
         ("dictConfig",)),
        ("an object of logging", "logging.json", json.dumps(
            {"version": 1, "formatters": {"a": {
                "format": "ext://canary.ran"}}}).encode(), ("dictConfig",)),
        ("a database of pickles", "m.db", database_of(evil(2)), ("database",)),
        ("an object of .NET in JSON", "m.json",
         b'{"$type": "System.Windows.Data.ObjectDataProvider, Presentation"}',
         ()),
        ("a class of TensorFlow Datasets", "features.json",
         b'{"pythonClassName": "canary.Features"}', ()),
        ("an object in XML", "m.xml",
         b"<java class = 'java.beans.XMLDecoder'><object/></java>", ()),
        ("packages of MLflow", "conda.yaml", b"dependencies: [pip]\n", ()),
        ("what pip installs", "requirements-dev.txt", b"-e ./own\n", ()),
        ("what pip installs for tests", "test_requirements.txt",
         b"-e ./own\n", ()),
        ("code of transformers", "config.json",
         b'{"auto_map": {"AutoModel": "modeling.Model"}}', ()),
        *((f"{name}, which programs run", name, b'{"a": 1}', ()) for name in (
            ".devcontainer.json", "kernel.json", ".mcp.json", "mcp.json",
            "ipython_config.json")),
        *((f"{name}, which programs run", name, b"a = 1\n", ()) for name in (
            "ansible.cfg", "hatch.toml", "pylintrc.toml", "tox.toml",
            ".tmux.conf")),
        ("build.xml, which programs run", "build.xml", b"<project/>", ()),
        ("Taskfile.yml, which programs run", "Taskfile.yml", b"tasks: {}\n",
         ()),
        ("a notebook", "m.ipynb", b'{"cells": [], "nbformat": 4}', ()),
        ("a build", "pyproject.toml", b"[build-system]\nrequires=[]\n", ()),
        # Programs.
        ("PE", "m.exe", b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0"
         + bytes(200), ()),
        ("PE of another name", "m.bin", b"MZ" + b"\x11" * 99 + bytes(99), ()),
        ("a llamafile", "m.llamafile", b"MZqFpD='\n" + TOUCH + b"exit\n'\n"
         + bytes(99), ()),
        ("a llamafile of another name", "m.bin", b"MZqFpD='\n'\n" + TOUCH
         + b"exit\n" + bytes(99), ("shell",)),
        ("ELF", "m.bin", b"\x7fELF\2\1\1" + bytes(99), ()),
        ("Mach-O", "m.bin", b"\xcf\xfa\xed\xfe" + bytes(99), ()),
        ("Mach-O of 32 bits", "m.bin", b"\xfe\xed\xfa\xce" + bytes(99), ()),
        ("a class of Java", "m.bin", b"\xca\xfe\xba\xbe" + bytes(99), ()),
        ("WebAssembly", "m.bin", b"\0asm\1\0\0\0" + bytes(99), ()),
        ("compiled Python", "m.bin", b"\xa7\r\r\n" + bytes(99), ()),
        # Bytes after the part that a reader uses.
        ("bytes behind a pickle", "m.pkl", pickle.dumps([1], 4) + b"\xff\0\1",
         ()),
        ("a script behind a pickle", "m.pkl",
         b"N.\n" + TOUCH, ("shell",)),
    )


def lzma_and_tar():
    """Looks like lzma by its first bytes, and like a tar to tarfile."""
    data = alone(evil(2), lc=0, lp=1, pb=2)
    assert len(data) < 148, len(data)
    return _summed(data.ljust(124, b"\0") + b"0".rjust(11, b"0") + b"\0" +
                   bytes(376)) + bytes(1024)


# Replacements for texts: strings that readers look for, and strings that hide
# them.
_WORDS = (b"!", b"!!", b"\n", b" ", b"%", b"{{", b"}}", b"{%", b"'", b'"', b"\\",
          b"_", b"__", b"import ", b"[", b"]", b"(", b")", b"#", b"\r", b"\t",
          b"\xef\xbb\xbf", b"\0", b".", b"%TAG", b"---\n", b"|", b"~", b",")


def changed(data, chance):
    """Returns `data` with a few pieces inserted, removed, doubled or
    overwritten."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(out) + 1)
        kind = chance.randrange(5)
        if kind == 0:
            out[at:at] = chance.choice(_WORDS)
        elif kind == 1:
            del out[at : at + chance.randrange(1, 4)]
        elif kind == 2:
            out[at : at + 1] = chance.randbytes(1)
        elif kind == 3:
            out[at:at] = out[at : at + chance.randrange(1, 20)]
        else:
            word = chance.choice(_WORDS)
            out[at : at + len(word)] = word
    return bytes(out)
