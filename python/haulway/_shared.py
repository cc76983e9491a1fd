"""Objects in shared memory: haulway.load(destination="shm"), haulway.attach."""

from __future__ import annotations

from . import _haulway
from ._loading import Loading
from ._objects import NumpyFactory, TensorInfo, make_array


class SharedHandle(str):
    """The text by which other processes attach, to be passed on as one likes.

    The object itself keeps the memory alive, as a tensor does; a copy of its
    text, or what is unpickled, does not.
    """

    __slots__ = ("_kept",)

    def __new__(cls, kept):
        handle = super().__new__(cls, kept.handle)
        handle._kept = kept
        return handle

    def __reduce__(self):
        return str, (str(self),)


class Shared:
    """What was loaded into shared memory, and the handle to it.

    object: the object, with its tensors. A dict's items are also had by
        indexing this.
    handle: for haulway.attach() in any process of the same user.
    nbytes: how much is mapped.
    stats: what loading it took, a dict.

    The memory lives as long as, in any process, this, the handle or a tensor
    does. Pickled, it is attached to where it is unpickled.
    """

    def __init__(self, core, framework):
        self.object = _object_of(core, framework)
        self.handle = SharedHandle(core)
        self.nbytes = core.nbytes
        self.stats = core.stats
        self._framework = framework

    def __getitem__(self, key):
        return self.object[key]

    def __iter__(self):
        return iter(self.object)

    def __len__(self):
        return len(self.object)

    def __contains__(self, key):
        return key in self.object

    def keys(self):
        return self.object.keys()

    def values(self):
        return self.object.values()

    def items(self):
        return self.object.items()

    def __reduce__(self):
        return _attached, (str(self.handle), self._framework)

    def __repr__(self):
        return f"<haulway.Shared of {self.nbytes} bytes, {self.handle}>"


def load_shared(source, framework, wanted, loading, secrets):
    """Loads into shared memory; `wanted` says of a name whether to."""
    core = _haulway.load_shared(
        source, wanted, loading.options, loading.progress, **secrets
    )
    loading.tell(core.stats)
    return Shared(core, framework)


def attach(handle, framework=None):
    """The object that another process, or this one, loaded with
    destination="shm": its tensors are the same memory, and only to be read.

    handle: the loaded object's `handle`, or its text.
    framework: "torch" or "numpy"; by default torch if it is installed.

    Works while in some process of the same user the object, its handle or a
    tensor of it lives; raises Error otherwise. NumPy refuses to write to the
    arrays; torch knows no such tensors, and writing to one ends the process
    with SIGSEGV.
    """
    from ._checkpoint import check_framework

    core = _haulway.attach_shared(str(handle))
    return _object_of(core, check_framework(framework))


def _attached(handle, framework):
    return Shared(_haulway.attach_shared(handle), framework)


def _object_of(core, framework):
    checkpoint = core.checkpoint
    entries = core.entries
    if entries is not None:
        return _entries_of(core, checkpoint, framework, entries)
    if framework == "numpy":
        factory = NumpyFactory(checkpoint, core.memories(writable=False))
        return Loading().build(checkpoint, factory, None, None)
    from . import _torch_factory

    return core.build(
        _torch_factory.TorchFactory(checkpoint, {}),
        _torch_factory.from_dlpack,
    )


def _entries_of(core, checkpoint, framework, entries):
    """A flat dict of some tensors by name."""
    names = checkpoint.names()
    rows = checkpoint.rows()
    wanted = {
        names[entry]: TensorInfo(*checkpoint.tensor(rows[entry]))
        for entry in entries
    }
    if framework == "numpy":
        memories = core.memories(writable=False)
        return {
            name: make_array(info, memories[info.storage])
            for name, info in wanted.items()
            if info.storage is not None
        }
    from . import _torch_factory

    # As far as torch can tell.
    memories = core.memories(writable=True)
    storages = {
        row: _torch_factory.storage_of(memories[row])
        for row in {info.storage for info in wanted.values()}
        if row is not None
    }
    return {
        name: _torch_factory.meta_tensor(info)
        if info.storage is None
        else _torch_factory.tensor_over(storages[info.storage], info)
        for name, info in wanted.items()
    }
