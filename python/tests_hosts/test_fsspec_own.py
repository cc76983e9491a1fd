"""fsspec's own tests for file systems, with haulway:// in a temporary folder."""

import os

import fsspec
import pytest
from fsspec.tests import abstract


class _Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self):
        return fsspec.filesystem("haulway", auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, tmp_path):
        folder = tmp_path / "there"
        folder.mkdir()
        return str(folder)

    @pytest.fixture
    def fs_join(self):
        return os.path.join


class TestCopy(abstract.AbstractCopyTests, _Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, _Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, _Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, _Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, _Fixtures):
    pass
