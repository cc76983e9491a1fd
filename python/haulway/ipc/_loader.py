"""The DataLoader whose batches are passed through shared memory."""

from __future__ import annotations

import functools
import inspect
from typing import TypeVar

import torch.utils.data
from torch.utils.data.dataloader import DataLoader as _TorchLoader

from .._describing import described
from .._errors import UnsupportedError
from .._exchange import Exchange
from .._log import debug_log
from ._arguments import positive
from ._loader_iterator import ArenaIterator, PlacedIterator, position_of

_T_co = TypeVar("_T_co", covariant=True)

# The class with which install() replaces torch's; empty if not installed.
_installed = []


class _Kind(type(_TorchLoader)):
    """Makes `isinstance(x, DataLoader)` true for torch's own loaders while this
    class replaces torch's: programs test against the replaced name."""

    def __instancecheck__(cls, instance):
        return super().__instancecheck__(instance) or (
            cls in _installed and isinstance(instance, _TorchLoader)
        )

    def __subclasscheck__(cls, subclass):
        return super().__subclasscheck__(subclass) or (
            cls in _installed and issubclass(subclass, _TorchLoader)
        )


class DataLoader(_TorchLoader[_T_co], metaclass=_Kind):
    """torch.utils.data.DataLoader, with batches in shared-memory arenas.

    Arguments, attributes, order, seeds and messages are torch's. With workers,
    a batch arrives as views of memory that the worker wrote; it is valid as
    long as any part of it is held, after the loader is gone too.

    max_shared_bytes: how much shared memory batches may use at a time, in
        equal parts for each worker. None: as much as the system gives.
        Workers wait until the program frees memory. If the program itself
        waits for a batch and frees nothing, ArenaFull is raised after a few
        seconds; ask again to get the batch.

    Other arguments: as for torch's DataLoader. Iterating raises what torch's
    loader raises, and ArenaFull. Like torch's, a loader is for one thread at a
    time.
    """

    def __init__(self, *args, max_shared_bytes=None, **kwargs):
        if max_shared_bytes is not None:
            max_shared_bytes = positive("max_shared_bytes", max_shared_bytes)
        self.max_shared_bytes = max_shared_bytes
        super().__init__(*args, **kwargs)

    def __repr__(self):
        limit = self.max_shared_bytes
        return described(
            self, f"over {type(self.dataset).__name__}",
            f"batch_size={self.batch_size}", f"num_workers={self.num_workers}",
            None if limit is None else f"max_shared_bytes={limit}",
        )

    def _get_iterator(self):
        return _iterator_of(self, super()._get_iterator)


def _signature():
    """Returns torch's signature plus this class's arguments, for programs that
    rebuild a loader from the attributes of another."""
    theirs = inspect.signature(_TorchLoader.__init__)
    added = inspect.signature(DataLoader.__init__).parameters["max_shared_bytes"]
    return theirs.replace(parameters=[*theirs.parameters.values(), added])


DataLoader.__init__.__signature__ = _signature()
DataLoader.__module__ = "haulway.ipc"


def _iterator_of(loader, otherwise):
    # Some torch releases can run workers as threads of this process.
    method = getattr(loader, "worker_method", "multiprocessing")
    if loader.num_workers == 0 or method != "multiprocessing":
        if log := debug_log():
            log.debug("DataLoader: batches by torch: %s", "num_workers is 0"
                      if loader.num_workers == 0 else f"workers by {method}")
        if position_of(loader) is None:
            return otherwise()
        if loader.num_workers == 0:
            return PlacedIterator(loader)
        raise UnsupportedError(
            f"a StatefulDataLoader has no workers by {method!r}",
            "kUnsupported",
        )
    loader.check_worker_number_rationality()
    return ArenaIterator(loader)


# Changes made by install(), which uninstall() takes back.
_exchange = Exchange(lambda name: True)


def install():
    """Puts DataLoader in torch.utils.data.DataLoader's place.

    Names that programs took from torch before, and classes that they derived
    from it, get their batches through arenas too. A second call does nothing.

    Raises nothing. For one thread at a time.
    """
    if _installed:
        return
    theirs = _TorchLoader._get_iterator

    def get_iterator(self):
        # Something that replaced it may call it after uninstall().
        otherwise = functools.partial(theirs, self)
        return _iterator_of(self, otherwise) if _installed else otherwise()

    _installed.append(DataLoader)
    _exchange.set(torch.utils.data, "DataLoader", DataLoader)
    _exchange.set(torch.utils.data.dataloader, "DataLoader", DataLoader)
    _exchange.set(_TorchLoader, "_get_iterator", get_iterator)


def uninstall():
    """Undoes install(), but leaves what something else has put in the place of
    Haulway's class since. Iterators that are under way go on as they are.

    Raises nothing. For one thread at a time.
    """
    _installed.clear()
    _exchange.take_back()
