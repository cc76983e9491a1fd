"""TensorDeserializer."""

# Design: this class has the names and results of the reference's class, over one
# open checkpoint of the engine. Tensors are read on access, or many in one call
# (load_into_module, read_tensors), through the memory and threads that every
# load uses; the engine does the work of the reference's readers, buffers and
# thread. Its counters are sums of the loads' statistics.
#
# Keeping the reference's pipeline of readers and buffers, with only reading and
# decrypting replaced, would be a second engine. Arguments that controlled the
# pipeline are accepted, so that programs run unchanged.


from __future__ import annotations

import contextlib
from collections.abc import Mapping

import torch

from .. import _haulway
from .._describing import counted, described, shown
from .._errors import (
    Error,
    InvalidArgumentError,
    UnknownNameError,
    UnsupportedError,
)
from .._importing import imported
from .._making.dtypes import byte_strides, numpy_dtype
from .._reading.call import Reading
from .._reading.remote import target_of
from .._reading.source import open_source, refuse_folder
from .._reading.streams import is_same
from .._threads import ThreadLock
from .._torch import factory as _torch_factory
from ._params import (
    CryptographyError,
    DecryptionParams,
    InvalidFileError,
    TensorType,
    value_errors,
)
from ._paths import View, build, name_of, nest
from ._redis import url_of
from ._s3 import is_object
from .stream_io import open_stream

# Haulway's names of dtypes that NumPy also has.
_PLAIN = frozenset(
    "F64 F32 F16 I64 I32 I16 I8 U64 U32 U16 U8 BOOL C64 C128".split()
)


def _module_and_attribute(name):
    """Splits a tensor's name into module and attribute; the root module is
    ""."""
    module, _, attribute = name.rpartition(".")
    return module, attribute


def _bytes_of(tensor):
    if tensor.is_meta or tensor.numel() == 0:
        return b""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy()


class TensorDeserializer(Mapping, contextlib.AbstractContextManager):
    """The tensors of a file: a mapping by the first step of their paths.

    In a nested file the levels in between are read-only mappings too; tree()
    returns real dicts and lists. The arguments are those of the tensorizer
    package.

    file_obj: a path, a URL, a file object or a file descriptor.
    device: the device of the tensors; None: CUDA if there is such a device,
        otherwise the CPU.
    filter_func: a function of names; only tensors for which it is true are
        there.
    dtype: cast floating-point tensors to torch's dtype.
    lazy_load: read each tensor when it is asked for, instead of all at once.
    plaid_mode, plaid_mode_buffers: have no effect, as in the package.
    num_readers: number of threads; None: as many as this process may use.
    verify_hash: check the digest of every tensor that is read.
    encryption: the DecryptionParams of an encrypted file.
    keep_meta: return tensors without data as meta tensors, instead of zeros.

    Any number of threads may use one at once. Methods raise InvalidFileError
    for a damaged file, CryptographyError for a wrong key, HashMismatchError,
    and ValueError after close().
    """

    def __init__(self, file_obj, device=None, filter_func=None, dtype=None, *,
                 lazy_load=False, plaid_mode=None, plaid_mode_buffers=None,
                 num_readers=None, verify_hash=False, encryption=None,
                 keep_meta=None):
        del plaid_mode, plaid_mode_buffers
        if num_readers is not None and num_readers < 1:
            raise ValueError("num_readers must be at least 1")
        if encryption is not None and not isinstance(
            encryption, DecryptionParams
        ):
            raise TypeError("encryption must be DecryptionParams")
        if encryption is not None and not (
            encryption._key or encryption._passphrase
        ):
            raise InvalidArgumentError(
                "encryption: expected DecryptionParams of a key or a passphrase, "
                "found none in them",
                "kInvalidArgument",
            )
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(
                f"dtype is {type(dtype).__name__}: expected a torch.dtype"
            )
        if isinstance(file_obj, bytes):
            file_obj = file_obj.decode("utf-8", "surrogateescape")
        if isinstance(file_obj, int):
            file_obj = f"/proc/self/fd/{file_obj}"
        self._device = None if device is None else torch.device(device)
        if (self._device is not None and self._device.type == "cuda"
                and not torch.cuda.is_available()):
            raise UnsupportedError(
                f"device is {self._device}: this machine has no CUDA",
                "kUnsupported",
            )
        self._dtype = dtype
        self._reading = Reading("TensorDeserializer", {
            "io": "pread",
            "threads": num_readers,
            "verify": verify_hash or None,  # False, the reference's default,
            # means that the configured value applies.
            "keep_meta": keep_meta,
            "key": encryption._key if encryption else None,
            "passphrase": encryption._passphrase if encryption else None,
        })
        self._verify = self._reading.verify
        self._lock = ThreadLock()
        self._loaded = {}
        self._verified = set()
        self._bytes_read = 0
        self._position = 0
        refuse_folder(file_obj)
        if is_object(file_obj):
            file_obj = open_stream(file_obj)  # It finds the credentials.
        with value_errors():
            self._core, self._source = self._reading.open_with_source(file_obj)
        if self._core.format != "tensorizer":
            self._core = None
            raise InvalidFileError("Not a tensorizer file")
        if self._core.facts["encrypted"] and encryption is None:
            self._core = None
            raise CryptographyError(
                "file is encrypted: expected DecryptionParams, found none"
            )
        tensors = _haulway.tensorizer_tensors(self._core)
        self._paths = [path for path, _, _ in tensors]
        self._types = [TensorType(kind) for _, kind, _ in tensors]
        self._rows = [
            row
            for row, path in enumerate(self._paths)
            if filter_func is None or filter_func(name_of(path))
        ]
        self._tree = nest((self._paths[row], row) for row in self._rows)
        self._tensor_bytes = sum(tensors[row][2] for row in self._rows)
        self._file_bytes = self._core.facts["data_bytes"]
        self._headers = None
        if not lazy_load:
            self._load(self._rows)

    # Mapping

    def _view(self):
        return View(self._tree, self._tensor)

    def __getitem__(self, key):
        return self._view()[key]

    def __contains__(self, key):
        return key in self._view()

    def __iter__(self):
        return iter(self._tree)

    def __len__(self):
        return len(self._tree)

    def tree(self, prefix=None, *, default=None, filter_func=None):
        """Returns everything below `prefix`, or `default` if there is nothing.

        prefix: a sequence of steps; None: everything.
        filter_func: a function of names; only tensors for which it is true are
            there.

        Lists are returned as lists; a list from which a filter removes items
        is a dict by position, so that no tensor changes its position.
        """
        if isinstance(prefix, str):
            raise TypeError(
                f"prefix is {prefix!r}: expected a sequence of steps, such as "
                f"[{prefix!r}]"
            )
        prefix = tuple(prefix) if prefix is not None else ()
        rows = [
            row
            for row in self._rows
            if self._paths[row][: len(prefix)] == prefix
            and (filter_func is None or filter_func(name_of(self._paths[row])))
        ]
        if not rows:
            return {} if not prefix and default is None else default
        self._load(rows)
        if len(rows) == 1 and self._paths[rows[0]] == prefix:
            return self._tensor(rows[0])
        level = nest((self._paths[row][len(prefix):], row) for row in rows)
        return build(level, self._tensor)

    # Loading

    def _open(self):
        if self._core is None:
            raise ValueError("the file is closed")
        return self._core

    def _target(self):
        if self._device is not None:
            return self._device
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def _memories(self, rows, verify):
        core = self._open()
        stored = [row for row in rows if self._info(row).storage is not None]
        with value_errors():
            memories, stats = core.load_storages(
                stored, {**self._reading.engine, "verify": bool(verify)}, None
            )
        with self._lock:
            self._bytes_read += stats["read_bytes"]
        by_row = dict(zip(stored, memories))
        return [by_row.get(row) for row in rows]

    def _info(self, row):
        return self._open().tensor(row)

    def _make(self, row, memory):
        info = self._info(row)
        if memory is None:
            tensor = _torch_factory.meta_tensor(info)
        else:
            tensor = _torch_factory.tensor_over(
                _torch_factory.storage_of(memory), info
            )
            target = self._target()
            if target.type != "cpu":
                tensor = tensor.to(target)
        if self._dtype is not None and tensor.is_floating_point():
            self._open().check_cast(row)
            tensor = tensor.to(self._dtype)
        if self._types[row] == TensorType.BUFFER:
            return tensor
        return torch.nn.Parameter(
            tensor,
            requires_grad=tensor.is_floating_point() or tensor.is_complex(),
        )

    def _load(self, rows, verify=None):
        """Loads the rows that are not in memory, all at once. Rows that were
        loaded unverified are read again to verify them."""
        verify = self._verify if verify is None else verify
        with self._lock:
            missing = [row for row in rows if row not in self._loaded]
            unverified = [
                row for row in rows
                if verify and row in self._loaded and row not in self._verified
            ]
        for row in unverified:
            self._memories([row], verify)
        if missing:
            memories = self._memories(missing, verify)
            made = {
                row: self._make(row, memory)
                for row, memory in zip(missing, memories)
            }
            with self._lock:
                for row, tensor in made.items():
                    self._loaded.setdefault(row, tensor)
        if verify:
            with self._lock:
                self._verified.update(missing, unverified)

    def _tensor(self, row):
        self._load([row])
        with self._lock:
            return self._loaded[row]

    # Iteration

    def _next_rows(self, filter_func, num_tensors):
        """Yields the next rows for read_*(); each row is used only once."""
        if num_tensors < -1:
            raise InvalidArgumentError(
                f"num_tensors is {num_tensors}: expected at least -1",
                "kInvalidArgument",
            )
        while num_tensors != 0 and self._position < len(self._rows):
            row = self._rows[self._position]
            self._position += 1
            if filter_func is None or filter_func(name_of(self._paths[row])):
                num_tensors -= 1
                yield row

    def _facts(self, row):
        with value_errors():
            header = _haulway.TensorizerHeaders(self._open(), [row])
        return header.module(0), self._types[row], name_of(self._paths[row])

    def read_tensors(self, filter_func=None, num_tensors=-1, verify_hash=None):
        """Yields (module index, type, name, tensor) in the file's order.

        filter_func: a function of names; tensors for which it is false are skipped.
        num_tensors: how many to yield; -1: all.
        verify_hash: check digests; None: as given to the constructor.

        A later call continues after the last tensor that was yielded.
        """
        for row in self._next_rows(filter_func, num_tensors):
            self._load([row], verify_hash)
            yield (*self._facts(row), self._tensor(row))

    def read_numpy_arrays(self, filter_func=None, num_tensors=-1,
                          allow_raw_data=False, verify_hash=None):
        """Yields (module index, type, name, array, is opaque, dtype's name).

        filter_func, num_tensors, verify_hash: as for read_tensors().
        allow_raw_data: a tensor whose type NumPy lacks is opaque: it is
            refused with ValueError unless this is set, and then returned as
            signed integers of the same size.
        """
        numpy = imported("numpy")
        verify = self._verify if verify_hash is None else verify_hash
        for row in self._next_rows(filter_func, num_tensors):
            info = self._info(row)
            opaque = info.dtype not in _PLAIN
            name = None
            dtype = numpy_dtype(info.dtype)
            if opaque:
                if not allow_raw_data:
                    raise ValueError(
                        f"{name_of(self._paths[row])!r} is of dtype "
                        f"{info.dtype}, which NumPy lacks; allow_raw_data "
                        "gives its bits"
                    )
                name = str(_torch_factory._DTYPES[info.dtype])
                dtype = numpy.dtype(f"i{dtype.itemsize}")
            memory = self._memories([row], verify)[0]
            if memory is None:
                array = numpy.zeros(info.shape, dtype)
            elif info.nbytes == 0:
                array = numpy.empty(info.shape, dtype)
            else:
                array = numpy.ndarray(
                    info.shape, dtype, buffer=memory,
                    strides=byte_strides(info.strides, dtype),
                )
            yield (*self._facts(row), array, opaque, name)

    # Modules

    def load_into_module(self, m, filter_func=None, verify_hash=None):
        """Copies the tensors into a module; returns their number. Closes the
        file.

        m: a torch.nn.Module. Buffers stay buffers, and stay persistent or not.
        filter_func, verify_hash: as for read_tensors().

        Raises UnknownNameError if the module lacks a submodule, and
        NotImplementedError for a file that holds a state dict.
        """
        rows = [
            row
            for row in self._rows
            if filter_func is None or filter_func(name_of(self._paths[row]))
        ]
        if any(self._types[row] == TensorType.STATE_DICT for row in rows):
            raise NotImplementedError(
                "the file holds a state dict: use load_state_dict() instead"
            )
        self._load(rows, verify_hash)
        modules = dict(m.named_modules())
        for row in rows:
            name = name_of(self._paths[row])
            path, attribute = _module_and_attribute(name)
            if path not in modules:
                raise UnknownNameError(f"the module has no {path!r}")
            module = modules[path]
            tensor = self._tensor(row)
            if self._types[row] == TensorType.BUFFER:
                module.register_buffer(
                    attribute, tensor,
                    attribute not in module._non_persistent_buffers_set,
                )
            else:
                module.register_parameter(attribute, tensor)
        self.close()
        return len(rows)

    def verify_module(self, m):
        """Returns whether a module's tensors are those of the file, by their
        digests.

        m: a torch.nn.Module.

        Returns (all match, [(name, matches) for each]). The file may be closed
        once one of its tensors was loaded.
        """
        self._read_headers()
        found = {}
        for path, module in m.named_modules():
            for name, tensor in (
                *module._parameters.items(), *module._buffers.items()
            ):
                if tensor is not None:
                    found[f"{path}.{name}"] = tensor
        results = []
        for at, row in enumerate(self._rows):
            name = name_of(self._paths[row])
            tensor = found.get(name)
            same = tensor is not None and self._is_same(at, tensor)
            results.append((name, same))
        return all(same for _, same in results), results

    def _is_same(self, at, tensor):
        dtype = _torch_factory._DTYPES[self._headers.dtype(at)]
        return dtype == tensor.dtype and self._headers.match(
            at, tuple(tensor.shape), _bytes_of(tensor)
        )

    def _read_headers(self):
        with self._lock, value_errors():
            if self._headers is None:
                self._headers = _haulway.TensorizerHeaders(
                    self._open(), self._rows
                )

    def to_redis(self, redis_client, key_prefix, force=False):
        """Writes the file to a server, as keys that begin with key_prefix and
        a colon. The key that all readers read first is written last.

        redis_client: a client of the redis package; its server is written to
            directly.
        force: replace existing keys with that prefix. Without it another file
            is refused, and the same file is left unchanged.

        Raises InvalidArgumentError for another file under that prefix, and
        Error if the server fails.
        """
        self._open()
        url = url_of(redis_client, key_prefix)
        existing = "replace" if force else "usual"
        try:
            _haulway.upload(
                self._source, target_of(url, existing=existing),
                {"durability": "none"}, None,
            )
        except InvalidArgumentError as error:
            if force:
                raise
            if not is_same(self._source, open_source(url)):
                raise InvalidArgumentError(
                    f"another file has the prefix {key_prefix!r}: expected "
                    "another prefix, or force=True to replace it",
                    "kInvalidArgument",
                ) from error

    # Figures

    @property
    def total_tensor_bytes(self):
        """Total size of the tensors that the filter selects, in bytes."""
        return self._tensor_bytes

    @property
    def total_file_bytes(self):
        """Size of the tensor data in the file, in bytes."""
        return self._file_bytes

    @property
    def total_bytes_read(self):
        """How many bytes were read so far."""
        return self._bytes_read

    @property
    def cache_status(self):
        """Always None; the package tells here of a cache of HTTP."""
        return None

    # Lifetime

    def close(self):
        """Closes the file; loaded tensors and digests stay."""
        if self._core is not None and self._loaded:
            # An unreadable file must still be closed.
            with contextlib.suppress(Error, ValueError, OSError):
                self._read_headers()
        self._core = self._source = None

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        if self._core is None:
            return described(self, "closed")
        return described(self, shown(self._source.name, 80),
                         counted(len(self._rows), "tensor"))

    def _ipython_key_completions_(self):
        return [] if self._core is None else list(self._tree)
