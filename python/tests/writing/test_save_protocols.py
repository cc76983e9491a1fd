"""Pickle protocols 2 to 5 and the container of torch 1.5, compared with
torch.save."""

import collections
import io
import pickle
import random

import pytest
import torch

import haulway
import haulway.torch
from cases import OBJECTS, V2, V3, filled
from chance import cases
from compare import Comparer
from torch_versions import is_as_torch_saves

PROTOCOLS = [2, 3, 4, 5]
NEW = [True, False]


def with_many(count):
    return {f"key {i}": [i, str(i), float(i)] for i in range(count)}


def long_strings():
    """Lengths near those at which frames and opcodes change."""
    sizes = [0, 1, 255, 256, 65_530, 65_535, 65_536, 65_537, 200_000]
    return [
        [letter * size, size, (letter * size).encode(), size]
        for letter, size in zip("abcdefghi", sizes, strict=True)
    ] + [bytearray(size) for size in sizes]


def around_a_frame():
    """Objects that begin at every byte near the end of a frame."""
    return [
        [bytes(65_500 + extra), None, 3, (4, 5), {"x": 1.5, "y": {6}}, "text"]
        for extra in range(0, 60, 7)
    ] + ["x" * (65_400 + extra) for extra in range(40)]


def frames_of_numbers(offset):
    return ["p" * offset, *range(60_000), (), [], {}, frozenset("ab"), 2**70,
            torch.ones(2, 3, 4, 5), torch.Size([1, 2])]


class Nested:
    class Inner:
        def __init__(self):
            self.value = [1, torch.ones(2)]

        def __eq__(self, other):
            return True


class WithKeywords:
    def __new__(cls, *, size):
        made = object.__new__(cls)
        made.size = size
        return made

    def __getnewargs_ex__(self):
        return (), {"size": self.size}


MORE = {
    "many": lambda: with_many(3000),
    "long-strings": long_strings,
    "around-a-frame": around_a_frame,
    "frozensets": lambda: [frozenset(), frozenset("abcd"), set(range(2500)),
                           {(1, 2), frozenset([3])}, set()],
    "bytes": lambda: [b"", bytes(300), bytearray(b"abc"), bytearray()],
    "shared-names": lambda: ["torch", "_rebuild_tensor_v2", "torch._utils",
                             torch.ones(1), "OrderedDict", "collections",
                             "storage", "cpu", "FloatStorage", "0",
                             collections.OrderedDict(a=1)],
    **{f"numbers-{offset}": (lambda offset=offset: frames_of_numbers(offset))
       for offset in range(0, 50, 3)},
}


def saved(save, made, protocol, new, path=None):
    target = io.BytesIO() if path is None else path
    save(made, target, pickle_protocol=protocol,
         _use_new_zipfile_serialization=new)
    return target.getvalue() if path is None else path.read_bytes()


def check(made, protocol, new):
    try:
        theirs = saved(torch.save, made, protocol, new)
    except (RuntimeError, NotImplementedError):
        with pytest.raises((haulway.Error, RuntimeError, NotImplementedError)):
            saved(haulway.torch.save, made, protocol, new)
        return None
    ours = saved(haulway.torch.save, made, protocol, new)
    assert is_as_torch_saves(ours, theirs)
    return ours


@pytest.mark.parametrize("new", NEW, ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", [*OBJECTS, *MORE])
def test_the_bytes_of_torch_save(name, protocol, new):
    made = {**OBJECTS, **MORE}[name]()
    data = check(made, protocol, new)
    if data is None or (not new and name in ("nested", "meta")):
        return
    # Both can read both files.
    ours = haulway.torch.load(io.BytesIO(data))
    theirs = torch.load(io.BytesIO(data), weights_only=False)
    Comparer().same(ours, theirs)
    assert haulway.verify(data).ok and haulway.scan(data).safe


@pytest.mark.parametrize("new", NEW, ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_dtype(protocol, new):
    for dtype in V2 + V3:
        whole = filled(24, dtype)
        check([whole, whole.view(4, 6), whole[3:9], whole.untyped_storage()],
              protocol, new)


@pytest.mark.parametrize("new", NEW, ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_files(protocol, new, tmp_path):
    made = OBJECTS["adamw"]()
    paths = [tmp_path / name / "model.pt" for name in ("torch", "ours")]
    for path, save in zip(paths, (torch.save, haulway.torch.save),
                          strict=True):
        path.parent.mkdir()
        saved(save, made, protocol, new, path)
    theirs, ours = (path.read_bytes() for path in paths)
    assert is_as_torch_saves(ours, theirs)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_random_objects(protocol):
    generator = random.Random(protocol)
    words = ["", "a", "ab", "torch", "x" * 300, "\u65e5\u672c", "y" * 70_000]
    tensors = [torch.ones(2), torch.arange(5.0), torch.nn.Parameter(torch.ones(1))]

    def make(depth):
        kind = generator.randrange(12 if depth else 6)
        if kind < 2:
            return generator.choice([None, True, 0, -1, 300, 2**40, 2**90, 1.5])
        if kind < 4:
            return generator.choice(words)
        if kind == 4:
            return generator.choice([b"", b"ab", bytes(400), bytes(70_000)])
        if kind == 5:
            return generator.choice(tensors)
        items = [make(depth - 1) for _ in range(generator.randrange(6))]
        if kind == 6:
            return tuple(items)
        if kind == 7:
            return items + [items]
        if kind in (8, 9):
            return dict(enumerate(items))
        if kind == 10:
            return {item for item in items if type(item) in (int, str)}
        return frozenset(item for item in items if type(item) in (int, str))

    for _ in range(cases(150)):
        check(make(5), protocol, generator.random() < 0.7)


@pytest.mark.parametrize("protocol", [4, 5])
def test_classes_within_classes_have_names_from_protocol_4_on(protocol):
    classes = [Nested.Inner, WithKeywords]
    made = [Nested.Inner(), WithKeywords(size=3)]
    with haulway.torch.safe_globals(classes):
        data = check(made, protocol, True)
        loaded = haulway.torch.load(io.BytesIO(data))
        assert type(loaded[0]) is Nested.Inner and loaded[1].size == 3
        for least in (2, 3):
            with pytest.raises(haulway.UnsafeError):
                saved(haulway.torch.save, made, least, True)


def test_protocols_as_pickle_takes_them():
    made = {"w": torch.ones(2), "s": {1, 2}}
    for given in (None, -1, pickle.HIGHEST_PROTOCOL, pickle.DEFAULT_PROTOCOL):
        check(made, given, True)
        check(made, given, False)
    for wrong, error in ((6, ValueError), ("2", TypeError),
                         (0, haulway.UnsupportedError),
                         (1, haulway.UnsupportedError)):
        with pytest.raises(error, match="protocol"):
            haulway.torch.save(made, io.BytesIO(), pickle_protocol=wrong)


def test_another_pickle_module_is_refused_by_name():
    with pytest.raises(haulway.UnsupportedError, match="random"):
        haulway.torch.save([1], io.BytesIO(), pickle_module=random)


def test_nothing_is_left_of_a_refused_legacy_file(tmp_path):
    with pytest.raises(haulway.UnsafeError):
        haulway.torch.save([print], tmp_path / "x.pt",
                           _use_new_zipfile_serialization=False)
    with pytest.raises(haulway.UnsupportedError, match="without data"):
        haulway.torch.save(
            torch.empty(3, device="meta").untyped_storage(), tmp_path / "x.pt",
            _use_new_zipfile_serialization=False,
        )
    assert list(tmp_path.iterdir()) == []


def test_stats_of_a_legacy_file(tmp_path):
    stats, told = {}, []
    haulway.torch.save(
        [torch.ones(100_000)], tmp_path / "x.pt",
        _use_new_zipfile_serialization=False, stats=stats,
        progress=lambda done, total: told.append((done, total)),
    )
    assert stats["tensor_bytes"] == 400_000
    assert stats["bytes"] == (tmp_path / "x.pt").stat().st_size
    assert told[-1] == (stats["bytes"],) * 2
