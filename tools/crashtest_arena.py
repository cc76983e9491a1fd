#!/usr/bin/env python3
"""Kills workers and parents at random moments; see scripts/crashtest."""

import argparse
import functools
import gc
import multiprocessing
import os
import random
import select
import signal
import struct
import sys
import time

import numpy

from haulway import ipc

KINDS = {
    "arena": lambda: ipc.SharedMemoryArena(1 << 20),
    "pool": lambda: ipc.SharedMemorySegmentPool(1 << 17, 4),
    "ring": lambda: ipc.SharedMemoryRingBuffer(1 << 19),
    "none": lambda: None,
}
VICTIMS = ["worker", "parent", "both"]
SIZES = [64, 5_000, 70_000, 300_000, 1_500_000]
# Results that the parent of a round reports to us.
FINE, TORN, WRONG_ERROR, SLOW = 1, 2, 3, 4
NOTICE_S = 5.0  # 20 ms on an idle machine.


class Flood:
    """Items of random sizes with known content."""

    def __init__(self, seed, arena):
        self.seed, self.arena = seed, arena

    def __iter__(self):
        sizes = random.Random(self.seed)
        n = 0
        while True:
            words = sizes.choice(SIZES) // 8
            if n % 5 == 4 and hasattr(self.arena, "empty"):
                data = self.arena.empty((words,), "int64")
                data[:] = n
            else:
                data = numpy.full(words, n, numpy.int64)
            yield {"n": n, "data": data, "more": bytes([n % 251]) * words}
            n += 1


def flood(seed, arena):
    return Flood(seed, arena)


def is_whole(item, n, data):
    more = item["more"]
    return (
        item["n"] == n and (data == n).all()
        and len(more) == len(data)
        and bytes(more) == bytes([n % 251]) * len(data)
    )


def parent(kind, method, seed, report, killed_at):
    """Runs as the parent of one round. Reports its worker's pid, then the
    result."""
    rounds = random.Random(seed)
    arena = KINDS[kind]()
    source = ipc.iterate_in_subprocess(
        functools.partial(flood, seed, arena), arena=arena, mp_context=method,
        buffer_size=rounds.choice([1, 3, 8]),
    )
    os.write(report, struct.pack("<Bi", 0, source._process.pid))
    held, n, outcome = [], 0, FINE
    try:
        while True:
            for item in source:
                if not is_whole(item, n, item["data"]):
                    outcome = TORN
                held.append((n, item["data"]))
                if len(held) > 3:
                    held.pop(rounds.randrange(len(held)))
                n += 1
                if rounds.random() < 0.02:
                    break
            n = 0
    except ipc.WorkerDied as died:
        late = time.monotonic() - killed_at.value
        if killed_at.value and late > NOTICE_S:
            outcome = SLOW
        if died.exitcode != -signal.SIGKILL:
            outcome = WRONG_ERROR
    # Views outlive the worker.
    for value, data in held:
        if not (data == value).all():
            outcome = TORN
    os.write(report, struct.pack("<Bi", outcome, 0))


def open_pidfd(pid):
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def gone(pidfd, seconds):
    if pidfd is None:
        return True
    ready = select.select([pidfd], [], [], seconds)[0]
    os.close(pidfd)
    return bool(ready)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def shared_memory():
    return set(os.listdir("/dev/shm"))


class Failed(Exception):
    pass


def one_round(number, kind, method, victim, chance, slowest):
    """Kills once; raises Failed with the fault."""
    seed = chance.randrange(1 << 30)
    killed_at = multiprocessing.get_context("fork").Value("d", 0.0, lock=False)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 1
        try:
            parent(kind, method, seed, writing, killed_at)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    parent_fd, worker_fd = os.pidfd_open(child), None
    try:
        # Sometimes kill the parent before it has a worker.
        wait = chance.expovariate(1 / slowest)
        early = victim == "parent" and chance.random() < 0.2
        worker = None
        if not early:
            if not select.select([reading], [], [], 60)[0]:
                raise Failed("the parent did not start its worker")
            message = os.read(reading, 5)
            if len(message) != 5 or message[0] != 0:
                raise Failed("the parent died by itself")
            worker = struct.unpack("<Bi", message)[1]
            worker_fd = open_pidfd(worker)
        time.sleep(min(wait, 10 * slowest))
        killed_at.value = time.monotonic()
        doomed = {"worker": [worker], "parent": [child],
                  "both": [worker, child]}[victim]
        chance.shuffle(doomed)
        for pid in doomed:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if victim == "worker":
            if not select.select([reading], [], [], 60)[0]:
                raise Failed("the parent hangs")
            message = os.read(reading, 5)
            if len(message) != 5:
                raise Failed("the parent died of it")
            if message[0] != FINE:
                raise Failed({TORN: "torn data", SLOW: "noticed late"}.get(
                    message[0], "the wrong error"))
        ended = gone(parent_fd, 60)
        parent_fd = None
        if not ended:
            raise Failed("the parent does not end")
        ended = gone(worker_fd, 60)
        worker_fd = None
        if not ended:
            raise Failed("the worker lives on")
    finally:
        for fd in (parent_fd, worker_fd):
            if fd is not None:
                os.close(fd)
        os.close(reading)
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        status = os.waitpid(child, 0)[1]
    if victim == "worker" and status != 0:
        raise Failed(f"the parent ended with status {status}")


def descendants():
    """Returns the processes of this run: they share our session."""
    mine = os.getsid(0)
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if pid != os.getpid() and os.getsid(pid) == mine:
                with open(f"/proc/{pid}/stat") as file:
                    if file.read().rsplit(")", 1)[1].split()[0] != "Z":
                        found.append(pid)
        except (OSError, ProcessLookupError):
            continue
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--methods", default="fork",
                        help="start methods, such as fork,spawn")
    options = parser.parse_args()
    if os.getsid(0) != os.getpid():
        # Start a new session, which identifies remaining processes.
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os.setsid()
    chance = random.Random(options.seed)
    methods = options.methods.split(",")
    # A first round opens what is kept open, so that it does not count as a
    # leak.
    one_round(0, "arena", methods[0], "worker", chance, 0.004)
    gc.collect()
    memory_before, descriptors_before = shared_memory(), descriptors()
    counts = dict.fromkeys(VICTIMS, 0)
    failures = []
    started = time.monotonic()
    for number in range(options.runs):
        kind = chance.choice(list(KINDS))
        victim = chance.choice(VICTIMS)
        method = chance.choice(methods)
        slowest = 0.004 if method == "fork" else 0.02
        try:
            one_round(number, kind, method, victim, chance, slowest)
        except Failed as failed:
            failures.append(failed)
            print(f"round {number}, {kind}, {method}, {victim}: {failed}",
                  flush=True)
        counts[victim] += 1
        if number % 1000 == 999:
            print(f"{number + 1} killed in {time.monotonic() - started:.0f} s, "
                  f"{len(failures)} failures", flush=True)
    # A worker whose parent died before it reported the worker ends within a
    # second.
    deadline = time.monotonic() + 20
    while descendants() and time.monotonic() < deadline:
        time.sleep(0.05)
    left = {
        "processes": len(descendants()),
        "descriptors": descriptors() - descriptors_before,
        "names in /dev/shm": len(shared_memory() - memory_before),
    }
    print(", ".join(f"SIGKILL of {name}: {n}" for name, n in counts.items()))
    print(", ".join(f"{name} left: {n}" for name, n in left.items()))
    print(f"{sum(counts.values())} rounds, {len(failures)} failures")
    return 1 if failures or any(left.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
