"""haulway.torch.dcp in a group of four gloo processes, checked with torch."""

import pathlib

import gloo_group

PROGRAM = pathlib.Path(__file__).parents[1] / "dcp_together.py"


def test_four_and_two_and_one_read_what_the_others_wrote(tmp_path):
    said = gloo_group.run(PROGRAM, tmp_path, 4)
    for (results,) in said:
        assert all(results.values()), results
    assert [len(results) for (results,) in said] == [16, 15, 9, 9]
