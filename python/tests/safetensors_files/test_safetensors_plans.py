"""haulway.safetensors: slices that are planned are read together, and once."""

import numpy
import pytest
import safetensors as THEIRS
import safetensors.torch
import torch
from dropin_cases import INDICES, said, same, write_model

import haulway.safetensors as ours


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path)


def test_plans_are_read_once(tmp_path):
    path = tmp_path / "x"
    tensors = {f"w{i}": torch.randn(16, 8) for i in range(8)}
    THEIRS.torch.save_file(tensors, path)
    for backend in ("mmap", "pread"):
        with ours.safe_open(path, "pt", backend=backend) as file:
            file.read_ahead({
                "w0": slice(2, 4), "w1": [(..., slice(0, 2)), slice(0, 1)],
                "w2": None,
            })
            first = file.get_slice("w0")[2:4]
            assert torch.equal(first, tensors["w0"][2:4])
            assert file.get_slice("w0")[2:4] is first
            columns, row = (file.get_slice("w1")[index]
                            for index in ((..., slice(0, 2)), slice(0, 1)))
            assert torch.equal(columns, tensors["w1"][:, :2])
            assert torch.equal(row, tensors["w1"][:1])
            assert file.get_slice("w1")[..., 0:2] is columns
            assert file.get_slice("w1")[0:1] is row
            assert file.get_tensor("w2") is file.get_slice("w2")[:]
            # Tensors outside the plan are read as usual.
            assert torch.equal(file.get_slice("w0")[1], tensors["w0"][1])
            path.rename(tmp_path / "away")
            file.read_ahead(["w3"])
            file.read_ahead()
            (tmp_path / "away").rename(path)
            assert file.get_tensors()["w3"] is file.get_tensor("w3")
            same(file.get_tensors(), tensors)
            assert said(file.read_ahead, {"nope": None}) == (
                "SafetensorError", "File does not contain tensor nope"
            )
            code, why = said(file.read_ahead, {"w0": ([0, 1],)})
            assert code == "SafetensorError" and "plan for w0" in why
        assert said(file.read_ahead) == ("SafetensorError", "File is closed")
    with ours.safe_open(path, "np") as file:
        file.read_ahead({"w0": (slice(None), slice(1, 3))})
        part = file.get_slice("w0")
        assert numpy.array_equal(part[:, 1:3], tensors["w0"][:, 1:3])
        assert part[:, 1:3] is part[:, 1:3]


@pytest.mark.parametrize(("framework", "backend"), [
    ("pt", "mmap"), ("pt", "pread"), ("np", "mmap"), ("np", "pread"),
])
def test_equal_indices_are_one_of_a_plan(tmp_path, framework, backend):
    path = tmp_path / "x"
    THEIRS.torch.save_file({"w": torch.arange(128.0).reshape(16, 8)}, path)
    with ours.safe_open(path, framework, backend=backend) as file:
        file.read_ahead({"w": [slice(0, 4), 5, (slice(None), slice(2, 8))]})
        part = file.get_slice("w")
        rows = part[:4]
        for same_rows in (
            part[0:4], part[0:4:1], part[:4, :], part[:4, ...], part[..., :4, :],
            part[numpy.int64(0):numpy.int64(4)],
        ):
            assert same_rows is rows
        assert part[5] is part[-11] is part[numpy.int64(5)] is part[5, ...]
        assert part[:, 2:] is part[:, 2:8] is part[..., 2:8]
        assert rows.tolist() == [list(range(i, i + 8)) for i in (0, 8, 16, 24)]
        assert part[:3] is not part[:3]


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize(("framework", "backend"), [
    ("pt", "mmap"), ("pt", "pread"), ("np", "mmap"),
])
def test_a_plan_leaves_indices_what_they_mean(model, framework, backend, index):
    """Also for tensors planned as a whole, and for equal parts."""

    def use(plan):
        with ours.safe_open(model, framework, backend=backend) as file:
            for one in plan:
                said(file.read_ahead, one)
            part = file.get_slice("w")[index]
        return list(part.shape), part.reshape(-1).tolist()

    planned = [["w"], {"w": [0, 1, slice(2, 3), (0, 0, 0)]}, {"w": index}]
    assert said(use, planned) == said(use, [])


def test_too_many_indices_are_refused_of_a_planned_tensor(tmp_path):
    path = tmp_path / "x"
    THEIRS.torch.save_file({"w": torch.ones(2, 3)}, path)
    everything = (slice(None),) * 5
    for backend, refusal in (("mmap", "IndexError"), ("pread", "SafetensorError")):
        with ours.safe_open(path, "pt", backend=backend) as file:
            file.read_ahead()
            part = file.get_slice("w")
            assert said(part.__getitem__, everything)[0] == refusal
            code, why = said(file.read_ahead, {"w": everything})
            assert code == "SafetensorError" and why.startswith("plan for w: ")


@pytest.mark.parametrize("plan", [
    5, b"w", [5], ["w", None], [("w", 0)], {"w": "x"}, {"w": 1.5}, {"w": (0, 9)},
    {"w": slice(0, 4, -1)}, {"w": slice("a")}, {"w": (..., ...)}, {"w": (0, "b")},
    {"w": [[0, 1]]}, {"w": numpy.array([0, 1])},
], ids=repr)
def test_malformed_plans_are_errors_of_ours(model, plan):
    for framework, backend in (("pt", "mmap"), ("pt", "pread"), ("np", "mmap")):
        with ours.safe_open(model, framework, backend=backend) as file:
            code, why = said(file.read_ahead, plan)
            assert code == "SafetensorError" and why.startswith("plan"), why
