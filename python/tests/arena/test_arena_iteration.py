"""Iterating over a worker's items.

Names give the number of the behaviour: A with an arena, B for abandoned passes,
S of the process itself.
"""

import functools
import gc
import os
import subprocess
import sys
import threading
import time

import pytest

import arena_workers as workers
from haulway import ipc
from haulway.ipc import (
    SharedMemoryArena,
    SharedMemoryRingBuffer,
    SharedMemorySegmentPool,
    iterate_in_subprocess,
)
from optional_torch import torch

ARENAS = {
    "none": lambda: None,
    "arena": lambda: SharedMemoryArena(1 << 22),
    "pool": lambda: SharedMemorySegmentPool(1 << 20, 4),
    "ring": lambda: SharedMemoryRingBuffer(1 << 21),
}
METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(params=ARENAS)
def arena(request):
    return ARENAS[request.param]()


def counted(*arguments):
    return functools.partial(workers.counted, *arguments)


def values(items):
    return [int(item[0]) for item in items]


def test_A1_P17_items_arrive(arena):
    source = iterate_in_subprocess(counted(8, 50_000), arena=arena)
    assert [int(item[-1]) for item in source] == list(range(8))


@pytest.mark.parametrize("name", ["buffer", "arena"])
def test_both_names_of_the_argument(name):
    given = {name: SharedMemoryArena(1 << 20)}
    source = iterate_in_subprocess(counted(3, 50_000), **given)
    assert values(source) == [0, 1, 2]
    assert given[name].stats()["units"] == 3


def test_two_arenas_are_one_too_many():
    with pytest.raises(ValueError, match="same argument"):
        iterate_in_subprocess(
            counted(1), buffer=SharedMemoryArena(1), arena=SharedMemoryArena(1)
        )
    with pytest.raises(TypeError, match="open_writer"):
        iterate_in_subprocess(counted(1), arena=3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["none", "arena", "pool", "ring"])
def test_A2_S21_passes_over_each_start_method(method, kind):
    source = iterate_in_subprocess(
        counted(6, 50_000), mp_context=method, arena=ARENAS[kind]()
    )
    for _ in range(3):
        assert values(source) == list(range(6))


def test_A3_S16_a_failure_comes_after_its_items(arena):
    source = iterate_in_subprocess(
        functools.partial(workers.fails_after, 3), arena=arena
    )
    items = []
    with pytest.raises(RuntimeError, match="no more") as caught:
        for item in source:
            items.append(item)
    assert items == [0, 1, 2]
    assert isinstance(caught.value.__cause__, KeyError)
    assert "arena_workers.py" in caught.value.remote_traceback
    with pytest.raises(RuntimeError, match="shut down"):
        iter(source)


def test_A4_a_dying_worker_is_an_error(arena):
    source = iterate_in_subprocess(
        functools.partial(workers.killed, 3), arena=arena
    )
    items = []
    with pytest.raises(RuntimeError, match="exit code -9"):
        for item in source:
            items.append(item)
    assert values(items) == [0, 1, 2]


def test_A5_dropping_it_while_the_worker_waits():
    for kind in ("arena", "pool", "ring"):
        source = iterate_in_subprocess(
            functools.partial(workers.forever, 500_000), arena=ARENAS[kind]()
        )
        held = [item for _, item in zip(range(3), source)]
        start = time.monotonic()
        del source
        gc.collect()
        assert time.monotonic() - start < 15
        assert values(held) == [0, 1, 2]


def test_B1_break_then_a_whole_pass(arena):
    source = iterate_in_subprocess(counted(20, 50_000), arena=arena)
    for item in source:
        if item[0] == 3:
            break
    assert values(source) == list(range(20))


def test_B2_three_times(arena):
    source = iterate_in_subprocess(counted(20, 50_000), arena=arena)
    for _ in range(3):
        for item in source:
            if item[0] == 3:
                break
        assert values(source) == list(range(20))


def test_B3_zip_breaks(arena):
    source = iterate_in_subprocess(counted(20, 50_000), arena=arena)
    assert len(list(zip(range(5), source))) == 5
    assert values(source) == list(range(20))


def test_S1_numbers():
    assert list(iterate_in_subprocess(counted(1000))) == list(range(1000))


def test_S2_S4_initializers_run_before():
    initializers = [functools.partial(workers.note, i) for i in (1, 2)]
    source = iterate_in_subprocess(
        workers.seen, initializer=initializers, mp_context="spawn"
    )
    assert list(source) == [1, 2]
    source = iterate_in_subprocess(
        workers.seen, initializer=initializers[0], mp_context="spawn"
    )
    assert list(source) == [1]


def test_S3_the_finalizer_can_be_called():
    source = iterate_in_subprocess(counted(3))
    process = source._process
    source._finalizer()
    assert process.exitcode == 0
    with pytest.raises(RuntimeError, match="shut down"):
        iter(source)


class Noted:
    def __init__(self, count, made):
        self.count, self.made = count, made

    def __iter__(self):
        for i in range(self.count):
            self.made.value = i + 1
            yield i


@pytest.mark.parametrize("buffer_size, ahead", [(1, 3), (64, 66), (0, 100)])
def test_S5_S6_S17_how_far_the_worker_runs_ahead(buffer_size, ahead):
    import multiprocessing

    made = multiprocessing.get_context("fork").Value("i", 0)
    source = iterate_in_subprocess(
        lambda: Noted(100, made), buffer_size=buffer_size, mp_context="fork"
    )
    iterator = iter(source)
    next(iterator)
    least = min(ahead - 1, 100)
    deadline = time.monotonic() + 10
    while made.value < least and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    assert least <= made.value <= ahead
    assert list(iterator) == list(range(1, 100))


def test_S7_S13_an_initializer_that_fails():
    with pytest.raises(RuntimeError, match="no factory"):
        iterate_in_subprocess(counted(1), initializer=workers.fails_at_once)


def test_S8_S14_a_factory_that_fails(arena):
    with pytest.raises(RuntimeError, match="no factory") as caught:
        iterate_in_subprocess(workers.fails_at_once, arena=arena)
    assert isinstance(caught.value.__cause__, ValueError)
    assert arena is None or arena.closed


def test_S9_ended_before_any_pass():
    source = iterate_in_subprocess(counted(3))
    process = source._process
    del source
    gc.collect()
    assert process.exitcode == 0


def test_S10_S15_an_iterable_that_cannot_be_iterated():
    source = iterate_in_subprocess(workers.fails_to_iterate)
    iterator = iter(source)
    with pytest.raises(RuntimeError, match="cannot be iterated"):
        next(iterator)


def test_S11_S12_S19_S20_items_then_the_end():
    source = iterate_in_subprocess(functools.partial(workers.fails_after, 1))
    iterator = iter(source)
    assert next(iterator) == 0
    with pytest.raises(RuntimeError):
        next(iterator)
    assert list(iterate_in_subprocess(counted(1))) == [0]


def test_S18_silence_for_too_long():
    source = iterate_in_subprocess(workers.silent, timeout=0.3, mp_context="fork")
    iterator = iter(source)
    assert next(iterator) == 1
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="silent"):
        try:
            next(iterator)
        finally:
            waited = time.monotonic() - start
    assert waited >= 0.3


def test_S22_a_reference_left_does_not_hang_the_exit():
    code = (
        "import arena_workers as w, functools\n"
        "from haulway.ipc import *\n"
        "s = iterate_in_subprocess(functools.partial(w.forever, 50000),"
        " arena=SharedMemoryArena(1 << 18))\n"
        "it = iter(s); keep = [next(it) for _ in range(3)]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=30,
        cwd=__file__.rsplit("/", 2)[0],
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_item_that_cannot_be_pickled_is_an_error(arena):
    source = iterate_in_subprocess(workers.unpicklable, arena=arena)
    iterator = iter(source)
    assert next(iterator) == 1
    # Some Python versions name the problem but not the object.
    with pytest.raises(RuntimeError, match="pickle|local object"):
        next(iterator)


def test_none_and_nothing_are_items():
    source = iterate_in_subprocess(lambda: [None, (), 0, ""], mp_context="fork")
    assert list(source) == [None, (), 0, ""]


def test_items_larger_than_everything(arena):
    source = iterate_in_subprocess(counted(3, 30_000_000), arena=arena)
    for i, item in enumerate(source):
        assert len(item) == 30_000_000 // 8 and (item == i).all()
        assert item.flags.aligned


def test_other_threads_run_while_it_waits():
    source = iterate_in_subprocess(workers.silent, timeout=0.5, mp_context="fork")
    iterator = iter(source)
    next(iterator)
    ticks = []
    thread = threading.Thread(
        target=lambda: [ticks.append(i) for i in range(100_000)]
    )
    thread.start()
    with pytest.raises(RuntimeError):
        next(iterator)
    thread.join()
    assert len(ticks) == 100_000


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("is_torch", [False, True])
def test_loans_cross_without_a_copy(method, is_torch):
    arena = SharedMemoryArena(1 << 20)
    source = iterate_in_subprocess(
        functools.partial(workers.lends, arena, 50, is_torch),
        arena=arena, mp_context=method,
    )
    for i, item in enumerate(source):
        assert (item["whole"] == i).all() and (item["part"] == i).all()
        assert (item["copy"] == 2 * i).all()
        assert tuple(item["whole"].shape) == (100, 100)
        item["whole"][15, 0] = -1
        assert item["part"][5, 0] == -1
    del item
    stats = arena.stats()
    assert stats["fallbacks"] == 0
    # Two units per item: the loan and the copy.
    assert stats["units"] == 100
    assert stats["committed_bytes"] == 50 * (40_000 + 40_000)


def test_loans_without_room_are_ordinary_memory():
    arena = SharedMemoryArena(4096)
    array = arena.empty((100, 100))
    array[:] = 1
    assert arena.stats()["fallbacks"] == 1
    with pytest.raises(TypeError):
        arena.empty(3, object)


def test_a_pipeline_is_built_for_every_pass():
    source = ipc.run_in_subprocess(
        functools.partial(workers.produces, 4), buffer=SharedMemoryArena(1 << 20)
    )
    assert list(source) == list(source) == [0, 1, 2, 3]


def test_several_workers_in_turn():
    source = ipc.iterate_in_subprocesses(
        [counted(n, 50_000) for n in (2, 4, 3)],
        arenas=lambda: SharedMemoryArena(1 << 20),
    )
    for _ in range(2):
        assert values(source) == [0, 0, 0, 1, 1, 1, 2, 2, 3]


def test_several_workers_as_they_go():
    source = ipc.iterate_in_subprocesses(
        [counted(n, 50_000) for n in (20, 40, 30)], ordered=False,
        arenas=lambda: SharedMemoryArena(1 << 20),
    )
    for _ in range(2):
        found = values(source)
        assert sorted(found) == sorted([*range(20), *range(40), *range(30)])


@pytest.mark.parametrize("ordered", [True, False])
def test_several_workers_of_which_one_is_silent(ordered):
    source = ipc.iterate_in_subprocesses(
        [counted(5), workers.silent, counted(5)], ordered=ordered, timeout=1,
    )
    got = []
    with pytest.raises(ipc.WorkerTimeout, match="silent for 1"):
        got.extend(source)
    silent = source._sources[1]
    assert not silent._process.is_alive() and not silent._is_open
    source.close()


def test_several_workers_go_on_past_one_that_has_not_begun_again(tmp_path):
    """Items that are left of the pass before do not count as items."""
    gate = tmp_path / "gate"
    source = ipc.iterate_in_subprocesses(
        [functools.partial(workers.Gated, 40, str(gate)), counted(20)],
        ordered=False, timeout=10,
    )
    for _ in source:
        break
    while not source._sources[0]._receiver.waiting_bytes:
        time.sleep(0.01)
    got = []
    for item in source:
        got.append(item)
        if len(got) == 20:  # All of the second worker.
            gate.touch()
    assert got == [*range(20), *range(40)]


def test_several_workers_of_which_one_dies():
    source = ipc.iterate_in_subprocesses(
        [counted(5), functools.partial(workers.killed, 1)], ordered=False
    )
    with pytest.raises(RuntimeError, match="exit code -9"):
        list(source)


def test_as_a_dataset_of_torch():
    source = iterate_in_subprocess(counted(6, 8000))
    dataset = ipc.as_iterable_dataset(source)
    assert isinstance(dataset, torch.utils.data.IterableDataset)
    batches = list(torch.utils.data.DataLoader(dataset, batch_size=3))
    assert [tuple(batch.shape) for batch in batches] == [(3, 1000), (3, 1000)]


class Third:
    """Another package's arena: a file that is read and written."""

    def __init__(self, path, names):
        self.path = path
        self.write_name, self.read_name = names
        self.closed = self.unlinked = 0
        open(path, "wb").close()

    def open_writer(self):
        return ThirdWriter(self.path, self.write_name)

    def open_reader(self):
        return ThirdReader(self.path, self.read_name)

    def close(self):
        self.closed += 1

    def unlink(self):
        self.unlinked += 1


class ThirdWriter:
    def __init__(self, path, name):
        self.file = open(path, "ab", buffering=0)
        setattr(self, name, self._write)

    def reset(self):
        pass

    def begin_unit(self):
        self.span = 0

    def _write(self, data):
        at = self.file.seek(0, 2)
        self.file.write(data)
        self.span += len(data)
        return at, len(data)

    def commit_unit(self):
        return self.span

    def abort_unit(self):
        pass


class ThirdReader:
    zero_copy = False

    def __init__(self, path, name):
        self.file = open(path, "rb", buffering=0)
        self.ended = []
        setattr(self, name, self._read)

    def reset(self):
        pass

    def _read(self, offset, nbytes):
        self.file.seek(offset)
        return memoryview(self.file.read(nbytes))

    def end_unit(self, span, pinned):
        self.ended.append(span)


def test_a_source_belongs_to_its_process():
    source = iterate_in_subprocess(functools.partial(workers.counted, 5))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            iter(source)
        except ipc.WorkerError as error:
            code = 0 if str(os.getppid()) in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert list(source) == list(range(5))


def test_torch_computes_in_a_worker_that_was_forked():
    # Uses all torch threads.
    assert (torch.zeros(1 << 20) + 1).sum() == 1 << 20
    source = iterate_in_subprocess(
        lambda: [torch.zeros(1 << 20) + n for n in range(3)],
        mp_context="fork", arena=SharedMemoryArena(1 << 24), timeout=60,
    )
    assert [int(item[-1]) for item in source] == [0, 1, 2]


@pytest.mark.parametrize(
    "names", [("write_binary", "read_binary"), ("write", "read")]
)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_arenas_of_others(tmp_path, names, method):
    arena = Third(str(tmp_path / "file"), names)
    source = iterate_in_subprocess(
        counted(5, 50_000), arena=arena, mp_context=method
    )
    assert values(source) == list(range(5))
    assert next(iter(source))[0] == 0
    assert values(source) == list(range(5))
    assert source._reader.ended.count(50_000) >= 10
    del source
    gc.collect()
    assert (arena.closed, arena.unlinked) == (1, 1)
