"""Calls that take one file refuse a folder, even one with a single model in it:
those that replace a package's do as the package does."""

import pathlib

import pytest
import safetensors.numpy
import safetensors.torch
import tensorizer
import tensorizer.stream_io
import torch

import haulway
import haulway.safetensors
import haulway.safetensors.numpy
import haulway.safetensors.torch
import haulway.tensorizer
import haulway.tensorizer.stream_io
import haulway.torch

# Ours, and the package's; None: torch has no such call.
DROP_INS = {
    "safetensors.torch.load_file": (
        haulway.safetensors.torch.load_file, safetensors.torch.load_file),
    "safetensors.numpy.load_file": (
        haulway.safetensors.numpy.load_file, safetensors.numpy.load_file),
    "safe_open, torch": (
        lambda path: haulway.safetensors.safe_open(path, "pt"),
        lambda path: safetensors.safe_open(path, "pt")),
    "safe_open, NumPy": (
        lambda path: haulway.safetensors.safe_open(path, "np"),
        lambda path: safetensors.safe_open(path, "np")),
    "safe_open, by parts": (
        lambda path: haulway.safetensors.safe_open(path, "pt", backend="pread"),
        lambda path: safetensors.safe_open(path, "pt")),
    "load_model": (
        lambda path: haulway.safetensors.torch.load_model(MODULE, path),
        lambda path: safetensors.torch.load_model(MODULE, path)),
    "torch.load": (haulway.torch.load, torch.load),
    "torch.load, mapped": (
        lambda path: haulway.torch.load(path, mmap=True),
        lambda path: torch.load(path, mmap=True)),
    "TensorDeserializer": (
        haulway.tensorizer.TensorDeserializer, tensorizer.TensorDeserializer),
    "open_stream": (
        haulway.tensorizer.stream_io.open_stream,
        tensorizer.stream_io.open_stream),
    "open_stream of a range": (
        lambda path: haulway.tensorizer.stream_io.open_stream(
            path, begin=0, end=8),
        lambda path: tensorizer.stream_io.open_stream(path, begin=0, end=8)),
}
MODULE = torch.nn.Linear(2, 2)


def write_safetensors(path):
    safetensors.torch.save_file(MODULE.state_dict(), path)


def write_tensors(path):
    with haulway.tensorizer.TensorSerializer(path) as serializer:
        serializer.write_module(MODULE)


# One model, which haulway.load() finds in its folder.
FOLDERS = {
    "safetensors": ("model.safetensors", write_safetensors),
    "torch": ("pytorch_model.bin",
              lambda path: torch.save(MODULE.state_dict(), path)),
    "tensorizer": ("model.tensors", write_tensors),
    "empty": (None, None),
}


@pytest.fixture(params=FOLDERS, ids=FOLDERS)
def folder(request, tmp_path):
    name, write = FOLDERS[request.param]
    folder = tmp_path / "model"
    folder.mkdir()
    if name is not None:
        write(folder / name)
        assert len(haulway.load(folder)) == 2
    return folder


@pytest.mark.parametrize("call", DROP_INS)
def test_a_drop_in_does_as_the_package(folder, call):
    ours, theirs = DROP_INS[call]
    link = folder.parent / "link"
    link.symlink_to(folder)
    for path in (str(folder), f"{folder}/", str(link), str(folder / "none"),
                 pathlib.Path(folder)):
        raised = []
        for function in (ours, theirs):
            with pytest.raises(OSError) as caught:
                function(path)
            raised.append(caught.value)
        mine, other = raised
        assert isinstance(mine, type(other)), path
        if type(other) is OSError or type(other) is IsADirectoryError:
            assert (type(mine), str(mine)) == (type(other), str(other))


def test_a_name_with_a_scheme_is_a_folder_too(folder):
    for name, (ours, _) in DROP_INS.items():
        # The package's open_stream() knows paths and URLs apart.
        if name != "open_stream" and name != "open_stream of a range":
            with pytest.raises(OSError):
                ours(f"file://{folder}")


def test_bytes_of_a_folder_are_not_those_of_a_file_in_it(folder, run):
    out = folder.parent / "out"
    for call in haulway.get, haulway.put:
        with pytest.raises(haulway.InvalidArgumentError, match="is a folder"):
            call(folder, str(out))
    for verb in "get", "put":
        done = run(verb, folder, out, code=2)
        assert "it is a folder: expected a file" in done.stderr
    assert not out.exists()
