import pathlib

import pytest
from optional_torch import needs_torch

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def small():
    """The path of a real training checkpoint."""
    return ROOT / "testdata" / "small.pt"


def pytest_collection_modifyitems(items):
    for item in items:
        if needs_torch(item):  # Never, but where scripts/test-pythons says so.
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
