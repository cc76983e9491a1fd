"""Options, opening and the engine for calls that read.

Every call that reads makes one Reading from its keywords. Options that are not
given have their configured values; see _options and _config.
"""

# Design: a call passes its keywords to a Reading, which checks them by the table
# of options, lays them over the configured values, and then opens and reads
# with the result. So every call takes the same options in the same way, retries
# in the same way, and reports statistics and log messages in one place. One
# class of options per call was left out: a new option had to be added to each
# of them.

from __future__ import annotations

import importlib.util
import os

from .. import _haulway
from .._config import resolve, way_of
from .._errors import ArgumentTypeError, InvalidArgumentError
from .._importing import imported
from .._log import debug_log, said
from .._making.allowed import by_name
from .._options import ENGINE, INDEX, READING, completed, similar
from .._secrets import only_one
from .signed import asked_signature, open_signed, way_of_signed
from .source import may_map, open_source, path_to_sign, remote_of

# A child process does not need the memory that its parent pools for the next
# load.
os.register_at_fork(before=_haulway.clear_memory_pool)

# The INDEX options that the library takes unchanged.
_OF_INDEX = tuple(name for name, option in INDEX.items() if option.engine)


def reads(options):
    """Completes the docstring of a function that takes these options."""

    def decorate(function):
        if function.__doc__:  # None with -OO.
            function.__doc__ = completed(function.__doc__, "OPTIONS", options)
        return function

    return decorate


class Reading:
    """The options of one call, with its statistics.

    caller: the name of the function, for messages.
    given: its keywords; None means that a keyword was not given.
    options: the options that the call takes, a part of READING.
    defaults: values that take precedence over the options' own defaults.

    Each option is an attribute; `io` also reflects `mmap`. `memory` is the
    memory to load into, None for memory of the engine's own.
    """

    memory = None
    # The dtype of weights that are dequantized; None: that of config.json.
    dequantized_dtype = None
    source_name = "memory"
    # The open SignedModel, if a signature is asked for; and whether all of its
    # files are compared, or those that are opened, before anything is read; and
    # whether files are read one after another.
    signed = None
    usual_scope = None
    keeps_last = False
    _classes = None

    def __init__(self, caller, given, options=READING, defaults=None):
        checked = {}
        for name, value in given.items():
            if name not in options:
                raise ArgumentTypeError(
                    f"{caller}() got an unexpected keyword argument {name!r}"
                    f"{similar(name, options, caller)}",
                    "kInvalidArgument",
                )
            if value is not None:
                checked[name] = options[name].check(name, value)
        self.checks_signature = "signature" in options
        values, self.origins = resolve("load", checked, defaults)
        vars(self).update(values)
        if "io" in options:
            self.io = way_of(self.io, self.mmap)

    @property
    def carried(self):
        """Returns the options that make another process read in the same way:
        those set for the call, the thread and this process. The other process
        has the same environment; it cannot use this process's `progress` and
        `stats`."""
        return {
            name: getattr(self, name) for name, origin in self.origins.items()
            if origin in ("call", "context", "process")
            and not READING[name].of_call
        }

    # Opening

    @property
    def classes(self):
        """Returns the names that pickles may use; see allowed.by_name()."""
        if self._classes is None:
            self._classes = by_name(self.safe_globals)
        return self._classes

    def understanding(self, torch_too=True):
        """Returns the INDEX options as the library takes them.

        torch_too: see allowed.by_name().
        """
        classes = (self.classes if torch_too
                   else by_name(self.safe_globals, torch_too=False))
        return {
            **self.some(*_OF_INDEX),
            "rules": self.taken_rules,
            "big_endian_default": self.endianness == "big",
            "allowed_globals": list(classes),
        }

    @property
    def taken_rules(self):
        """Returns the rules as the library takes them."""
        if not self.rules:
            return None
        return imported("haulway._reading.rules").taken(self.rules)

    def opening(self, torch_too=True):
        """Returns the OPENING options as the library takes them."""
        only_one(self.key, self.passphrase)
        return {
            **self.understanding(torch_too),
            "key": self.key,
            "passphrase": self.passphrase,
            "dequantized_dtype": self.dequantized_dtype,
            **({"reaching": self.remote} if self.lora or self.rules else {}),
            "check_frames": not self.calculate_storage_offsets,
            "debug": self.debug,
        }

    @property
    def remote(self):
        """Returns the REMOTE options as the library takes them."""
        return remote_of(vars(self))

    @property
    def asked_signature(self):
        """Returns what the library is to check of a model's signature, as it
        takes it; None if nothing."""
        if not self.checks_signature:
            return None
        return asked_signature(vars(self), self.origins)

    def source(self, path, mapped=False):
        """Opens a path, bytes, a file object or a list of them as a source.

        mapped: map the file if no option chooses how to read it, and it may be
            mapped.
        """
        if asked := self.asked_signature:
            return self._signed_source(path, asked)
        if self.io == "auto" and self.mmap is None and mapped:
            self.io = "mmap" if may_map(path) else self.io
        source = open_source(
            path, self.io == "mmap", self.mmap_flags, self.remote,
            self.variant, self.base,
        )
        self.source_name = source.name
        return source

    def _signed_source(self, path, asked):
        if self.lora:
            raise InvalidArgumentError(
                "lora: a signature of the model says nothing of adapters: "
                "merge them without asking for one", "kInvalidArgument",
            )
        way = way_of_signed(self.io, self.mmap)
        # The engine takes the bytes from memory, where they were compared.
        self.io, self.mmap = "auto", None
        remote = self.remote
        self.signed = open_signed(
            path_to_sign(path, asked), asked, remote, self.variant, self.base
        )
        if self.keeps_last:
            self.signed.keep_last()
        source = open_source(
            path, remote=remote, variant=self.variant, base=self.base,
            signed=self.signed, way=way,
        )
        self.source_name = source.name
        return source

    def compare_signed(self):
        """Compares files of a signed model, as the scope of the call says."""
        if self.signed is None:
            return
        scope = self.signature_scope
        scope = self.usual_scope if scope == "auto" else scope
        if scope == "all" or self.usual_scope is not None:
            self.signed.compare(scope == "all", self.threads or 0)

    def open(self, path, mapped=False, names=None):
        """Opens the library's checkpoint.

        names: a name filter: only shards with names that it mentions matter.
        """
        return self.open_with_source(path, mapped, names)[0]

    def open_with_source(self, path, mapped=False, names=None):
        """Returns (the open checkpoint, its source)."""
        source = self.source(path, mapped)
        core = _haulway.open_checkpoint(
            source, self.opening(), self.retries, names
        )
        self.compare_signed()
        if log := debug_log():
            self._log_opened(log, core, source)
        return core, source

    def _log_opened(self, log, core, source):
        asked = [f"{name} by {self.origins[name]}" for name in ("io", "mmap")
                 if self.origins[name] != "default"]
        log.debug(
            "%s: format %s, %d tensors, %s bytes; way of reading: %s (%s)",
            source.name, core.format, len(core), f"{source.size:,}", self.io,
            ", ".join(asked) or "not asked for",
        )

    # Reading

    @property
    def engine(self):
        """Returns the options for the library's engine."""
        return {**self.some("io", *ENGINE), "memory": self.memory}

    def some(self, *names):
        """Returns the named options as the library takes them."""
        values = vars(self)
        return {name: values[name] for name in names}

    def storages(self, core, rows):
        """Loads storages; returns Memories parallel to the rows."""
        memories, stats = core.load_storages(
            list(rows), self.engine, self.progress
        )
        self.tell(stats)
        return memories

    def tensors(self, core, requests):
        """Loads TensorRequests; returns a Memory for each request without an
        address and None for others."""
        memories, stats = _haulway.load_tensors(
            core, requests, self.engine, self.progress
        )
        self.tell(stats)
        return memories

    def build(self, core, factory, from_dlpack, encoding="utf-8"):
        """Loads the storages and builds the whole object."""
        built, stats = core.build(
            factory, from_dlpack, None, encoding, self.engine, self.progress
        )
        self.tell(stats)
        return built

    def tell(self, stats):
        log = debug_log()
        if log and stats is not None:
            self.log_read(log, stats)
        if self.stats is not None and stats is not None:
            self.stats.update(stats)


    def log_read(self, log, stats):
        """Logs how tensors were read, from the library's statistics."""
        log.debug(
            "%s: read %s, by %s (%s); %s threads, %s retries, checksums %s",
            self.source_name,
            said(stats.get("read_bytes", 0), stats.get("seconds", 0)),
            stats.get("io", self.io), stats.get("reason") or "as asked for",
            stats.get("threads", 1), stats.get("retries", 0),
            "checked" if self.verify else "not checked",
        )


_FRAMEWORKS = ("torch", "numpy", "jax")


def check_framework(framework, expected=_FRAMEWORKS):
    """Returns the framework to use; None means torch if it is installed, else
    NumPy.

    expected: the frameworks that the call takes.
    """
    if framework is None:
        found = importlib.util.find_spec("torch") is not None
        framework = "torch" if found else "numpy"
        if log := debug_log():
            log.debug("framework %s: torch is %sinstalled", framework,
                      "" if found else "not ")
        return framework
    if isinstance(framework, str) and framework in expected:
        return framework
    words = " or ".join(filter(None, (
        ", ".join(map(repr, expected[:-1])), repr(expected[-1])
    )))
    if not isinstance(framework, str):
        raise ArgumentTypeError(
            f"framework is {type(framework).__name__}: expected {words}",
            "kInvalidArgument",
        )
    raise InvalidArgumentError(
        f"framework is {framework!r}: expected {words}",
        "kInvalidArgument",
    )
