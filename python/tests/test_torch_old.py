"""Files that torch writes seldom, or wrote once, against torch.load."""

import pytest
import torch

import haulway
import haulway.torch
from compare import Comparer
from torch_versions import config


@pytest.mark.parametrize("alignment", [3, 48, 100, 1000, 4095, 65535])
def test_alignments_that_are_no_power_of_two(alignment, tmp_path):
    path = tmp_path / "odd.pt"
    state = {f"t{i}": torch.arange(float(i)) for i in range(40)}
    with config.patch({"save.storage_alignment": alignment}):
        torch.save(state, path)
    theirs = torch.load(path)
    Comparer().same(haulway.torch.load(path), theirs)
    Comparer().same(haulway.torch.load(path, mmap=True), theirs)
    Comparer().same(haulway.load(path, framework="torch"), theirs)
    assert haulway.verify(path).ok
    with haulway.open(path) as checkpoint:
        assert checkpoint.container["alignment"] == alignment
        assert torch.equal(checkpoint["t39"], theirs["t39"])


def test_an_alignment_of_nothing_is_refused(tmp_path):
    path = tmp_path / "none.pt"
    haulway.torch.save({"w": torch.ones(3)}, path)
    data = path.read_bytes()
    at = data.index(b"64", data.index(b".storage_alignment"))
    for wrong in (b"00", b"-1", b"6x"):
        broken = data[:at] + wrong + data[at + 2:]
        with pytest.raises(haulway.Error):
            haulway.load(broken)
