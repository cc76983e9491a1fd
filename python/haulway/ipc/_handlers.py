"""Converts objects to bytes in an arena and back.

NumPy and torch are looked up among the imported modules, and never imported
because of an object.
"""

# Design: a handler tells whether an object has a block of bytes worth placing in
# the arena, returns the block, and rebuilds the object over the bytes where
# they are. The rest of an item is pickled around the blocks, by pickle's
# protocol 5 with its out-of-band buffers, or written without a pickle
# (_items.py). What is needed to restore subclasses and views exactly is stored
# with the block.
#
# Patching the reductions of torch and NumPy, as torch.multiprocessing does,
# would change them for the whole program; here they apply to one pickler. Small
# blocks stay in the pickle: a separate part costs more than the copy.


from __future__ import annotations

import array
import contextlib
import math
import re
import sys
import threading
import weakref
from multiprocessing.reduction import ForkingPickler
from pickle import PickleBuffer

from .._describing import described, public
from .._haulway import memory_at
from .._importing import imported, importing
from .._making.bytes import flat_view
from ._arguments import wrong_type

THRESHOLD = 4096
"""Smaller buffers go with the rest of the item."""

_user_handlers = []
# Counts registrations, so that encoders notice new handlers.
_generation = [0]


class _Restoring(threading.local):
    """How the object is restored that a thread unpickles."""

    anchors = None  # A list, to which handlers' anchors are added.
    zero_copy = True  # Whether handlers may make views.
    is_private = False  # Whether nobody else sees what is written to buffers.


_restoring = _Restoring()


@contextlib.contextmanager
def restoring(**how):
    """Sets attributes of _restoring, and no others, for a `with` block.

    Unpickling an object may restore others, in other ways.
    """
    found = vars(_restoring)
    before = found.copy()
    found.clear()
    found.update(how)
    try:
        yield
    finally:
        found.clear()
        found.update(before)


class _Named:
    """A handler whose repr() shows only its class."""

    def __repr__(self):
        return described(self)


class BytesHandler(_Named):
    """bytes, bytearray and memoryview.

    A HandlerProtocol that has no state: threads may share one. Its methods
    raise TypeError for objects of other types.
    """

    kind = "bytes"

    def matches(self, obj, threshold):
        """Returns whether `obj` is for this handler, and has `threshold` bytes
        or more.
        """
        if not isinstance(obj, (bytes, bytearray, memoryview)):
            return False
        return memoryview(obj).nbytes >= threshold

    def get_buffer(self, obj):
        """Returns the bytes of `obj`, and a tuple of what else is needed to
        restore it.
        """
        for cls in (bytes, bytearray, memoryview):
            if isinstance(obj, cls):
                return flat_view(obj), (cls.__name__,)
        raise TypeError(f"not bytes-like: {type(obj).__name__}")

    def from_buffer(self, buf, meta, zero_copy):
        """Returns the object and its anchor, of `buf` and `meta` as
        get_buffer() returned them; `zero_copy` lets the object be a view of
        `buf`.
        """
        view = memoryview(buf)
        if zero_copy:
            return view, view
        name = meta[0]
        if name == "bytes":
            return bytes(view), None
        if name == "bytearray":
            return bytearray(view), None
        return view, None


class NumpyHandler(_Named):
    """Arrays of NumPy, of fixed-size elements and without gaps.

    A HandlerProtocol that has no state: threads may share one. Its methods
    raise TypeError for objects of other types.
    """

    kind = "numpy"

    def matches(self, obj, threshold):
        """Returns whether `obj` is for this handler, and has `threshold` bytes
        or more.
        """
        numpy = sys.modules.get("numpy")
        if numpy is None or type(obj) is not numpy.ndarray:
            return False
        return not obj.dtype.hasobject and obj.nbytes >= max(threshold, 1)

    def get_buffer(self, obj):
        """Returns the bytes of `obj`, and a tuple of what else is needed to
        restore it.
        """
        numpy = sys.modules["numpy"]
        order = "C"
        if not obj.flags.c_contiguous:
            if obj.flags.f_contiguous:
                order = "F"
            else:
                obj = numpy.ascontiguousarray(obj)
        flat = obj.ravel(order="K").view(numpy.uint8)
        return memoryview(flat), (
            _dtype_token(obj.dtype), obj.shape, order, obj.flags.writeable,
        )

    def from_buffer(self, buf, meta, zero_copy):
        """Returns the object and its anchor, of `buf` and `meta` as
        get_buffer() returned them; `zero_copy` lets the object be a view of
        `buf`.
        """
        numpy = imported("numpy")
        dtype, shape, order, writeable = meta
        flat = numpy.frombuffer(buf, dtype=numpy.uint8)
        restored = flat.view(dtype).reshape(shape, order=order)
        if not writeable:
            restored.flags.writeable = False
        return restored, flat if zero_copy else None


class TorchHandler(_Named):
    """Dense tensors of torch in main memory.

    A HandlerProtocol that has no state: threads may share one. Its methods
    raise TypeError for objects of other types.
    """

    kind = "torch"

    def matches(self, obj, threshold):
        """Returns whether `obj` is for this handler, and has `threshold` bytes
        or more.
        """
        torch = sys.modules.get("torch")
        if torch is None or type(obj) is not torch.Tensor:
            return False
        return (
            obj.device.type == "cpu"
            and obj.layout is torch.strided
            and not (obj.is_quantized or obj.is_nested)
            and not (obj.is_conj() or obj.is_neg())
            and obj.numel() * obj.element_size() >= max(threshold, 1)
        )

    def get_buffer(self, obj):
        """Returns the bytes of `obj`, and a tuple of what else is needed to
        restore it.
        """
        tensor = obj.detach()
        if not _is_dense(tensor):
            tensor = tensor.contiguous()
        nbytes = tensor.numel() * tensor.element_size()
        memory = memory_at(tensor.data_ptr(), nbytes, tensor)
        return memoryview(memory), (
            str(tensor.dtype).split(".")[1], tuple(tensor.shape),
            tensor.stride(), obj.requires_grad,
        )

    def from_buffer(self, buf, meta, zero_copy):
        """Returns the object and its anchor, of `buf` and `meta` as
        get_buffer() returned them; `zero_copy` lets the object be a view of
        `buf`.
        """
        torch = imported("torch")
        dtype, shape, stride, requires_grad = meta
        flat = torch.frombuffer(buf, dtype=torch.uint8)
        tensor = flat.view(getattr(torch, dtype)).as_strided(shape, stride)
        if requires_grad:
            tensor.requires_grad_()
        return tensor, flat if zero_copy else None


def _is_dense(tensor):
    """Returns whether the elements fill their memory, in any dimension
    order."""
    expected = 1
    for size, stride in sorted(
        zip(tensor.shape, tensor.stride()), key=lambda pair: pair[::-1]
    ):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def register_handler(handler):
    """Puts a handler before all others, and returns it.

    handler: an object with the structure of HandlerProtocol; it replaces one
        of the same `kind`.

    Workers started from now on use it too, if they inherit it or it can be
    pickled; other workers send objects of its types as pickle does. Handlers
    are never asked about objects of built-in types that pickle treats itself,
    such as str. Raises ArgumentTypeError for an object that lacks a method.
    """
    for name in ("kind", "matches", "get_buffer", "from_buffer"):
        if not hasattr(handler, name):
            raise wrong_type("handler", handler, f"an object with {name!r}")
    _user_handlers[:] = [h for h in _user_handlers if h.kind != handler.kind]
    _user_handlers.insert(0, handler)
    _generation[0] += 1
    return handler


class _Handlers(list):
    """The handlers for a worker; pickling leaves out those that cannot be
    pickled."""

    def __reduce__(self):
        return list, (list(filter(_can_be_pickled, self)),)


def _can_be_pickled(handler):
    try:
        ForkingPickler.dumps(handler)
    except Exception:
        return False
    return True


def user_handlers():
    return _Handlers(_user_handlers)


def default_handlers():
    """Returns all handlers in the order in which they are tried."""
    return _user_handlers + _BUILT_IN


_BUILT_IN = [BytesHandler(), NumpyHandler(), TorchHandler()]


# Functions that a pickler calls for a type, and functions that restore objects.
# Pickles contain the names of the latter, so these must not change.


def _restore_leaf(kind, meta, buf):
    for handler in default_handlers():
        if handler.kind == kind:
            obj, anchor = handler.from_buffer(buf, meta, _restoring.zero_copy)
            if _restoring.anchors is not None and anchor is not None:
                _restoring.anchors.append(anchor)
            return obj
    raise LookupError(f"no handler of kind {kind!r} is registered")


def _user_hook(candidates, otherwise):
    def reduce(obj):
        for handler in candidates:
            if handler.matches(obj, getattr(handler, "threshold", THRESHOLD)):
                buf, meta = handler.get_buffer(obj)
                return _restore_leaf, (handler.kind, meta, PickleBuffer(buf))
        return NotImplemented if otherwise is None else otherwise(obj)

    return reduce


# The formats that memoryview.cast() takes.
_CASTABLE = frozenset(
    "?cbBhHiIlLqQnNfdP" + ("e" if sys.version_info >= (3, 12) else "")
)


def _restore_view(buf, format, shape, readonly):
    view = memoryview(buf)
    if format != "B" or len(shape) != 1:
        if 0 in shape:
            view = memoryview(bytearray()).cast(format)
        else:
            view = view.cast("B").cast(format, shape)
    return view.toreadonly() if readonly and not view.readonly else view


def _reduce_memoryview(view):
    format = view.format if view.format in _CASTABLE else "B"
    if format != view.format and "O" in re.sub(":.*?:", "", view.format):
        return NotImplemented  # Its elements are objects of this process.
    flat = flat_view(view)
    shape = tuple(view.shape) if format == view.format else (flat.nbytes,)
    return _restore_view, (PickleBuffer(flat), format, shape, view.readonly)


def _restore_array(typecode, buf):
    restored = array.array(typecode)
    restored.frombytes(memoryview(buf).cast("B"))
    return restored


def _reduce_array(items):
    # array.array(typecode, view) would read each byte of a view as an item.
    if not items:
        return NotImplemented
    return _restore_array, (items.typecode, PickleBuffer(flat_view(
        PickleBuffer(items).raw()
    )))


def _dtype_token(dtype):
    """Returns a short value from which NumPy makes the same dtype."""
    if dtype.kind in "biufcSUmM" and dtype.metadata is None:
        return dtype.str
    return dtype


def _restore_ndarray(buf, dtype, shape, order):
    numpy = imported("numpy")
    return numpy.ndarray(shape, dtype, buf, order=order)


def _reduce_ndarray(items):
    dtype = items.dtype
    flags = items.flags
    if dtype.hasobject or not items.nbytes:
        return NotImplemented
    if flags.c_contiguous:
        order = "C"
    elif flags.f_contiguous:
        order = "F"
    else:
        return NotImplemented
    try:
        # NumPy does not export buffers of dates.
        exported = items.view("i8") if dtype.kind in "mM" else items
        buf = PickleBuffer(exported)
        buf.raw().release()
    except (ValueError, BufferError, TypeError):
        return NotImplemented
    return _restore_ndarray, (buf, _dtype_token(dtype), items.shape, order)


class _Storage:
    """The memory under one or more tensors; pickled once per item."""

    __slots__ = ("address", "nbytes", "owner", "__weakref__")


class _Storages(threading.local):
    """The storages of the item that a thread pickles, alive while the pickler's
    memo holds them."""

    def __init__(self):
        self.known = weakref.WeakValueDictionary()


_storages = _Storages()


def _restore_storage(buf):
    torch = imported("torch")
    if _restoring.is_private:
        buf = buf.as_writable()
    return torch.frombuffer(buf, dtype=torch.uint8).untyped_storage()


def _reduce_storage(storage):
    memory = memory_at(storage.address, storage.nbytes, storage.owner)
    return _restore_storage, (PickleBuffer(memory),)


def _restore_tensor(storage, dtype, offset, shape, stride, requires_grad, kind):
    torch = imported("torch")
    dtype = getattr(torch, dtype)
    tensor = torch.empty((0,), dtype=dtype)
    if storage is not None:
        tensor.set_(storage, offset, shape, stride)
    else:
        tensor = torch.empty_strided(shape, stride, dtype=dtype)
    if kind == "Parameter":
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


def _restore_flipped(tensor, flips):
    with importing:
        from .._torch.private import neg_view

    if "conj" in flips:
        tensor = tensor.conj()
    if "neg" in flips:
        tensor = neg_view(tensor)
    return tensor


# A tensor that uses less than 1/8 of a large storage is sent without the rest.
_LEAST_PART = 8
_LARGE_STORAGE = 1 << 20


def _storage_of(address, nbytes, owner):
    known = _storages.known
    storage = known.get((address, nbytes))
    if storage is None:
        storage = _Storage()
        storage.address, storage.nbytes = address, nbytes
        storage.owner = owner
        known[address, nbytes] = storage
    return storage


def _restore_typed_storage(storage, dtype):
    with importing:
        import torch

        from .._torch.private import typed_storage

    untyped = torch.UntypedStorage(0) if storage is None else storage
    return typed_storage(untyped, getattr(torch, dtype))


def _reduce_typed_storage(typed):
    with importing:
        from .._torch.private import untyped_storage

    whole = untyped_storage(typed)
    if whole.device.type != "cpu":
        return NotImplemented
    storage = None
    if whole.nbytes():
        storage = _storage_of(whole.data_ptr(), whole.nbytes(), whole)
    return _restore_typed_storage, (storage, str(typed.dtype)[6:])


def _reduce_tensor(tensor):
    torch = sys.modules["torch"]
    if (
        tensor.layout is not torch.strided
        or tensor.device.type != "cpu"
        or (tensor.requires_grad and not tensor.is_leaf)
    ):
        return NotImplemented
    if tensor.is_quantized or tensor.is_nested:
        # As pickle does; torch.multiprocessing loses the quantizer.
        return tensor.__reduce_ex__(5)
    if tensor.is_conj() or tensor.is_neg():
        flips = []
        plain = tensor.detach()
        if tensor.is_neg():
            with importing:
                from .._torch.private import neg_view

            plain = neg_view(plain)
            flips.append("neg")
        if tensor.is_conj():
            plain = plain.conj()
            flips.append("conj")
        return _restore_flipped, (plain, flips)
    shape = tuple(tensor.shape)
    stride = tensor.stride()
    dtype = str(tensor.dtype)[6:]
    kind = type(tensor).__name__
    item = tensor.element_size()
    offset = tensor.storage_offset()
    if 0 in shape:
        rest = (None, dtype, 0, shape, stride, tensor.requires_grad, kind)
        return _restore_tensor, rest
    whole = tensor.untyped_storage()
    address, nbytes = whole.data_ptr(), whole.nbytes()
    extent = item * (1 + sum((n - 1) * s for n, s in zip(shape, stride)))
    if nbytes > _LARGE_STORAGE and nbytes > _LEAST_PART * extent:
        address, nbytes, offset = address + offset * item, extent, 0
    storage = _storage_of(address, nbytes, whole)
    return _restore_tensor, (
        storage, dtype, offset, shape, stride, tensor.requires_grad, kind,
    )


def _built_in_hook(cls):
    if cls is memoryview:
        return _reduce_memoryview
    if cls is _Storage:
        return _reduce_storage
    if cls is array.array:
        return _reduce_array
    name = cls.__name__
    if name == "ndarray":
        numpy = sys.modules.get("numpy")
        if numpy is not None and cls is numpy.ndarray:
            return _reduce_ndarray
    elif name in ("Tensor", "Parameter"):
        torch = sys.modules.get("torch")
        if torch is not None and cls in (torch.Tensor, torch.nn.Parameter):
            return _reduce_tensor
    elif name == "TypedStorage":
        torch = sys.modules.get("torch")
        if torch is not None and cls is torch.storage.TypedStorage:
            return _reduce_typed_storage
    return None


def hook_for(cls):
    """Returns the function that reduces objects of exactly this type, or
    None."""
    built_in = _built_in_hook(cls)
    candidates = [
        handler
        for handler in _user_handlers
        if cls in getattr(handler, "types", (cls,))
    ]
    return _user_hook(candidates, built_in) if candidates else built_in


def item_count(shape):
    return math.prod(shape)


public("haulway.ipc", BytesHandler, NumpyHandler, TorchHandler)
