"""Loading to a GPU, where there is none: see scripts/test-gpu for others."""

import pytest
import torch

import haulway
from haulway import _haulway


def test_without_a_driver_the_error_says_so():
    with pytest.raises(haulway.Error, match="no CUDA driver: cannot load"):
        _haulway.open_cuda(0, "libcuda-that-is-not-here.so.1")
    with pytest.raises(NotImplementedError):
        _haulway.open_cuda(0, "libcuda-that-is-not-here.so.1")


def test_loading_there_without_a_gpu(tmp_path):
    if torch.cuda.is_available():
        return  # tools/check_gpu.py is for such machines.
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(3)}, path)
    for include in (None, "w"):
        with pytest.raises(haulway.Error, match="no CUDA driver|no GPU"):
            haulway.load(path, include=include, device="cuda:0")
