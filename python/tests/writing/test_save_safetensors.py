"""haulway.save to safetensors, compared with the safetensors package."""

import io
import os
import stat

import numpy
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from test_safetensors import TORCH_DTYPES, bits, sample

import haulway

NUMPY_DTYPES = (
    "bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32",
    "float32", "complex64", "float64", "int64", "uint64",
)


def arrays():
    made = {
        f"{name}.{i}": numpy.arange(12).astype(name).reshape(3, 4)
        for name in NUMPY_DTYPES
        for i in (10, 9)
    }
    made["scalar"] = numpy.array(2, "f4")
    made["empty"] = numpy.empty((0, 3), "f8")
    made['"\\\x08\t\n\x0c\r\x01\x1f/\x7f é\U0001f600'] = numpy.ones(3, "u1")
    return made


# Without tensors and with empty metadata, the package writes a file that it
# cannot read.
@pytest.mark.parametrize(
    "tensors, metadata",
    [
        ({}, None),
        ({}, {"format": "np"}),
        (arrays(), None),
        (arrays(), {}),
        (arrays(), {"format": "np"}),
        (arrays(), {"é\n\"": "\\"}),
    ],
)
def test_the_bytes_are_the_references(tmp_path, tensors, metadata):
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs"
    stats = haulway.save(tensors, ours, metadata=metadata)
    safetensors.numpy.save_file(tensors, theirs, metadata=metadata)
    assert ours.read_bytes() == theirs.read_bytes()
    assert stats["bytes"] == ours.stat().st_size


def test_the_bytes_are_the_references_for_torch(tmp_path):
    tensors = {str(d).removeprefix("torch."): sample(d) for d in TORCH_DTYPES}
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs"
    haulway.save(tensors, ours, metadata={"format": "pt"})
    safetensors.torch.save_file(tensors, theirs, metadata={"format": "pt"})
    assert ours.read_bytes() == theirs.read_bytes()


def test_ten_thousand_tensors_are_the_references(tmp_path):
    tensors = {f"layer.{i}.w": numpy.full(3, i, "f4") for i in range(10_000)}
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs"
    haulway.save(tensors, ours)
    safetensors.numpy.save_file(tensors, theirs)
    assert ours.read_bytes() == theirs.read_bytes()


def test_keys_of_metadata_are_sorted(tmp_path):
    path = tmp_path / "a.safetensors"
    keys = {"b": "2", "a": "1", "c": "3"}
    haulway.save({}, path, metadata=keys)
    assert b'{"__metadata__":{"a":"1","b":"2","c":"3"}}' in path.read_bytes()


def test_what_is_not_dense_is_written_right(tmp_path):
    path = tmp_path / "a.safetensors"
    plain = numpy.arange(12.0).reshape(3, 4)
    haulway.save(
        {
            "fortran": numpy.asfortranarray(plain),
            "strided": plain[:, ::2],
            "big": plain.astype(">f8"),
            "torch": torch.from_numpy(plain).T,
            "conj": torch.tensor([1 + 2j]).conj(),
        },
        path,
    )
    loaded = safetensors.numpy.load_file(path)
    numpy.testing.assert_array_equal(loaded["fortran"], plain)
    numpy.testing.assert_array_equal(loaded["strided"], plain[:, ::2])
    numpy.testing.assert_array_equal(loaded["big"], plain)
    numpy.testing.assert_array_equal(loaded["torch"], plain.T)
    assert loaded["conj"] == [1 - 2j]


def test_the_tensors_start_where_asked(tmp_path):
    path = tmp_path / "a.safetensors"
    haulway.save({"a": numpy.ones(3)}, path, alignment=4096)
    with haulway.open(path, framework="numpy") as opened:
        assert opened.container["data_offset"] == 4096
    assert safetensors.numpy.load_file(path)["a"].tolist() == [1, 1, 1]
    with pytest.raises(haulway.Error, match="multiple of 8"):
        haulway.save({}, path, alignment=12)


def test_a_round_trip_of_a_loaded_file(tmp_path):
    first, second = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    tensors = {"b": torch.rand(100, 7), "a": torch.rand(3).bfloat16()}
    safetensors.torch.save_file(tensors, first, metadata={"format": "pt"})
    with haulway.open(first, framework="torch") as opened:
        haulway.save(dict(opened), second, metadata=opened.metadata)
    assert second.read_bytes() == first.read_bytes()


def test_saving_over_ones_own_mapping(tmp_path):
    path = tmp_path / "a.safetensors"
    haulway.save({"a": numpy.arange(5000)}, path)
    with haulway.open(path, framework="numpy", mmap=True) as opened:
        mapped = opened["a"]
        haulway.save({"b": mapped, "c": numpy.ones(4)}, path)
        assert mapped.tolist() == list(range(5000))
    assert haulway.load(path, "numpy")["b"].tolist() == list(range(5000))


def test_the_mode_is_as_umask_says(tmp_path):
    path = tmp_path / "a.safetensors"
    before = os.umask(0o027)
    try:
        haulway.save({}, path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_file_object_is_written_in_order():
    out = io.BytesIO()
    haulway.save({"a": numpy.ones(3)}, out, format="safetensors")
    loaded = safetensors.numpy.load(out.getvalue())
    assert loaded["a"].tolist() == [1, 1, 1]


def test_progress_ends_with_all_of_it(tmp_path):
    seen = []
    path = tmp_path / "a.safetensors"
    haulway.save(
        {"a": numpy.ones(1000)}, path,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize(
    "tensors, message",
    [
        ([1], "holds a dict"),
        ({"a": 1}, "expected a tensor or an array"),
        ({1: numpy.ones(1)}, "expected a string"),
        ({"a": numpy.ones(1, "c16")}, "C128|complex128"),
        ({"a": numpy.array(["x"])}, "cannot hold"),
        ({"a": torch.ones(2, 2).to_sparse()}, "sparse tensor"),
        ({"a": torch.ones(2, device="meta")}, "meta tensor"),
        ({"__metadata__": numpy.ones(1)}, "cannot be named"),
        ({"\ud800": numpy.ones(1)}, "expected Unicode"),
    ],
)
def test_what_cannot_be_saved(tmp_path, tensors, message):
    path = tmp_path / "a.safetensors"
    with pytest.raises((haulway.Error, UnicodeError), match=message):
        haulway.save(tensors, path)
    assert not path.exists()


def test_shared_memory_is_refused(tmp_path):
    weight = torch.ones(4, 4)
    path = tmp_path / "a.safetensors"
    with pytest.raises(haulway.Error, match="share memory"):
        haulway.save({"a": weight, "b": weight[1:]}, path)
    # Views of one storage that do not overlap are allowed.
    haulway.save({"a": weight[:2], "b": weight[2:]}, path)
    assert bits(haulway.load(path)["b"]) == bits(weight[2:])


def test_metadata_holds_strings(tmp_path):
    with pytest.raises(ValueError, match="expected strings"):
        haulway.save({}, tmp_path / "a.safetensors", metadata={"a": 1})


def test_another_format_is_refused(tmp_path):
    with pytest.raises(NotImplementedError):
        haulway.save({}, tmp_path / "a.bin", format="torch-legacy")
