"""Loading checkpoints: Haulway and its peers in alternation, cold and warm.

The calls of a contender follow each other in its own process; the first is not
counted. A call ends with all bytes in the process's memory, or touched there.
Cold: the page cache is emptied before each call. The limits of the machine are
measured, too.

    scripts/bench load [--size GIB] [--rounds N] [--only CASE]
                       [--directory DIR] [--json FILE] [--record]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import torch

import haulway
import haulway.tensorizer
import load_ceilings as ceilings
import load_peers
from record import compared, write
from safetensors_read_bench import list_haulway, list_safetensors, write_many
from side_by_side import MIB, Measured, describe, measure, report

DROP = Path("/proc/sys/vm/drop_caches")
SUFFIXES = (".safetensors", ".pt", ".tensors")
FORMATS = {".safetensors": "safetensors", ".pt": "torch"}
# I/O modes in which tensors are views of the file.
MAPPED = ("mmap", "snapshot")


def in_a_child(function):
    """Calls a function in its own process, so that its memory is freed."""
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException as error:
            print(f"cannot prepare: {error!r}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError("files could not be written; see above")


def write_files(directory, name, shapes, suffixes=SUFFIXES):
    """Writes the same random tensors in each format; returns the paths by
    suffix."""
    paths = {suffix: directory / f"{name}{suffix}" for suffix in suffixes}

    def write():
        generator = torch.Generator().manual_seed(1)
        tensors = {
            f"model.layers.{i // 8}.block.{i % 8}.weight": torch.rand(
                shape, generator=generator
            )
            for i, shape in enumerate(shapes)
        }
        for suffix, path in paths.items():
            if suffix in FORMATS:
                haulway.save(tensors, str(path), format=FORMATS[suffix],
                             durability="none")
                continue
            serializer = haulway.tensorizer.TensorSerializer(str(path))
            serializer.write_state_dict(tensors)
            serializer.close()

    in_a_child(write)
    os.sync()
    return paths


def can_drop():
    return os.access(DROP, os.W_OK)


def evict(paths):
    """Empties the page cache, or at least drops these files from it."""
    os.sync()
    if can_drop():
        DROP.write_text("1\n")
        return
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def warm(paths):
    for path in paths:
        with path.open("rb", buffering=0) as file:
            block = bytearray(4 * MIB)
            while file.readinto(block):
                pass


def load_ours(path):
    """Loads with haulway.load, and touches mapped tensors."""
    stats = {}
    tensors = haulway.load(str(path), framework="torch", stats=stats)
    return load_peers.touch(tensors) if stats["io"] in MAPPED else tensors


def large(files, size, state):
    """Returns the contenders for loading whole files of `size` bytes, and
    targets."""
    peers = load_peers.usable_peers(files)
    bind = lambda load, path: lambda: load(path)  # noqa: E731
    contenders = [("haulway", bind(load_ours, files[".safetensors"]))]
    for suffix in (".pt", ".tensors"):
        contenders.append((f"haulway {suffix}", bind(load_ours, files[suffix])))
    contenders.append((
        "haulway mmap",
        lambda: load_peers.touch(
            haulway.load(str(files[".safetensors"]), "torch", io="mmap")
        ),
    ))
    best = 1.4 if state == "cold" else 3
    # If warm, a mapping copies nothing, so it is not comparable with a load
    # into private memory.
    targets = {
        name: best
        for name, _, _ in peers
        if state == "cold" or not name.endswith("mmap")
    }
    contenders += [(name, bind(load, files[suffix])) for name, suffix, load in peers]
    file = files[".safetensors"]
    if state == "cold":
        name = "ceiling: O_DIRECT, fresh"
        contenders.append((name, bind(ceilings.direct_fresh, file)))
        if ceilings.has_fio():
            name = "ceiling: fio"
            contenders.append((name, bind(ceilings.fio, file)))
        targets[name] = 0.9
    else:
        contenders += [
            ("ceiling: pread, fresh", bind(ceilings.pread_fresh, file)),
            ("ceiling: memcpy, fresh", lambda: ceilings.copy(size, True)),
            ("ceiling: memcpy, warm", lambda: ceilings.copy(size, False)),
        ]
        targets["ceiling: pread, fresh"] = 0.85
    return contenders, targets


def small(files):
    """Returns the contenders for loading very many small tensors."""
    wanted = {"torch.load", "safetensors mmap", "safetensors pread",
              "Run:ai streamer"}
    peers = [
        (name, lambda load=load, path=files[suffix]: load(path))
        for name, suffix, load, _ in load_peers.PEERS
        if name in wanted
    ]
    ours = lambda: load_ours(files[".safetensors"])  # noqa: E731
    ours_pt = lambda: load_ours(files[".pt"])  # noqa: E731
    return (
        [("haulway", ours), ("haulway .pt", ours_pt), *peers],
        {name: 5 for name, _ in peers},
    )


def slices(path):
    """Returns the contenders for an eighth of one tensor's rows."""
    with haulway.open(str(path), framework="torch") as checkpoint:
        (name,) = checkpoint.keys()
        rows = checkpoint.info(name).shape[0] // 8

    def ours():
        with haulway.open(str(path), framework="torch") as checkpoint:
            # Never a view of the file, so it need not be touched.
            return checkpoint.get_slice(name)[:rows]

    def whole():
        return load_ours(path)[name][:rows].clone()

    return [
        ("haulway", ours),
        ("load, then slice", whole),
        ("safetensors get_slice", lambda: load_peers.slice_safetensors(
            path, name, rows)),
    ], {"load, then slice": 6}


def slice_bytes(path):
    """Returns the bytes that the slice reads in excess of those it needs, or
    None."""
    with haulway.open(str(path), framework="torch") as checkpoint:
        (name,) = checkpoint.keys()
        rows = checkpoint.info(name).shape[0] // 8
        checkpoint.get_slice(name)[:rows]
        stats = checkpoint.stats()
        if not isinstance(stats, dict) or "read_bytes" not in stats:
            return None
        return stats["read_bytes"] - stats["tensor_bytes"]


def attaching(path):
    """Returns the contenders for mapping a checkpoint that another process has
    loaded."""
    held = haulway.load(str(path), framework="torch", destination="shm")
    handle = held.handle

    def attach():
        tensors = haulway.attach(handle, framework="torch")
        return [tensor.view(-1)[0].item() for tensor in tensors.values()]

    return held, [
        ("haulway", attach),
        ("limit: 20 ms", lambda: Measured(0.020)),
    ], {"limit: 20 ms": 1}


def cases(directory: Path, options):
    """Yields (case, contenders, targets, before a call, bytes)."""
    size = int(options.size * 1024) * MIB
    title = f"{options.size:g} GiB"
    wants = lambda case: options.only in case  # noqa: E731
    if any(map(wants, (f"cold load, {title}", f"warm load, {title}", "attach"))):
        files = write_files(directory, "large", [(size // 256 // 4,)] * 256)
        for state in ("cold", "warm"):
            if not wants(f"{state} load, {title}"):
                continue
            contenders, targets = large(files, size, state)
            before = None
            if state == "cold":
                before = lambda: evict(files.values())  # noqa: E731
            else:
                warm(files.values())
            yield f"{state} load, {title}", contenders, targets, before, size
        for suffix in (".pt", ".tensors"):
            files[suffix].unlink()
        if wants("attach") and hasattr(haulway, "attach"):
            held, contenders, targets = attaching(files[".safetensors"])
            yield f"attach to {title}", contenders, targets, None, None
            del held, contenders
        files[".safetensors"].unlink()

    count = int(100_000 * min(1, options.size))
    if wants(f"{count:,} x 4 KiB"):
        files = write_files(directory, "small", [(1024,)] * count,
                            (".safetensors", ".pt"))
        warm(files.values())
        yield f"{count:,} x 4 KiB", *small(files), None, count * 4096

    for count in (10_000, 100_000):
        if wants(f"open, list {count:,}"):
            path = write_many(directory / f"{count}.safetensors", count, 16)
            yield f"open, list {count:,}", [
                ("haulway", lambda path=path: list_haulway(path)),
                ("safe_open", lambda path=path: list_safetensors(path)),
                ("safe_open pread",
                 lambda path=path: list_safetensors(path, "pread")),
            ], {"safe_open": 8, "safe_open pread": 8}, None, None

    if wants("1/8 of rows"):
        rows = 8192
        file = write_files(directory, "one", [(rows, size // rows // 4)],
                           (".safetensors",))[".safetensors"]
        for state in ("warm", "cold"):
            if state == "warm":
                warm([file])
            contenders, targets = slices(file)
            before = (lambda: evict([file])) if state == "cold" else None
            yield f"{state}, 1/8 of rows of {title}", contenders, targets, \
                before, None
        over = slice_bytes(file)
        if over is not None:
            print(f"  read beyond the slice: {over} bytes "
                  f"({'reached' if over <= MIB else 'NOT reached'}: 1 MiB)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=float, default=4, help="GiB, of large files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name holds it")
    parser.add_argument("--directory", help="where files are written")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", action="store_true",
                        help="write the figures to bench/results/ and docs/")
    options = parser.parse_args()
    how = "drop_caches" if can_drop() else "posix_fadvise, as drop_caches is refused"
    print(f"{__doc__.splitlines()[0]}\n{describe()}; {options.rounds} rounds in "
          f"alternation, first calls not counted; cold by {how}")
    rows = []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for case, contenders, targets, before, size in cases(
            Path(directory), options
        ):
            seconds = measure(contenders, options.rounds, True, before)
            rows += report(case, seconds, targets, size)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.record:
        count = f"{options.rounds} round{'s' if options.rounds > 1 else ''}"
        write("load", f"{describe()}; cold by {how}; {count} of three calls; "
              "medians.", [compared(rows)])
    return 0


if __name__ == "__main__":
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    sys.exit(main())
