import pathlib
import shutil
import subprocess
import sys

import pytest

from optional_torch import needs_torch

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def small():
    """The path of a real training checkpoint."""
    return ROOT / "testdata" / "small.pt"


@pytest.fixture(scope="session")
def command():
    """The path of the haulway command."""
    beside = pathlib.Path(sys.executable).with_name("haulway")
    found = str(beside) if beside.exists() else shutil.which("haulway")
    assert found, "pip install . brings the command"
    return found


@pytest.fixture
def run(command, tmp_path):
    """Runs the command in tmp_path; it must exit with `code`, if that is given."""

    def run(*arguments, code=0, cwd=tmp_path, text=True, **options):
        done = subprocess.run([command, *map(str, arguments)], cwd=cwd,
                              capture_output=True, text=text, **options)
        assert code in (None, done.returncode), (done.stdout, done.stderr)
        return done

    return run


def pytest_collection_modifyitems(items):
    for item in items:
        if needs_torch(item):  # Never, but where scripts/test-pythons says so.
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
