"""haulway.distributed.load in groups of gloo processes."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

import distributed_cases
import gloo_group
import haulway
import haulway.distributed
from haulway.distributed import _watch
from haulway.distributed._placements import Box, chunk, whole
from haulway.distributed._schedule import Wanted, cut, schedule

PROGRAM = pathlib.Path(__file__).parents[1] / "distributed_cases.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("together")
    torch.manual_seed(4)
    tensors = {
        "rows": torch.randn(37, 1000), "rows.many": torch.randn(700, 30, 9),
        "scalar": torch.tensor(3.5), "line": torch.arange(100_001),
        "empty": torch.zeros(0, 5), "flags": torch.tensor([True, False]),
        "half": torch.randn(5, 64).half(), "numbers": torch.arange(60).reshape(3, 20),
    }
    haulway.save(tensors, folder / "m.npz")
    tensors |= {
        f"dtype.{number}": torch.arange(64, dtype=torch.uint8).view(dtype)
        for number, dtype in enumerate(
            (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
             torch.uint16, torch.uint32, torch.uint64, torch.complex64))
    }
    for name in ("m.safetensors", "m.pt", "m.tensors"):
        haulway.save(tensors, folder / name)
    data = bytearray((folder / "m.pt").read_bytes())
    at = data.index(torch.arange(100, 200).numpy().tobytes())
    data[at] ^= 1
    (folder / "flipped.pt").write_bytes(data)
    return folder


def run(folder, world, what, **options):
    (folder / "store").unlink(missing_ok=True)
    return gloo_group.run(PROGRAM, folder, world, what, **options)


def test_a_process_alone_gets_everything(folder, monkeypatch):
    monkeypatch.setattr(distributed_cases, "FOLDER", folder)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        results = distributed_cases.good(0, 1)
    finally:
        dist.destroy_process_group()
    assert all(results.values()) and len(results) == 26, results


@pytest.mark.parametrize("how", ["good", "sent"])
def test_two_processes_get_their_parts(folder, how):
    """Through shared memory of the host, and by collectives."""
    for (good,) in run(folder, 2, how):
        assert all(good.values()) and len(good) == 26, good


def test_four_processes_get_their_parts_or_the_reason_why_not(folder):
    for good, bad in run(folder, 4, "good,bad"):
        assert all(good.values()) and len(good) == 30, good
        assert all(bad.values()) and len(bad) == 5, bad


@pytest.mark.parametrize("how", ["memory", "memory_sent"])
def test_a_process_holds_its_budget_beside_its_tensors_at_most(folder, how):
    """Through shared memory of the host, and by collectives."""
    haulway.save({f"w{i}": torch.ones(4 << 20) for i in range(20)},
                 folder / "large.safetensors")
    for (taken,) in run(folder, 2, how):
        # Python and torch need a little for each message.
        assert taken["beside"] <= 33, taken


@pytest.mark.alone
@pytest.mark.parametrize(("how", "code", "least", "most"), [
    ("killed", "kUnavailable", 0, 15), ("stopped", "kTimeout", 15, 20),
    ("stalls_and_killed", "kUnavailable", 0, 20),
])
def test_the_others_end_when_a_process_does(folder, how, code, least, most):
    """A killed process is detected; a stopped one is waited for until the
    time-out."""
    said, codes, errors = run(folder, 4, how, code=None)
    assert codes == [0, 0, 0, -signal.SIGKILL], errors
    for (other,) in said[:3]:
        assert other["code"] == code, other
        assert least <= other["seconds"] < most, other


@pytest.mark.alone
def test_a_source_that_stalls_is_left_at_the_time_out(folder):
    for (said,) in run(folder, 2, "stalls"):
        for name, one in said.items():
            assert one["code"] == "kTimeout", (name, one)
            assert 3 <= one["seconds"] < 6, (name, one)


def test_a_process_that_is_late_and_busy_is_waited_for(folder):
    for (one,) in run(folder, 2, "busy"):
        assert one["code"] is None, one


@pytest.mark.alone
def test_the_time_out_holds_where_the_holder_of_the_store_stops(folder):
    (folder / "store").unlink(missing_ok=True)
    processes = gloo_group.start(PROGRAM, folder, 3, "holder_stops")
    try:
        for process in processes[1:]:
            one = json.loads(process.communicate(timeout=60)[0].splitlines()[-1])
            assert one["code"] == "kTimeout" and one["seconds"] < 8, one
    finally:
        for process in processes:
            process.kill()


def test_the_reason_outlives_the_holder_of_the_store(folder):
    for rank, (one,) in enumerate(run(folder, 3, "holder_fails")):
        assert one["code"] == "kNotFound", one
        assert rank == 0 or one["said"].startswith("rank 0 failed: "), one


BEACON = """
import os, signal
import torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
from haulway.distributed import _watch
beacon = _watch._Beacon()
if not (child := os.fork()):
    signal.pause()
print(beacon.place, child, flush=True)
signal.pause()
"""


def test_the_end_of_a_process_on_another_host_is_noticed(monkeypatch):
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", BEACON],
                          stdout=subprocess.PIPE, text=True) as other:
        place, _, child = other.stdout.readline().rpartition(" ")
        told = {"process/1": json.dumps(["elsewhere", 1, 1]), "beacon-at/1": place}
        process = _watch._Process(1, told.get, told.__setitem__)
        try:
            for _ in range(3):
                assert not process.has_ended()
            assert told["beacon/1"] == "wanted"
            os.kill(other.pid, signal.SIGSTOP)
            assert not process.has_ended()
            other.kill()
            end = time.monotonic() + 5
            while not process.has_ended():
                assert time.monotonic() < end
                time.sleep(0.01)
        finally:
            other.kill()
            os.kill(int(child), signal.SIGKILL)


def test_a_group_is_needed():
    with pytest.raises(haulway.InvalidArgumentError, match="init_process_group"):
        haulway.distributed.load("m.pt")


@pytest.mark.parametrize("size", range(9))
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_sizes_are_divided_as_by_chunk(size, count):
    parts = [len(one) for one in torch.arange(size).chunk(count)]
    parts += [0] * (count - len(parts))
    assert [chunk(size, i, count)[1] for i in range(count)] == parts


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (5, 4), (2, 3, 5, 7)])
@pytest.mark.parametrize("most", [4, 9, 64, 10_000])
def test_pieces_are_the_tensor_in_order(shape, most):
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape)
    boxes = cut(shape, 4, most)
    found = [
        numbers[tuple(slice(at, at + length)
                      for at, length in zip(box.begin, box.extent))].reshape(-1)
        for box in boxes
    ]
    assert torch.equal(torch.cat(found) if found else numbers.reshape(-1),
                       numbers.reshape(-1))
    assert all(box.count * 4 <= max(most, 4) for box in boxes)


def test_a_round_is_bounded_and_ranks_read_alike():
    world, size = 5, 64 << 20
    boxes = [whole((size,))] * world
    rounds = schedule(
        [Wanted(i, (size,), 1, i * size, False, boxes) for i in range(6)],
        world, 32 << 20)
    totals = [0] * world
    for ranks in rounds:
        sent = [sum(one.nbytes for one in pieces) for pieces in ranks]
        assert max(sent) * (2 * world + 2) <= 32 << 20
        totals = [a + b for a, b in zip(totals, sent)]
    assert sum(totals) == 6 * size and max(totals) - min(totals) <= 8 << 20
    # Parts that no rank wants are not read.
    nothing = [Box((0,), (0,))] * world
    assert schedule([Wanted(0, (9,), 1, 0, False, nothing)], world, 1 << 20) \
        in ([], [[[]] * world])


def test_a_group_that_fails_leaves_no_memory_open():
    from haulway.distributed._host_memory import share

    def exchange(said):
        raise RuntimeError("the group is gone")

    before = os.listdir("/proc/self/fd")
    with pytest.raises(RuntimeError, match="the group is gone"):
        share(4096, 0, exchange)
    assert len(os.listdir("/proc/self/fd")) == len(before)
