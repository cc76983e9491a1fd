"""Snapshots in programs that dropped rights after the load.

What was possible at the load may be impossible when the file is overwritten: no
write may be lost and no value may change.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import haulway

# The program: loads, drops rights, modifies each array on a thread of its own
# until the file has been overwritten, and compares.
PROGRAM = """
import ctypes, json, os, platform, resource, struct, sys
import threading, time

import numpy as np

import haulway

folder, way = sys.argv[1:]
NOBODY = 65534
libc = ctypes.CDLL(None, use_errno=True)


def prctl(option, value):
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def become_nobody():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def set_dumpable(value):
    prctl(4, value)  # PR_SET_DUMPABLE


def filter_calls(numbers, action):
    # Instructions of BPF: the number of the call, compared with each.
    load = struct.pack("HBBI", 0x20, 0, 0, 0)
    allow = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
    code = load
    for number in numbers:
        code += struct.pack("HBBI", 0x15, 0, 1, number)
        code += struct.pack("HBBI", 0x06, 0, 0, action)
    code += allow
    memory = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(memory))
    prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    all_threads = 1
    if libc.syscall(SECCOMP, 1, all_threads, program) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


SECCOMP, PTRACE, CLONES = {
    "x86_64": (317, 101, [56, 57, 58]), "aarch64": (277, 117, [220])
}[platform.machine()]
REFUSE, KILL = 0x00050001, 0x80000000


def setuid():
    become_nobody()


def setuid_undumpable():
    become_nobody()
    set_dumpable(0)


def chroot():
    os.chroot("/var/empty" if os.path.isdir("/var/empty") else "/mnt")
    become_nobody()


def no_processes():
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))


def no_ptrace():
    filter_calls([PTRACE], REFUSE)


def killed_by_ptrace():
    filter_calls([PTRACE], KILL)


def no_address_space():
    # For less than another copy.
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 20),) * 2)


if way == "no_processes":
    # Whoever is nobody from the start; root may have any number of processes.
    haulway.load(folder + "/0.safetensors", io="pread")  # Imports what it needs.
    become_nobody()
    set_dumpable(1)
stats = {}
loaded = {}
for name in sorted(os.listdir(folder)):
    arrays = haulway.load(f"{folder}/{name}", "numpy", stats=stats)
    loaded.update({(name, key): array for key, array in arrays.items()})
before = {name: array.copy() for name, array in loaded.items()}
added = [name for name in loaded if name[1] != "idle"]
counts = dict.fromkeys(loaded, 0)
stop = threading.Event()


def add(name):
    array = loaded[name]
    while not stop.is_set():
        array += 1
        counts[name] += 1


threads = [threading.Thread(target=add, args=(name,)) for name in added]
for thread in threads:
    thread.start()
globals()[way]()
start = dict(counts)
while any(counts[name] < start[name] + 2 for name in added):
    time.sleep(0.01)
print(json.dumps(stats), flush=True)
sys.stdin.readline()
stop.set()
for thread in threads:
    thread.join()
wrong = {
    name: int((array != before[name] + counts[name]).sum())
    for name, array in loaded.items()
}
assert not any(wrong.values()), wrong
print("right")
"""


WAYS = [
    "setuid", "setuid_undumpable", "chroot", "no_processes", "no_ptrace",
    "killed_by_ptrace", "no_address_space",
]


@pytest.fixture
def folder():
    rng = np.random.default_rng(3)
    # Not below pytest's folder, which other users cannot enter.
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        for i in range(2):
            arrays = {
                key: rng.integers(0, 1000, 1 << 20, dtype=np.int32)
                for key in ["one", "two", "idle"]
            }
            haulway.save(arrays, f"{name}/{i}.safetensors")
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="root alone gives up rights")
@pytest.mark.parametrize("way", WAYS)
def test_no_write_is_lost(folder, way):
    files = list(folder.iterdir())
    if way == "no_processes":
        for file in files:
            os.chown(file, 65534, 65534)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), way],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as program:
        stats = json.loads(program.stdout.readline() or "{}")
        for file in files:
            with open(file, "r+b") as writer:
                writer.write(b"\xff" * file.stat().st_size)
            os.truncate(file, 100)
        output, errors = program.communicate("overwritten\n", timeout=60)
    assert (program.returncode, output) == (0, "right\n"), errors
    # A snapshot must have been used on file systems with leases, if threads can
    # be stopped.
    if stats["file_system"] in ("ext4", "xfs", "btrfs", "tmpfs"):
        assert stats["io"] == "snapshot" or "stopped" in stats["reason"]
