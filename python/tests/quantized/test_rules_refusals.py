"""Rules that cannot be applied are refused by name, and nothing is written."""

import json
import random
import subprocess

import pytest
import torch
from safetensors.torch import save_file

import haulway

TENSORS = {
    "x.a": torch.ones(4, 6), "x.b": torch.ones(4, 5), "y": torch.arange(6),
    **{f"e.{i}.w": torch.ones(2, 3) for i in (0, 1, 3)},
    **{f"f.{i}.{name}": torch.ones(2) for i in range(3) for name in "uv"},
    "f.3.u": torch.ones(2),
    "h.0.w": torch.ones(2), "h.1.w": torch.ones(3), "h.2.w": torch.ones(2).half(),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rules") / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(
        {"heads": 2, "zero": 0, "name": "x", "large": 2**62, "half": 0.5}))
    save_file(TENSORS, folder / "model.safetensors")
    return folder


def refused(model, tmp_path, command, text, code, *words):
    path = tmp_path / "rules.json"
    path.write_text(text)
    run = subprocess.run(
        [command, "convert", model, f"{tmp_path}/out/", "--to", "safetensors",
         "--rules", path], capture_output=True, text=True)
    assert run.returncode == code, run.stderr
    assert not (tmp_path / "out").exists()
    with pytest.raises(haulway.Error) as raised:
        haulway.load(model, rules=path)
    for message in (run.stderr, str(raised.value)):
        for word in words:
            assert word in message
        parts = message.strip().split("; ")
        assert len(parts) == len({*parts})


def one(source, target, *ops):
    return {"source": source, "target": target, "ops": list(ops)}


A_SPLIT = {"split": {"dim": 0, "sizes": [1, 3]}}
# A rule, the exit code, and words of the message.
REFUSED = {
    "matches nothing": (one("x.c", "c"), 3, ["rule 1 ('x.c')"]),
    "not at a component": (one("b", "c"), 0, []),
    "half a component": (one(".a", "c"), 3, ["matches no tensor"]),
    "renames nothing": ({"rename": ["^z", "y"]}, 3, ["rule 1 ('^z')"]),
    "a missing number": (one("e.*.w", "w", {"stack": {}}), 1, ["'e.2.w'"]),
    "numbers that differ": (one(["f.*.u", "f.*.v"], "w", {"stack": {}}), 1,
                            ["'f.3.v'"]),
    "a missing source": (one(["a", "c"], "w", {"concat": {}}), 1, ["'x.c'"]),
    "two of one name": (one("x.a", "y"), 1, ["'y'", "two results"]),
    "renamed to one name": ({"rename": ["[ab]$", "c"]}, 1, ["'x.c'"]),
    "no name": ({"rename": ["^y$", ""]}, 1, ["empty name"]),
    "shapes differ": (one("h.*.w", "w", {"stack": {}}), 1, ["[2]", "[3]"]),
    "dtypes differ": (one(["h.0.w", "h.2.w"], "w", {"concat": {}}), 1,
                      ["F32", "F16"]),
    "concat of other shapes": (one(["x.a", "x.b"], "w", {"concat": {"dim": 0}}),
                               1, ["concat", "[4, 6]", "[4, 5]"]),
    "no such dimension": (one("x.a", "w", {"stack": {"dim": 3}}), 1,
                          ["dimension 3 of 3"]),
    "no such dimension, negative": (
        one("x.a", ["w", "v"], {"chunk": {"dim": -3}}), 1, ["dimension -3"]),
    "sizes do not add up": (
        one("x.a", ["w", "v"], {"split": {"sizes": [1, 2]}}), 1,
        ["[1, 2] do not add up to 4"]),
    "sizes that pass 2^63": (
        one("x.a", ["w", "v"], {"split": {"sizes": ["large", "large"]}}), 1,
        ["add up"]),
    "a negative size": (
        one("x.a", ["w", "v"], {"split": {"sizes": [5, -1]}}), 1, ["add up"]),
    "chunks that differ": (one("x.b", ["w", "v"], {"chunk": {"dim": 1}}), 1,
                           ["5 is not 2 equal"]),
    "several to cut": (one(["x.a", "x.b"], ["w", "v"], {"chunk": {}}), 1,
                       ["expected one source"]),
    "more parts than targets": (one("x.a", "w", A_SPLIT), 1, ["targets"]),
    "fewer parts than targets": (one("x.a", ["u", "v", "w"], A_SPLIT), 1,
                                 ["targets"]),
    "numbered parts for one target": (one("x.a", "w", {"unstack": {}}), 1,
                                      ["targets"]),
    "one part for numbered targets": (one("x.a", "*.w", {"add": {"value": 1}}),
                                      1, ["targets"]),
    "unstacked twice": (one("x.a", "*.w", {"unstack": {}}, {"unstack": {}}), 1,
                        ["unstacked already"]),
    "heads do not divide": (one("x.b", "w", {"permute_rope": {"heads": 3}}), 1,
                            ["[4, 5]", "3 heads"]),
    "no heads": (one("x.b", "w", {"permute_rope": {"heads": "zero"}}), 1,
                 ["0 heads"]),
    "dims that are not those": (
        one("x.a", "w", {"transpose": {"dims": [0, 1, 1]}}), 1, ["[0, 1, 1]"]),
    "one dimension twice": (
        one("x.a", "w", {"transpose": {"dims": [0, 0]}}), 1, ["[0, 0]"]),
    "one dimension twice, negative": (
        one("x.a", "w", {"transpose": {"dims": [1, -1]}}), 1, ["[1, -1]"]),
    "reshape of other size": (one("x.a", "w", {"reshape": {"shape": [5, -1]}}),
                              1, ["[4, 6] cannot become [5, -1]"]),
    "reshape that passes 2^64": (
        one("x.a", "w", {"reshape": {"shape": ["large", "large", 24]}}), 1,
        ["cannot become"]),
    "two sizes of -1": (one("x.a", "w", {"reshape": {"shape": [-1, -1]}}), 1,
                        ["cannot become"]),
    "numbers are not computed with": (one("y", "w", {"add": {"value": 1}}), 2,
                                      ["I64", "floating-point"]),
    "no such cast": (one("y", "w", {"cast": {"dtype": "F16"}}), 2,
                     ["I64", "F16"]),
    "unknown name": (one("x.a", "w", {"permute_rope": {"heads": "head"}}), 1,
                     ["no whole number 'head'"]),
    "a name that is no number": (
        one("x.a", "w", {"permute_rope": {"heads": "name"}}), 1, ["'name'"]),
    "a number with a fraction": (
        one("x.a", "w", {"permute_rope": {"heads": "half"}}), 1, ["'half'"]),
    "a rest": (one("x.a", "w", {"permute_rope": {"heads": "5/heads"}}), 1,
               ["5 cannot be divided by 2"]),
    "division by zero": (one("x.a", "w", {"permute_rope": {"heads": "2/zero"}}),
                         1, ["divided by 0"]),
    "a product that passes 2^63": (
        one("x.a", "w", {"permute_rope": {"heads": "large*heads"}}), 1,
        ["passes 2^63"]),
    "no expression": (one("x.a", "w", {"permute_rope": {"heads": "2+"}}), 2,
                      ["'2+' is no expression"]),
    "no expression, behind": (
        one("x.a", "w", {"permute_rope": {"heads": "2 heads"}}), 2,
        ["is no expression"]),
    "nested too deep": (
        one("x.a", "w", {"permute_rope": {"heads": "(" * 99 + "1" + ")" * 99}}),
        2, ["(1))", "is nested more than 32 deep"]),
    "a long one that is none": (
        one("x.a", "w", {"permute_rope": {"heads": "1+" * 120 + "!"}}), 2,
        ["1+!' is no expression"]),
    "too long": (one("x.a", "w", {"permute_rope": {"heads": "1+" * 150 + "1"}}),
                 2, ["an expression has 301 characters: expected 256 at most"]),
    "unknown operation": (one("x.a", "w", {"stak": {"dim": 0}}), 2,
                          ["'stak'; did you mean 'stack'?"]),
    "unknown parameter": (one("x.a", "w", {"stack": {"dims": 0}}), 2,
                          ["'dims'; did you mean 'dim'?"]),
    "a parameter is missing": (one("x.a", "w", {"split": {"dim": 0}}), 2,
                               ["split needs 'sizes'"]),
    "a parameter of another kind": (one("x.a", "w", {"stack": {"dim": 0.5}}), 2,
                                    ["'dim'"]),
    "a value that is no number": (one("x.a", "w", {"add": {"value": "1"}}), 2,
                                  ["'value'"]),
    "unknown dtype": (one("x.a", "w", {"cast": {"dtype": "F13"}}), 2, ["'F13'"]),
    "two operations in one": (
        one("x.a", "w", {"add": {"value": 1}, "scale": {"value": 1}}), 2,
        ["one key"]),
    "unknown key": ({**one("x.a", "w"), "sorce": ["x"]}, 2,
                    ["'sorce'; did you mean 'source'?"]),
    "source without target": ({"source": "x.a"}, 2, ["'target'"]),
    "rename and more": ({"rename": ["a", "b"], "source": "x"}, 2, ["alone"]),
    "rename of one": ({"rename": ["a"]}, 2, ["'rename'"]),
    "no regular expression": ({"rename": ["(", "b"]}, 2, ["rule 1"]),
    "no such group": ({"rename": ["a", "\\1"]}, 2, ["rule 1"]),
    "a star and none": (one(["e.*.w", "x.a"], "w"), 2, ["some names have a '*'"]),
    "two stars": (one("*.*.w", "w"), 2, ["at most one '*'"]),
    "a star in a word": (one("e*.w", "w"), 2, ["not between dots"]),
    "the same source twice": (one(["x.a", "x.a"], "w"), 2, ["twice"]),
    "no source": (one([], "w"), 2, ["'source' is empty"]),
    "a function": ({"source": "x.a", "target": "w", "apply": 0}, 2, ["Python"]),
    "no object": ([1], 2, ["no object"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what, model, tmp_path, command):
    rule, code, words = REFUSED[what]
    text = json.dumps({"rules": [rule]})
    if code == 0:
        (tmp_path / "rules.json").write_text(text)
        assert "x.c" in haulway.load(model, rules=tmp_path / "rules.json")
        return
    refused(model, tmp_path, command, text, code, *words)


@pytest.mark.parametrize("text, words", [
    ("", "no JSON"), ("{", "no JSON"), ("[]", '{"rules": [...]}'),
    ('{"rules": {}}', '{"rules": [...]}'), ('{"rules": []}', "no rule"),
    ('{"rules": [], "rule": 1}', "'rule'; did you mean 'rules'?"),
    ('{"rules": [{"rename": ["a", "b"], "rename": ["a", "b"]}]}', "twice"),
    ('{"rules": [{"source": "x.a", "target": "w", '
     '"ops": [{"add": {"value": NaN}}]}]}', "no JSON"),
    ('{"rules": [{"source": "x.a", "target": "w", '
     '"ops": [{"add": {"value": 1e999}}]}]}', "no JSON"),
    ('{"rules": [{"source": "x.a", "target": "w", "ops": '
     '[{"stack": {"dim": 99999999999999999999}}]}]}', "no JSON"),
    ("[" * 100_000, "no JSON"),
    ('{"rules": [{"rename": ["a", "\\ud800"]}]}', "no JSON"),
    ('{"rules": [{"rename": ["a", "b"]}], "rules": []}', "'rules' is there twice"),
    ('{"rules": [], "rules": [{"rename": ["a", "b"]}]}', "'rules' is there twice"),
    ('\ufeff{"rules": [{"rename": ["a", "b"]}]}', "byte order mark (BOM)"),
])
def test_files_that_are_not_rules(text, words, model, tmp_path, command):
    refused(model, tmp_path, command, text, 2, words)


def test_files_that_cannot_be_read(model, tmp_path, command):
    for name in ("missing.json", "missing/rules", "stack_experts"):
        run = subprocess.run([command, "ls", model, "--rules", name],
                             capture_output=True, text=True, cwd=tmp_path)
        assert run.returncode == 2
        assert run.stderr.count(name) == 1


def test_a_folder_is_no_file_with_rules(model, tmp_path, command):
    for name in (tmp_path, f"{tmp_path}/", model):
        run = subprocess.run([command, "ls", model, "--rules", name],
                             capture_output=True, text=True)
        assert run.returncode == 2
        assert (f"'{name}' is a folder: expected a file or one of "
                "gguf-to-hf, stack-experts, split-experts") in run.stderr


def test_damaged_rules(model, tmp_path):
    """Any file gives tensors or an error."""
    text = json.dumps({"rules": [
        one(["x.a", "h.0.w"], "both", {"reshape": {"shape": [-1]}},
            {"concat": {}}),
        one("f.*.u", "f.*.w", {"scale": {"value": 2}}),
        one("both", ["v", "u"], {"split": {"sizes": ["heads*12", 2]}}),
        {"rename": ["^f\\.(\\d+)", "g.\\1"]}]}).encode()
    chance = random.Random(1)
    path = tmp_path / "rules.json"
    damaged = [text[:length] for length in range(0, len(text), 3)]
    for _ in range(300):
        changed = bytearray(text)
        changed[chance.randrange(len(text))] ^= 1 << chance.randrange(8)
        damaged.append(bytes(changed))
    for data in damaged:
        path.write_bytes(data)
        try:
            haulway.load(model, rules=path)
        except haulway.Error:
            pass
    path.write_bytes(text)
    assert "g.3.w" in haulway.load(model, rules=path)


@pytest.mark.parametrize("rules, error", [
    (3, TypeError), ([3], ValueError), ({"rules": []}, TypeError),
    ([{"source": "x.a", "target": "w", "apply": 0}], ValueError),
    ([{"source": "x.a", "target": "w", "ops": [{"add": {"value": {1}}}]}],
     ValueError),
    ([{"source": "x.a", "target": "w",
       "ops": [{"add": {"value": float("nan")}}]}], ValueError),
    ("", ValueError),
])
def test_python_arguments(rules, error, model):
    with pytest.raises(error, match="rules|apply"):
        haulway.load(model, rules=rules)


def test_empty_tensors_are_not_multiplied_without_end(tmp_path, run):
    save_file({f"{i}.w": torch.zeros(50_000, 50_000, 0) for i in range(2)},
              tmp_path / "model.safetensors")
    unstack = one("w", "*.v", {"unstack": {}})
    (tmp_path / "rules.json").write_text(json.dumps({"rules": [
        unstack, {"rename": [r"^(\d)\.(\d+)\.v$", r"\1_\2.w"]}, unstack]}))
    done = run("ls", "model.safetensors", "--rules", "rules.json", code=1)
    assert "the rules make more than 2000000 tensors" in done.stderr


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt", ".tensors",
                                    ".gguf"])
@pytest.mark.parametrize("name", ["a\0b", "\0", "a/../b", "\n", "é" * 40])
def test_odd_names_are_those_of_rename(name, suffix, tmp_path):
    """A format refuses a name or holds it, whatever gave it."""
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")

    def outcome(new, **options):
        try:
            haulway.convert(tmp_path / "model.safetensors", new,
                            metadata={"general.architecture": "x"}
                            if suffix == ".gguf" else {}, **options)
        except haulway.Error as error:
            return type(error), error.message.split(";")[0]
        return [*haulway.load(new)]

    by_rename = outcome(tmp_path / f"a{suffix}", rename=lambda _: name)
    by_rules = outcome(tmp_path / f"b{suffix}", rules=[{"rename": ["^w$", name]}])
    assert by_rules == by_rename


def test_a_strided_tensor(tmp_path):
    torch.save({"a": torch.ones(4, 6).T, "b": torch.ones(2)}, tmp_path / "m.pt")
    with pytest.raises(haulway.UnsupportedError) as raised:
        haulway.load(tmp_path / "m.pt",
                     rules=[one("a", "c", {"add": {"value": 1}})])
    assert str(raised.value).count("in 'a'") == 1
    found = haulway.load(tmp_path / "m.pt", rules=[{"rename": ["a", "c"]}])
    assert torch.equal(found["c"], torch.ones(6, 4))


def test_damage_below_a_rule(tmp_path):
    haulway.save({"a": torch.arange(5000.0), "b": torch.ones(2)},
                 tmp_path / "m.pt")
    data = bytearray((tmp_path / "m.pt").read_bytes())
    at = data.index(torch.arange(5000.0).numpy().tobytes())
    data[at + 8000] ^= 1
    (tmp_path / "m.pt").write_bytes(data)
    rules = [one("a", "c", {"add": {"value": 1}})]
    with pytest.raises(haulway.MismatchError):
        haulway.load(tmp_path / "m.pt", rules=rules, verify=True)


@pytest.mark.parametrize("renaming, count", [
    (["^(.*)$", r"\1\1"], 28), (["weight", "x" * 1025], 1)])
def test_long_names_are_refused_before_they_take_memory(tmp_path, renaming, count):
    save_file({"model.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(haulway.LimitError, match=r"bytes: expected \d+ at most"):
        haulway.load(tmp_path / "model.safetensors",
                     rules=[{"rename": renaming}] * count)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    path = tmp_path_factory.mktemp("many") / "model.safetensors"
    save_file({"one": torch.zeros(65_536, 0),
               **{f"{i}.w": torch.zeros(1) for i in range(65_536)}}, path)
    return path


@pytest.mark.parametrize("rule, words", [
    (one("*.w", "*." + "n" * 65_536, {"add": {"value": 1}}), "65538 bytes"),
    (one("*.w", "*." + "n" * 65_536), "65538 bytes"),
    (one("one", "n." * 10_000 + "*.w", {"unstack": {}}), "all names together"),
    ({"rename": ["^(.*)$", r"\1" * 510]}, "all names together"),
])
def test_many_long_names_are_refused_before_they_take_memory(
        rule, words, many, tmp_path, command):
    (tmp_path / "rules.json").write_text(json.dumps({"rules": [rule]}))
    run = subprocess.run(
        ["bash", "-c", "ulimit -v 2000000; exec \"$@\"", "-", command, "ls",
         many, "--rules", tmp_path / "rules.json", "--json"],
        capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    assert words in run.stderr


def test_no_rules_are_no_file(run, tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    done = run("ls", "model.safetensors", "--rules", "", code=4)
    assert "expected a file or a preset" in done.stderr


def test_a_function_returns_no_quantized_tensor(tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(haulway.Error, match="quantized tensor"):
        haulway.load(tmp_path / "model.safetensors", rules=[{
            "source": ["w"], "target": ["w"],
            "apply": lambda one: [torch.quantize_per_tensor(
                one[0], 0.1, 0, torch.qint8)]}])
