#!/usr/bin/env python3
"""Weaknesses W1-W19 of the reference, tested on it and on Haulway.

    tools/arena_weaknesses.py                       both, one after the other
    tools/arena_weaknesses.py --peer-python PATH    where spdl-core is installed
    tools/arena_weaknesses.py --only W2 --library haulway

The same code runs on both, since they have the same names. Each case runs in
its own process, with a time limit; "fails" is an error, a wrong value or a
hang.
"""

import argparse
import functools
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

LIMIT_S = 25
CASES = {}


def case(name, what):
    def register(function):
        CASES[name] = (what, function)
        return function

    return register


class Numbered:
    def __init__(self, count, size, pid_path=None):
        self.count, self.size, self.pid_path = count, size, pid_path

    def __iter__(self):
        import numpy

        if self.pid_path:
            with open(self.pid_path + ".part", "w") as file:
                file.write(str(os.getpid()))
            os.rename(self.pid_path + ".part", self.pid_path)
        for i in range(self.count):
            yield numpy.full(self.size // 8, i, numpy.int64)


def numbered(*arguments):
    return functools.partial(Numbered, *arguments)


class Given:
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class Dies:
    def __iter__(self):
        yield 1
        time.sleep(0.5)  # A thread may need time to send the yielded item.
        os.kill(os.getpid(), signal.SIGKILL)


class MakesPipe:
    def __iter__(self):
        import multiprocessing

        self.ours, theirs = multiprocessing.Pipe()
        self.ours.send("through")
        yield theirs
        time.sleep(1)  # The receiver fetches the descriptor from this process.


def fails():
    raise ValueError("no factory")


def eventually(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.01)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def first(items):
    return [int(item[0]) for item in items]


def put(writer, data):
    writer.begin_unit()
    placed = writer.write_binary(data)
    return placed, writer.commit_unit()


def take(reader, placed, span):
    """Returns an array over a unit; the array keeps the unit."""
    import numpy

    view = numpy.frombuffer(reader.read_binary(*placed), numpy.uint8)
    reader.end_unit(span, [view])
    return view


@case("W1", "views stay as they are over passes")
def _(lib, scratch):
    pool = lib.SharedMemorySegmentPool(1 << 17, 4)
    source = lib.iterate_in_subprocess(numbered(10, 100_000), arena=pool)
    held = []
    for _ in range(5):
        for item in source:
            held.append((int(item[0]), item))
            break
        held = held[-2:]
    assert first(source) == list(range(10))
    for value, item in held:
        assert (item == value).all(), f"a view of {value} reads {item[0]}"


@case("W1b", "a late release frees nothing newer")
def _(lib, scratch):
    pool = lib.SharedMemorySegmentPool(4096, 2, acquire_timeout=0)
    writer, reader = pool.open_writer(), pool.open_reader()
    old = [take(reader, *put(writer, bytes([i]) * 4096)) for i in (1, 2)]
    writer.reset()
    old.pop(0)
    gc.collect()
    reader.reset()
    for i in (3, 4):
        try:
            put(writer, bytes([i]) * 4096)
        except BufferError:
            break
    assert (old[0] == 2).all(), f"a view of 2 reads {old[0][0]}"


@case("W2", "a killed worker is an error at once")
def _(lib, scratch):
    pool = lib.SharedMemorySegmentPool(1 << 17, 4)
    iterator = iter(lib.iterate_in_subprocess(Dies, arena=pool))
    next(iterator)
    start = time.monotonic()
    try:
        next(iterator)
    except RuntimeError:
        assert time.monotonic() - start < 5
        return
    raise AssertionError("no error")


@case("W2b", "so is one killed while it waits for room")
def _(lib, scratch):
    path = os.path.join(scratch, "pid")
    pool = lib.SharedMemorySegmentPool(1 << 17, 2)
    source = lib.iterate_in_subprocess(
        numbered(50, 100_000, path), arena=pool, buffer_size=9, timeout=10
    )
    iterator = iter(source)
    held = [next(iterator)]
    time.sleep(1)
    os.kill(int(open(path).read()), signal.SIGKILL)
    start = time.monotonic()
    try:
        while True:
            held.append(next(iterator))
            held = held[-1:]
    except RuntimeError:
        assert time.monotonic() - start < 5
        return


def hang(lib, path):
    pool = lib.SharedMemorySegmentPool(1 << 17, 2)
    source = lib.iterate_in_subprocess(numbered(50, 100_000, path), arena=pool)
    iterator = iter(source)
    item = next(iterator)
    time.sleep(1000)
    return item


@case("W2c", "a killed parent leaves no worker")
def _(lib, scratch):
    path = os.path.join(scratch, "pid")
    parent = os.fork()
    if parent == 0:
        hang(lib, path)
    eventually(lambda: os.path.exists(path), 10)
    worker = int(open(path).read())
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    try:
        eventually(lambda: not alive(worker), 8)
    finally:
        if alive(worker):
            os.kill(worker, signal.SIGKILL)


@case("W3", "spawn works")
def _(lib, scratch):
    source = lib.iterate_in_subprocess(
        numbered(4, 50_000), arena=lib.SharedMemorySegmentPool(1 << 16, 4),
        mp_context="spawn", timeout=15,
    )
    assert first(source) == [0, 1, 2, 3]


@case("W4", "the oldest item held stops nothing")
def _(lib, scratch):
    pool = lib.SharedMemorySegmentPool(1 << 17, 4, acquire_timeout=5)
    oldest = None
    source = lib.iterate_in_subprocess(numbered(20, 100_000), arena=pool)
    for i, item in enumerate(source):
        oldest = item if oldest is None else oldest
        assert item[0] == i
    assert i == 19


@case("W4b", "break where the arena is the limit")
def _(lib, scratch):
    pool = lib.SharedMemorySegmentPool(1 << 17, 2, acquire_timeout=5)
    source = lib.iterate_in_subprocess(
        numbered(20, 100_000), arena=pool, buffer_size=10
    )
    for _ in range(3):
        for item in source:  # noqa: B007
            time.sleep(0.2)
            break
        del item
    assert first(source) == list(range(20))


@case("W5", "nothing on stderr, no name left after a kill")
def _(lib, scratch):
    import multiprocessing

    before = set(os.listdir("/dev/shm"))
    path = os.path.join(scratch, "pid")
    pool = lib.SharedMemorySegmentPool(1 << 17, 2)
    first(lib.iterate_in_subprocess(numbered(4, 50_000), arena=pool))
    parent = multiprocessing.get_context("spawn").Process(
        target=hang, args=(lib, path)
    )
    parent.start()
    eventually(lambda: os.path.exists(path), 15)
    worker = int(open(path).read())
    parent.kill()
    parent.join()
    if alive(worker):
        os.kill(worker, signal.SIGKILL)
    eventually(lambda: set(os.listdir("/dev/shm")) <= before, 5)


@case("W6", "failing to start leaves nothing")
def _(lib, scratch):
    before = set(os.listdir("/dev/shm"))
    pool = lib.SharedMemorySegmentPool(1 << 17, 2)
    try:
        lib.iterate_in_subprocess(fails, arena=pool)
    except RuntimeError:
        pass
    assert set(os.listdir("/dev/shm")) <= before, "names left"


@case("W7", "small items take no segment")
def _(lib, scratch):
    import numpy

    pool = lib.SharedMemorySegmentPool(1 << 17, 1, acquire_timeout=3)
    source = lib.iterate_in_subprocess(
        functools.partial(Given, [numpy.ones(5000), 1, 2, 3]), arena=pool
    )
    held = list(source)
    assert held[1:] == [1, 2, 3]


@case("W8", "Python 3.13.0 works (tried there only)")
def _(lib, scratch):
    pool = lib.SharedMemorySegmentPool(1 << 17, 2)
    assert first(lib.iterate_in_subprocess(numbered(4, 50_000), arena=pool))


@case("W9", "many small objects cost at most twice a plain pass")
def _(lib, scratch):
    item = list(range(100_000))

    def seconds(arena):
        source = lib.iterate_in_subprocess(
            functools.partial(Given, [item] * 6), arena=arena
        )
        start = time.monotonic()
        assert len(list(source)) == 6
        return time.monotonic() - start

    plain = min(seconds(None) for _ in range(3))
    pool = min(seconds(lib.SharedMemorySegmentPool(1 << 17, 8))
               for _ in range(3))
    # Both include the fixed cost of a pass.
    assert pool < 2 * plain, f"{pool / plain:.1f} times as long"


@case("W10", "all dtypes and bytes-likes arrive as they were")
def _(lib, scratch):
    import numpy

    items = [
        numpy.arange(3000).astype("M8[s]"), numpy.array(["x"] * 3000, object),
        numpy.array([(1, 2.5)] * 3000, "i4,f8"),
        numpy.ma.masked_less(numpy.arange(3000.0), 5),
        numpy.asfortranarray(numpy.ones((90, 80))), {b"k" * 5000: 1},
        memoryview(b"small"),
    ]
    bad = []
    for item in items:
        pool = lib.SharedMemorySegmentPool(1 << 17, 2)
        try:
            (back,) = lib.iterate_in_subprocess(
                functools.partial(Given, [item]), arena=pool, timeout=4,
                mp_context="fork",
            )
            same = type(back) is type(item)
            if isinstance(item, numpy.ndarray):
                same = (same and back.dtype == item.dtype
                        and back.flags.f_contiguous == item.flags.f_contiguous
                        and (back == item).all())
            else:
                same = same and back == item
        except Exception:
            same = False
        if not same:
            bad.append(getattr(item, "dtype", type(item).__name__))
    assert not bad, f"not so: {bad}"


@case("W11", "an item larger than the arena arrives")
def _(lib, scratch):
    pool = lib.SharedMemorySegmentPool(1 << 16, 2)
    assert first(lib.iterate_in_subprocess(
        numbered(3, 1_000_000), arena=pool)) == [0, 1, 2]


@case("W12", "what only multiprocessing can pickle arrives")
def _(lib, scratch):
    for connection in lib.iterate_in_subprocess(
        MakesPipe, arena=lib.SharedMemorySegmentPool(1 << 16, 2), timeout=5,
        mp_context="fork",
    ):
        assert connection.recv() == "through"


@case("W13", "8 MB of /dev/shm are no limit, or are said to be at once")
def _(lib, scratch):
    if "HAULWAY_SMALL_SHM" not in os.environ:
        command = ("mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "
                   '"$0" "$@"')
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", command, sys.executable, __file__,
             "--in-process", "W13", "--library", lib.library],
            env={**os.environ, "HAULWAY_SMALL_SHM": "1"},
        )
        assert done.returncode == 0, f"status {done.returncode}"
        return
    pool = lib.SharedMemorySegmentPool(16 << 20, 2)
    assert first(lib.iterate_in_subprocess(
        numbered(3, 12 << 20), arena=pool, timeout=8)) == [0, 1, 2]


@case("W15", "dropping a view after close is silent")
def _(lib, scratch):
    pool = lib.SharedMemorySegmentPool(4096, 2)
    writer, reader = pool.open_writer(), pool.open_reader()
    view = take(reader, *put(writer, b"7" * 4096))
    pool.close()
    pool.unlink()
    assert view[0] == 55
    del view
    gc.collect()


@case("W17", "other threads run while it copies")
def _(lib, scratch):
    import numpy

    pool = lib.SharedMemorySegmentPool(200 << 20, 1)
    writer = pool.open_writer()
    data = memoryview(numpy.zeros(200 << 20, numpy.uint8))
    writer.begin_unit()
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    time.sleep(0.1)
    sys.setswitchinterval(1e-4)
    before = ticks[0]
    writer.write_binary(data)
    during = ticks[0] - before
    stop.set()
    thread.join()
    assert during > 3000, f"{during} turns of the other thread"


@case("W18", "a descriptor of nothing is an error")
def _(lib, scratch):
    ring = lib.SharedMemoryRingBuffer(4096)
    writer, reader = ring.open_writer(), ring.open_reader()
    put(writer, b"x" * 100)
    for offset, length in ((1 << 20, 10), (0, 1 << 20)):
        try:
            found = bytes(reader.read_binary(offset, length))
        except Exception:
            continue
        raise AssertionError(f"{len(found)} bytes at {offset}")


@case("W19", "two iterators at once are an error")
def _(lib, scratch):
    source = lib.iterate_in_subprocess(numbered(10, 8))
    one, two = iter(source), iter(source)
    try:
        items = [next(each) for each in (one, two, one, two)]
    except RuntimeError:
        return
    raise AssertionError(f"they share items: {first(items)}")


class Library:
    """One of the two libraries, which have the same names; can be pickled."""

    def __init__(self, library):
        self.library = library

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if self.library == "haulway":
            from haulway import ipc as module
        else:
            from spdl import pipeline as module
        return getattr(module, name)


def run_here(name, library):
    what, function = CASES[name]
    with tempfile.TemporaryDirectory() as scratch:
        try:
            function(Library(library), scratch)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            raise


def attempt(name, library, python):
    """Returns the result in a few words; empty on success."""
    if name == "W8":
        version = subprocess.run(
            [python, "-c", "import sys; print(sys.version_info[:3])"],
            capture_output=True, text=True).stdout.strip()
        if version != "(3, 13, 0)":
            return "not on this Python"
    with subprocess.Popen(
        [python, __file__, "--in-process", name, "--library", library],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            said, noise = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            noise = None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if noise is None:
            process.stderr.close()
            process.stdout.close()
            return f"fails: hangs for {LIMIT_S} s"
    if process.returncode == 0:
        # Messages are a failure only in the cases that test for them.
        if name not in ("W5", "W15") or not noise:
            return ""
        last = noise.decode().strip().splitlines()[-1]
        return f"fails: noise on stderr: {last}"[:90]
    lines = said.decode().strip().splitlines()
    last = lines[-1] if lines else f"exit code {process.returncode}"
    return f"fails: {last}"[:90]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only")
    parser.add_argument("--library", choices=["haulway", "spdl"])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--in-process", metavar="CASE")
    options = parser.parse_args()
    if options.in_process:
        run_here(options.in_process, options.library)
        return 0
    libraries = [options.library] if options.library else ["spdl", "haulway"]
    ours_bad = 0
    for name, (what, _) in CASES.items():
        if options.only and name != options.only:
            continue
        for library in libraries:
            python = (options.python if library == "haulway"
                      else options.peer_python)
            found = attempt(name, library, python)
            if library == "haulway" and found.startswith("fails"):
                ours_bad += 1
            print(f"{name:<4} {library:<8} {found or 'ok':<28} {what}",
                  flush=True)
    print("W14 and W16 are of the code, not of a run: byte-wise counters, and "
          "a lock in a finalizer.")
    print(f"{ours_bad} of Haulway's fail")
    return 1 if ours_bad else 0


if __name__ == "__main__":
    sys.exit(main())
