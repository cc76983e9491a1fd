"""framework="jax" with the real JAX."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import haulway
from haulway._making.jax import JaxMaker
from haulway._making.objects import make_array
from haulway._reading.call import Reading
from haulway._reading.select import choose, storages_of

# Dtypes that safetensors and JAX have, without jax_enable_x64.
DTYPES = {
    torch.float32: np.float32, torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16, torch.int32: np.int32,
    torch.int16: np.int16, torch.int8: np.int8, torch.uint8: np.uint8,
    torch.uint16: np.uint16, torch.uint32: np.uint32, torch.bool: np.bool_,
    torch.complex64: np.complex64,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
    torch.float8_e8m0fnu: ml_dtypes.float8_e8m0fnu,
}


def tensors():
    return {
        f"t{i}": torch.arange(1, 8).to(dtype) for i, dtype in enumerate(DTYPES)
    }


def bits(array):
    return np.asarray(array).view("u1").tobytes()


@pytest.mark.parametrize("io", ["auto", "mmap", "pread", "direct", "snapshot"])
def test_no_array_is_a_copy(tmp_path, io):
    """Its pointer is the address of the memory that the engine filled."""
    haulway.save(tensors(), tmp_path / "a.safetensors")
    make, reading = JaxMaker(), Reading("load", {"io": io})
    core = reading.open(tmp_path / "a.safetensors")
    chosen = choose(core)
    storages = make.storages(core, storages_of(chosen), reading)
    for one in chosen:
        memory = storages[one.info.storage]
        pointer = make_array(one.info, memory).ctypes.data
        array = make.tensor(memory, one.info)
        assert pointer % 64 == 0
        assert array.unsafe_buffer_pointer() == pointer, one.name


def test_every_dtype_comes_with_its_bits(tmp_path):
    state = tensors()
    haulway.save(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "a.pt")
    for name in "a.safetensors", "a.pt":
        found = haulway.load(tmp_path / name, framework="jax")
        each = dict(haulway.iterate(tmp_path / name, framework="jax"))
        with haulway.open(tmp_path / name, framework="jax") as checkpoint:
            for key, tensor in state.items():
                expected = tensor.view(torch.uint8).numpy().tobytes()
                for one in (found[key], each[key], checkpoint[key],
                            checkpoint.get_slice(key)[0:]):
                    assert isinstance(one, jax.Array)
                    assert one.dtype == DTYPES[tensor.dtype]
                    assert bits(one) == expected, (name, key)


def test_memory_outlives_the_checkpoint(tmp_path):
    haulway.save({"a": torch.arange(1 << 20).float()}, tmp_path / "a.safetensors")
    with haulway.open(tmp_path / "a.safetensors", framework="jax") as checkpoint:
        array = checkpoint["a"]
    del checkpoint
    torch.empty(1 << 20).fill_(7)
    assert int(array[-1]) == (1 << 20) - 1
    assert float(jax.jit(lambda x: x.sum())(array[:5])) == 10


def test_views_scalars_and_nothing(tmp_path):
    base = torch.arange(24.0)
    state = {"t": base.reshape(4, 6).t(), "part": base[5:9], "s": torch.tensor(2.5),
             "none": torch.ones(0, 3), "gaps": base[::5],
             "wide": torch.ones(1).expand(3, 2), "conj": torch.ones(2).mul(1j).conj(),
             "n": {"list": [torch.ones(2), 3]}}
    torch.save(state, tmp_path / "a.pt")
    found = haulway.load(tmp_path / "a.pt", framework="jax")
    assert found["n"]["list"][1] == 3
    for name in ("t", "part", "s", "none", "gaps", "wide", "conj"):
        assert np.array_equal(found[name], state[name].resolve_conj().numpy()), name
        assert isinstance(found[name], jax.Array)


def test_wide_numbers_are_refused_or_kept(tmp_path):
    haulway.save({"a": torch.tensor([2**40])}, tmp_path / "a.safetensors")
    with pytest.raises(haulway.UnsupportedError, match="cut I64 to 32 bits"):
        haulway.load(tmp_path / "a.safetensors", framework="jax")
    jax.config.update("jax_enable_x64", True)
    try:
        found = haulway.load(tmp_path / "a.safetensors", framework="jax")
        assert found["a"].dtype == jnp.int64 and int(found["a"][0]) == 2**40
    finally:
        jax.config.update("jax_enable_x64", False)


def test_read_only_memory_is_copied_or_refused(tmp_path):
    haulway.save({"a": torch.arange(16.0)}, tmp_path / "a.safetensors")
    with haulway.open((tmp_path / "a.safetensors").read_bytes(),
                      framework="jax") as checkpoint:
        assert checkpoint["a"].tolist() == list(range(16))


def test_packed_and_other_types(tmp_path):
    state = {"f4": torch.ones(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}
    haulway.save(state, tmp_path / "a.safetensors")
    found = haulway.load(tmp_path / "a.safetensors", framework="jax")
    assert found["f4"].dtype == np.uint8 and found["f4"].tolist() == [1] * 4
    cast = haulway.load(tmp_path / "a.safetensors", framework="jax", dtype="F16")
    assert cast["f4"].dtype == np.uint8
