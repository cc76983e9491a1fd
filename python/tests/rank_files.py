"""Rank files as any version of torch pickles them, without a process group."""

import io
import pickle
import zipfile

import numpy


class Name:
    """A global: a module and an attribute."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Call:
    """A call (REDUCE), or an object made empty or of items (NEWOBJ)."""

    def __init__(self, callee, args, state=None, new=False):
        self.callee, self.args, self.state, self.new = callee, args, state, new


def new(module, name, state=None, args=()):
    return Call(Name(module, name), args, state, new=True)


class Storage:
    def __init__(self, array, kind="FloatStorage"):
        self.array, self.kind = array, kind


class _Pickler(pickle._Pickler):  # In Python: it can write any name.
    def __init__(self, file, storages):
        super().__init__(file, protocol=2)
        self.storages = storages

    def persistent_id(self, obj):
        if not isinstance(obj, Storage):
            return None
        if obj not in self.storages:
            self.storages.append(obj)
        key = str(self.storages.index(obj))
        return "storage", Name("torch", obj.kind), key, "cpu", obj.array.size

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, (Name, Call)):
            if (known := self.memo.get(id(obj))) is not None:
                return self.write(self.get(known[0]))
            if isinstance(obj, Name):
                self.write(f"c{obj.module}\n{obj.name}\n".encode())
            else:
                self.save(obj.callee)
                self.save(tuple(obj.args))
                self.write(pickle.NEWOBJ if obj.new else pickle.REDUCE)
            self.memoize(obj)
            if isinstance(obj, Call) and obj.state is not None:
                self.save(obj.state)
                self.write(pickle.BUILD)
            return None
        return super().save(obj, save_persistent_id)


def write(path, state):
    """Writes `state` as torch.save() does."""
    storages, text = [], io.BytesIO()
    _Pickler(text, storages).dump(state)
    with zipfile.ZipFile(path, "w") as archive:
        def add(name, data):
            # torch aligns what it writes; the reader does not need it.
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), data)

        add("data.pkl", text.getvalue())
        add("byteorder", b"little")
        for i, storage in enumerate(storages):
            add(f"data/{i}", storage.array.tobytes())
        add("version", b"3\n")


def plain(array, kind="FloatStorage", shape=None, strides=None, offset=0,
          storage=None):
    """A tensor of a storage."""
    storage = storage or Storage(numpy.ascontiguousarray(array), kind)
    shape = tuple(array.shape if shape is None else shape)
    if strides is None:
        strides, step = [], 1
        for size in reversed(shape):
            strides.insert(0, step)
            step *= max(size, 1)
    return Call(Name("torch._utils", "_rebuild_tensor_v2"), (
        storage, offset, shape, tuple(strides), False,
        Call(Name("collections", "OrderedDict"), ())))


PLACES = "torch.distributed.tensor.placement_types"
SPEC = "torch.distributed.tensor._dtensor_spec"
LAYOUT = "torch.distributed._mesh_layout"


def shard(dim, module=PLACES):
    return new(module, "Shard", {"dim": dim})


def strided(dim, factor):
    return new(PLACES, "_StridedShard", {"dim": dim, "split_factor": factor})


def replicate(module=PLACES):
    return new(module, "Replicate")  # As Python 3.11 pickles it.


def mesh(ranks, rank, version="2.13", names=("x", "y")):
    """A mesh of all `ranks`, an array, as `version` of torch pickles it."""
    ranks = numpy.asarray(ranks)
    names = tuple(names[:ranks.ndim])
    if version in ("2.3", "2.5"):
        state = {"device_type": "cpu",
                 "mesh": plain(ranks.astype("i4"), "IntStorage"),
                 "mesh_dim_names": names,
                 "_flatten_mesh_list": tuple(ranks.ravel().tolist()),
                 "_coordinate_on_dim": [0] * ranks.ndim,
                 "_dim_group_infos": [("", ranks.ravel().tolist(), "0")]}
        state["_hash" if version == "2.3" else "_thread_id"] = 1
    else:
        strides = [s // ranks.itemsize
                   for s in numpy.ascontiguousarray(ranks).strides]
        if version == "2.10":
            layout = new(LAYOUT, "_MeshLayout", {
                "shape": ranks.shape, "stride": tuple(strides)})
        else:
            layout = new(LAYOUT, "_MeshLayout", {"axes": tuple(
                new(LAYOUT, "_FlatLayout", {"shape": (n,), "stride": (s,)})
                for n, s in zip(ranks.shape, strides))})
        state = {"_device_type": "cpu", "_layout": layout,
                 "_rank_map": plain(ranks.ravel().astype("i4"), "IntStorage"),
                 "_mesh_dim_names": names, "_root_mesh": None,
                 "_flatten_rank_map": tuple(ranks.ravel().tolist()),
                 "_rank": rank, "_hash": 7}
    return new("torch.distributed.device_mesh", "DeviceMesh", state)


def dtensor(local, shape, placements, where, version="2.13", meta_shape=None,
            dtype="float32", kind="FloatStorage", **how):
    """A DTensor: `local` is an array, or a tensor made by plain()."""
    if isinstance(local, numpy.ndarray):
        local = plain(local, kind, **how)
    size = Call(Name("torch", "Size"), (tuple(meta_shape or shape),))
    module = ("torch.distributed._tensor.placement_types"
              if version == "2.3" else SPEC)
    spec = new(module, "DTensorSpec", {
        "mesh": where, "placements": tuple(placements),
        "tensor_meta": new(module, "TensorMeta",
                           args=(size, (1,) * len(shape),
                                 Name("torch", dtype)))})
    of = Name(*(("torch.distributed._tensor.api", "DTensor")
                if version == "2.3" else
                ("torch.distributed.tensor", "DTensor")))
    return Call(Name("torch._tensor", "_rebuild_from_type_v2"), (
        Name("torch._utils", "_rebuild_wrapper_subclass"), of,
        (of, Name("torch", dtype), tuple(shape), (1,) * len(shape), 0,
         Call(Name("torch.serialization", "_get_layout"), ("torch.strided",)),
         Call(Name("torch", "device"), ("cpu",)), False),
        (None, {"_local_tensor": local, "_spec": spec})))


def name(rank, world, part="model"):
    return f"{part}_world_size_{world}_rank_{rank}.pt"


def write_all(folder, world, state_of, part="model"):
    """Writes state_of(rank) for each rank."""
    folder.mkdir(exist_ok=True)
    for rank in range(world):
        write(folder / name(rank, world, part), state_of(rank))
    return folder
