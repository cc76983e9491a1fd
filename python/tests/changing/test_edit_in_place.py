"""edit(in_place=True): headers of several sectors, and the state after a killed
edit."""

import os
import pathlib
import subprocess
import sys

import gguf
import numpy
import pytest
import safetensors.numpy

import haulway

COUNT = 60
NEW = {f"layer.{i:03}": f"block.{i:03}" for i in range(COUNT)}


def state(count=COUNT):
    return {f"layer.{i:03}": numpy.full(5, i, numpy.float32)
            for i in range(count)}


def write(path):
    """Writes a file with the format's own library."""
    if path.suffix == ".safetensors":
        safetensors.numpy.save_file(state(), path, {"by": "somebody" * 100})
        return path
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("words", [f"word {i}" for i in range(100)])
    for name, array in state().items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(path):
    if path.suffix == ".safetensors":
        return safetensors.numpy.load_file(path)
    return {t.name: t.data for t in gguf.GGUFReader(path).tensors}


@pytest.fixture(params=[".safetensors", ".gguf"])
def path(request, tmp_path):
    return write(tmp_path / f"x{request.param}")


def same(found, names):
    assert sorted(found) == sorted(names.values())
    for i, name in enumerate(names.values()):
        assert numpy.array_equal(found[name], numpy.full(5, i)), name


def test_a_header_of_several_sectors_is_overwritten(path):
    before = path.stat()
    told = haulway.edit(path, rename=NEW, in_place=True, dry_run=True)
    assert told["in_place"] and 512 < told["written_bytes"] < before.st_size
    same(read(path), {name: name for name in NEW})
    done = haulway.edit(path, rename=NEW, in_place=True)
    assert done == told
    after = path.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    same(read(path), NEW)
    same(haulway.load(path, "numpy"), NEW)
    assert os.listdir(path.parent) == [path.name]


def test_only_if_asked(path):
    before = path.stat()
    assert not haulway.edit(path, rename=NEW)["in_place"]
    assert path.stat().st_ino != before.st_ino
    same(read(path), NEW)


def test_metadata_may_become_shorter(tmp_path):
    path = write(tmp_path / "x.safetensors")
    size = path.stat().st_size
    done = haulway.edit(path, set={"by": "a", "k": "v" * 600}, in_place=True)
    assert done["in_place"] and path.stat().st_size == size
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"by": "a", "k": "v" * 600}
    same(read(path), {name: name for name in NEW})


@pytest.mark.parametrize("change", [
    {"set": {"k": "v" * 1000}}, {"rename": {"layer.000": "l" * 60}},
    {"drop": "layer.001"}, {"dtype": "f16"},
])
def test_what_has_no_room_is_refused(path, run, change):
    before = path.read_bytes()
    with pytest.raises(haulway.UnsupportedError, match="cannot be made in place"):
        haulway.edit(path, in_place=True, **change)
    done = run("edit", path, "--in-place", "--set", f"k={'v' * 1000}", code=2)
    assert "cannot be made in place" in done.stderr
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_name_that_sorts_elsewhere_moves_no_tensor(tmp_path):
    path = write(tmp_path / "x.safetensors")
    size = path.stat().st_size
    new = {**{name: name for name in NEW}, "layer.000": "mayer.000"}
    done = haulway.edit(path, rename={"layer.000": "mayer.000"}, in_place=True)
    assert done["in_place"] and path.stat().st_size == size
    same(read(path), new)
    same(haulway.load(path, "numpy"), new)
    # What is written anew is sorted, as by other writers.
    haulway.edit(path, set={"k": "v" * 5000})
    same(read(path), new)
    with haulway.open(path) as file:
        assert list(file) == sorted(new.values())


@pytest.mark.parametrize("blanks", range(1, 8))
def test_a_header_of_any_length_keeps_it(tmp_path, blanks):
    path = write(tmp_path / "x.safetensors")
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    text = data[8:8 + length].rstrip() + b" " * blanks
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length:])
    before = path.stat()
    done = haulway.edit(path, rename=NEW, set={"by": "short"}, in_place=True)
    assert done["in_place"]
    after = path.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    same(read(path), NEW)


@pytest.mark.parametrize("ending", ["pt", "npz", "tensors"])
def test_formats_without_such_a_header_refuse(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    haulway.save(state(), path)
    before = path.read_bytes()
    with pytest.raises(haulway.UnsupportedError, match="cannot be made in place"):
        haulway.edit(path, rename={"layer.000": "x"}, in_place=True)
    assert path.read_bytes() == before


def test_another_file_is_not_in_place(path, run):
    with pytest.raises(haulway.InvalidArgumentError, match="no other file"):
        haulway.edit(path, rename=NEW, in_place=True, out=path.parent / "y")
    run("edit", path, "--in-place", "-o", "y", "--unset", "k", code=4)


def test_the_command_edits_in_place(path, run):
    before = path.stat()
    words = [word for old, new in NEW.items()
             for word in ("--rename", f"{old}={new}")]
    assert "in place, " in run("edit", path, "--in-place", *words).stdout
    assert path.stat().st_ino == before.st_ino
    same(read(path), NEW)


KILLED = """
import ctypes, json, sys
import haulway
library = ctypes.CDLL(None)
path, at, many = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rename = {f"layer.{i:05}": f"block.{i:05}" for i in range(many)}
library.kill_at(ctypes.c_long(at))
haulway.edit(path, rename=rename, in_place=True)
library.kill_at(ctypes.c_long(-1))
"""


@pytest.mark.parametrize("mend", ["repair", "edit"])
def test_a_killed_edit_is_undone(tmp_path, mend, run):
    """At every point where it can be killed."""
    tests = pathlib.Path(__file__).resolve().parent.parent
    library = tmp_path / "kill_at.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library,
                    next(tests.rglob("kill_at.c")), "-ldl"], check=True)
    many = 4000  # A header that needs several write calls.
    arrays = {f"layer.{i:05}": numpy.full(2, i, numpy.float32)
              for i in range(many)}
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file(arrays, path)
    old = path.read_bytes()
    new = old.replace(b"layer.", b"block.")
    journal = tmp_path / ".x.safetensors.haulway-header"
    halves = 0
    for at in range(100):
        path.write_bytes(old)
        done = subprocess.run(
            [sys.executable, "-c", KILLED, path, str(at), str(many)],
            env={**os.environ, "LD_PRELOAD": str(library)})
        found = path.read_bytes()
        if done.returncode == 0:
            break
        if found not in (old, new):
            halves += 1
            assert journal.exists()
        if mend == "repair":
            report = haulway.repair(path, tmp_path / "out.npz")
            assert report and len(report.kept) == many
            assert path.read_bytes() == (found if found in (old, new) else old)
        else:
            run("edit", path, "--set", "k=v")
            with haulway.open(path, "numpy") as checkpoint:
                names, metadata = list(checkpoint), checkpoint.metadata
            assert len(names) == many and metadata == {"k": "v"}
            assert len({name[:6] for name in names}) == 1
        assert not journal.exists()
    assert found == new and at > 5 and halves >= 1
    assert not journal.exists()
