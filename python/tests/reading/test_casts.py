"""load(dtype=): every code of every type is cast bit for bit as by torch."""

import numpy as np
import pytest
import torch

import haulway

F8 = [
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]
FLOATS = F8 + [torch.float16, torch.bfloat16, torch.float32, torch.float64]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def all_codes():
    """Returns every code of the small types, and many of the large ones."""
    random = np.random.default_rng(0)
    codes = np.arange(65536, dtype=np.uint16)
    near = np.arange(65536, dtype=np.uint32) << 16
    near |= random.integers(0, 4, 65536, dtype=np.uint32) * 0x4000
    floats = random.integers(0, 2**32, 1 << 19, dtype=np.uint32)
    doubles = random.integers(0, 2**63, 1 << 17, dtype=np.uint64)
    tensors = {
        str(dtype): torch.arange(256, dtype=torch.int16)
        .to(torch.uint8)
        .view(dtype)
        for dtype in F8
    }
    tensors["f16"] = torch.from_numpy(codes.view(np.float16).copy())
    tensors["bf16"] = torch.from_numpy(codes.view(np.int16).copy()).view(
        torch.bfloat16
    )
    tensors["f32"] = torch.from_numpy(floats.view(np.float32))
    # Values halfway between two of the 16-bit types, and their neighbours.
    tensors["near"] = torch.from_numpy(near.view(np.float32))
    tensors["f64"] = torch.from_numpy(doubles.view(np.float64))
    tensors["twice"] = tensors["near"].double() * (1 + 2.0**-40)
    return tensors


@pytest.fixture(scope="module")
def codes(tmp_path_factory):
    path = tmp_path_factory.mktemp("casts") / "codes.pt"
    tensors = all_codes()
    torch.save(tensors, path)
    return path, tensors


def bits(tensor):
    return tensor.view(BITS[tensor.element_size()])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_code_is_cast_as_torch_casts_it(codes, dtype):
    path, tensors = codes
    loaded = haulway.load(path, dtype=dtype)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == dtype
        assert torch.equal(bits(loaded[name]), bits(tensor.to(dtype))), name


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    path = tmp_path_factory.mktemp("casts") / "tree.pt"
    weight = torch.randn(300, 64)
    tree = {
        "weight": weight,
        "rows": weight[3:9],
        "transposed": weight.t(),
        "count": torch.arange(9),
        "parameter": torch.nn.Parameter(torch.randn(5)),
        "nested": {"double": torch.randn(3, dtype=torch.float64)},
        "complex": torch.randn(3, dtype=torch.complex64),
        "flag": torch.tensor([True, False]),
        "step": 7,
    }
    torch.save(tree, path)
    return path, tree


def expect_cast(tree, loaded, dtype):
    if isinstance(tree, dict):
        assert list(tree) == list(loaded)
        for key in tree:
            expect_cast(tree[key], loaded[key], dtype)
    elif isinstance(tree, torch.Tensor):
        wanted = tree.to(dtype) if tree.is_floating_point() else tree
        assert torch.equal(wanted, loaded)
        assert wanted.dtype == loaded.dtype
        assert tree.stride() == loaded.stride()
        assert type(tree) is type(loaded)
        assert tree.requires_grad == loaded.requires_grad
    else:
        assert tree == loaded


@pytest.mark.parametrize("io", ["auto", "mmap"])
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float32, "F16", "bfloat16", np.float64]
)
def test_only_floats_are_cast_and_views_stay_views(tree, dtype, io):
    path, saved = tree
    loaded = haulway.load(path, dtype=dtype, io=io)
    names = {"F16": torch.float16, "bfloat16": torch.bfloat16,
             np.float64: torch.float64}
    expect_cast(saved, loaded, names.get(dtype, dtype))
    storages = {
        loaded[name].untyped_storage().data_ptr()
        for name in ("weight", "rows", "transposed")
    }
    assert len(storages) == 1


def test_a_part_can_be_cast(tree):
    path, saved = tree
    loaded = haulway.load(path, include=["w*", "c*"], dtype=torch.float16)
    assert list(loaded) == ["weight", "count", "complex"]
    assert torch.equal(loaded["weight"], saved["weight"].half())
    assert torch.equal(loaded["count"], saved["count"])


def test_arrays_are_cast(tree):
    path, saved = tree
    loaded = haulway.load(path, "numpy", dtype="float16")
    assert loaded["weight"].dtype == np.float16
    assert (loaded["transposed"] == saved["weight"].t().half().numpy()).all()
    assert loaded["count"].dtype == np.int64


def test_progress_counts_all_of_it(tree):
    seen = []
    haulway.load(
        tree[0], dtype=torch.float16,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_storages_in_their_own_right_stay(tmp_path):
    floats = torch.randn(8)
    torch.save({"f": floats, "s": floats.storage()}, tmp_path / "x.pt")
    loaded = haulway.load(tmp_path / "x.pt", dtype=torch.float16)
    assert torch.equal(loaded["f"], floats)
    assert loaded["s"].dtype == torch.float32


def test_what_is_no_dtype_is_refused(tree):
    for wrong in ("float17", object(), 3):
        with pytest.raises(haulway.Error, match="dtype is"):
            haulway.load(tree[0], dtype=wrong)


@pytest.mark.parametrize("dtype", ["int32", "complex128", "bool", torch.qint8,
                                   "F4_E2M1X2"])
def test_a_dtype_that_no_float_is_cast_to_is_refused(tree, dtype):
    refused = pytest.raises(haulway.InvalidArgumentError,
                            match="expected a floating-point dtype")
    with refused:
        haulway.load(tree[0], dtype=dtype)
    with refused:
        haulway.load(tree[0], include="*", dtype=dtype)
    with refused:
        haulway.shard(tree[0], 0, 2, dtype=dtype)


def test_quantized_checkpoints_are_refused(tmp_path):
    quantized = torch.quantize_per_tensor(torch.randn(3), 1.0, 0, torch.qint8)
    torch.save({"q": quantized}, tmp_path / "q.pt")
    with pytest.raises(NotImplementedError, match="quantized"):
        haulway.load(tmp_path / "q.pt", dtype=torch.float16)
