"""haulway.lightning with a stand-in package that has Lightning's
CheckpointIO."""

import abc
import logging
import os
import subprocess
import sys
import types

import pytest
import torch

import haulway
from compare import same_tensors
from haulway.lightning import HaulwayCheckpointIO

HOME = "lightning_fabric.plugins.io.checkpoint_io"
STATE = {"state_dict": {"w": torch.arange(6.0)}, "epoch": 3,
         "loops": {"fit": [1, 2]}}


class Own:
    """A class of the program, which is not data."""

    def __init__(self, number):
        self.number = number


@pytest.fixture
def base(monkeypatch):
    """Lightning's abstract class in a module of its name."""

    class CheckpointIO(abc.ABC):
        @abc.abstractmethod
        def save_checkpoint(self, checkpoint, path, storage_options=None): ...

        @abc.abstractmethod
        def load_checkpoint(self, path, map_location=None, weights_only=None): ...

        @abc.abstractmethod
        def remove_checkpoint(self, path): ...

    module = types.ModuleType(HOME)
    module.CheckpointIO = CheckpointIO
    monkeypatch.setitem(sys.modules, HOME, module)
    return CheckpointIO


def test_it_is_a_checkpoint_io(base):
    class Mine(HaulwayCheckpointIO):
        pass

    assert isinstance(HaulwayCheckpointIO(), base) and isinstance(Mine(), base)
    abstract = base.__abstractmethods__ | {"teardown"}
    assert all(callable(getattr(HaulwayCheckpointIO, name)) for name in abstract)


def test_what_is_saved_is_loaded(base, tmp_path):
    io = HaulwayCheckpointIO(durability="none")
    path = tmp_path / "new" / "folder" / "a.ckpt"
    assert io.save_checkpoint(STATE, path) is None
    for found in (io.load_checkpoint(path), torch.load(path, weights_only=True),
                  io.load_checkpoint(f"haulway://{path}", None)):
        same_tensors(found["state_dict"], STATE["state_dict"])
        assert found["loops"] == STATE["loops"] and found["epoch"] == 3
    torch.save(STATE, tmp_path / "a.ckpt")
    assert (tmp_path / "a.ckpt").read_bytes() == path.read_bytes()
    assert io.load_checkpoint(path, "meta")["state_dict"]["w"].is_meta
    io.remove_checkpoint(path)
    io.remove_checkpoint(path)
    assert not path.exists()
    io.remove_checkpoint(path.parent)
    assert not path.parent.exists() and io.teardown() is None
    with pytest.raises(FileNotFoundError):
        io.load_checkpoint(path)


@pytest.mark.parametrize("place", ["file://{}", "haulway://file://{}", "~/{}"])
def test_names_are_those_that_fsspec_takes(base, tmp_path, monkeypatch, place):
    """Lightning's own class names local files by fsspec."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    name = "a b/c.ckpt" if "~" in place else tmp_path / "a%20b" / "c.ckpt"
    io, path = HaulwayCheckpointIO(durability="none"), place.format(name)
    io.save_checkpoint(STATE, path)
    assert os.listdir(tmp_path) == ["a b"]
    assert os.listdir(tmp_path / "a b") == ["c.ckpt"]
    same_tensors(io.load_checkpoint(path)["state_dict"], STATE["state_dict"])
    io.save_checkpoint({**STATE, "own": Own(7)}, path)
    assert io.load_checkpoint(path, weights_only=False)["own"].number == 7
    io.remove_checkpoint(path)
    assert os.listdir(tmp_path / "a b") == []


def test_options_are_those_of_saving(base, tmp_path):
    path = tmp_path / "a.ckpt"
    io = HaulwayCheckpointIO(storage_alignment=4096)
    io.save_checkpoint(STATE, path)
    assert path.stat().st_size > 4096
    io.save_checkpoint(STATE, path, storage_options={"storage_alignment": 64})
    assert path.stat().st_size < 4096
    with pytest.raises(TypeError, match="unexpected option 'alignment': expected"):
        HaulwayCheckpointIO(alignment=3)
    with pytest.raises(TypeError, match="unexpected option 'nope'"):
        io.save_checkpoint(STATE, path, {"nope": 1})
    with pytest.raises(TypeError, match="storage_options is list: expected a dict"):
        io.save_checkpoint(STATE, path, [1])
    with pytest.raises(ValueError, match="durability"):
        HaulwayCheckpointIO(durability="some")


def test_objects_of_the_program_are_torchs(base, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "haulway")
    io, path = HaulwayCheckpointIO(durability="none"), tmp_path / "a.ckpt"
    io.save_checkpoint({**STATE, "own": Own(7)}, path)
    with pytest.raises(haulway.UnsafeError, match="test_lightning.Own"):
        io.load_checkpoint(path)
    assert io.load_checkpoint(path, weights_only=False)["own"].number == 7
    told = [record.getMessage() for record in caplog.records]
    assert [line.partition(": ")[2][:17] for line in told
            if line.startswith("checkpoint ")] == [
        "pickled by torch:", "loaded by torch: "]
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_a_save_that_fails_leaves_the_old_checkpoint(base, tmp_path):
    io, path = HaulwayCheckpointIO(), tmp_path / "a.ckpt"
    io.save_checkpoint(STATE, path)
    before = path.read_bytes()

    class Fails(Own):
        def __reduce__(self):
            raise KeyError("no")

    with pytest.raises(KeyError):
        io.save_checkpoint({"own": Fails(1)}, path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.ckpt"]


def test_checkpoints_are_at_urls(base, nginx, endpoint, bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    io = HaulwayCheckpointIO()
    io.save_checkpoint(STATE, "s3://bkt/run/a.ckpt")
    io.save_checkpoint({"own": Own(7)}, "haulway://s3://bkt/run/b.ckpt")
    found = io.load_checkpoint("s3://bkt/run/a.ckpt")
    same_tensors(found["state_dict"], STATE["state_dict"])
    own = io.load_checkpoint("s3://bkt/run/b.ckpt", weights_only=False)["own"]
    assert own.number == 7


def test_the_package_that_is_missing_is_named():
    done = subprocess.run(
        [sys.executable, "-c",
         "import sys, haulway.lightning\n"
         "assert not {'torch', 'lightning', 'lightning_fabric'} & set(sys.modules)\n"
         "sys.meta_path.insert(0, type('Hidden', (), {'find_spec': staticmethod(\n"
         "    lambda name, *_: sys.modules.setdefault(name, None) if\n"
         "    name.startswith('lightning') else None)}))\n"
         "haulway.lightning.HaulwayCheckpointIO()\n"],
        capture_output=True, text=True,
    )
    assert "ModuleNotFoundError: haulway.lightning needs the package lightning " \
        "(tried with 2.6.6), which is not installed" in done.stderr
