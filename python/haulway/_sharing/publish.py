"""haulway.publish: versions of an object in shared memory, under a name."""

from __future__ import annotations

import os
import threading
from multiprocessing.util import Finalize

from .. import _haulway
from .._describing import described, public
from .._errors import ArgumentTypeError, InvalidArgumentError
from .._importing import imported
from .._making.assemble import maker, tensors_by_name
from .._options import READING, whole
from .._reading.call import Reading, check_framework, reads
from .._reading.select import choose, storages_of
from ..ipc._arguments import MOST
from ..ipc._handlers import hook_for
from ..ipc._offload import ItemPickler

_lock = threading.Lock()
_publications = {}  # This process's publications, by name.
_LONGEST_WAIT_S = 5


class Publication:
    """A name that this process publishes under. Made by publish().

    name: the name.

    It lasts until close(), or until the process ends: keep it only to ask or
    to close it. Can be used in a `with` statement, at whose end it is closed.
    Threads: any. Its methods raise nothing.
    """

    def __init__(self, name):
        self.name = name
        self._core = _haulway.Publisher.open(name)
        self._version = self._core.version
        self._lock = threading.RLock()
        self._closed = []  # Not empty once it is closed.
        self._finalizer = Finalize(
            self, _close, (self._core, self._lock, self._closed),
            exitpriority=10,
        )

    @property
    def version(self):
        """The number of the newest version; the first is 1."""
        return self._version

    def _show(self, state, keep):
        encoder = _encoder()
        with self._lock:
            if self._closed:
                raise InvalidArgumentError(
                    "the publication is closed", "kInvalidArgument"
                )
            self._version = self._core.publish(encoder, state, keep)
        return self

    def close(self):
        """Lets go of the name. Subscribers keep what they hold, and can still
        take the newest version while one of them is left."""
        with _lock:
            if _publications.get(self.name) is self:
                del _publications[self.name]
        with self._lock:
            self._finalizer()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        shown = "closed" if self._closed else f"version {self.version}"
        return described(self, repr(self.name), shown)


def _close(core, lock, closed):
    """Closes a publication when no thread uses it; at exit, a daemon thread may
    do so for longer than it is waited for."""
    closed.append(True)
    if lock.acquire(timeout=_LONGEST_WAIT_S):
        try:
            core.close()
        finally:
            lock.release()


def _publication(name):
    """Returns this process's publication of the name; creates one if needed."""
    check_name(name)
    with _lock:
        if name not in _publications:
            _publications[name] = Publication(name)
        return _publications[name]


def _leave():
    """Leaves all publications in a forked child: a name ends with its
    publisher."""
    global _lock
    _lock = threading.Lock()
    for publication in _publications.values():
        publication._lock = threading.RLock()
        publication._core.leave()
    _publications.clear()


os.register_at_fork(after_in_child=_leave)


def publish(name, state, *, keep=1):
    """Puts a version of an object into shared memory, where subscribe() finds
    it from any process of this user. Returns the Publication.

    name: 1 to 100 of A-Z, a-z, 0-9, ".", "_" and "-".
    state: a dict of tensors, or any other object that can be pickled. The
        bytes of NumPy arrays and torch tensors are copied once, on several
        threads, and subscribers get views of the copy; tensors that share a
        storage share it there.
        Tensors on other devices are copied to main memory.
    keep: how many of the newest versions stay, for subscribers that ask for
        one by its number. An older version is freed when nobody holds it.

    Another call with the same name publishes the next version, and reuses
    memory that no reader holds. Subscribers see whole versions only.

    Raises UnavailableError, which names the process, while another process
    publishes under the name; LimitError, with sizes, if there is not enough
    memory. The newest version then stays the same.
    """
    keep = number("keep", keep, 1)
    return _publication(name)._show(state, keep)


@reads(READING)
def publish_file(name, path, *, keep=1, framework=None, include=None,
                 exclude=None, **options):
    """Loads a checkpoint straight into the memory of the next version, and
    publishes the version. Returns the Publication.

    name, keep: as for publish().
    path, framework, include, exclude: as for load(). Subscribers get
        the object that load() returns, with tensors of that framework.
    OPTIONS

    Raises Error as load() and publish() do; no version is published then.
    """
    framework = check_framework(framework)
    keep = number("keep", keep, 1)
    make = maker(framework)
    reading = Reading("publish_file", options)
    core = reading.open(path)
    publication = _publication(name)
    reading.memory = publication._core.version_memory()
    with publication._lock:
        if include is None and exclude is None:
            core.check_object()
            state = make.object(core, reading)
        else:
            chosen = choose(core, include, exclude)
            storages = make.storages(core, storages_of(chosen), reading)
            state = tensors_by_name(make, storages, chosen)
        return publication._show(state, keep)


def publish_buffer(name, nbytes):
    """Returns memory for the next version, as a writable memoryview: publish()
    does not copy arrays that lie in this memory.

    name: as for publish().
    nbytes: how many bytes, aligned to a page.

    Arrays and tensors over parts of the memory are published in place; other
    tensors of the same state are copied to memory beside it. Subscribers see
    the memory once it is published: do not write to it again, but ask for new
    memory. Raises LimitError as publish(), and InvalidArgumentError while
    earlier memory is in use that was not published.
    """
    nbytes = number("nbytes", nbytes, 1)
    publication = _publication(name)
    with publication._lock:
        memory = publication._core.reserve(nbytes)
    return memoryview(memory)[:nbytes]


def check_name(name):
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"name is {type(name).__name__}: expected str", "kInvalidArgument"
        )


def number(name, value, least=None):
    """Checks a whole number; what is larger than MOST becomes MOST."""
    return min(whole(name, value, least), MOST)


# How versions are pickled: the bytes of every array and tensor, however small,
# are stored outside the pickle, so that they are loaded as views.
# multiprocessing's reductions are not used, since they need the sender.


def _encoder():
    encoder = _haulway.ItemEncoder(_hook_for, {}, 1, False)
    pickler = ItemPickler(encoder, 5, buffer_callback=encoder.take_buffer)
    pickler.reducer_override = encoder.reduce
    encoder.set_pickler(pickler.dump, pickler.clear_memo)
    return encoder


def _hook_for(cls):
    hook = hook_for(cls)
    module = cls.__module__.partition(".")[0]
    if hook is not None and module == "numpy":
        return lambda array: _reduce_array(array, hook)
    if hook is not None and module == "torch" and hasattr(cls, "detach"):
        return lambda tensor: _reduce_tensor(tensor, hook)
    return hook


def _reduce_array(array, hook):
    numpy = imported("numpy")
    reduced = hook(array)
    if (
        reduced is NotImplemented and array.nbytes and not array.dtype.hasobject
        and not array.flags.forc
    ):
        return hook(numpy.ascontiguousarray(array))
    return reduced


def _reduce_tensor(tensor, hook):
    torch = imported("torch")
    if tensor.device.type not in ("cpu", "meta"):
        moved = tensor.detach().cpu()
        if isinstance(tensor, torch.nn.Parameter):
            moved = torch.nn.Parameter(moved, tensor.requires_grad)
        tensor = moved
    elif tensor.requires_grad and not tensor.is_leaf:
        tensor = tensor.detach().requires_grad_()
    return hook(tensor)


public("haulway", Publication)
