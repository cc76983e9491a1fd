"""Items without a pickle, and programs in other languages."""

import functools
import gc
import os
import pathlib
import pickle
import subprocess
import sys

import numpy
import pytest

import arena_workers as workers
from haulway import UnsafeError
from haulway.ipc import (
    SharedMemoryArena,
    SharedMemoryRingBuffer,
    SharedMemorySegmentPool,
    WorkerError,
    iterate_in_program,
    iterate_in_subprocess,
)
from optional_torch import Absent, torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
RANDOM = numpy.random.default_rng(0)
ARENAS = {
    "none": lambda: None,
    "arena": lambda: SharedMemoryArena(1 << 22),
    "pool": lambda: SharedMemorySegmentPool(1 << 20, 4, bytes_as="bytes"),
    "ring": lambda: SharedMemoryRingBuffer(1 << 21),
}
ITEMS = [
    None, True, False, 0, -1, 2**63 - 1, -(2**63), 1.5, float("inf"), "",
    "text \xe9", b"", b"small", b"x" * 100_000, bytearray(b"y" * 5000),
    [], (), {}, [1, (2, [3.5, None])], {"a": {1: "b"}, "c": (b"d",)},
    *(RANDOM.integers(0, 2, (30, 100)).astype(d) for d in (
        "f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u8", "?", "c8")),
    numpy.asfortranarray(RANDOM.random((50, 90))),
    RANDOM.random((90, 90))[::3, ::-2], numpy.array(2.5), numpy.zeros((0, 3)),
    numpy.broadcast_to(RANDOM.random(100), (100, 100)),
    # Dimensions of size 1 have strides that nothing needs.
    RANDOM.random((1, 700))[::-1], RANDOM.random((0, 3))[::-1],
    numpy.lib.stride_tricks.as_strided(RANDOM.random(3), (1, 3), (5, 8)),
    *(torch.ones(50, 90).to(d) for d in (
        torch.float32, torch.bfloat16, torch.float8_e5m2, torch.complex64)),
    torch.rand(50, 90).t(), torch.rand(1000, 1000)[5:7, 3:9],
    torch.rand(100, 1).expand(100, 100), torch.zeros(0, 4), torch.tensor(3),
    torch.rand(100, 100, requires_grad=True),
]
ITEMS = [item for item in ITEMS if not isinstance(item, Absent)]


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, numpy.ndarray):
        return a.dtype == b.dtype and (a == b).all() and a.shape == b.shape
    if isinstance(a, torch.Tensor):
        return (a.dtype == b.dtype and a.requires_grad == b.requires_grad
                and torch.equal(a.to(torch.complex64), b.to(torch.complex64)))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    return a == b


@pytest.mark.parametrize("kind", ARENAS)
def test_items_come_back_as_they_were(kind):
    source = iterate_in_subprocess(
        lambda: ITEMS, arena=ARENAS[kind](), pickle_free=True, mp_context="fork"
    )
    for _ in range(2):
        for sent, got in zip(ITEMS, source, strict=True):
            assert same(sent, got), (sent, got)


def test_text_without_utf8_is_told_of_with_its_place():
    source = iterate_in_subprocess(
        lambda: [{"a": [1, "\ud800"]}], pickle_free=True, mp_context="fork"
    )
    with pytest.raises(WorkerError, match=r"item\['a'\]\[1\] is str"):
        list(source)


def fails_with_surrogates():
    raise ValueError("caf\udce9")


def test_a_failure_with_any_text_is_told_of():
    with pytest.raises(WorkerError, match=r"caf\\udce9"):
        iterate_in_subprocess(
            fails_with_surrogates, pickle_free=True, mp_context="fork",
            arena=SharedMemoryArena(1 << 20))


def test_read_only_arrays_and_transposed_tensors_stay_so():
    array = numpy.ones(5000)
    array.flags.writeable = False
    source = iterate_in_subprocess(
        lambda: [array, torch.rand(80, 90).t()], pickle_free=True,
        arena=SharedMemoryArena(1 << 20), mp_context="fork",
    )
    array, tensor = source
    assert not array.flags.writeable and tensor.stride() == (1, 90)


def test_views_hold_their_unit():
    arena = SharedMemoryArena(1 << 18)
    source = iterate_in_subprocess(
        functools.partial(workers.counted, 50, 50_000), arena=arena,
        pickle_free=True,
    )
    oldest = None
    for i, item in enumerate(source):
        oldest = item[:10] if oldest is None else oldest
        assert item[-1] == i
    assert (oldest == 0).all()
    assert arena.stats()["fallbacks"] == 0


@pytest.mark.parametrize("item, where", [
    ({"a": [1, object()]}, r"item\['a'\]\[1\] is object"),
    ([2**63], "64 bits"), ({(1, 2): 3}, "cannot be a key"),
    (numpy.array([None]), "of object"), (numpy.zeros(3, ">f4"), "of >f4"),
    (torch.eye(3).to_sparse(), "of this kind"), (1j, "complex"),
    (torch.nested.nested_tensor([torch.eye(3)]), "of this kind"),
    ("\ud800", "surrogates"),
])
def test_what_needs_a_pickle_is_refused(item, where):
    source = iterate_in_subprocess(
        lambda: [item], pickle_free=True, mp_context="fork"
    )
    with pytest.raises(RuntimeError, match=where):
        list(source)


def test_items_that_hold_themselves_are_refused():
    item = []
    item.append(item)
    source = iterate_in_subprocess(
        lambda: [item], pickle_free=True, mp_context="fork"
    )
    with pytest.raises(RuntimeError, match="more than 100 deep"):
        list(source)


class Hostile:
    def __reduce__(self):
        return os.abort, ()


def test_pickles_are_not_read():
    from haulway import _haulway
    from haulway.ipc._offload import ItemPickler, equip
    from haulway.ipc._process import make_receiver

    channel = _haulway.Channel.create(1 << 20, 3)
    arena = SharedMemoryArena(1 << 20)
    receiver = make_receiver(channel, -1, arena, True, pickle_free=True)
    encoder = equip(_haulway.ItemEncoder(lambda cls: None, {}, 4096, False))
    assert ItemPickler
    sender = _haulway.ItemSender(channel, -1, encoder, arena._open(), 1)
    epoch = receiver.start_pass()
    assert sender.send([Hostile(), pickle.PickleBuffer(bytes(9000))], epoch)
    with pytest.raises(UnsafeError, match="pickle"):
        receiver.receive(epoch, 5)
    gc.collect()
    sender.send(1, epoch)  # Makes the worker process the releases.
    assert arena.open_writer()._native.begin(0.0) is None


def test_failures_are_text():
    source = iterate_in_subprocess(
        functools.partial(workers.fails_after, 1), pickle_free=True
    )
    with pytest.raises(RuntimeError, match="KeyError: 'no more'") as caught:
        list(source)
    assert "arena_workers.py" in caught.value.remote_traceback
    with pytest.raises(RuntimeError, match="no factory"):
        iterate_in_subprocess(workers.fails_at_once, pickle_free=True)


@pytest.mark.parametrize("kind", ["arena", "pool"])
def test_a_producer_in_cpp(examples, kind):
    arena = {"arena": lambda: SharedMemoryArena(1 << 20),
             "pool": lambda: SharedMemorySegmentPool(1 << 19, 8)}[kind]()
    source = iterate_in_program(
        [str(examples / "arena_producer"), "30"], arena=arena
    )
    for _ in range(2):
        for i, batch in enumerate(source):
            assert list(batch) == ["index", "image", "tokens", "name"]
            assert batch["index"] == i and batch["name"] == f"batch {i}"
            assert batch["image"].shape == (256, 256)
            assert (batch["image"] == numpy.arange(256) + i).all()
            assert batch["tokens"].dtype == numpy.int64
            assert (batch["tokens"] == i).all()
        assert i == 29
    del batch
    stats = arena.stats()
    assert stats["units"] == 120 and stats["fallbacks"] == 0
    assert next(iter(source))["index"] == 0


def test_a_program_that_fails(examples):
    program = str(examples / "arena_producer")
    source = iterate_in_program([program, "-1"], arena=SharedMemoryArena(1 << 20))
    with pytest.raises(RuntimeError, match="nothing to make"):
        list(source)
    with pytest.raises(RuntimeError, match="exit code 2"):
        iterate_in_program([program, "1", "2"])
    with pytest.raises(FileNotFoundError):
        iterate_in_program([program + "-not"])


def test_a_consumer_in_cpp(examples):
    done = subprocess.run(
        [str(examples / "arena_consumer"), sys.executable,
         str(ROOT / "examples" / "arena_producer.py")],
        capture_output=True, text=True, timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"index={i} name=batch {i} image={4096 * i:.1f} small=6.0"
        for i in range(5)
    ]
    failed = subprocess.run(
        [str(examples / "arena_consumer"), sys.executable, "-c",
         "import sys; from haulway.ipc import serve_program as s;"
         "s(lambda: [object()], sys.argv[-1])"],
        capture_output=True, text=True, timeout=60,
    )
    assert failed.returncode == 1 and "item is object" in failed.stderr
