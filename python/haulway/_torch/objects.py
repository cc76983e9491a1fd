"""Builds whole torch objects as torch.load does, with a map_location."""

from __future__ import annotations

import torch

from .._building import build_over
from .._errors import (
    ArgumentTypeError,
    Error,
    InvalidArgumentError,
    UnsupportedError,
)
from . import device as _device
from . import factory as _torch_factory
from . import private as _torch_private


def build_object(core, map_location, reading, *, classes=None,
                 encoding="utf-8", on_gpu=False):
    """Builds the object of an open checkpoint; see haulway.torch.load().

    classes: see _making.allowed.by_name().
    on_gpu: map_location names a GPU; if there is none, the engine's error says
    why.
    """
    core.check_object()
    check_device(map_location)
    without = _torch_factory.without_data(map_location)
    place = _one_place(core, map_location)
    on_gpu = without is None and place != "cpu" and (
        on_gpu or _device.is_usable(place)
    )
    factory = _torch_factory.TorchFactory(
        core, classes or {}, has_data=without is None, on_gpu=on_gpu
    )
    if without is not None:
        bases = _unread(core, map_location, without)
    elif place == "cpu":
        bases = None
    elif on_gpu:
        bases = _device.cuda_bases(
            core, range(core.storage_count()), place, reading
        )
    else:
        bases = _restored(core, map_location, reading)
    # torch reads it from here when it makes fake tensors.
    state = _torch_private.serialization_state()
    before, state.map_location = state.map_location, map_location
    from_dlpack = _torch_factory.from_dlpack
    try:
        if bases is None:
            return reading.build(core, factory, from_dlpack, encoding)
        return build_over(core, factory, from_dlpack, bases, encoding)
    except LookupError as error:
        # Python has no such encoding.
        raise InvalidArgumentError(str(error), "kInvalidArgument") from error
    finally:
        state.map_location = before


class DeviceNameError(InvalidArgumentError, RuntimeError):
    """A name that is no device of this machine; a RuntimeError, as in torch."""


def check_device(device, called="map_location"):
    """Raises DeviceNameError if the name is not a device."""
    if isinstance(device, (str, int)):
        try:
            torch.device(device)
        except (RuntimeError, ValueError) as error:
            raise DeviceNameError(
                f"{called} is {device!r}: {str(error).splitlines()[0]}",
                "kInvalidArgument",
            ) from error


def restore_location(map_location):
    """Returns torch's function that moves a storage to the wanted device."""
    restore = _torch_private.get_restore_location(map_location)
    if callable(map_location) and not isinstance(map_location, torch.device):
        return restore  # Its exceptions are the caller's own.

    def restored(storage, location):
        try:
            return restore(storage, location)
        except RuntimeError as error:
            if isinstance(error, Error):
                raise
            raise UnsupportedError(
                f"a storage of {location!r}: {error}", "kUnsupported"
            ) from error

    return restored


def restored(restore, storage, location):
    """Moves a storage with `restore` and returns the UntypedStorage."""
    storage = restore(storage, location)
    if isinstance(storage, torch.storage.TypedStorage):
        return _torch_private.untyped_storage(storage)
    if not isinstance(storage, torch.UntypedStorage):
        raise ArgumentTypeError(
            f"map_location returned {type(storage).__name__}: expected a storage "
            "or None",
            "kInvalidArgument",
        )
    return storage


def _one_place(core, map_location):
    """Returns the name of the device for all storages; None if they belong on
    several, or if only calling `map_location` can tell."""
    if isinstance(map_location, (str, torch.device)):
        return str(map_location)
    if map_location is None:
        places = {*core.locations()}
    elif isinstance(map_location, dict):
        places = {str(map_location.get(at, at)) for at in core.locations()}
    else:
        return None
    return "cpu" if not places else places.pop() if len(places) == 1 else None


def _unread(core, map_location, without):
    """Returns storages of the right sizes without data, as torch.load makes
    them in a FakeTensorMode, on the device "meta" and under skip_data()."""
    restore = restore_location(map_location)
    bases = []
    for row in range(core.storage_count()):
        info = core.storage(row)
        if without == "skip":
            storage = restore(torch.UntypedStorage(info.nbytes), info.location)
        else:
            storage = _torch_factory.meta_storage(core, row)
            if core.format == "torch":
                storage._checkpoint_offset = info.offset
                if not _torch_factory.is_meta(map_location):
                    storage._fake_device = info.location
        bases.append(storage)
    return bases


def _restored(core, map_location, reading):
    """Returns storages on the devices that map_location chooses, parallel to
    the file's."""
    rows = range(core.storage_count())
    restore = restore_location(map_location)
    bases = []
    for row, memory in zip(rows, reading.storages(core, rows)):
        storage = _torch_factory.storage_of(memory)
        storage._torch_load_uninitialized = True
        storage = restored(restore, storage, core.storage(row).location)
        if hasattr(storage, "_torch_load_uninitialized"):
            del storage._torch_load_uninitialized
        bases.append(storage)
    return bases
