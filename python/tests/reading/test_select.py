"""Names and parts: the library's selection compared with Python's and
NumPy's."""

import fnmatch
import json
import random

import numpy
import pytest
import torch

import haulway
from chance import cases
from haulway import _haulway

ALPHABET = "ab*?[]!-^\\.&~|é日"


def test_globs_match_what_fnmatchcase_matches():
    chance = random.Random(7)
    matched = 0
    for _ in range(cases(20_000)):
        pattern = "".join(chance.choices(ALPHABET, k=chance.randrange(8)))
        name = "".join(chance.choices("ab-^.]é日\\", k=chance.randrange(6)))
        if len(pattern) > 2 and pattern[0] == pattern[-1] == "/":
            continue
        wanted = fnmatch.fnmatchcase(name, pattern)
        found = _haulway.NameFilter([pattern], [], "").matches(name)
        assert found == wanted, (pattern, name)
        matched += wanted
    assert matched > cases(500)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("select") / "m.pt"
    torch.save({
        "model": {"0.weight": torch.arange(12.0).reshape(4, 3),
                  "0.bias": torch.ones(4)},
        "step": torch.tensor(3),
    }, path)
    return path


def test_patterns_mean_one_thing_in_every_call(path, run):
    options = {"include": ["/weight$/", "st?p"], "exclude": "s*"}
    chosen = {"model.0.weight"}
    assert set(haulway.load(path, **options)) == chosen
    assert {name for name, _ in haulway.iterate(path, **options)} == chosen
    assert set(haulway.shard(path, 0, 2, **options)) == chosen
    assert haulway.plan_reads(path, **options).tensor_bytes == 48
    shared = haulway.load(path, destination="shm", **options)
    assert set(shared) == chosen
    words = ["--include", "/weight$/", "--include", "st?p", "--exclude", "s*"]
    listed = json.loads(run("ls", path, *words, "--json").stdout)
    assert {tensor["name"] for tensor in listed["tensors"]} == chosen
    for verb in ("plan", "load"):
        said = json.loads(run(verb, path, *words, "--json").stdout)
        assert said["tensor_bytes"] == 48, verb


def test_a_pattern_that_is_none(path, run):
    with pytest.raises(haulway.InvalidArgumentError, match="not a regular"):
        haulway.load(path, include="/(/")
    assert "not a regular expression" in run(
        "ls", path, "--include", "/(/", code=4
    ).stderr


def test_the_command_takes_prefixes_and_parts(path, run):
    listed = run("ls", path, "--prefix", "model.", "--include", "0.w*", "--json")
    assert [t["name"] for t in json.loads(listed.stdout)["tensors"]] == [
        "model.0.weight"
    ]
    for words, nbytes in (
        (["--shard", "0/2"], 24 + 8 + 8),
        (["--shard", "1/2/1", "--include", "*weight"], 16),
        (["--shard", "1/4", "--slice", "model.0.bias=:3",
          "--include", "*.weight"], 12 + 12),
    ):
        said = json.loads(run("plan", path, *words, "--json").stdout)
        assert said["tensor_bytes"] == nbytes, words
    for wrong in ("2/2", "1", "a/b", "0/2/", "0/2/1/1"):
        assert "expected RANK/WORLD" in run(
            "plan", path, "--shard", wrong, code=4
        ).stderr
    run("load", path, "--include", "nothing", code=3)


def test_parts_of_ranks_are_those_of_array_split():
    for size in range(10):
        for world in range(1, 6):
            wanted = numpy.array_split(numpy.arange(size), world)
            for rank in range(world):
                (part,) = _haulway.shard_index((size,), 0, rank, world)
                found = numpy.arange(size)[part]
                assert found.tolist() == wanted[rank].tolist()


def test_text_that_no_name_can_be_selects_nothing(path):
    odd = "\ud800"
    opened = haulway.open(path)
    assert odd not in opened and opened.get(odd) is None
    for ask in opened.__getitem__, opened.get_slice, opened.info:
        with pytest.raises(KeyError):
            ask(odd)
    for options in {"include": odd}, {"exclude": ["a", odd]}, {"dtype": odd}:
        with pytest.raises(haulway.InvalidArgumentError, match="expected"):
            haulway.load(path, **options)
