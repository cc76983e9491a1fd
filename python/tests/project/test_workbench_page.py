"""docs/workbench.md: its examples run on files of the same names."""

import pathlib
import re
import shlex

import pytest
import torch

import haulway

PAGE = (pathlib.Path(__file__).resolve().parents[3]
        / "docs/workbench.md").read_text()
COMMANDS = re.findall(r"^(haulway .*)$", PAGE, re.MULTILINE)
# Commands that report a finding.
FINDING = {"haulway diff old.pt new.safetensors",
           "haulway repair cut.pt rest.safetensors"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workbench")
    torch.manual_seed(1)
    old = {f"layers.{i}.{name}": torch.randn(8, 8)
           for i in range(3) for name in ("weight", "bias")}
    torch.save(old, folder / "old.pt")
    haulway.convert(folder / "old.pt", folder / "old.safetensors")
    haulway.convert(folder / "old.pt", folder / "old-bf16.safetensors",
                    dtype="bf16")
    cut = (folder / "old.pt").read_bytes()
    (folder / "cut.pt").write_bytes(cut[:len(cut) * 2 // 3])
    new = {**old, "layers.2.bias": old["layers.2.bias"] + 1}
    haulway.save(new, folder / "new.safetensors")
    return folder


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_do_what_they_say(line, run, folder):
    run(*shlex.split(line)[1:], cwd=folder, code=int(line in FINDING))


def test_programs_run(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(program, {"haulway": haulway})  # noqa: S102
    assert "layers.2.bias bytes 1.0" in capsys.readouterr().out
