"""A pattern or name that matches no tensor stops a change before it begins."""

import json
import os
import re

import numpy
import pytest

import haulway

STATE = {"model.a": numpy.ones(3, numpy.float32),
         "model.b": numpy.ones(2, numpy.float32),
         "count": numpy.arange(3)}

# Options of convert() with one pattern that matches nothing, and the message.
UNMET = [
    ({"include": ["model.*", "modle.*"]}, "include 'modle.*' matches no name"),
    ({"include": "/^b/"}, "include '/^b/' matches no name"),
    ({"exclude": ["count", "bias"]}, "exclude 'bias' matches no name"),
    ({"include": "model.*", "exclude": "z?"}, "exclude 'z?' matches no name"),
    ({"rename": {"^model": "m", "^module": "n"}},
     "rename '^module' changes no name"),
    # Rules are applied in sequence.
    ({"rename": [("^model", "m"), ("^model", "n")]},
     "rename '^model' changes no name"),
    # The rule matches only an excluded tensor.
    ({"include": "model.*", "rename": {"count": "n"}},
     "rename 'count' changes no name"),
]


def words_of(options):
    """Returns the same options for the command line."""
    for name, value in options.items():
        if name == "rename":
            pairs = value.items() if isinstance(value, dict) else value
            value = [f"{old}={new}" for old, new in pairs]
        for one in [value] if isinstance(value, str) else value:
            yield from (f"--{name}", one)


@pytest.fixture
def path(tmp_path):
    haulway.save(STATE, tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


@pytest.mark.parametrize("target", ["b.npz", "folder/"])
@pytest.mark.parametrize("options, said", UNMET)
def test_converting_says_which(path, run, target, options, said):
    out = os.path.join(path.parent, target)
    to = {"to": "safetensors"} if target.endswith("/") else {}
    with pytest.raises(haulway.NotFoundError, match=re.escape(said)) as caught:
        haulway.convert(path, out, **to, **options)
    assert caught.value.code == "kNotFound"
    more = ["--to", "safetensors"] if to else []
    done = run("convert", path, out, *more, "--json", *words_of(options), code=3)
    assert said in done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "kNotFound"
    assert os.listdir(path.parent) == ["a.safetensors"]


def test_the_command_has_prefixes_too(path, run):
    done = run("convert", path, "b.npz", "--prefix", "modle.", code=3)
    assert "no name begins with prefix 'modle.'" in done.stderr
    # Patterns apply after the prefix was removed.
    done = run("convert", path, "b.npz", "--prefix", "model.", "--exclude",
               "model.a", code=3)
    assert "exclude 'model.a' matches no name" in done.stderr
    run("convert", path, "b.npz", "--prefix", "model.", "--exclude", "a")
    assert list(haulway.load(path.parent / "b.npz", "numpy")) == ["model.b"]


def test_a_compiled_expression_is_a_rule_and_a_function_is_none(path):
    out = path.parent / "b.npz"
    with pytest.raises(haulway.NotFoundError, match="rename 'z' changes no name"):
        haulway.convert(path, out, rename={re.compile("z"): "y"})
    assert not out.exists()
    haulway.convert(path, out, rename=lambda name: name)
    assert sorted(haulway.load(out, "numpy")) == sorted(STATE)


def test_what_is_no_tensor_can_be_excluded(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(2), "step": 3}, tmp_path / "a.pt")
    done = haulway.convert(tmp_path / "a.pt", tmp_path / "b.npz", exclude="step")
    assert done.left_out == []


@pytest.mark.parametrize("options, words, said", [
    ({"rename": {"z": "y"}}, ("--rename", "z=y"), "no tensor 'z'"),
    ({"drop": ["count", "z"]}, ("--drop", "count", "--drop", "z*"),
     "no tensor 'z"),
    ({"dtype": {"z": "f16"}}, ("--set-dtype", "z*=f16"), "no tensor 'z"),
    ({"replace": {"z": b""}}, ("--replace", "z=a.safetensors"),
     "no tensor 'z'"),
])
def test_editing_says_which(path, run, options, words, said):
    before = path.read_bytes()
    if "replace" in options:
        options = {"replace": {"z": path}}
    with pytest.raises(haulway.NotFoundError, match=said):
        haulway.edit(path, **options)
    assert said in run("edit", path, *words, code=3).stderr
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["a.safetensors"]


@pytest.mark.parametrize("words", [
    ("ls",), ("ls", "--json"), ("load",), ("manifest",), ("plan-reads",),
    ("manifest", "-o", "m.json"),
    ("diff", "m.safetensors"),
])
def test_a_verb_that_chooses_no_tensor_says_so(words, run, tmp_path):
    haulway.save({"a": numpy.zeros(2)}, tmp_path / "m.safetensors")
    verb, *more = words
    done = run(verb, "m.safetensors", *more, "--include", "b*", code=3)
    assert "no tensor is chosen" in done.stderr
    assert done.stderr.endswith("of m.safetensors\n")
    assert os.listdir(tmp_path) == ["m.safetensors"]
