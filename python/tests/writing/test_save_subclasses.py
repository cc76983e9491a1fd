"""Tensors whose elements are in other tensors, or in other processes."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import haulway

FORMATS = ["safetensors", "tensorizer", "npz"]


class Pair(torch.Tensor):
    """A tensor that is the sum of two."""

    @staticmethod
    def __new__(cls, one, two):
        return torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype)

    def __init__(self, one, two):
        self.one, self.two = one, two

    def __tensor_flatten__(self):
        return ["one", "two"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Pair(inner["one"], inner["two"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)


@pytest.fixture(scope="module")
def distributed():
    """A DTensor, of a group of this process alone."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    mesh = init_device_mesh("cpu", (1,))
    yield distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
    dist.destroy_process_group()


def save(tensor, format, path):
    haulway.save({"w": tensor}, path, format)


def write(tensor, format, path):
    with haulway.writer(path, format=format) as writer:
        writer.add("w", tensor)
        writer.commit()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("way", [save, write])
def test_formats_of_plain_tensors_name_the_class(way, format, distributed, tmp_path):
    path = tmp_path / "x"
    with pytest.raises(haulway.UnsupportedError,
                       match=r"w.* is a DTensor, .*full_tensor\(\)"):
        way(distributed, format, path)
    with pytest.raises(haulway.UnsupportedError,
                       match="w.* is a Pair, whose elements are in other tensors"):
        way(Pair(torch.ones(4, 2), torch.ones(4, 2)), format, path)
    assert not path.exists()
    way(distributed.full_tensor(), format, path)
    assert haulway.load(path, include="*")["w"].tolist() == \
        distributed.full_tensor().tolist()
