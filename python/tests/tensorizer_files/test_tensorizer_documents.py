"""The documents on Tensorizer files: the tests they name exist, their examples
run."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

import haulway

ROOT = pathlib.Path(__file__).parents[3]
ACCEPTANCE = (ROOT / "docs/formats/tensorizer-acceptance.md").read_text()
FORMAT = (ROOT / "docs/formats/tensorizer.md").read_text()


def test_every_test_that_is_named_is_there():
    named = re.findall(r"`(\w+): (\w+)`", ACCEPTANCE)
    assert len(named) > 50
    missing = [
        f"{file}: {name}" for file, name in named
        if f"\ndef test_{name}(" not in (
            next(ROOT.glob(f"python/tests/*/test_{file}.py"))).read_text()
    ]
    assert missing == []


def test_every_cpp_test_that_is_named_is_there():
    sources = "\n".join(
        path.read_text() for path in (ROOT / "src").rglob("*_test.cc")
    )
    there = set(re.findall(r"TEST(?:_[FP])?\((\w+),\s*(\w+)\)", sources))
    named = set(re.findall(r"`([A-Z]\w+)\.([A-Z]\w+)`", ACCEPTANCE))
    assert len(named) > 15
    assert named - there == set()


def test_every_item_is_there():
    items = set()
    for line in ACCEPTANCE.splitlines():
        cell = re.match(r"\| ([\dB, ]+) \|", line)
        items |= set(re.findall(r"B?\d+", cell[1])) if cell else set()
    wanted = {str(i) for i in range(1, 22)} | {f"B{i}" for i in range(1, 19)}
    assert items >= wanted


@pytest.mark.parametrize("number", range(FORMAT.count("```python")))
def test_examples_run(number, tmp_path, monkeypatch):
    example = FORMAT.split("```python\n")[number + 1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(example, f"example {number}", "exec"), {})


def test_commands_print_what_is_said(tmp_path):
    haulway.save({"a": torch.ones(3), "b": torch.zeros(2)},
                 tmp_path / "model.tensors")
    shown = FORMAT.split("```console\n")[1].split("```")[0]
    beside = pathlib.Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{beside}:{os.environ['PATH']}"}
    for step in re.split(r"^\$ ", shown, flags=re.M)[1:]:
        command, _, expected = step.partition("\n")
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment,
            capture_output=True, text=True,
        )
        assert (done.stdout, done.stderr) == (expected, ""), command
