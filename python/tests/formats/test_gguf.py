"""GGUF files, compared with the gguf package."""

import json
import struct

import gguf
import numpy
import pytest
import torch

import haulway

PLAIN = [
    numpy.float32, numpy.float16, numpy.float64, numpy.int8, numpy.int16,
    numpy.int32, numpy.int64,
]
# Types for which the gguf package has a size. Its size of Q8_1 is outdated.
QUANTIZED = [
    kind for kind, (elements, _) in gguf.GGML_QUANT_SIZES.items()
    if elements > 1 and kind.name != "Q8_1"
]
METADATA = {
    "a.u8": (1, "uint8"), "a.i8": (-1, "int8"), "a.u16": (65535, "uint16"),
    "a.i16": (-2, "int16"), "a.u32": (2**32 - 1, "uint32"),
    "a.i32": (-3, "int32"), "a.u64": (2**64 - 1, "uint64"),
    "a.i64": (-2**63, "int64"), "a.f32": (0.5, "float32"),
    "a.f64": (0.1, "float64"), "a.bool": (True, "bool"),
    "a.text": ("größe\n", "string"),
}
ARRAYS = {
    "b.words": ["a", "", "größe"], "b.ints": [1, -2, 3],
    "b.reals": [0.5, -1.0], "b.flags": [True, False],
}


def noise(shape, dtype=numpy.uint8, seed=1):
    count = int(numpy.prod(shape, dtype=int)) * numpy.dtype(dtype).itemsize
    raw = numpy.random.default_rng(seed).integers(0, 256, count, numpy.uint8)
    return raw.view(dtype).reshape(shape)


def write(path, tensors, raw_dtypes=None, alignment=None, values=True):
    writer = gguf.GGUFWriter(path, "test")
    if alignment:
        writer.add_custom_alignment(alignment)
    if values:
        for key, (value, kind) in METADATA.items():
            getattr(writer, f"add_{kind}")(key, value)
        for key, value in ARRAYS.items():
            writer.add_array(key, value)
    for name, array in tensors.items():
        writer.add_tensor(name, array, raw_dtype=(raw_dtypes or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def model(tmp_path):
    tensors = {
        numpy.dtype(d).name: noise((3, 2, 5), d, seed=i)
        for i, d in enumerate(PLAIN)
    }
    raw = {}
    for kind in QUANTIZED:
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        tensors[kind.name] = noise((4, 3 * size))
        raw[kind.name] = kind
    tensors["bf16"] = noise((4, 6))
    raw["bf16"] = gguf.GGMLQuantizationType.BF16
    return write(tmp_path / "model.gguf", tensors, raw)


def test_every_tensor_is_what_the_peer_reads(model):
    reader = gguf.GGUFReader(model)
    with haulway.open(model, "numpy") as checkpoint:
        assert checkpoint.format == "gguf"
        assert list(checkpoint) == [t.name for t in reader.tensors]
        for tensor in reader.tensors:
            ours = checkpoint[tensor.name]
            kind = tensor.tensor_type.name
            assert checkpoint.info(tensor.name).dtype == kind
            if kind == "BF16":
                ours = ours.view(numpy.uint8)
            assert ours.shape == tensor.data.shape, kind
            assert ours.tobytes() == tensor.data.tobytes(), kind
            if tensor.data.dtype != numpy.uint8:
                assert ours.dtype == tensor.data.dtype


def test_blocks_come_as_rows_of_bytes(model):
    with haulway.open(model, "numpy") as checkpoint:
        blocks = checkpoint["Q4_K"]
        assert (blocks.dtype, blocks.shape) == (numpy.uint8, (4, 3 * 144))
        assert numpy.array_equal(
            checkpoint.get_slice("Q4_K")[1:3, 144:288], blocks[1:3, 144:288])
    with haulway.open(model, "torch") as checkpoint:
        assert checkpoint["Q4_K"].dtype == torch.uint8
        assert checkpoint["bf16"].dtype == torch.bfloat16


def bits(tensor):
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.contiguous().view(torch.uint8).numpy()
    return tensor.tobytes()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_every_call_that_reads_takes_it(model, framework):
    whole = haulway.load(model, framework)
    assert len(whole) == len(PLAIN) + len(QUANTIZED) + 1
    for name, tensor in haulway.iterate(model, framework):
        ours = whole.pop(name)
        assert (ours.shape, bits(ours)) == (tensor.shape, bits(tensor)), name
    assert not whole
    assert haulway.verify(model).ok
    part = haulway.shard(model, 0, 2, framework=framework)
    assert part["float32"].shape == (2, 2, 5)


def test_metadata_is_of_python(model):
    metadata = haulway.open(model).metadata
    for key, (value, _) in METADATA.items():
        assert metadata[key] == value
        assert type(metadata[key]) is type(value)
    for key, value in ARRAYS.items():
        assert metadata[key] == value
    assert metadata["general.architecture"] == "test"


def test_verbs_take_it(model, tmp_path, run):
    listed = json.loads(run("ls", model, "--json").stdout)
    rows = {row["name"]: row for row in listed["tensors"]}
    peer = {tensor.name: tensor for tensor in gguf.GGUFReader(model).tensors}
    for name, tensor in peer.items():
        row = rows[name]
        assert row["dtype"] == tensor.tensor_type.name
        assert row["shape"] == tensor.shape.tolist()[::-1]
        assert row["nbytes"] == tensor.n_bytes
        assert row["offset"] == tensor.data_offset
    info = json.loads(run("info", model, "--json").stdout)
    assert (info["format"], info["dtypes"]["Q4_K"]) == ("gguf", 1)
    assert info["metadata"]["b.words"] == ARRAYS["b.words"]
    assert info["container"]["version"] == 3
    assert "[a, , größe]" in run("info", model).stdout
    run("cat", model, "float32", "--out", "x.npy")
    assert numpy.load(tmp_path / "x.npy").tobytes() == (
        peer["float32"].data.tobytes())
    for verb in ("load", "verify", "plan", "scan"):
        run(verb, model)


def test_alignment_of_the_file_counts(tmp_path, run):
    path = write(tmp_path / "a.gguf", {"a": noise((3,)).view(numpy.int8),
                                       "b": noise((5,)).view(numpy.int8)},
                 alignment=256)
    rows = json.loads(run("ls", path, "--json").stdout)["tensors"]
    assert [row["offset"] % 256 for row in rows] == [0, 0]
    assert rows[1]["offset"] - rows[0]["offset"] == 256


def test_a_file_of_123_tensors_is_nothing_else(tmp_path):
    # Its first bytes are those of a safetensors header except for one.
    path = write(tmp_path / "a.gguf", {
        f"t{i}": numpy.zeros(1, numpy.float32) for i in range(123)})
    assert haulway.open(path).format == "gguf"


def test_text_that_is_no_utf8_is_kept(tmp_path, run):
    text = b"\xff\xfe"
    path = tmp_path / "a.gguf"
    path.write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
        + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 8)
        + struct.pack("<Q", len(text)) + text)
    value = haulway.open(path).metadata["k"]
    assert value.encode("utf-8", "surrogateescape") == text
    assert json.loads(run("info", path, "--json").stdout)["metadata"]["k"]


def test_a_big_endian_file_is_refused_by_name(tmp_path):
    path = tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(path, "test", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("a", numpy.ones(3, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(NotImplementedError, match="big-endian"):
        haulway.open(path)


def test_casting_takes_numbers_only(model):
    half = haulway.load(model, "torch", include=["float32"], dtype="F16")
    assert half["float32"].dtype == torch.float16
    whole = haulway.load(model, "torch", dtype="F64")
    assert whole["float32"].dtype == torch.float64
    assert bits(whole["Q4_K"]) == bits(haulway.load(model, "torch")["Q4_K"])
