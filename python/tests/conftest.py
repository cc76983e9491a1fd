import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def small():
    """The path of a real training checkpoint."""
    return ROOT / "testdata" / "small.pt"
