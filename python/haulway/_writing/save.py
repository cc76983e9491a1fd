"""haulway.save and haulway.save_async: saving objects as files."""

# Design: saving has two steps for every format: prepare() converts the object to
# what will be written, with everything checked, and returns a function that
# writes it. save() runs both steps; save_async() runs the first at once, with
# tensors copied, and the second on a thread, one save at a time. torch's
# container is pickled here because the objects are Python's; dicts of tensors
# are written by the library's Save().
#
# A format is a row of the library's table, not a case here; only the special
# features of torch's and Tensorizer's formats are handled in one place.


from __future__ import annotations

import contextlib
import functools
import sys

from .. import _haulway
from .._describing import path_text
from .._errors import InvalidArgumentError, UnsupportedError
from .._importing import importing
from .._log import debug_log
from .._making.allowed import by_name
from .._options import text
from .._reading.remote import target_of
from .._reading.source import is_path, path_of
from . import flat as _flat
from . import tensorizer as _tensorizer
from .call import Writing, writes


def format_of(path, format):
    """Returns the format to write: `format`, or the one for the extension of
    the path, or of the name that a file object has."""
    if format is not None:
        chosen = _haulway.format_to_write_by_name(text("format", format))
        why = "as asked for"
    elif not is_path(path):
        chosen, why = "torch", "a file object has no ending"
        name = getattr(path, "name", None)
        # A name such as "model.pt.gz" says nothing of the bytes that the object
        # is given.
        with contextlib.suppress(UnsupportedError):
            if isinstance(name, str):
                chosen = _haulway.format_to_write(name)
                why = "as the file object's name ends"
    else:
        chosen = _haulway.format_to_write(path_of(path))
        why = "as its name ends"
    if log := debug_log():
        target = path_text(path_of(path)) if is_path(path) else "a file object"
        log.debug("%s: saved in the format %s, %s", target, chosen, why)
    return chosen


@writes("save")
def save(obj, path, format=None, **options):
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
        "gguf"; by default the one that the ending of the path, or of the file
        object's name, says, in upper or lower case, otherwise "torch". The
        ending of a format that cannot be written (".h5", ".onnx") is refused.
    WRITING

    By default "safetensors" refuses torch's tensors that share memory and
    copies NumPy's arrays, as its own library does, and "tensorizer" copies.
    "torch" keeps them. The report lists copies and drops under "ties".
    metadata and data_file of "tensorizer" are for layout="segments": see
    docs/formats/tensorizer.md.

    An existing file is replaced in one step when everything is written; until
    then, and after any failure, it is unchanged. Returns statistics, the same
    as `stats`. Raises Error, also for an option that the format does not have.
    """
    writing = Writing("save", options)
    work = prepare(obj, path, format_of(path, format), writing, copy=False)
    return writing.tell(work())


def prepare(obj, path, format, writing, *, copy, target=None):
    """Returns a function that writes an object and returns statistics.

    copy: copy the object now, so that it may change before the function runs.
    target: what is written to, if not the file at `path`.
    """
    if target is None:
        target = target_of(path, writing.remote, existing=writing.existing)
    writing.of_format(format)
    if format == "torch":
        return _prepare_torch(obj, path, target, writing, copy)
    if format == "tensorizer":
        return _tensorizer.prepare(obj, target, writing, copy)
    return _flat.prepare(obj, target, format, writing, copy)


def _prepare_torch(obj, path, target, writing, copy):
    if writing.ties not in (None, "keep", "error"):
        raise InvalidArgumentError(
            f"ties: the format 'torch' keeps them: expected 'keep', found "
            f"{writing.ties!r}",
            "kInvalidArgument",
        )
    pickled = pickle_of(obj, compact=writing.compact, arrays_as_tensors=True)
    if copy:
        pickled.snapshot(writing.threads)
    return functools.partial(
        write, pickled, path, archive_engine(writing), writing.progress,
        target=target,
    )


def archive_engine(writing):
    """Returns the options of write() among those of a call."""
    engine = writing.engine("torch", "save")
    del engine["compact"]  # The pickle itself is already compact.
    return engine


def pickle_of(obj, *, compact=False, arrays_as_tensors=False,
              skip_data=False, protocol=2, legacy=False):
    """Pickles an object; the result also tells where the bytes of its storages
    are.

    skip_data: leave space instead of bytes. legacy: refer to storages as the
    container of torch 1.5 does.
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
    """Returns the records of a checkpoint in torch.save's order."""
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
    """Returns torch's name for the folder of all records in a file of that
    name."""
    path = path_of(path)
    return _haulway.archive_name_of(path) if path.isascii() else "archive"


def write(pickled, path, engine, progress=None, *, target=None,
          byteorder=True):
    """Writes a pickled object to a path, a URL or a file object.

    engine: the options in Writing.engine().
    target: the target_of() `path`, if the caller has it already.
    """
    return _haulway.write_archive(
        target_of(path) if target is None else target,
        records_of(pickled, engine["storage_alignment"], byteorder),
        archive_name(path) if is_path(path) else "archive", engine, progress,
    )


def write_legacy(pickled, path, protocol, engine, progress=None):
    """Writes a pickled object in the container of torch 1.5 and before."""
    return _haulway.write_legacy(
        target_of(path), pickled, protocol, engine, progress)


def save_async(obj, path, format=None, **options):
    """Like save(), but writes in the background.

    The object is copied before this returns, so its tensors may change
    immediately. The caller waits only for this copy, and for an earlier
    asynchronous save that is still writing.

    Returns a concurrent.futures.Future: its result() returns what save()
    returns, or raises its error. `progress` is called from another thread, and
    `stats` is filled before the future is done. The copy is not part of
    memory_budget.

    obj, path, format: as for save(); `path` cannot be a file object.
    options: the options of save().

    If nobody asks the future, the next save_async() of the same path or thread
    raises its error, and saves nothing. The process prints the errors that are
    left when it ends, and then its exit code is 1.

    Raises at once if an argument is wrong. Any thread may call this.
    """
    writing = Writing("save_async", options)
    if not is_path(path):
        raise InvalidArgumentError(
            "save_async() needs a path", "kInvalidArgument"
        )
    format = format_of(path, format)

    def begin():
        return prepare(obj, path, format, writing, copy=True)

    # It imports logging, which takes longer than all other imports of this
    # module.
    with importing:
        from . import background

    return background.start(path_of(path), begin, writing.tell)
