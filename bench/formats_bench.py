"""Operations on existing files: Haulway and its peers in alternation.

Opening and loading safetensors through the package's names, converting with
proof, comparing; then the bytes that an edit writes and the kernel copies, and
the cost of a map of many tensors. Files are in the page cache, since they were
just written. The calls of a contender follow each other in its own process; the
first is not counted. The output of the previous call is removed outside the
measured time. Nothing waits for the disk.

    scripts/bench formats [--rounds N] [--only CASE] [--gib N] [--json FILE]
                          [--directory DIR] [--record]

A full run takes about ten minutes and 7 GB of disk.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import safetensors
import safetensors.torch
import torch

import haulway
from safetensors_dropin_bench import loading, opening
from safetensors_read_bench import write_large, write_many
from side_by_side import MIB, Fact, in_two_threads, main, seconds_here

COMMAND = Path(sys.executable).with_name("haulway")
STEP = 4 * MIB

written = []  # Files that the next call writes again.


def clear():
    for path in written:
        path.unlink(missing_ok=True)


def read_all(paths):
    """Reads every byte once, with two threads, into memory that is reused."""
    buffers = threading.local()

    def read(piece):
        fd, offset = piece
        if not hasattr(buffers, "memory"):
            buffers.memory = bytearray(STEP)
        os.preadv(fd, [buffers.memory], offset)

    files = [os.open(path, os.O_RDONLY) for path in paths]
    in_two_threads(read, [
        (fd, offset) for fd in files
        for offset in range(0, os.fstat(fd).st_size, STEP)
    ])
    for fd in files:
        os.close(fd)


def cases(directory: Path, options):
    """Yields (case, [(contender, function), ...], targets); Haulway first."""
    yield from opening(directory)
    yield from loading(directory, options)

    size = f"{options.gib:g} GiB"
    large = directory / "large.safetensors"  # Written by loading().
    model, out = directory / "model.pt", directory / "out.safetensors"
    torch.save(safetensors.torch.load_file(large), model)
    written.append(out)

    def convert(proof):
        haulway.convert(model, out, proof=proof, durability="none")

    def load_and_save():
        safetensors.torch.save_file(torch.load(model), out)

    yield (
        f".pt to .safetensors with proof, {size}",
        [
            ("haulway", lambda: convert(True)),
            ("haulway, no proof", lambda: convert(False)),
            ("torch.load + save_file", load_and_save),
        ],
        {"torch.load + save_file": 5},
    )
    clear()
    copy = directory / "copy.safetensors"
    shutil.copyfile(large, copy)
    yield (
        f"diff of two files, {size} each",
        [
            ("haulway", lambda: haulway.diff(large, copy)),
            ("parallel read of both", lambda: read_all([large, copy])),
        ],
        {"parallel read of both": 0.8},
    )
    copy.unlink()


# A child's peak memory starts at its parent's, so it gets a small parent.
PARENT = """
import os, sys
pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, used = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss, file=sys.stderr)
"""


def command(*words):
    """Returns (the JSON that the command printed, its peak memory in MiB)."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", PARENT, COMMAND, *words, "--json"],
        capture_output=True, text=True, check=True,
    )
    code, kib = map(int, done.stderr.split())
    assert code == 0, done.stdout
    return json.loads(done.stdout), kib / 1024


def sparse(path, gibibytes):
    """Writes another writer's file, of which only the header takes space."""
    size = int(gibibytes * 1024 * MIB)
    header = json.dumps({
        "__metadata__": {"format": "pt", "step": "1200"},
        "weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
    }, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    return path


def edits(directory, options):
    path = sparse(directory / "edited.safetensors", 4 * options.gib)
    size = f"{4 * options.gib:g} GiB"
    for what, value in (("a value of the same length", "1201"),
                        ("a longer one, for which there is no room", 40 * "a"),
                        ("a longer one again", 80 * "a")):
        told = haulway.edit(path, set={"step": value}, durability="none")
        copied = told["copied_bytes"]
        own = told["written_bytes"] - copied
        yield Fact(f"edit of {size}: {what}",
                   f"{own / MIB:.3f} MiB written, {copied / MIB:.0f} MiB copied "
                   "by the kernel", "under 1 MiB written", own + copied < MIB)
    path.unlink()


def facts(directory, options):
    size = f"{options.gib:g} GiB"
    large, model = directory / "large.safetensors", directory / "model.pt"
    if not model.exists():  # Only other cases were run.
        write_large(large, options.gib)
        torch.save(safetensors.torch.load_file(large), model)
    out = directory / "out.safetensors"
    _, peak = command("convert", model, out, "--proof", directory / "proof.json",
                      "--no-sync", "--no-progress")
    yield Fact(f".pt to .safetensors with proof, {size}: peak memory",
               f"{peak:.0f} MiB", "under 300 MiB", peak < 300)
    model.unlink()
    out.unlink()

    out = directory / "out.gguf"
    told, _ = command("convert", large, out, "--no-sync", "--no-progress")
    share = told["copied_bytes"] / told["tensor_bytes"]
    yield Fact(f".safetensors to .gguf, {size}: copied by the kernel",
               f"{100 * share:.1f} % of the tensors' bytes",
               "all but ends of pieces, over 95 %", share > 0.95)
    out.unlink()
    large.unlink()

    yield from edits(directory, options)

    many = write_many(directory / "many.safetensors", 100_000, 1)
    page = directory / "many.html"
    times = [
        seconds_here(lambda: subprocess.run(
            [COMMAND, "map", many, "-o", page], check=True,
            stdout=subprocess.DEVNULL), None)
        for _ in range(options.rounds)
    ]
    bytes_of_page = page.stat().st_size
    yield Fact("map of 100,000 tensors",
               f"{numpy.median(times):.2f} s [{min(times):.2f} - {max(times):.2f}], "
               f"{bytes_of_page / 1e6:.1f} MB", "within 2 s, under 10 MB",
               max(times) < 2 and bytes_of_page < 10_000_000)


if __name__ == "__main__":
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    sys.exit(
        main(
            "Files read, changed and compared, warm page cache, safetensors "
            f"{safetensors.__version__}, torch {torch.__version__}",
            cases, fresh=lambda case: True, before=clear, name="formats",
            facts=facts,
        )
    )
