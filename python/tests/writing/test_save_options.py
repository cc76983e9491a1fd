"""How save() interprets a name and its options, and what it refuses."""

import os

import numpy
import pytest
import torch

import haulway
import haulway.torch

DATA = {"a": numpy.arange(6, dtype=numpy.float32)}


@pytest.mark.parametrize(
    "name, format",
    [("UP.SAFETENSORS", "safetensors"), ("a.Tensors", "tensorizer"),
     ("a.PT", "torch"), ("a.unknown", "torch"), ("plain", "torch")],
)
def test_endings_are_compared_without_case(name, format, tmp_path):
    haulway.save(DATA, tmp_path / name)
    with haulway.open(tmp_path / name, framework="numpy") as checkpoint:
        assert checkpoint.format == format


@pytest.mark.parametrize(
    "name", ["a.ggml", "a.h5", "M.H5", "w.onnx", "x.json", "o.pkl"]
)
@pytest.mark.parametrize("save", [haulway.save, haulway.save_async])
def test_the_ending_of_a_format_that_is_not_written_is_refused(
    save, name, tmp_path
):
    with pytest.raises(haulway.Error, match="cannot be written") as refusal:
        save(DATA, tmp_path / name)
    assert refusal.value.code == "kUnsupported"
    assert os.listdir(tmp_path) == []
    # An explicit format takes precedence over the name.
    done = save(DATA, tmp_path / name, format="torch")
    if save is haulway.save_async:
        done.result()
    assert list(haulway.load(tmp_path / name, "numpy")) == ["a"]


@pytest.mark.parametrize("format", ["hdf5", "torch-tar", "", 3])
@pytest.mark.parametrize("save", [haulway.save, haulway.save_async])
def test_a_format_that_is_not_known_is_refused(save, format, tmp_path):
    with pytest.raises(haulway.Error):
        save(DATA, tmp_path / "x.pt", format=format)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "name, options",
    [
        ("x.safetensors", {"compact": True}),
        ("x.tensors", {"compact": True}),
        ("x.pt", {"metadata": {"a": "b"}}),
        ("x.pt", {"key": bytes(32)}),
        ("x.safetensors", {"passphrase": "p"}),
        ("x.safetensors", {"storage_alignment": 4096}),
        ("x.tensors", {"compute_crc32": False}),
        ("x.pt", {"no_such_option": 1}),
        ("x.pt", {"ties": "drop"}),
        ("x.safetensors", {"ties": "perhaps"}),
    ],
)
@pytest.mark.parametrize("save", [haulway.save, haulway.save_async])
def test_an_option_without_meaning_is_an_error(save, name, options, tmp_path):
    with pytest.raises(haulway.Error, match=next(iter(options))) as refusal:
        save(DATA, tmp_path / name, **options)
    # The message names no function of ours.
    assert "()" not in str(refusal.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".tensors"])
def test_every_format_is_saved_behind_the_program(suffix, tmp_path):
    array = numpy.arange(100_000, dtype=numpy.int32)
    column = numpy.arange(2000.0).reshape(40, 50)[:, 3]
    expected = {"a": array.copy(), "b": column.copy()}
    path = tmp_path / f"x{suffix}"
    stats = {}
    future = haulway.save_async({"a": array, "b": column}, path, stats=stats)
    array[:] = -1
    column[:] = -1
    done = future.result()
    assert done["bytes"] == os.path.getsize(path) == stats["bytes"]
    loaded = haulway.load(path, "numpy")
    for name, value in expected.items():
        assert numpy.array_equal(loaded[name], value)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".tensors", ".npz"])
def test_names_that_are_not_utf8_are_written_to(suffix, tmp_path):
    def named(stem):
        return os.fsdecode(os.fsencode(tmp_path) + stem + suffix.encode())

    made, other, third = named(b"/\xff"), named(b"/\xfe"), named(b"/\xfd")
    value = {"a": numpy.arange(3, dtype="f4")}
    haulway.save(value, made)
    haulway.save_async(value, made).result()
    haulway.convert(made, other)
    if suffix == ".safetensors":
        haulway.edit(made, rename={"a": "b"}, out=third)
        with haulway.writer(third) as writer:
            writer.add("b", value["a"])
        haulway.repair(made, made + ".repaired.safetensors")
        assert list(haulway.load(third, "numpy")) == ["b"]
    for path in (made, other):
        loaded = haulway.load(path, "numpy")
        numpy.testing.assert_array_equal(loaded["a"], value["a"])


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".tensors", ".npz"])
def test_masked_arrays_are_refused_by_every_format(suffix, tmp_path):
    value = numpy.ma.masked_array([1.0, 2.0], [0, 1])
    with pytest.raises(haulway.Error, match="MaskedArray"):
        haulway.save({"a": value}, tmp_path / f"x{suffix}")
    assert not (tmp_path / f"x{suffix}").exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".tensors", ".npz"])
def test_names_of_tensors_that_are_no_text_are_value_errors(suffix, tmp_path):
    with pytest.raises(ValueError):
        haulway.save({"\ud800": numpy.ones(2, "f4")}, tmp_path / f"x{suffix}")


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".tensors", ".gguf"])
def test_a_name_that_is_not_unicode_is_refused(tmp_path, suffix):
    with pytest.raises(haulway.InvalidArgumentError,
                       match=r"a name is 'a.udc80': expected Unicode"):
        haulway.save({"a\udc80": torch.ones(1)}, tmp_path / f"a{suffix}",
                     metadata={"general.architecture": "x"}
                     if suffix == ".gguf" else None)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("obj, said", [
    (torch.nn.Linear(1, 1), "found Linear, whose state_dict.. is one$"),
    ([torch.ones(1)], "found list$"),
])
def test_what_is_no_dict_of_tensors_is_refused(tmp_path, obj, said):
    with pytest.raises(haulway.InvalidArgumentError,
                       match=f"^an npz file holds a dict of tensors: {said}"):
        haulway.save(obj, tmp_path / "a.npz")
    with pytest.raises(haulway.InvalidArgumentError,
                       match=f"^a safetensors file holds a dict.*: {said}"):
        haulway.save(obj, tmp_path / "a.safetensors")


@pytest.mark.parametrize("save", [haulway.save, haulway.torch.save])
def test_a_dtype_that_torchs_files_lack_is_named(tmp_path, save):
    narrow = torch.zeros(4, dtype=torch.uint8).view(torch.int4)
    with pytest.raises(haulway.UnsupportedError, match="no dtype torch.int4"):
        save({"a": narrow}, tmp_path / "a.pt")
    assert os.listdir(tmp_path) == []
