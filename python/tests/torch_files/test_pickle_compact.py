"""compact=True: views are saved without the bytes that no tensor uses."""

import random

import numpy as np
import pytest
import torch
from test_pickle_arrays import whole
from test_pickle_object import saved_by_torch
from torch import nn

from cases import LAYOUTS, OBJECTS, V2, V3, filled
from chance import cases
from compare import Comparer
from haulway import _haulway


def compact(obj, **options):
    result = _haulway.pickle_object(obj, compact=True, **options)
    return result, torch.load(whole(result), weights_only=True)


def sizes(result):
    return [row[3] for row in result.storages]


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"empty"}))
@pytest.mark.parametrize("dtype", V2 + V3, ids=lambda d: str(d)[6:])
def test_views_hold_what_they_held(dtype, layout):
    obj = LAYOUTS[layout](filled(24, dtype))
    result, made = compact(obj)
    pairs = [(obj, made)] if torch.is_tensor(obj) else None
    if layout == "tied":
        pairs = [(obj[0], made[0]), (obj[1]["again"], made[1]["again"])]
    for before, after in pairs or zip(obj, made):
        assert after.dtype == before.dtype and after.shape == before.shape
        item = before.element_size()
        raw = [
            bytes(t.untyped_storage()) for t in (before, after)
        ]
        starts = []
        for tensor, data in zip((before, after), raw):
            places = torch.arange(len(data) // item).as_strided(
                tensor.shape, tensor.stride(), tensor.storage_offset()
            )
            starts.append([data[p * item:(p + 1) * item]
                           for p in places.reshape(-1).tolist()])
        assert starts[0] == starts[1]


def test_a_slice_of_a_large_tensor_is_small():
    large = torch.arange(1_000_000.0)
    result, made = compact({"few": large[500:510], "last": large[-1]})
    assert sizes(result) == [40, 4]
    assert made["few"].tolist() == list(range(500, 510))
    assert made["last"].item() == 999_999


def test_views_that_share_bytes_still_do():
    base = torch.arange(100.0)
    result, made = compact([base[10:20], base[15:30], base[50:60], base[50:60]])
    assert sizes(result) == [80, 40]
    made[0][5] = -1
    assert made[1][0] == -1
    made[2][0] = -2
    assert made[3][0] == -2


def test_one_view_with_holes_is_written_without():
    base = torch.arange(100.0).view(10, 10)
    column = base[:, 3]
    result, made = compact([column, base[:, 3], column])
    assert sizes(result) == [40]
    assert made[0].tolist() == column.tolist() == made[1].tolist()
    assert made[0] is made[2]
    made[0][1] = 7
    assert made[1][1] == 7
    result, made = compact([base[:, 3], base[:, 4]])
    assert sizes(result) == [40, 40]
    assert [m.tolist() for m in made] == [base[:, 3].tolist(),
                                          base[:, 4].tolist()]


def test_views_between_one_another_part():
    large = torch.arange(1_250_000.0)
    views = [large[::180_000], large[2:360_003:180_000], large[2:180_003:180_000],
             large[7:7]]
    result, made = compact(views)
    # Two views share elements, so the bytes between them stay, except for the
    # first view.
    assert sorted(sizes(result))[-2:] == [28, 360_001 * 4]
    assert sum(sizes(result)) == 28 + 360_001 * 4
    assert [m.tolist() for m in made] == [v.tolist() for v in views]
    result, made = compact([large[::180_000], large[2::180_000], large[2::180_000]])
    assert sizes(result) == [28, 28]
    made[1][0] = -5
    assert made[2][0] == -5 and made[0][0] == 0


def test_views_by_chance_hold_what_they_held():
    chance = random.Random(36)
    for _ in range(cases(300)):
        base = torch.arange(600, dtype=torch.int32)
        views = []
        for _ in range(chance.randrange(2, 6)):
            shape = [chance.randrange(1, 5) for _ in range(chance.randrange(4))]
            strides = [chance.choice((0, 1, 2, 5, 17, 40)) for _ in shape]
            reach = sum((n - 1) * s for n, s in zip(shape, strides))
            offset = chance.randrange(600 - reach)
            views.append(base.as_strided(shape, strides, offset))
        result, made = compact(views)
        whole_size = sum(sizes(_haulway.pickle_object(views)))
        assert sum(sizes(result)) <= whole_size
        for view, one in zip(views, made):
            assert one.shape == view.shape and torch.equal(one, view)
        # Views that shared an element still share it, and no others do.
        moved = {}
        for view, one in zip(views, made):
            moved_from = _places(view)
            for old, new in zip(moved_from, _places(one)):
                assert moved.setdefault(old, new) == new, [
                    (v.shape, v.stride(), v.storage_offset()) for v in views]
        assert len(set(moved.values())) == len(moved)


def _places(view):
    """Returns the address of each element."""
    numbers = torch.arange(view.untyped_storage().nbytes() // 4).as_strided(
        view.shape, view.stride(), view.storage_offset())
    first = view.untyped_storage().data_ptr()
    return [first + 4 * n for n in numbers.flatten().tolist()]


def test_parameters_and_gradients_of_holes():
    parameter = nn.Parameter(torch.arange(20.0).view(4, 5)[:, 1:3])
    result, made = compact({"p": parameter})
    assert sizes(result) == [32]
    assert isinstance(made["p"], nn.Parameter) and made["p"].requires_grad
    assert torch.equal(made["p"], parameter)


def test_a_storage_in_its_own_right_stays_whole():
    base = torch.arange(10.0)
    typed = torch.storage.TypedStorage(
        wrap_storage=base.untyped_storage(), dtype=base.dtype, _internal=True
    )
    result = _haulway.pickle_object([base[2:4], typed], compact=True)
    assert sizes(result) == [40]


def test_empty_tensors():
    base = torch.arange(10.0)
    result, made = compact([base[3:3], base[:0].view(0, 2), torch.empty(0)])
    assert sum(sizes(result)) == 0
    assert [tuple(m.shape) for m in made] == [(0,), (0, 2), (0,)]


def test_arrays():
    base = np.arange(100.0).reshape(10, 10)
    result, made = compact(
        [base[2], base[4:6], base[8:, 2]], arrays_as_tensors=True
    )
    assert sizes(result) == [80, 160, 16]
    assert [m.tolist() for m in made] == [
        base[2].tolist(), base[4:6].tolist(), base[8:, 2].tolist()
    ]


@pytest.mark.parametrize("name", sorted(set(OBJECTS) - {"data", "meta"}))
def test_changes_nothing_where_all_is_used(name):
    obj = OBJECTS[name]()
    result = _haulway.pickle_object(obj, compact=True)
    theirs, records = saved_by_torch(obj)
    if name.startswith("sparse-") and name != "sparse-coo":
        # torch makes these with unused memory.
        assert sum(sizes(result)) < sum(map(len, records.values()))
        made = torch.load(whole(result), weights_only=True)
        assert made.layout is obj.layout
        assert torch.equal(made.to_dense(), obj.to_dense())
        return
    assert result.pickle == theirs
    Comparer().same(torch.load(whole(result), weights_only=True), obj)
