"""docs/dataloader.md: its programs run, and the tests of its checklist exist."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
PAGE = (ROOT / "docs/dataloader.md").read_text()
TESTS = (ROOT / "docs/dataloader-checklist.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_every_test_that_is_named_is_there():
    named = re.findall(r"`(\w+): (\w+)`", TESTS)
    assert len(named) > 50
    missing = [
        f"{file}: {name}" for file, name in named
        if f"\ndef test_{name}(" not in (
            ROOT / f"python/tests/loader/test_loader_{file}.py").read_text()
    ]
    assert missing == []


def test_every_test_is_named():
    """Every test is listed beside one of PyTorch's or among the additional
    ones."""
    theirs, further = (
        set(re.findall(r"`(\w+): (\w+)`", part)) for part in
        TESTS.split("## What PyTorch's tests have not")
    )
    assert len(further - theirs) >= 60
    there = {
        (path.stem.removeprefix("test_loader_"), name)
        for path in pathlib.Path(__file__).parent.glob("test_loader_*.py")
        for name in re.findall(r"^def test_(\w+)", path.read_text(), re.MULTILINE)
        if path.name != "test_loader_page.py"
    }
    assert theirs | further == there


def test_programs_of_the_page_run():
    """All in one process, each with its own names."""
    assert len(PROGRAMS) == 4
    text = "\n".join(f"exec({program!r}, {{}})" for program in PROGRAMS)
    done = subprocess.run([sys.executable, "-W", "error", "-c", text],
                          capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == 5 * "torch.Size([20])\n"


@pytest.mark.parametrize("page", ["README.md", "arena.md"])
def test_pages_lead_to_it(page):
    assert "dataloader.md" in (ROOT / "docs" / page).read_text()
