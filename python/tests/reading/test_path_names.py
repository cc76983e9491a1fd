"""Paths are bytes: files with names that are not UTF-8 can be read."""

import os

import numpy
import pytest

import haulway


@pytest.fixture
def path(tmp_path):
    """Returns a file whose name is not UTF-8, in Python's form."""
    haulway.save({"w": numpy.ones(3)}, tmp_path / "a.pt")
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.pt")
    os.rename(tmp_path / "a.pt", path)
    return path


def test_a_file_is_opened_and_judged(path):
    with haulway.open(path, "numpy") as checkpoint:
        assert checkpoint["w"].sum() == 3
    assert haulway.verify(path) and haulway.scan(path)
    assert haulway.verify(path).file == haulway.scan(path).file == path


def test_a_folder_lists_it(path, tmp_path):
    assert [one.file for one in haulway.verify(tmp_path).files] == [path]
    assert [one.file for one in haulway.scan([tmp_path]).files] == [path]


def test_messages_can_be_printed(path):
    with pytest.raises(haulway.NotFoundError) as caught:
        haulway.open(path + "no")
    str(caught.value).encode()
