"""tools/not_possible.py: what it finds, and what it refuses."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
REFUSED = "cannot set up io_uring: Operation not permitted"


@pytest.fixture
def tool(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location(
        "not_possible", ROOT / "tools/not_possible.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BUILD", tmp_path)
    monkeypatch.setattr(module, "FROM_PYTHON", tmp_path / "not_possible.txt")
    monkeypatch.setattr(sys, "argv", ["not_possible.py", "--refuse"])
    return module


def test_nothing_is_said_of_nothing(tool, capsys):
    assert tool.main() == 0 and capsys.readouterr().out == ""


def test_tests_of_both_languages_are_counted(tool, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(tool.REASONS, "io_uring", lambda: False)
    tool.FROM_PYTHON.write_text(f"{REFUSED}\n" * 2)
    log = tmp_path / "test/Testing/Temporary/LastTest.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"[ RUN      ] A.B\n/x/a_test.cc:9: Skipped\n{REFUSED}\n\n")
    assert tool.main() == 0
    assert capsys.readouterr().out == f"not possible here: 3 tests: {REFUSED}\n"


@pytest.mark.parametrize("reason, why", [
    (REFUSED, "this machine allows it"), ("too tired", "does not know this reason"),
])
def test_what_is_possible_must_be_tried(tool, capsys, monkeypatch, reason, why):
    monkeypatch.setitem(tool.REASONS, "io_uring", lambda: True)
    tool.FROM_PYTHON.write_text(reason + "\n")
    assert tool.main() == 1
    assert why in capsys.readouterr().out


def test_pytest_tells_what_was_left_out(tmp_path):
    test = tmp_path / "test_it.py"
    test.write_text("import pytest\ndef test_it(): pytest.skip('no wings')\n")
    told = tmp_path / "told"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml",
         "-p", "conftest", test],
        cwd=ROOT, check=True, capture_output=True,
        env={"HAULWAY_NOT_POSSIBLE": str(told), "PATH": "/usr/bin:/bin",
             "PYTHONPATH": str(ROOT / "python/tests")})
    assert told.read_text() == "no wings\n"
