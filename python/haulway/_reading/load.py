"""haulway.load: whole objects, or the tensors that globs select."""

from __future__ import annotations

from .._errors import InvalidArgumentError
from .._importing import importing
from .._making.assemble import maker, tensors_by_name
from .._options import READING
from .call import Reading, check_framework, reads
from .select import choose, float_name, matcher, storages_of


@reads(READING)
def load(path, framework=None, *, include=None, exclude=None, device="cpu",
         dtype=None, destination=None, **options):
    """Loads a checkpoint: the object that was saved, with its tensors.

    Returns what torch.load(weights_only=True) would return; tied tensors stay
    tied and views stay views. For TorchScript, whose module only torch.jit.load()
    makes, it returns the tensors as a flat dict by name. With NumPy, tensors
    are arrays, and everything that only torch has (sparse tensors, dtypes) is
    described by PickledObject and GlobalName.

    path: a path, bytes, a binary file object, read from its position, or a
        list of them, which then form one checkpoint: a dict of the tensors of
        all. A path is a file, a folder with one checkpoint in it (opened by
        its index if it has one, otherwise by its only file), or "-" for
        standard input.
    framework: "torch", "numpy" or "jax"; by default torch if it is
        installed. Arrays of JAX are on the CPU, without a copy if they start
        at a multiple of 64 bytes; see docs/hosts.md.
    include, exclude: a glob or "/regex/", or a list of them: load only tensors
        whose names match `include` and not `exclude`, as a flat dict by name;
        see docs/slicing.md.
    device: the device of torch tensors, wherever they were when they were
        saved; for "cuda:0" and other GPUs the bytes pass through pinned memory
        into memory of torch's allocator.
    dtype: cast floating-point tensors to this dtype while they are read; see
        docs/slicing.md.
    destination: "shm" loads into shared memory and returns a Shared, whose
        `handle` lets haulway.attach() map the same tensors in other processes.
    OPTIONS

    Raises Error; nothing in the file is run.
    """
    framework = check_framework(
        framework, *[] if destination is None else [("torch", "numpy")]
    )
    make = maker(framework, device)
    dtype = None if dtype is None else float_name(dtype)
    reading = Reading("load", options)
    reading.usual_scope = (
        "all" if include is None and exclude is None else "read")
    reading.dequantized_dtype = dtype
    if destination is not None:
        with importing:
            from .._sharing.shared import load_shared

        if destination != "shm":
            raise InvalidArgumentError(
                f"destination is {destination!r}: expected 'shm' or None",
                "kInvalidArgument",
            )
        if dtype is not None:
            raise InvalidArgumentError(
                "dtype is not for destination='shm'", "kInvalidArgument"
            )
        if str(device) != "cpu":
            raise InvalidArgumentError(
                f"device is {str(device)!r}: expected 'cpu' with "
                "destination='shm'",
                "kInvalidArgument",
            )
        return load_shared(path, framework, include, exclude, reading)
    # A cast looks for scales in every shard.
    names = matcher(include, exclude) if dtype is None else None
    core = reading.open(path, names=names)
    if include is None and exclude is None:
        core.check_object()
    if dtype is not None:
        with importing:
            from .casting import load_cast

        return load_cast(
            core, framework, dtype, include, exclude, device, reading
        )
    if include is None and exclude is None:
        return make.object(core, reading)
    chosen = choose(core, include, exclude)
    storages = make.storages(core, storages_of(chosen), reading)
    return tensors_by_name(make, storages, chosen)
