"""Stand-ins in an object for parts that are neither data nor tensors."""

# Design: a factory makes objects while the library walks a pickle, and has one
# method for each thing that a pickle can request. DescribingFactory makes
# descriptions of all of them, NumpyFactory also arrays for tensors; torch's
# factory is in a separate module. Names in a pickle become GlobalName and
# PickledObject. They are never imported, not even to find out whether they are
# classes, since an import runs code.

from typing import Any, NamedTuple

from .._describing import bytes_text, described, public, shown
from .._errors import Error, UnsupportedError
from .._importing import imported, importing


class TensorInfo(NamedTuple):
    """A tensor as the file describes it.

    kind: "dense"; "meta" if the file has no data of it; "storage" for a
        storage by itself.
    dtype: its dtype, "F32".
    shape: a tuple of sizes.
    strides: a tuple of strides, in elements.
    offset: its first element, in elements from the start of the storage.
    storage: a number: tensors with equal numbers share memory. None: the
        tensor has no data (meta).
    nbytes: the size of its elements, in bytes.
    requires_grad: whether torch computes its gradient.
    conjugate, negative: whether torch's lazy conjugation or negation is set.
    """

    kind: str
    dtype: str
    shape: tuple
    strides: tuple
    offset: int
    storage: int | None
    nbytes: int
    requires_grad: bool
    conjugate: bool
    negative: bool

    def __repr__(self):
        return described(
            self, self.kind, self.dtype, shown(self.shape),
            bytes_text(self.nbytes),
            "no data" if self.storage is None else f"storage {self.storage}",
        )


class StorageInfo(NamedTuple):
    """A storage as the file describes it.

    `location` is the device that it was saved from; `untyped` says that it was
    saved as bytes. `offset` is its offset in the file, or None if the bytes are
    stored in another form. `key` is the format's name for it.
    """

    key: str
    location: str
    dtype: str
    untyped: bool
    nbytes: int
    offset: int | None


class TensorRequest(NamedTuple):
    """A tensor, or a part of one, that is requested from the engine.

    row: the number of a tensor; with `stored`, the dtype of the elements, the
        number of a storage.
    slices: (start, stop, step) of every dimension; None: the whole tensor.
    dtype: the dtype to cast elements to; None: no cast.
    address, nbytes: memory to load into; None: the engine allocates memory.
    """

    row: int
    slices: list | None = None
    dtype: str | None = None
    stored: str | None = None
    address: int | None = None
    nbytes: int = 0


def dense_strides(shape):
    """Returns the strides, in elements, of a dense row-major tensor."""
    strides, dense = [], 1
    for size in reversed(shape):
        strides.append(dense)
        dense *= max(size, 1)
    return tuple(reversed(strides))


class GlobalName(NamedTuple):
    """A name in a pickle, which is never imported: `module` and `name`."""

    module: str
    name: str

    def __repr__(self):
        return described(self, shown(f"{self.module}.{self.name}", 80))


class PickledObject:
    """What a pickle would have made by calling a name, which is never called.

    module, name: what the pickle calls.
    args, kwargs: with which arguments; `kwargs` is None if there are none.
    state, appended, items: what the pickle sets on the object afterwards,
        appends to it, and sets by key.

    A plain value: threads may share one that nobody changes.

    Its methods raise nothing.
    """

    def __init__(self, module, name, args, kwargs=None):
        self.module = module
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.state: Any = None
        self.appended = []
        self.items = []

    def __repr__(self):
        return _called(self, shown(self.args, 80))


class OpaqueObject(PickledObject):
    """An object that only code which is not allowed could make; never made.

    byte: the offset at which the pickle asks for the object.
    module, name, args, kwargs: as for PickledObject. The values of `args`,
        `kwargs`, `state`, `appended` and `items` are data, and may be opaque
        too.

    A plain value: threads may share one that nobody changes. Its methods raise
    nothing.
    """

    def __init__(self, module, name, byte, args, kwargs=None):
        super().__init__(module, name, args, kwargs)
        self.byte = byte

    def __repr__(self):
        return _called(self, ", not loaded")


def _called(value, more):
    name = shown(f"{value.module}.{value.name}", 80)[1:-1]
    return f"<{name}{more}>"


class DescribingFactory:
    """Makes the object with TensorInfos as tensors."""

    keeps_opaque = True

    def __init__(self, checkpoint):
        self.checkpoint = checkpoint

    def tensor(self, row):
        return self.checkpoint.tensor(row)

    def storage(self, base, row, persistent_id):
        info = self.checkpoint.storage(row)
        return PickledObject(
            "torch.storage", "UntypedStorage",
            (info.key, info.location, info.nbytes),
        )

    def name(self, module, name):
        return GlobalName(module, name)

    def construct(self, module, name, args, kwargs, is_new):
        if (module, name) == ("torch", "Size"):
            return tuple(args[0])
        if name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
            data = args[0]
            if isinstance(data, TensorInfo):
                return data._replace(requires_grad=bool(args[1]))
            return data
        data_classes = imported("haulway._data_classes")

        if data_classes.is_known(f"{module}.{name}"):
            try:
                return data_classes.construct(
                    f"{module}.{name}", args, kwargs
                )
            except Error:
                if not self.keeps_opaque:
                    # Otherwise the failure may be due to an opaque part of the
                    # object.
                    raise
        return PickledObject(module, name, args, kwargs)

    def opaque(self, module, name, byte, args, kwargs):
        return OpaqueObject(module, name, byte, args, kwargs)

    def set_state(self, built, module, name, state):
        data_classes = imported("haulway._data_classes")

        if isinstance(built, PickledObject):
            built.state = state
        elif data_classes.is_known(f"{module}.{name}"):
            return data_classes.set_state(f"{module}.{name}", built, state)
        return built

    def extend(self, built, appended, items):
        data_classes = imported("haulway._data_classes")

        if isinstance(built, PickledObject):
            built.appended = appended
            built.items = items
        else:
            data_classes.extend(built, appended, items)

    def set_attributes(self, mapping, state):
        vars(mapping).update(state)


class NumpyFactory(DescribingFactory):
    """Makes the object with NumPy arrays as tensors."""

    keeps_opaque = False

    def __init__(self, checkpoint, memories):
        with importing:
            import numpy

            from .dtypes import numpy_dtype

        super().__init__(checkpoint)
        self.memories = memories
        # The library makes dense arrays from these without calling tensor().
        self.arrays = (numpy.ndarray, numpy_dtype, memories)

    def tensor(self, row):
        info = super().tensor(row)
        if info.storage is None:
            return info
        return make_array(info, self.memories[info.storage])

    def construct(self, module, name, args, kwargs, is_new):
        sparse = imported("haulway._making.sparse")

        if name in ("_rebuild_from_type_v2", "_rebuild_from_type"):
            # A tensor subclass, or a tensor with attributes: only its elements
            # are used.
            inner = args[0]
            return self.construct(inner.module, inner.name, args[2], None, False)
        if name == "_rebuild_sparse_tensor":
            layout = args[0].args[0] if isinstance(args[0], PickledObject) else None
            sparse.check_sparse(layout, args[1])
        if name == "_rebuild_nested_tensor":
            sparse.check_nested(args)
        return super().construct(module, name, args, kwargs, is_new)


def _no_array(info, error):
    shape = "x".join(map(str, info.shape))
    return UnsupportedError(
        f"NumPy has no array of {info.dtype} and shape {shape}: {error}",
        "kUnsupported",
    )


def make_array(info, memory):
    """Returns a NumPy array over memory that holds the tensor's whole
    storage."""
    numpy = imported("numpy")
    dtypes = imported("haulway._making.dtypes")
    dtype = dtypes.numpy_dtype(info.dtype)
    if info.nbytes == 0:
        try:
            return numpy.empty(info.shape, dtype)
        except ValueError as error:
            raise _no_array(info, error) from error
    try:
        array = numpy.ndarray(
            info.shape,
            dtype,
            buffer=memory,
            offset=info.offset * dtype.itemsize,
            strides=dtypes.byte_strides(info.strides, dtype),
        )
    except ValueError as error:
        raise _no_array(info, error) from error
    if info.conjugate:
        array = numpy.conj(array)
    if info.negative:
        array = numpy.negative(array)
    return array


public("haulway", GlobalName, OpaqueObject, PickledObject, TensorInfo)
