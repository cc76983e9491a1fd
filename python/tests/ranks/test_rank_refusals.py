"""What folders of rank files are refused for, and how it is said."""

import pickle
import shutil
import subprocess
import sys

import numpy
import pytest
import torch

import haulway
from needed_metadata import needed
from rank_files import (
    PLACES,
    Call,
    Name,
    Storage,
    dtensor,
    mesh,
    name,
    new,
    plain,
    replicate,
    shard,
    strided,
    write_all,
)
from rank_goldens import copy, folder


@pytest.fixture
def work(tmp_path):
    return copy("tpfsdp_4", tmp_path / "work")


def refused(path, match, error=haulway.MismatchError, **options):
    with pytest.raises(error, match=match):
        haulway.open(path, **options)
    out = path.parent / "refused.safetensors"
    with pytest.raises(error):
        haulway.convert(path, out, **options)
    assert not list(path.parent.glob("refused*"))


def test_a_missing_file_is_named(work):
    (work / name(2, 4)).unlink()
    refused(work, "file of rank 2 of 4 is missing: expected "
                  "'model_world_size_4_rank_2.pt'")
    assert not haulway.verify(work)


def test_without_a_file_the_others_give_what_they_hold_whole(tmp_path, run):
    for missing in (0, 1):
        write_all(tmp_path / "run", 2, lambda rank: {
            **good(rank), "all": dtensor(WHOLE, (6, 2), [replicate()],
                                         mesh(numpy.arange(2), rank)),
            "plain": plain(WHOLE)})
        (tmp_path / "run" / name(missing, 2)).unlink()
        said = f"'{name(missing, 2)}' is missing.*'w'"
        path = tmp_path / "run"
        for key in ("all", "plain"):
            found = haulway.load(path, lenient=True, include=[key])
            assert (found[key].numpy() == WHOLE).all()
            run("cat", path, key, "--lenient")
        for call in (haulway.load, haulway.manifest,
                     lambda *a, **k: haulway.open(*a, **k)["w"],
                     lambda path, **k: haulway.convert(
                         path, tmp_path / "out.safetensors", **k)):
            with pytest.raises(haulway.MismatchError, match=said):
                call(path, lenient=True)
        run("ls", path, "--lenient")
        assert "is missing" in run("cat", path, "w", "--lenient", code=1).stderr
        assert "is missing" in run("verify", path, "--lenient", code=1).stdout
        run("convert", path, "some.safetensors", "--lenient", "--exclude", "w")
        assert not list(tmp_path.glob("out*"))


def test_only_one_file_of_many(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(folder("tpfsdp_4") / name(3, 4), run)
    refused(run, "file of rank 0 of 4 is missing")


def test_a_surplus_rank_is_named(work):
    shutil.copy(work / name(0, 4), work / name(4, 4))
    refused(work, "file is of rank 4: expected 0 to 3; of "
                  "model_world_size_4_rank_4.pt")


def test_exchanged_files_are_named(work):
    (work / name(1, 4)).rename(work / "x")
    (work / name(2, 4)).rename(work / name(1, 4))
    (work / "x").rename(work / name(2, 4))
    refused(work, "named for rank 1 and was written by rank 2.*"
                  "model_world_size_4_rank_1.pt")


def test_files_of_another_world_are_named(work):
    shutil.copy(folder("fsdp1_2") / name(0, 2), work)
    refused(work, "files are of runs of 2 and of 4 processes.*expected those "
                  "of one")


def test_a_file_of_another_run_is_named(work):
    shutil.copy(folder("fsdp2_4") / name(3, 4), work)
    refused(work, "rank 3 saved the tensor with another .*; of "
                  "model_world_size_4_rank_3.pt")


def test_no_such_part(work):
    refused(work, "no state 'ema' of processes: found 'extra_state', 'model', "
                  "'optim'", FileNotFoundError, part="ema")


def test_a_term_of_a_sum_has_no_value():
    with pytest.raises(haulway.Error, match=r"P\(sum\).* no.* value"):
        haulway.open(folder("place_4"), part="partial")


WHOLE = numpy.arange(12, dtype="f4").reshape(6, 2)


def good(rank, **change):
    how = {"local": WHOLE[rank * 3:][:3].copy(), "shape": (6, 2),
           "placements": [shard(0)], "where": mesh(numpy.arange(2), rank)}
    return {"w": dtensor(**{**how, **change})}


@pytest.mark.parametrize(("change", "error", "match"), [
    ({"local": WHOLE[:2].copy()}, haulway.CorruptError,
     r"rank 1 holds a part of shape \[2, 2\]: expected \[3, 2\], by placements "
     r"\[S\(0\)\] of shape \[6, 2\].*'w'"),
    ({"local": WHOLE[3:].astype("f8"), "dtype": "float64",
      "kind": "DoubleStorage"}, haulway.MismatchError,
     "rank 1 saved the tensor with another dtype: expected F32 as rank 0, "
     "found F64.*'w'"),
    ({"dtype": "float64"}, haulway.CorruptError, "local tensor is of F32"),
    ({"shape": (7, 2)}, haulway.MismatchError,
     r"another shape: expected \[6, 2\] as rank 0, found \[7, 2\]"),
    ({"meta_shape": (5, 2)}, haulway.CorruptError, "tensor_meta is of another"),
    ({"placements": [shard(1)]}, haulway.MismatchError,
     r"another placement: expected \[S\(0\)\] as rank 0, found \[S\(1\)\]"),
    ({"placements": [shard(0), shard(1)]}, haulway.MismatchError,
     "another placement"),
    ({"placements": [new(PLACES, "Shard", {"dim": -1})]},
     haulway.CorruptError, "a placement is not what it must be"),
    ({"placements": [new(PLACES, "Partial", {"reduce_op": "avg"})]},
     haulway.MismatchError, r"P\(avg\)"),
    ({"where": mesh([1, 0], 1)}, haulway.MismatchError, "another mesh"),
    ({"where": mesh([0, 2], 1)}, haulway.MismatchError, "another mesh"),
    ({"where": mesh([0, 1], 0)}, haulway.MismatchError,
     "named for rank 1 and was written by rank 0"),
])
def test_a_rank_that_contradicts(change, error, match, tmp_path):
    run = write_all(tmp_path / "run", 2,
                    lambda rank: good(rank, **(change if rank else {})))
    refused(run, match, error)


def test_all_ranks_wrong_alike(tmp_path):
    cases = [
        ({"placements": [strided(0, 10 ** 18)]}, "rank 0 holds|rank 1 holds"),
        ({"placements": [shard(2)]}, "is of a dimension that the tensor of 2"),
        ({"placements": [shard(0), replicate()]}, "2 placements: expected 1"),
    ]
    for i, (change, match) in enumerate(cases):
        run = write_all(tmp_path / f"run{i}", 2,
                        lambda rank, change=change: good(rank, **change))
        refused(run, match, haulway.Error)


def test_names_differ(tmp_path):
    run = write_all(tmp_path / "run", 2, lambda rank: {
        "a": plain(WHOLE), **({"b": plain(WHOLE)} if rank else {})})
    refused(run, "rank 0 lacks tensor 'b', which rank 1 saved; of "
                 "model_world_size_2_rank_0.pt")


EVIL = Call(Name("os", "system"), ("touch ran",))


def evil(place):
    """A state with something that only code could make."""
    where = mesh(numpy.arange(1), 0)
    part = dtensor(WHOLE, (6, 2), [shard(0)], where)
    spec = part.args[3][1]["_spec"]
    match place:
        case "value":
            return {"w": part, "x": EVIL}
        case "placement":
            spec.state["placements"] = (EVIL,)
        case "mesh":
            where.state["_hash"] = EVIL
        case "called class":
            spec.state["placements"] = (Call(Name(PLACES, "Shard"), (0,)),)
        case "called mesh":
            spec.state["mesh"] = Call(
                Name("torch.distributed.device_mesh", "DeviceMesh"), ("cpu",))
        case "getattr":
            where.state["_hash"] = Call(Name("__builtin__", "getattr"), (
                Name("torch.distributed.tensor", "DTensor"), "__init__"))
        case "class":
            where.state["_hash"] = new("some.where", "Class")
        case "special":
            where.state["__class__"] = 1
    return {"w": part}


@pytest.mark.parametrize("place", [
    "value", "placement", "mesh", "called class", "called mesh", "getattr",
    "class", "special"])
def test_evil_is_unsafe_and_not_run(place, tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_all(tmp_path / "run", 1, lambda rank: evil(place))
    file = folder / name(0, 1)
    for call in (haulway.open, haulway.load, haulway.manifest,
                 lambda path: haulway.convert(path, "out.safetensors"),
                 lambda path: haulway.diff(path, path)):
        with pytest.raises(haulway.UnsafeError):
            call(folder)
    assert not haulway.verify(folder)
    for verb in ("ls", "info", "verify", "manifest"):
        assert run(verb, folder, code=1)
    assert not haulway.scan(file)
    assert run("scan", folder, code=1 if place != "special" else None)
    assert not (tmp_path / "ran").exists()
    assert not list(tmp_path.glob("out*"))


def test_the_meshes_of_a_file_take_bounded_memory(tmp_path):
    # One element, shown as millions of processes, in each of many meshes.
    def state(rank):
        del rank
        state = {}
        one = Storage(numpy.zeros(1, "i4"), "IntStorage")
        for i in range(3):
            where = mesh(numpy.arange(1), 0)
            where.state["_rank_map"] = plain(
                None, shape=(1 << 21,), strides=(0,), storage=one)
            state[f"w{i}"] = dtensor(numpy.ones(1, "f4"), (1,), [shard(0)],
                                     where)
        return state

    refused(write_all(tmp_path / "run", 1, state),
            "the meshes of the file have more than 4194304 processes",
            haulway.LimitError)


def test_scan_agrees_with_torch(tmp_path):
    layouts = pytest.importorskip("torch.distributed._mesh_layout")
    if not hasattr(layouts, "_FlatLayout"):
        pytest.skip("this torch lacks classes that the files of 2.13 name")
    read = ("import sys, torch, torch.distributed.tensor\n"
            "torch.load(sys.argv[1], weights_only=True)")

    def takes(path):
        return subprocess.run([sys.executable, "-W", "ignore", "-c", read, path],
                              capture_output=True).returncode == 0

    for kind in ("fsdp2_4", "tpfsdp_4", "place_4", "fsdp1_2"):
        for path in sorted(folder(kind).glob("[mop]*_rank_0.pt")):
            assert haulway.scan(path).safe == takes(path), path


@pytest.mark.parametrize("kind", ["fsdp2_4", "tpfsdp_4"])
def test_a_numpy_array_of_extra_state_is_data(kind):
    """scan proves what torch takes only after its names are allowed."""
    path = folder(kind) / name(0, 4, "extra_state")
    assert haulway.scan(path).safe
    with pytest.raises(pickle.UnpicklingError, match="_reconstruct"):
        torch.load(path, weights_only=True)
    core = getattr(numpy, "_core", None) or numpy.core
    names = [core.multiarray._reconstruct, numpy.ndarray, numpy.dtype,
             type(numpy.dtype("uint32"))]
    with torch.serialization.safe_globals(names):
        allowed = torch.load(path, weights_only=True)
    ours = haulway.load(path)
    assert (ours["rng"]["numpy"][1] == allowed["rng"]["numpy"][1]).all()
    assert ours["rng"].keys() == allowed["rng"].keys()


@pytest.mark.parametrize("row", [row for row in haulway.formats() if row.suffixes],
                         ids=lambda row: row.name)
@pytest.mark.parametrize(("option", "value", "flag"), [
    ("part", "optim", ["--part", "optim"]),
    ("weights", "model", ["--weights", "model"]),
    ("replicas", "first", ["--replicas", "first"]),
    ("split_layers", True, ["--split-layers"]),
])
def test_other_formats_refuse_the_options(tmp_path, run, row, option, value, flag):
    path = tmp_path / f"m{row.suffixes[0]}"
    haulway.save({"a": torch.ones(2)}, path, **needed(row.suffixes[0]))
    words = f"files have no option {option}: expected "
    for call in (haulway.open, haulway.load, haulway.verify, haulway.manifest):
        with pytest.raises(haulway.InvalidArgumentError, match=words):
            call(path, **{option: value})
    for verb in ("ls", "info", "verify"):
        assert words in run(verb, path.name, *flag, code=2).stderr
