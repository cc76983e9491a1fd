"""Writing GGUF, compared with the gguf package."""

import os

import gguf
import numpy
import pytest
import torch
from test_gguf import METADATA, PLAIN, noise

import haulway
from needed_metadata import needed


def typed():
    """Returns the metadata of test_gguf with explicit types for the gguf
    package."""
    of = {"string": str, "bool": bool}
    return {
        "general.architecture": "test",
        **{
            key: of.get(kind, getattr(numpy, kind, None))(value)
            for key, (value, kind) in METADATA.items()
        },
    }


@pytest.mark.parametrize("alignment", [None, 64])
def test_the_bytes_are_the_peers(tmp_path, alignment):
    tensors = {
        numpy.dtype(d).name: noise((3, 2, 5), d, seed=i)
        for i, d in enumerate(PLAIN)
    }
    tensors["scalar"] = numpy.array(2.5, numpy.float32)
    tensors["größe"] = noise((1, 2, 3, 4), numpy.int16)
    arrays = {"b.words": ["a", "", "ö"], "b.ints": [1, -2, 3],
              "b.reals": [0.5, -1.0], "b.flags": [True, False]}
    writer = gguf.GGUFWriter(tmp_path / "peer.gguf", "test")
    for key, (value, kind) in METADATA.items():
        getattr(writer, f"add_{kind}")(key, value)
    for key, value in arrays.items():
        writer.add_array(key, value)
    if alignment:
        writer.add_custom_alignment(alignment)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    haulway.save(tensors, tmp_path / "ours.gguf", alignment=alignment,
                 metadata={**typed(), **arrays})
    ours = (tmp_path / "ours.gguf").read_bytes()
    assert ours == (tmp_path / "peer.gguf").read_bytes()


def test_torch_tensors_and_bfloat16(tmp_path):
    tensors = {"b": torch.randn(4, 6).to(torch.bfloat16),
               "t": torch.arange(6.0).reshape(2, 3).T,
               "e": torch.zeros(0, 3)}
    path = tmp_path / "x.gguf"
    haulway.save(tensors, path, metadata={"general.architecture": "test"})
    loaded = haulway.load(path, "torch")
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor)
    peer = {t.name: t for t in gguf.GGUFReader(path).tensors}
    assert peer["b"].tensor_type.name == "BF16"
    assert peer["t"].data.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_metadata_comes_back(tmp_path):
    path = tmp_path / "x.gguf"
    metadata = {"general.architecture": "test", "a": 1, "b": -1, "c": 2**40,
                "d": 2**64 - 1, "e": 0.1, "f": True, "g": "text",
                "h": [1, 2**40], "i": [0.5, 1], "j": [],
                "k": numpy.arange(3, dtype=numpy.uint16)}
    haulway.save({}, path, metadata=metadata)
    found = haulway.open(path).metadata
    assert found.pop("k") == [0, 1, 2] and metadata.pop("k") is not None
    assert found == metadata
    fields = gguf.GGUFReader(path).fields
    assert fields["k"].types == [gguf.GGUFValueType.ARRAY,
                                 gguf.GGUFValueType.UINT16]
    assert fields["a"].types == [gguf.GGUFValueType.INT32]
    assert fields["e"].types == [gguf.GGUFValueType.FLOAT64]


@pytest.mark.parametrize("metadata", [
    {"a": None}, {"a": {}}, {"a": [1, "x"]}, {"a": [[1]]}, {"a": 2**64},
    {"a": -2**63 - 1}, {"a": [-1, 2**63]}, {1: "x"}, {"": "x"}, [1],
])
def test_metadata_that_has_no_place_is_refused(tmp_path, metadata):
    if isinstance(metadata, dict):
        metadata = {"general.architecture": "test", **metadata}
    with pytest.raises(haulway.Error, match="metadata") as caught:
        haulway.save({}, tmp_path / "x.gguf", metadata=metadata)
    assert "GGUF requires" not in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("tensors, words", [
    ({"x": numpy.zeros((1,) * 5, numpy.float32)}, "5 dimensions"),
    ({"x" * 64: numpy.zeros(1, numpy.float32)}, "64 bytes"),
    ({"x": numpy.zeros(1, bool)}, "no dtype BOOL"),
    ({"x": numpy.zeros(1, numpy.uint8)}, "no dtype U8"),
    ({"x": numpy.zeros(1, numpy.complex64)}, "no dtype C64"),
])
def test_what_the_format_lacks_is_refused_before_a_file_is_there(
    tmp_path, tensors, words
):
    with pytest.raises(haulway.Error, match=words):
        haulway.save(tensors, tmp_path / "x.gguf")
    assert os.listdir(tmp_path) == []


def test_an_alignment_that_is_none_is_refused(tmp_path):
    for alignment in (0, 24, 2**32):
        with pytest.raises(ValueError, match="power of two"):
            haulway.save({}, tmp_path / "x.gguf", alignment=alignment,
                         **needed("gguf"))


def test_names_of_63_bytes_and_four_dimensions_fit(tmp_path):
    path = tmp_path / "x.gguf"
    haulway.save({"x" * 63: numpy.zeros((1, 2, 1, 2), numpy.float32)}, path,
                 **needed(path))
    assert list(haulway.open(path)) == ["x" * 63]


def test_an_architecture_is_required(tmp_path, run):
    tensors = {"w": numpy.ones(3, numpy.float32)}
    why = "GGUF requires the metadata general.architecture: set it"
    haulway.save(tensors, tmp_path / "a.safetensors")
    for metadata in (None, {}, {"general.name": "x"},
                     {"general.architecture": 7}, {"general.architecture": ""}):
        with pytest.raises(haulway.InvalidArgumentError, match=why):
            haulway.save(tensors, tmp_path / "x.gguf", metadata=metadata)
    # It fails before a tensor is added.
    with pytest.raises(haulway.InvalidArgumentError, match=why):
        haulway.writer(tmp_path / "x.gguf")
    with pytest.raises(haulway.InvalidArgumentError, match=why):
        haulway.convert(tmp_path / "a.safetensors", tmp_path / "x.gguf")
    done = run("convert", "a.safetensors", "x.gguf", code=2)
    assert why in done.stderr
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_a_conversion_sets_metadata(tmp_path, run):
    haulway.save({"w": numpy.ones(3, numpy.float32)}, tmp_path / "a.safetensors",
                 metadata={"general.architecture": "old", "k": "v"})
    haulway.convert(tmp_path / "a.safetensors", tmp_path / "a.gguf", metadata={
        "general.architecture": "llama", "llama.block_count": numpy.uint32(2),
        "words": ["a", "b"]})
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    assert fields["general.architecture"].contents() == "llama"
    assert fields["llama.block_count"].types == [gguf.GGUFValueType.UINT32]
    assert haulway.open(tmp_path / "a.gguf").metadata == {
        "general.architecture": "llama", "k": "v", "llama.block_count": 2,
        "words": ["a", "b"]}
    run("convert", "a.safetensors", "b.gguf", "--set",
        "general.architecture=bert", "--set", "k=a=b")
    assert haulway.open(tmp_path / "b.gguf").metadata == {
        "general.architecture": "bert", "k": "a=b"}
    run("convert", "a.safetensors", "b.gguf", "--set", "k", code=4)
    # Formats that store text, or no metadata.
    haulway.convert(tmp_path / "a.gguf", tmp_path / "b.safetensors",
                    metadata={"k": "w"})
    assert haulway.open(tmp_path / "b.safetensors").metadata == {
        "format": "pt", "general.architecture": "llama", "k": "w"}
    for ending, metadata in (("safetensors", {"k": 1}), ("npz", {"k": "w"})):
        with pytest.raises(haulway.UnsupportedError, match="no room for metadata"):
            haulway.convert(tmp_path / "a.gguf", tmp_path / f"c.{ending}",
                            metadata=metadata)
        assert not (tmp_path / f"c.{ending}").exists()


def test_a_writer_takes_the_architecture(tmp_path):
    with haulway.writer(tmp_path / "x.gguf", **needed("gguf")) as out:
        out.add("w", numpy.ones(3, numpy.float32))
        out.commit()
    assert haulway.open(tmp_path / "x.gguf").metadata == {
        "general.architecture": "test"}


def test_the_alignment_may_be_metadata(tmp_path):
    path = tmp_path / "x.gguf"
    made = {"a": numpy.ones(3, numpy.float32), "b": numpy.zeros(5, numpy.float32)}
    metadata = {"general.architecture": "llama", "general.alignment": 256}
    haulway.save(made, path, metadata=metadata)
    reader = gguf.GGUFReader(path)
    assert reader.alignment == 256
    assert [tensor.data_offset % 256 for tensor in reader.tensors] == [0, 0]
    for wrong in ("64", -1, 1.5):
        with pytest.raises(haulway.InvalidArgumentError, match="no number"):
            haulway.save(made, path,
                         metadata={**metadata, "general.alignment": wrong})
    with pytest.raises(haulway.InvalidArgumentError, match="power of two"):
        haulway.save(made, path,
                     metadata={**metadata, "general.alignment": 48})
