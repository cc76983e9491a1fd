"""haulway.torch in place of torch.load and torch.save."""

import functools
import inspect
import io
import logging
import pathlib
import pickle
import sys
import threading
import types

import pytest
import torch

import haulway.torch
from compare import same_tensors

STATE = {"w": torch.arange(12.0).reshape(3, 4), "b": torch.ones(2).bfloat16()}
same = functools.partial(same_tensors, expected=STATE)


class Note:
    """A class of a program: not data."""

    def __init__(self, text):
        self.text = text


@pytest.fixture(autouse=True)
def nothing_stays():
    """Checks that each test leaves torch as it found it."""
    before = (torch.load, torch.serialization.load, torch.save)
    yield
    haulway.torch.uninstall()
    assert (torch.load, torch.serialization.load, torch.save) == before
    assert not haulway.torch.installed()


@pytest.fixture
def path(tmp_path):
    torch.save(STATE, tmp_path / "state.pt")
    return tmp_path / "state.pt"


def test_counts_outlive_the_next_install(path):
    with haulway.torch.install() as first:
        same(torch.load(path))
        own = torch.load.__wrapped__
        with haulway.torch.install(save=True) as second:
            same(torch.load(path))
    assert first.counts["load"] == second.counts["load"] == 2
    with haulway.torch.install() as third:
        assert third.counts["load"] == 0 and first.counts["load"] == 2
    assert own is torch.load


def test_a_path_of_data_is_ours(path, caplog):
    caplog.set_level(logging.DEBUG, "haulway")
    with haulway.torch.install() as done:
        assert {"torch.load", "torch.serialization.load"} <= set(done.patched)
        same(torch.load(path))
        same(torch.load(str(path), "cpu", weights_only=True))
        same(torch.load(f=path, mmap=True, weights_only=False))
        meta = torch.load(path, map_location="meta")
        assert meta["w"].is_meta and meta["w"].shape == (3, 4)
        assert done.counts == {"load": 4, "save": 0, "torch_load": 0,
                               "torch_save": 0}
    told = [record.getMessage() for record in caplog.records]
    assert [line for line in told if line.startswith("torch.load of ")] == [
        f"torch.load of {path}: by haulway"] * 4
    assert {record.name for record in caplog.records} == {"haulway"}


def test_what_is_not_ours_is_torchs(path, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "haulway")
    torch.save({"note": Note("x")}, tmp_path / "code.pt")
    haulway.save(STATE, tmp_path / "m.gguf",
                 metadata={"general.architecture": "test"})
    (tmp_path / "cut.pt").write_bytes(path.read_bytes()[:700])
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "s.pt")
    with haulway.torch.install() as done:
        same(torch.load(io.BytesIO(path.read_bytes())))
        same(torch.load(path, weights_only=False, errors="strict"))
        assert torch.load(tmp_path / "code.pt", weights_only=False)["note"].text == "x"
        for call, raised in (
            (lambda: torch.load(tmp_path / "code.pt"), pickle.UnpicklingError),
            (lambda: torch.load(tmp_path / "m.gguf"), pickle.UnpicklingError),
            (lambda: torch.load(tmp_path / "cut.pt"), Exception),
            (lambda: torch.load(tmp_path / "none.pt"), FileNotFoundError),
            (lambda: torch.load(tmp_path), IsADirectoryError),
            (lambda: torch.load(tmp_path / "s.pt"), RuntimeError),
            (lambda: torch.load(path, threads=2), TypeError),
            (lambda: torch.load(), TypeError),
        ):
            with pytest.raises(raised) as caught:
                call()
            assert not isinstance(caught.value, haulway.Error)
        assert done.counts["load"] == 0 and done.counts["torch_load"] == 11
    told = [line for line in map(logging.LogRecord.getMessage, caplog.records)
            if line.startswith("torch.load of ")]
    assert len(told) == 11 and all(": by torch: " in line for line in told)
    assert told[0] == "torch.load of BytesIO: by torch: no path"
    assert "test_torch_install.Note" in told[2]


def test_code_runs_only_where_torch_is_told_to(tmp_path):
    class Runs:
        def __reduce__(self):
            return print, ("ran",)

    torch.save(Runs(), tmp_path / "x.pt")
    with haulway.torch.install(), pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "x.pt")


def test_saving_is_ours_if_it_is_asked_for(tmp_path):
    a, b = tmp_path / "a.pt", tmp_path / "b.pt"
    with haulway.torch.install() as done:
        torch.save(STATE, a)
        assert done.counts["save"] == 0
        assert "torch.save" in haulway.torch.install(save=True).patched
        torch.save(STATE, b)
        torch.save({"note": Note("y")}, a)
        torch.save(STATE, io.BytesIO())
        with pytest.raises(RuntimeError, match="Parent directory"):
            torch.save(STATE, tmp_path / "none" / "x.pt")
        assert done.counts == {"load": 0, "save": 1, "torch_load": 0,
                               "torch_save": 3}
        same(torch.load(b))
    assert torch.load(a, weights_only=False)["note"].text == "y"
    # The archive has the name of its file.
    torch.save(STATE, tmp_path / "c.pt")
    assert len(b.read_bytes()) == len((tmp_path / "c.pt").read_bytes())


def test_names_that_modules_bound_are_exchanged(path, monkeypatch):
    user = types.ModuleType("user_of_torch")
    monkeypatch.setitem(sys.modules, user.__name__, user)
    exec("from torch import load as read\nfrom torch import save", vars(user))
    stock = user.read
    kept = functools.partial(user.read)
    done = haulway.torch.install()
    assert "user_of_torch.read" in done.patched
    assert "user_of_torch.save" not in done.patched
    assert user.read is torch.load is not stock
    ours = functools.partial(user.read)
    user.late = stock
    assert haulway.torch.install().patched == ["user_of_torch.late"]
    exec("from torch import load as between", vars(user))
    assert inspect.signature(torch.load) == inspect.signature(stock)
    assert torch.load.__name__ == "load" and torch.load.__doc__ == stock.__doc__
    back = haulway.torch.uninstall()
    assert {"torch.load", "user_of_torch.between", "user_of_torch.late",
            "user_of_torch.read"} <= set(back)
    assert user.read is user.late is user.between is torch.load is stock
    assert kept.func is stock
    same(ours(path))
    assert done.counts["load"] == 0  # Kept references call torch by now.
    assert haulway.torch.uninstall() == []


def test_a_block_within_a_block_undoes_its_own_call_only(path, tmp_path):
    stock = torch.load, torch.save
    with haulway.torch.install() as outer:
        ours = torch.load
        with haulway.torch.install():
            pass
        assert haulway.torch.installed() and torch.load is ours
        with haulway.torch.install(save=True):
            assert torch.save is not stock[1]
        assert torch.load is ours and torch.save is stock[1]
        same(torch.load(path))
        assert outer.counts["load"] == 1
        haulway.torch.install(save=True)
    assert (torch.load, torch.save) == stock
    haulway.torch.install()
    with haulway.torch.install(save=True):
        torch.save(STATE, tmp_path / "a.pt")
    assert torch.save is stock[1] and torch.load is not stock[0]


def test_many_threads_load_at_once(path):
    with haulway.torch.install() as done:
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(torch.load(path)))
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one in found:
            same(one)
        assert len(found) == done.counts["load"] == 16
    assert "patched" in repr(done)


def test_a_real_checkpoint_comes_the_same(small):
    stock = torch.load(small)
    with haulway.torch.install() as done:
        ours = torch.load(pathlib.Path(small))
        assert done.counts["load"] == 1
    same_tensors(ours["model"], stock["model"])
    assert ours.keys() == stock.keys()
