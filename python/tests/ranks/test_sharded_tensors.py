"""Files of FSDP1's ShardedTensor, which torch cannot open by itself."""

import subprocess
import sys

import pytest

import haulway
from rank_goldens import copy, expected, folder, found


def test_tensors_are_those_of_the_module():
    assert found(folder("fsdp1_2")) == expected("fsdp1_2")
    state = haulway.load(folder("fsdp1_2"), verify=True)
    assert state.keys() == expected("fsdp1_2").keys()
    assert haulway.verify(folder("fsdp1_2"))


def test_nothing_of_torch_distributed_is_imported():
    code = ("import haulway, sys; haulway.load(sys.argv[1], 'numpy'); "
            "assert not [m for m in sys.modules if 'torch' in m and "
            "m.startswith('torch')]")
    subprocess.run([sys.executable, "-c", code, folder("fsdp1_2")], check=True)


def test_a_rank_without_a_part():
    opened = haulway.open(folder("fsdp1_2") / "model_world_size_2_rank_1.pt")
    assert opened.info("one").shape == (0, 0)
    assert haulway.load(folder("fsdp1_2"))["one"].shape == (1, 3)


def test_scan_says_what_torch_says():
    report = haulway.scan(folder("fsdp1_2") / "model_world_size_2_rank_0.pt")
    assert not report.safe and report.verdict == "UNSAFE"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_rank(rank, tmp_path):
    work = copy("fsdp1_2", tmp_path / "work")
    (work / f"model_world_size_2_rank_{rank}.pt").unlink()
    with pytest.raises(haulway.MismatchError, match=f"rank {rank} of 2"):
        haulway.open(work)
    with pytest.raises(haulway.MismatchError, match=f"rank_{rank}.pt' is missing"):
        haulway.load(work, lenient=True)
