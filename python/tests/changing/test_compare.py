"""Tests of compare.py: it must detect every way in which a loader can err."""

import collections
import copy

import pytest
import torch
from torch import nn

from cases import OBJECTS, quantized, sparse
from compare import Comparer


def dense():
    return {"t": torch.arange(6.0).view(2, 3), "u": torch.ones(2)}


def state_dict():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict()


def seeded(make):
    def made():
        torch.manual_seed(1)
        return make()

    return made


def tied():
    tensor = torch.arange(6.0)
    return {"t": tensor, "same": tensor, "view": tensor[2:], "own": tensor.clone()}


def put(key, change):
    """Returns a mutation that replaces one item by `change(item)`."""
    def mutate(made):
        made[key] = change(made[key])

    return mutate


def in_place(change):
    return lambda made: change(made)


def swap_order(made):
    first = next(iter(made))
    made[first] = made.pop(first)


def quantize_again(scale, zero_point):
    def again(t):
        return torch._make_per_tensor_quantized_tensor(
            t.int_repr(), scale, zero_point
        )

    return again


def channels_again(scale=None, zero=None, axis=0):
    def again(made):
        scales = made[0].q_per_channel_scales().clone()
        zeros = made[0].q_per_channel_zero_points().clone()
        if scale:
            scales[1] = scale
        if zero:
            zeros[1] = zero
        made[0] = torch._make_per_channel_quantized_tensor(
            made[0].int_repr(), scales, zeros, axis
        )

    return again


def rebuilt(layout, **changes):
    """Returns a compressed sparse tensor with one part changed."""
    names = ("crow_indices", "col_indices")
    if layout in ("csc", "bsc"):
        names = ("ccol_indices", "row_indices")

    def mutate(made):
        tensor = made[0]
        parts = [getattr(tensor, name)().clone() for name in names]
        values = tensor.values().clone()
        for index, change in changes.items():
            if index == "values":
                values = change(values)
            else:
                parts[int(index[1])] = change(parts[int(index[1])])
        made[0] = torch.sparse_compressed_tensor(
            *parts, values, size=tensor.shape, layout=tensor.layout,
            check_invariants=False,
        )

    return mutate


def attributed():
    tensor = torch.ones(3)
    tensor.note = {"made": [1, 2]}
    return [tensor]


def coo():
    return [sparse("coo")[1]]


def coo_with(indices=None, values=None, coalesced=None):
    def mutate(made):
        old = made[0]
        new = torch.sparse_coo_tensor(
            old._indices().clone() if indices is None else indices,
            old._values().clone() if values is None else values,
            old.shape,
        )
        made[0] = new._coalesced_(bool(coalesced))

    return mutate


def set_flag(name, value):
    def mutate(made):
        setattr(made[0], name, value)

    return mutate


MUTATIONS = {
    "dtype": (dense, put("t", lambda t: t.to(torch.float64))),
    "dtype of equal bytes": (dense, put("t", lambda t: t.view(torch.int32))),
    "one bit": (dense, lambda m: m["t"].view(torch.uint8)[0, 0].add_(1)),
    "nothing but the sign of zero": (dense, lambda m: m["t"][0, 0].neg_()),
    "shape": (dense, put("t", lambda t: t.view(3, 2))),
    "stride": (dense, put("t", lambda t: t.as_strided((2, 3), (1, 2)))),
    "offset": (tied, put("view", lambda t: t.as_strided((4,), (1,), 1))),
    "a storage cut to its view": (tied, put("view", lambda t: t.clone())),
    "no sharing": (
        tied, put("view", lambda t: copy.deepcopy(t)),
    ),
    "too much sharing": (tied, lambda m: m.update(own=m["t"].view(6))),
    "one tensor for two": (tied, lambda m: m.update(own=m["t"])),
    "two tensors for one": (tied, put("same", lambda t: t.view(6))),
    "requires_grad": (dense, put("t", lambda t: t.requires_grad_())),
    "no leaf": (
        lambda: [torch.ones(2, requires_grad=True)],
        lambda m: m.__setitem__(0, m[0] * 1),
    ),
    "device": (dense, put("t", lambda t: t.to("meta"))),
    "tensor for parameter": (
        lambda: [nn.Parameter(torch.ones(2))],
        lambda m: m.__setitem__(0, torch.ones(2, requires_grad=True)),
    ),
    "parameter frozen": (
        lambda: [nn.Parameter(torch.ones(2))], set_flag("requires_grad", False),
    ),
    "conjugate": (
        lambda: [torch.tensor([1 + 2j])],
        lambda m: m.__setitem__(0, m[0].conj()),
    ),
    "negative": (
        lambda: [torch.tensor([1.0, 2.0])],
        lambda m: m.__setitem__(0, torch._neg_view(m[0])),
    ),
    "order of a dict": (dense, swap_order),
    "order of an OrderedDict": (seeded(state_dict), swap_order),
    "a key more": (dense, lambda m: m.update(z=1)),
    "a key less": (dense, lambda m: m.pop("u")),
    "a key's type": (lambda: {1: "a"}, lambda m: (m.clear(), m.update({True: "a"}))),
    "dict for OrderedDict": (
        lambda: [collections.OrderedDict(a=1)],
        lambda m: m.__setitem__(0, {"a": 1}),
    ),
    "_metadata lost": (seeded(state_dict), lambda m: delattr(m, "_metadata")),
    "_metadata of a module": (
        seeded(state_dict), lambda m: m._metadata["0"].update(version=9),
    ),
    "an attribute more": (
        lambda: collections.OrderedDict(a=1), lambda m: setattr(m, "b", 1),
    ),
    "Counter's attribute": (
        lambda: collections.Counter("ab"), lambda m: setattr(m, "b", 1),
    ),
    "tensor's attribute lost": (attributed, lambda m: delattr(m[0], "note")),
    "tensor's attribute more": (attributed, set_flag("other", 1)),
    "tensor's attribute": (attributed, lambda m: m[0].note["made"].append(3)),
    "sparse tensor's attribute": (coo, set_flag("other", 1)),
    "hooks": (
        lambda: [torch.ones(1, requires_grad=True)],
        lambda m: m[0].register_hook(lambda grad: grad),
    ),
    "int for bool": (lambda: [True], lambda m: m.__setitem__(0, 1)),
    "float for int": (lambda: [1], lambda m: m.__setitem__(0, 1.0)),
    "zero's sign": (lambda: [0.0], lambda m: m.__setitem__(0, -0.0)),
    "complex zero's sign": (
        lambda: [complex(0.0, 0.0)], lambda m: m.__setitem__(0, complex(0.0, -0.0)),
    ),
    "list for tuple": (lambda: [(1,)], lambda m: m.__setitem__(0, [1])),
    "Size for tuple": (
        lambda: [torch.Size([1])], lambda m: m.__setitem__(0, (1,)),
    ),
    "lists no more shared": (
        lambda: (lambda s: [s, s])([1]), lambda m: m.__setitem__(1, [1]),
    ),
    "lists shared": (lambda: [[1], [1]], lambda m: m.__setitem__(1, m[0])),
    "a set's type": (lambda: [{1}], lambda m: m.__setitem__(0, {True})),
    "bytearray": (lambda: [bytearray(b"a")], lambda m: m[0].append(0)),
    "uncoalesced": (coo, coo_with(coalesced=True)),
    "coo indices": (coo, coo_with(torch.tensor([[0, 0, 2], [1, 1, 2]]))),
    "coo values": (coo, coo_with(values=torch.tensor([1.0, 2.0, 4.0]))),
    "coo values' dtype": (
        coo, coo_with(values=torch.tensor([1, 2, 3], dtype=torch.float64)),
    ),
    "scale": (
        lambda: [quantized("tensor")[0]],
        lambda m: m.__setitem__(0, quantize_again(0.2, 3)(m[0])),
    ),
    "zero point": (
        lambda: [quantized("tensor")[0]],
        lambda m: m.__setitem__(0, quantize_again(0.1, 4)(m[0])),
    ),
    "channel's scale": (lambda: [quantized("channel")], channels_again(scale=0.7)),
    "channel's zero point": (lambda: [quantized("channel")], channels_again(zero=5)),
    "nested sizes": (
        lambda: [OBJECTS["nested"]()],
        lambda m: m.__setitem__(0, torch.nested.nested_tensor(
            [torch.arange(5.0), torch.arange(3.0)])),
    ),
    "nested values": (
        lambda: [OBJECTS["nested"]()],
        lambda m: m.__setitem__(0, torch.nested.nested_tensor(
            [torch.arange(3.0), torch.ones(5)])),
    ),
    "storage's type": (
        lambda: [torch.ones(2).storage()],
        lambda m: m.__setitem__(0, torch.ones(2, dtype=torch.int32).storage()),
    ),
    "storage's bytes": (
        lambda: [torch.ones(2).storage()],
        lambda m: m[0].fill_(2.0),
    ),
    "storage no more a tensor's": (
        lambda: (lambda t: [t, t.storage()])(torch.ones(2)),
        lambda m: m.__setitem__(1, torch.ones(2).storage()),
    ),
    "dtype object": (lambda: [torch.int8], lambda m: m.__setitem__(0, torch.int16)),
    "device object": (
        lambda: [torch.device("cpu")],
        lambda m: m.__setitem__(0, torch.device("meta")),
    ),
}
for _layout in ("csr", "csc", "bsr", "bsc"):
    for _name, _changes in {
        "compressed indices": {"p0": lambda t: t.clone().index_fill_(
            0, torch.tensor([1]), 0)},
        "plain indices": {"p1": lambda t: t.flip(0)},
        "indices' dtype": {
            "p0": lambda t: t.int(), "p1": lambda t: t.int(),
        },
        "values": {"values": lambda t: t + 1},
        "values' dtype": {"values": lambda t: t.double()},
    }.items():
        MUTATIONS[f"{_layout} {_name}"] = (
            lambda layout=_layout: [sparse(layout)], rebuilt(_layout, **_changes),
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_difference_is_seen(name):
    make, mutate = MUTATIONS[name]
    ours, theirs = make(), make()
    Comparer().same(ours, theirs)
    mutate(ours)
    with pytest.raises(AssertionError):
        Comparer().same(ours, theirs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OBJECTS)
def test_what_is_the_same_is_not_refused(name):
    Comparer().same(OBJECTS[name](), OBJECTS[name]())
