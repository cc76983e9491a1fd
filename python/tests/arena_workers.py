"""Worker functions for the arena tests; importable under spawn."""

import os
import signal
import threading
import time

import numpy

from haulway import ipc


class Counted:
    """An iterable of `count` items that can be iterated again."""

    def __init__(self, count, size=0, kind="array"):
        self.count = count
        self.size = size
        self.kind = kind

    def __iter__(self):
        for i in range(self.count):
            if not self.size:
                yield i
            elif self.kind == "bytes":
                yield bytes([i % 256]) * self.size
            else:
                yield numpy.full(self.size // 8, i, numpy.int64)


def counted(count, size=0, kind="array"):
    return Counted(count, size, kind)


def generator(count):
    yield from range(count)


class FailsAfter:
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        yield from range(self.count)
        raise KeyError("no more")


def fails_after(count):
    return FailsAfter(count)


class FailsToIterate:
    def __iter__(self):
        raise ValueError("cannot be iterated")


def fails_to_iterate():
    return FailsToIterate()


def fails_at_once():
    raise ValueError("no factory")


class Killed:
    """Kills its own process, by a signal or by exiting."""

    def __init__(self, after, how, size):
        self.after, self.how, self.size = after, how, size

    def __iter__(self):
        for i in range(self.after):
            yield numpy.full(self.size // 8, i, numpy.int64)
        if self.how == "exit":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)


def killed(after, how="kill", size=8000):
    return Killed(after, how, size)


def forever(size=8000):
    class Forever:
        def __iter__(self):
            i = 0
            while True:
                yield numpy.full(size // 8, i, numpy.int64)
                i += 1

    return Forever()


def silent():
    class Silent:
        def __iter__(self):
            yield 1
            time.sleep(3600)

    return Silent()


def pids():
    return [os.getpid()]


def unpicklable():
    return [1, lambda: None]


SEEN = []


def note(value):
    SEEN.append(value)


def seen():
    return list(SEEN)


def writes_pid(path):
    """Reports its pid, then fills as many items as it can."""
    with open(path + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".part", path)
    return forever(100_000)


class Lends:
    def __init__(self, arena, count, torch_dtype):
        self.arena, self.count, self.torch_dtype = arena, count, torch_dtype

    def __iter__(self):
        for i in range(self.count):
            if self.torch_dtype:
                import torch

                loan = self.arena.empty((100, 100), torch.float32)
                loan.fill_(i)
            else:
                loan = self.arena.empty((100, 100), "float32")
                loan[:] = i
            yield {"whole": loan, "part": loan[10:50], "copy": loan * 2}


def lends(arena, count, torch_dtype=False):
    return Lends(arena, count, torch_dtype)


def consume_and_hang(path, kind):
    """A parent process for a test to kill."""
    arena = {
        "pool": lambda: ipc.SharedMemorySegmentPool(1 << 20, 2),
        "arena": lambda: ipc.SharedMemoryArena(1 << 20),
        "none": lambda: None,
    }[kind]()
    import functools

    source = ipc.iterate_in_subprocess(
        functools.partial(writes_pid, path), arena=arena
    )
    held = []
    for item in source:
        held.append(item)
        if len(held) == 2:
            time.sleep(3600)


class Produces:
    """A pipeline that must be entered as a context manager."""

    def __init__(self, count):
        self.count = count
        self.entered = False

    def __enter__(self):
        self.entered = True
        return self

    def __exit__(self, *error):
        self.entered = False

    def __iter__(self):
        for i in range(self.count):
            assert self.entered
            yield i


def produces(count):
    return Produces(count)


class Packets:
    """Media packets that can serialise themselves."""

    made = 0

    def __init__(self, data, rate):
        self.data, self.rate = data, rate

    def __reduce__(self):
        return Packets, (bytes(self.data), self.rate)


class PacketsHandler:
    kind = "packets"
    types = (Packets,)
    threshold = 5000

    def matches(self, obj, threshold):
        return isinstance(obj, Packets) and len(obj.data) >= threshold

    def get_buffer(self, obj):
        return memoryview(obj.data), (obj.rate,)

    def from_buffer(self, buf, meta, zero_copy):
        view = memoryview(buf)
        return Packets(view if zero_copy else bytes(view), *meta), view


class Makes:
    def __iter__(self):
        for i in range(4):
            yield Packets(bytes([i]) * 9000, i)


def consumes(consumer, results, passes=1, stop_at=None, then=None, hold=0):
    """Consumes a broadcast in its own process.

    Reports the items of each pass. At item `stop_at` of the first pass it
    breaks, is killed, leaves, or exits, as `then` says.
    """
    held = []
    for turn in range(passes):
        got = []
        for item in consumer:
            assert (item == item[0]).all()
            got.append(int(item[0]))
            held = (held + [item])[-hold:] if hold else []
            if turn == 0 and len(got) == stop_at:
                if then == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if then == "leave":
                    consumer.close()
                    results.put((consumer.index, turn, got))
                    time.sleep(1000)
                if then == "exit":
                    return
                break
        item = None
        for view in held:
            assert (view == view[0]).all()
        results.put((consumer.index, turn, got))


class Pauses:
    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds

    def __iter__(self):
        for i in range(self.count):
            time.sleep(self.seconds)
            yield i


def pauses(count, seconds):
    return Pauses(count, seconds)


def some_large(words, large, small):
    """Large arrays, then small ones."""
    yield from Counted(large, 8 * words)
    for n in range(small):
        yield numpy.full(100 if n % 2 else 50_000, large + n, numpy.int64)


class Gated:
    """The first pass gives its items at once; later ones wait for a file,
    until which they give nothing."""

    def __init__(self, count, path):
        self.count, self.path = count, path
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        while self.passes > 1 and not os.path.exists(self.path):
            time.sleep(0.01)
        yield from range(self.count)


class Slow:
    """Items that each take some time."""

    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds

    def __iter__(self):
        for n in range(self.count):
            threading.Event().wait(self.seconds)
            yield n
