"""Every failure is a haulway.Error and the exception that Python users
expect."""

import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

import haulway
import haulway.torch


class Call:
    """A pickle that calls a function of torch with given arguments."""

    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


def saved(tmp_path, obj):
    """A file written by torch.save() with any content."""
    path = tmp_path / "x.pt"
    torch.save(obj, path)
    return path


def rebuilt(tensor, **changed):
    """Returns the arguments of _rebuild_tensor_v2 with changes."""
    arguments = {
        "storage": torch.storage.TypedStorage(
            wrap_storage=tensor.untyped_storage(), dtype=tensor.dtype,
            _internal=True),
        "offset": 0, "size": tuple(tensor.shape), "stride": tensor.stride(),
        "requires_grad": False, "hooks": {}, **changed,
    }
    return Call(torch._utils._rebuild_tensor_v2, *arguments.values())


@pytest.mark.parametrize("load", [
    lambda path: haulway.torch.load(path),
    lambda path: haulway.torch.load(path, map_location="meta"),
    lambda path: haulway.load(path, "torch"),
    lambda path: haulway.load(path, "torch", include="*", dtype="F64"),
    lambda path: haulway.open(path, "torch")["0"],
])
def test_integers_that_require_grad(load, tmp_path):
    path = saved(tmp_path, [rebuilt(torch.arange(4), requires_grad=True)])
    with pytest.raises(haulway.CorruptError, match="a tensor of I64 requires "
                       "gradients: .*; at byte"):
        load(path)


def test_floats_that_require_grad_do(tmp_path):
    path = saved(tmp_path, [torch.ones(4, requires_grad=True)])
    assert haulway.load(path, "torch")[0].requires_grad


def test_quantizers_and_bits_that_are_none(tmp_path):
    storage = torch.storage.TypedStorage(
        wrap_storage=torch.zeros(4).untyped_storage(), dtype=torch.qint8,
        _internal=True)
    for quantizer in ((torch.per_tensor_affine, "a", 0),
                      (torch.per_channel_affine, 1, 2, 3)):
        path = saved(tmp_path, [Call(
            torch._utils._rebuild_qtensor, storage, 0, (4,), (1,), quantizer,
            False, {})])
        with pytest.raises(haulway.Error):
            haulway.torch.load(path)
    path = saved(tmp_path, [Call(
        torch._utils._rebuild_tensor_v2, storage, 0, (4,), (1,), False, {},
        {"conj": True})])
    with pytest.raises(haulway.Error):
        haulway.torch.load(path)


def test_torchscript_and_mmap_say_why(tmp_path):
    path = tmp_path / "script.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    with pytest.raises(haulway.UnsupportedError, match="TorchScript") as caught:
        haulway.torch.load(path)
    assert isinstance(caught.value, RuntimeError)
    torch.save([1], path, _use_new_zipfile_serialization=False)
    with pytest.raises(haulway.UnsupportedError, match="mmap can only"):
        haulway.torch.load(path, mmap=True)
    with pytest.raises(haulway.InvalidArgumentError, match="must be a file path"):
        haulway.torch.load(io.BytesIO(path.read_bytes()), mmap=True)
    for wrong in (object(), 3):
        with pytest.raises(haulway.Error, match="has no attribute") as caught:
            haulway.torch.load(wrong)
        assert isinstance(caught.value, AttributeError)
        pickle.loads(pickle.dumps(caught.value))


@pytest.mark.parametrize("device", ["toaster", "cuda:99", "privateuseone"])
def test_devices_that_are_not_there(device, tmp_path):
    path = saved(tmp_path, [torch.ones(3)])
    with pytest.raises(haulway.Error):
        haulway.torch.load(path, map_location=device)


def test_what_a_function_of_the_caller_raises_stays(tmp_path):
    path = saved(tmp_path, [torch.ones(3)])

    def fail(storage, location):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="^mine$") as caught:
        haulway.torch.load(path, map_location=fail)
    assert not isinstance(caught.value, haulway.Error)


@pytest.mark.parametrize("shape", [(2**62, 0), (2**62, 2, 0)])
def test_shapes_that_numpy_lacks(shape, tmp_path):
    path = saved(tmp_path, [rebuilt(torch.zeros(1), size=shape,
                                    stride=(1,) * len(shape))])
    with pytest.raises(haulway.UnsupportedError, match="NumPy has no array"):
        haulway.load(path, "numpy")
    with pytest.raises(haulway.UnsupportedError, match="NumPy has no array"):
        haulway.open(path, "numpy")["0"]


def test_as_many_dimensions_as_numpy_has(tmp_path):
    path = saved(tmp_path, [torch.arange(2.0).reshape((1,) * 40 + (2,))])
    if int(np.__version__.split(".")[0]) < 2:
        with pytest.raises(haulway.UnsupportedError):
            haulway.load(path, "numpy")
    else:
        assert haulway.load(path, "numpy")[0].shape == (1,) * 40 + (2,)


def test_text_files_are_no_binary_file_objects():
    with pytest.raises(haulway.Error, match="expected a binary") as caught:
        haulway.load(io.StringIO("no"))
    assert isinstance(caught.value, TypeError)
    with pytest.raises(haulway.Error, match="expected a path") as caught:
        haulway.open(3.5)
    assert isinstance(caught.value, TypeError)


def test_ranks_that_are_none(small):
    with pytest.raises(haulway.Error, match="rank is 'a'") as caught:
        haulway.shard(small, "a", 2)
    assert isinstance(caught.value, TypeError)
    with pytest.raises(haulway.Error, match="rank is 2 of 2") as caught:
        haulway.shard(small, 2, 2)
    assert isinstance(caught.value, ValueError)


def test_targets_that_are_none(small):
    with pytest.raises(haulway.Error, match="target is list") as caught:
        haulway.load_into([], small)
    assert isinstance(caught.value, TypeError)


def test_the_tree_tells_of_parameters(tmp_path):
    linear = torch.nn.Linear(2, 3)
    linear.bias.requires_grad_(False)
    path = saved(tmp_path, {"w": linear.weight, "b": linear.bias,
                            "t": torch.ones(2), "g": torch.ones(
                                2, requires_grad=True)})
    tree = haulway.open(path).tree()
    assert {name: info.requires_grad for name, info in tree.items()} == {
        "w": True, "b": False, "t": False, "g": True,
    }
    loaded = haulway.torch.load(path)
    assert all(
        loaded[name].requires_grad == info.requires_grad
        for name, info in tree.items()
    )


def test_modules_are_there_after_importing_their_parent():
    for code in ("import haulway\nhaulway.torch.serialization.load",
                 "import haulway\nhaulway.tensorizer.serialization"
                 ".TensorDeserializer",
                 "import haulway.torch\nhaulway.torch.serialization.config",
                 "from haulway.torch import serialization\nserialization.save"):
        subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        haulway.torch.lod  # noqa: B018


def bad_calls(path, out):
    """Returns calls with an invalid argument, and the expected message."""
    return {
        "budget": (lambda: haulway.save({}, out, memory_budget="x"),
                   "memory_budget: expected a size"),
        "negative budget": (lambda: haulway.save({}, out, memory_budget=-1),
                            "memory_budget: expected"),
        "async budget": (lambda: haulway.save_async({}, out, memory_budget={}),
                         "memory_budget: expected"),
        "progress": (lambda: haulway.save({}, out, progress=3),
                     "progress is int"),
        "torch's progress": (lambda: haulway.torch.save({}, out, progress=3),
                             "progress is int"),
        "progress of convert": (
            lambda: haulway.convert(path, out, progress=3), "progress is int"),
        "no target": (lambda: haulway.save({}, None), "path is NoneType"),
        "target of a plan": (
            lambda: haulway.plan([torch.ones(1)]).create(None),
            "path is NoneType"),
        "target of convert": (lambda: haulway.convert(path, 3), "dst is int"),
        "target of repair": (lambda: haulway.repair(path, None),
                             "out is NoneType"),
        "target of a writer": (lambda: haulway.writer(None),
                               "path is NoneType"),
        "target of put": (lambda: haulway.put(path, 3), "url is int"),
        "include": (lambda: haulway.load(path, include=3), "include is int"),
        "rename": (lambda: haulway.edit(path, rename=3), "rename is int"),
        "replace": (lambda: haulway.edit(path, replace=3), "replace is int"),
        "unset": (lambda: haulway.edit(path, unset=5), "unset is int: expected"),
        "manifest": (lambda: haulway.verify(path, manifest=out),
                     "cannot open .*No such file"),
        "folder as manifest": (
            lambda: haulway.verify(path, manifest=path.parent),
            "is not JSON"),
        "bytes as manifest": (
            lambda: haulway.verify(path, manifest=path), "is not JSON"),
    }


@pytest.mark.parametrize("name", bad_calls(None, None))
def test_arguments_that_are_none_are_named(name, tmp_path):
    (tmp_path / "in").mkdir()
    path = saved(tmp_path / "in", [torch.ones(3)])
    call, says = bad_calls(path, tmp_path / "out.pt")[name]
    with pytest.raises(haulway.Error, match=says):
        call()
    assert not (tmp_path / "out.pt").exists()
