"""torch.save and torch.load with the tensors in a separate tensorizer file.

    from haulway.tensorizer.torch_compat import (
        tensorizer_loading, tensorizer_saving)

    with tensorizer_saving():
        torch.save(model, "model.pt")        # and model.pt.tensors
    with tensorizer_loading(device="cpu"):
        model = torch.load("model.pt", weights_only=False)

The .pt file is an ordinary one whose storages are numbers of tensors in the
other file: a list of byte tensors, one for each storage, so that tensors which
share memory still do. Files of the tensorizer package can be read, and it can
read these.

torch.load() runs what the pickle says unless it gets weights_only=True, which
it refuses here: load only files that you trust.

Any thread may call the functions of this module at any time, unless a
docstring says otherwise.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import os
import pickle
import warnings

import torch

from .._errors import CorruptError
from .._threads import ThreadLock
from .._torch import private as _torch_private
from ._deserializer import TensorDeserializer
from ._serializer import TensorSerializer

__all__ = ("tensorizer_saving", "tensorizer_loading")

# The first fields of a persistent id.
_WHO, _VERSION, _WHAT = "TensorizerPickler", 0, "storage"

# The arguments of the innermost `with` of this thread or task, or None.
_saving: contextvars.ContextVar = contextvars.ContextVar(
    "haulway.tensorizer.saving", default=None
)
_loading: contextvars.ContextVar = contextvars.ContextVar(
    "haulway.tensorizer.loading", default=None
)


class _Patch:
    """Replaces a function of torch while at least one user needs it."""

    def __init__(self, name, around):
        self._name = name
        self._around = around
        self._lock = ThreadLock()
        self._users = 0
        self._original = None
        self._stand_in = None

    def __enter__(self):
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            original = self._original = getattr(torch, self._name)
            signature = inspect.signature(original)

            @functools.wraps(original)
            def stand_in(*args, **kwargs):
                bound = signature.bind(*args, **kwargs)
                return self._around(original, bound)

            self._stand_in = stand_in
            setattr(torch, self._name, stand_in)

    def __exit__(self, *exception):
        with self._lock:
            self._users -= 1
            # If another package has replaced the function since, leave it.
            if (
                self._users == 0
                and getattr(torch, self._name) is self._stand_in
            ):
                setattr(torch, self._name, self._original)


def _beside(f):
    """Returns the path of the file with a checkpoint's tensors, or None."""
    name = f if isinstance(f, (str, bytes, os.PathLike)) else getattr(
        f, "name", None
    )
    if not isinstance(name, (str, bytes, os.PathLike)):
        warnings.warn(
            f"no name for the tensors of {f!r}: they stay in it (file_obj "
            "says where to put them)",
            stacklevel=5,
        )
        return None
    name = os.fspath(name)
    return name + (b".tensors" if isinstance(name, bytes) else ".tensors")


def _target(file_obj, f):
    if file_obj is None:
        return _beside(f)
    return file_obj(f) if callable(file_obj) else file_obj


class _PickleModule:
    """Wraps a pickle module with an extended pickler or unpickler."""

    def __init__(self, module, **classes):
        self._module = module
        self.__dict__.update(classes)

    def __getattr__(self, name):
        return getattr(self._module, name)


class _Storages:
    """Collects the storages that a pickler meets, each once, by number."""

    def __init__(self):
        self._numbers = {}
        self._kept = []

    def persistent_id(self, obj):
        """Returns the persistent id of a storage, or None for any other
        object."""
        dtype = None
        if isinstance(obj, torch.storage.TypedStorage):
            dtype = obj.dtype
            obj = _torch_private.untyped_storage(obj)
        elif not isinstance(obj, torch.UntypedStorage):
            return None
        if obj.device.type == "meta" or obj.nbytes() == 0:
            return None
        number = self._numbers.setdefault(obj._cdata, len(self._kept))
        if number == len(self._kept):
            self._kept.append(obj)
        return _WHO, _VERSION, _WHAT, number, dtype

    def tensors(self):
        return [
            torch.empty(0, dtype=torch.uint8, device=s.device).set_(s)
            for s in self._kept
        ]


def _either(first, second):
    """Returns a function of one argument that calls `second` if `first` returns
    None."""

    def persistent_id(obj):
        found = first(obj)
        return second(obj) if found is None else found

    return persistent_id


def _pickle_with(module, storages):
    # torch sets its own hook in a subclass or by assignment.
    class Pickler(module.Pickler):
        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            theirs = cls.__dict__.get("persistent_id")
            if theirs is not None:
                cls.persistent_id = lambda self, obj: _either(
                    storages.persistent_id, functools.partial(theirs, self)
                )(obj)

        def __setattr__(self, name, value):
            if name == "persistent_id":
                value = _either(storages.persistent_id, value)
            super().__setattr__(name, value)

    return _PickleModule(module, Pickler=Pickler)


def _save(original, bound):
    settings = _saving.get()
    target = None
    if settings is not None:
        file_obj, save_func, kwargs = settings
        target = _target(file_obj, bound.arguments["f"])
    if target is None:
        return original(*bound.args, **bound.kwargs)
    storages = _Storages()
    bound.arguments["pickle_module"] = _pickle_with(
        bound.arguments.get("pickle_module", pickle), storages
    )
    result = original(*bound.args, **bound.kwargs)
    tensors = storages.tensors()
    if tensors:
        (save_func or _save_tensors)(target, tensors, kwargs)
    return result


def _save_tensors(file_obj, tensors, kwargs):
    with TensorSerializer(file_obj, **kwargs) as serializer:
        serializer.write_state_dict(list(tensors))


class _Loaded:
    """The storages of a file, which is read when the first one is requested."""

    def __init__(self, load):
        self._load = load
        self._tensors = None
        self._storages = {}

    def storage(self, persistent_id):
        _, version, what, number, dtype = persistent_id
        if (version, what) != (_VERSION, _WHAT):
            raise CorruptError(
                f"unknown persistent id: version {version!r} of {what!r}",
                "kCorrupt",
            )
        if self._tensors is None:
            self._tensors = list(self._load())
        if not isinstance(number, int) or not (
            0 <= number < len(self._tensors)
        ):
            raise CorruptError(
                f"the pickle asks for storage {number!r}: the tensors are "
                f"{len(self._tensors)}",
                "kCorrupt",
            )
        if number not in self._storages:
            self._storages[number] = _untyped(self._tensors[number])
        # As in torch.load(), whose functions expect every storage to have a
        # dtype.
        return _torch_private.typed_storage(
            self._storages[number], torch.uint8 if dtype is None else dtype
        )


def _untyped(tensor):
    tensor = tensor.detach()
    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.numel() * tensor.element_size():
        storage = tensor.clone().untyped_storage()
    return storage


def _is_ours(persistent_id):
    return (
        isinstance(persistent_id, tuple)
        and len(persistent_id) == 5
        and persistent_id[0] == _WHO
    )


def _unpickle_with(module, loaded):
    class Unpickler(module.Unpickler):
        def __setattr__(self, name, value):
            if name == "persistent_load":
                theirs = value

                def value(persistent_id):
                    if _is_ours(persistent_id):
                        return loaded.storage(persistent_id)
                    return theirs(persistent_id)

            super().__setattr__(name, value)

    return _PickleModule(module, Unpickler=Unpickler)


def _load(original, bound):
    settings = _loading.get()
    target = None
    if settings is not None:
        file_obj, load_func, suppress_weights_only, kwargs = settings
        target = _target(file_obj, bound.arguments["f"])
    if target is None:
        return original(*bound.args, **bound.kwargs)
    arguments = bound.arguments
    if arguments.get("weights_only"):
        if not suppress_weights_only:
            raise RuntimeError(
                "torch.load(weights_only=True) cannot take tensors from a "
                "tensorizer file: trust the file and pass False, or "
                "suppress_weights_only=True to tensorizer_loading()"
            )
        arguments["weights_only"] = False
    location = arguments.get("map_location")
    if isinstance(location, (str, torch.device)) and load_func is None:
        kwargs = {"device": location, **kwargs}
    loaded = _Loaded(lambda: (load_func or _load_tensors)(target, kwargs))
    arguments["pickle_module"] = _unpickle_with(
        arguments.get("pickle_module") or pickle, loaded
    )
    return original(*bound.args, **bound.kwargs)


def _load_tensors(file_obj, kwargs):
    with TensorDeserializer(file_obj, **kwargs) as tensors:
        if list(tensors) != list(range(len(tensors))):
            raise CorruptError(
                "the file of tensors holds no list of storages", "kCorrupt"
            )
        return [tensors[i] for i in range(len(tensors))]


_save_patch = _Patch("save", _save)
_load_patch = _Patch("load", _load)


@contextlib.contextmanager
def _within(patch, variable, settings):
    with patch:
        token = variable.set(settings)
        try:
            yield
        finally:
            variable.reset(token)


def tensorizer_saving(file_obj=None, *, save_func=None, **kwargs):
    """A context in which torch.save() writes tensors to a separate file.

    file_obj: the separate file: a path or a file object, or a function of
        torch.save()'s file that returns one of these, or None to keep the
        tensors in the checkpoint. By default the checkpoint's name and
        ".tensors".
    save_func: called as save_func(file_obj, tensors, kwargs) instead of
        writing.
    kwargs: for TensorSerializer.

    Other threads and tasks are not affected; contexts may be nested, and the
    innermost one applies. Without tensors there is no second file.

    Raises what TensorSerializer raises, in torch.save().
    """
    return _within(_save_patch, _saving, (file_obj, save_func, kwargs))


def tensorizer_loading(file_obj=None, *, load_func=None,
                       suppress_weights_only=False, **kwargs):
    """A context in which torch.load() reads tensors from a separate file.

    file_obj: the separate file, as for tensorizer_saving().
    load_func: called as load_func(file_obj, kwargs) for the tensors, instead
        of reading.
    suppress_weights_only: turns weights_only=True, which is refused, into
        False.
    kwargs: for TensorDeserializer. `device` is torch.load's map_location if
        that is a device or its name.

    Checkpoints that contain their tensors can be loaded too.

    Raises what TensorDeserializer raises, in torch.load().
    """
    return _within(
        _load_patch, _loading,
        (file_obj, load_func, suppress_weights_only, kwargs),
    )
