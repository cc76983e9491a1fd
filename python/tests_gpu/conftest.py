"""Tests that need a GPU; scripts/test-gpu runs them, and nothing skips them."""

import pathlib

import pytest
import torch

import haulway


def pytest_sessionstart(session):
    if not torch.cuda.is_available():
        pytest.exit("torch finds no GPU", returncode=1)


def make_state():
    """Returns tensors of the kinds that checkpoints have."""
    torch.manual_seed(0)
    large = torch.randn(9 << 20)
    return {
        "f32": large,
        "bf16": torch.randn(1000, 1000).to(torch.bfloat16),
        "f8": torch.randn(64, 64).to(torch.float8_e4m3fn),
        "int64": torch.arange(100_000),
        "bool": torch.arange(7) % 2 == 0,
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.5),
        **{f"small.{i:04}": torch.full((3,), i) for i in range(1000)},
    }


FORMATS = ("model.pt", "model.safetensors", "model.tensors")


@pytest.fixture(scope="session")
def state():
    return make_state()


@pytest.fixture(scope="session")
def files(tmp_path_factory, state):
    """Returns a file of `state` for each format, by name."""
    folder = tmp_path_factory.mktemp("files")
    for name in FORMATS:
        haulway.save(state, folder / name)
    return folder


@pytest.fixture(params=FORMATS)
def path(request, files) -> pathlib.Path:
    return files / request.param


def check(found, wanted, device="cuda:0"):
    """Checks that every tensor is on the device and has the expected bytes."""
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        here = found[name]
        assert here.device == torch.device(device), name
        assert here.dtype == tensor.dtype, name
        assert here.shape == tensor.shape, name
        assert here.stride() == tensor.stride(), name
        back = here.cpu()
        assert torch.equal(
            back.contiguous().flatten().view(torch.uint8),
            tensor.contiguous().flatten().view(torch.uint8),
        ), name
