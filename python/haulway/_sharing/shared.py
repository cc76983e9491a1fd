"""Objects in shared memory: haulway.load(destination="shm"), haulway.attach."""

from __future__ import annotations

from .. import _haulway
from .._building import build_over
from .._describing import bytes_text, described, public, shown
from .._importing import importing
from .._making.assemble import maker, tensors_by_name
from .._making.objects import NumpyFactory
from .._options import INDEX
from .._reading.call import Reading, check_framework, reads
from .._reading.select import choose, matcher, storages_of


class SharedHandle(str):
    """The text with which other processes attach; pass it on by any means.

    The object itself keeps the memory alive, as a tensor does; a copy of its
    text, or an unpickled one, does not.

    A str: threads may share it. Made by load(destination="shm").
    """

    __slots__ = ("_kept",)

    def __new__(cls, kept):
        handle = super().__new__(cls, kept.handle)
        handle._kept = kept
        return handle

    def __reduce__(self):
        return str, (str(self),)


class Shared:
    """An object loaded into shared memory, and the handle to it. Made by
    load(destination="shm").

    object: the object, with its tensors. The items of a dict can also be
        reached by indexing this.
    handle: for haulway.attach() in any process of the same user.
    nbytes: the size of the mapping, in bytes.
    stats: statistics of the load, a dict.

    The memory lives while any process holds this, the handle or a tensor.
    Unpickling a Shared attaches to the memory, and raises Error if the memory
    is gone. Any number of threads may use one at once.
    """

    def __init__(self, core, framework, reading):
        self.object = _object_of(core, framework, reading)
        self.handle = SharedHandle(core)
        self.nbytes = core.nbytes
        self.stats = core.stats
        self._framework = framework
        self._options = {name: getattr(reading, name) for name in INDEX}

    def __getitem__(self, key):
        return self.object[key]

    def __iter__(self):
        return iter(self.object)

    def __len__(self):
        return len(self.object)

    def __contains__(self, key):
        return key in self.object

    def keys(self):
        """The keys of the object, if it is a dict."""
        return self.object.keys()

    def values(self):
        """The values of the object, if it is a dict."""
        return self.object.values()

    def items(self):
        """The items of the object, if it is a dict."""
        return self.object.items()

    def _ipython_key_completions_(self):
        return list(self.object) if isinstance(self.object, dict) else []

    def __reduce__(self):
        return _attached, (str(self.handle), self._framework, self._options)

    def __repr__(self):
        return described(self, bytes_text(self.nbytes), shown(self.handle, 80))


def load_shared(path, framework, include, exclude, reading):
    """Loads into shared memory; see haulway.load()."""
    names = matcher(include, exclude)
    source = reading.source(path)
    if reading.signed is not None:
        # Opening it says which files are loaded, and then compared together.
        _haulway.open_checkpoint(
            source, reading.opening(), reading.retries, names)
        reading.compare_signed()
    core = _haulway.load_shared(
        source, names, reading.opening(), reading.engine, reading.progress,
    )
    reading.tell(core.stats)
    return Shared(core, framework, reading)


@reads(INDEX)
def attach(handle, framework=None, **options):
    """Returns the object that this or another process loaded with
    destination="shm". Its tensors are the same memory, and read-only.

    handle: the loaded object's `handle`, or its text.
    framework: "torch" or "numpy"; by default torch if it is installed.
    OPTIONS

    The options must be the same as when it was loaded. Nothing is read, so
    there are no other options. Works while some process of the same user holds
    the object, its handle or one of its tensors; raises Error otherwise. NumPy
    refuses to write to the arrays; torch has no read-only tensors, and writing
    to one ends the process with SIGSEGV.
    """
    framework = check_framework(framework, ("torch", "numpy"))
    reading = Reading("attach", options, INDEX)
    core = _haulway.attach_shared(str(handle), reading.understanding())
    return _object_of(core, framework, reading)


def _attached(handle, framework, options):
    reading = Reading("attach", options, INDEX)
    core = _haulway.attach_shared(handle, reading.understanding())
    return Shared(core, framework, reading)


def _object_of(core, framework, reading):
    checkpoint = core.checkpoint
    entries = core.entries
    if entries is not None:
        return _entries_of(core, checkpoint, framework, entries)
    if framework == "numpy":
        factory = NumpyFactory(checkpoint, core.memories(writable=False))
        return build_over(checkpoint, factory)
    with importing:
        from .._torch import factory as _torch_factory

    return core.build(
        _torch_factory.TorchFactory(checkpoint, reading.classes),
        _torch_factory.from_dlpack,
    )


def _entries_of(core, checkpoint, framework, entries):
    """Returns a flat dict of some tensors by name."""
    make = maker(framework)
    everything = choose(checkpoint)
    chosen = [everything[entry] for entry in entries]
    # torch has no read-only memory.
    memories = core.memories(writable=framework == "torch")
    storages = {row: make.storage(memories[row]) for row in storages_of(chosen)}
    return tensors_by_name(make, storages, chosen)


public("haulway", Shared, SharedHandle)
