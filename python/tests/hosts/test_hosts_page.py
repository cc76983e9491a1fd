"""The programs in docs/hosts.md that need no host."""

import pytest

from page_programs import needs, programs, run_program

PROGRAMS = [one for one in programs("hosts.md") if not needs(one)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_of_the_page_run(program, tmp_path):
    said = run_program(program, tmp_path)
    for line in program.splitlines():
        if line.startswith("print("):
            assert line.partition("# ")[2].strip() in said
