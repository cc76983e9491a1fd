"""A pattern or name that matches no tensor stops a change before it begins."""

import inspect
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


VERBS = [
    ("ls",), ("ls", "--json"), ("load",), ("manifest",), ("plan-reads",),
    ("manifest", "-o", "m.json"), ("diff", "m.safetensors"),
    ("convert", "m.npz"),
]


@pytest.mark.parametrize("words", VERBS)
def test_a_verb_that_chooses_no_tensor_says_so(words, run, tmp_path):
    haulway.save({"a": numpy.zeros(2)}, tmp_path / "m.safetensors")
    verb, *more = words
    done = run(verb, "m.safetensors", *more, "--include", "*", "--exclude", "a",
               code=3)
    assert "no tensor is chosen" in done.stderr
    if verb != "convert":
        assert done.stderr.endswith("of m.safetensors\n")
    assert os.listdir(tmp_path) == ["m.safetensors"]


# Every call with patterns. Where one of several files has what a pattern means,
# as in bulk(), each file is asked.
CALLS = {
    "load": lambda path, **names: haulway.load(path, "numpy", **names),
    "iterate": lambda path, **names: list(haulway.iterate(path, "numpy", **names)),
    "shard": lambda path, **names: haulway.shard(
        path, 0, 1, framework="numpy", **names),
    "plan_reads": haulway.plan_reads,
    "manifest": haulway.manifest,
    "tensor_stats": haulway.tensor_stats,
    "diff": lambda path, **names: haulway.diff(path, path, **names),
    "convert": lambda path, **names: haulway.convert(
        path, path.parent / "out.npz", **names),
    "publish_file": lambda path, **names: haulway.publish_file(
        "unmet", path, **names),
}


def test_no_call_is_forgotten():
    takes = {name for name in haulway.__all__
             if inspect.isfunction(getattr(haulway, name))
             and "include" in inspect.signature(getattr(haulway, name)).parameters}
    assert takes == CALLS.keys()


@pytest.mark.parametrize("names", [
    {"include": "modle.*"}, {"include": ["model.*", "modle.*"]},
    {"include": ["model.*"], "exclude": "modle.*"}, {"exclude": "modle.*"},
])
@pytest.mark.parametrize("call", CALLS)
def test_every_call_says_which_and_what_may_be_meant(path, call, names):
    with pytest.raises(haulway.NotFoundError) as caught:
        CALLS[call](path, **names)
    said = str(caught.value)
    assert "'modle.*' matches no name; did you mean 'model." in said
    assert os.listdir(path.parent) == ["a.safetensors"]


def test_shared_memory_is_asked_too(path):
    with pytest.raises(haulway.NotFoundError, match="'modle' matches no name"):
        haulway.load(path, "numpy", include="modle", destination="shm")


@pytest.mark.parametrize("words", VERBS)
def test_every_verb_says_which_and_what_may_be_meant(words, path, run):
    verb, *more = words
    more = [path if word == "m.safetensors" else word for word in more]
    done = run(verb, path, *more, "--include", "modle.*", code=3)
    assert "include 'modle.*' matches no name; did you mean 'model.a'?" in (
        done.stderr)
    assert os.listdir(path.parent) == ["a.safetensors"]


# What names one tensor, in Python and in the command.
NAMED = {
    "open": lambda path, name: haulway.open(path)[name],
    "get_slice": lambda path, name: haulway.open(path).get_slice(name),
    "plan_reads": lambda path, name: haulway.plan_reads(
        path, slices={name: slice(1)}),
    "rename": lambda path, name: haulway.edit(path, rename={name: "x"}),
    "drop": lambda path, name: haulway.edit(path, drop=name),
    "dtype": lambda path, name: haulway.edit(path, dtype={name: "f16"}),
    "replace": lambda path, name: haulway.edit(path, replace={name: path}),
}
WORDS = [("cat", "{name}"), ("edit", "--rename", "{name}=x"),
         ("edit", "--drop", "{name}"), ("edit", "--set-dtype", "{name}=f16"),
         ("plan-reads", "--slice", "{name}=0:1")]


@pytest.mark.parametrize("call", NAMED)
def test_a_name_that_is_nearly_a_tensors(path, call):
    with pytest.raises(haulway.Error, match="did you mean 'model.a'"):
        NAMED[call](path, "mdel.a")
    with pytest.raises(haulway.Error) as caught:
        NAMED[call](path, "something else")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("words", WORDS)
def test_the_command_knows_it_too(path, run, words):
    verb, *more = words
    done = run(verb, path, *(word.format(name="mdel.a") for word in more),
               code=None)
    assert done.returncode in (2, 3)
    assert "did you mean 'model.a'?" in done.stderr


@pytest.mark.parametrize("name, meant", [
    ("x.safetensor", ".safetensors"), ("x.safetnsors", ".safetensors"),
    ("x.ggfu", ".gguf"), ("x.tensor", ".tensors"), ("x.npx", ".npz"),
])
def test_an_ending_that_is_nearly_one_is_none(tmp_path, path, run, name, meant):
    for write in (lambda out: haulway.save(STATE, out),
                  lambda out: haulway.convert(path, out), haulway.writer):
        with pytest.raises(haulway.InvalidArgumentError) as caught:
            write(tmp_path / name)
        assert "has no suffix of a writable format" in str(caught.value)
    assert "did you mean '.np" in str(caught.value) or (
        f"did you mean '{meant}'?" in str(caught.value))
    assert "did you mean" in run("convert", path, name, code=2).stderr
    assert not (tmp_path / name).exists()
    haulway.save(STATE, tmp_path / name, format="safetensors")


@pytest.mark.parametrize("name", ["x", "x.ckpt", "x.opt", "x.weights", "x.42",
                                  "x.state", "x.pt.tmp", "x.p"])
def test_other_endings_are_torchs(tmp_path, name):
    haulway.save(STATE, tmp_path / name)
    with haulway.open(tmp_path / name) as file:
        assert file.format == "torch"
