"""haulway arena, as a user calls it."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from haulway.ipc import SharedMemoryArena


@pytest.fixture(scope="module")
def arena_command():
    beside = pathlib.Path(sys.executable).with_name("haulway")
    found = str(beside) if beside.exists() else shutil.which("haulway")
    assert found, "pip install . brings the command"

    def run(*arguments):
        return subprocess.run(
            [found, "arena", *arguments], capture_output=True, text=True
        )

    return run


def mine(done):
    assert done.stderr == ""
    found = json.loads(done.stdout)["arenas"]
    return [arena for arena in found if arena["pid"] == os.getpid()]


def test_ls_shows_what_is_in_use(arena_command):
    arena = SharedMemoryArena(1 << 22)
    writer = arena.open_writer()
    writer.begin_unit()
    writer.write_binary(bytes(100_000))
    done = arena_command("ls", "--json")
    assert done.returncode == 0
    shown = [a for a in mine(done) if a["used"] == 100_032]
    assert len(shown) == 1
    assert shown[0]["bytes"] == 1 << 22
    assert shown[0]["high_water"] == 100_032
    assert shown[0]["advised_bytes"] == 1 << 20 and shown[0]["overflows"] == 0
    assert shown[0]["holders"] == [os.getpid()]
    assert not shown[0]["orphaned"]
    table = arena_command("ls").stdout
    assert "high water" in table and str(os.getpid()) in table
    del arena, writer


def test_sweep_leaves_the_living_alone(arena_command):
    arena = SharedMemoryArena(1 << 20)
    assert mine(arena_command("sweep", "--json")) == []
    assert arena.stats()["bytes"] == 1 << 20


def test_sweep_names_who_holds_on(arena_command):
    # The maker ends; a child of its, which it forked, holds on.
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
        done = arena_command("sweep", "--json")
        left = [a for a in json.loads(done.stdout)["arenas"]
                if holder in a["holders"]]
        assert done.returncode == 1
        assert len(left) == 1 and left[0]["orphaned"]
        assert left[0]["pid"] == maker
    finally:
        os.kill(holder, 9)
        os.close(reader)
        os.close(writer)


def test_other_actions_are_usage(arena_command):
    assert arena_command("burn").returncode == 4
