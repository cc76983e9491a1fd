"""What threads of a program do at once, with the GIL and in Pythons without."""

import os
import subprocess
import sys
import sysconfig
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import haulway
from haulway._threads import once
from haulway.ipc import SharedMemoryArena

THREADS = 8


def at_once(work):
    """Returns what work(number) returns on each of some threads, which begin
    together."""
    begin = threading.Barrier(THREADS)

    def begin_and_work(number):
        begin.wait(60)
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin_and_work, range(THREADS)))


def run(program, *arguments):
    """Runs a program of its own, which a fault of ours may end."""
    return subprocess.run([sys.executable, "-W", "error", "-c", program, *arguments],
                          check=True, text=True, capture_output=True,
                          timeout=300).stdout


# Calls work(number) on each of some threads while another thread calls change().
AT_ONCE = f"""
import os, sys, threading
import haulway
from haulway import _haulway


def at_once(work, change):
    over = threading.Event()

    def change_on():
        while not over.is_set():
            change()

    def keep(number):
        try:
            work(number)
        except BaseException as error:
            raised.append(error)

    raised = []
    threads = [threading.Thread(target=keep, args=(n,)) for n in range({THREADS})]
    changer = threading.Thread(target=change_on)
    for thread in (changer, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    changer.join()
    if raised:
        raise raised[0]
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file of some tensors, and what it holds."""
    tensors = {f"layer.{n}": np.full((64, 1024), n, np.float32) for n in range(32)}
    path = tmp_path_factory.mktemp("threads") / "saved.safetensors"
    haulway.save(tensors, path)
    return path, tensors


def test_the_extension_leaves_the_gil_off():
    program = ("import sys\nimport haulway\nhaulway.load\n"
               "print(getattr(sys, '_is_gil_enabled', lambda: True)())\n")
    has_gil = not sysconfig.get_config_var("Py_GIL_DISABLED")
    assert run(program) == f"{has_gil}\n"


def test_one_file_is_loaded_by_all(saved):
    path, tensors = saved

    def load(_):
        for _ in range(5):
            loaded = haulway.load(path, "numpy")
            assert loaded.keys() == tensors.keys()
            assert all((loaded[name] == tensors[name]).all() for name in tensors)

    at_once(load)


def test_one_checkpoint_is_read_by_all(saved):
    path, tensors = saved
    with haulway.open(path, "numpy") as checkpoint:
        at_once(lambda _: [np.testing.assert_array_equal(checkpoint[name], tensor)
                           for name, tensor in tensors.items()])


def test_each_saves_and_verifies(tmp_path):
    shared = np.arange(1 << 16)

    def save(number):
        path = tmp_path / f"{number}.pt"
        haulway.save({"own": np.full(1000, number), "shared": shared}, path)
        assert haulway.verify(path).ok
        loaded = haulway.load(path, "numpy")
        assert (loaded["own"] == number).all() and (loaded["shared"] == shared).all()

    at_once(save)


def test_a_stream_hands_each_tensor_to_one(saved):
    path, tensors = saved
    stream = haulway.iterate(path, "numpy")
    lock = threading.Lock()

    def take(_):
        taken = []
        while True:
            with lock:  # As any generator of Python needs.
                row = next(stream, None)
            if row is None:
                return taken
            taken.append(row[0])

    assert sorted(sum(at_once(take), [])) == sorted(tensors)


def test_what_progress_raises_is_raised_by_its_own_load(saved):
    path, _ = saved

    def load(number):
        def told(done, total):
            if number % 2:
                raise LookupError(number)

        try:
            haulway.load(path, "numpy", progress=told)
        except LookupError as error:
            return error.args[0]
        return None

    for _ in range(5):
        assert at_once(load) == [None, 1, None, 3, None, 5, None, 7]


def test_each_unit_of_an_arena_is_claimed_once():
    arena = SharedMemoryArena(1 << 20, max_units=4000)
    writer = arena.open_writer()
    for _ in range(3000):
        writer.begin_unit()
        writer.write_binary(b"some bytes")
        writer.commit_unit()

    def claim(_):
        reader, claims = arena.open_reader()._native, []
        while True:
            try:
                claims.append(reader.claim_next())
            except haulway.UnavailableError:
                return claims

    assert sum(map(len, at_once(claim))) == 3000
    assert arena.stats()["releases"] == 3000


def test_an_arena_has_one_writer():
    for _ in range(100):
        arena = SharedMemoryArena(1 << 16)
        writers = at_once(lambda _: arena.open_writer()._native)  # noqa: B023
        writers[0].begin(0)
        assert all(writer.in_unit for writer in writers)


def test_options_may_be_set_at_once():
    names = ["verify", "io", "threads", "memory_budget"]  # Each of its own group.
    values = {name: getattr(haulway.config.load, name) for name in names}

    def set_one(number):
        name = names[number % len(names)]
        for _ in range(200):
            setattr(haulway.config.load, name, values[name])
            assert haulway.config.load.origin(name) == "process"

    try:
        at_once(set_one)
        assert {haulway.config.load.origin(name) for name in names} == {"process"}
    finally:
        for name in names:
            delattr(haulway.config.load, name)


def test_the_environment_may_change_meanwhile(small):
    program = AT_ONCE + """
path = sys.argv[1]


def work(number):
    for _ in range(300):
        assert haulway.config.load.origin("threads") == "environment"
        with haulway.open(path, framework=None) as checkpoint:
            assert len(checkpoint) > 0


def change():
    for n in range(300):
        os.environ[f"OTHER_{n}"] = "x" * n
    for n in range(300):
        del os.environ[f"OTHER_{n}"]


at_once(work, change)
"""
    environment = {**os.environ, "HAULWAY_LOAD_THREADS": "2"}
    subprocess.run([sys.executable, "-c", program, str(small)], check=True,
                   env=environment, timeout=300)


def test_containers_may_change_while_they_are_saved():
    program = AT_ONCE + """
values = [[n] for n in range(3000)]
names = {f"name {n}": [n] for n in range(3000)}


def work(number):
    for _ in range(60):
        for object in values, names:
            try:
                _haulway.pickle_object(object)
            except RuntimeError as error:
                assert "changed size during iteration" in str(error), error


def change():
    del values[100:]
    values.extend([n] for n in range(2900))
    for n in range(3000):
        names[f"name {n}"] = [n]
    for n in range(100):
        names[f"other {n}"] = [n]
    for n in range(100):
        del names[f"other {n}"]


at_once(work, change)
"""
    run(program)


def test_a_child_does_not_wait_for_threads_that_it_lacks(saved):
    # The thread that forks holds the locks, as another thread may.
    path, tensors = saved
    program = """
        import io, os, sys, signal
        import haulway
        from haulway._making import allowed
        from haulway._threads import ThreadLock

        class File(io.RawIOBase):
            def __init__(self, data):
                self.data = io.BytesIO(data)

            def seekable(self):
                return True

            def seek(self, *where):
                return self.data.seek(*where)

            def tell(self):
                return self.data.tell()

            def readinto(self, buffer):
                return self.data.readinto(buffer)

        made = []

        def make(lock, make=ThreadLock.__init__):
            make(lock)
            made.append(lock)

        ThreadLock.__init__ = make
        path = sys.argv[1]
        checkpoint = haulway.open(path, "numpy")
        with open(path, "rb") as file:
            of_file = haulway.open(File(file.read()), "numpy")
        with made[0], made[1], made[2], allowed._lock:
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                for number in range(2):
                    assert checkpoint["layer.1"][0, 0] == 1
                    assert of_file["layer.2"][0, 0] == 2
                    assert checkpoint.stats()["tensors"] == number + 1
                    assert haulway.load(path, "numpy")["layer.3"][0, 0] == 3
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "the child waits"
    """
    run(textwrap.dedent(program), str(path))


def test_what_is_computed_once_is_not_waited_for():
    computing, finish = threading.Event(), threading.Event()

    class Slow:
        calls = 0

        @once
        def value(self):
            """The value."""
            self.calls += 1
            if self.calls == 1:
                computing.set()
                finish.wait(60)
            return [self.calls]

    slow, found = Slow(), []
    thread = threading.Thread(target=lambda: found.append(slow.value))
    thread.start()
    computing.wait(60)
    mine = slow.value
    finish.set()
    thread.join()
    assert mine == [2] and found[0] is mine is slow.value
    assert Slow.value.__doc__ == "The value."


def test_threads_of_the_engine_do_not_keep_a_child_waiting(saved):
    # Opening and loading take locks of the library without the GIL.
    program = """
        import os, signal, sys, threading
        import haulway

        path = sys.argv[1]

        def work():
            with haulway.open(path, "numpy") as checkpoint:
                checkpoint["layer.0"]
            haulway.load(path, "numpy", io="pread")

        def on():
            while not over.is_set():
                work()

        work()
        over = threading.Event()
        threads = [threading.Thread(target=on) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(60):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                work()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0, "a child waits"
        over.set()
        for thread in threads:
            thread.join()
    """
    path, _ = saved
    run(textwrap.dedent(program), str(path))


SUBINTERPRETERS = """
try:
    import _interpreters as interpreters
    make = lambda: interpreters.create("legacy")
    run = interpreters.run_string
except ImportError:
    import _xxsubinterpreters as interpreters
    make = lambda: interpreters.create(isolated=False)
    run = interpreters.run_string
"""


def test_a_subinterpreter_is_refused_and_harms_nothing(saved):
    path, tensors = saved
    program = SUBINTERPRETERS + textwrap.dedent("""
        import sys
        import haulway

        checkpoint = haulway.open(sys.argv[1], "numpy")
        other = make()
        inside = '''
        import haulway
        for name in ("load", "open"):
            try:
                getattr(haulway, name)
            except ImportError as error:
                assert "subinterpreter" in str(error), error
                print(name, "refused", flush=True)
        '''
        import textwrap
        failed = run(other, textwrap.dedent(inside))
        assert failed is None, failed
        assert checkpoint["layer.1"][0, 0] == 1
        interpreters.destroy(other)
        assert checkpoint["layer.2"][0, 0] == 2
        assert haulway.load(sys.argv[1], "numpy")["layer.3"][0, 0] == 3
        print("works")
    """)
    told = run(program, str(path))
    assert told == "load refused\nopen refused\nworks\n"
