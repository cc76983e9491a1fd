"""The programs in docs/hosts.md that need another package."""

import pytest

from page_code import packages, programs, run_alone

PROGRAMS = [one for one in programs("docs/hosts.md") if packages(one)]


def test_there_are_some():
    assert {"jax", "lightning", "transformers"} <= set().union(*map(packages, PROGRAMS))


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_of_the_page_run(program, tmp_path):
    said = run_alone(program, tmp_path)
    for line in program.splitlines():
        if line.startswith("print("):
            assert line.partition("# ")[2].strip() in said
