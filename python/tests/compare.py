"""Comparing what two loaders made of one file."""

import collections
import math

import torch


def storage_key(tensor):
    return tensor.untyped_storage()._cdata


def raw(storage):
    """The bytes of a storage as a tensor."""
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class Comparer:
    """Asserts that two objects are the same: types, values, bits, sharing."""

    def __init__(self):
        self.objects = {}
        self.storages = {}

    def same(self, ours, theirs, path="object"):
        assert type(ours) is type(theirs), (path, type(ours), type(theirs))
        if id(theirs) in self.objects:
            # A mention of an object seen before must be that object here too.
            if not isinstance(theirs, (int, float, str, bytes, type(None))):
                assert self.objects[id(theirs)][0] is ours, path
            return
        self.objects[id(theirs)] = (ours, theirs)
        if isinstance(theirs, torch.Tensor):
            self.tensors(ours, theirs, path)
        elif isinstance(theirs, torch.storage.TypedStorage):
            assert ours.dtype == theirs.dtype, path
            assert ours.tolist() == theirs.tolist(), path
        elif isinstance(theirs, dict):
            assert list(ours) == list(theirs), path
            for key in theirs:
                self.same(ours[key], theirs[key], f"{path}[{key!r}]")
            if isinstance(theirs, collections.OrderedDict):
                self.same(vars(ours), vars(theirs), f"{path}.__dict__")
        elif isinstance(theirs, (list, tuple)):
            assert len(ours) == len(theirs), path
            for i, (mine, other) in enumerate(zip(ours, theirs)):
                self.same(mine, other, f"{path}[{i}]")
        elif isinstance(theirs, float) and math.isnan(theirs):
            assert math.isnan(ours), path
        else:
            assert ours == theirs, path

    def tensors(self, ours, theirs, path):
        for fact in ("dtype", "layout", "device", "requires_grad", "is_leaf"):
            assert getattr(ours, fact) == getattr(theirs, fact), (path, fact)
        if theirs.is_nested:
            for mine, other in zip(ours.unbind(), theirs.unbind(), strict=True):
                self.bits(mine, other, path)
            return
        assert ours.shape == theirs.shape, path
        if theirs.layout is torch.sparse_coo:
            assert ours.is_coalesced() == theirs.is_coalesced(), path
            self.bits(ours._indices(), theirs._indices(), path)
            self.bits(ours._values(), theirs._values(), path)
            return
        if theirs.layout is not torch.strided:
            for part in ("crow_indices", "ccol_indices"):
                if hasattr(theirs, part) and part[1:4] in str(theirs.layout):
                    self.bits(getattr(ours, part)(), getattr(theirs, part)(), path)
            self.bits(ours.values(), theirs.values(), path)
            return
        assert ours.stride() == theirs.stride(), path
        assert ours.storage_offset() == theirs.storage_offset(), path
        assert ours.is_conj() == theirs.is_conj(), path
        assert ours.is_neg() == theirs.is_neg(), path
        if theirs.is_quantized:
            assert ours.qscheme() == theirs.qscheme(), path
            assert torch.equal(ours.int_repr(), theirs.int_repr()), path
            assert torch.equal(ours.dequantize(), theirs.dequantize()), path
            return
        if theirs.device.type == "meta":
            return
        self.bits(ours, theirs, path)
        key = storage_key(theirs)
        if theirs.untyped_storage().nbytes():
            mine = self.storages.setdefault(key, storage_key(ours))
            assert mine == storage_key(ours), (path, "sharing differs")
        attributes = {k: v for k, v in vars(theirs).items() if k != "_backward_hooks"} \
            if hasattr(theirs, "__dict__") else {}
        for name, value in attributes.items():
            self.same(getattr(ours, name), value, f"{path}.{name}")

    def bits(self, ours, theirs, path):
        assert ours.dtype == theirs.dtype, path
        assert ours.shape == theirs.shape, path
        mine = ours.untyped_storage()
        other = theirs.untyped_storage()
        assert mine.nbytes() == other.nbytes(), path
        assert torch.equal(raw(mine), raw(other)), (path, "bytes differ")
