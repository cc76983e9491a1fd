"""Compares the objects that two loaders made from one file.

Detects every difference that test_compare.py tries.
"""

import struct

import torch

# Names of the parts of compressed sparse tensors.
COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
# Equal values of these types may be one object in one process and two in
# another.
INTERNED = (type(None), bool, int, float, complex, str, bytes, torch.dtype,
            torch.device, torch.layout, type)


def same_tensors(found, expected):
    """Asserts that two dicts hold the same tensors, or arrays, by name."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        if isinstance(value, dict):
            same_tensors(found[name], value)
        else:
            assert torch.equal(torch.as_tensor(found[name]), value), name


def raw(storage):
    """Returns the bytes of a storage as a tensor."""
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class Comparer:
    """Asserts that two objects are equal in types, values, bits and sharing."""

    def __init__(self):
        self.objects = {}
        self.their_objects = {}
        self.storages = {}
        self.their_storages = {}
        self.alive = []

    def first_time(self, ours, theirs, path):
        """Returns whether both objects are new; fails if only one is."""
        self.alive.append((ours, theirs))
        seen = id(theirs) in self.objects
        assert self.objects.setdefault(id(theirs), id(ours)) == id(ours), (
            path, "was one object, and is two"
        )
        mine = self.their_objects.setdefault(id(ours), id(theirs))
        assert mine == id(theirs), (path, "were two objects, and are one")
        return not seen

    def same(self, ours, theirs, path="object"):
        assert type(ours) is type(theirs), (path, type(ours), type(theirs))
        if isinstance(theirs, INTERNED):
            self.scalars(ours, theirs, path)
            return
        # The empty tuple is always the same object.
        is_empty_tuple = type(theirs) is tuple and not theirs
        if not is_empty_tuple and not self.first_time(ours, theirs, path):
            return
        if isinstance(theirs, torch.Tensor):
            self.tensors(ours, theirs, path)
        elif isinstance(theirs, torch.storage.TypedStorage):
            assert ours.dtype == theirs.dtype, path
            self.bytes(ours._untyped_storage, theirs._untyped_storage, path)
        elif isinstance(theirs, torch.UntypedStorage):
            self.bytes(ours, theirs, path)
        elif isinstance(theirs, dict):
            assert len(ours) == len(theirs), path
            for mine, other in zip(ours, theirs):
                self.same(mine, other, f"{path}, key {other!r}")
                self.same(ours[mine], theirs[other], f"{path}[{other!r}]")
        elif isinstance(theirs, (list, tuple)):
            assert len(ours) == len(theirs), path
            for i, (mine, other) in enumerate(zip(ours, theirs)):
                self.same(mine, other, f"{path}[{i}]")
        elif isinstance(theirs, (set, frozenset)):
            assert {(type(item), item) for item in ours} == {
                (type(item), item) for item in theirs
            }, path
        else:
            assert ours == theirs, path
        self.attributes(ours, theirs, path)

    def scalars(self, ours, theirs, path):
        if isinstance(theirs, float):
            assert struct.pack("d", ours) == struct.pack("d", theirs), path
        elif isinstance(theirs, complex):
            self.scalars(ours.real, theirs.real, path)
            self.scalars(ours.imag, theirs.imag, path)
        else:
            assert ours == theirs, path

    def attributes(self, ours, theirs, path):
        """Compares attributes of the object, such as an OrderedDict's
        _metadata."""
        if isinstance(theirs, (torch.storage.TypedStorage, torch.UntypedStorage)):
            return
        mine = getattr(ours, "__dict__", {})
        others = getattr(theirs, "__dict__", {})
        assert list(mine) == list(others), (path, list(mine), list(others))
        for name, value in others.items():
            self.same(mine[name], value, f"{path}.{name}")

    def tensors(self, ours, theirs, path):
        for fact in ("dtype", "layout", "device", "requires_grad", "is_leaf",
                     "is_nested", "is_quantized", "grad"):
            mine, other = getattr(ours, fact), getattr(theirs, fact)
            assert mine == other, (path, fact, mine, other)
        # No hooks are None or an empty dict; PyTorch makes the latter for every
        # file.
        assert (ours._backward_hooks or {}) == (theirs._backward_hooks or {}), path
        assert ours.is_conj() == theirs.is_conj(), path
        assert ours.is_neg() == theirs.is_neg(), path
        if theirs.is_nested:
            self.nested(ours, theirs, path)
            return
        assert ours.shape == theirs.shape, path
        if theirs.layout is torch.strided:
            self.strided(ours, theirs, path)
        else:
            self.sparse(ours, theirs, path)

    def strided(self, ours, theirs, path):
        assert ours.dtype == theirs.dtype, (path, ours.dtype, theirs.dtype)
        assert ours.device == theirs.device, path
        assert ours.shape == theirs.shape, path
        assert ours.stride() == theirs.stride(), path
        assert ours.storage_offset() == theirs.storage_offset(), path
        if theirs.is_quantized:
            self.quantizers(ours, theirs, path)
        self.bytes(ours.untyped_storage(), theirs.untyped_storage(), path)

    def quantizers(self, ours, theirs, path):
        assert ours.qscheme() == theirs.qscheme(), path
        if theirs.qscheme() in (torch.per_tensor_affine,
                                torch.per_tensor_symmetric):
            self.scalars(ours.q_scale(), theirs.q_scale(), f"{path}.q_scale")
            assert ours.q_zero_point() == theirs.q_zero_point(), path
            return
        assert (
            ours.q_per_channel_axis() == theirs.q_per_channel_axis()
        ), path
        for part in ("q_per_channel_scales", "q_per_channel_zero_points"):
            mine, other = getattr(ours, part)(), getattr(theirs, part)()
            assert mine.dtype == other.dtype, (path, part)
            assert mine.shape == other.shape, (path, part)
            assert torch.equal(mine, other), (path, part)

    def sparse(self, ours, theirs, path):
        for count in ("sparse_dim", "dense_dim"):
            assert getattr(ours, count)() == getattr(theirs, count)(), path
        if theirs.layout is torch.sparse_coo:
            assert ours.is_coalesced() == theirs.is_coalesced(), path
            parts = ("_indices", "_values")
        else:
            parts = (*COMPRESSED[theirs.layout], "values")
        for part in parts:
            self.strided(
                getattr(ours, part)().detach(),
                getattr(theirs, part)().detach(),
                f"{path}.{part}",
            )

    def nested(self, ours, theirs, path):
        for part in ("_nested_tensor_size", "_nested_tensor_strides",
                     "_nested_tensor_storage_offsets"):
            assert torch.equal(getattr(ours, part)(), getattr(theirs, part)()), (
                path, part
            )
        for i, (mine, other) in enumerate(
            zip(ours.unbind(), theirs.unbind(), strict=True)
        ):
            self.strided(mine.detach(), other.detach(), f"{path}[{i}]")

    def bytes(self, ours, theirs, path):
        """Compares storages: their bytes, and which tensors share them."""
        assert ours.device == theirs.device, path
        assert ours.nbytes() == theirs.nbytes(), path
        if theirs.nbytes() == 0 or theirs.device.type == "meta":
            return
        self.alive.append((ours, theirs))
        mine = self.storages.setdefault(theirs._cdata, ours._cdata)
        assert mine == ours._cdata, (path, "shared a storage, and does not")
        other = self.their_storages.setdefault(ours._cdata, theirs._cdata)
        assert other == theirs._cdata, (path, "shares a storage, and did not")
        assert torch.equal(raw(ours), raw(theirs)), (path, "bytes differ")
