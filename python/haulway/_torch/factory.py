"""Makes torch objects from checkpoints. Imported only when torch is needed."""

# Design: the engine builds containers and numbers itself and calls this factory
# for what only torch can make: a storage over memory that the engine lends,
# tensors over a storage by offset, shape and strides, and tensors that one of
# torch's own rebuild functions makes from data. A name in a pickle is a key of
# a table and is never imported. If torch refuses, its message becomes a Haulway
# error. Private names of torch that other releases may lack are used only
# through substitutes (private.py).
#
# torch.frombuffer() was left out for storages: it refuses empty memory, and
# warns of read-only memory. Parts that torch would trust, such as the indices
# of sparse tensors, are checked first.


import functools
import warnings

import torch

from .._dtype_table import BYTES, TABLE
from .._errors import (
    CorruptError,
    Error,
    LimitError,
    UnsafeError,
    UnsupportedError,
)
from .._importing import importing
from .._nested import check_components
from . import private as _torch_private

# Some torch releases lack some of them.
_DTYPES = {
    row.name: getattr(torch, row.torch_name) for row in TABLE.values()
    if row.torch_name and hasattr(torch, row.torch_name)
}

from_dlpack = _torch_private.from_dlpack()


@functools.cache
def _data_classes():
    """Imports the module, which few checkpoints need and which imports much."""
    with importing:
        from .. import _data_classes as module

    return module


def storage_of(memory):
    """Returns an UntypedStorage over a Memory; a copy if it is read-only."""
    if memory.nbytes == 0:
        return torch.UntypedStorage(0)
    if memory.readonly:
        copy = bytearray(memory)
        return torch.frombuffer(copy, dtype=torch.uint8).untyped_storage()
    return memory.lend(from_dlpack).untyped_storage()


_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def name_of_dtype(dtype):
    """Returns Haulway's name for a torch dtype."""
    if dtype not in _NAMES:
        raise UnsupportedError(f"{dtype} is not known", "kUnsupported")
    return _NAMES[dtype]


def dtype_of(name):
    """Returns torch's dtype for one of Haulway's names."""
    if name in BYTES:
        return torch.uint8
    if name not in _DTYPES:
        raise UnsupportedError(f"torch has no dtype {name}", "kUnsupported")
    return _DTYPES[name]


# Exceptions that torch raises for inconsistent parts.
_REFUSALS = (
    AssertionError, AttributeError, IndexError, OverflowError, RuntimeError,
    TypeError, ValueError,
)


def refused(error, what):
    """Returns the Error for an exception that torch raised for parts of a
    file."""
    if isinstance(error, Error):
        return error
    words = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate" in words:
        return LimitError(f"{what}: {words}", "kLimit")
    return CorruptError(f"{what}: {words}", "kCorrupt")


def tensor_over(storage, info):
    """Returns the tensor that `info` describes, over an UntypedStorage."""
    try:
        tensor = _tensor_over(storage, info)
    except _REFUSALS as error:
        raise refused(error, _described(info)) from error
    if storage.device.type == "meta":
        # In a FakeTensorMode it may represent a tensor on another device. An
        # exception of torch about that is not a fault of the file.
        return _torch_private.restore_device_fake_mode(tensor)
    return tensor


def _described(info):
    shape = "x".join(map(str, info.shape)) or "none"
    return f"torch makes no tensor of {info.dtype} and shape {shape}"


def _tensor_over(storage, info):
    dtype = dtype_of(info.dtype)
    tensor = torch.empty(0, dtype=dtype, device=storage.device)
    tensor.set_(storage, info.offset, info.shape, info.strides)
    if info.conjugate or info.negative:
        tensor = _torch_private.flipped(
            tensor, conj=info.conjugate, neg=info.negative
        )
    if info.requires_grad:
        tensor.requires_grad_(True)
    return tensor


def without_data(map_location):
    """Returns how torch.load would skip reading data: "fake", "meta", "skip" or
    None."""
    if _torch_private.detect_fake_mode() is not None:
        return "fake"
    if is_meta(map_location):
        return "meta"
    return "skip" if _torch_private.serialization_state().skip_data else None


def is_meta(map_location):
    if isinstance(map_location, str):
        map_location = torch.device(map_location)
    return isinstance(map_location, torch.device) and map_location.type == "meta"


def meta_storage(core, row):
    """Returns a storage without data that has the size of a storage in the
    file."""
    return torch.UntypedStorage(core.storage(row).nbytes, device="meta")


def meta_tensor(info):
    try:
        return torch.empty_strided(
            info.shape,
            info.strides,
            dtype=dtype_of(info.dtype),
            device="meta",
            requires_grad=info.requires_grad,
        )
    except _REFUSALS as error:
        raise refused(error, _described(info)) from error


# Made from index tensors, which torch trusts by default.
_MAY_BE_INVALID = _torch_private.rebuilds_of_indices()


def _checked(rebuild, args, has_data):
    """Returns rebuild(*args); raises CorruptError if the result is invalid."""
    if not has_data:
        tensor = rebuild(*args)
        _torch_private.sparse_tensors_to_validate().clear()
        return tensor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if _torch_private.rebuilds_nested(rebuild):
                buffer, *parts = args
                # A nested tensor without components has an empty list of sizes.
                has_any = parts[0].ndim == 2 and not parts[0].is_meta
                if has_any:
                    check_components(
                        buffer.numel(), *(part.tolist() for part in parts)
                    )
            tensor = rebuild(*args)
            _torch_private.sparse_tensors_to_validate().clear()
            if tensor.layout is torch.strided or tensor.is_meta:
                return tensor
            if tensor.layout is torch.sparse_coo:
                _torch_private.validate_sparse_coo(
                    tensor._indices(), tensor._values(), tensor.size(),
                    tensor.is_coalesced(),
                )
                return tensor
            rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
            _torch_private.validate_sparse_compressed(
                tensor.crow_indices() if rows else tensor.ccol_indices(),
                tensor.col_indices() if rows else tensor.row_indices(),
                tensor.values(), tensor.size(), tensor.layout,
            )
            return tensor
        except (
            AttributeError, IndexError, RuntimeError, TypeError, ValueError
        ) as error:
            what = str(error).split("\n")[0]
            raise CorruptError(
                f"tensor of parts that contradict each other: {what}",
                "kCorrupt",
            ) from error


def _set_attributes(built, full, state):
    """Sets the attributes of an object without __setstate__ as pickle does:
    directly, past the class's own __setattr__, since it may be frozen."""
    is_pair = isinstance(state, tuple) and len(state) == 2
    attributes, slots = state if is_pair else (state, None)
    for part in (attributes, slots):
        if part is not None and not isinstance(part, dict):
            raise CorruptError(
                f"state for '{full}' is {type(part).__name__}: expected a dict "
                "of attributes",
                "kCorrupt",
            )
    if attributes:
        vars(built).update(attributes)
    for name, value in (slots or {}).items():
        setattr(built, name, value)


@functools.cache
def _allowed():
    return _torch_private.allowed_globals()


class TorchFactory:
    """Makes the object as torch.load(weights_only=True) would.

    The names in a pickle are those that torch itself allows, and those of
    `safe_classes`, a dict by full name that the caller allowed.

    on_gpu: storages are bases; see _torch.device.
    """

    def __init__(self, checkpoint, safe_classes, has_data=True, on_gpu=False):
        self.checkpoint = checkpoint
        self.safe_classes = safe_classes
        self.has_data = has_data
        self.on_gpu = on_gpu
        self._views = {}  # UntypedStorages by key.

    def tensor(self, row):
        return meta_tensor(self.checkpoint.tensor(row))

    def base(self, row, memory):
        return storage_of(memory)

    @staticmethod
    def _untyped(base):
        if isinstance(base, torch.UntypedStorage):
            return base
        return base.untyped_storage()

    def view(self, base, row):
        if self.on_gpu and isinstance(base, torch.Tensor):
            return base  # It was made with its storage.
        return tensor_over(
            self._untyped(base), self.checkpoint.tensor(row)
        )

    def storage(self, base, row, persistent_id):
        kind = persistent_id[1]
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        untyped = self._untyped(base)
        view = persistent_id[5] if len(persistent_id) > 5 else None
        if view is not None:  # torch up to 0.3 wrote the file.
            untyped = self._part(untyped, dtype, *view)
        return _torch_private.typed_storage(untyped, dtype)

    def _part(self, whole, dtype, key, offset, size):
        """Returns the view `key` of a storage; like torch, makes one for each
        key. `offset` and `size` count elements."""
        if key not in self._views:
            begin, end = offset * dtype.itemsize, (offset + size) * dtype.itemsize
            self._views[key] = (
                torch.UntypedStorage(end - begin, device="meta")
                if whole.device.type == "meta" else whole[begin:end]
            )
        return self._views[key]

    def name(self, module, name):
        full = f"{module}.{name}"
        found = self.safe_classes.get(full) or _allowed().get(full)
        if found is None and _data_classes().is_type(full):
            return _data_classes().type_of(full)
        if found is None:
            raise UnsafeError(
                f"global '{full}' is allowed by its name only, by which "
                "nothing is imported: give safe_globals the class or function "
                "itself"
                if full in self.safe_classes
                else f"global '{full}' is not allowed",
                "kUnsafe",
            )
        return found

    def is_ours(self, full):
        """Returns whether _data_classes makes it; the caller's own class takes
        precedence."""
        return _data_classes().is_known(full) and not self.safe_classes.get(full)

    def construct(self, module, name, args, kwargs, is_new):
        if self.is_ours(f"{module}.{name}"):
            return _data_classes().construct(f"{module}.{name}", args, kwargs)
        callable_ = self.name(module, name)
        if callable_ in _MAY_BE_INVALID:
            return _checked(callable_, args, self.has_data)
        make = functools.partial(callable_.__new__, callable_) if is_new \
            else callable_
        if f"{module}.{name}" in self.safe_classes:
            # Its exceptions reach the caller unchanged.
            return make(*args, **(kwargs or {}))
        try:
            return make(*args, **(kwargs or {}))
        except _REFUSALS as error:
            if callable_ is torch.device:  # The arguments were checked.
                raise UnsupportedError(
                    f"torch {torch.__version__} has no such device: "
                    f"{':'.join(map(str, args))}", "kUnsupported"
                ) from error
            raise refused(error, f"{module}.{name} takes no such parts") from error

    def set_state(self, built, module, name, state):
        if type(built) in (torch.Tensor, torch.nn.Parameter):
            try:
                if type(built) is torch.Tensor:
                    built.set_(*state)
                else:
                    built.__setstate__(state)
            except _REFUSALS as error:
                raise refused(error, "a tensor takes no such state") from error
        elif self.is_ours(f"{module}.{name}"):
            return _data_classes().set_state(f"{module}.{name}", built, state)
        elif f"{module}.{name}" not in self.safe_classes:
            raise UnsafeError(
                f"state for '{module}.{name}' is not allowed", "kUnsafe"
            )
        elif hasattr(built, "__setstate__"):
            built.__setstate__(state)
        else:
            _set_attributes(built, f"{module}.{name}", state)
        return built

    def extend(self, built, appended, items):
        _data_classes().extend(built, appended, items)

    def set_attributes(self, mapping, state):
        vars(mapping).update(state)
