"""haulway.publish between processes: every way to start them, kills, and other
users' processes.

Children are forked and use only NumPy, so that a hundred of them are quick.
"""

import ctypes
import gc
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
import traceback
import zlib

import numpy as np
import pytest

import haulway

MIB = 1 << 20


@pytest.fixture
def name(request):
    text = f"test-{os.getpid()}-{request.node.name}"
    yield "".join(c if c.isalnum() or c in "._-" else "_" for c in text)[:100]
    for publication in list(haulway._sharing.publish._publications.values()):
        publication.close()


@pytest.fixture
def fork():
    """Runs functions in children; kills the remaining children at the end."""
    children = set()

    def fork(work, *arguments):
        child = os.fork()
        if child == 0:
            code = 3
            try:
                work(*arguments)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.add(child)
        return child

    def kill(child):
        """Kills a child; returns how it ended."""
        os.kill(child, signal.SIGKILL)
        return end(child)

    def end(child):
        children.discard(child)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    fork.kill, fork.end = kill, end
    yield fork
    for child in list(children):
        kill(child)


def listed(run, name):
    found = json.loads(run("arena", "ls", "--json").stdout)["publications"]
    return [each for each in found if each["name"] == name]


def folder():
    return f"/tmp/haulway-{os.geteuid()}"


def state_of(number, size=20_000):
    """Returns a state whose every byte identifies it, with a checksum."""
    array = np.full(size, number, np.int64)
    return {"number": number, "crc": zlib.crc32(array), "a": array,
            "parts": [np.full(50, number), {"deep": np.full((3, 7), number)}]}


def check_whole(state):
    number = state["number"]
    assert zlib.crc32(state["a"]) == state["crc"]
    assert (state["a"] == number).all()
    assert (state["parts"][0] == number).all()
    assert (state["parts"][1]["deep"] == number).all()
    return number


def keep_publishing(name, last=None):
    while True:
        try:
            publication = haulway.publish(name, state_of(0))
            break
        except haulway.UnavailableError:
            time.sleep(0.001)  # The killed process has not been reaped yet.
    while last is None or publication.version < last:
        haulway.publish(name, state_of(publication.version + 1))


def keep_reading(name, last=None):
    seen = 0
    with haulway.subscribe(name) as held:
        while True:
            check_whole(held.state)
            assert held.version > seen
            seen = held.version
            if last is not None and seen >= last:
                return
            older = held.state["a"], held.state["crc"]
            held.wait()
            assert zlib.crc32(older[0]) == older[1], "it was held"
            del older


# Ways to start

def sum_of(held):
    return int(held.state["a"].sum())


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_subscription_goes_to_workers(name, method):
    haulway.publish(name, {"a": np.arange(100)})
    held = haulway.subscribe(name, timeout=60)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(sum_of, (held,)) == 4950


def test_an_unrelated_process_attaches_and_follows(name):
    haulway.publish(name, {"a": np.arange(100)})
    code = ("import sys, haulway\n"
            "held = haulway.subscribe(sys.argv[1], timeout=60)\n"
            "print(held.version, held.state['a'].sum(), flush=True)\n"
            "held.wait(timeout=60)\n"
            "print(held.version, held.state['a'].sum(), flush=True)\n")
    with subprocess.Popen(
        [sys.executable, "-c", code, name], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as other:
        assert other.stdout.readline() == "1 4950\n"
        haulway.publish(name, {"a": np.arange(10)})
        assert other.stdout.readline() == "2 45\n"


def test_a_forked_child_uses_the_subscription_of_its_parent(name, fork):
    haulway.publish(name, state_of(1))
    held = haulway.subscribe(name, timeout=60)

    def follow():
        assert check_whole(held.state) == 1
        assert held.wait(timeout=60) == 2
        assert check_whole(held.state) == 2

    child = fork(follow)
    haulway.publish(name, state_of(2))
    assert fork.end(child) == 0
    assert held.version == 1 and check_whole(held.state) == 1


# Two publishers

def test_a_second_publisher_is_told_who_the_first_is(name, fork):
    first = fork(keep_publishing, name)
    held = haulway.subscribe(name, timeout=60)
    with pytest.raises(haulway.UnavailableError,
                       match=f"is published already: by process {first}$"):
        haulway.publish(name, state_of(0))
    assert held.wait(timeout=60) > 1, "the first one goes on"
    fork.kill(first)
    check_whole(held.state)
    newest = haulway.subscribe(name, timeout=60)
    check_whole(newest.state)
    publication = haulway.publish(name, state_of(5))
    assert publication.version == newest.version + 1
    assert held.wait(timeout=60) == publication.version
    assert check_whole(held.state) == 5


def test_a_forked_child_is_no_publisher_and_keeps_no_name(name, fork):
    ready, tell = os.pipe()

    def publish_and_fork():
        publication = haulway.publish(name, state_of(1))
        first = os.getpid()
        child = os.fork()
        if child == 0:
            for call in (lambda: haulway.publish(name, 0),
                         lambda: publication._show(0, 1)):
                try:
                    call()
                except haulway.UnavailableError as error:
                    assert str(first) in str(error)
                else:
                    os._exit(3)
            os.write(tell, str(os.getpid()).encode())
        signal.pause()

    first = fork(publish_and_fork)
    child = int(os.read(ready, 100))
    try:
        fork.kill(first)
        assert haulway.publish(name, state_of(1)).version == 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(ready)
        os.close(tell)


# Killed

@pytest.mark.alone  # All processes share /dev/shm.
def test_a_hundred_kills_lose_nothing_and_leave_nothing(name, fork, run):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    before = sorted(os.listdir("/dev/shm"))
    publisher = fork(keep_publishing, name)
    readers = [fork(keep_reading, name) for _ in range(3)]
    witness = haulway.subscribe(name, timeout=60)
    for _ in range(100):
        time.sleep(chance.random() * 0.01)  # A random moment.
        if chance.random() < 0.5:
            assert fork.kill(publisher) == -signal.SIGKILL
            newest = haulway.subscribe(name, timeout=60)
            check_whole(newest.state)
            assert newest.version >= witness.version
            del newest
            publisher = fork(keep_publishing, name)
        else:
            dead = chance.randrange(len(readers))
            assert fork.kill(readers[dead]) == -signal.SIGKILL
            readers[dead] = fork(keep_reading, name)
        witness.wait(timeout=60)
        check_whole(witness.state)
    for child in (publisher, *readers):
        assert fork.kill(child) == -signal.SIGKILL
    facts = listed(run, name)[0]
    assert facts["publisher"] == 0 and facts["readers"] == 1
    assert check_whole(haulway.subscribe(name, timeout=60).state) >= 0
    check_whole(witness.state)
    witness.close()
    assert listed(run, name) == [], "the kernel freed it with the last one"
    assert sorted(os.listdir("/dev/shm")) == before


def test_names_of_the_dead_are_swept(name, fork, run):
    files = [f"{name}-{i}" for i in range(3)]
    for each in files:
        child = fork(keep_publishing, each)
        haulway.subscribe(each, timeout=60).close()
        fork.kill(child)
    assert files[-1] in os.listdir(folder())
    assert files[0] not in os.listdir(folder()), "the next one swept it"
    for each in files:
        with pytest.raises(haulway.TimedOutError):
            haulway.subscribe(each, timeout=0)
    haulway.publish(name, 1)
    assert not set(files) & set(os.listdir(folder()))
    child = fork(keep_publishing, files[0])
    haulway.subscribe(files[0], timeout=60).close()
    assert files[0] not in json.loads(run("arena", "sweep", "--json").stdout)[
        "swept"], "it lives"
    fork.kill(child)
    swept = json.loads(run("arena", "sweep", "--json").stdout)["swept"]
    assert files[0] in swept and name not in swept
    assert not set(files) & set(os.listdir(folder()))


def test_a_publisher_that_ends_removes_its_name(name, fork):
    child = fork(keep_publishing, name, 5)
    assert fork.end(child) == 0  # Without running exit handlers.
    code = f"import haulway; haulway.publish({name!r}, 1)"
    subprocess.run(
        [sys.executable, "-c", code], check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert name not in os.listdir(folder())


# Under load

def test_a_program_may_end_while_a_thread_publishes(name):
    code = """
import sys, threading, numpy, haulway

state = {"x": numpy.zeros(500_000)}
def publish_for_ever():
    while True:
        haulway.publish(sys.argv[1], state)

threading.Thread(target=publish_for_ever, daemon=True).start()
haulway.subscribe(sys.argv[1]).wait(newer_than=200)
"""
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", code, name], stderr=subprocess.DEVNULL,
            timeout=60,
        )
        assert done.returncode == 0
    assert name not in os.listdir(folder())


def test_every_version_that_is_seen_is_whole(name, fork):
    readers = [fork(keep_reading, name, 400) for _ in range(2)]
    publisher = fork(keep_publishing, name, 400)
    assert fork.end(publisher) == 0
    # A reader that still reads keeps the last version; the others have read it.
    for reader in readers:
        fork.kill(reader)
    held = fork(keep_reading, name, 400)
    keep_publishing(name, 400)
    assert fork.end(held) == 0


def test_a_soak_takes_no_more_memory_and_no_more_files(name, run):
    held = None

    def publish_and_read(first, count):
        nonlocal held
        for number in range(first, first + count):
            haulway.publish(name, state_of(number))
            if held is None:
                held = haulway.subscribe(name, timeout=60)
            else:
                held.wait(timeout=60)
            assert check_whole(held.state) == number

    def taken():
        facts = listed(run, name)[0]
        with open("/proc/self/maps") as maps:
            mapped = sum("haulway-publication" in line for line in maps)
        return (facts["held_bytes"], len(os.listdir("/proc/self/fd")), mapped,
                len(os.listdir(folder())))

    gc.collect()  # What earlier tests left might go meanwhile.
    publish_and_read(1, 20)
    before = taken()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    publish_and_read(21, 2000)
    assert taken() == before
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident
    assert grown < 16 << 10  # KiB.


# Limits and rights

def test_a_limit_of_the_system_is_an_error(name, fork):
    def publish_too_much():
        publication = haulway.publish(name, state_of(1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (300 * MIB, 300 * MIB))
        try:
            haulway.publish(name, np.zeros(1 << 30, np.int8))
        except haulway.LimitError as error:
            assert re.search(r"no memory to share: 1073\d* bytes wanted, "
                             r"314572800 available by RLIMIT_FSIZE", str(error))
        else:
            raise AssertionError("it was published")
        held = haulway.subscribe(name, timeout=60)
        assert held.version == 1 and check_whole(held.state) == 1
        haulway.publish(name, state_of(2))
        assert publication.version == 2

    assert fork.end(fork(publish_too_much)) == 0


def test_what_a_limit_of_addresses_leaves_is_said(name, fork):
    def publish_too_much():
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        limit = taken + (256 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        with pytest.raises(haulway.LimitError) as caught:
            haulway.publish_buffer(name, 1 << 33)
        available = re.search(r"wanted, (\d+) available", str(caught.value))
        assert 0 < int(available[1]) <= 256 << 20

    assert fork.end(fork(publish_too_much)) == 0


def allow_more_descriptors(count):
    taken = set(map(int, os.listdir("/proc/self/fd")))
    free = (fd for fd in range(1 << 20) if fd not in taken)
    most = [next(free) for _ in range(count + 1)][-1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@pytest.mark.parametrize("count", range(6))
def test_without_descriptors_nobody_publishes_or_waits_in_vain(
        name, fork, count):
    haulway.publish(name, 1)

    def publish_and_subscribe():
        sys.stderr.flush()
        subscribe = haulway.subscribe  # It imports its module now.
        allow_more_descriptors(count)
        with pytest.raises((haulway.IoError, haulway.UnavailableError)):
            haulway.publish(name, 2)
        try:
            subscribe(name, timeout=10).close()
        except haulway.IoError as error:
            assert "Too many open files" in str(error)

    assert fork.end(fork(publish_and_subscribe)) == 0
    assert haulway.subscribe(name).state == 1


def test_files_are_their_users_alone(name):
    haulway.publish(name, 1)
    facts = os.stat(folder())
    assert facts.st_mode & 0o7777 == 0o700 and facts.st_uid == os.geteuid()
    facts = os.stat(os.path.join(folder(), name))
    assert facts.st_mode & 0o7777 == 0o600 and facts.st_uid == os.geteuid()
    found = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    found = [fd for fd in found if os.path.islink(fd)
             and os.readlink(fd).startswith(f"/memfd:haulway-publication:{name}")]
    assert found and all(os.stat(fd).st_mode & 0o7777 == 0o600 for fd in found)


def become(user, dumpable=True):
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    if dumpable:
        # Otherwise no other process of that user could open its files.
        set_dumpable = 4
        ctypes.CDLL(None).prctl(set_dumpable, 1, 0, 0, 0)


def test_a_publisher_that_nobody_may_look_into_is_named(name, fork):
    if os.geteuid() != 0:
        return  # Only root can change the user.
    ready, tell = os.pipe()

    def publish_without_rights():
        become(65533, dumpable=False)
        haulway.publish(name, 1)
        os.write(tell, b"x")
        signal.pause()

    publisher = fork(publish_without_rights)

    def subscribe():
        assert os.read(ready, 1) == b"x"
        become(65533)
        with pytest.raises(haulway.PermissionDeniedError, match=(
            rf"process {publisher}, which publishes .*, has changed its user"
        )):
            haulway.subscribe(name, timeout=60)

    assert fork.end(fork(subscribe)) == 0
    fork.kill(publisher)
    os.close(ready)
    os.close(tell)


def test_other_users_cannot_attach(name, fork):
    if os.geteuid() != 0:
        return  # Only root can change the user.
    haulway.publish(name, 1)
    ready, tell = os.pipe()

    def attach_and_publish():
        become(65533)
        try:
            haulway.subscribe(name, timeout=0)
        except haulway.TimedOutError:
            pass
        else:
            raise AssertionError("it attached")
        haulway.publish(name, 2)
        haulway.publish(f"{name}-2", 3)
        assert haulway.subscribe(name, timeout=60).state == 2
        os.write(tell, b"x")
        signal.pause()

    def end_of_other():
        become(65533)
        haulway.publish(f"{name}-3", 3)  # Removes dead publications.
        for publication in list(haulway._sharing.publish._publications.values()):
            publication.close()
        os.rmdir(folder())

    child = fork(attach_and_publish)
    assert os.read(ready, 1) == b"x"
    assert haulway.subscribe(name, timeout=60).state == 1, "this user's own"
    with pytest.raises(haulway.PermissionDeniedError,
                       match="belongs to another user"):
        haulway.subscribe(f"{name}-2", timeout=0)
    fork.kill(child)
    assert fork.end(fork(end_of_other)) == 0
    os.close(ready)
    os.close(tell)
