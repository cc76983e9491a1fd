"""haulway.save and haulway.save_async: saving objects as files."""

# How: saving is in two steps for every format: _prepare() turns the object
# into what is to be written, with everything checked, and what it returns
# writes it. save() runs both, save_async() the first at once, with tensors
# copied, and the second on a thread, one save at a time. torch's container is
# pickled here because objects are Python's; tensors by name go to the
# library's Save().
#
# A format is a row of the library's table, not a case here; what only torch's
# and Tensorizer's know beside that is named in one place. Threads of a pool
# would have to end before the interpreter does, so one thread is started when
# there is work, and waited for.


from __future__ import annotations

import concurrent.futures
import sys
import threading

from . import _flat, _haulway, _tensorizer
from ._allowed import by_name
from ._config import given
from ._errors import InvalidArgumentError, OptionError
from ._options import READING, check_stats
from ._remote import take_remote, target_of
from ._source import is_path, path_of


def format_of(path, format):
    """The format to write: as told, or as the name ends."""
    if format is not None:
        if not isinstance(format, str):
            raise InvalidArgumentError(
                f"format: expected a name, found {format!r}",
                "kInvalidArgument",
            )
        return _haulway.format_to_write_by_name(format)
    if not is_path(path):
        return "torch"
    return _haulway.format_to_write(path_of(path))


def save(obj, path, format=None, *, durability=None, progress=None,
         memory_budget=None, stats=None, compact=False, key=None,
         passphrase=None, **format_options):
    """Saves tensors, or an object that holds tensors, as one file.

    obj: for "torch" a tensor or array, or nested dicts, lists, tuples and
        scalars of them, as torch.save takes. Tensors and arrays that share
        memory share it in the file. Anything that is not data is refused with
        UnsafeError, and the path to it, before a byte is written. For
        "safetensors", "npz" and "gguf" a dict of tensors or arrays by name,
        for "npy" one array. For "tensorizer" nested dicts with string keys,
        and lists, of tensors or arrays, each stored in full.
    path: a path, a URL (s3://, redis://) or a binary file object. The options
        of docs/loading.md for reaching URLs apply: connections, ca_file and
        others.
    format: "torch", "safetensors", "tensorizer" (".tensors"), "npz", "npy" or
        "gguf"; by default the one that the path's ending names, in upper or
        lower case, otherwise "torch". The ending of a format that cannot be
        written (".h5", ".onnx") is refused.
    durability: "full": the file survives a loss of power once this returns.
        "none": the file appears complete or not at all, but may be lost if the
        machine stops.
    progress: called as progress(bytes done, bytes in all).
    memory_budget: limit in bytes for memory beside the tensors', for bytes
        that are copied or encrypted before they are written.
    stats: a dict that receives statistics of the call: bytes, requests,
        threads, seconds of each stage; see docs/saving.md.
    compact: leave out bytes of storages that no tensor uses; "torch" only,
        because the other formats hold none.
    ties: what to do with tensors that share memory in a format that cannot
        express it: "error" and "keep" fail, "copy" stores each in full, "drop"
        leaves out tensors that equal another one under another name. The report
        lists copies and drops under "ties". By default "safetensors"
        refuses torch's tensors and copies NumPy's arrays, as its own library
        does, and "tensorizer" copies. "torch" keeps them.
    key: 32 bytes to encrypt with; "tensorizer" only.
    passphrase: a string or bytes to encrypt with, instead of a key.
    threads: see haulway.config.save, as for storage_alignment and
        compute_crc32, which apply to "torch".
    layout: for "tensorizer": "interleaved", which every release of tensorizer
        reads; "segments", which edit() changes in place, and which takes
        metadata, room_for (for how many more tensors there is room before the
        file must be rearranged) and data_file, the name of a second, new file
        beside this one for the data; or "segments-pr170", the layout of
        tensorizer's pull request 170.
    metadata: for "safetensors", a dict of strings. For "gguf" a dict of text,
        bools, numbers and lists of one of them; NumPy's scalars and arrays
        define the type in which a value is written; other integers are written
        as i32 or as large as they need, floats as f32 or f64.
    alignment: where tensors start. For "safetensors" a multiple of 8 (4096
        lets readers map pages); for "gguf" a power of two, by default 32; for
        "tensorizer" any number up to 1 MiB, by default 1.
    authenticate_metadata: for "tensorizer" with encryption: True, the default,
        lets readers with the key detect a changed name, type, shape or order;
        see docs/formats/tensorizer.md.

    An existing file is replaced in one step when everything is written; until
    then, and after any failure, it is unchanged. Returns statistics, the same
    as `stats`. Raises Error, also for an option that the format does not have.
    """
    check_stats(stats)
    work = _prepare(
        obj, path, format_of(path, format), copy=False, durability=durability,
        progress=progress, memory_budget=memory_budget, compact=compact,
        key=key, passphrase=passphrase, **format_options,
    )
    return tell(stats, work())


def tell(stats, done):
    if stats is not None:
        stats.update(done)
    return done


# What formats that hold more than tensors by name know beside what all do. Not
# given means as usual.
_OPTIONS = {
    "torch": ("storage_alignment", "compute_crc32", "compact", "ties"),
    "tensorizer": _tensorizer.OPTIONS,
}


def checked(name, value):
    """An option of reading that saving takes too, where it is given."""
    return None if value is None else READING[name].check(name, value)


def _prepare(obj, path, format, *, copy, durability, progress, memory_budget,
             threads=None, **options):
    """A function that writes an object and tells what it did.

    copy: whatever happens to the object before it is called.
    """
    target = target_of(path, take_remote("save", options))
    known = _OPTIONS.get(format, _flat.OPTIONS)
    wished = {
        name: value
        for name, value in options.items()
        if value is not None and not (name == "compact" and value is False)
    }
    for name in wished:
        if name in ("key", "passphrase") and name not in known:
            raise OptionError(
                f"{name}: the format {format!r} has no encryption",
                "kInvalidArgument",
            )
        if name not in known:
            raise OptionError(
                f"{name}: the format {format!r} has no such option: expected "
                f"{', '.join((*known, 'threads'))}",
                "kInvalidArgument",
            )
    wished.update(
        copy=copy,
        durability=given("save", "durability", durability),
        threads=given("save", "threads", threads),
        progress=checked("progress", progress),
        memory_budget=checked("memory_budget", memory_budget),
    )
    if format == "torch":
        return _prepare_torch(obj, path, target, **wished)
    if format == "tensorizer":
        return _tensorizer.prepare(obj, target, **wished)
    return _flat.prepare(obj, target, format, **wished)


def _prepare_torch(obj, path, target, *, copy, compact=False, ties="keep",
                   **settings):
    if ties not in ("keep", "error"):
        raise InvalidArgumentError(
            f"ties: the format 'torch' keeps them: expected 'keep', found "
            f"{ties!r}",
            "kInvalidArgument",
        )
    pickled = pickle_of(obj, compact=compact, arrays_as_tensors=True)
    if copy:
        pickled.snapshot(settings["threads"])
    settings = {
        "storage_alignment": given("save", "storage_alignment", None),
        "compute_crc32": given("save", "compute_crc32", None),
        **settings,
    }
    return lambda: write(pickled, path, target=target, **settings)


def pickle_of(obj, *, compact=False, arrays_as_tensors=False,
              skip_data=False, protocol=2, legacy=False):
    """The pickle of an object, and where the bytes of its storages are.

    skip_data: nowhere: space is left for them.
    legacy: storages are mentioned as the container of torch 1.5 has them.
    """
    pickled = _haulway.pickle_object(
        obj, list(by_name()), arrays_as_tensors=arrays_as_tensors,
        compact=compact, protocol=protocol, legacy=legacy,
    )
    if skip_data:
        pickled.leave_out()
    for number, owner in pickled.elsewhere():
        if skip_data or owner.device.type == "meta":
            continue
        copy = owner.cpu()
        pickled.bring(number, copy, copy.data_ptr())
    return pickled


def records_of(pickled, alignment, byteorder=True):
    """The records of a checkpoint, in torch.save's order."""
    records = [
        ("data.pkl", pickled.pickle),
        (".format_version", b"1"),
        (".storage_alignment", str(alignment).encode()),
    ]
    if byteorder:
        records.append(("byteorder", sys.byteorder.encode()))
    records += [pickled, ("version", b"3\n")]
    if not byteorder:
        records.append(("byteorder", sys.byteorder.encode()))
    return records


def archive_name(path):
    """What torch calls the folder of all records in a file of that name."""
    path = path_of(path)
    return _haulway.archive_name_of(path) if path.isascii() else "archive"


def write(pickled, path, *, target=None, durability=None, progress=None,
          storage_alignment=None, compute_crc32=None, threads=None,
          memory_budget=None, byteorder=True):
    """Writes a pickled object to a path, a URL or a file object.

    target: what target_of() makes of it.
    """
    alignment = given("save", "storage_alignment", storage_alignment)
    return _haulway.write_archive(
        target_of(path) if target is None else target,
        records_of(pickled, alignment, byteorder),
        archive_name(path) if is_path(path) else "archive",
        alignment,
        given("save", "compute_crc32", compute_crc32),
        given("save", "durability", durability),
        given("save", "threads", threads),
        progress,
        memory_budget,
    )


def write_legacy(pickled, path, protocol, *, durability=None, progress=None,
                 threads=None, memory_budget=None):
    """Writes a pickled object in the container of torch 1.5 and before."""
    return _haulway.write_legacy(
        target_of(path),
        pickled,
        protocol,
        given("save", "durability", durability),
        given("save", "threads", threads),
        progress,
        memory_budget,
    )


class _Writer:
    """Runs one save at a time behind the caller."""

    def __init__(self):
        self._lock = threading.Lock()
        self._last = None

    def start(self, prepare):
        """Waits for the save before, calls prepare() and returns a future of
        the function that it returned."""
        with self._lock:
            if self._last is not None:
                concurrent.futures.wait([self._last])
            work = prepare()
            future = concurrent.futures.Future()
            future.set_running_or_notify_cancel()

            def run():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)

            # Not a daemon: the interpreter waits for the file to be whole.
            threading.Thread(target=run, name="haulway-save").start()
            self._last = future
            return future


_writer = _Writer()


def save_async(obj, path, format=None, *, durability=None, progress=None,
               memory_budget=None, stats=None, compact=False, key=None,
               passphrase=None, **format_options):
    """Like save(), but writes in the background.

    The object is copied before this returns, so its tensors may change
    immediately. The caller waits only for this copy, and for an earlier
    asynchronous save that is still writing.

    Returns a concurrent.futures.Future: its result() returns what save()
    returns, or raises its error. `progress` is called from another thread, and
    `stats` is filled before the future is done. The copy is not part of
    memory_budget.
    """
    check_stats(stats)
    if not is_path(path):
        raise InvalidArgumentError(
            "save_async() needs a path", "kInvalidArgument"
        )
    format = format_of(path, format)

    def prepare():
        work = _prepare(
            obj, path, format, copy=True, durability=durability,
            progress=progress, memory_budget=memory_budget, compact=compact,
            key=key, passphrase=passphrase, **format_options,
        )
        return lambda: tell(stats, work())

    return _writer.start(prepare)
