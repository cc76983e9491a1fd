"""docs/bulk.md: its programs run."""

import pytest

import haulway
from bulk_files import make_files
from page_programs import programs, run_program

PROGRAMS = programs("bulk.md")


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_programs_run(tmp_path, number):
    make_files(tmp_path / "checkpoints", 3)
    said = run_program(PROGRAMS[number], tmp_path)
    assert said == ("3 3 0 0 0\n" if number == 0 else "")
    if number == 1:
        out = tmp_path / "converted/model-002.safetensors"
        assert [dtype for dtype, *_ in haulway.manifest(out).values()] == ["BF16"]


def test_there_are_programs():
    assert len(PROGRAMS) == 3
