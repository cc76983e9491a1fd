"""Loading to a GPU on a machine without one: a stand-in for the driver uses
host memory. python/tests_gpu is for machines that have one."""

import ctypes
import os
import pathlib

import pytest
import torch

import haulway
from haulway import _haulway
from haulway._making import assemble
from haulway._torch import device as making
from haulway._torch.factory import dtype_of

EXAMPLES = pathlib.Path(os.environ["HAULWAY_EXAMPLES"])
FORMATS = ("model.pt", "model.safetensors", "model.tensors")


class Gpu:
    """The stand-in, with memory for storages."""

    def __init__(self):
        path = EXAMPLES.parent / "libfake_cuda.so"
        self._driver = ctypes.CDLL(path)
        self._driver.FakeCudaReset(1, ctypes.c_size_t(1 << 30))
        self.device = _haulway.open_cuda(0, str(path))
        self.allocated = []
        self.whole = 0  # Tensors made at once with their storages.
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxPushCurrent_v2", context)

    def allocate(self, contents, index):
        assert index == 0
        self.allocated.append(sum(nbytes for nbytes, _, _ in contents))
        return [self._base(*one) for one in contents]

    def _base(self, nbytes, dtype, shape):
        storage = self._storage(nbytes)
        if dtype is None:
            return storage
        self.whole += 1
        return torch.empty(0, dtype=dtype_of(dtype)).set_(storage, 0, shape)

    def _storage(self, nbytes):
        if nbytes == 0:
            return torch.UntypedStorage(0)
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        memory = (ctypes.c_char * nbytes).from_address(address.value)
        return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()

    def _call(self, name, *arguments):
        assert getattr(self._driver, name)(*arguments) == 0, name


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    monkeypatch.setattr(making, "_opened", lambda index: gpu.device)
    monkeypatch.setattr(making, "_allocate", gpu.allocate)
    make = assemble.TorchMaker.tensor

    def tensor_there(self, base, info):
        monkeypatch.setattr(self, "_is_cpu", True)
        return make(self, base, info)

    monkeypatch.setattr(assemble.TorchMaker, "tensor", tensor_there)
    return gpu


@pytest.fixture(scope="module")
def state():
    generator = torch.Generator().manual_seed(0)
    return {
        "large": torch.randn(2_500_000, generator=generator),
        "bf16": torch.randn(100, 100, generator=generator).to(torch.bfloat16),
        "empty": torch.empty(0, 3),
        **{f"small.{i:03}": torch.full((3,), i) for i in range(200)},
    }


@pytest.fixture(params=FORMATS)
def path(request, state, tmp_path):
    haulway.save(state, tmp_path / request.param)
    return tmp_path / request.param


def check(found, wanted):
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("verify", [False, True])
def test_a_whole_checkpoint(gpu, path, state, verify):
    check(haulway.load(path, device="cuda:0", verify=verify), state)
    check(haulway.load(path, device=torch.device("cuda", 0)), state)


def test_tensors_that_share_or_do_not_fill_a_storage(gpu, tmp_path):
    whole = torch.arange(12.0)
    state = {
        "tied": whole, "view": whole[2:], "part": torch.arange(9)[1:4].clone(),
        "crossed": torch.arange(6.0).view(2, 3).t(), "alone": torch.ones(2, 1),
        "parameter": torch.nn.Parameter(torch.zeros(3)),
    }
    torch.save(state, tmp_path / "m.pt")
    found = haulway.load(tmp_path / "m.pt", device="cuda:0")
    check(found, state)
    assert gpu.whole == 2
    for name, tensor in state.items():
        assert found[name].stride() == tensor.stride()
        assert found[name].requires_grad == tensor.requires_grad
    found["tied"][2] = 7
    assert found["view"][0] == 7


def test_chosen_tensors_alone_get_memory(gpu, path, state):
    found = haulway.load(path, device="cuda:0", include="small.01*")
    check(found, {k: v for k, v in state.items() if k.startswith("small.01")})
    assert gpu.allocated == [10 * 24]


def test_iterate_loads_groups_and_counts_them_as_one_load(gpu, path, state):
    seen, stats = [], {}
    check(dict(haulway.iterate(
        path, device="cuda:0", memory_budget=1 << 20, stats=stats,
        progress=lambda done, whole: seen.append((done, whole)),
    )), state)
    total = sum(tensor.nbytes for tensor in state.values())
    assert sum(gpu.allocated) == stats["tensor_bytes"] == total
    large = state["large"].nbytes
    assert [n for n in gpu.allocated if n > 512 << 10] == [large]
    assert all(done <= whole for done, whole in seen)
    assert seen[-1][0] == seen[-1][1] >= total


def test_iterate_ends_early(gpu, path):
    iterator = haulway.iterate(path, device="cuda:0", memory_budget=2)
    name, tensor = next(iterator)
    iterator.close()
    assert len(gpu.allocated) == 2  # It loads one group ahead.
    assert torch.equal(tensor, haulway.load(path)[name])


def test_without_a_driver_the_error_says_so():
    with pytest.raises(haulway.Error, match="no CUDA driver: cannot load"):
        _haulway.open_cuda(0, "libcuda-that-is-not-here.so.1")
    with pytest.raises(NotImplementedError):
        _haulway.open_cuda(0, "libcuda-that-is-not-here.so.1")


def test_loading_there_without_a_gpu(tmp_path):
    if torch.cuda.is_available():
        return  # python/tests_gpu is for such machines.
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(3)}, path)
    for include in (None, "w"):
        with pytest.raises(haulway.Error, match="no CUDA driver|no GPU"):
            haulway.load(path, include=include, device="cuda:0")
    with pytest.raises(haulway.Error, match="no CUDA driver|no GPU"):
        list(haulway.iterate(path, device="cuda:0"))


@pytest.mark.parametrize("device", [
    True, 1.5, None, "cuda:x", -1, 1 << 63, torch.tensor(0),
])
def test_what_names_no_device(tmp_path, device):
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(3)}, path)
    with pytest.raises(haulway.InvalidArgumentError, match="device is"):
        haulway.load(path, device=device)


def test_the_cpu_with_a_number_is_the_cpu(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(3)}, path)
    for device in "cpu:0", torch.device("cpu", 0):
        for options in {}, {"include": "w"}, {"dtype": "bf16"}:
            loaded = haulway.load(path, device=device, **options)["w"]
            assert loaded.device == torch.device("cpu")
