"""docs/training.md: its programs run."""

import pathlib
import re

import pytest
import torch

import haulway
from http_server import free_port

PAGE = (pathlib.Path(__file__).resolve().parents[3]
        / "docs/training.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize(("number", "said"), [
    (0, "1000 tensor(32.)\n"),
    (1, "['read_bytes', 'received_bytes', 'requests', 'seconds'] "
        "torch.Size([6, 2])\n"),
])
def test_programs_run(tmp_path, monkeypatch, capsys, number, said):
    monkeypatch.chdir(tmp_path)
    haulway.save({"layers.0.weight": torch.ones(6, 2)}, "model.safetensors")
    for name, value in {"RANK": "0", "WORLD_SIZE": "1",
                        "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
    exec(PROGRAMS[number], {})  # noqa: S102
    assert capsys.readouterr().out == said


def test_every_program_is_run():
    assert len(PROGRAMS) == 2
