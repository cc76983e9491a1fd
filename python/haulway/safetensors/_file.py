"""safe_open: a safetensors file whose tensors are read on access.

How: the library opens the file once. A torch tensor on the CPU is a view of a
private mapping, as in the package, and is passed by DLPack without a copy.
Everything else (NumPy, GPUs, other backends, plans) uses the library's engine,
which reads in parallel. Haulway's own Checkpoint was tried instead; its locks
and statistics cost more than such a view does.
"""

from __future__ import annotations

import os
import re
import sys

from .. import _haulway
from .._describing import counted, described, path_text, shown
from .._errors import Error, UnsupportedError
from .._importing import imported, importing
from .._making.assemble import maker
from .._making.numpy_maker import NumpyMaker
from .._reading.call import Reading
from .._reading.select import part_of
from .._reading.signed import asked_by_config
from .._reading.source import folder_of, open_as_configured
from .._threads import once
from . import _dtypes, _index, _plan
from ._errors import SafetensorError, as_ours, not_text, raising
from ._header import (
    check_tensor,
    check_tensors,
    header_shape,
    parsed_header,
    refusal_of,
)
from ._made_here import OnlyMadeHere

# Ways to read; with "mmap", torch tensors are views of the file.
_BACKENDS = ("mmap", "pread", "auto", "direct", "uring", "snapshot")

_FRAMEWORKS = {
    **dict.fromkeys(("pt", "torch", "pytorch"), "pytorch"),
    **dict.fromkeys(("np", "numpy"), "numpy"),
    **dict.fromkeys(("tf", "tensorflow"), "tensorflow"),
    **dict.fromkeys(("jax", "flax"), "flax"),
    "mlx": "mlx",
    "paddle": "paddle",
}
# How to convert an array to a tensor: the module, and the function in it.
_FROM_NUMPY = {
    "tensorflow": ("tensorflow", "convert_to_tensor"),
    "flax": ("jax.numpy", "array"),
    "mlx": ("mlx.core", "array"),
    "paddle": ("paddle", "to_tensor"),
}
# Up to this many bytes are read directly. From ten times as many, the engine,
# which reads in parallel, is as fast.
_LITTLE = 1 << 20
_DEVICES = ("cuda", "musa", "npu", "xpu", "xla", "mlu", "hpu")


class safe_open:  # noqa: N801 - the package's name.
    """Opens a safetensors file, whose tensors are read when asked for.

    filename: a path, or a URL, from which only the wanted bytes are read.
    framework: "pt" or "np" (also "torch", "pytorch", "numpy"); "jax", "flax",
        "tf", "tensorflow", "mlx" and "paddle" make tensors from arrays.
    device: the device of torch's tensors; for "cuda:0" they are read through
        pinned memory, without torch.
    backend: "mmap": torch's tensors on the CPU are views of the file that cost
        nothing until they are touched; if another program writes into the file
        in place, they change. With any other backend the tensors have memory
        of their own: "pread", "direct" (bypassing the page cache), "uring" and
        "snapshot" read in parallel, and "auto" chooses. For NumPy's arrays,
        for URLs and for files on mounts of networks or of programs (NFS, FUSE)
        "mmap" means "auto". Writing to a tensor never reaches the file.

    Any number of threads may use one at once. Tensors and slices stay valid
    after it is closed.

    Methods raise SafetensorError for an unknown name, for a file that is
    damaged, and after the end of the `with` block.
    """

    def __init__(self, filename, framework, device="cpu", *, backend="mmap"):
        self._file = _File(
            filename,
            _framework(framework),
            _device("cpu" if device is None else device),
            _backend(backend),
        )

    def _open(self):
        file = self._file
        if file is None:
            raise SafetensorError("File is closed")
        return file

    def keys(self):
        """Returns the names of the tensors, sorted, as a list."""
        return _haulway.sorted_names(self._open().core)

    def offset_keys(self):
        """Returns the names of the tensors in the order of their data, as a
        list.
        """
        return self._open().core.names()

    def metadata(self):
        """Returns the text that the header holds by key, a dict, or None."""
        return self._open().metadata()

    def get_tensor(self, name):
        """Returns the whole tensor `name`."""
        file = self._open()
        return file.tensor(*file.find(name))

    def get_tensors(self):
        """Returns all tensors by name, a dict in the order of their data."""
        return self._open().tensors()

    def get_slice(self, name):
        """Returns the tensor `name` as a slice: indexing it reads only the
        bytes that it needs.
        """
        file = self._open()
        return PySafeSlice._of(file, *file.find(name))

    def get_tensor_meta(self, name):
        """Returns what the header says of the tensor `name`, a TensorMeta, and
        reads no data."""
        file = self._open()
        return file.meta(*file.find(name))

    def prefetch(self, plan=None, *, device=None, threads=8):
        """Starts reading tensors in the background, and returns a
        PrefetchLoader, which hands each out once.

        plan: a dict of names and what to read of each: None for the whole
            tensor, or a slice of its first dimension with the step 1. By
            default all tensors. Parts that are not in the plan are not read.
        device: where the tensors are put; by default this file's device. The
            package takes CUDA devices only. So does this method after
            install(); otherwise it reads to the CPU too.
        threads: how many threads read at most.

        Only for framework="pt". Raises SafetensorError for a plan that does not
        fit the file, TypeError for one that is no dict.
        """
        if plan is not None and not isinstance(plan, dict):
            raise TypeError(
                f"'{type(plan).__name__}' object is not an instance of 'dict'"
            )
        if device is not None:
            device = _device(device)
        threads = _prefetch().thread_count(threads)
        return self._open().prefetch(plan, device, threads)

    def read_ahead(self, plan=None):
        """Reads tensors ahead of time, in one merged, parallel pass.

        plan: names, or a dict of a name and an index, or a list of several;
            the index None selects a whole tensor. By default all tensors.

        get_tensor(name), and get_slice(name)[index] with an index that selects
        the same part as one in the plan, then return the tensor that was read,
        the same one each time. Indices have the meaning that they have for
        get_slice(); an index that get_slice() refuses raises SafetensorError. A
        second plan adds to the first; close the file to free both.
        """
        self._open().read_ahead(plan)

    def __enter__(self):
        return self

    def __exit__(self, _exc_type, _exc_value, _traceback):
        self._file = None

    def __repr__(self):
        file = self._file
        if file is None:
            return described(self, "closed")
        return described(self, path_text(file.path),
                         counted(len(file.core), "tensor"), file.framework)

    def _ipython_key_completions_(self):
        return [] if self._file is None else self.keys()


class _safe_open_handle(safe_open):  # noqa: N801
    """safe_open for a file object, which must have a name and a descriptor."""

    def __init__(self, f, framework, device="cpu", *, backend="mmap"):
        f.fileno  # noqa: B018 - raises if there is no descriptor.
        super().__init__(f.name, framework, device, backend=backend)


class PySafeSlice(OnlyMadeHere):
    """A tensor in a file; indexing it reads what the index selects.

    Any number of threads may use one at once. get_shape() and get_dtype() raise
    nothing, an index SafetensorError for what it cannot select.
    """

    __slots__ = ("_file", "_row", "_info", "_name")

    @classmethod
    def _of(cls, file, name, row, info):
        made = object.__new__(cls)
        made._file, made._name, made._row, made._info = file, name, row, info
        return made

    def get_shape(self):
        """Returns the shape of the whole tensor as a list."""
        return header_shape(self._name, self._info, self._file.header)

    def get_dtype(self):
        """Returns the dtype's name in files, e.g. "F32"."""
        return _dtypes.in_files(self._info.dtype)

    def __getitem__(self, index):
        return self._file.part(self._name, self._row, self._info, index)

    def __repr__(self):
        return described(self, shown(self._name), self.get_dtype(),
                         shown(self.get_shape()))


class _File:
    """The shared state of safe_open and its slices. Immutable except for
    plans."""

    def __init__(self, filename, framework, device, backend):
        path = os.fsdecode(os.fspath(filename))
        self.framework, self.device = framework, device
        self._is_torch = framework == "pytorch"
        if device != "cpu" and framework not in ("pytorch", "paddle"):
            raise SafetensorError(
                f"Device {device} is not supported for framework {framework}"
            )
        self.path = path
        is_local = "://" not in path
        self._may_map = self._is_torch and backend == "mmap" and is_local
        self.core = _open(path)
        self._numeric = imported("torch" if self._is_torch else "numpy")
        # Files that are compared with a signature are in memory.
        in_memory = backend not in ("mmap", "pread", "auto") and asked_by_config()
        self._way = "auto" if backend == "mmap" or in_memory else backend
        if self._is_torch:
            with importing:
                from .._torch.factory import from_dlpack

            self._from_dlpack = from_dlpack
            self._make = maker("torch", device)
        else:
            self._from_dlpack = None
            self._make = NumpyMaker()
        # Whether small reads bypass the engine, whose threads and statistics
        # take longer than such a read.
        self._is_direct = self._way in ("auto", "pread") and is_local
        self._planned = {}

    @once
    def is_mapped(self):
        """Returns whether torch's tensors are views of the file. Asked when the
        first tensor is, because it is a request on a mount of a network."""
        return self._may_map and not _haulway.is_on_remote(self.path)

    @once
    def _views(self):
        return self.is_mapped and self.device == "cpu"

    @once
    def _reading(self):
        return Reading("safe_open", {"io": self._way})

    @once
    def _parsed(self):
        return parsed_header(self.core)

    def header(self):
        """Returns the parsed header, a dict."""
        return self._parsed

    @once
    def _has_metadata(self):
        """Returns whether the header has metadata, even if it is {}."""
        text = _haulway.safetensors_header(self.core)
        return (
            b'"__metadata__"' in text
            and self._parsed.get("__metadata__") is not None
        )

    def metadata(self):
        return self.core.metadata or ({} if self._has_metadata else None)

    def find(self, name):
        """Returns (name, row, TensorInfo) of a tensor."""
        if not isinstance(name, str):
            raise not_text(name)
        row = self.core.find(name)
        if row is None:
            raise SafetensorError(f"File does not contain tensor {name}")
        return name, row, self.core.tensor(row)

    # Whole tensors

    def tensor(self, name, row, info):
        found = self._planned.get((name, ()))
        if found is not None:
            return found
        self._check(name, info)
        if self._views:
            lent = _haulway.lend_tensor(self.core, row, self._from_dlpack)
            if lent is not None:
                return lent
        with raising(f"Could not read tensor {name} from file", self.device):
            if self._is_direct and 0 < info.nbytes <= _LITTLE:
                if self._is_torch and self.device == "cpu":
                    lent = _haulway.read_tensor(
                        self.core, row, self._from_dlpack
                    )
                    if lent is not None:
                        return lent
                if self.is_mapped and self.device != "cpu":
                    # A view of the file is copied to the device.
                    return self._on_cpu(name, row, info).to(self.device)
                memory = self.core.read_range(info.storage, 0, info.nbytes)
                return self._finished(self._moved(memory, info))
            storages = self._storages([info.storage])
            return self._finished(
                self._make.tensor(storages[info.storage], info)
            )

    def tensors(self):
        check_tensors(self._numeric, self.core, self.header)
        with raising("Could not read tensors from file", self.device):
            if self._is_torch and self.device == "cpu":
                built = self._build()
            elif self._is_torch:
                built = self._on_device()
            else:
                built = self._make.object(self.core, self._reading)
                if self._casts():
                    built = {
                        name: self._finished(made)
                        for name, made in built.items()
                    }
        for (name, key), tensor in self._planned.items():
            if key == ():
                built[name] = tensor
        return built

    def _build(self):
        with importing:
            from .._torch.factory import TorchFactory

        factory = TorchFactory(self.core, {})
        if self.is_mapped:
            built, _ = self.core.build(
                factory, self._from_dlpack, None, "utf-8", {"io": "mmap"}, None
            )
            return built
        return self._reading.build(self.core, factory, self._from_dlpack)

    def _on_device(self):
        rows = list(range(self.core.storage_count()))
        storages = self._storages(rows)
        return {
            name: self._make.tensor(storages[info.storage], info)
            for name, info in (
                (name, self.core.tensor(row))
                for name, row in zip(self.core.names(), self.core.rows())
            )
        }

    def _storages(self, rows):
        if self._views:
            return {
                row: self._make.storage(self.core.read_storage(row)[0])
                for row in rows
            }
        return self._make.storages(self.core, rows, self._reading)

    # Parts

    def part(self, name, row, info, index):
        if not self.is_mapped:
            index = self._checked(name, info, index)
        if self._planned:
            found = self._found(name, info, index)
            if found is not None:
                return found
        if self.is_mapped:  # torch's own indexing rules apply.
            tensor = self._on_cpu(name, row, info)[index]
            return tensor if self.device == "cpu" else tensor.to(self.device)
        self._check(name, info)
        with raising("Could not read tensor bytes for slicing"):
            part = self._little_part(info, index)
            if part is not None:
                return self._finished(part)
            part = part_of(row, info, index)
            (memory,) = self._reading.tensors(self.core, [part.request])
            return self._finished(self._moved(memory, part.info))

    def _little_part(self, info, index):
        """Reads the rows that a checked index covers and returns the selected
        part; None if the rows are too large."""
        if not (self._is_direct and info.shape and info.nbytes):
            return None
        first, *others = index or (slice(None),)
        if isinstance(first, int):
            start, count, first = first, 1, 0
        else:
            start, stop, step = first.indices(info.shape[0])
            count, first = stop - start, slice(None, None, step)
        row_bytes = info.nbytes // info.shape[0]
        if not 0 < count * row_bytes <= _LITTLE:
            return None
        rows = info._replace(
            shape=(count, *info.shape[1:]), nbytes=count * row_bytes
        )
        memory = self.core.read_range(
            info.storage, start * row_bytes, rows.nbytes
        )
        part = self._over(memory, rows)[(first, *others, ...)]
        strides = any(
            isinstance(item, slice) and item.step != 1 for item in index
        )
        # Copy the part, so that the rows can be freed.
        if part.nbytes < rows.nbytes or strides:
            part = (
                part.clone(memory_format=self._numeric.contiguous_format)
                if self._is_torch else part.copy()
            )
        if self._is_torch and self.device != "cpu":
            return part.to(self.device)
        return part

    def _checked(self, name, info, index):
        """Checks an index by the package's rules, for tensors that torch does
        not index itself."""
        dtype = _dtypes.in_files(info.dtype)
        shape = header_shape(name, info, self.header)
        if self._is_torch and dtype == "F4":
            # The package cannot slice F4: torch's elements are pairs.
            self._check(name, info)
            dtype, shape = "U8", list(info.shape)
        return _index.checked(index, shape, dtype)

    def _found(self, name, info, index):
        """Returns the tensor that a plan has read; None if no plan has this
        index."""
        try:
            key = _plan.canonical(index, info.shape)
        except ValueError:
            return None
        return self._planned.get((name, key))

    def _on_cpu(self, name, row, info):
        if self.device == "cpu":
            return self.tensor(name, row, info)
        self._check(name, info)
        lent = _haulway.lend_tensor(self.core, row, self._from_dlpack)
        if lent is not None:
            return lent
        return self._over(self.core.read_storage(info.storage)[0], info)

    def _over(self, memory, info):
        if not self._is_torch:
            return self._make.tensor(memory, info)
        made = imported("haulway._torch.factory")
        return made.tensor_over(made.storage_of(memory), info)

    def _moved(self, memory, info):
        made = self._over(memory, info)
        if self._is_torch and self.device != "cpu":
            return made.to(self.device)
        return made

    # Plans

    def meta(self, name, _row, info):
        entry = self.header()[name]
        offsets = entry[2] if isinstance(entry, list) else entry["data_offsets"]
        return _prefetch().TensorMeta._of(
            _dtypes.in_files(info.dtype),
            header_shape(name, info, self.header), tuple(offsets),
        )

    def prefetch(self, plan, device, threads):
        if not self._is_torch:
            raise SafetensorError(
                'prefetch is only compatible with framework="pt"'
            )
        if device is None:
            device = self.device
        prefetch = _prefetch()
        prefetch.check_device(device, is_cpu_taken=not _is_installed())
        parts = prefetch.planned(self, plan)
        prefetch.check_runtime(device)
        return prefetch.started(self, parts, device, threads)

    def bring(self, parts):
        """Reads Parts of a plan in one pass; returns tensors by name."""
        wholes = [(part.name, part.info) for part in parts if part.rows is None]
        slices = [
            (part.name, part_of(part.row, part.info, slice(*part.rows)))
            for part in parts if part.rows is not None
        ]
        whole, rest = self._brought(wholes, [part for _, part in slices])
        return dict(whole) | {
            name: tensor for (name, _), tensor in zip(slices, rest)
        }

    def read_ahead(self, plan):
        if plan is None:
            plan = self.core.names()
        wanted = {}
        for name, index in _plan.wanted(plan):
            name, row, info = self.find(name)
            key = self._key(name, info, index)
            if (name, key) not in self._planned:
                wanted[name, key] = (row, info)
        wholes, parts = [], []
        for (name, key), (row, info) in wanted.items():
            if key == ():
                wholes.append((name, info))
            else:
                self._check(name, info)
                part = part_of(row, info, _plan.as_index(key))
                parts.append(((name, key), part))
        whole, rest = self._brought(wholes, [part for _, part in parts])
        self._planned |= {(name, ()): tensor for name, tensor in whole}
        self._planned |= {
            key: tensor for (key, _), tensor in zip(parts, rest)
        }

    def _brought(self, wholes, parts):
        """Reads whole tensors, pairs of a name and a TensorInfo, and Parts of
        _reading.select. Returns pairs of a name and a tensor, and tensors."""
        for name, info in wholes:
            self._check(name, info)
        with raising("Could not read tensors from file", self.device):
            rows = sorted({info.storage for _, info in wholes})
            storages = self._make.storages(self.core, rows, self._reading)
            whole = [
                (name, self._finished(
                    self._make.tensor(storages[info.storage], info)))
                for name, info in wholes
            ]
            memories = self._reading.tensors(
                self.core, [part.request for part in parts]
            ) if parts else []
            return whole, [
                self._finished(self._moved(memory, part.info))
                for part, memory in zip(parts, memories)
            ]

    def _key(self, name, info, index):
        """Returns a key that is equal for equivalent indices of a tensor."""
        if index is _plan.WHOLE:
            return ()
        try:
            if not self.is_mapped:
                index = self._checked(name, info, index)
            return _plan.canonical(index, info.shape)
        except (SafetensorError, OverflowError, TypeError, ValueError) as error:
            raise SafetensorError(
                f"plan for {name}: {error}, found {index!r}"
            ) from error

    # Differences between frameworks

    def _check(self, name, info):
        check_tensor(self._numeric, name, info, self.header)

    def _casts(self):
        return self.framework in _FROM_NUMPY

    def _finished(self, tensor):
        if not self._casts():
            return tensor
        module, function = _FROM_NUMPY[self.framework]
        make = getattr(imported(module), function)
        if self.framework == "paddle":
            return make(tensor, place=self.device.replace("cuda", "gpu"))
        return make(tensor)


def _prefetch():
    return imported(f"{__package__}._prefetch")


def _is_installed():
    install = sys.modules.get(f"{__package__}._install")
    return install is not None and install.installed()


def _open(path):
    """Opens a file as a Checkpoint, mapped."""
    is_local = "://" not in path
    if is_local and "\0" in path:
        raise _missing(path)
    if folder_of(path) is not None:
        raise OSError("No such device (os error 19)")
    try:
        source = open_as_configured(path, True)
    except Error as error:
        if is_local:
            _check_path(path)
        if isinstance(error, UnsupportedError):
            raise as_ours(error, str(error)) from error
        raise
    try:
        return _haulway.open_safetensors(source)
    except Error as error:
        if is_local:
            _check_path(path)
        refusal = refusal_of(source, error)
        raise as_ours(
            error, f"Error while deserializing header: {refusal}"
        ) from error


def _check_path(path):
    """Raises as the package does if the path is not a readable file."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError:
        raise _missing(path) from None


def _missing(path):
    return FileNotFoundError(f"No such file or directory: {path}")


def _framework(framework):
    if not isinstance(framework, str):
        raise not_text(framework)
    if framework not in _FRAMEWORKS:
        raise SafetensorError(f"framework {framework} is invalid")
    return _FRAMEWORKS[framework]


def _backend(backend):
    if not isinstance(backend, str):
        raise not_text(backend)
    if backend not in _BACKENDS:
        raise SafetensorError(
            f"backend {_dtypes.quoted(backend)} is invalid (expected one of: \"mmap\", "
            '"pread")'
        )
    return backend


def _device(device):
    """Returns a device in torch's form: "cpu", "cuda:0", or a number."""
    if isinstance(device, str):
        kind, colon, number = device.partition(":")
        if device in ("cpu", "mps"):
            return device
        if kind == "mps" and colon:
            if _device_number(device) != 0:
                raise SafetensorError(
                    f"device {device} is invalid: only mps or mps:0 is "
                    "supported"
                )
            return "mps"
        if kind in _DEVICES:
            return f"{kind}:{_device_number(device) if colon else 0}"
        raise SafetensorError(f"device {device} is invalid")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(device, torch.device):
        return _device(str(device))
    try:
        number = device.__index__()
    except AttributeError:
        number = -1
    if number < 0:
        raise SafetensorError(f"device {device!r} is invalid")
    return number


def _device_number(device):
    """Returns the number after the colon."""
    tokens = device.split(":")
    if len(tokens) != 2:
        raise SafetensorError(f"device {device} is invalid")
    # Rust's parser of numbers accepts a plus sign, and ASCII digits only.
    if not re.fullmatch(r"\+?[0-9]+", tokens[1]):
        what = "invalid digit found in string" if tokens[1] else (
            "cannot parse integer from empty string"
        )
        raise ValueError(what)
    number = int(tokens[1])
    if number >= 2**64:
        raise ValueError("number too large to fit in target type")
    return number
