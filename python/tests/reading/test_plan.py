"""haulway.plan: files are laid out first and filled later."""

import multiprocessing
import os
import pickle
import threading
import zipfile

import pytest
import torch
from torch._subclasses import FakeTensorMode

import haulway
import haulway.torch


def state():
    shared = torch.arange(100_000.0)
    return {
        "big": torch.randn(700, 900),
        "views": [shared[:10], shared[5:]],
        "empty": torch.zeros(0),
        "bytes": torch.arange(200, dtype=torch.uint8),
    }


def storages(made):
    """Returns their tensors by record, in the pickle's numbering."""
    return {
        "data/0": made["big"],
        "data/1": torch.arange(100_000.0),
        "data/3": made["bytes"],
    }


def test_filled_in_any_order_it_is_the_file_that_save_writes(tmp_path):
    made = state()
    haulway.torch.save(made, tmp_path / "model.pt")
    expected = (tmp_path / "model.pt").read_bytes()
    plan = haulway.plan(made).create(tmp_path / "model.pt")
    assert plan.size == len(expected)
    for name, tensor in reversed(storages(made).items()):
        plan.fill(name, tensor)
    assert (tmp_path / "model.pt").read_bytes() == expected
    os.unlink(tmp_path / "model.pt")
    stats = {}
    done = plan.commit(stats=stats)
    assert done == stats
    assert stats["bytes"] == stats["written_bytes"] == len(expected)
    assert stats["requests"] > len(storages(made))
    assert (tmp_path / "model.pt").read_bytes() == expected
    assert os.listdir(tmp_path) == ["model.pt"]


def test_records_say_where_the_bytes_will_be(tmp_path):
    made = state()
    plan = haulway.plan(made, storage_alignment=4096)
    plan.create(tmp_path / "x.pt")
    for record in plan.records:
        assert record.offset % 4096 == 0
    assert {r.name: r.size for r in plan.records} == {
        "data/0": 2_520_000, "data/1": 400_000, "data/2": 0, "data/3": 200,
    }
    for name, tensor in storages(made).items():
        plan.fill(name, tensor)
    plan.commit()
    data = (tmp_path / "x.pt").read_bytes()
    for record in plan.records:
        tensor = storages(made).get(record.name, torch.zeros(0))
        found = data[record.offset : record.offset + record.size]
        assert found == tensor.numpy().tobytes()


def test_parts_are_filled_by_threads(tmp_path):
    made = state()
    plan = haulway.plan(made).create(tmp_path / "x.pt")
    data = made["big"].numpy().tobytes()
    threads = [
        threading.Thread(
            target=plan.fill, args=("data/0", data[at : at + 100_000], at)
        )
        for at in range(0, len(data), 100_000)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    plan.commit()
    assert torch.equal(haulway.load(tmp_path / "x.pt")["big"], made["big"])


def fill(plan, name, data):
    plan.fill(name, data)


def test_parts_are_filled_by_processes(tmp_path):
    made = state()
    plan = haulway.plan(made).create(tmp_path / "x.pt")
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(
            target=fill, args=(plan, name, tensor.numpy().tobytes())
        )
        for name, tensor in storages(made).items()
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    plan.commit()
    loaded = torch.load(tmp_path / "x.pt")
    assert torch.equal(loaded["big"], made["big"])
    assert torch.equal(loaded["views"][1], torch.arange(5.0, 100_000.0))
    assert haulway.verify(tmp_path / "x.pt").ok


def test_fake_tensors_are_enough_to_plan(tmp_path):
    with FakeTensorMode():
        fake = {"w": torch.empty(1000, 10), "b": torch.empty(10)}
    plan = haulway.plan(fake).create(tmp_path / "x.pt")
    plan.fill("data/0", torch.ones(1000, 10))
    plan.commit()
    loaded = torch.load(tmp_path / "x.pt")
    assert torch.equal(loaded["w"], torch.ones(1000, 10))
    assert torch.equal(loaded["b"], torch.zeros(10))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [
    lambda: torch.quantize_per_tensor(torch.arange(6.0), 0.1, 2, torch.qint8),
    lambda: torch.quantize_per_channel(
        torch.ones(3, 2), torch.ones(3), torch.zeros(3, dtype=torch.int64), 0,
        torch.qint8),
    lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
], ids=["per tensor", "per channel", "nested"])
def test_quantized_and_nested_tensors_are_planned(make, tmp_path):
    tensor = make()
    haulway.torch.save({"x": tensor}, tmp_path / "one.pt")
    plan = haulway.plan({"x": tensor}).create(tmp_path / "two.pt")
    with zipfile.ZipFile(tmp_path / "one.pt") as archive:
        for record in plan.records:
            plan.fill(record.name, archive.read(f"one/{record.name}"))
    plan.commit()
    assert (tmp_path / "one.pt").stat().st_size == plan.size
    made = torch.load(tmp_path / "two.pt", weights_only=False)["x"]
    if tensor.is_quantized:
        assert torch.equal(made.dequantize(), tensor.dequantize())
    else:
        assert [torch.equal(a, b) for a, b in
                zip(made.unbind(), tensor.unbind())] == [True, True]


def test_without_commit_nothing_stays(tmp_path):
    plan = haulway.plan(state()).create(tmp_path / "x.pt")
    assert len(os.listdir(tmp_path)) == 1
    del plan
    assert os.listdir(tmp_path) == []


def test_what_does_not_fit_is_refused(tmp_path):
    plan = haulway.plan(state())
    with pytest.raises(ValueError, match="create"):
        plan.commit()
    with pytest.raises(ValueError, match="create"):
        plan.fill("data/3", b"x")
    plan.create(tmp_path / "x.pt")
    with pytest.raises(ValueError, match="has a file already"):
        plan.create(tmp_path / "y.pt")
    for wrong in ("x", None, 3):
        with pytest.raises(haulway.ArgumentTypeError, match="data is "):
            plan.fill("data/3", wrong)
    with pytest.raises(KeyError):
        plan.fill("data/9", b"")
    copied = pickle.loads(pickle.dumps(plan))
    for call in (copied.commit, lambda: copied.create(tmp_path / "y.pt")):
        with pytest.raises(ValueError, match="the plan|has a file already"):
            call()
    with pytest.raises(ValueError, match="end behind"):
        plan.fill("data/3", bytes(201))
    with pytest.raises(ValueError, match="end behind"):
        plan.fill("data/3", b"x", 200)


def test_only_what_is_planned_is_filled(tmp_path):
    plan = haulway.plan(state()).create(tmp_path / "x.pt")
    for name in ("data.pkl", "version", "byteorder"):
        with pytest.raises(KeyError) as caught:
            plan.fill(name, b"yy")
        assert isinstance(caught.value, haulway.Error)
        assert name in str(caught.value)
    plan.commit()
    torch.load(tmp_path / "x.pt")
    assert haulway.verify(tmp_path / "x.pt").ok


def test_the_file_in_the_making_is_no_more_open_than_its_target(tmp_path):
    path = tmp_path / "x.pt"
    haulway.save(state(), path)
    path.chmod(0o600)
    plan = haulway.plan(state()).create(path)
    temporary, = set(os.listdir(tmp_path)) - {"x.pt"}
    assert os.stat(tmp_path / temporary).st_mode & 0o777 == 0o600
    plan.commit()
    assert os.stat(path).st_mode & 0o777 == 0o600
