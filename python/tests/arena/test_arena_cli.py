"""The command `haulway arena`."""

import json
import os
import signal

import pytest

from haulway.ipc import SharedMemoryArena


def mine(done):
    assert done.stderr == ""
    found = json.loads(done.stdout)["arenas"]
    return [arena for arena in found if arena["pid"] == os.getpid()]


def test_ls_shows_what_is_in_use(run):
    arena = SharedMemoryArena(1 << 22)
    writer = arena.open_writer()
    writer.begin_unit()
    writer.write_binary(bytes(100_000))
    done = run("arena", "ls", "--json")
    assert done.returncode == 0
    shown = [a for a in mine(done) if a["used"] == 100_032]
    assert len(shown) == 1
    assert shown[0]["bytes"] == 1 << 22
    assert shown[0]["high_water"] == 100_032
    assert shown[0]["advised_bytes"] == 1 << 20 and shown[0]["overflows"] == 0
    assert shown[0]["holders"] == [os.getpid()]
    assert not shown[0]["orphaned"]
    table = run("arena", "ls").stdout
    assert "high water" in table and str(os.getpid()) in table
    del arena, writer


# Sweeps all arenas of the machine, including those of other tests.
@pytest.mark.alone
def test_sweep_leaves_the_living_alone(run):
    arena = SharedMemoryArena(1 << 20)
    assert mine(run("arena", "sweep", "--json")) == []
    assert arena.stats()["bytes"] == 1 << 20


@pytest.mark.alone
def test_sweep_names_who_holds_on(run):
    # The creator exits; a child that it forked keeps the arena open.
    reader, writer = os.pipe()
    maker = os.fork()
    if maker == 0:
        arena = SharedMemoryArena(1 << 20)
        child = os.fork()
        if child != 0:
            os.write(writer, str(child).encode())
            os._exit(0)
        while arena:
            signal.pause()
    os.waitpid(maker, 0)
    holder = int(os.read(reader, 100))
    try:
        done = run("arena", "sweep", "--json", code=1)
        left = [a for a in json.loads(done.stdout)["arenas"]
                if holder in a["holders"]]
        assert len(left) == 1 and left[0]["orphaned"]
        assert left[0]["pid"] == maker
    finally:
        os.kill(holder, 9)
        os.close(reader)
        os.close(writer)


def test_other_actions_are_usage(run):
    run("arena", "burn", code=4)
