"""torch.load and torch.save, faster, and without running anything in the file.

    import haulway.torch
    state = haulway.torch.load("model.pt")
    haulway.torch.save(state, "copy.pt")

Only data is loaded and saved. Your own classes can be allowed with
safe_globals(): objects are made from the classes that you pass, never from a
name in the file.

Any thread may call the functions of this module at any time, unless a
docstring says otherwise.
"""

from __future__ import annotations

import pickle

import torch
import torch.serialization

from .._config import resolve
from .._errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    UnsafeError,
    UnsupportedError,
)
from .._importing import imported
from .._making import allowed as _allowed
from .._options import READING, text
from .._reading.call import Reading, reads
from .._reading.source import is_path, path_of, refuse_folder
from .._torch import private as _torch_private
from .._torch.objects import build_object
from .._writing import save as _save
from .._writing.call import Writing


class FileObjectError(ArgumentTypeError, AttributeError):
    """A file object lacks a method that is needed."""


def add_safe_globals(safe_globals):
    """Allows classes and functions in every call of Haulway that reads.

    safe_globals: objects, or pairs (object, full name).

    Raises InvalidArgumentError for anything else.
    """
    _allowed.add(READING["safe_globals"].check("safe_globals", safe_globals))


def get_safe_globals():
    """Returns everything that add_safe_globals() allowed, here and in
    torch.serialization. Raises nothing.
    """
    return _allowed.everywhere()


def clear_safe_globals():
    """Removes everything that add_safe_globals() allowed. Raises nothing."""
    _allowed.clear()


def safe_globals(safe_globals):
    """Allows classes and functions within a `with` block, in all threads, as
    torch's does.

    safe_globals: as for add_safe_globals(), and raises the same.
    """
    return _allowed.within(
        READING["safe_globals"].check("safe_globals", safe_globals)
    )


@reads(READING)
def load(f, map_location=None, pickle_module=None, *, weights_only=None,
         encoding="utf-8", **options):
    """torch.load with its signature and result.

    f: a path or a binary file object, read from its position.
    map_location: None, a device or its name, a dict of them, or a function
        (storage, location) -> storage or None.
    pickle_module: must be Python's own; it is not used.
    weights_only: only data is ever loaded. Even with False, an object that
        needs code is refused, with the name of its class.
    encoding: encoding of strings that Python 2 wrote; "bytes" keeps them as
        bytes.
    OPTIONS

    Options that are neither given nor configured follow torch's configuration;
    mmap needs a path. Raises haulway.Error where torch raises RuntimeError or
    UnpicklingError. Tensors share one allocation, so their storages cannot be
    resized.
    """
    reading = Reading("load", options, defaults=_torch_defaults())
    if is_path(f) and path_of(f).lower().endswith(".safetensors"):
        return _load_safetensors(
            f, map_location, pickle_module, weights_only, reading
        )
    return _load(f, map_location, pickle_module, weights_only, encoding, reading)


def load_path(f, map_location=None, pickle_module=None, *, weights_only=None,
              mmap=None, encoding="utf-8"):
    """What torch.load would load: load() of a path, and of torch's formats."""
    reading = Reading("load", {"mmap": mmap}, defaults=_torch_defaults())
    return _load(
        f, map_location, pickle_module, weights_only, encoding, reading,
        formats=("torch", "torch-legacy", "torch-tar"),
    )


def _load(f, map_location, pickle_module, weights_only, encoding, reading,
          formats=None):
    if pickle_module is not None and (
        weights_only or pickle_module is not pickle
    ):
        raise UnsafeError(
            "a pickle module could run code from the file; Haulway reads "
            "pickles itself",
            "kUnsafe",
        )
    text("encoding", encoding)
    mapped = reading.io == "mmap"
    if not is_path(f):
        if mapped:
            raise InvalidArgumentError(
                "f must be a file path in order to use the mmap argument",
                "kInvalidArgument",
            )
        if reading.io == "auto":
            # Tensors must never be views of the caller's bytes.
            reading.io = "pread"
    refuse_folder(f)
    start = None if is_path(f) else _position(f)
    core = reading.open(f)
    if formats is not None and core.format not in formats:
        raise UnsupportedError(
            f"the format is {core.format}: expected one of torch.save's",
            "kUnsupported",
        )
    if core.format == "torchscript":
        raise UnsupportedError(
            "Cannot use ``weights_only=True`` with TorchScript archives passed "
            "to ``torch.load``; haulway.load() returns their weights",
            "kUnsupported",
        )
    if mapped and core.format != "torch":
        raise UnsupportedError(
            "mmap can only be used with files saved with "
            "`torch.save(_use_new_zipfile_serialization=True), please "
            "torch.save your checkpoint with this option in order to use mmap.",
            "kUnsupported",
        )
    loaded = build_object(
        core, map_location, reading, classes=reading.classes,
        encoding=encoding,
    )
    if start is not None and "end" in core.facts:
        # Another object may follow in the same stream.
        f.seek(start + core.facts["end"])
    return loaded


def _torch_defaults():
    """Returns the reading options of torch's configuration."""
    order = torch.serialization.get_default_load_endianness()
    defaults = {name: _torch_private.configured("load", name)
                for name in ("mmap", "mmap_flags")}
    if order is not None:
        defaults["endianness"] = order.name.lower()
    return defaults


def _torch_saving():
    """Returns the saving options of torch's configuration."""
    return {name: _torch_private.configured("save", name)
            for name in ("compute_crc32", "storage_alignment")}


def configured(section, name):
    """Returns haulway.config's value of an option; where nothing set it,
    torch's.

    section: "load" or "save".
    name: the name of the option.

    Raises KeyError for an unknown name.
    """
    defaults = _torch_defaults() if section == "load" else _torch_saving()
    return resolve(section, defaults=defaults)[0][name]


def save(obj, f, pickle_module=pickle, pickle_protocol=2,
         _use_new_zipfile_serialization=True, _disable_byteorder_record=False,
         *, progress=None, stats=None):
    """torch.save with its signature, writing the same bytes.

    obj: data: anything that load() accepts without running code. Anything else
        is refused with UnsafeError and the path to it, before a byte is
        written.
    f: a path, or a file object with write().
    pickle_module: must be Python's own; Haulway's pickler writes the same.
    pickle_protocol: 2 to 5, or as pickle accepts it, None or negative.
    _use_new_zipfile_serialization: False writes the container of torch 1.5 and
        earlier, which has no checksums and no alignment.
    progress, stats: as for haulway.save(); torch.save() does not have them.

    A path is replaced in one step when everything is written, durably unless
    haulway.config.save.durability is "none". Alignment and checksums follow
    haulway.config.save, or torch's own configuration if nothing is set there.

    Raises UnsafeError if `obj` is not only data, UnsupportedError for arguments
    that need torch's own pickler, and Error if the file cannot be written.
    """
    if pickle_module is not pickle:
        raise UnsupportedError(
            f"pickle_module is {getattr(pickle_module, '__name__', '?')!r}: "
            "expected Python's pickle, as which Haulway's own pickler writes",
            "kUnsupported",
        )
    protocol = _protocol(pickle_protocol)
    if not is_path(f) and not hasattr(f, "write"):
        raise FileObjectError(
            f"expected 'f' to be string, path, or a file-like object with a "
            f"'write' attribute, found {type(f).__name__}",
            "kInvalidArgument",
        )
    writing = Writing(
        "torch.save", {"progress": progress, "stats": stats}, (),
        _torch_saving(),
    )
    if _use_new_zipfile_serialization:
        skip_data = _torch_private.serialization_state().skip_data
        done = _save.write(
            _save.pickle_of(obj, skip_data=skip_data, protocol=protocol),
            f, _save.archive_engine(writing), writing.progress,
            byteorder=not _disable_byteorder_record,
        )
    else:
        done = _save.write_legacy(
            _save.pickle_of(obj, protocol=protocol, legacy=True),
            f, protocol, writing.engine("torch-legacy", "save"),
            writing.progress,
        )
    writing.tell(done)


def _protocol(given):
    """Returns a pickle protocol as a number from 2 to 5."""
    if given is None:
        given = pickle.DEFAULT_PROTOCOL
    if not isinstance(given, int):
        raise ArgumentTypeError(
            f"pickle_protocol is {type(given).__name__}: expected an int",
            "kInvalidArgument",
        )
    if given < 0:
        given = pickle.HIGHEST_PROTOCOL
    if given > pickle.HIGHEST_PROTOCOL:
        raise InvalidArgumentError(
            f"pickle_protocol must be <= {pickle.HIGHEST_PROTOCOL}, found "
            f"{given}",
            "kInvalidArgument",
        )
    if given < 2:
        raise UnsupportedError(
            f"pickle_protocol is {given}: expected 2 to 5",
            "kUnsupported",
        )
    return given


def _load_safetensors(path, map_location, pickle_module, weights_only,
                      reading):
    """Loads a flat dict; arguments that matter only for pickles are ignored."""
    if weights_only and pickle_module is not None:
        raise UnsupportedError(
            "weights_only=True takes no pickle_module", "kUnsupported"
        )
    if isinstance(map_location, dict) or (
        callable(map_location) and not isinstance(map_location, torch.device)
    ):
        raise UnsupportedError(
            "map_location of a safetensors file is "
            f"{type(map_location).__name__}: expected a device or its name",
            "kUnsupported",
        )
    refuse_folder(path)
    core = reading.open(path)
    if core.format != "safetensors":
        raise UnsupportedError(
            f"{path_of(path)} is named as safetensors: found "
            f"the format {core.format}",
            "kUnsupported",
        )
    return build_object(core, map_location, reading)


def _position(f):
    for method in ("seek", "tell", "read"):
        if not hasattr(f, method):
            raise FileObjectError(
                f"'{type(f).__name__}' object has no attribute '{method}'. You "
                "can only torch.load from a file that is seekable. Please "
                "pre-load the data into a buffer like io.BytesIO and try to "
                "load from it instead.",
                "kInvalidArgument",
            )
    return f.tell()


def __getattr__(name):
    # "serialization" takes its names from this module; "dcp" imports
    # torch.distributed.
    if name in ("serialization", "dcp"):
        return imported(f"{__name__}.{name}")
    if name in ("install", "installed", "uninstall"):
        home = imported(f"{__name__}._install")
        return globals().setdefault(name, getattr(home, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
