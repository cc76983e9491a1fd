"""Loads every checkpoint with torch and with Haulway, and compares bit for
bit."""

import pickle

import pytest
import torch

import haulway
import haulway.torch
from cases import cases
from compare import Comparer

CASES = list(cases())


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cases")


def write(case, folder):
    name, make, save = case
    path = folder / f"{name}.pt"
    if not path.exists():
        try:
            save(make(), path)
        except (RuntimeError, NotImplementedError) as error:
            path.unlink(missing_ok=True)
            return None, error
    return path, None


def ids(case):
    return case[0]


def loaded_by_torch(path, case):
    try:
        return torch.load(path, weights_only=True)
    except pickle.UnpicklingError:
        # Plain Python data that torch's list lacks: builtins.bytes, which
        # represents b"".
        return torch.load(path, weights_only=False)
    except AttributeError:
        # torch 2.13 cannot load untyped storages from the legacy container that
        # it wrote; Haulway can, so compare with the saved object.
        assert case[0].endswith("legacy")
        return case[1]()


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_load_is_torch_load(case, folder):
    path, refusal = write(case, folder)
    if path is None:
        # Objects that torch itself cannot save are listed and skipped.
        assert str(refusal)
        return
    theirs = loaded_by_torch(path, case)
    Comparer().same(haulway.torch.load(path), theirs)
    Comparer().same(haulway.load(path, framework="torch"), theirs)
    if not case[0].endswith("legacy"):
        Comparer().same(haulway.torch.load(path, mmap=True), theirs)
    report = haulway.verify(path)
    assert report.ok, report.findings
    assert haulway.scan(path).safe


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_open_reads_each_tensor(case, folder):
    path, _ = write(case, folder)
    if path is None:
        return
    for mmap in (True, False):
        with haulway.open(path, framework="torch", mmap=mmap) as checkpoint:
            names = list(checkpoint)
            assert len(set(names)) == len(names) == len(checkpoint)
            for name in names:
                info = checkpoint.info(name)
                tensor = checkpoint[name]
                assert tuple(tensor.shape) == info.shape
                assert tensor.requires_grad == info.requires_grad
    haulway.load(path, framework="numpy")


def test_there_are_several_hundred_cases():
    assert len(CASES) > 400
