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
from haulway._making import device as making

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
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxPushCurrent_v2", context)

    def allocate(self, core, rows, index):
        assert index == 0
        storages = [self._storage(core.storage(row).nbytes) for row in rows]
        self.allocated.append(sum(map(len, storages)))
        return storages

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
    monkeypatch.setattr(
        assemble.TorchMaker, "tensor",
        lambda self, storage, info: self._torch.tensor_over(storage, info),
    )
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
