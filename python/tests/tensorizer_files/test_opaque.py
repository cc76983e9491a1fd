"""Checkpoints with objects that only code could make, and with data beside
tensors."""

import argparse
import builtins
import collections
import dataclasses
import datetime
import decimal
import fractions
import io
import json
import pathlib
import pickle
import subprocess
import sys
import types

import numpy
import pytest
import torch

import haulway
import haulway.torch
from scan_cases import torch_zip


class Config:
    def __init__(self, rate):
        self.rate = rate
        self.average = torch.arange(3.0)


class Record(list):
    pass


class Counted(dict):
    pass


def everything():
    return {
        "w": torch.ones(2, 2),
        "config": Config(0.5),
        "module": torch.nn.Linear(2, 1),
        "record": Record([torch.zeros(1), 2]),
        "counted": Counted(a=torch.full((1,), 7)),
        "args": argparse.Namespace(rate=0.5),
    }


CONTAINERS = [
    {}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4},
]


@pytest.fixture(params=CONTAINERS, ids=["zip", "stacked", "protocol4"])
def path(request, tmp_path):
    torch.save(everything(), tmp_path / "x.pt", **request.param)
    return tmp_path / "x.pt"


NAMES = [
    "w", "config.average", "module._parameters.weight",
    "module._parameters.bias", "record.0", "counted.a",
]


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_tensors_are_listed_and_read(path, framework):
    with haulway.open(path, framework) as checkpoint:
        assert list(checkpoint) == NAMES
        assert checkpoint["w"].tolist() == [[1, 1], [1, 1]]
        assert checkpoint["config.average"].tolist() == [0, 1, 2]
    assert haulway.load(path, framework, include="record.*")["record.0"] == 0
    assert sorted(dict(haulway.iterate(path, framework))) == sorted(NAMES)
    assert haulway.verify(path).ok
    report = haulway.scan(path)
    assert not report.safe
    assert any("Config" in found.message for found in report.findings)


def test_the_tree_says_what_was_not_loaded(path):
    tree = haulway.open(path).tree()
    config = tree["config"]
    assert isinstance(config, haulway.OpaqueObject)
    assert repr(config) == f"<{__name__}.Config, not loaded>"
    assert config.state["rate"] == 0.5
    assert config.state["average"].shape == (3,)
    assert (config.module, config.name) == (__name__, "Config")
    assert config.byte > 0
    assert repr(tree["module"]) == "<torch.nn.modules.linear.Linear, not loaded>"
    assert tree["record"].appended[1] == 2
    assert tree["counted"].items[0][0] == "a"
    assert tree["args"] == argparse.Namespace(rate=0.5)


LOADS = {
    "load": haulway.load,
    "numpy": lambda path, **options: haulway.load(path, "numpy", **options),
    "dtype": lambda path, **options: haulway.load(
        path, dtype=torch.float16, **options),
    "shm": lambda path, **options: haulway.load(
        path, destination="shm", **options),
    "torch": haulway.torch.load,
    "open-minded": lambda path, **options: haulway.torch.load(
        path, weights_only=False, **options),
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_the_object_is_refused_with_name_place_and_remedy(path, load):
    with pytest.raises(
        haulway.UnsafeError,
        match=rf"'{__name__}\.Config' is not allowed; at byte \d+; in .*; of "
        r"(.*x\.pt|shared memory); .*safe_globals.*haulway\.open",
    ) as caught:
        load(path)
    assert 0 < caught.value.byte < haulway.open(path).tree()["config"].byte


def test_what_is_allowed_is_made(path):
    allowed = [Config, Record, Counted, torch.nn.Linear]
    loaded = haulway.load(path, safe_globals=allowed)
    assert loaded["config"].average.tolist() == [0, 1, 2]
    assert type(loaded["record"]) is Record and loaded["record"][1] == 2
    assert loaded["counted"]["a"].item() == 7
    assert loaded["module"](torch.ones(2)).shape == (1,)


def data_objects():
    """Returns the plain data that training checkpoints hold beside tensors."""
    zone = datetime.timezone(datetime.timedelta(hours=2), "here")
    structured = numpy.array(
        [(1, 2.5, b"ab"), (2, 3.5, b"c")],
        dtype=[("a", "<i4"), ("b", ">f8"), ("c", "S3")],
    )
    return {
        "namespace": argparse.Namespace(a=1, b=[None]),
        "simple": types.SimpleNamespace(a=1),
        "path": pathlib.Path("/a/b"),
        "pure": pathlib.PurePosixPath("c"),
        "windows": pathlib.PureWindowsPath("c:/d"),
        "range": range(1, 9, 2),
        "slice": slice(None, 3),
        "date": datetime.date(2024, 2, 29),
        "time": datetime.time(1, 2, 3, 4, zone),
        "datetime": datetime.datetime(2024, 2, 29, 1, 2, tzinfo=zone),
        "utc": datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc),
        "timedelta": datetime.timedelta(1, 2, 3),
        "decimal": decimal.Decimal("1.50"),
        "fraction": fractions.Fraction(1, 3),
        "deque": collections.deque([1, 2], 3),
        "default": collections.defaultdict(list, {"a": [1]}),
        "plain": collections.defaultdict(None, {1: 2}),
        "set": {1, 2},
        "frozen": frozenset("ab"),
        "complex": 1 + 2j,
        "float64": numpy.float64(1.5),
        "int": numpy.int64(-3),
        "bool": numpy.bool_(True),
        "text": numpy.str_("ab"),
        "when": numpy.datetime64("2024-02-29T01:02", "ns"),
        "void": structured[0],
        "array": numpy.arange(6, dtype=numpy.int16).reshape(2, 3),
        "fortran": numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
        "big": numpy.arange(3, dtype=">f4"),
        "empty": numpy.empty((0, 3), numpy.float32),
        "scalar": numpy.array(7),
        "objects": numpy.array([None, "a", [1]], dtype=object),
        "structured": structured,
        "aligned": numpy.zeros(2, numpy.dtype("i1,f8", align=True)),
        "within": numpy.zeros(2, numpy.dtype([("a", "f4", (2, 3))])),
        "dtype": numpy.dtype("float16"),
        "span": numpy.dtype("m8[25us]"),
        "state": numpy.random.RandomState(0).get_state(),
    }


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, (numpy.ndarray, numpy.generic)):
        order = getattr(a, "flags", None)
        return (a.dtype, a.dtype.byteorder, a.shape) == (
            b.dtype, b.dtype.byteorder, b.shape) and (
            a.tobytes() == b.tobytes() if not a.dtype.hasobject
            else a.tolist() == b.tolist()
        ) and order.f_contiguous == b.flags.f_contiguous
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, collections.defaultdict):
        return a == b and a.default_factory == b.default_factory
    return a == b


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", data_objects())
def test_data_loads_as_torch_loads_it(name, protocol):
    made = data_objects()[name]
    out = io.BytesIO()
    torch.save([made, made], out, pickle_protocol=protocol)
    data = out.getvalue()
    made = torch.load(io.BytesIO(data), weights_only=False)[0]
    assert haulway.scan(data).safe
    for loaded in (
        haulway.torch.load(io.BytesIO(data)),
        haulway.load(data, "numpy"),
        haulway.open(data).tree(),
    ):
        assert same(made, loaded[0]), loaded[0]
        assert loaded[0] is loaded[1] or type(made) in (slice, complex)
    if type(made) is numpy.ndarray:
        assert haulway.load(data)[0].flags.writeable


def pickled(content, name="archive/data.pkl"):
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, content)
        archive.writestr("archive/version", "3\n")
    return out.getvalue()


class Reduced:
    """Pickled as a call."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


NUMPY = numpy.float64(1).__reduce__()[0]
RECONSTRUCT = numpy.arange(3).__reduce__()[0]
EIGHT = numpy.dtype("f8")
NOT_DATA = {
    "a scalar of too few bytes": Reduced(NUMPY, (EIGHT, b"1234")),
    "a scalar of objects": Reduced(NUMPY, (numpy.dtype("O"), b"12345678")),
    "a scalar of nothing": Reduced(NUMPY, (EIGHT,)),
    "a dtype by a name": Reduced(numpy.dtype, ("float64", False, True)),
    "a dtype by a list": Reduced(numpy.dtype, ("i4,i4", False, True)),
    "an array of too few bytes": Reduced(
        RECONSTRUCT, (numpy.ndarray, (0,), b"b"),
        (1, (1 << 40,), EIGHT, False, b"12345678")),
    "an array of a negative size": Reduced(
        RECONSTRUCT, (numpy.ndarray, (0,), b"b"),
        (1, (-1,), EIGHT, False, b"")),
    "a large array of no objects": Reduced(
        RECONSTRUCT, (numpy.ndarray, (0,), b"b"),
        (1, (1 << 40,), numpy.dtype("O"), False, [])),
    "an array of a list": Reduced(
        RECONSTRUCT, (list, (0,), b"b"), (1, (0,), EIGHT, False, b"")),
    "an array made large": Reduced(
        RECONSTRUCT, (numpy.ndarray, (1 << 40,), b"b")),
    "a path of numbers": Reduced(pathlib.PosixPath, (1,)),
    "a date of text": Reduced(datetime.date, ("x",)),
    "a month of 13": Reduced(datetime.date, (2024, 13, 1)),
    "a decimal of a list": Reduced(decimal.Decimal, ([],)),
    "a range of text": Reduced(range, ("1",)),
    "a fraction of nothing": Reduced(fractions.Fraction, (1, 0)),
    "a factory that is a function": Reduced(
        collections.defaultdict, (datetime.date,)),
    "a deque of a negative length": Reduced(collections.deque, ((), -1)),
    "a namespace of a list": Reduced(types.SimpleNamespace, (), [1]),
    "attributes that are numbers": Reduced(
        types.SimpleNamespace, (), {1: 2}),
    "a state of a path": Reduced(pathlib.PosixPath, ("a",), {"b": 1}),
}


@pytest.mark.parametrize("value", NOT_DATA.values(), ids=NOT_DATA)
def test_what_no_class_takes_is_corrupt(value):
    data = pickled(pickle.dumps([value], 2))
    for framework in ("torch", "numpy"):
        with pytest.raises(haulway.CorruptError):
            haulway.load(data, framework)


@pytest.mark.parametrize("name", ["getattr", "eval", "exec", "__import__"])
def test_nothing_is_called_however_it_is_asked(name):
    """getattr(x, "y")(1)(2) {}: opaque, described by its first name."""
    called = Reduced(getattr(builtins, name), ("1", "real"))
    once = pickle.dumps(called, 2)[2:-1]
    content = b"\x80\x02}X\x01\0\0\0w" + once + b"(K\x01tR(K\x02tRs."
    tree = haulway.open(pickled(content)).tree()
    assert repr(tree["w"]) == f"<builtins.{name}, not loaded>"
    with pytest.raises(haulway.UnsafeError, match=f"builtins.{name}"):
        haulway.load(pickled(content))


VERBS = {
    "ls": (), "info": (), "cat": ("w",), "verify": (), "load": (), "plan": (),
    "repack": ("OUT",), "get": ("OUT", "--verify"),
}


def run(*args):
    return subprocess.run(
        [pathlib.Path(sys.executable).with_name("haulway"), *map(str, args)],
        capture_output=True, text=True,
    )


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_such_a_file_and_allowed_names(verb, tmp_path):
    path = tmp_path / "x.pt"
    torch.save(everything(), path)
    rest = [
        tmp_path / "out.pt" if word == "OUT" else word for word in VERBS[verb]
    ]
    for extra in ([], ["--allow", f"{__name__}.Config", "--allow", "a.b"]):
        done = run(verb, path, *rest, *extra)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("load", [haulway.load, haulway.torch.load])
def test_arrays_of_other_classes_say_what_they_need(load, tmp_path):
    path = tmp_path / "x.pt"
    masked = numpy.ma.masked_array([1.0, 2.0], [0, 1])
    torch.save({"w": torch.ones(2), "m": masked}, path)
    with pytest.raises(haulway.UnsafeError,
                       match=r"numpy\.ma\.core\._mareconstruct.*safe_globals"):
        load(path)
    make, kind = numpy.ma.core._mareconstruct, numpy.ma.MaskedArray
    names = ("numpy.ma.MaskedArray", "numpy.ma.core.MaskedArray")
    with pytest.raises(haulway.UnsafeError,
                       match=r"MaskedArray' is allowed by its name only, .* "
                             r"give safe_globals the class or function itself"):
        load(path, safe_globals=["numpy.ma.core._mareconstruct", *names])
    loaded = load(path, safe_globals=[make, *((kind, name) for name in names)])
    assert str(loaded["m"]) == str(masked)
    rows = numpy.zeros(2, [("a", "f4")]).view(numpy.recarray)
    torch.save({"w": torch.ones(2), "r": rows}, path)
    with pytest.raises(haulway.UnsupportedError,
                       match="arrays of numpy.rec.recarray are not made, .*"
                             "haulway.open"):
        load(path, safe_globals=[(numpy.recarray, "numpy.rec.recarray"),
                                 numpy.record])
    assert list(haulway.load(path, include=["w"])) == ["w"]


def test_scan_takes_allowed_names(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"c": Config(1), "r": Record()}, path)
    allow = ["--allow", f"{__name__}.Config"]
    assert run("scan", path, *allow).returncode == 1
    allow += ["--allow", f"{__name__}.Record"]
    done = run("scan", path, *allow, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["safe"]
    assert run("scan", path, "--allow", "Config").returncode == 4


@pytest.mark.filterwarnings("ignore")
def test_jagged_tensors_load_where_torch_takes_them(tmp_path):
    parts = [torch.ones(2), torch.ones(3)]
    torch.save({"x": torch.nested.nested_tensor(parts, layout=torch.jagged)},
               tmp_path / "x.pt")
    assert haulway.verify(tmp_path / "x.pt")
    assert haulway.scan(tmp_path / "x.pt")
    try:
        torch.load(tmp_path / "x.pt")
    except pickle.UnpicklingError:  # From 2.15 on.
        with pytest.raises(haulway.UnsafeError, match="nested"):
            haulway.torch.load(tmp_path / "x.pt")
        return
    made = haulway.torch.load(tmp_path / "x.pt")["x"]
    assert [torch.equal(a, b) for a, b in zip(made.unbind(), parts)] == [True] * 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    size: int
    w: torch.Tensor


def test_attributes_are_set_as_pickle_sets_them(tmp_path):
    """Sets attributes past a __setattr__ that refuses, such as a frozen
    class's."""
    path = tmp_path / "x.pt"
    torch.save(Frozen(3, torch.ones(2)), path)
    made = haulway.torch.load(path, safe_globals=[Frozen])
    assert (made.size, made.w.tolist()) == (3, [1, 1])
    path.write_bytes(torch_zip(
        b"\x80\x02c" + __name__.encode() + b"\nFrozen\n)\x81K\x01b."))
    with pytest.raises(haulway.CorruptError, match="expected a dict of attr"):
        haulway.torch.load(path, safe_globals=[Frozen])


def test_what_training_keeps_beside_tensors_is_data(tmp_path):
    """States of optimizers, schedules and generators, as trainers save them."""
    import random

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1),
                 torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]
    state = {
        "optimizer": optimizer.state_dict(),
        "schedules": [schedule.state_dict() for schedule in schedules],
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
        "generator": numpy.random.default_rng(1).bit_generator.state,
        "cpu": torch.random.get_rng_state(),
    }
    path = tmp_path / "x.pt"
    torch.save(state, path)
    assert haulway.scan(path)
    loaded = haulway.torch.load(path)
    optimizer.load_state_dict(loaded["optimizer"])
    for schedule, kept in zip(schedules, loaded["schedules"]):
        schedule.load_state_dict(kept)
    random.setstate(loaded["python"])
    numpy.random.set_state(loaded["numpy"])
    numpy.random.default_rng().bit_generator.state = loaded["generator"]
    torch.random.set_rng_state(loaded["cpu"])


def test_generators_of_numpy_are_no_data(tmp_path):
    """NumPy trusts the position in their state, and reads memory there."""
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(1), "g": numpy.random.RandomState(1)}, path)
    assert haulway.scan(path).verdict == "UNSAFE"
    assert haulway.load(path, include="w", framework="torch")["w"] == 1
    with pytest.raises(haulway.UnsafeError, match="__randomstate_ctor"):
        haulway.torch.load(path, weights_only=False)
