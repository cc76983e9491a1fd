"""Memory for consumers of DLPack, and JAX arrays made through it.

In place of JAX, a module over NumPy implements the used functions;
python/tests_hosts/test_jax_host.py runs the same with JAX.
"""

import subprocess
import sys
import types

import numpy as np
import pytest
import torch

import haulway
from haulway._reading.call import Reading

CPU = (1, 0)


@pytest.fixture
def memory(tmp_path):
    haulway.save({"a": np.arange(12, dtype="f4")}, tmp_path / "a.safetensors")
    reading = Reading("load", {"io": "pread"})
    core = reading.open(tmp_path / "a.safetensors")
    return reading.storages(core, [0])[0]


class Exporter:
    """An object whose __dlpack__ is called with the test's keywords."""

    def __init__(self, tensor, **keywords):
        self.tensor, self.keywords = tensor, keywords

    def __dlpack__(self, **_):
        return self.tensor.__dlpack__(**self.keywords)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_a_tensor_is_the_memory_itself(memory):
    tensor = memory.tensor("F32", [3, 4], [4, 1], 0)
    assert tensor.__dlpack_device__() == CPU
    address = np.frombuffer(memory, "u1").ctypes.data
    for version in (None, (0, 8), (1, 0), (1, 3)):
        array = np.from_dlpack(Exporter(tensor, max_version=version))
        assert array.ctypes.data == address and array.shape == (3, 4)
        # NumPy treats tensors of versions without the flag as read-only.
        assert array.flags.writeable == (version is not None and version[0] == 1)
    part = np.from_dlpack(memory.tensor("F32", [4, 2], [1, 4], 4))
    assert part.tolist() == [[4, 8], [5, 9], [6, 10], [7, 11]]
    assert torch.from_dlpack(memory.tensor("BF16", [2], [1], 0)).dtype == torch.bfloat16
    del memory, tensor
    assert array[2, 3] == 11  # The array keeps the memory.


def test_capsules_are_of_the_version_that_is_asked_for(memory):
    tensor = memory.tensor("F32", [12], [1], 0)
    assert '"dltensor"' in repr(tensor.__dlpack__())
    assert '"dltensor"' in repr(tensor.__dlpack__(max_version=(0, 8)))
    assert '"dltensor_versioned"' in repr(tensor.__dlpack__(max_version=(1, 0)))


def test_a_copy_is_one(memory):
    tensor = memory.tensor("F32", [2], [1], 1)
    array = np.from_dlpack(Exporter(tensor, max_version=(1, 0), copy=True))
    assert array.tolist() == [1, 2]
    array[:] = 7
    assert np.frombuffer(memory, "f4")[1] == 1
    with pytest.raises(BufferError, match=r"expected dl_device \(1, 0\)"):
        tensor.__dlpack__(dl_device=(2, 0))


def test_read_only_memory_says_so(tmp_path):
    path = tmp_path / "a.safetensors"
    haulway.save({"a": np.arange(12, dtype="f4")}, path)
    reading = Reading("load", {})
    source = haulway._haulway.bytes_source(path.read_bytes(), "memory")
    core = haulway._haulway.open_checkpoint(source, reading.opening())
    memory, _ = core.read_storage(0)
    assert memory.readonly
    tensor = memory.tensor("F32", [12], [1], 0)
    array = np.from_dlpack(tensor)
    assert not array.flags.writeable and array[11] == 11
    with pytest.raises(BufferError, match="read-only: expected max_version"):
        tensor.__dlpack__()
    copy = np.from_dlpack(Exporter(tensor, max_version=(1, 0), copy=True))
    assert copy.flags.writeable and copy[11] == 11


@pytest.mark.parametrize("shape, strides, offset", [
    ([13], [1], 0), ([12], [1], 1), ([2], [12], 0), ([2], [-1], 1), ([1], [1], -1),
    ([2], [2**62], 0), ([2**62, 2**62], [0, 2**60], 0), ([-1], [1], 0), ([1], [], 0),
])
def test_tensors_stay_within_their_memory(memory, shape, strides, offset):
    with pytest.raises(ValueError, match="reaches past its memory"):
        memory.tensor("F32", shape, strides, offset)


def test_dtypes_that_dlpack_lacks_are_refused(memory):
    with pytest.raises(BufferError, match="no such dtype"):
        memory.tensor("F4_E2M1X2", [1], [1], 0)
    with pytest.raises(ValueError, match="no such dtype"):
        memory.tensor("F7", [1], [1], 0)


@pytest.fixture
def jax(monkeypatch):
    """The functions of JAX that are used, implemented over NumPy."""
    module = types.ModuleType("jax")
    module.numpy = np
    module.dlpack = types.ModuleType("jax.dlpack")
    module.dlpack.from_dlpack = np.from_dlpack
    module.config = types.SimpleNamespace(jax_enable_x64=False)
    monkeypatch.setitem(sys.modules, "jax", module)
    monkeypatch.setitem(sys.modules, "jax.dlpack", module.dlpack)
    return module


def test_arrays_for_jax_start_at_multiples_of_64(jax, tmp_path):
    state = {"a": torch.arange(5.0), "b": torch.ones(3).half(),
             "n": {"t": torch.arange(6.0).reshape(2, 3).t()}, "step": 3}
    torch.save(state, tmp_path / "a.pt")
    haulway.save({"a": state["a"], "b": state["b"]}, tmp_path / "a.safetensors")
    found = haulway.load(tmp_path / "a.pt", "jax")
    assert found["step"] == 3 and found["n"]["t"].shape == (3, 2)
    for name in "a.pt", "a.safetensors":
        flat = haulway.load(tmp_path / name, "jax", include=["a", "b"])
        with haulway.open(tmp_path / name, framework="jax") as checkpoint:
            opened = {one: checkpoint[one] for one in "ab"}
            part = checkpoint.get_slice("a")[1:3]
        for one in (flat, opened):
            assert one["a"].tolist() == [0, 1, 2, 3, 4]
            assert [one[key].ctypes.data % 64 for key in "ab"] == [0, 0]
        assert part.tolist() == [1, 2] and part.ctypes.data % 64 == 0
        rows = dict(haulway.iterate(tmp_path / name, "jax", include="[ab]"))
        assert rows["b"].tolist() == [1, 1, 1]
    cast = haulway.load(tmp_path / "a.safetensors", "jax", dtype="F16")
    assert cast["a"].dtype == np.float16 and cast["a"].ctypes.data % 64 == 0


def test_wide_numbers_are_not_cut(jax, tmp_path):
    path = tmp_path / "a.pt"
    for dtype in "i8", "u8", "f8", "c16":
        haulway.save({"a": np.ones(3, dtype)}, path)
        jax.config.jax_enable_x64 = False
        with pytest.raises(haulway.UnsupportedError, match="JAX would cut .* to 32 "
                           "bits: expected jax_enable_x64"):
            haulway.load(path, "jax")
        jax.config.jax_enable_x64 = True
        assert haulway.load(path, "jax")["a"].dtype == dtype


def test_jax_is_refused_where_it_cannot_be(jax, tmp_path):
    path = tmp_path / "a.safetensors"
    haulway.save({"a": np.ones(3)}, path)
    with pytest.raises(ValueError, match="device is 'cuda:0': expected 'cpu' for JAX"):
        haulway.load(path, "jax", device="cuda:0")
    with pytest.raises(ValueError, match="framework is 'jax': expected 'torch' or "
                       "'numpy'"):
        haulway.load(path, "jax", destination="shm")
    with pytest.raises(ValueError, match="framework is 'flax': expected 'torch', "
                       "'numpy' or 'jax'"):
        haulway.load(path, "flax")


def test_jax_that_is_missing_is_named(tmp_path):
    haulway.save({"a": np.ones(3, "f4")}, tmp_path / "a.safetensors")
    done = subprocess.run(
        [sys.executable, "-c",
         "import sys, haulway\n"
         "sys.modules['jax'] = None\n"
         f"haulway.load({str(tmp_path / 'a.safetensors')!r}, 'jax')\n"],
        capture_output=True, text=True,
    )
    assert "ModuleNotFoundError: framework='jax' needs the package jax (tried " \
        "with 0.10.2), which is not installed" in done.stderr
