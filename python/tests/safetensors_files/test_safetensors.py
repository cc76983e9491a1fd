"""Safetensors files, compared with the safetensors package."""

import json
import re
import struct

import numpy
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import haulway
import haulway.torch
from conftest import ROOT

TABLE = ROOT / "testdata" / "safetensors" / "verdicts.tsv"
CODE = re.compile(rb"<(?:(\d+)\*([^>])|([0-9a-f]{2}))>")
TORCH_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.float8_e5m2,
    torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz, torch.int16, torch.uint16, torch.float16,
    torch.bfloat16, torch.int32, torch.uint32, torch.float32, torch.complex64,
    torch.float64, torch.int64, torch.uint64, torch.float4_e2m1fn_x2,
]


def expand(text):
    return CODE.sub(
        lambda m: m[2] * int(m[1]) if m[1] else bytes.fromhex(m[3].decode()),
        text,
    )


def cases():
    for line in TABLE.read_bytes().splitlines():
        if line.startswith(b"#"):
            continue
        name, length, header, size, *verdicts = line.split(b"\t")
        if length.startswith(b"none:"):
            data = expand(length[5:])
        else:
            header = expand(header)
            count = len(header) if length == b"=" else int(length)
            data = struct.pack("<Q", count) + header + bytes(int(size))
        yield pytest.param(
            data, *(verdict.decode() for verdict in verdicts), id=name.decode()
        )


def build(header, data=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def bits(tensor):
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.detach().resolve_conj().contiguous().reshape(-1)
        return tensor.view(torch.uint8).numpy().tobytes()
    return tensor.tobytes()


def sample(dtype, shape=(3, 4)):
    """Returns a tensor of the dtype with every kind of bit pattern."""
    count = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
    noise = numpy.random.default_rng(7).integers(0, 256, count, numpy.uint8)
    if dtype == torch.bool:
        noise &= 1
    return torch.from_numpy(noise).view(dtype).reshape(shape)


@pytest.fixture
def model(tmp_path):
    """A file with every dtype that torch and safetensors share."""
    tensors = {str(d).removeprefix("torch."): sample(d) for d in TORCH_DTYPES}
    tensors["empty"] = torch.empty(0, 5)
    tensors["scalar"] = torch.tensor(2.5)
    tensors["odd.é"] = torch.arange(7, dtype=torch.int8)
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("data, reference, strict, lenient", list(cases()))
def test_the_table_of_verdicts_is_true(data, reference, strict, lenient):
    try:
        safetensors.deserialize(data)
        assert reference == "ok"
    except safetensors.SafetensorError:
        assert reference == "refuse"
    try:
        with haulway.open(data, framework="numpy") as opened:
            opened.keys()
        assert strict == "ok"
    except haulway.Error as error:
        # A file without any header has no known format.
        assert strict in (error.code, "kTruncated", "kCorrupt", "kLimit")
        assert strict != "ok"
        return
    assert haulway.verify(data, lenient=True).ok == (lenient == "ok")


@pytest.mark.parametrize("mmap", [True, False])
def test_open_gives_what_safe_open_gives(model, mmap):
    with safetensors.safe_open(model, "pt") as theirs, haulway.open(
        model, framework="torch", mmap=mmap
    ) as ours:
        assert ours.format == "safetensors"
        assert sorted(ours.keys()) == sorted(theirs.keys())
        assert ours.keys() == theirs.offset_keys()
        assert ours.metadata == theirs.metadata()
        for name in theirs.keys():
            mine, other = ours[name], theirs.get_tensor(name)
            assert (mine.dtype, mine.shape) == (other.dtype, other.shape), name
            assert bits(mine) == bits(other), name
            assert mine.stride() == other.stride(), name


@pytest.mark.parametrize("io", ["auto", "pread", "mmap"])
def test_load_gives_a_flat_dict_in_file_order(model, io):
    theirs = safetensors.torch.load_file(model)
    ours = haulway.load(model, framework="torch", io=io)
    assert type(ours) is dict
    with safetensors.safe_open(model, "pt") as opened:
        assert list(ours) == opened.offset_keys()
    assert set(ours) == set(theirs)
    for name, other in theirs.items():
        mine = ours[name]
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape), name
        assert bits(mine) == bits(other), name


def test_load_into_numpy(tmp_path):
    arrays = {
        name: numpy.arange(12).astype(name).reshape(3, 4)
        for name in (
            "bool", "uint8", "int8", "int16", "uint16", "float16", "int32",
            "uint32", "float32", "complex64", "float64", "int64", "uint64",
        )
    }
    path = tmp_path / "arrays.safetensors"
    safetensors.numpy.save_file(arrays, path)
    ours = haulway.load(path, framework="numpy")
    for name, array in safetensors.numpy.load_file(path).items():
        assert ours[name].dtype == array.dtype
        numpy.testing.assert_array_equal(ours[name], array)
    some = haulway.load(path, framework="numpy", include="float*")
    assert sorted(some) == ["float16", "float32", "float64"]


def test_torch_load_of_a_path_is_torchs(model):
    theirs = torch.load(model)
    ours = haulway.torch.load(model)
    assert list(ours) == list(theirs) or set(ours) == set(theirs)
    for name, other in theirs.items():
        assert ours[name].dtype == other.dtype
        assert bits(ours[name]) == bits(other), name


@pytest.mark.parametrize(
    "arguments",
    [
        {"weights_only": False},
        {"weights_only": True},
        {"map_location": "cpu"},
        {"map_location": torch.device("cpu")},
        {"mmap": True},
    ],
)
def test_torch_load_takes_what_torch_takes(model, arguments):
    theirs = torch.load(model, **arguments)
    ours = haulway.torch.load(model, **arguments)
    assert bits(ours["float32"]) == bits(theirs["float32"])


@pytest.mark.parametrize(
    "location", [{"cpu": "cpu"}, lambda storage, location: storage]
)
def test_torch_load_refuses_the_map_locations_torch_refuses(model, location):
    for load in (torch.load, haulway.torch.load):
        with pytest.raises(RuntimeError):
            load(model, map_location=location)


def test_torch_load_refuses_other_content_under_the_name(tmp_path):
    path = tmp_path / "a.safetensors"
    torch.save({"a": torch.ones(1)}, path)
    with pytest.raises(safetensors.SafetensorError):
        torch.load(path)
    with pytest.raises(haulway.Error, match="named as safetensors"):
        haulway.torch.load(path)


def test_slices_read_rows(model):
    with safetensors.safe_open(model, "pt") as theirs, haulway.open(
        model, framework="torch"
    ) as ours:
        for index in (slice(1, 3), 0, (slice(None), slice(1, 2)), -1):
            mine = ours.get_slice("float32")[index]
            assert bits(mine) == bits(theirs.get_slice("float32")[index])
        assert ours.get_slice("float32").get_shape() == [3, 4]


def test_a_tensor_at_an_odd_place_is_copied_to_an_even_one(tmp_path):
    value = numpy.arange(3, dtype="f4")
    data = build(
        {
            "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
            "b": {"dtype": "F32", "shape": [3], "data_offsets": [1, 13]},
        },
        b"x" + value.tobytes(),
    )
    path = tmp_path / "odd.safetensors"
    path.write_bytes(data)
    for mmap in (True, False):
        with haulway.open(path, framework="numpy", mmap=mmap) as opened:
            assert opened["b"].flags.aligned
            numpy.testing.assert_array_equal(opened["b"], value)
    for io in ("auto", "mmap"):
        loaded = haulway.load(path, framework="numpy", io=io)
        assert loaded["b"].flags.aligned
        numpy.testing.assert_array_equal(loaded["b"], value)


def test_types_of_less_than_a_byte():
    data = build(
        {
            "f4": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]},
            "f6": {"dtype": "F6_E2M3", "shape": [8], "data_offsets": [4, 10]},
            "odd": {"dtype": "F4", "shape": [2, 1], "data_offsets": [10, 11]},
        },
        bytes(range(11)),
    )
    with haulway.open(data, framework="numpy") as opened:
        described = {name: opened.info(name) for name in opened}
        assert opened["f6"].tobytes() == bytes(range(4, 10))
        assert opened["f6"].shape == (2,)
    assert (described["f4"].dtype, described["f4"].shape) == (
        "F4_E2M1X2", (2, 2),
    )
    assert (described["f6"].dtype, described["f6"].shape) == (
        "F6_E2M3X4", (2,),
    )
    # Two values in an item that crosses the end of a row.
    assert described["odd"].shape == (1,)
    with haulway.open(data, framework="torch") as opened:
        assert opened["f4"].dtype == torch.float4_e2m1fn_x2
        with pytest.raises(haulway.Error, match="torch has no dtype F6"):
            opened["f6"]


def test_metadata_and_container(tmp_path):
    path = tmp_path / "a.safetensors"
    metadata = {"format": "np", "é\n": "x"}
    safetensors.numpy.save_file({"a": numpy.ones(3)}, path, metadata)
    with haulway.open(path, framework="numpy") as opened:
        assert opened.metadata == metadata
        assert opened.container["data_offset"] == (
            8 + opened.container["header_bytes"]
        )
        assert opened.tree()["a"].shape == (3,)
    safetensors.numpy.save_file({"a": numpy.ones(3)}, path)
    with haulway.open(path, framework="numpy") as opened:
        assert opened.metadata == {}


def test_tensors_outlive_the_checkpoint(model):
    with haulway.open(model, framework="torch") as opened:
        tensor = opened["float64"]
    assert bits(tensor) == bits(sample(torch.float64))
    tensor.zero_()
    assert bits(haulway.load(model)["float64"]) == bits(sample(torch.float64))


def test_verify_and_scan(model):
    report = haulway.verify(model)
    assert report.ok and report.checked_bytes == 0
    assert report.unchecked[0].bytes == model.stat().st_size
    assert haulway.scan(model).safe
    model.write_bytes(model.read_bytes()[:-1])
    report = haulway.verify(model)
    assert not report.ok and report.findings[0].code == "kTruncated"
    assert not haulway.scan(model).safe


def test_a_missing_file_is_said_to_be(tmp_path):
    with pytest.raises(FileNotFoundError):
        haulway.torch.load(tmp_path / "none.safetensors")


@pytest.fixture
def sharded(tmp_path):
    """Two files and their index; returns the index and all tensors."""
    (tmp_path / "more").mkdir()
    names = ["model-00001-of-00002.safetensors", "more/second.safetensors"]
    parts = [
        {"a": torch.arange(5.0), "b": torch.ones(3, 2, dtype=torch.bfloat16)},
        {"c": torch.arange(1000), "none": torch.empty(0, 3)},
    ]
    index = {"metadata": {"total_size": 0}, "weight_map": {}}
    for name, part in zip(names, parts):
        safetensors.torch.save_file(part, tmp_path / name, {"format": "pt"})
        for key, tensor in part.items():
            index["weight_map"][key] = name
            index["metadata"]["total_size"] += tensor.nbytes
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index, indent=2))
    return path, {**parts[0], **parts[1]}


@pytest.mark.parametrize("io", ["auto", "pread", "mmap"])
def test_a_sharded_model_is_one_checkpoint(sharded, io):
    path, tensors = sharded
    loaded = haulway.load(path, framework="torch", io=io)
    assert set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert bits(loaded[name]) == bits(tensor)
    with haulway.open(path, framework="torch", mmap=io == "mmap") as opened:
        assert opened.format == "safetensors"
        assert opened.metadata["format"] == "pt"
        assert opened.container == {"shards": 2}
        assert bits(opened["c"]) == bits(tensors["c"])
        assert bits(opened.get_slice("c")[7:9]) == bits(tensors["c"][7:9])
    assert haulway.verify(path).ok


@pytest.mark.parametrize("size", [1, 0, "7", None, -3, [1]])
def test_a_wrong_total_size_is_noted_by_verify_only(sharded, run, size):
    path, tensors = sharded
    index = json.loads(path.read_text())
    right = index["metadata"]["total_size"]
    index["metadata"]["total_size"] = size
    path.write_text(json.dumps(index))
    with haulway.open(path, framework="numpy") as opened:
        assert set(opened) == set(tensors)
    notes = []
    if isinstance(size, int) and size >= 0:
        notes = [f"total_size of the index is wrong: expected {right}, found {size}"]
    report = haulway.verify(path)
    assert report.ok and report.notes == notes
    assert json.loads(run("verify", path, "--json").stdout)["notes"] == notes
    assert all(f"note: {note}" in run("verify", path).stdout for note in notes)
    whole = haulway.verify(path.parent)
    assert whole.ok
    assert whole.notes == [f"{note}; of {path}" for note in notes]


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", ""])
def test_an_index_cannot_lead_out_of_its_folder(tmp_path, name):
    path = tmp_path / "index.json"
    path.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(haulway.Error, match="not a relative path within"):
        haulway.open(path, framework="numpy")


def test_an_index_in_memory_has_no_files(sharded):
    with pytest.raises(haulway.Error, match="no files lie beside"):
        haulway.open(sharded[0].read_bytes(), framework="numpy")
