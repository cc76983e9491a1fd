"""A call or a verb has the options that its messages name.

A message of the engine names an option as `the option NAME`, as `--name` for the
command or as `name=` for Python; one that other calls have is `the option NAME,
which A and B have`. The sources are searched for such texts. Each is printed in a
row of PROVOKED, with every call and every verb that meets it, or is in a file
that OWNED gives to the few that can print it.

This does not see options that a message names in other words, nor what Python's
own messages name, each of which belongs to one call. A fault in a second input,
such as `base`, may be told with words for the first.
"""

import inspect
import json
import pathlib
import re
import subprocess
import sys

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_a_name_is_the_model import (
    MODEL,
    OTHER,
    both,
    hole,
    hole_in_parts,
    only,
    other,
    save,
    save_parts,
    save_shards,
)

import haulway
import haulway.delta
from rank_files import plain as plain_of
from rank_files import write_all
from rank_goldens import copy
from source_calls import CALLS, WAYS, clear, plain, words_of

SOURCES = pathlib.Path(__file__).resolve().parents[3] / "src"
LITERAL = r'"(?:[^"\\\n]|\\.)*"'
OPTION = re.compile(
    r"the option (?P<both>\w+)(?P<others>, which (?P<calls>[\w, ]+) have)?"
    r"|(?<!-)--(?P<flag>[a-z][a-z-]+)|(?<![?&\w])(?P<keyword>[a-z_]+)=(?!=)")
# Texts that name no option of ours: a whole command line, or another program's.
WHOLE = re.compile(r"haulway \w+ .*--|aws configure")

# Files whose messages only these verbs and calls can print.
OWNED = {
    "convert/convert.cc": (["convert"], [haulway.convert]),
    "convert/kept_files.cc": (["convert"], [haulway.convert]),
    "versions/apply_versions.cc": (["delta apply"], [haulway.delta.apply]),
    "versions/publisher.cc": ([], [haulway.delta.Publisher.publish]),
    "signing/sign.cc": (["sign"], [haulway.sign]),
    "signing/check_signature.cc": (["verify"], [haulway.verify]),
    "signing/compared_model.cc": (["verify"], [haulway.verify]),
    # All that reach a URL.
    "net/certificates.cc": (["load", "get"], [haulway.load, haulway.get]),
}


def remedies():
    """Returns (file, text) of every text in the sources that names an option."""
    for path in sorted(SOURCES.rglob("*.*")):
        if "_test." in path.name or path.suffix not in (".cc", ".h"):
            continue
        for found in re.finditer(rf"{LITERAL}(\s*{LITERAL})*", path.read_text()):
            text = "".join(one[1:-1] for one in re.findall(LITERAL, found[0]))
            text = text.replace('\\"', '"')
            if " " in text and OPTION.search(text) and not WHOLE.search(text):
                yield str(path.relative_to(SOURCES)), text


REMEDIES = list(dict.fromkeys(remedies()))


def option_of(found):
    return (found["both"] or found["flag"] or found["keyword"]).replace("-", "_")


class Takes:
    """Whether a verb or a call has an option, by what it says of itself."""

    def __init__(self, command):
        self.command, self.help = command, {}

    def verb(self, verb, option):
        """verb: with the action, of verbs that have one."""
        if verb not in self.help:
            self.help[verb] = subprocess.run(
                [self.command, *verb.split(), "--help"], capture_output=True,
                text=True, check=True).stdout
        flag = option.replace("_", "-")
        return bool(re.search(rf"^ +(-\w,)?--{flag}\b", self.help[verb], re.M))

    @staticmethod
    def call(call, option):
        said = inspect.signature(call).parameters
        return option in said or bool(re.search(
            rf"^\s*(\w+, )*{option}(, \w+)*:", call.__doc__ or "", re.M))

    def lacking(self, text, verbs=(), calls=()):
        """Yields (verb or call, option) for what a text names in vain."""
        for one in OPTION.finditer(text):
            option = option_of(one)
            if one["others"]:
                named = re.split(r", | and ", one["calls"])
                own = [getattr(haulway, name) for name in named]
                own_verbs = set(named) - {"save", "writer"}
            else:
                own, own_verbs = calls, verbs
            for verb in own_verbs if not one["keyword"] else ():
                if not self.verb(verb, option):
                    yield verb, option
            for call in own if not one["flag"] else ():
                if not self.call(call, option):
                    yield call.__qualname__, option


@pytest.fixture(scope="module")
def takes(command):
    return Takes(command)


# Rows: what writes a source, and options to give to those that have them.


def index_that_lies(folder):
    names = save_shards(folder, "model", ".safetensors",
                        "model.safetensors.index.json")
    save(folder / names[0], {**MODEL, **OTHER})


def index_with_a_name_twice(folder):
    index_that_lies(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(
        '"weight_map": {', '"weight_map": {"layer.0.weight": "a.safetensors", '))


def part_of_a_hole(folder):
    hole_in_parts(folder)
    return folder / "model-00001-of-00002.gguf"


def rank_is_missing(folder):
    copy("tpfsdp_4", folder)
    (folder / "model_world_size_4_rank_2.pt").unlink()


def ranks_that_differ(folder):
    write_all(folder, 2, lambda rank: {"w": plain_of(np.array([rank], "f4"))})


def version(folder, of="3"):
    folder.mkdir()
    before = {"a": torch.arange(9.)}
    save(folder / "old.safetensors", before)
    save(folder / "new.safetensors", {"a": before["a"] + 1})
    out = folder / "weight_v000004"
    haulway.delta.write(folder / "old.safetensors", folder / "new.safetensors", out,
                        version="4", base_version=of)
    return out


def base(folder):
    save(folder / "model.safetensors", {"a": torch.arange(9.)})
    return folder


def shard_of_a_version(folder):
    return next(version(folder).glob("*.safetensors"))


def quantized(weight=torch.float8_e4m3fn, scales=".weight_scale", config=None):
    def write(folder):
        tensors = {"m.weight": torch.zeros(4, 4).to(weight)}
        if scales:
            tensors[f"m{scales}"] = torch.ones(1)
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        if config:
            (folder / "config.json").write_text(json.dumps(
                {"quantization_config": config}))
        return folder / "model.safetensors"

    return write


def packed(folder):
    quantized(torch.uint8, ".weight_scale")(folder)
    save_file({"m.weight_packed": torch.zeros(4, 4, dtype=torch.uint8),
               "m.weight_scale": torch.ones(1)}, folder / "model.safetensors")
    return folder / "model.safetensors"


def blocks(folder):
    folder.mkdir()
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_tensor("m.weight", np.zeros((2, 34), np.uint8),
                      raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf"


def adapter(folder):
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["m"]}))
    save_file({"base_model.model.m.lora_A.weight": torch.ones(1, 4),
               "base_model.model.m.lora_B.weight": torch.ones(4, 1)},
              folder / "adapter_model.safetensors")
    return folder


def rules(folder):
    folder.mkdir(exist_ok=True)
    path = folder / "rules.json"
    path.write_text(json.dumps({"rules": [{
        "source": ["m.weight"], "target": ["n"],
        "ops": [{"transpose": {"dims": [0, 1]}}]}]}))
    return path


CAST = {"dtype": lambda folder: "float16", "set_dtype": lambda folder: "m.weight=f16"}
MERGE, RULES = {"lora": adapter}, {"rules": rules}
PROVOKED = {
    "a tensor that is not in the index": (index_that_lies, {}),
    "a tensor twice in the index": (index_with_a_name_twice, {}),
    "shards with a hole": (hole, {}),
    "parts with a hole": (part_of_a_hole, {}),
    "a folder of parts with a hole": (
        lambda folder: save_parts(folder, each=1)[2].unlink(), {}),
    "a rank that is missing": (rank_is_missing, {}),
    "ranks that differ": (ranks_that_differ, {}),
    "two variants": (both(only("model.fp16.safetensors"),
                          other("model.bf16.safetensors")), {}),
    "a version without its base": (version, {}),
    "a version with a base of another one": (
        version, {"base": lambda folder: base(folder / "weight_v000002")}),
    "a version with a base of none": (
        version, {"base": lambda folder: base(folder / "model")}),
    "a shard of a version": (shard_of_a_version, {}),
    "a cast of a quantized model": (quantized(), CAST),
    "a cast of a model without its scales": (
        quantized(scales="", config={"quant_method": "fp8"}), CAST),
    "an adapter of a quantized model": (quantized(), MERGE),
    "an adapter of a packed model": (packed, MERGE),
    "an adapter of whole numbers": (quantized(torch.int8, ""), MERGE),
    "rules for blocks": (blocks, RULES),
    "blocks in another format": (blocks, {}),
}

def given(options, has, folder):
    """Yields the options that something has, each alone, or none at all."""
    taken = {name: make for name, make in options.items() if has(name)}
    for name, make in taken.items():
        yield {name: str(make(folder))}
    if not options:
        yield {}


def ways():
    """Yields (verb, command line) of all that reads a source."""
    for way, line in WAYS.items():
        if "FILE" in line:
            verb = way.split()[0]
            yield verb, f"{verb} {line}"
    yield "bulk", "bulk convert FILE.pt --to safetensors -o out.bulk"
    # `delta` has other options for each action.
    yield "delta write", ("delta write plain.pt FILE.pt out.version --version 1 "
                          "--base-version 0")


def said_by_verbs(takes, path, options, work):
    """Yields (verb, what it prints)."""
    for verb, line in ways():
        if line.startswith("delta") and verb == "delta":
            continue
        for more in given(options, lambda name, verb=verb: takes.verb(verb, name),
                          work.parent / "extra"):
            clear(work)
            save(work / "plain.pt", MODEL)
            words = words_of(line, lambda name: str(path))
            for name, value in more.items():
                words += ["--" + name.replace("_", "-"), value]
            done = subprocess.run([takes.command, *words], cwd=work,
                                  capture_output=True, text=True, errors="replace")
            yield verb, done.stderr + done.stdout


def said_by_calls(takes, path, options, work):
    """Yields (call, the message of its error)."""
    for name, bound in CALLS.items():
        home, _, function = name.rpartition(".")
        call = getattr(sys.modules.get(home), function, None)
        if call is None:  # A method.
            continue
        for more in given(options, lambda name, call=call: takes.call(call, name),
                          work.parent / "extra"):
            clear(work)
            try:
                plain(bound(str(path), str(work / "out.safetensors"), **more))
            except (haulway.Error, OSError, ValueError, RuntimeError,
                    TypeError) as error:
                yield call, str(error)


@pytest.fixture(scope="module")
def rows(takes, tmp_path_factory):
    """Returns all that calls and verbs print, and what lacks an option."""
    printed, lacking = [], []
    for row, (write, options) in PROVOKED.items():
        folder = tmp_path_factory.mktemp("row")
        (work := folder / "work").mkdir()
        path = write(folder / "model") or folder / "model"
        for verb, text in said_by_verbs(takes, path, options, work):
            printed.append(text)
            lacking += [(row, *one) for one in takes.lacking(text, verbs=[verb])]
        for call, text in said_by_calls(takes, path, options, work):
            printed.append(text)
            lacking += [(row, *one) for one in takes.lacking(text, calls=[call])]
    return "\n".join(printed), lacking


def test_what_is_advised_can_be_done(rows):
    assert not rows[1], "\n".join(map(str, rows[1]))


@pytest.mark.parametrize("file, text", REMEDIES,
                         ids=[f"{file}-{i}" for i, (file, _) in enumerate(REMEDIES)])
def test_every_text_that_names_an_option_is_tried(file, text, takes, rows):
    assert list(takes.lacking(text, *OWNED.get(file, ()))) == []
    if file in OWNED or all(one["others"] for one in OPTION.finditer(text)):
        return
    pieces = [re.escape(one) for one in re.split(r"\{[^}]*\}", text)]
    assert re.search(".*".join(pieces), rows[0]), "a row of PROVOKED prints this"
