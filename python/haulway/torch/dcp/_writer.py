"""A writer of DCP directories, for torch.distributed.checkpoint.save()."""

# Design: data files get names that no checkpoint in the directory has, made from
# the id of the save. The library writes each file atomically: it appears
# complete and, with durability, after its bytes are on the disk. Last, under the
# lock of a FileSet, `.metadata` atomically replaces the old one, and files are
# removed that it does not name: those of the old checkpoint, and of killed
# saves. So at any moment there is an old `.metadata` with all its files, or a
# new one with all of its own. Of two saves at once, the one that ends first
# removes the files of the other, which then fails.

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import os
import pickle
import re
import threading
import uuid

from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from ... import _haulway
from ..._config import for_saving, given
from ..._describing import described, path_text
from ..._errors import InvalidArgumentError, NotFoundError, UnavailableError
from ..._making.allowed import by_name
from ..._options import REMOTE
from ..._reading.call import Reading
from ..._reading.remote import target_of
from ..._reading.source import open_source, path_of
from ..._writing.save import records_of
from ._metadata import storage_info

# The version that torch's writer puts into `.metadata`; None for the older
# releases, whose metadata has no version.
_VERSION = getattr(filesystem, "CURRENT_DCP_VERSION", None)

# The descriptor of torch's extension ZStandard.
_ZSTD = "stream.zstd/1"

# Data files of saves by torch's writer or by this one.
_DATA_FILE = re.compile(r"__(\d+)_\d+(-[0-9a-f]{12})?\.distcp")
_RANK_METADATA = re.compile(r"__\d+\.metadata")

# Name of the threads of dcp.async_save(); each ends with its save.
_ASYNC_THREAD = "AsyncCheckpointExecutor"


def _wait_for_the_saves_before():
    """In a thread of async_save(): waits until earlier saves end, since the
    collectives of two saves in one group must not mix.

    The order is that of the calls, so it is the same in every process.
    """
    current = threading.current_thread()
    if not current.name.startswith(_ASYNC_THREAD):
        return
    # In the order in which they were started.
    for thread in threading.enumerate():
        if thread is current:
            return
        if thread.name.startswith(_ASYNC_THREAD):
            thread.join()


class Writer(StorageWriter):
    """A StorageWriter of a DCP directory that torch's own reader reads.

    path: the directory, which the writer creates, or an s3:// URL.
    overwrite: False raises RuntimeError if the directory holds a checkpoint.
    single_file_per_rank: False writes one file for each entry.
    thread_count: how many files a rank writes at once, with
        single_file_per_rank also into how many files it divides its entries.
    durability: "full": survives loss of power when the save returns. "none":
        may be lost with the machine. None: as configured.
    compress: "zstd" compresses each entry, as torch's extension ZStandard does.
        Readers need haulway, or the package `zstandard` and a release of torch
        that has extensions (2.6 has none). None: entries are stored as they
        are.
    remote: how a URL is reached; see docs/remote.md.

    If a save over an older checkpoint is killed, the directory holds the old
    checkpoint or the new one, never a mixture. With use_collectives=False this
    holds only for the part of each rank. In object stores the old data files
    stay.

    With dcp.async_save() in threads, a save waits for the save before it.

    For one save at a time, and for one thread. Methods raise Error if a file
    cannot be written.
    """

    def __init__(self, path, *, overwrite=True, single_file_per_rank=True,
                 thread_count=1, durability=None, compress=None, **remote):
        super().__init__()
        if compress not in (None, "zstd"):
            raise InvalidArgumentError(
                f"compress is {compress!r}: expected None or 'zstd'",
                "kInvalidArgument",
            )
        self._transforms = () if compress is None else (_ZSTD,)
        if type(thread_count) is not int or thread_count < 1:
            raise InvalidArgumentError(
                f"thread_count is {thread_count!r}: expected a number from 1 on",
                "kInvalidArgument",
            )
        self._path = path_of(path)
        self._overwrite = overwrite
        self._single_file = single_file_per_rank
        self._thread_count = thread_count
        self._durability = given("save", "durability", durability)
        self._remote = Reading("Writer", remote, REMOTE).remote
        self._rank = None
        self.reset()

    def __repr__(self):
        return described(
            self, path_text(self._path), f"overwrite={self._overwrite}",
            f"durability={self._durability!r}",
        )

    # Methods that torch calls

    def reset(self, checkpoint_id=None):
        """Begins a save; `checkpoint_id` is another path, if it is given."""
        if checkpoint_id:
            self._path = path_of(checkpoint_id)
        self._save_id = str(uuid.uuid4())

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        """Begins a save, as torch calls it.

        is_coordinator: not used.
        """
        _wait_for_the_saves_before()
        apart = not kwargs.get("use_collectives", True)
        self._rank = kwargs.get("rank") if apart else None

    def prepare_local_plan(self, plan):
        """Makes the directory, and returns `plan`. Raises RuntimeError for a
        checkpoint that is there already and may not be replaced.
        """
        if not self._is_remote:
            os.makedirs(self._path, exist_ok=True)
        if self._rank is not None and self._exists(".metadata"):
            raise RuntimeError(
                f"{self._path} holds a checkpoint with .metadata, which readers "
                "prefer to the files of use_collectives=False: save into "
                "another directory"
            )
        first = ".metadata" if self._rank is None else "__0.metadata"
        if not self._overwrite and self._exists(first):
            raise RuntimeError(
                "Checkpoint already exists and self.overwrite=False."
            )
        if self._rank is None:
            return plan
        return dataclasses.replace(plan, storage_data=self._names(self._rank))

    def prepare_global_plan(self, plans):
        """Returns `plans` with the names of the files of each rank."""
        return [
            dataclasses.replace(plan, storage_data=self._names(rank))
            if plan.storage_data is None else plan
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan, planner):
        """Writes the entries of `plan`, as `planner` gives them; the Future is
        done when this returns.
        """
        # The names contain the coordinator's id, which all ranks use.
        rank, save = plan.storage_data
        files = [
            (f"__{rank}_{number}-{save}.distcp", items)
            for number, items in enumerate(self._files(plan.items))
        ]
        if self._thread_count == 1 or len(files) < 2:
            written = [self._write(*file, planner) for file in files]
        else:
            with concurrent.futures.ThreadPoolExecutor(
                self._thread_count
            ) as pool:
                written = list(
                    pool.map(lambda file: self._write(*file, planner), files)
                )
        done = Future()
        done.set_result([result for results in written for result in results])
        return done

    def finish(self, metadata, results):
        """Makes the new checkpoint that of the directory.

        metadata: torch's Metadata of the save.
        results: what write_data() returned in each rank.
        """
        if _VERSION is not None:
            metadata.version = _VERSION
        metadata.storage_data = {
            one.index: one.storage_data for some in results for one in some
        }
        metadata.storage_meta = self.storage_meta()
        name = (
            ".metadata" if self._rank is None else f"__{self._rank}.metadata"
        )
        files = _haulway.FileSet(self._durability)
        self._put(name, [pickle.dumps(metadata, 4)], files=files)
        files.commit(None if self._is_remote else
                     functools.partial(self._replaced, metadata))

    def storage_meta(self):
        """Returns the ids of the directory and of the save."""
        return StorageMeta(checkpoint_id=self._path, save_id=self._save_id)

    @property
    def checkpoint_id(self):
        """The path or URL that is written."""
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        """Returns whether `checkpoint_id` is a path, or a URL that is written
        to.
        """
        return _haulway.has_folders(os.fspath(checkpoint_id))

    # Files

    @property
    def _is_remote(self):
        return "://" in self._path

    def _names(self, rank):
        """Returns (rank, save id), which the names of a rank's files
        contain."""
        return rank, self._save_id.replace("-", "")[:12]

    def _path_of(self, name):
        if self._is_remote:
            return f"{self._path.rstrip('/')}/{name}"
        return os.path.join(self._path, name)

    def _exists(self, name):
        try:
            open_source(self._path_of(name), remote=self._remote)
        except NotFoundError:
            return False
        return True

    def _target(self, name, files=None):
        """Returns the target of a file, in a FileSet if one is given."""
        target = target_of(self._path_of(name), self._remote)
        return target if files is None else _haulway.file_of_set(files, target)

    def _put(self, name, items, compressed=False, files=None):
        """Writes a file of items, in a FileSet if one is given; returns the
        (offset, length) of each."""
        return _haulway.write_items(
            self._target(name, files), items,
            for_saving("torch", {"durability": self._durability}), None,
            compressed,
        )

    def _files(self, items):
        """Returns the items of each file; items that are not tensors come
        first."""
        if not items:
            return []
        if not self._single_file:
            return [[item] for item in items]
        sizes = {id(item): _size_of(item) for item in items}
        files = [[] for _ in range(self._thread_count)]
        totals = [0] * len(files)
        for item in sorted(items, key=lambda one: -sizes[id(one)]):
            least = totals.index(min(totals))
            files[least].append(item)
            totals[least] += sizes[id(item)]
        order = {id(item): number for number, item in enumerate(items)}
        for file in files:
            file.sort(key=lambda one: (
                one.type != WriteItemType.BYTE_IO, order[id(one)]
            ))
        return [file for file in files if file]

    def _write(self, name, items, planner):
        """Writes one data file; returns its WriteResults."""
        alignment = given("save", "storage_alignment", None)
        allowed = list(by_name())
        ranges = self._put(name, [
            _encoded(planner.resolve_data(item), item, alignment, allowed)
            for item in items
        ], compressed=bool(self._transforms))
        return [
            WriteResult(
                item.index, length,
                storage_info(name, offset, length, self._transforms),
            )
            for item, (offset, length) in zip(items, ranges)
        ]

    def _replaced(self, metadata):
        """Returns the paths of files of older saves that the new `.metadata`
        replaces. Raises UnavailableError if another save removed those that it
        names."""
        named = {one.relative_path for one in metadata.storage_data.values()}
        there = os.listdir(self._path)
        if gone := named.difference(there):
            raise UnavailableError(
                f"another save at the same time removed {min(gone)}: save "
                f"again; of {self._path}", "kUnavailable",
            )
        old = []
        for name in there:
            if data := _DATA_FILE.fullmatch(name):
                is_old = name not in named and (
                    self._rank is None or int(data[1]) == self._rank
                )
            else:
                is_old = self._rank is None and _RANK_METADATA.fullmatch(name)
            if is_old:
                old.append(os.path.join(self._path, name))
        return old


def _size_of(item):
    """Returns the size of an entry in bytes if it is known before encoding."""
    if item.tensor_data is None:
        return 0
    return item.tensor_data.chunk.sizes.numel() * (
        item.tensor_data.properties.dtype.itemsize
    )


def _encoded(data, item, alignment, allowed):
    """Returns an entry as an argument of _haulway.write_items()."""
    if item.type == WriteItemType.BYTE_IO:
        return data.getbuffer()
    tensor = data.detach().cpu()
    if tensor.untyped_storage().nbytes() != tensor.nbytes:
        tensor = tensor.clone()  # A view: leave the rest of its storage out.
    return records_of(
        _haulway.pickle_object(
            tensor, allowed, arrays_as_tensors=False, compact=False,
            protocol=2, legacy=False,
        ),
        alignment,
    )
