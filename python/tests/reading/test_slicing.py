"""get_slice(), shard() and plan_reads(), on every format."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

import haulway
from haulway import _haulway
from haulway._reading.select import basic_index

TENSORS = {
    "x": torch.arange(120, dtype=torch.float32).reshape(6, 5, 4),
    "bf": torch.randn(7, 3).bfloat16(),
    "s": torch.tensor(3.0),
    "i": torch.arange(11),
    "empty": torch.zeros(0, 4),
    "big": torch.randn(700, 1000),
}


def write_torch(path):
    torch.save(TENSORS, path)


def write_legacy(path):
    torch.save(TENSORS, path, _use_new_zipfile_serialization=False)


def write_safetensors(path):
    import safetensors.torch

    safetensors.torch.save_file(TENSORS, path)


def write_sharded(path):
    import json

    import safetensors.torch

    files = {}
    for name, tensor in TENSORS.items():
        files[name] = f"part-{name}.safetensors"
        safetensors.torch.save_file({name: tensor}, path.parent / files[name])
    path.write_text(json.dumps({"metadata": {}, "weight_map": files}))


def write_tensorizer(path):
    from haulway.tensorizer import TensorSerializer

    serializer = TensorSerializer(path)
    serializer.write_state_dict(TENSORS)
    serializer.close()


FORMATS = {
    "torch": (write_torch, "a.pt"),
    "legacy": (write_legacy, "a.pt"),
    "safetensors": (write_safetensors, "a.safetensors"),
    "sharded": (write_sharded, "model.safetensors.index.json"),
    "tensorizer": (write_tensorizer, "a.tensors"),
}


@pytest.fixture(scope="module", params=FORMATS)
def path(request, tmp_path_factory):
    write, name = FORMATS[request.param]
    path = tmp_path_factory.mktemp(request.param) / name
    write(path)
    return path


INDICES = [
    0, -1, np.int64(1), slice(None), slice(None, None, -1), slice(1, 4, 2),
    slice(4, 0, -2), slice(-3, 99), slice(2, 2), None, Ellipsis,
    slice(None, None, 10**30),
]


@pytest.mark.parametrize("mmap", [None, False])
def test_basic_indices_are_as_numpys(path, mmap):
    with haulway.open(path, "numpy", mmap=mmap) as checkpoint:
        for name in ("x", "s", "i", "empty"):
            whole = checkpoint[name]
            part = checkpoint.get_slice(name)
            for count in (1, 2, 3):
                for index in itertools.product(INDICES, repeat=count):
                    try:
                        wanted = whole[index]
                    except IndexError:
                        with pytest.raises(IndexError):
                            part[index]
                        continue
                    found = part[index]
                    assert found.shape == np.shape(wanted), (name, index)
                    assert np.array_equal(found, wanted), (name, index)


def test_torch_tensors_take_negative_steps_too(path):
    with haulway.open(path) as checkpoint:
        x = TENSORS["x"]
        part = checkpoint.get_slice("x")
        assert torch.equal(part[::-1, ..., 1:3], x.flip(0)[..., 1:3])
        assert torch.equal(part[:, -1, ::-2], x[:, -1].flip(1)[:, ::2])
        bf = checkpoint.get_slice("bf")
        assert bf[2].dtype == torch.bfloat16
        assert torch.equal(bf[5:1:-3], TENSORS["bf"][[5, 2]])


def test_other_indices_are_applied_to_the_whole(path):
    with haulway.open(path) as checkpoint:
        x = TENSORS["x"]
        part = checkpoint.get_slice("x")
        mask = x[:, 0, 0] > 20
        for index in ([0, 2], mask, (slice(None), [1, 1]), True):
            assert torch.equal(part[index], x[index])


def test_rows_are_read_alone(path):
    with haulway.open(path) as checkpoint:
        part = checkpoint.get_slice("big")
        assert torch.equal(part[100:187], TENSORS["big"][100:187])
        stats = checkpoint.stats()
        assert stats["tensor_bytes"] == 87 * 4000
        assert stats["read_bytes"] < 87 * 4000 + 2000


def test_a_checkpoint_adds_up_what_was_read_through_it(path):
    with haulway.open(path, mmap=False) as checkpoint:
        assert checkpoint.stats()["io"] == {}
        part = checkpoint.get_slice("big")
        part[100:187]
        part[0:2]
        checkpoint["x"]
        stats = checkpoint.stats()
    x = TENSORS["x"].nbytes
    assert stats["tensors"] == 3
    assert stats["tensor_bytes"] == 89 * 4000 + x
    assert 89 * 4000 + x <= stats["read_bytes"] < 89 * 4000 + x + 5000
    assert stats["requests"] >= 3
    assert stats["seconds"] >= 0
    assert stats["io"] == {"pread": 3}


def test_views_are_counted_and_nothing_is_read_for_them(path):
    with haulway.open(path) as checkpoint:
        checkpoint["x"]
        checkpoint["x"]
        checkpoint.get_slice("big")[[0, 2]]
        stats = checkpoint.stats()
    assert stats["tensors"] == 3
    assert stats["io"] == {"mmap": 3}
    assert stats["read_bytes"] == stats["requests"] == 0


def test_a_closed_checkpoint_reads_nothing(path):
    with haulway.open(path) as checkpoint:
        part = checkpoint.get_slice("x")
    with pytest.raises(ValueError, match="closed"):
        part[0]


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_shards_are_those_of_tensor_split(path, world, dim):
    for rank in range(world):
        parts = haulway.shard(path, rank, world, dim)
        assert set(parts) == set(TENSORS)
        for name, tensor in TENSORS.items():
            wanted = tensor
            if -tensor.ndim <= dim < tensor.ndim:
                wanted = torch.tensor_split(tensor, world, dim)[rank]
            assert torch.equal(parts[name], wanted), name
            assert parts[name].dtype == tensor.dtype


def test_shards_can_be_arrays_chosen_and_cast(path):
    parts = haulway.shard(
        path, 1, 2, framework="numpy", include="b*", exclude="bf",
        dtype="float16", verify=True, threads=1,
    )
    assert list(parts) == ["big"]
    assert parts["big"].dtype == np.float16
    wanted = TENSORS["big"][350:].half().numpy()
    assert np.array_equal(parts["big"], wanted)


def test_shards_of_one_tensor_are_one(tmp_path):
    weight = torch.randn(8, 2)
    parameter = torch.nn.Parameter(weight)
    torch.save({"a": parameter, "b": parameter}, tmp_path / "x.pt")
    parts = haulway.shard(tmp_path / "x.pt", 0, 2)
    assert parts["a"] is parts["b"]
    assert parts["a"].requires_grad


@pytest.mark.parametrize("rank, world, message", [
    (2, 2, "rank is 2"), (-1, 2, "rank is -1"), (0, 0, "world is 0"),
    (1 << 63, 2, "rank is"), (0, 1 << 64, "world is"),
])
def test_ranks_that_are_none_are_refused(path, rank, world, message):
    with pytest.raises(haulway.Error, match=message):
        haulway.shard(path, rank, world)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("index", [
    torch.tensor(1, dtype=torch.uint8), torch.tensor(0, dtype=torch.uint8),
    torch.tensor(1), np.array(1), np.array(True), torch.tensor(1.5),
    np.array("a"), np.array(None), np.float16, int,
], ids=repr)
def test_scalars_mean_what_they_mean_to_the_framework(path, framework, index):
    checkpoint = haulway.open(path, framework)
    part, whole = checkpoint.get_slice("x"), checkpoint["x"]
    try:
        wanted = whole[index]
    except (IndexError, TypeError) as error:
        with pytest.raises(type(error)):
            part[index]
    else:
        found = part[index]
        assert found.shape == wanted.shape
        assert found.tolist() == wanted.tolist()


def test_plans_say_what_is_read(path):
    plan = haulway.plan_reads(path, slices={"big": np.s_[100:187]})
    assert plan.tensor_bytes == 87 * 4000
    assert plan.tensor_bytes <= plan.read_bytes < 87 * 4000 + 2000
    assert plan.read_bytes == sum(nbytes for _, nbytes in plan.reads)
    whole = haulway.plan_reads(path)
    assert whole.tensor_bytes == sum(t.nbytes for t in TENSORS.values())
    some = haulway.plan_reads(path, include="*", exclude=["big", "x"])
    assert some.tensor_bytes == (
        whole.tensor_bytes - TENSORS["big"].nbytes - TENSORS["x"].nbytes
    )
    with pytest.raises(KeyError, match="no tensor .none.; of /"):
        haulway.plan_reads(path, slices={"none": 0})
    with pytest.raises(IndexError):
        haulway.plan_reads(path, slices={"x": 6})
    with pytest.raises(haulway.Error, match="expected numbers"):
        haulway.plan_reads(path, slices={"x": [1, 2]})


def test_views_of_every_kind(tmp_path):
    x = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "transposed": x.t(),
        "strided": x[::2, 1::3],
        "expanded": torch.arange(3.0)[:, None].expand(3, 5),
        "windows": torch.arange(9.0).unfold(0, 4, 1),
        "conjugate": torch.randn(3, 4, dtype=torch.complex64).conj(),
        "negative": torch.randn(3, 4, dtype=torch.complex64).conj().imag,
    }
    torch.save(tensors, tmp_path / "x.pt")
    with haulway.open(tmp_path / "x.pt") as checkpoint:
        for name, tensor in tensors.items():
            part = checkpoint.get_slice(name)
            for index in (1, np.s_[1:], np.s_[:, 1], np.s_[..., 0:2], ()):
                assert torch.equal(part[index], tensor[index]), (name, index)
        # Repeated in memory, not copied.
        assert checkpoint.get_slice("expanded")[:].stride() == (1, 0)


def test_a_few_bytes_cannot_ask_for_all_memory(tmp_path):
    huge = torch.zeros(1).expand(1 << 40)
    windows = torch.zeros(1 << 20).as_strided((1 << 19, 1 << 19), (1, 1))
    torch.save({"huge": huge, "windows": windows}, tmp_path / "x.pt")
    with haulway.open(tmp_path / "x.pt") as checkpoint:
        assert checkpoint.get_slice("huge")[:].shape == (1 << 40,)
        assert checkpoint.get_slice("huge")[::-3].stride() == (0,)
        assert checkpoint.get_slice("windows")[5:].shape[0] == (1 << 19) - 5


    parts = haulway.shard(tmp_path / "x.pt", 1, 4)
    assert parts["huge"].shape == (1 << 38,)
    assert parts["windows"].shape == (1 << 17, 1 << 19)


def test_select_refuses_what_leaves_the_shape():
    shape, strides = (4, 5), (5, 1)
    for index in (4, -5, (0, 5), (0, 0, 0), 1 << 80, (Ellipsis, Ellipsis)):
        with pytest.raises(IndexError):
            _haulway.select(basic_index(index), shape, strides)
    with pytest.raises(ValueError):
        _haulway.select((slice(0, 4, 0),), shape, strides)
    assert basic_index(True) is None


CLAIMED = """
import haulway, resource, sys
path, how = sys.argv[1:]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if how == "slice":
    got = haulway.open(path, "numpy").get_slice("m")[:]
elif how == "shard":
    got = haulway.shard(path, 0, 1, framework="numpy")["m"]
else:
    got = haulway.load(path, "numpy", dtype="F16")["m"]
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert got.shape == (1 << 29,) and got[-1] == 0 and got[1 << 28] == 0
assert grown < 256 << 10, grown
"""


@pytest.mark.parametrize("how", ["slice", "shard", "cast"])
def test_zeros_that_a_file_claims_take_no_memory(how, tmp_path):
    path = tmp_path / "claims.tensors"
    haulway.save({"m": torch.empty(1 << 29, device="meta")}, path)
    assert path.stat().st_size < 1 << 20
    subprocess.run(
        [sys.executable, "-c", CLAIMED, str(path), how], check=True, timeout=120
    )
