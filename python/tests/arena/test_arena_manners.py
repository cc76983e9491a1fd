"""How iterations end, restart and are refused."""

import functools
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import weakref

import pytest

import arena_workers as workers
from haulway import ipc
from haulway.ipc import (
    SharedMemoryArena,
    SharedMemoryRingBuffer,
    SharedMemorySegmentPool,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
    iterate_in_subprocess,
    iterate_in_subprocesses,
    register_handler,
)

counted = functools.partial(functools.partial, workers.counted)


# The time that a worker may be silent is also the time until the error: 1 s
# here.


@pytest.mark.alone
def test_a_worker_that_is_stopped_is_told_of_in_time():
    source = iterate_in_subprocess(counted(1_000_000), timeout=1)
    iterator = iter(source)
    next(iterator)
    os.kill(source._process.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(WorkerTimeout):
        for _ in iterator:  # Items made earlier come first.
            began = time.monotonic()
    assert time.monotonic() - began < 3
    assert not source._process.is_alive()


def test_signals_do_not_shorten_the_time_limit():
    source = iterate_in_subprocess(
        functools.partial(workers.pauses, 2, 0.5), timeout=5)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        assert list(source) == [0, 1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.alone
def test_an_initializer_that_hangs_is_told_of_in_time():
    began = time.monotonic()
    with pytest.raises(WorkerTimeout):
        iterate_in_subprocess(
            counted(1), initializer=functools.partial(time.sleep, 1000),
            timeout=1, mp_context="fork")
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("arena", [
    None, SharedMemoryArena, SharedMemoryRingBuffer])
def test_an_item_lives_as_long_as_who_iterates_holds_it(arena):
    source = iterate_in_subprocess(
        counted(3, 50_000), arena=arena and arena(1 << 20))
    for item in source:
        alive = weakref.ref(item)
        del item
        assert alive() is None


def test_items_of_several_workers_live_as_long_as_they_are_held():
    for ordered in (True, False):
        with iterate_in_subprocesses(
            [counted(3, 50_000)] * 2, ordered=ordered
        ) as source:
            for item in source:
                alive = weakref.ref(item)
                del item
                assert alive() is None


# Ending of workers.


def test_close_ends_the_worker():
    source = iterate_in_subprocess(counted(5, 50_000),
                                   arena=SharedMemoryArena(1 << 20))
    item = next(iter(source))
    source.close()
    source.close()
    assert not source._process.is_alive()
    assert item[0] == 0
    with pytest.raises(WorkerError, match="shut down"):
        iter(source)


def test_a_with_statement_ends_the_worker():
    with pytest.raises(KeyError), iterate_in_subprocess(counted(5)) as source:
        assert next(iter(source)) == 0
        raise KeyError
    assert not source._process.is_alive()


def test_several_workers_are_ended_together():
    with iterate_in_subprocesses([counted(5)] * 2) as source:
        next(iter(source))
    assert not any(each._process.is_alive() for each in source._sources)


def hangs():
    yield 1
    time.sleep(1000)


@pytest.mark.alone
@pytest.mark.parametrize("begin", [
    lambda: iterate_in_subprocess(hangs),
    lambda: iterate_in_subprocesses([hangs] * 4, ordered=False),
])
def test_an_interrupt_ends_iterating_over_a_hung_worker(begin, interrupt):
    with pytest.raises(KeyboardInterrupt), begin() as source:
        interrupt()
        began = time.monotonic()
        list(source)
    assert time.monotonic() - began < 1.3
    for each in getattr(source, "_sources", [source]):
        assert not each._process.is_alive()


def test_an_interrupt_of_close_leaves_no_worker(interrupt):
    # A worker that is left would keep this program from ending.
    source = iterate_in_subprocess(hangs)
    next(iter(source))
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        source.close()
    assert source._process.exitcode == -signal.SIGKILL


def test_ctrl_c_at_a_terminal_is_told_of_by_the_parent_alone():
    code = (
        "import arena_workers as w\n"
        "from haulway.ipc import iterate_in_subprocess\n"
        "try:\n"
        "    for _ in iterate_in_subprocess(w.silent):\n"
        "        print('here', flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
        cwd=os.path.dirname(workers.__file__),
    )
    assert program.stdout.readline() == b"here\n"
    os.killpg(program.pid, signal.SIGINT)
    said = program.communicate(timeout=60)
    assert (program.returncode, *said) == (0, b"interrupted\n", b"")


@pytest.mark.alone
def test_several_hung_workers_end_in_the_time_of_one():
    source = iterate_in_subprocesses([hangs] * 3)
    iterator = iter(source)
    assert [next(iterator) for _ in range(3)] == [1, 1, 1]
    began = time.monotonic()
    source.close()
    assert time.monotonic() - began < 5


def test_an_arena_that_fails_to_shut_down_leaves_no_worker():
    class Fails(Foreign):
        def shutdown_arena(self):
            raise ZeroDivisionError

    source = iterate_in_subprocess(counted(3), arena=Fails())
    with pytest.raises(ZeroDivisionError):
        source.close()
    assert not source._process.is_alive()


class EndsAtOnce(multiprocessing.get_context("forkserver").Process):
    """A worker that is killed, and whose process is gone when start()
    returns."""

    def start(self):
        super().start()
        self.kill()
        self.join()


def test_a_worker_that_is_gone_before_it_is_watched_is_told_of():
    context = type("Context", (), {"Process": EndsAtOnce})
    with pytest.raises(WorkerDied):
        iterate_in_subprocess(counted(1), mp_context=context, timeout=60)


def open_descriptors():
    gc.collect()
    return os.listdir("/proc/self/fd")


def test_a_worker_that_cannot_be_made_leaves_no_descriptor(monkeypatch):
    class Context:
        def Process(self, **arguments):  # noqa: N802 - multiprocessing's name
            raise ZeroDivisionError

    before = open_descriptors()
    with pytest.raises(ZeroDivisionError):
        iterate_in_subprocess(counted(1), mp_context=Context())
    assert open_descriptors() == before

    duplicate, left = os.dup, [0, 0]

    def fail_later(fd):
        left.pop()
        return duplicate(fd)

    arena = SharedMemoryArena(1 << 20, consumers=3)
    before = open_descriptors()
    with monkeypatch.context() as patch, pytest.raises(IndexError):
        patch.setattr(os, "dup", fail_later)
        ipc.broadcast_from_subprocess(counted(1), 3, arena=arena)
    assert open_descriptors() == before


# One pass after another.


def test_a_second_pass_over_a_generator_is_an_error():
    source = iterate_in_subprocess(functools.partial(workers.generator, 3))
    assert list(source) == [0, 1, 2]
    with pytest.raises(WorkerError, match="a generator can be iterated once"):
        list(source)


class BeginsAgain:
    """An iterator that can restart."""

    def __iter__(self):
        self.left = 3
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left


@pytest.mark.parametrize("make", [BeginsAgain, list, lambda: range(0)])
def test_what_begins_again_or_is_empty_may_be_iterated_again(make):
    source = iterate_in_subprocess(make, mp_context="fork")
    assert list(source) == list(source) == list(make())


# Arenas.


class Foreign:
    """Another package's arena, over one of Haulway's."""

    def __init__(self):
        self.arena = SharedMemoryArena(1 << 20)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.arena, name)


@pytest.mark.parametrize("make", [
    lambda: SharedMemoryArena(1 << 20),
    lambda: SharedMemorySegmentPool(1 << 18, 4),
    lambda: SharedMemoryRingBuffer(1 << 20),
    Foreign,
])
def test_an_arena_serves_one_iteration(make):
    arena = make()
    source = iterate_in_subprocess(counted(3, 50_000), arena=arena)
    iterator = iter(source)
    held = next(iterator)
    for begin in (
        lambda: iterate_in_subprocess(counted(3), arena=arena),
        lambda: iterate_in_subprocesses([counted(3)] * 2, arenas=lambda: arena),
    ):
        with pytest.raises(ValueError, match="belongs to another iteration"):
            begin()
    assert held[0] == 0 and [item[0] for item in iterator] == [1, 2]


def test_only_the_worker_writes_to_an_arena():
    arena = SharedMemoryArena(1 << 20)
    with iterate_in_subprocess(counted(3, 50_000), arena=arena) as source:
        for item in source:
            before = item.copy()
            for write in (lambda: arena.empty(6000, "i8"), arena.open_writer):
                with pytest.raises(ValueError, match="worker of an iteration"):
                    write()
            assert (item == before).all()


def test_a_broadcast_has_its_arena_for_itself():
    arena = SharedMemoryArena(1 << 20, consumers=2)
    with ipc.broadcast_from_subprocess(counted(3), 2, arena=arena), \
            pytest.raises(ValueError, match="belongs to another iteration"):
        ipc.broadcast_from_subprocess(counted(3), 2, arena=arena)


def test_several_workers_need_as_many_arenas():
    with pytest.raises(TypeError, match="an arena of its own"):
        iterate_in_subprocesses([counted(1)], arena=SharedMemoryArena(1 << 20))
    with pytest.raises(ValueError, match="same argument"):
        iterate_in_subprocesses([counted(1)], arena=list, arenas=list)
    with iterate_in_subprocesses(
        [counted(2)] * 2, arena=lambda: SharedMemoryArena(1 << 20)
    ) as source:
        assert list(source) == [0, 0, 1, 1]


def test_a_closed_arena_is_refused_here_not_in_the_worker():
    code = (
        "from haulway.ipc import *\n"
        "arena = SharedMemoryArena(1 << 20)\n"
        "s = iterate_in_subprocess(lambda: [1], arena=arena, mp_context='fork')\n"
        "assert list(s) == [1]\n"
        "s.close()\n"
        "try:\n"
        "    iterate_in_subprocess(lambda: [1], arena=arena, mp_context='fork')\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True,
                          text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("the arena is closed\n", "")


def test_the_names_of_the_reference_are_there():
    pool = SharedMemorySegmentPool(1 << 18, 4)
    source = iterate_in_subprocess(counted(4, 50_000), arena=pool)
    assert len(list(source)) == pool.published == 4
    assert pool.reclaimed == 4
    with open(pool.name, "rb") as memory:
        assert memory.read(8)


# Handlers of types.


class LocalHandler:
    kind = "local"

    def matches(self, obj, threshold):
        return False

    def get_buffer(self, obj):
        raise AssertionError

    def from_buffer(self, buf, meta, zero_copy):
        raise AssertionError


@pytest.fixture
def handlers():
    before = ipc._handlers._user_handlers[:]
    yield
    ipc._handlers._user_handlers[:] = before


def test_a_handler_that_cannot_be_pickled_stays_behind(handlers):
    local = type("Local", (LocalHandler,), {})
    register_handler(local())
    with pytest.raises(Exception, match="pickle"):
        multiprocessing.reduction.ForkingPickler.dumps(local())
    source = iterate_in_subprocess(counted(3), mp_context="spawn")
    assert list(source) == [0, 1, 2]


class Disguised(Exception):
    def __reduce__(self):
        return str, ("no exception",)


def fails_in_disguise():
    raise Disguised("the reason")


def test_a_failure_that_is_pickled_as_something_else_is_told_of():
    with pytest.raises(WorkerError, match="Disguised: the reason") as caught:
        iterate_in_subprocess(fails_in_disguise)
    assert caught.value.__cause__ is None


def test_a_failure_that_cannot_be_read_is_told_as_such():
    with pytest.raises(WorkerError, match="does not say why"):
        ipc._process._raise_failure(b"\xff\xff", "the worker failed")
