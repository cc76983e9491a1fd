"""haulway.delta.publisher: versions of weights from a training loop."""

# Design: the library compares, encodes and writes; this module asks for one step
# after another. Processes of a group take the same steps and tell one another
# their results, so each knows whether any of them failed: then none goes on.
# One process is a group of one, which has nothing to tell.
#
# Tensors that are dense and in main memory are read where they are. Others are
# copied first, some at a time: the library has its own copy of all of them
# once it has compared them, and needs the caller's no more.

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping

from .. import _haulway
from .._describing import described, public
from .._errors import (
    ArgumentTypeError,
    Error,
    InvalidArgumentError,
    MismatchError,
    UnsupportedError,
)
from .._importing import importing
from .._making.dtypes import is_array, name_of_numpy, name_of_torch
from .dense import check_tensor, memory_of, row_major, row_major_array
from .flat import check_unicode

# Copies of tensors that are not dense or not in main memory, held at a time.
_COPIED_BYTES = 256 << 20

_publishers = weakref.WeakSet()


class Publisher:
    """The one that publishes versions into a folder. Made by publisher().

    It has the folder until close(), or until its process ends. Can be used in a
    `with` statement, at whose end it is closed. Threads: any; calls take turns.
    close() raises nothing; `version` and publish() raise InvalidArgumentError
    once it is closed.
    """

    def __init__(self, url, base, options, group, report):
        self._url = url
        self._group = _Group(group)
        self._report = report
        self._lock = threading.RLock()
        self._core = None
        leads = self._group.rank == 0

        def open_core():
            path = "" if isinstance(base, Mapping) else base
            return _haulway.VersionPublisher.open(url, path, options, leads)

        # The leader first: it removes what a killed publisher left.
        self._core = self._group.one_after_another(open_core)
        self._group.tell(lambda: self._fill(self._core, base))
        _publishers.add(self)

    def _fill(self, core, base):
        if core.needs_base:
            if not isinstance(base, Mapping):
                raise InvalidArgumentError(
                    "base is empty: expected the checkpoint before the first "
                    "version", "kInvalidArgument",
                )
            core.set_base(row for rows in _batches(base, 1 << 62)
                          for row in rows)
        elif self._group.world == 1:
            core.load_all()

    @property
    def version(self):
        """The number of the newest version; 0 is the base. Raises
        InvalidArgumentError once the publisher is closed."""
        return self._opened().version

    def publish(self, state, *, full=False):
        """Publishes the next version. Returns the Version.

        state: a dict of torch tensors or NumPy arrays by name, the same as in
            the base. Their values are copied: they may change afterwards.
            Tensors on other devices are copied to main memory one after
            another.
        full: write a full version, whose tensors may have other names, dtypes
            and shapes. By default a delta is written, unless `full_every` asks
            for a full version.

        In a group, every rank calls this with its own tensors; a tensor that
        several ranks have is written once, and must be the same on all of
        them.

        Raises MismatchError, and names the tensor, if one is new, missing, or
        of another dtype or shape, or differs between ranks; and Error if a file
        cannot be written. No version is there then, on any rank, and the next
        call goes on from the version before.
        """
        if not isinstance(full, bool):
            raise ArgumentTypeError(
                f"full is {type(full).__name__}: expected a bool",
                "kInvalidArgument",
            )
        with self._lock:
            core = self._opened()
            try:
                return self._publish(core, state, full)
            finally:
                # Has no effect once the version is there.
                core.discard()

    def _publish(self, core, state, full):
        group = self._group

        def draft():
            is_full = core.begin(full)
            for rows in _batches(state, _COPIED_BYTES):
                core.add(iter(rows))
            return core.version, full, is_full, core.added()

        drafts = group.tell(draft)
        merged, owners = _merge(drafts)

        def split():
            core.check_complete(merged)
            core.leave_out([name for name, rank in owners.items()
                            if rank != group.rank])
            return core.shards

        counts = group.tell(split)
        place = group.tell(
            lambda: core.enter_folder(None) if group.rank == 0 else None)[0]

        def write():
            if group.rank != 0:
                core.enter_folder(place)
            return core.write_shards(sum(counts[:group.rank]), sum(counts))

        parts = group.tell(write)

        def commit():
            if group.rank != 0:
                return None
            weight_map = [pair for part in parts for pair in part[0]]
            made = core.commit(weight_map, sum(part[1] for part in parts),
                               sum(part[2] for part in parts))
            core.accept(merged)
            return made

        made = group.tell(commit)[0]
        if group.rank != 0:
            core.accept(merged)
        else:
            self._prune(core)
        return self._report(made)

    def _prune(self, core):
        """Removes old versions. The new one is there, so a failure is not one
        of publishing."""
        try:
            core.prune()
        except Error as error:
            with importing:
                import warnings

            warnings.warn(
                f"old versions were not removed: {error}", RuntimeWarning,
                stacklevel=4,
            )

    def _opened(self):
        if self._core is None:
            raise InvalidArgumentError(
                "the publisher is closed", "kInvalidArgument"
            )
        return self._core

    def close(self):
        """Lets go of the folder and of the copy of the weights. Raises nothing;
        may be called again."""
        with self._lock:
            if self._core is not None:
                self._core.close()
            self._core = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        core = self._core
        return described(self, repr(self._url),
                         "closed" if core is None else f"version {core.version}")


class _Group:
    """The processes that publish together."""

    def __init__(self, group):
        self._dist = None
        self.rank, self.world = 0, 1
        if group is None:
            return
        with importing:
            import torch.distributed as dist

        if not isinstance(group, dist.ProcessGroup):
            raise ArgumentTypeError(
                f"group is {type(group).__name__}: expected a process group of "
                "torch.distributed", "kInvalidArgument",
            )
        self._dist, self._group = dist, group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)

    def tell(self, step):
        """Runs a step on every rank. Returns all results, by rank; raises the
        failure of this rank, or of the lowest rank that failed."""
        if self._dist is None:
            return [step()]
        failure, result = None, None
        try:
            result = step()
        except Exception as error:
            failure = error
        told = [None] * self.world
        mine = (failure is None, result if failure is None else _carried(failure))
        self._dist.all_gather_object(told, mine, group=self._group)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # Its traceback refers to this frame.
        for is_done, value in told:
            if not is_done:
                raise value
        return [value for _, value in told]

    def one_after_another(self, step):
        """Runs a step on rank 0, then on the others. Returns its result, which
        is not sent; raises as tell() does."""
        result = []
        self.tell(lambda: result.append(step()) if self.rank == 0 else None)
        self.tell(lambda: result.append(step()) if self.rank != 0 else None)
        return result[0]


def _carried(error):
    """Returns an exception that can be sent to another rank."""
    with importing:
        import pickle

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _merge(drafts):
    """Returns (the tensors of all ranks, the rank that writes each)."""
    first = drafts[0]
    for draft in drafts[1:]:
        if draft[:3] != first[:3]:
            raise InvalidArgumentError(
                "the ranks publish different versions: expected the same "
                "arguments and the same number of calls on all ranks",
                "kInvalidArgument",
            )
    merged, owners = {}, {}
    for rank, (_, _, _, rows) in enumerate(drafts):
        for row in rows:
            name = row[0]
            if name not in owners:
                owners[name], merged[name] = rank, row
            elif merged[name] != row:
                raise MismatchError(
                    f"tensor {name!r} differs between rank {owners[name]} and "
                    f"rank {rank}: a tensor that several ranks have must be the "
                    "same on all of them", "kMismatch",
                )
    return list(merged.values()), owners


def _batches(state, most):
    """Returns lists of the rows that the library takes. The copies of tensors
    in a list have about `most` bytes."""
    if not isinstance(state, Mapping):
        hint = ", whose state_dict() is one" if hasattr(state, "state_dict") else ""
        raise ArgumentTypeError(
            f"state is {type(state).__name__}: expected a dict of tensors by "
            f"name{hint}", "kInvalidArgument",
        )
    rows, copied = [], 0
    for name, value in state.items():
        row, is_copy = _row(name, value)
        rows.append(row)
        copied += row[3][2] if is_copy else 0
        if copied >= most:
            yield rows
            rows, copied = [], 0
    yield rows


def _row(name, value):
    """Returns ((name, dtype, shape, memory), whether the memory is a copy)."""
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"a name is {name!r}: expected a string", "kInvalidArgument"
        )
    check_unicode(name)
    if hasattr(value, "data_ptr"):
        check_tensor(repr(name), value, "a version")
        dense = row_major(value)
        dtype, shape = name_of_torch(dense.dtype), tuple(dense.shape)
    elif is_array(value):
        dense = row_major_array(value)
        dtype, shape = name_of_numpy(dense.dtype), dense.shape
    else:
        raise ArgumentTypeError(
            f"{name!r} is {type(value).__name__}: expected a tensor or an array",
            "kInvalidArgument",
        )
    if dtype is None:
        raise UnsupportedError(
            f"{name!r} has the dtype {value.dtype}, which versions cannot hold",
            "kUnsupported",
        )
    return (name, dtype, shape, memory_of(dense)), dense is not value


def _leave():
    """Leaves all publishers in a forked child: a folder is its parent's."""
    for publisher in _publishers:
        publisher._lock = threading.RLock()
        if publisher._core is not None:
            publisher._core.leave()


os.register_at_fork(after_in_child=_leave)
public("haulway.delta", Publisher)
