"""haulway.repair and the command: damaged or truncated files of torch,
safetensors, NumPy and Tensorizer, and copies of them."""

import json
import os
import resource
import struct
import subprocess
import zipfile

import numpy
import pytest
import safetensors.torch
import torch

import haulway
from needed_metadata import needed

NAMES = [f"layers.{i}.w" for i in range(6)]
CUT = [".pt", ".safetensors", ".tensors", ".gguf", ".npz"]


def tensors():
    torch.manual_seed(6)
    return {name: torch.randn(300, 32) for name in NAMES}


def write(folder, name):
    path = folder / name
    if path.suffix == ".pt":
        torch.save(tensors(), path)
    elif path.suffix == ".npz":
        numpy.savez(path, **{k: v.numpy() for k, v in tensors().items()})
    elif path.suffix == ".safetensors":
        safetensors.torch.save_file(tensors(), path, {"by": "somebody"})
    else:
        haulway.save(tensors(), path, **needed(path))
    return path


def cut(path, size):
    os.truncate(path, size)
    return path


def check(path, names):
    found = haulway.load(path, "torch")
    assert sorted(found) == sorted(names)
    for name in names:
        assert torch.equal(torch.as_tensor(found[name]), tensors()[name])


@pytest.mark.parametrize("ending", CUT)
def test_what_is_whole_of_a_cut_file_is_saved(tmp_path, ending, run):
    whole = write(tmp_path, f"w{ending}")
    size = whole.stat().st_size
    # Remove half of the tensors: a small Tensorizer file has many bytes before
    # them.
    path = cut(write(tmp_path, f"cut{ending}"), size - 19_200 * 6)
    with pytest.raises(haulway.Error):
        haulway.load(path)
    report = haulway.repair(path, tmp_path / "out.safetensors")
    assert not report and report.fault
    assert 2 <= len(report.kept) <= 4
    lost = [one.name for one in report.lost]
    if ending == ".npz":  # The names are stored with the arrays.
        assert lost == ["?"]
    else:
        assert sorted(report.kept + lost) == NAMES
    check(tmp_path / "out.safetensors", report.kept)
    run("repair", path, "out2.safetensors", code=1)


@pytest.mark.parametrize("other", CUT)
@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
def test_the_rest_comes_from_a_copy(tmp_path, ending, other, run):
    path = write(tmp_path, f"cut{ending}")
    cut(path, path.stat().st_size // 2)
    copy = write(tmp_path, f"copy{other}")
    done = run("repair", path, "out.pt", "--from", copy, "--json")
    said = json.loads(done.stdout)
    assert said["lost"] == [] and said["fault"]
    assert {one["from"] for one in said["taken"]} == {str(copy)}
    assert sorted(said["kept"] + [t["name"] for t in said["taken"]]) == NAMES
    assert said["kept"] and said["taken"]
    check(tmp_path / "out.pt", NAMES)
    assert torch.load(tmp_path / "out.pt", weights_only=True).keys()


def test_what_is_wrong_names_the_file_once(tmp_path, run):
    path, copy = write(tmp_path, "cut.pt"), write(tmp_path, "copy.pt")
    cut(path, path.stat().st_size // 2)
    done = run("repair", path, "out.pt", "--from", copy)
    first = done.stdout.splitlines()[0]
    assert first.endswith(f"; of {path}")
    assert first.count(path.name) == 1


@pytest.mark.parametrize("ending", [".pt", ".tensors", ".npz"])
def test_damaged_tensors_are_found_and_taken(tmp_path, ending, run):
    path = write(tmp_path, f"bad{ending}")
    bytes_ = bytearray(path.read_bytes())
    at = bytes_.index(tensors()[NAMES[3]].numpy().tobytes())
    bytes_[at + 5000] ^= 1
    path.write_bytes(bytes_)
    alone = haulway.repair(path, tmp_path / "some.safetensors")
    assert [one.name for one in alone.lost] == [NAMES[3]]
    assert len(alone.kept) == 5 and alone.fault is None
    copy = write(tmp_path, "copy.safetensors")
    report = haulway.repair(path, tmp_path / "all.safetensors", copy)
    assert report and [t.name for t in report.taken] == [NAMES[3]]
    check(tmp_path / "all.safetensors", NAMES)
    text = run("repair", path, "x.pt", "--from", copy).stdout
    assert f"taken {NAMES[3]} from {copy}" in text


def test_tensors_that_a_whole_file_never_had_are_not_taken(tmp_path):
    some = {name: tensors()[name] for name in NAMES[:4]}
    torch.save(some, tmp_path / "some.pt")
    copy = write(tmp_path, "copy.safetensors")
    report = haulway.repair(tmp_path / "some.pt", tmp_path / "out.pt", [copy])
    assert report and report.taken == []
    check(tmp_path / "out.pt", NAMES[:4])


def test_nothing_of_another_shape_or_dtype_nor_damaged_is_taken(tmp_path):
    path = write(tmp_path, "bad.pt")
    whole = path.read_bytes()
    bytes_ = bytearray(whole)
    at = [bytes_.index(tensors()[name].numpy().tobytes()) for name in NAMES]
    for i in (0, 1, 2):
        bytes_[at[i]] ^= 1
    path.write_bytes(bytes_)
    other = tensors()
    other[NAMES[0]] = other[NAMES[0]].double()
    other[NAMES[1]] = other[NAMES[1]].reshape(32, 300)
    safetensors.torch.save_file(other, tmp_path / "copy.safetensors")
    second = bytearray(whole)
    for i in (0, 1, 2):
        second[at[i]] ^= 2
    (tmp_path / "second.pt").write_bytes(second)
    report = haulway.repair(path, tmp_path / "out.pt", [
        tmp_path / "second.pt", tmp_path / "copy.safetensors"])
    assert [one.name for one in report.lost] == NAMES[:2]
    assert "another dtype or shape" in report.lost[0].why
    assert [(t.name, t.from_ if hasattr(t, "from_") else vars(t)["from"])
            for t in report.taken] == [
        (NAMES[2], str(tmp_path / "copy.safetensors"))]


def test_two_cut_copies_make_a_whole(tmp_path):
    """One copy lost its end, the other some of its records."""
    path = write(tmp_path, "a.pt")
    cut(path, path.stat().st_size // 2)
    with zipfile.ZipFile(write(tmp_path, "b.npz")) as archive:
        kept = {name: archive.read(name) for name in archive.namelist()[2:]}
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        for name, held in kept.items():
            archive.writestr(name, held)
    assert haulway.repair(path, tmp_path / "out.npz", tmp_path / "b.npz")
    check(tmp_path / "out.npz", NAMES)


def test_a_cut_nested_object_is_flat_then(tmp_path):
    torch.save({"model": tensors(), "epoch": 7}, tmp_path / "a.pt")
    cut(tmp_path / "a.pt", (tmp_path / "a.pt").stat().st_size * 9 // 10)
    report = haulway.repair(tmp_path / "a.pt", tmp_path / "out.safetensors")
    assert len(report.kept) >= 4
    assert all(name.startswith("model.layers") for name in report.kept)
    assert [one.name for one in report.left_out] == ["epoch"]


def test_metadata_goes_along(tmp_path):
    path = write(tmp_path, "a.safetensors")
    cut(path, path.stat().st_size - 1)
    haulway.repair(path, tmp_path / "out.safetensors")
    assert haulway.open(tmp_path / "out.safetensors").metadata == {
        "by": "somebody"}


def test_refusals_leave_no_file(tmp_path, run):
    path = write(tmp_path, "a.pt")
    copy = write(tmp_path, "b.pt")
    for out in (path, copy):
        before = out.read_bytes()
        with pytest.raises(haulway.InvalidArgumentError, match="onto"):
            haulway.repair(path, out, copy)
        assert out.read_bytes() == before
    (tmp_path / "none.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(haulway.Error):
        haulway.repair(tmp_path / "none.pt", tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()
    assert haulway.repair(tmp_path / "none.pt", tmp_path / "out.pt", copy)
    check(tmp_path / "out.pt", NAMES)


def hostile_gguf():
    """Claims a list of 2^30 bytes that does not exist."""
    key = b"list"
    return (b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
            + struct.pack("<Q", len(key)) + key
            + struct.pack("<IIQ", 9, 11, 1 << 27))


def hostile_torch(folder):
    """Claims storages of 2^62 bytes whose records do not exist."""
    storages = {f"t{i}": torch.empty(4) for i in range(8)}
    torch.save(storages, folder / "h.pt")
    with zipfile.ZipFile(folder / "h.pt") as archive:
        pickled = archive.read("h/data.pkl")
    huge = pickled.replace(
        b"K\x04tq", b"\x8a\x08" + (1 << 60).to_bytes(8, "little") + b"tq")
    assert huge.count(b"\x8a\x08") == 8
    with zipfile.ZipFile(folder / "h.pt", "w") as archive:
        archive.writestr("h/data.pkl", huge)
    held = (folder / "h.pt").read_bytes()
    return held[:held.index(b"PK\x01\x02")]


@pytest.mark.parametrize("kind", ["gguf", "torch"])
def test_what_a_cut_file_claims_takes_no_memory(tmp_path, kind, command):
    held = hostile_gguf() if kind == "gguf" else hostile_torch(tmp_path)
    (tmp_path / "h").write_bytes(held)
    limit = 1 << 29
    done = subprocess.run(
        [command, "repair", "h", "out.safetensors"], cwd=tmp_path, timeout=60,
        capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_AS, (limit, limit)))
    assert done.returncode in (1, 2), done.stderr
    assert "haulway: " in done.stderr and "out of memory" not in done.stderr
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("ending", CUT)
def test_cut_anywhere_it_ends_well(tmp_path, ending):
    """Cut at any byte, repair neither crashes nor saves a tensor that differs
    from the original."""
    whole = write(tmp_path, f"w{ending}").read_bytes()
    sizes = {*range(0, len(whole), len(whole) // 25), *range(0, 400, 23),
             *range(len(whole) - 200, len(whole), 29)}
    for size in sorted(sizes):
        path = tmp_path / f"cut{ending}"
        path.write_bytes(whole[:size])
        try:
            report = haulway.repair(path, tmp_path / "out.safetensors",
                                    durability="none")
        except haulway.Error:
            continue
        check(tmp_path / "out.safetensors", report.kept)


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
def test_a_copy_adds_no_tensor_to_a_whole_index(tmp_path, ending):
    path = write(tmp_path, f"a{ending}")
    more = tmp_path / "more.safetensors"
    safetensors.torch.save_file({**tensors(), "extra": torch.ones(3)}, more)
    done = haulway.repair(path, tmp_path / "whole.pt", [more])
    assert done and done.taken == [] and sorted(done.kept) == NAMES
    if ending == ".pt":
        with open(path, "r+b") as file:  # Makes the checksum of a payload fail.
            file.seek(path.stat().st_size // 2)
            file.write(b"\xAA" * 8)
    else:
        cut(path, path.stat().st_size - 19_200 * 6)
    done = haulway.repair(path, tmp_path / "out.pt", [more])
    assert done and done.taken and "extra" not in done.kept
    assert all(one.name != "extra" for one in done.taken)
    check(tmp_path / "out.pt", NAMES)


def shards(folder, ending):
    """Writes the tensors as three shards and their index; returns the names of
    the files, and those of the tensors in each."""
    folder.mkdir()
    files, where = [], {}
    for i in range(3):
        files.append(f"model-0000{i + 1}-of-00003{ending}")
        some = {name: tensors()[name] for name in NAMES[2 * i:2 * i + 2]}
        where |= dict.fromkeys(some, files[-1])
        if ending == ".bin":
            torch.save(some, folder / files[-1])
        else:
            safetensors.torch.save_file(some, folder / files[-1])
    kind = "pytorch_model.bin" if ending == ".bin" else "model.safetensors"
    (folder / f"{kind}.index.json").write_text(json.dumps({"weight_map": where}))
    return files


@pytest.mark.parametrize("fault", ["cut", "missing", "empty"])
@pytest.mark.parametrize("ending", [".safetensors", ".bin"])
def test_shards_that_are_whole_are_kept(tmp_path, run, ending, fault):
    folder = tmp_path / "model"
    path = folder / shards(folder, ending)[1]
    if fault == "missing":
        path.unlink()
    else:
        cut(path, 0 if fault == "empty" else path.stat().st_size - 19_200)
    report = haulway.repair(folder, tmp_path / "out.safetensors")
    assert not report and report.fault
    whole = [NAMES[0], NAMES[1], NAMES[4], NAMES[5]]
    more = [] if fault != "cut" else [one for one in NAMES if one in report.kept
                                      and one not in whole]
    assert report.kept == sorted(whole + more) and len(more) <= 1
    assert all(path.name in one.why or fault == "cut" for one in report.lost)
    check(tmp_path / "out.safetensors", report.kept)
    # A copy gives what is lost, and nothing else.
    other = {name: one + 1 for name, one in tensors().items()}
    torch.save(other, tmp_path / "base.pt")
    done = run("repair", folder, "all.pt", "--from", "base.pt", "--json")
    said = json.loads(done.stdout)
    assert said["kept"] == report.kept and said["lost"] == []
    assert sorted(said["kept"] + [one["name"] for one in said["taken"]]) == NAMES


def test_shards_of_a_damaged_copy_are_taken(tmp_path):
    files = shards(tmp_path / "copy", ".safetensors")
    (tmp_path / "copy" / files[2]).unlink()
    path = write(tmp_path, "cut.safetensors")
    cut(path, path.stat().st_size - 19_200 * 5)
    report = haulway.repair(path, tmp_path / "out.pt", tmp_path / "copy")
    assert [one.name for one in report.lost] == NAMES[4:]
    assert report.kept == NAMES[:3]
    assert [one.name for one in report.taken] == NAMES[3:4]
    check(tmp_path / "out.pt", NAMES[:4])


def header_of(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + size]), data[8 + size:]


def with_header(path, header, data, padding=b""):
    text = json.dumps(header).encode() + padding
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def number_in_metadata(header):
    header["__metadata__"] = {"step": 5, "by": "me"}


def metadata_of_another_kind(header):
    header["__metadata__"] = [1, 2]


def unknown_dtype(header):
    header[NAMES[2]]["dtype"] = "F33"


def wrong_shape(header):
    header[NAMES[2]]["shape"] = [300, 33]


def negative_offset(header):
    header[NAMES[2]]["data_offsets"][0] = -5


def no_tensor(header):
    header["x"] = None


def a_hole(header):
    del header[NAMES[2]]


@pytest.mark.parametrize("fault, lost", [
    (number_in_metadata, []), (metadata_of_another_kind, []),
    (unknown_dtype, [NAMES[2]]), (wrong_shape, [NAMES[2]]),
    (negative_offset, [NAMES[2]]), (no_tensor, ["x"]), (a_hole, []),
])
def test_a_fault_beside_the_tensors_costs_none(tmp_path, run, fault, lost):
    path = write(tmp_path, "a.safetensors")
    header, data = header_of(path)
    fault(header)
    with_header(path, header, data)
    report = haulway.repair(path, tmp_path / "out.safetensors")
    assert report.fault and [one.name for one in report.lost] == lost
    kept = [name for name in NAMES if name in header and name not in lost]
    assert report.kept == kept
    check(tmp_path / "out.safetensors", kept)
    if fault is number_in_metadata:
        assert [one.name for one in report.left_out] == ["step"]
        with haulway.open(tmp_path / "out.safetensors") as file:
            assert file.metadata["by"] == "me"
    if lost == [NAMES[2]]:
        torch.save(tensors(), tmp_path / "copy.pt")
        run("repair", path, "all.safetensors", "--from", "copy.pt")
        check(tmp_path / "all.safetensors", NAMES)


def test_padding_of_any_kind(tmp_path):
    path = write(tmp_path, "a.safetensors")
    header, data = header_of(path)
    with_header(path, header, data, bytes(20))
    assert haulway.repair(path, tmp_path / "out.safetensors").kept == NAMES
    check(tmp_path / "out.safetensors", NAMES)


def test_two_tensors_in_the_same_bytes_are_none(tmp_path):
    path = write(tmp_path, "a.safetensors")
    header, data = header_of(path)
    header[NAMES[3]]["data_offsets"] = header[NAMES[4]]["data_offsets"]
    with_header(path, header, data)
    report = haulway.repair(path, tmp_path / "out.safetensors")
    assert [one.name for one in report.lost] == NAMES[3:5]
    assert all("claims the same bytes" in one.why for one in report.lost)
