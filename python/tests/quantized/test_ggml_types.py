"""Blocks of ggml become what the package gguf makes of them, bit by bit."""

import gguf
import numpy
import pytest

import haulway

TYPES = [
    kind for kind in gguf.GGMLQuantizationType
    if kind in gguf.quants._type_traits or kind.name == "F16"
]
ROWS, COLUMNS = 6, 512


def blocks(kind, seed, wild):
    """Returns random blocks; half-precision scales are sane unless `wild`."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    random = numpy.random.default_rng(seed)
    raw = random.integers(0, 256, (ROWS * COLUMNS // elements, size),
                          dtype=numpy.uint8)
    if wild:
        # Infinities, NaNs and subnormals, wherever the scales are.
        raw[::3] |= random.choice([0x7C, 0xFF, 0x00], raw[::3].shape).astype("u1")
        raw[1::5] &= 0x03
    return raw.reshape(ROWS, -1)


def write(path, kind, raw, shape=None):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.weight", raw, raw_shape=shape, raw_dtype=kind)
    writer.add_tensor("norm.weight", numpy.arange(8, dtype="f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def same(found, expected):
    """Compares bits, but for the sign of a zero and the payload of a NaN."""
    nan = numpy.isnan(found) & numpy.isnan(expected)
    return found.shape == expected.shape and bool(
        ((found == expected) | nan).all())


@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_type(kind, wild, tmp_path):
    raw = blocks(kind, 1, wild)
    path = tmp_path / "m.gguf"
    write(path, kind, raw)
    with numpy.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, kind).astype("f4")
    found = haulway.load(path, "numpy", dequantize=True)
    assert list(found) == ["blk.0.weight", "norm.weight"]
    assert found["blk.0.weight"].dtype == numpy.float32
    assert same(found["blk.0.weight"], expected)
    with haulway.open(path, "numpy", dequantize=True) as opened:
        part = opened.get_slice("blk.0.weight")
        assert same(part[2:4], expected[2:4])
        assert same(part[:, 7:41], expected[:, 7:41])
    haulway.convert(path, tmp_path / "m.safetensors", dequantize=True)
    written = haulway.load(tmp_path / "m.safetensors", "numpy")
    assert same(written["blk.0.weight"], expected)


def test_there_are_many_types():
    assert len(TYPES) >= 25


def test_three_dimensions(tmp_path):
    kind = gguf.GGMLQuantizationType.Q4_K
    raw = blocks(kind, 2, False).reshape(2, 3, -1)
    write(tmp_path / "m.gguf", kind, raw)
    found = haulway.load(tmp_path / "m.gguf", "numpy", dequantize=True)
    assert found["blk.0.weight"].shape == (2, 3, COLUMNS)
    assert same(found["blk.0.weight"], gguf.quants.dequantize(raw, kind))


def test_half_precision_result(tmp_path):
    kind = gguf.GGMLQuantizationType.Q6_K
    raw = blocks(kind, 3, False)
    write(tmp_path / "m.gguf", kind, raw)
    found = haulway.load(tmp_path / "m.gguf", "numpy", dequantize=True,
                         dtype="f16")
    with numpy.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, kind).astype("f2")
    assert same(found["blk.0.weight"], expected)


def test_a_type_that_nothing_dequantizes(tmp_path):
    kind = gguf.GGMLQuantizationType.Q8_K
    write(tmp_path / "m.gguf", kind, numpy.zeros((2, 292), "u1"))
    with pytest.raises(haulway.UnsupportedError, match="Q8_K"):
        haulway.load(tmp_path / "m.gguf", "numpy", dequantize=True)
    assert haulway.load(tmp_path / "m.gguf", "numpy")
