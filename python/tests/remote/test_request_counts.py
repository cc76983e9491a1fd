"""The number of requests that calls send to a server, and their statistics."""

import json

import numpy
import pytest
import torch

import haulway
from http_server import FaultServer

SMALL = [f"small.{i}" for i in range(8)]


@pytest.fixture(scope="module")
def holes(tmp_path_factory):
    """A file of small tensors, with gaps of 100 KiB, far from both ends."""
    path = tmp_path_factory.mktemp("holes") / "x.npz"
    state = {"first": numpy.zeros(1 << 20, numpy.uint8)}
    for i, name in enumerate(SMALL):
        state[name] = numpy.full(1000, i, numpy.uint8)
        state[f"large.{i}"] = numpy.zeros(100 << 10, numpy.uint8)
    state["last"] = numpy.zeros(2 << 20, numpy.uint8)
    numpy.savez(path, **state)
    return path


@pytest.fixture
def server(holes):
    data = holes.read_bytes()
    with FaultServer(lambda request: request.serve(data, ETag='"v"')) as server:
        yield server


def test_every_way_of_loading_reads_over_holes(server, holes, run):
    haulway.open(server.url()).close()
    opening = len(server.requests)
    loads = {
        "load": lambda: haulway.load(server.url(), "numpy", include=SMALL),
        "shard": lambda: haulway.shard(server.url(), 0, 1, include=SMALL),
        "command": lambda: run(
            "load", server.url(),
            *(word for name in SMALL for word in ("--include", name))),
    }
    for name, load in loads.items():
        before = len(server.requests)
        load()
        assert len(server.requests) - before == opening + 1, name
    planned = haulway.plan_reads(server.url(), include=SMALL)
    first, last = server.requests[-1 - opening].range
    assert len(planned.reads) == 1
    assert first <= planned.reads[0][0]
    assert sum(planned.reads[0]) <= last + 1
    assert len(haulway.plan_reads(holes, include=SMALL).reads) == len(SMALL)
    words = [word for name in SMALL for word in ("--include", name)]
    listed = json.loads(
        run("plan-reads", server.url(), "--json", *words).stdout)["reads"]
    assert [(row["offset"], row["bytes"]) for row in listed] == planned.reads


def test_statistics_include_opening(server, run):
    stats = {}
    haulway.load(server.url(), "numpy", include=SMALL, stats=stats)
    assert stats["requests"] == len(server.requests)
    before = len(server.requests)
    done = run("load", server.url(), "--json", "--repeat", "2")
    told = [json.loads(line)["requests"] for line in done.stdout.splitlines()]
    assert sum(told) == len(server.requests) - before
    assert told[1] < told[0]
    before = len(server.requests)
    with haulway.open(server.url(), "numpy", verify=True) as checkpoint:
        checkpoint["first"], checkpoint["last"]
        assert checkpoint.stats()["requests"] == len(server.requests) - before


@pytest.mark.parametrize("kib", [1, 600, 1500, 3000])
def test_a_small_pt_is_listed_in_three_requests(tmp_path, run, kib, monkeypatch):
    # Debugging compares every computed offset with the file.
    monkeypatch.delenv("HAULWAY_SERIALIZATION_DEBUG", raising=False)
    state = {f"layer.{i}.weight": torch.zeros(kib * 32) for i in range(8)}
    torch.save(state, tmp_path / "x.pt")
    data = (tmp_path / "x.pt").read_bytes()
    with FaultServer(lambda request: request.serve(data, ETag='"v"')) as server:
        run("ls", server.url())
        assert len(server.requests) <= 3, [r.range for r in server.requests]
        before = len(server.requests)
        run("info", server.url())
        assert len(server.requests) - before <= 3


def test_the_verb_load_takes_retries(server, run, small):
    run("load", server.url(), "--retries", "0")
    run("load", small, "--retries", "0")
    run("load", small, "--retries", "-1", code=4)
