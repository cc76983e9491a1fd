"""haulway.safetensors: prefetch() gives what the package's gives."""

import gc
import json
import os
import pathlib
import pickle
import random
import struct
import subprocess
import sys
import threading
import time
import weakref

import prefetch_reference
import pytest
import safetensors as THEIRS
import safetensors.torch
import torch
from dropin_cases import said, same

import haulway.safetensors as ours

TESTS = pathlib.Path(__file__).parents[1]
RANDOM = random.Random(20261129)
SIZES = {"b": 3, "a": 3, "rows": 9, "one": 1}
ALL = ["a", "b", "f8", "none", "one", "rows", "s", "skewed"]


def write_file(path):
    """Writes tensors of several dtypes, one of them at an odd place, and one of a
    dtype that torch lacks; returns the names in the order of their data."""
    tensors = {
        "rows": torch.arange(63.0).reshape(9, 7),
        "a": torch.arange(12, dtype=torch.int16).reshape(3, 2, 2),
        "b": torch.arange(6, dtype=torch.int8).reshape(3, 2),
        "s": torch.tensor(2.5, dtype=torch.bfloat16),
        "none": torch.zeros(0, 3),
        "one": torch.tensor([[1.5, -0.0]]),
        "f8": torch.arange(8.0).to(torch.float8_e4m3fn),
        "skewed": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    }
    header, data = {}, b""
    for name, tensor in tensors.items():
        held = bytes(tensor.reshape(-1).view(torch.uint8).tolist())
        if name == "f8":
            held = held[:7]  # What follows is at an odd place.
            tensor = tensor[:7]
        dtype = {torch.float32: "F32", torch.int16: "I16", torch.int8: "I8",
                 torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3"}
        header[name] = {"dtype": dtype[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(held)]}
        data += held
    header["f6"] = {"dtype": "F6_E2M3", "shape": [4],
                    "data_offsets": [len(data), len(data) + 3]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data + bytes(3))
    return list(header)


def random_plan():
    """Returns a plan that may be wrong: a part, or a fault of it, per tensor."""
    plan = {}
    for name in RANDOM.sample(ALL, RANDOM.randint(1, 5)):
        size = SIZES.get(name, 2)
        bounds = [None, *range(-size, size + 1)]
        if RANDOM.random() < 0.04:
            bounds += [size + 1, -size - 1, 10**30, "x", True, 1.5]
        steps = [None, 1, 1, 1]
        if RANDOM.random() < 0.04:
            steps = [2, 0, -1, "x"]
        whole = name in ("s", "f8") and RANDOM.random() < 0.9
        plan[name] = None if whole or RANDOM.random() < 0.3 else slice(
            RANDOM.choice(bounds), RANDOM.choice(bounds), RANDOM.choice(steps))
    return plan


STEPS = ["names", "len", "iterate", "iterate"]
CASES = [
    *(("pt", random_plan(), {}, STEPS) for _ in range(120)),
    ("pt", None, {}, STEPS),
    *(("pt", dict.fromkeys(ALL), {"threads": threads}, STEPS)
      for threads in (0, 1, 2, 8, 10_000, True, -1, None, "x", 2.5, 10**30)),
    *(("pt", plan, {}, STEPS) for plan in (
        {}, [], ["a"], ("a",), {"a"}, "a", 5, {5: None}, {"a": 5}, {"a": "x"},
        {"a": [slice(0, 1)]}, {"a": ...}, {"a": (slice(0, 1),)}, {"nope": None},
        {"s": slice(0, 1)}, {"s": slice(None)}, {"f6": None}, {"f6": slice(0, 2)},
        {"a": 5, "nope": None}, {"nope": None, "a": 5}, {"f6": None, "a": 5},
        {"none": slice(0, 0)}, {"none": slice(0, 1)}, {"f8": slice(2, 5)},
        {"skewed": slice(1, 2)}, {"a": slice(2, 2)}, {"a": slice(3, 0)},
        {"a": slice(True, 2)}, {"a": slice(0, 9, 2)}, {"a": slice(9, 0, 0)},
    )),
    *(("np", plan, {}, STEPS) for plan in (None, {}, [], {"nope": None})),
    *(("pt", None, {"device": device}, STEPS) for device in (
        "foo", "cuda:x", "cuda:", "", -1, 1.5, "mps", "cpu:0", b"cuda")),
    ("pt", {"a": None, "b": slice(1, 3), "s": None}, {}, [
        "b", "b", "zz", "names", "close file", "a", "iterate", "len", "a",
        "iterate", "close", "close", "a", "zz", "iterate", "names"]),
    ("pt", {"a": None, "b": None}, {}, [
        "a", "close", "a", "b", "zz", "iterate", "names", "len"]),
]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("prefetch") / "model.safetensors"
    write_file(path)
    return path


@pytest.fixture(scope="module")
def theirs(file):
    library = file.parent / "libcudart.so.13"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library,
                    TESTS / "cuda_runtime.c"], check=True)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", prefetch_reference.__file__, library,
         file],
        input=pickle.dumps(CASES), capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


def test_plans_give_what_the_package_gives(file, theirs):
    differ = []
    kinds = set()
    for case, expected in zip(CASES, theirs, strict=True):
        found = prefetch_reference.outcome(ours, file, "cpu", case)
        if found != expected:
            differ.append((case, found, expected))
        kinds.update(step[2] for step in expected if len(step) == 3)
    assert not differ, f"{len(differ)}: {differ[:3]}"
    assert len(kinds) > 30


def test_a_device_that_is_not_there_is_told(file):
    with open("/proc/self/maps") as maps:  # torch's build for CUDA has a runtime.
        missing = "no CUDA driver" if "libcudart" in maps.read() else (
            "no CUDA runtime is loaded in this process")
    with ours.safe_open(file, "pt") as handle:
        assert missing in said(
            lambda: list(handle.prefetch({"a": None}, device="cuda")))[1]
    with ours.safe_open(file, "pt", device="cuda:1") as handle:
        # Plans are checked before.
        assert said(handle.prefetch, {})[1] == "prefetch plan selects no tensors"
        assert missing in said(lambda: list(handle.prefetch({"a": None})))[1]
        with handle.prefetch({"a": slice(0, 2)}, device="cpu") as loader:
            assert loader.take("a").tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_what_the_header_says(file):
    for framework, backend in (("pt", "mmap"), ("pt", "pread"), ("np", "mmap")):
        with THEIRS.safe_open(file, "pt") as expected, ours.safe_open(
                file, framework, backend=backend) as handle:
            for name in handle.keys():
                meta = handle.get_tensor_meta(name)
                other = expected.get_tensor_meta(name)
                assert repr(meta) == repr(other)
                assert (meta.dtype, meta.shape, meta.data_offsets) == (
                    other.dtype, other.shape, other.data_offsets)
                assert meta == meta and meta != handle.get_tensor_meta(name)
            for wrong in ("nope", 5, None):
                assert said(handle.get_tensor_meta, wrong) == said(
                    expected.get_tensor_meta, wrong)
        assert said(handle.get_tensor_meta, "a")[1] == "File is closed"


@pytest.mark.parametrize("name", ["PrefetchLoader", "PySafeSlice", "TensorMeta"])
def test_what_the_library_makes_cannot_be_made(file, name):
    kind = getattr(ours, name)
    assert said(kind) == ("TypeError", f"cannot create '{name}' instances")
    with ours.safe_open(file, "pt") as handle:
        made = {
            "PrefetchLoader": lambda: handle.prefetch({"a": None}),
            "PySafeSlice": lambda: handle.get_slice("a"),
            "TensorMeta": lambda: handle.get_tensor_meta("a"),
        }[name]()
        assert type(made) is kind
        assert said(pickle.dumps, made)[0] == "TypeError"
        assert said(weakref.ref, made)[0] == "TypeError"


def big_file(path, count=16, mebibytes=16):
    tensors = {f"w{i:02}": torch.full((mebibytes << 20,), i, dtype=torch.uint8)
               for i in range(count)}
    THEIRS.torch.save_file(tensors, path)
    return tensors


MEMORY = """
import os, sys, time
import torch
import haulway.safetensors as ours

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

# Without a snapshot, which takes no memory.
with ours.safe_open(sys.argv[1], "pt", backend="pread") as file:
    file.get_tensor("w00").sum()
    before = resident()
    loader = file.prefetch()
    names = loader.names()
    last = loader.take(names[-1])
    held = resident() - before
    for name in names[:-1]:
        loader.take(name)
    time.sleep(3)  # Freed memory is kept for two seconds, for a next load.
    left = resident() - before
    del last
    time.sleep(3)
    print(held, left, resident() - before)
"""


def test_memory_of_what_was_dropped_is_given_back(tmp_path):
    path = tmp_path / "x"
    big_file(path)
    held, left, none = map(int, subprocess.run(
        [sys.executable, "-c", MEMORY, path], check=True, capture_output=True,
    ).stdout.split())
    assert held > 240  # All of the file.
    assert left <= 64 + 24  # The last block.
    assert none <= 24


def test_tensors_and_loaders_outlive_what_made_them(tmp_path):
    path = tmp_path / "x"
    tensors = big_file(path, count=6)
    with ours.safe_open(path, "pt") as file:
        loader, second = file.prefetch(), file.prefetch({"w03": slice(0, 5)})
        same(file.get_tensors(), tensors)
    path.unlink()
    found = dict(loader)
    assert second.take("w03").tolist() == [3] * 5
    del loader, second
    gc.collect()
    assert list(found) == sorted(tensors)
    same(found, tensors)
    found["w00"][0] = 9  # Memory of its own.


def test_tensors_come_while_others_are_read(tmp_path):
    path = tmp_path / "x"
    big_file(path, count=24)
    with ours.safe_open(path, "pt") as file:
        # On a busy machine, this thread may come to its turn late.
        for _ in range(10):
            loader = file.prefetch(threads=1)
            first = next(iter(loader))
            assert first[0] == "w00" and first[1][5] == 0
            before_all = len(loader._work.ready) < 20
            loader.close()  # Does not wait for the rest.
            if before_all:
                break
        assert before_all
        assert said(loader.take, "w23") == (
            "SafetensorError", "w23: prefetch loader closed")
        assert not loader._work.thread.is_alive()
    assert not any(one.name == "haulway-prefetch" for one in threading.enumerate())


def test_a_dropped_loader_stops(tmp_path):
    path = tmp_path / "x"
    big_file(path, count=24)
    with ours.safe_open(path, "pt") as file:
        loader = file.prefetch()
        thread = loader._work.thread
        del loader
        gc.collect()
        assert not thread.is_alive()


def test_each_of_many_threads_gets_what_the_others_do_not(tmp_path):
    path = tmp_path / "x"
    tensors = big_file(path, count=64, mebibytes=1)
    with ours.safe_open(path, "pt") as file, file.prefetch() as loader:
        found = []

        def iterate():
            for name, tensor in loader:
                found.append((name, int(tensor[7])))

        threads = [threading.Thread(target=iterate) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(found) == [(name, i) for i, name in enumerate(tensors)]


def test_a_file_that_ends_early_is_told_each_time(tmp_path):
    path = tmp_path / "x"
    big_file(path, count=2)
    with ours.safe_open(path, "pt") as file:
        os.truncate(path, 20 << 20)
        loader = file.prefetch()
        for _ in range(2):
            kind, why = said(loader.take, "w01")
            assert kind == "SafetensorError" and why.startswith("w01: "), why
            assert str(path) in why
            kind, why = said(lambda: list(loader))
            assert kind == "SafetensorError" and not why.startswith("w0"), why


ENDS = """
import sys, os, time
import haulway.safetensors as ours
file = ours.safe_open(sys.argv[1], "pt")
loader = file.prefetch(threads=1)
child = os.fork()
if not child:
    try:
        loader.take("w00")
    except ours.SafetensorError as error:
        assert "call prefetch() after the fork" in str(error)
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
print(time.time())
"""


def test_a_program_ends_while_a_loader_reads(tmp_path):
    path = tmp_path / "x"
    big_file(path, count=24)
    # Python 3.12 and newer warn of the fork.
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ENDS, path],
                          check=True, capture_output=True, text=True, timeout=60)
    assert time.time() - float(done.stdout) < 20 and not done.stderr


INSTALLED = """
import sys
import haulway.safetensors
with haulway.safetensors.install():
    from safetensors import PrefetchLoader, PySafeSlice, TensorMeta, safe_open
    assert PrefetchLoader is haulway.safetensors.PrefetchLoader
    with safe_open(sys.argv[1], "pt") as file:
        try:
            file.prefetch()
        except Exception as error:
            print(error)
with haulway.safetensors.safe_open(sys.argv[1], "pt") as file:
    assert file.prefetch({"a": None}).take("a").sum() == 66
"""


def test_in_the_packages_place_the_cpu_is_refused(file):
    done = subprocess.run([sys.executable, "-c", INSTALLED, file], text=True,
                          capture_output=True)
    assert not done.stderr
    assert done.stdout == "prefetch loads to cuda devices, not cpu\n"
