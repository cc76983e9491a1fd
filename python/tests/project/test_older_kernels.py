"""Missing features of kernels and processors are detected at run time: older
kernels and containers refuse newer system calls, and everything still works."""

import json
import os
import pathlib
import platform
import struct
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"),
    reason="the numbers of calls are those of these machines")

X86 = platform.machine() == "x86_64"
OPENAT = 257 if X86 else 56
FCNTL = 72 if X86 else 25
IOCTL = 16 if X86 else 29
ENOSYS, EPERM, EOPNOTSUPP, EINVAL = 38, 1, 95, 22

# System calls to refuse: number, error, and optionally an argument that must
# have certain bits or a certain value.
CALLS = {
    "io_uring": [(425, ENOSYS)],
    "io_uring in a container": [(425, EPERM)],
    "cachestat": [(451, ENOSYS)],
    "O_TMPFILE": [(OPENAT, EOPNOTSUPP, 2, "bits", 0o20000000)],
    "leases": [(FCNTL, EINVAL, 1, "is", 1024)],
    "copy_file_range": [(326 if X86 else 285, ENOSYS)],
    "reflinks": [(IOCTL, EOPNOTSUPP, 1, "is", 0x40049409),
                 (IOCTL, EOPNOTSUPP, 1, "is", 0x4020940D)],
    "fallocate": [(285 if X86 else 47, EOPNOTSUPP)],
    "statx": [(332 if X86 else 291, ENOSYS)],
    "renameat2": [(316 if X86 else 276, ENOSYS)],
    "userfaultfd": [(323 if X86 else 282, ENOSYS)],
    "preadv2": [(327 if X86 else 286, ENOSYS), (328 if X86 else 287, ENOSYS)],
    "close_range": [(436, ENOSYS)],
    "pidfd_open": [(434, ENOSYS), (438, ENOSYS)],
}
MEMFD = [(319 if X86 else 279, ENOSYS)]

TESTDATA = pathlib.Path(__file__).resolve().parents[3] / "testdata"

# BPF opcodes, and offsets of fields in struct seccomp_data.
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
REFUSE, ALLOW = 0x00050000, 0x7FFF0000


def filter_of(calls):
    """Returns the program that refuses these calls and allows all others."""
    code = b""

    def add(op, value, true=0, false=0):
        nonlocal code
        code += struct.pack("HBBI", op, true, false, value)

    for number, error, *rest in calls:
        add(LOAD, 0)
        if rest:
            argument, how, value = rest
            add(EQUAL, number, 0, 3)
            add(LOAD, 16 + 8 * argument)
            add(ANY_BIT if how == "bits" else EQUAL, value, 0, 1)
        else:
            add(EQUAL, number, 0, 1)
        add(RETURN, REFUSE | error)
    add(RETURN, ALLOW)
    return code


PROGRAM = """
import ctypes, json, struct, sys

code = bytes.fromhex(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
memory = ctypes.create_string_buffer(code)
program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(memory))
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, program) == 0, ctypes.get_errno()  # PR_SET_SECCOMP

import numpy, haulway
from haulway.ipc import SharedMemoryArena

tensors = {f"t{n}": numpy.arange(n * 1000, dtype="f4") for n in range(1, 9)}
done = {}


def check(name, work):
    try:
        done[name] = work()
    except Exception as error:
        done[name] = f"{type(error).__name__}: {error}"


def load(path, **options):
    found = haulway.load(path, "numpy", **options)
    return all((found[name] == tensors[name]).all() for name in tensors)


def arena():
    arena = SharedMemoryArena(1 << 20)
    writer = arena.open_writer()
    writer.begin_unit()
    writer.write_binary(b"x" * 1000)
    writer.commit_unit()
    return arena.stats()["committed_bytes"] >= 1000


def edit():
    haulway.edit("a.safetensors", set={"a": "b"})
    return load("a.safetensors")


check("save", lambda: haulway.save(tensors, "a.safetensors") is None or True)
check("save again", lambda: haulway.save(tensors, "a.safetensors") is None or True)
check("save to torch", lambda: haulway.save(tensors, "a.pt") is None or True)
for path in "a.safetensors", "a.pt":
    check(f"load {path}", lambda: load(path))
    check(f"verify {path}", lambda: haulway.verify(path).ok)
for io in "mmap", "pread", "direct", "snapshot":
    check(io, lambda: load("a.safetensors", io=io))
check("convert", lambda: bool(haulway.convert("a.pt", "b.safetensors")))
check("load what was converted", lambda: load("b.safetensors"))
check("edit", edit)
check("arena", arena)
check("scan", lambda: haulway.scan("a.pt").safe)
print(json.dumps(done))
"""


def outcome(calls, folder):
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, filter_of(calls).hex()], cwd=folder,
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    return json.loads(said.stdout)


@pytest.mark.parametrize("missing", [*CALLS, "all of them"])
def test_all_works_without(missing, tmp_path):
    calls = CALLS[missing] if missing in CALLS else [
        call for name, calls in CALLS.items() if "container" not in name
        for call in calls]
    failed = {name: found for name, found in outcome(calls, tmp_path).items()
              if found is not True}
    # A snapshot needs a lease, so a request for one fails.
    leases = set(CALLS["leases"]) & set(calls)
    assert set(failed) == ({"snapshot"} if leases else set()), failed
    assert "it takes no leases" in failed.get("snapshot", "it takes no leases")
    assert not [name for name in os.listdir(tmp_path) if "haulway" in name]


def test_the_filter_refuses_what_it_should(tmp_path):
    making = 0o20000000 | os.O_CREAT
    done = outcome([(OPENAT, EPERM, 2, "bits", making)], tmp_path)
    assert done["arena"] is True and "cannot create" in str(done["save"])


def test_without_memfd_only_shared_memory_is_refused(tmp_path):
    failed = {name: found for name, found in outcome(MEMFD, tmp_path).items()
              if found is not True}
    assert set(failed) == {"arena"}, failed
    assert "cannot create shared memory" in failed["arena"]


# The oldest processor, one with SSE 4.2, and one with AVX2 but no AVX-512.
@pytest.mark.parametrize("processor", ["qemu64", "Nehalem", "Haswell"])
def test_an_older_processor_finds_the_same(command, processor, tmp_path):
    if not X86:
        pytest.skip("the processors are those of x86-64")
    path = tmp_path / "x.tensors"
    program = ["qemu-x86_64", "-cpu", processor, str(command)]
    with open(command, "rb") as file:
        if file.read(2) == b"#!":  # The one that pip installs, a script.
            program.insert(3, sys.executable)
    subprocess.run([*program, "convert", "--ties", "copy", TESTDATA / "small.pt", path],
                   check=True, capture_output=True)
    for words in (["verify", path], ["load", "--verify", path],
                  ["scan", TESTDATA / "small.pt"], ["manifest", path],
                  ["diff", TESTDATA / "small.pt", path]):
        both = [subprocess.run([*start, *words], capture_output=True, text=True)
                for start in (program, [command])]
        assert both[0].returncode == both[1].returncode, both
        if words[0] in ("scan", "manifest"):
            assert both[0].stdout == both[1].stdout
