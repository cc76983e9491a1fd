"""Models in several GGUF files, as the gguf package and gguf-split write them."""

import re

import gguf
import numpy
import pytest

import haulway

NAMES = [f"blk.{i}.weight" for i in range(3)]


def write_parts(path, is_head_apart=False, names=NAMES):
    """Writes a part per tensor; returns their paths."""
    writer = gguf.GGUFWriter(
        path, "llama", split_max_tensors=1, small_first_shard=is_head_apart)
    writer.add_name("x")
    for i, name in enumerate(names):
        writer.add_tensor(name, numpy.full((2, 32), i, "f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.glob(f"{path.stem}-*.gguf"))


@pytest.mark.parametrize("is_head_apart", [False, True])
def test_parts_are_one_model(tmp_path, is_head_apart):
    parts = write_parts(tmp_path / "model.gguf", is_head_apart)
    assert len(parts) == 3 + is_head_apart
    for given in (parts, parts[::-1], tmp_path):
        with haulway.open(given) as model:
            assert sorted(model.keys()) == NAMES
            # Which part a file is does not belong to the model.
            assert model.metadata == {
                "general.architecture": "llama", "general.name": "x"}
            assert (numpy.asarray(model[NAMES[2]]) == 2).all()
    # A part alone keeps what it says.
    assert haulway.open(parts[1], alone=True).metadata["split.no"] == 1


def test_joined_parts_are_what_others_read(tmp_path):
    write_parts(tmp_path / "model.gguf")
    out = tmp_path / "out/whole.gguf"
    out.parent.mkdir()
    haulway.convert(tmp_path, out)
    reader = gguf.GGUFReader(out)
    assert not [key for key in reader.fields if key.startswith("split.")]
    assert [tensor.name for tensor in reader.tensors] == NAMES


def test_shards_that_are_written_are_parts(tmp_path):
    haulway.save({name: numpy.full((2, 32), i, "f4")
                  for i, name in enumerate(NAMES)}, tmp_path / "m.safetensors")
    out = tmp_path / "out"
    out.mkdir()
    done = haulway.convert(
        tmp_path / "m.safetensors", out / "m.gguf", shard=256,
        metadata={"general.architecture": "llama", "split.count": 7})
    for i in range(3):
        reader = gguf.GGUFReader(out / f"m-0000{i + 1}-of-00003.gguf")
        assert [(reader.fields[key].contents(), reader.fields[key].types)
                for key in ("split.no", "split.count", "split.tensors.count")] == [
            (i, [gguf.GGUFValueType.UINT16]), (3, [gguf.GGUFValueType.UINT16]),
            (3, [gguf.GGUFValueType.INT32])]
    for given in (done.files[:3], done.files[3], out):
        assert sorted(haulway.load(given)) == NAMES
    assert haulway.verify(done.files[3])


@pytest.mark.parametrize(("choose", "said"), [
    (lambda parts, others: parts[:2], "part 3 of 3 of the model is missing"),
    (lambda parts, others: parts[1:], "part 1 of 3 of the model is missing"),
    (lambda parts, others: [*parts[:2], others[1]],
     "part 2 of 2 is of another model: expected one of 3 parts with 3 tensors"),
])
def test_parts_that_are_no_model_are_refused(tmp_path, choose, said):
    parts = write_parts(tmp_path / "model.gguf")
    others = write_parts(tmp_path / "other.gguf", names=["a", "b"])
    chosen = choose(parts, others)
    with pytest.raises(haulway.MismatchError, match=re.escape(said)):
        haulway.load(chosen)
    assert len(haulway.load(chosen, lenient=True)) == len(chosen)


def test_a_part_that_is_there_twice_is_refused(tmp_path):
    parts = write_parts(tmp_path / "model.gguf")
    again = write_parts(tmp_path / "again.gguf", names=["a", "b", "c"])
    with pytest.raises(haulway.MismatchError, match="part 2 of 3 of the model is "
                                                    "there twice"):
        haulway.load([*parts[:2], again[1]])


def test_a_count_of_tensors_that_is_wrong_is_refused(tmp_path):
    parts = write_parts(tmp_path / "model.gguf")
    for path in parts:
        haulway.edit(path, set={"split.tensors.count": "4"})
    with pytest.raises(haulway.MismatchError, match="the parts have 3 tensors: "
                       "expected 4, as their metadata says"):
        haulway.load(parts)


def test_a_folder_of_several_models_is_ambiguous(tmp_path):
    write_parts(tmp_path / "model.gguf")
    write_parts(tmp_path / "other.gguf")
    with pytest.raises(haulway.Error, match="holds several checkpoints"):
        haulway.load(tmp_path)
