"""torch.load and torch.save, faster, and with nothing in the file run.

    import haulway.torch
    state = haulway.torch.load("model.pt")
    haulway.torch.save(state, "copy.pt")

Only data is loaded and saved. Classes of your own can be allowed with safe_globals():
they are made from data, and never looked up by what the file says.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading

import torch
import torch.serialization
import torch.utils.serialization

from .. import _device, _haulway, _save, _torch_factory
from .._checkpoint import debug_offsets
from .._config import config, origin
from .._errors import InvalidArgumentError, UnsafeError, UnsupportedError
from .._loading import Loading, check_stats
from .._source import is_path, open_source

_lock = threading.Lock()
_safe_globals: list = []


def add_safe_globals(safe_globals):
    """Allows classes and functions: objects, or pairs (object, full name)."""
    with _lock:
        _safe_globals.extend(safe_globals)


def get_safe_globals():
    """What add_safe_globals() allowed, here and in torch.serialization."""
    with _lock:
        mine = list(_safe_globals)
    return mine + list(torch.serialization.get_safe_globals())


def clear_safe_globals():
    """Allows nothing any more beside what is always allowed."""
    with _lock:
        _safe_globals.clear()


@contextlib.contextmanager
def safe_globals(safe_globals):
    """Allows classes and functions within a `with` block."""
    with _lock:
        before = list(_safe_globals)
        _safe_globals.extend(safe_globals)
    try:
        yield
    finally:
        with _lock:
            _safe_globals[:] = before


def _safe_by_name():
    named = {}
    for item in get_safe_globals():
        if isinstance(item, tuple):
            named[item[1]] = item[0]
        else:
            named[f"{item.__module__}.{item.__qualname__}"] = item
    return named


def load(f, map_location=None, pickle_module=None, *, weights_only=None,
         mmap=None, io=None, stats=None, **pickle_load_args):
    """torch.load's signature and result.

    f: a path or a binary file object, read from its position.
    map_location: None, a device or its name, a dict of them, or a function
        (storage, location) -> storage or None.
    weights_only: must not be False: nothing but data is ever loaded.
    mmap: map the file instead of reading it; needs a path.
    encoding: of strings that Python 2 wrote; "bytes" keeps them as bytes.
    io, stats: as for haulway.load(), which torch.load() has not.

    Raises haulway.Error where torch raises RuntimeError or UnpicklingError.
    Tensors share one allocation, so their storages cannot be resized.
    """
    if is_path(f) and os.fsdecode(os.fspath(f)).endswith(".safetensors"):
        return _load_safetensors(
            f, map_location, pickle_module, weights_only,
            Loading(io=io or "auto", stats=stats),
        )
    if weights_only is False:
        raise UnsafeError(
            "weights_only=False would run code from the file, which Haulway "
            "never does; allow the classes it needs with "
            "haulway.torch.safe_globals([...])",
            "kUnsafe",
        )
    if pickle_module is not None:
        raise UnsafeError(
            "a pickle module could run code from the file; Haulway reads "
            "pickles itself",
            "kUnsafe",
        )
    encoding = pickle_load_args.pop("encoding", "utf-8")
    if pickle_load_args:
        raise TypeError(
            f"load() got unexpected arguments {sorted(pickle_load_args)}"
        )
    if mmap is None:
        mmap = configured("load", "mmap") if io is None else io == "mmap"
    if mmap and not is_path(f):
        raise ValueError(
            "f must be a file path in order to use the mmap argument"
        )
    start = None if is_path(f) else _position(f)
    classes = _safe_by_name()
    core = _haulway.open_checkpoint(
        open_source(f, mmap),
        allowed_globals=list(classes),
        debug_offsets=debug_offsets(),
        big_endian_default=configured("load", "endianness") == "big",
    )
    if core.format == "torchscript":
        raise RuntimeError(
            "Cannot use ``weights_only=True`` with TorchScript archives passed "
            "to ``torch.load``; haulway.open() reads their weights"
        )
    if mmap and core.format != "torch":
        raise RuntimeError(
            "mmap can only be used with files saved with "
            "`torch.save(_use_new_zipfile_serialization=True), please "
            "torch.save your checkpoint with this option in order to use mmap."
        )
    loaded = load_object(
        core,
        map_location,
        Loading(
            io="mmap" if mmap else io or _unmapped(f),
            threads=config.load.threads,
            verify=config.load.verify,
            stats=stats,
        ),
        classes=classes,
        encoding=encoding,
    )
    if start is not None and "end" in core.facts:
        # Another object may follow in the same stream.
        f.seek(start + core.facts["end"])
    return loaded


def configured(section, name):
    """haulway.config's value; where nothing set it, that of torch."""
    if origin(section, name) != "default":
        return getattr(getattr(config, section), name)
    if name == "endianness":
        order = torch.serialization.get_default_load_endianness()
        return None if order is None else order.name.lower()
    return getattr(getattr(torch.utils.serialization.config, section), name)


def safe_names():
    """The full names of what get_safe_globals() allows."""
    return list(_safe_by_name())


def save(obj, f, pickle_module=pickle, pickle_protocol=2,
         _use_new_zipfile_serialization=True, _disable_byteorder_record=False,
         *, progress=None, stats=None):
    """torch.save's signature, and the bytes that it would write.

    obj: data: what torch.load(weights_only=True) loads. Anything else is
        refused with UnsafeError and the path to it, before a byte is written.
    f: a path, or a file object with write().
    progress, stats: as for haulway.save(), which torch.save() has not.

    A path is replaced in one step once all is written, durably unless
    haulway.config.save.durability is "none". Alignment and checksums are those
    of haulway.config.save, or of torch's own config where that sets nothing.
    """
    if pickle_module is not pickle or pickle_protocol != 2:
        raise UnsupportedError(
            "Haulway writes protocol 2 with a pickler of its own",
            "kUnsupported",
        )
    if not _use_new_zipfile_serialization:
        raise UnsupportedError(
            "the container of torch 1.5 and before is read but not written",
            "kUnsupported",
        )
    if not is_path(f) and not hasattr(f, "write"):
        raise AttributeError(
            f"expected 'f' to be string, path, or a file-like object with a "
            f"'write' attribute, found {type(f).__name__}"
        )
    check_stats(stats)
    skip_data = torch.serialization._serialization_tls.skip_data
    done = _save.write(
        _save.pickle_of(obj, skip_data=skip_data),
        f,
        storage_alignment=configured("save", "storage_alignment"),
        compute_crc32=configured("save", "compute_crc32"),
        byteorder=not _disable_byteorder_record,
        progress=progress,
    )
    if stats is not None:
        stats.update(done)


def _unmapped(f):
    # Tensors of torch.load are never views of the bytes that it was given.
    return "auto" if is_path(f) else "pread"


def _load_safetensors(path, map_location, pickle_module, weights_only,
                      loading):
    """A flat dict; the arguments that matter for pickles only are ignored."""
    if weights_only and pickle_module is not None:
        raise RuntimeError("weights_only=True takes no pickle_module")
    if isinstance(map_location, dict) or (
        callable(map_location) and not isinstance(map_location, torch.device)
    ):
        raise RuntimeError(
            "map_location of a safetensors file is "
            f"{type(map_location).__name__}: expected a device or its name"
        )
    core = _haulway.open_checkpoint(open_source(path, mapped=False))
    if core.format != "safetensors":
        raise UnsupportedError(
            f"{os.fsdecode(os.fspath(path))} is named as safetensors: found "
            f"the format {core.format}",
            "kUnsupported",
        )
    return load_object(core, map_location, loading)


def _position(f):
    for method in ("seek", "tell", "read"):
        if not hasattr(f, method):
            raise AttributeError(
                f"'{type(f).__name__}' object has no attribute '{method}'. You "
                "can only torch.load from a file that is seekable. Please "
                "pre-load the data into a buffer like io.BytesIO and try to "
                "load from it instead."
            )
    return f.tell()


def _stays_on_cpu(core, map_location):
    if map_location is None:
        return all(
            core.storage(row)[1] == "cpu"
            for row in range(core.storage_count())
        )
    if isinstance(map_location, (str, torch.device)):
        return torch.device(map_location).type == "cpu"
    return False


def load_object(core, map_location, loading, *, classes=None,
                encoding="utf-8", on_gpu=False):
    """Builds the object of an open checkpoint; see load().

    on_gpu: load straight to the GPU that map_location names.
    """
    without = _torch_factory.without_data(map_location)
    factory = _torch_factory.TorchFactory(
        core, classes or {}, has_data=without is None
    )
    bases = None
    if without is not None:
        bases = _unread(core, map_location, without)
    elif on_gpu:
        bases = _device.cuda_storages(
            core, range(core.storage_count()), map_location, loading
        )
    elif not _stays_on_cpu(core, map_location):
        bases = _restored(core, map_location, loading)
    # Where torch looks for it when it makes fake tensors.
    state = torch.serialization._serialization_tls
    before, state.map_location = state.map_location, map_location
    try:
        loaded = loading.build(
            core, factory, _torch_factory.from_dlpack, bases, encoding
        )
    except LookupError as error:
        # Python names no such encoding.
        raise InvalidArgumentError(str(error), "kInvalidArgument") from error
    finally:
        state.map_location = before
    return loaded


def _unread(core, map_location, without):
    """Storages of the right sizes with no data in them, as torch.load makes
    them in a FakeTensorMode, on the device "meta" and under skip_data()."""
    restore = torch.serialization._get_restore_location(map_location)
    bases = []
    for row in range(core.storage_count()):
        _, location, _, _, nbytes, offset = core.storage(row)
        if without == "skip":
            storage = restore(torch.UntypedStorage(nbytes), location)
        else:
            storage = torch.UntypedStorage(nbytes, device="meta")
            if core.format == "torch":
                storage._checkpoint_offset = offset
                if not _torch_factory.is_meta(map_location):
                    storage._fake_device = location
        bases.append(storage)
    return bases


def _restored(core, map_location, loading):
    """Storages where map_location wants them, parallel to the file's."""
    rows = range(core.storage_count())
    restore = torch.serialization._get_restore_location(map_location)
    memories = loading.storages(core, rows)
    bases = []
    for row, memory in zip(rows, memories):
        storage = _torch_factory.storage_of(memory)
        storage._torch_load_uninitialized = True
        storage = restore(storage, core.storage(row)[1])
        if isinstance(storage, torch.storage.TypedStorage):
            storage = storage._untyped_storage
        if hasattr(storage, "_torch_load_uninitialized"):
            del storage._torch_load_uninitialized
        bases.append(storage)
    return bases
