"""The pickle of an object: the bytes that torch.save writes."""

import collections
import gc
import io
import os
import random
import sys
import threading
import weakref
import zipfile

import pytest
import torch
from torch import nn

import haulway
from cases import LAYOUTS, OBJECTS, V2, V3, filled
from chance import cases
from haulway import _haulway
from scan_cases import torch_zip
from torch_versions import is_as_torch_saves


class Other:
    pass


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a, self.b = 1, [2]


class ManyItems(list):
    pass


class ManyKeys(dict):
    pass


class SetsItself:
    def __init__(self):
        self.value = [1]

    def __reduce_ex__(self, protocol):
        return (SetsItself, (), {"value": 2}, None, None, set_later)


def set_later(made, state):
    vars(made).update(state)


def saved_by_torch(obj):
    """Returns the pickle and the records of torch.save, or its error."""
    buffer = io.BytesIO()
    try:
        torch.save(obj, buffer)
    except Exception as error:
        return error
    archive = zipfile.ZipFile(buffer)
    names = [n for n in archive.namelist() if n.startswith("archive/data/")]
    return (
        archive.read("archive/data.pkl"),
        {n.removeprefix("archive/data/"): archive.read(n) for n in names},
    )


def bytes_of(owner):
    if owner.device.type != "cpu":
        owner = owner.cpu()
    flat = torch.empty(0, dtype=torch.uint8).set_(owner)
    return flat.numpy().tobytes()


def check(obj, also_data=()):
    theirs = saved_by_torch(obj)
    if isinstance(theirs, Exception):
        with pytest.raises(haulway.Error):
            _haulway.pickle_object(obj, also_data)
        return None
    ours = _haulway.pickle_object(obj, also_data)
    assert ours.pickle == theirs[0]
    rows = {key: owner for key, owner, *_ in ours.storages}
    assert list(rows) == [str(i) for i in range(len(rows))]
    assert {k: bytes_of(owner) for k, owner in rows.items()} == theirs[1]
    for _, owner, address, nbytes, location in ours.storages:
        assert nbytes == owner.nbytes()
        if location == "cpu":
            assert address == owner.data_ptr()
    return ours


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", V2 + V3, ids=lambda d: str(d)[6:])
def test_tensors(dtype, layout):
    check(LAYOUTS[layout](filled(24, dtype)))


@pytest.mark.parametrize("name", OBJECTS)
def test_objects(name):
    check(OBJECTS[name]())


def loop_list():
    loop = [1]
    loop.append(loop)
    return loop


def loop_dict():
    loop = {"a": 1}
    loop["self"] = loop
    return loop


def loop_tuple(extra):
    inner = []
    loop = (inner, *extra)
    inner.append(loop)
    return loop


def loop_ordered():
    loop = collections.OrderedDict(a=1)
    loop["self"] = loop
    loop.again = loop
    return loop


def nested(depth):
    made = "inside"
    for _ in range(depth):
        made = [made, {"deeper": (made,)}]
    return made


def with_metadata():
    made = collections.OrderedDict(a=torch.ones(1), b=torch.ones(1))
    made._metadata = collections.OrderedDict([("", {"version": 1})])
    return made


def shared_strings():
    text = "".join(["sha", "red"])
    return [text, text, "sha" + chr(114) + "ed", {text: text, "storage": "cpu"},
            torch.ones(1), "storage", "cpu", "FloatStorage", "latin1", b"x",
            b"xy", "x", "0", "1", str(1)]


PLAIN = {
    "list": lambda: [1, 2.5, "three", None, True, False, b"four"],
    "loop-list": loop_list,
    "loop-dict": loop_dict,
    "loop-tuple-1": lambda: loop_tuple(()),
    "loop-tuple-3": lambda: loop_tuple((1, 2)),
    "loop-tuple-4": lambda: loop_tuple((1, 2, 3)),
    "loop-ordered": loop_ordered,
    "nested": lambda: nested(20),
    "shared": lambda: [shared := [1, 2], shared, (shared, shared), {1: shared}],
    "shared-tuple": lambda: [shared := (1, [2]), shared, {"k": shared}],
    "shared-tensor": lambda: [t := torch.ones(2), t, {"t": t}],
    "strings": shared_strings,
    "surrogates": lambda: ["\ud800", "a\udfffb", "\ud83d\ude00"],
    "long-string": lambda: "x" * 100_000 + "\u00e9",
    "ints": lambda: [
        sign * (1 << bits) + more
        for bits in (0, 7, 8, 15, 16, 31, 32, 62, 63, 64, 127, 2039, 2040,
                     2047, 2048, 5000)
        for sign in (1, -1) for more in (-1, 0, 1)
    ],
    "floats": lambda: [0.0, -0.0, float("nan"), float("inf"), 5e-324, 1e308],
    "bytes": lambda: [b"", b"a", b"\xff", b"ab" * 999, bytes(range(256))],
    "bytearrays": lambda: [bytearray(), bytearray(b"a"), bytearray(b"ab\xff")],
    "shared-bytes": lambda: [b := b"some bytes", b, {"b": b}],
    "complex": lambda: [1j, 2 - 3j, complex("nan")],
    "sets": lambda: [set(), {1}, {1, 2, 3}, {"a", ("b", 1)}],
    "frozensets": lambda: [frozenset(), frozenset([1, 2]),
                           {frozenset(["k"]): frozenset(["v"])}],
    "big-set": lambda: set(range(2500)),
    "counter": lambda: collections.Counter("abracadabra"),
    "ordered": lambda: collections.OrderedDict([(2, 1), ("b", [])]),
    "metadata": with_metadata,
    "size": lambda: [torch.Size([]), torch.Size([1]), torch.Size([2, 3, 4, 5])],
    "dtypes": lambda: [torch.float32, torch.bool, torch.float32, torch.bits8,
                       torch.uint3, torch.int7, torch.qint8],
    "devices": lambda: [torch.device("cpu"), torch.device("cuda", 1),
                        torch.device("meta")],
    "layouts": lambda: [torch.strided, torch.sparse_coo],
    "qschemes": lambda: [torch.per_tensor_affine, torch.per_channel_symmetric],
    "many-memo": lambda: [[str(i), (i, [i])] for i in range(400)],
    "untyped-storage": lambda: torch.arange(5).untyped_storage(),
    "typed-storage": lambda: torch.storage.TypedStorage(
        wrap_storage=torch.arange(5).untyped_storage(), dtype=torch.int64,
        _internal=True,
    ),
    "storage-twice": lambda: [s := torch.arange(5).untyped_storage(), s],
    "tensor-of-nothing": lambda: [torch.empty(0), torch.empty(0, 3),
                                  torch.empty(2, 0)],
    "meta-parameter": lambda: nn.Parameter(torch.empty(3, device="meta")),
    "parameters-tied": lambda: [p := nn.Parameter(torch.ones(3)), p, p.data,
                                p.detach()[1:]],
    "parameter-of-view": lambda: nn.Parameter(torch.arange(6.0)[2:4]),
    "parameter-complex": lambda: nn.Parameter(torch.ones(2) * 1j),
    "parameter-conjugate": lambda: nn.Parameter((torch.ones(2) * 1j).conj()),
    "parameter-float8": lambda: nn.Parameter(
        torch.ones(2).to(torch.float8_e4m3fn), requires_grad=False
    ),
    "parameter-list": lambda: nn.ParameterList(
        [torch.ones(2), torch.zeros(1)]
    ).state_dict(),
    "embedding": lambda: nn.Embedding(7, 3).state_dict(),
    "large-storage": lambda: torch.ones(70_000, 3)[5:6, 1],
    "seven-dimensions": lambda: torch.ones(1, 2, 1, 2, 1, 2, 1),
    "big-sizes": lambda: torch.ones(1).expand(70_000, 300, 2**33),
    "many-storages": lambda: {i: torch.tensor([i]) for i in range(300)},
    "adamw": OBJECTS["adamw"],
    **{f"list-{n}": (lambda n=n: list(range(n)))
       for n in (0, 1, 2, 999, 1000, 1001, 2000, 2001)},
    **{f"dict-{n}": (lambda n=n: dict.fromkeys(range(n)))
       for n in (0, 1, 2, 999, 1000, 1001, 2000, 2001)},
    **{f"ordered-{n}": (lambda n=n: collections.OrderedDict.fromkeys(range(n)))
       for n in (0, 1, 2, 999, 1000, 1001, 2000, 2001)},
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain(name):
    check(PLAIN[name]())


def test_hooks_warn_as_torch_does():
    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(lambda grad: grad)
    with pytest.warns(UserWarning, match="backward hook"):
        check(tensor)


ALLOWED = ("collections.defaultdict", f"{__name__}.Other",
           f"{__name__}.Slotted", f"{__name__}.ManyItems",
           f"{__name__}.ManyKeys", f"{__name__}.SetsItself",
           f"{__name__}.set_later", "pathlib.PurePosixPath",
           "datetime.timedelta", "builtins.range", "builtins.slice",
           "decimal.Decimal", "builtins.KeyError", "_functools.reduce")


def made(cls, **attributes):
    result = cls()
    vars(result).update(attributes)
    return result


def knows_itself():
    other = Other()
    other.me = other
    other.set = {other}
    return other.set


def allowed_objects():
    import datetime
    import decimal
    import functools
    import pathlib

    yield collections.defaultdict(list, a=[1], b=[])
    yield collections.defaultdict(None)
    yield Other()
    yield made(Other, x=1, y=[torch.ones(1)])
    yield [other := made(Other, z=2), other]
    yield Slotted()
    yield ManyItems(range(2001))
    yield ManyItems([1])
    yield ManyKeys.fromkeys(range(1001))
    yield made(ManyKeys, a=1)
    yield SetsItself()
    yield knows_itself()
    yield pathlib.PurePosixPath("a/b")
    yield datetime.timedelta(1, 2, 3)
    yield [range(1, 5, 2), slice(1, None), decimal.Decimal("1.50")]
    yield [KeyError("k"), range, functools.reduce, list, Other]


@pytest.mark.parametrize(
    "obj", allowed_objects(), ids=lambda o: type(o).__name__
)
def test_what_the_caller_allows(obj):
    check(obj, (*ALLOWED, "builtins.list"))


def plain_data():
    import argparse
    import datetime
    import decimal
    import fractions
    import pathlib
    import types

    import numpy

    yield collections.defaultdict(list, {"a": [torch.ones(2)]})
    yield numpy.random.RandomState(1).get_state()
    yield {"loss": numpy.float64(3), "n": numpy.int32(4), "a": numpy.arange(3)}
    yield [datetime.datetime(2020, 1, 2, 3), datetime.timedelta(1)]
    yield pathlib.PurePosixPath("a/b")
    yield argparse.Namespace(lr=0.1, betas=(0.9, 0.95))
    yield types.SimpleNamespace(a=1)
    yield [decimal.Decimal("1.5"), fractions.Fraction(1, 3)]
    yield [range(3), slice(1, 2), collections.deque([1, 2])]
    yield numpy.dtype("f4")
    read_only = numpy.arange(5.0)
    read_only.flags.writeable = False
    square = numpy.arange(12).reshape(3, 4)
    yield (read_only, read_only, square, square.T, square[::2, ::3],
           numpy.zeros((0, 3)), numpy.array(2.5))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5, -1])
@pytest.mark.parametrize("obj", plain_data(), ids=lambda o: type(o).__name__)
def test_what_loads_as_data_is_saved_as_torch_saves_it(obj, protocol):
    ours, theirs = io.BytesIO(), io.BytesIO()
    haulway.torch.save(obj, ours, pickle_protocol=protocol)
    torch.save(obj, theirs, pickle_protocol=protocol)
    assert is_as_torch_saves(ours.getvalue(), theirs.getvalue())
    ours.seek(0)
    haulway.torch.load(ours, weights_only=False)


REFUSED = [
    (lambda: {"optimizer": {"hook": Other()}}, "object.optimizer.hook",
     f"object of class {__name__}.Other"),
    (lambda: [1, (2, Other)], "object[1][1]", f"class {__name__}.Other"),
    (lambda: {"a key": [print]}, "object['a key'][0]", "builtins.print"),
    (lambda: {(1, 2): len}, "object[(1, 2)]", "builtins.len"),
    (lambda: collections.OrderedDict(f=check), "object.f",
     f"function {__name__}.check"),
    (lambda: made(collections.OrderedDict, extra=Other()), "object.extra",
     "Other"),
    (lambda: collections.defaultdict(lambda: 1), "object", "<lambda>"),
    (lambda: [lambda: 1], "object[0]", "<lambda>"),
    (lambda: [threading.Lock()], "object[0]", "_thread.lock"),
    (lambda: {"m": nn.Linear(1, 1)}, "object.m",
     "torch.nn.modules.linear.Linear, whose state_dict() can be saved, is not "),
    (lambda: (type(None),), "object[0]", "NoneType"),
    (lambda: (i for i in ()), "object", "generator"),
    (lambda: [sys.exit], "object[0]", "sys.exit"),
    (lambda: [sys], "object[0]", "module"),
]


@pytest.mark.parametrize("make, path, what", REFUSED)
def test_refuses_what_is_not_data(make, path, what):
    with pytest.raises(haulway.UnsafeError) as caught:
        _haulway.pickle_object(make())
    message = str(caught.value)
    assert message.startswith(path + ": "), message
    assert what in message
    assert "is not data: expected tensors" in message
    assert caught.value.code == "kUnsafe"


def test_never_allows_the_modules_that_torch_blocks():
    allowed = ["sys.exit", "os.system", "posix.system"]
    for function in (sys.exit, os.system):
        with pytest.raises(haulway.UnsafeError):
            _haulway.pickle_object([function], allowed)


class Impostor:
    pass


Impostor.__module__ = "collections"
Impostor.__qualname__ = "OrderedDict"


def test_refuses_a_class_under_a_name_that_is_not_its_own():
    with pytest.raises(haulway.UnsafeError, match="not what that name leads"):
        _haulway.pickle_object(Impostor)


def test_refuses_two_dtypes_of_one_storage_as_torch_does():
    tensor = torch.ones(4)
    both = [tensor, tensor.view(torch.int32)]
    with pytest.raises(RuntimeError, match="different types") as caught:
        _haulway.pickle_object(both)
    assert isinstance(caught.value, haulway.Error)
    assert isinstance(saved_by_torch(both), RuntimeError)


@pytest.mark.parametrize("make", [
    lambda inner: [inner], lambda inner: (inner,), lambda inner: {"k": inner},
    lambda inner: collections.OrderedDict(k=inner), lambda inner: {0: {1: inner}},
])
@pytest.mark.parametrize("limit", [sys.getrecursionlimit(), 1_000_000])
def test_deep_nesting_is_an_error_and_no_crash(make, limit):
    before = sys.getrecursionlimit()
    deep = []
    for _ in range(20_000):
        deep = make(deep)
    try:
        sys.setrecursionlimit(limit)
        with pytest.raises(haulway.LimitError, match="max_depth = 1000"):
            _haulway.pickle_object(deep)
    finally:
        sys.setrecursionlimit(before)
    while deep:
        # Take it apart, so that it is not freed by one deep chain of
        # destructors.
        (deep,) = deep.values() if isinstance(deep, dict) else deep


def test_depth_may_be_as_deep_as_the_reader_takes():
    deep = []
    for _ in range(999):
        deep = [deep]
    assert len(_haulway.pickle_object(deep).pickle) > 3000
    with pytest.raises(haulway.LimitError):
        _haulway.pickle_object([deep])
    with pytest.raises(haulway.LimitError):
        _haulway.pickle_object([[[]]], max_depth=2)


def test_errors_of_reductions_pass_through():
    class Fails:
        def __reduce_ex__(self, protocol):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _haulway.pickle_object([Fails()])


def test_a_dict_that_changes_while_it_is_saved():
    class Grows:
        def __init__(self, target):
            self.target = target

        def __reduce_ex__(self, protocol):
            for i in range(5000):
                self.target[i] = None
            return "OrderedDict"

    target = {}
    target["grows"] = Grows(target)
    target["next"] = 1
    with pytest.raises((RuntimeError, haulway.UnsafeError)):
        _haulway.pickle_object(target)


def test_nothing_is_leaked():
    class Key(str):
        pass

    def run():
        tensors = {f"t{i}": torch.ones(2) for i in range(20)}
        watch = weakref.ref(tensors["t3"])
        result = _haulway.pickle_object([tensors, {"x" * 20: 2**70}])
        assert len(result.storages) == 20
        with pytest.raises(haulway.UnsafeError):
            _haulway.pickle_object([tensors, Key("a")])
        return watch

    watch = run()
    gc.collect()
    assert watch() is None


def test_random_objects():
    random.seed(7)
    pool = [None, True, 3, 2**40, "a", "bc", 1.5, b"xy", torch.ones(2), (), 1j]

    def grow():
        kind = random.randrange(6)
        some = random.sample(pool[-30:], random.randrange(min(6, len(pool))))
        if kind == 0:
            return some
        if kind == 1:
            return tuple(some)
        if kind == 2:
            return {str(i % 3) + "k": v for i, v in enumerate(some)}
        if kind == 3:
            return collections.OrderedDict(enumerate(some))
        if kind == 4:
            return bytearray(random.randbytes(random.randrange(4)))
        return {v for v in some if isinstance(v, (int, str, float, bytes))}

    for _ in range(cases(400)):
        pool.append(grow())
        lists = [v for v in pool if isinstance(v, list)]
        if lists and random.random() < 0.3:
            random.choice(lists).append(random.choice(pool))
        check(pool[-1])
    check(pool)


@pytest.mark.parametrize("items", [
    b"cbuiltins\nrange\n(K\x00\x8a\x05\x00\xe4\x0bT\x02tR",
    b"cbuiltins\nrange\nK\x05\x85R",
    b"](" + b"N" * 2000 + b"e", b"X\x03\x00\x00\x00abc",
])
def test_a_deque_is_not_filled_by_its_constructor(items, tmp_path):
    # A file of a few bytes took all memory: deque(range(10**10)).
    (tmp_path / "x.pt").write_bytes(torch_zip(
        b"\x80\x02}X\x01\x00\x00\x00accollections\ndeque\n" + items
        + b"\x85Rs."))
    with pytest.raises(haulway.CorruptError, match="expected few items"):
        haulway.load(tmp_path / "x.pt")
