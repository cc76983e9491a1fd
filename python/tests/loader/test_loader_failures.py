"""DataLoader's messages when workers fail, die, stop or hang, and that nothing
of the workers remains."""

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch

import loader_data as data
from haulway.ipc import DataLoader
from loader_cases import BOTH, compare, failure
from torch_versions import IS_OLD

HERE = os.path.dirname(os.path.dirname(__file__))


@pytest.mark.parametrize("how, kind", [
    ("value", ValueError), ("key", KeyError), ("custom", RuntimeError),
])
@pytest.mark.parametrize("workers", [0, 2])
def test_exceptions_have_their_type_and_traceback(how, kind, workers):
    failures = [failure(each, data.Failing(how), num_workers=workers)
                for each in BOTH]
    (their_got, theirs), (got, ours) = failures
    assert got == their_got == [0, 1, 2]
    assert type(ours) is type(theirs)
    if workers:
        assert str(ours) == str(theirs)
        assert isinstance(ours, kind) and "in fail" in str(ours)
        assert "in DataLoader worker process 1." in str(ours)


def test_a_dataset_that_says_stop_ends_the_loop():
    assert compare(data.Failing("stop"), batch_size=None) == [0, 1, 2]


def test_an_exception_of_a_type_that_is_known_in_the_worker_only():
    got, error = failure(DataLoader, data.Failing("local"))
    assert got == [0, 1, 2] and type(error) is RuntimeError
    assert "Local" in str(error) and "known here only" in str(error)


@pytest.mark.parametrize("persistent", [False, True])
def test_the_loop_goes_on_after_an_exception(persistent):
    def read(loader):
        seen = []
        for _ in range(2):
            iterator = iter(loader)
            while True:
                try:
                    seen.append(next(iterator))
                except StopIteration:
                    break
                except ValueError as error:
                    seen.append(str(error).splitlines()[0])
        return seen

    got = compare(data.Failing("value"), read, batch_size=None,
                  persistent_workers=persistent)
    assert len(got) == 16


def test_failures_to_begin():
    failures = [failure(each, data.Numbers(), worker_init_fn=data.fail_to_begin)
                for each in BOTH]
    assert str(failures[0][1]) == str(failures[1][1])
    assert isinstance(failures[1][1], OSError)


def test_failures_of_samplers():
    class Bad:
        def __iter__(self):
            yield 1
            raise ZeroDivisionError("no more")

    for each in BOTH:
        got, error = failure(each, data.Keyed(), sampler=Bad())
        assert type(error) is ZeroDivisionError


def test_a_batch_that_cannot_be_pickled_is_told_of():
    """torch's loader waits for such a batch for ever."""
    got, error = failure(DataLoader, data.Making(lambda i: (lambda: i)))
    assert got == [] and "pickle" in str(error)


def test_a_batch_that_cannot_be_read_is_told_of_and_passed_over():
    values = [1, data.Unreadable(), 3, 4]
    iterator = iter(DataLoader(data.Chosen(*values), batch_size=None,
                               num_workers=2))
    assert next(iterator) == 1
    with pytest.raises(LookupError, match="not to be read here"):
        next(iterator)
    assert list(iterator) == [3, 4]


@pytest.mark.parametrize("how, told", [
    ("kill", "is killed by signal: Killed"),
    ("abort", "is killed by signal: Aborted"),
    ("exit", "exited unexpectedly with exit code 7"),
    ("system exit", "exited unexpectedly with exit code 3"),
])
@pytest.mark.parametrize("threaded", [False, True])
def test_a_worker_that_dies_is_named(how, told, threaded):
    """In the main thread torch's signal handler reports it; in other threads
    Haulway does."""
    found = []

    def run():
        began = time.monotonic()
        found.append(failure(DataLoader, data.Failing(how)))
        assert time.monotonic() - began < 20

    if threaded:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(60)
    else:
        run()
    _, error = found[0]
    assert type(error) is RuntimeError and told in str(error)
    assert "pid" in str(error)


def test_what_a_worker_sent_before_it_died_comes_first():
    def run():
        found.extend(failure(DataLoader, data.Failing("kill"), num_workers=1)[0])

    found = []
    # In a thread that no signal interrupts.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert found == [0, 1, 2]


def test_a_worker_that_is_stopped_is_named_and_waited_for():
    iterator = iter(DataLoader(data.Failing("pause"), batch_size=None,
                               num_workers=2))
    pid = iterator._workers[1].pid
    timer = threading.Timer(2, os.kill, (pid, signal.SIGCONT))
    timer.start()
    with pytest.warns(RuntimeWarning, match=f"worker 1 .pid {pid}. is stopped by "
                                            "SIGSTOP"):
        assert list(iterator) == list(range(8))
    timer.join()


def test_a_timeout_names_a_worker_that_is_stopped():
    with pytest.warns(RuntimeWarning, match="is stopped by SIGSTOP"):
        _, error = failure(DataLoader, data.Failing("pause"), timeout=1)
    assert "DataLoader timed out after 1 seconds: worker 1" in str(error)
    assert "is stopped by SIGSTOP" in str(error)
    gc.collect()


def test_timeouts():
    texts = []
    for each in BOTH:
        _, error = failure(each, data.Sleeping(1.6), timeout=0.2, num_workers=1)
        assert type(error) is RuntimeError
        texts.append(str(error))
    assert texts[0] == texts[1] == "DataLoader timed out after 0.2 seconds"


def test_a_timeout_that_is_long_enough():
    compare(data.Sleeping(0.3), timeout=60)


def workers_of(iterator):
    return [worker.pid for worker in iterator._workers]


def gone(pids, seconds=20):
    """Returns whether the processes end in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(map(alive, pids)):
            return True
        time.sleep(0.02)
    return False


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 5])
def test_an_iterator_that_is_dropped_ends_its_workers(persistent, taken):
    loader = DataLoader(data.Large(200, 1 << 16), num_workers=2,
                        persistent_workers=persistent)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    pids = workers_of(iterator)
    del iterator, loader
    assert gone(pids)


def test_an_iterator_that_is_dropped_while_a_worker_is_stopped():
    iterator = iter(DataLoader(data.Numbers(200), num_workers=2))
    next(iterator)
    pids = workers_of(iterator)
    os.kill(pids[0], signal.SIGSTOP)
    began = time.monotonic()
    del iterator
    assert gone(pids) and time.monotonic() - began < 4


def test_workers_end_with_the_epoch_unless_they_persist():
    for persistent in False, True:
        loader = DataLoader(data.Pids(), num_workers=2, batch_size=None,
                            persistent_workers=persistent)
        first, second = set(loader), set(loader)
        assert (first == second) == persistent
        assert any(map(alive, second)) == persistent
        del loader
        assert gone(first | second)


def test_programs_may_end_workers_themselves():
    """Lightning does so with persistent workers."""
    loader = DataLoader(data.Pids(), num_workers=2, persistent_workers=True)
    assert len(list(loader)) == 8
    assert isinstance(loader._iterator, torch.utils.data.dataloader
                      ._MultiProcessingDataLoaderIter)
    loader._iterator._shutdown_workers()
    loader._iterator = None
    assert len(list(loader)) == 8


def program(text, **options):
    """Runs a program in its own process and checks its whole output."""
    text = "import loader_data as data\nfrom haulway.ipc import DataLoader\n" + (
        textwrap.dedent(text))
    path = os.pathsep.join([HERE, *sys.path])
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True,
        timeout=120, env={**os.environ, "PYTHONPATH": path}, **options,
    )


def test_a_program_that_ends_with_live_iterators_is_quiet():
    done = program("""
        import os, signal, sys
        kept = []
        for persistent in False, True:
            loader = DataLoader(data.Numbers(100), num_workers=2,
                                persistent_workers=persistent)
            iterator = iter(loader)
            next(iterator)
            kept.append((loader, iterator))
        os.kill(iterator._workers[0].pid, signal.SIGSTOP)
        print("end")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_program_that_fails_in_the_loop_says_only_that():
    done = program("""
        for batch in DataLoader(data.Numbers(100), num_workers=2):
            raise ValueError("of the program")
    """)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    # Since Python 3.13 a traceback shows the lines of the program, indented.
    assert [line for line in lines if not line.startswith(" ") and "Error" in line] == [
        "ValueError: of the program"]


def test_ctrl_c_ends_the_program_and_its_workers():
    """As from a terminal, the signal reaches all processes while all wait."""
    done = program("""
        import os, signal, threading, time
        os.setpgid(0, 0)
        iterator = iter(DataLoader(data.Sleeping(30), num_workers=2,
                                   batch_size=None))
        threading.Timer(0.5, os.killpg, (0, signal.SIGINT)).start()
        try:
            next(iterator)
        except KeyboardInterrupt:
            pids = [worker.pid for worker in iterator._workers]
            began = time.monotonic()
            del iterator
            assert time.monotonic() - began < 4
            print("interrupted")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (
        0, "interrupted\n", "")


def test_nothing_stays_of_a_program_that_is_killed():
    path = os.pathsep.join([HERE, *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent("""
            import time
            import loader_data as data
            from haulway.ipc import DataLoader
            kept = []
            for dataset in data.Large(400, 1 << 20), data.Sleeping(100):
                iterator = iter(DataLoader(dataset, num_workers=2,
                                           batch_size=None))
                kept.append(iterator)
            next(kept[0])
            print(*(w.pid for i in kept for w in i._workers), flush=True)
            time.sleep(100)
        """)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    before = shared_files()
    pids = list(map(int, parent.stdout.readline().split()))
    assert len(pids) == 4 and all(map(alive, pids))
    parent.kill()
    parent.wait()
    assert gone(pids)
    assert not {name for name in shared_files() - before if "torch" in name
                and any(str(pid) in name for pid in [parent.pid, *pids])}


def shared_files():
    return set(os.listdir("/dev/shm"))


def refused_in_a_fork(call):
    """Whether `call` in a forked process tells whose the iterator is."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            call()
        except RuntimeError as error:
            code = 0 if "belongs to process" in str(error) else 2
        gc.collect()
        os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def test_a_fork_of_the_program_while_it_iterates():
    """The copy cannot get batches, and dropping its objects does no harm."""
    loader = DataLoader(data.Numbers(), num_workers=2)
    iterator = iter(loader)
    first = next(iterator)
    child = os.fork()
    if child == 0:
        del iterator, loader
        gc.collect()
        os._exit(0 if float(first[0][0, 0]) == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert refused_in_a_fork(lambda: next(iterator))
    assert len(list(iterator)) == 19


def test_a_fork_cannot_get_batches_that_arrived_early():
    context = multiprocessing.get_context("fork")
    event = context.Event()
    loader = DataLoader(data.Waiting(event), batch_size=1, num_workers=2,
                        multiprocessing_context=context)
    iterator = iter(loader)
    # The other worker's batches arrive while the first one is waited for.
    threading.Timer(0.5, event.set).start()
    assert int(next(iterator)) == 0
    assert refused_in_a_fork(lambda: next(iterator))
    assert list(map(int, iterator)) == list(range(1, 10))


def test_a_fork_cannot_begin_an_epoch_of_kept_workers():
    loader = DataLoader(data.Numbers(), num_workers=2, persistent_workers=True)
    assert len(list(loader)) == 20
    assert refused_in_a_fork(lambda: iter(loader))
    assert len(list(loader)) == 20


def test_an_iterator_may_move_between_threads():
    iterator = iter(DataLoader(data.Numbers(), num_workers=2))
    got = [next(iterator)]
    thread = threading.Thread(target=lambda: got.extend(iterator))
    thread.start()
    thread.join(60)
    assert [int(square) for _, square in got] == [i * i for i in range(20)]


def _warned_of_pickling():
    """Torch 2.6 does not warn."""
    if IS_OLD:
        return contextlib.nullcontext()
    return pytest.warns(UserWarning, match="pickle error")


def test_a_dataset_that_cannot_be_pickled_under_spawn():
    for each in BOTH:
        with _warned_of_pickling(), (
                pytest.raises((AttributeError, TypeError))):
            iter(each(data.Making(lambda i: i), num_workers=1,
                      multiprocessing_context="spawn"))
        gc.collect()
