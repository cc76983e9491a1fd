"""Sparse and nested tensors with inconsistent parts (rule M04)."""

import json
import pathlib
import subprocess
import sys

import numpy
import pytest
import torch

import haulway
import haulway.torch
from cases import sparse

pytestmark = pytest.mark.filterwarnings("ignore")


def coo(indices, values=(1.0, 2.0), size=(3, 4), coalesced=False):
    made = torch.sparse_coo_tensor(
        torch.tensor(indices), torch.tensor(values), size,
        check_invariants=False,
    )
    return made._coalesced_(coalesced)


def compressed(layout, first, second, values=(1.0, 2.0, 3.0), size=(3, 4)):
    return torch.sparse_compressed_tensor(
        torch.tensor(first), torch.tensor(second), torch.tensor(values),
        size=size, layout=getattr(torch, f"sparse_{layout}"),
        check_invariants=False,
    )


BLOCKS = torch.ones(3, 1, 2).tolist()
HOSTILE = {
    "coo index past the end": lambda: coo([[0, 3], [0, 1]]),
    "coo index below zero": lambda: coo([[0, -1], [0, 1]]),
    "coo far index": lambda: coo([[0, 1], [0, 2**62]]),
    "coo said to be sorted": lambda: coo([[1, 0], [0, 1]], coalesced=True),
    "coo said to be unique": lambda: coo([[1, 1], [2, 2]], coalesced=True),
}
for _layout, _size in {"csr": (3, 4), "csc": (4, 3)}.items():
    _other = {
        "first is not zero": ([1, 1, 2, 3], [0, 1, 2]),
        "last is not the count": ([0, 1, 2, 9], [0, 1, 2]),
        "falls": ([0, 3, 2, 3], [0, 1, 2]),
        "runs past": ([0, 2**31, 2, 3], [0, 1, 2]),
        "index past the end": ([0, 1, 2, 3], [0, 1, 4]),
        "index below zero": ([0, 1, 2, 3], [0, -1, 2]),
        "unsorted": ([0, 3, 3, 3], [0, 2, 1]),
        "repeated": ([0, 3, 3, 3], [0, 1, 1]),
    }
    for _name, _parts in _other.items():
        HOSTILE[f"{_layout} {_name}"] = (
            lambda layout=_layout, parts=_parts, size=_size:
            compressed(layout, *parts, size=size)
        )
for _layout, _size in {"bsr": (3, 8), "bsc": (4, 6)}.items():
    HOSTILE[f"{_layout} index past the end"] = (
        lambda layout=_layout, size=_size:
        compressed(layout, [0, 1, 2, 3], [0, 1, 4], BLOCKS, size)
    )
    HOSTILE[f"{_layout} falls"] = (
        lambda layout=_layout, size=_size:
        compressed(layout, [0, 3, 2, 3], [0, 1, 2], BLOCKS, size)
    )


COMMAND = pathlib.Path(sys.executable).with_name("haulway")
CONTAINERS = {"zip": {}, "stacked": {"_use_new_zipfile_serialization": False}}


def verified(path):
    """Returns verify's result; the command must give the same."""
    report = haulway.verify(path)
    done = subprocess.run(
        [COMMAND, "verify", "--json", path], capture_output=True, text=True,
        check=False,
    )
    assert json.loads(done.stdout)["ok"] == report.ok == (done.returncode == 0)
    return report


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", HOSTILE)
def test_wrong_indices_are_refused(name, container, tmp_path):
    path = tmp_path / "sparse.pt"
    torch.save({"s": HOSTILE[name]()}, path, **CONTAINERS[container])
    for framework in ("torch", "numpy"):
        with pytest.raises(haulway.CorruptError):
            haulway.load(path, framework=framework)
    found, = verified(path).findings
    assert found.code == "kCorrupt"
    assert found.message.startswith(("indices", "c", "row_indices"))
    assert "; in sparse tensor" in found.message and found.byte > 0


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_right_indices_are_taken(layout, container, tmp_path):
    path = tmp_path / "sparse.pt"
    torch.save(sparse(layout), path, **CONTAINERS[container])
    assert verified(path).ok
    made = haulway.load(path, framework="numpy")
    made = made if isinstance(made, tuple) else (made,)
    assert all(part.name == "_rebuild_sparse_tensor" for part in made)


def test_few_bytes_seen_as_many_indices_are_not_read(tmp_path):
    path = tmp_path / "sparse.pt"
    count = 1 << 30
    torch.save(torch.sparse_coo_tensor(
        torch.zeros(1, 1, dtype=torch.int64).expand(1, count),
        torch.zeros(1).expand(count), (1,), check_invariants=False,
    ), path)
    assert path.stat().st_size < 10_000
    found, = verified(path).findings
    assert found.code == "kLimit" and "more bytes than all" in found.message


def test_batches_and_dense_dimensions_are_taken(tmp_path):
    path = tmp_path / "sparse.pt"
    batch = torch.eye(4).repeat(2, 3, 1, 1)
    hybrid = torch.eye(4)[..., None].repeat(1, 1, 2)
    torch.save([
        batch.to_sparse_csr(), batch.to_sparse_csc(),
        batch.to_sparse_bsr((2, 2)), batch.to_sparse_bsc((2, 4)),
        hybrid.to_sparse(2), hybrid.to_sparse_csr(dense_dim=1),
        torch.zeros(3, 4).to_sparse(), torch.zeros(3, 4).to_sparse_csr(),
        torch.zeros(0, 4).to_sparse_csc(), torch.tensor(1.0).to_sparse(),
    ], path)
    assert verified(path).ok
    assert len(haulway.load(path, framework="numpy")) == 10
    assert len(haulway.load(path, framework="torch")) == 10


class Parts:
    """Pickled as a call of torch's function with any arguments."""

    def __init__(self, *args):
        self.args = args

    def __reduce__(self):
        return torch._utils._rebuild_nested_tensor, self.args


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize(
    ("sizes", "strides", "offsets", "good"),
    [
        ([[3], [5]], [[1], [1]], [0, 3], True),
        ([[3], [0]], [[1], [1]], [0, 3], True),
        ([[3], [6]], [[1], [1]], [0, 3], False),
        ([[3], [5]], [[1], [2]], [0, 3], False),
        ([[3], [5]], [[1], [1]], [0, 4], False),
        ([[3], [5]], [[1], [1]], [0, -1], False),
        ([[3], [-5]], [[1], [1]], [0, 3], False),
    ],
)
def test_a_nested_tensor_stays_in_its_buffer(
    framework, sizes, strides, offsets, good, tmp_path
):
    path = tmp_path / "nested.pt"
    parts = Parts(
        torch.arange(8.0), torch.tensor(sizes), torch.tensor(strides),
        torch.tensor(offsets),
    )
    torch.save(parts, path)
    assert verified(path).ok is good
    if good and framework == "torch":
        try:
            torch._utils._rebuild_nested_tensor(*parts.args)
        # Torch 2.6 does not accept unused elements in a buffer.
        except RuntimeError:
            good = False
    if good:
        haulway.load(path, framework=framework)
        return
    with pytest.raises(haulway.CorruptError):
        haulway.load(path, framework=framework)


def test_nested_tensors_of_nothing_and_of_scalars_are_taken(tmp_path):
    path = tmp_path / "nested.pt"
    for parts in ([], [torch.tensor(1.0), torch.tensor(2.0)]):
        torch.save(torch.nested.nested_tensor(parts), path)
        assert verified(path).ok
        haulway.load(path, framework="numpy")
        if parts:  # PyTorch itself cannot load an empty one.
            assert haulway.load(path, framework="torch").size(0) == 2


def test_parts_that_are_no_tensors_are_refused():
    from haulway._making.sparse import check_nested, check_sparse

    indices = numpy.zeros((2, 1), numpy.int64)
    values = numpy.zeros(1)
    for data in (
        None, (), (indices, values), (indices, None, (1, 1)),
        (indices, values, (1, -1)), (indices, values, [1, 1]),
        (indices, values, (1, 1, 1)), (indices, numpy.zeros(2), (1, 1)),
        (indices.astype(numpy.int32), values, (1, 1)),
        (indices[0], values, (1,)),
    ):
        with pytest.raises(haulway.CorruptError):
            check_sparse("torch.sparse_coo", data)
        with pytest.raises(haulway.CorruptError):
            check_sparse("torch.sparse_csr", data)
        with pytest.raises(haulway.CorruptError):
            check_sparse("torch.sparse_xyz", data)
    check_sparse("torch.sparse_coo", (indices, values, (1, 1)))
    with pytest.raises(haulway.CorruptError):
        check_nested((values, values))
