"""First calls: each contender in a new process, some seconds after the last.

A new process is started for each round. It waits until the machine has been
idle for --idle seconds, imports what it needs, runs torch's first operation if
it uses torch, and makes the call. The times are of that first call, of the
process from exec to the last byte used, and of a second call in the same
process. Cold: the page cache is emptied before the wait. During the wait a
virtual machine may return free memory to its host (free page reporting); the
time to get it back is part of the measurement.

    scripts/bench first [--size GIB ...] [--idle SECONDS ...]
                        [--state warm|cold ...] [--only CASE]
                        [--contender NAME ...] [--rounds N]
                        [--directory DIR] [--command PATH] [--json FILE]
                        [--record]

The default takes about four minutes. `--size 0.0625 1 4 --idle 0 3 30 --state
warm cold` runs everything and takes hours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import record
from first_report import Target, tables, verdicts, write_down
from load_bench import evict, warm
from side_by_side import MIB, describe

HERE = Path(__file__).resolve().parent
COMMAND = HERE.parent / "build" / "release" / "cli" / "haulway"

# Contender, and the extension of its file.
LOADS = {
    "haulway": ".safetensors",
    "haulway .pt": ".pt",
    "haulway .tensors": ".tensors",
    "haulway numpy": ".safetensors",
    "haulway pread": ".safetensors",
    "haulway .pt pread": ".pt",
    "haulway .tensors pread": ".tensors",
    "safetensors mmap": ".safetensors",
    "torch.load mmap": ".pt",
    "torch.load": ".pt",
    "safetensors pread": ".safetensors",
    "tensorizer": ".tensors",
    "tensorizer, 4 readers": ".tensors",
    "fastsafetensors": ".safetensors",
    "Run:ai streamer": ".safetensors",
}
CEILINGS = {
    "warm": ["ceiling: pread, huge pages", "ceiling: pread, 4 KiB pages"],
    "cold": ["ceiling: O_DIRECT, huge pages", "ceiling: O_DIRECT, 4 KiB pages"],
}
MAPPED = ["haulway", "haulway .pt"]
OWNED = ["haulway pread", "haulway .pt pread", "haulway .tensors pread"]
MAPPING_PEERS = ["safetensors mmap", "torch.load mmap"]
OWNING_PEERS = ["torch.load", "safetensors pread", "tensorizer",
                "tensorizer, 4 readers", "fastsafetensors", "Run:ai streamer"]
TARGETS = {
    "warm": [
        Target("safetensors mmap", MAPPED, ["safetensors mmap"], 1 / 1.2),
        Target("torch.load", MAPPED, ["torch.load"], 20),
        Target("the best that owns its memory", OWNED, OWNING_PEERS, 1),
        Target("a pread into the kinder pages", OWNED, CEILINGS["warm"], 0.9),
    ],
    "cold": [
        Target("the best peer",
               ["haulway", "haulway .pt", "haulway .tensors"],
               MAPPING_PEERS + OWNING_PEERS, 1.2),
        Target("a direct read into the kinder pages",
               ["haulway", "haulway .pt", "haulway .tensors"],
               CEILINGS["cold"], 0.9),
    ],
}


class Contender(NamedTuple):
    """call: returns seconds by kind, or None on failure. file: the file it
    reads, if any."""

    name: str
    call: Callable
    file: Path | None = None


def seconds_of_call(name, path, size):
    """Returns the seconds of one contender in its own process, by kind; None on
    failure."""
    # Installed packages have bytecode files; allow the source tree to have
    # them, too.
    environment = os.environ.copy()
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    run = subprocess.run(
        [sys.executable, str(HERE / "first_call.py"), name, str(path),
         repr(time.perf_counter()), str(size // MIB)],
        stdout=subprocess.PIPE, check=False, env=environment,
    )
    if run.returncode != 0:
        return None
    return json.loads(run.stdout.splitlines()[-1])


def seconds_of_command(words):
    start = time.perf_counter()
    run = subprocess.run(words, stdout=subprocess.DEVNULL, check=False)
    seconds = time.perf_counter() - start
    return {"load": seconds} if run.returncode == 0 else None


def measure(contenders, rounds, idle, before):
    """Returns lists of seconds by contender and kind; failing contenders are
    left out.

    before: called with the contender's file before each wait.
    """
    seconds = {}
    failed = set()
    for number in range(rounds):
        # Each round begins with another contender: the state in which a process
        # leaves the machine's memory affects the next one.
        first = number * len(contenders) // rounds
        for name, call, file in contenders[first:] + contenders[:first]:
            if name in failed:
                continue
            if before is not None:
                before(file)
            time.sleep(idle)
            times = call()
            if times is None:
                print(f"  left out: {name}: it failed, as shown above")
                failed.add(name)
                seconds.pop(name, None)
                continue
            for kind, value in times.items():
                seconds.setdefault(name, {}).setdefault(kind, []).append(value)
    return seconds


def write_files(directory, size):
    """Writes the same tensors in each format; returns the files by suffix. Runs
    in its own process, so that its memory is freed."""
    paths = {suffix: directory / f"first{suffix}"
             for suffix in (".safetensors", ".pt", ".tensors")}
    paths["encrypted"] = directory / "encrypted.tensors"
    subprocess.run(
        [sys.executable, "-c", "import sys, first_bench\n"
         "first_bench.write_here(sys.argv[1], int(sys.argv[2]))",
         str(directory), str(size)],
        cwd=HERE, check=True,
    )
    return paths


def write_here(directory, size):
    import haulway
    import haulway.tensorizer
    from first_call import COUNT, KEY
    from load_bench import write_files as write_plain
    shapes = [(size // COUNT // 4,)] * COUNT
    plain = write_plain(Path(directory), "first", shapes)
    tensors = haulway.load(str(plain[".safetensors"]), "torch")
    serializer = haulway.tensorizer.TensorSerializer(
        str(Path(directory) / "encrypted.tensors"),
        encryption=haulway.tensorizer.EncryptionParams(KEY),
    )
    serializer.write_state_dict(tensors)
    serializer.close()


def write_many(directory, count):
    """Writes a safetensors file of `count` tensors."""
    path = directory / "many.safetensors"
    subprocess.run(
        [sys.executable, "-c", "import sys, pathlib\n"
         "from safetensors_read_bench import write_many\n"
         "write_many(pathlib.Path(sys.argv[1]), int(sys.argv[2]), 16)",
         str(path), str(count)],
        cwd=HERE, check=True,
    )
    return path


def call(name, path, size):
    return Contender(name, lambda: seconds_of_call(name, path, size), path)


def command(name, *words):
    file = words[-1] if isinstance(words[-1], Path) else None
    return Contender(name, lambda: seconds_of_command(words), file)


def limit(name, seconds):
    return Contender(name, lambda: {"load": seconds})


def loads(files, size, state):
    """Returns the contenders for loading files, by suffix, of `size` bytes."""
    contenders = [call(name, files[suffix], size)
                  for name, suffix in LOADS.items()]
    contenders += [call(name, files[".safetensors"], size)
                   for name in CEILINGS[state]]
    return contenders


def commands(haulway, files, size):
    suffixes = (".safetensors", ".pt", ".tensors")
    contenders = [command(f"haulway load {suffix}", haulway, "load",
                          files[suffix]) for suffix in suffixes]
    contenders += [
        command("haulway verify .pt", haulway, "verify", files[".pt"]),
        command("cat", "cat", files[".safetensors"]),
        limit("limit: 2 GB/s", size / 2e9),
    ]
    ours = [ours.name for ours in contenders[:3]]
    return contenders, [Target("2 GB/s", ours, ["limit: 2 GB/s"], 1)]


def saves(path, size):
    names = ["haulway save", "haulway save .pt", "haulway save_async",
             "torch.save", "safetensors save"]
    return [call(name, path, size) for name in names], [
        Target("torch.save", names[:2], ["torch.save"], 2),
        Target("safetensors", names[:2], ["safetensors save"], 1),
    ]


def starts(haulway, directory):
    many = write_many(directory, 10_000)
    return [
        command("haulway ls of 10,000", haulway, "ls", many),
        command("haulway --version", haulway, "--version"),
        command("python -c pass", sys.executable, "-c", "pass"),
        command("python -c 'import haulway'", sys.executable, "-c",
                "import haulway"),
        limit("limit: 30 ms", 0.030),
    ], [Target("30 ms", ["haulway ls of 10,000"], ["limit: 30 ms"], 1)]


def cases_of_size(directory, options, size, title):
    """Yields (case, idle seconds, contenders, before, targets)."""
    files = write_files(directory, size)

    # Before each call: a machine may drop files from its cache that were not
    # read for some seconds.
    def fill(file):
        warm([file] if file else [])

    def empty(file):
        evict(files.values())

    for state in options.state:
        for idle in options.idle:
            yield (f"load {title}, {state}, idle {idle:g} s", idle,
                   loads(files, size, state),
                   empty if state == "cold" else fill, TARGETS[state])
    idle = options.idle[-1]
    for kind, file in (("verified", ".tensors"), ("encrypted", "encrypted")):
        ours = f"haulway {kind}"
        theirs = [f"tensorizer {kind}", f"tensorizer {kind}, 4 readers"]
        yield (f"{kind} {title}, warm, idle {idle:g} s", idle,
               [call(name, files[file], size) for name in (ours, *theirs)],
               fill, [Target("tensorizer", [ours], theirs, 2)])
    contenders, targets = commands(options.command, files, size)
    yield (f"command {title}, warm, idle {idle:g} s", idle, contenders, fill,
           targets)
    for path in files.values():
        path.unlink()
    saved = directory / "saved"
    contenders, targets = saves(saved, size)
    yield (f"save {title}, idle {idle:g} s", idle, contenders,
           lambda file: file.unlink(missing_ok=True), targets)
    saved.unlink(missing_ok=True)


def cases(directory, options):
    for gib in options.size:
        title = f"{gib:g} GiB" if gib >= 1 else f"{gib * 1024:g} MiB"
        kinds = ("load", "verified", "encrypted", "command", "save")
        states = [f"{state}idle {idle:g} s" for idle in options.idle
                  for state in ("", *(f"{s}, " for s in options.state))]
        if any(options.only in f"{kind} {title}, {state}"
               for kind in kinds for state in states):
            yield from cases_of_size(directory, options,
                                     int(gib * 1024) * MIB, title)
    idle = options.idle[-1]
    case = f"start, idle {idle:g} s"
    if options.only in case:
        contenders, targets = starts(options.command, directory)
        yield case, idle, contenders, None, targets


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=float, nargs="+", default=[1],
                        help="GiB, of the files")
    parser.add_argument("--idle", type=float, nargs="+", default=[3],
                        help="seconds before each call")
    parser.add_argument("--state", nargs="+", choices=["warm", "cold"],
                        default=["warm"], help="of the page cache")
    parser.add_argument("--contender", nargs="+", default=[],
                        help="only these; default: all")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name holds it")
    parser.add_argument("--directory", help="where files are written")
    parser.add_argument("--command", type=Path, default=COMMAND,
                        help="the haulway command")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", action="store_true",
                        help="write the figures to bench/results/ and docs/")
    options = parser.parse_args()
    where = (f"{describe()}; {options.rounds} round"
             f"{'s' if options.rounds > 1 else ''}, each call in a process of "
             "its own; medians, [least - most].")
    print(f"{__doc__.splitlines()[0]}\n{where}\n", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for case, idle, contenders, before, targets in cases(
            Path(directory), options
        ):
            if options.only not in case:
                continue
            if options.contender:
                contenders = [contender for contender in contenders
                              if contender.name in options.contender]
            seconds = measure(contenders, options.rounds, idle, before)
            if not seconds:
                continue
            rows.append({"case": case, "seconds": seconds,
                         "verdicts": verdicts(targets, seconds)})
            print("\n".join(record.markdown(tables(rows[-1]))), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.record:
        write_down(where, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
