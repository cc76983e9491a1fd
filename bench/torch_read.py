"""Reading PyTorch checkpoints: Haulway and its peers in turn, on the same files.

Every case runs each contender once per round, in alternation, after one round
that is not counted, so the files are in the page cache (warm) throughout.
Where memory is what takes the time, each call is made in a process of its own.
Ratios are formed round by round: peer seconds / Haulway seconds.

    scripts/bench torch-read [--rounds N] [--only CASE] [--json FILE]
                             [--plot FILE.svg]
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import gc
import json
import mmap
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

import haulway
import haulway.torch
import safetensors.torch
import torch
from safetensors import safe_open

MIB = 1 << 20


def write_tensors(directory: Path, name: str, count: int, elements: int):
    """Writes `count` float32 tensors as .pt and .safetensors; returns both."""
    pt = directory / f"{name}.pt"
    st = directory / f"{name}.safetensors"
    generator = torch.Generator().manual_seed(1)
    tensors = {
        f"layer.{i}.weight": torch.rand(elements, generator=generator)
        for i in range(count)
    }
    torch.save(tensors, pt)
    safetensors.torch.save_file(tensors, st)
    return pt, st


def in_two_threads(work, pieces):
    halves = [pieces[0::2], pieces[1::2]]
    threads = [
        threading.Thread(target=lambda half=half: [work(p) for p in half])
        for half in halves
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def pread_ceiling(path: Path):
    """Reads the file with two threads into fresh huge pages."""
    size = path.stat().st_size
    memory = mmap.mmap(-1, size + 2 * MIB)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)
    # A huge page needs an address it can start at.
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start = -address % (2 * MIB)
    fd = os.open(path, os.O_RDONLY)
    step = 4 * MIB

    def read(offset):
        length = min(step, size - offset)
        done = 0
        while done < length:
            at = start + offset + done
            done += os.preadv(
                fd, [view[at : start + offset + length]], offset + done
            )

    in_two_threads(read, list(range(0, size, step)))
    os.close(fd)
    return view


class Crc:
    """CRC-32 of memory with two threads, by the library Haulway uses."""

    def __init__(self, path: Path):
        library = ctypes.CDLL("libdeflate.so.0")
        self.crc32 = library.libdeflate_crc32
        self.crc32.restype = ctypes.c_uint32
        self.crc32.argtypes = [
            ctypes.c_uint32,
            ctypes.c_void_p,
            ctypes.c_size_t,
        ]
        self.data = ctypes.create_string_buffer(path.read_bytes())

    def __call__(self):
        base = ctypes.addressof(self.data)
        size = len(self.data)
        step = 4 * MIB
        in_two_threads(
            lambda at: self.crc32(0, base + at, min(step, size - at)),
            list(range(0, size, step)),
        )


def open_haulway(path):
    with haulway.open(path, framework="torch", mmap=True) as checkpoint:
        names = list(checkpoint.keys())
        return checkpoint[names[0]]


def open_torch(path):
    tensors = torch.load(path, mmap=True)
    return next(iter(tensors.values()))


def open_safetensors(path):
    with safe_open(path, framework="pt") as checkpoint:
        names = list(checkpoint.keys())
        return checkpoint.get_tensor(names[0])


def test_zip(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


def verify(path):
    report = haulway.verify(path)
    assert report.ok, report.findings
    return report


def cases(directory: Path, gibibytes: float):
    """Yields (case, [(contender, function), ...], targets); Haulway first."""
    many = {}
    for count in (10_000, 100_000):
        many[count] = write_tensors(directory, f"tiny{count}", count, 16)
        pt, st = many[count]
        yield (
            f"open, list, first tensor: {count:,} x 64 B",
            [
                ("haulway", lambda pt=pt: open_haulway(pt)),
                ("torch mmap", lambda pt=pt: open_torch(pt)),
                ("safetensors", lambda st=st: open_safetensors(st)),
            ],
            {"torch mmap": 50, "safetensors": 1},
        )
    pt, st = many[100_000]
    yield (
        "load 100,000 x 64 B",
        [
            ("haulway", lambda: haulway.torch.load(pt)),
            ("torch", lambda: torch.load(pt)),
        ],
        {"torch": 15},
    )
    pt4, st4 = write_tensors(directory, "small", 10_000, 1024)
    yield (
        "load 10,000 x 4 KiB",
        [
            ("haulway", lambda: haulway.torch.load(pt4)),
            ("torch", lambda: torch.load(pt4)),
            ("safetensors", lambda: safetensors.torch.load_file(st4)),
        ],
        {"torch": 8, "safetensors": 1},
    )
    elements = int(gibibytes * 1024 * MIB / 256 / 4)
    big, _ = write_tensors(directory, "big", 256, elements)
    yield (
        f"load to owned memory, {gibibytes:g} GiB in 256",
        [
            ("haulway", lambda: haulway.torch.load(big)),
            ("torch", lambda: torch.load(big)),
            ("ceiling: pread", lambda: pread_ceiling(big)),
        ],
        {"torch": 4, "ceiling: pread": 0.8},
    )
    yield (
        f"mmap open + first tensor, {gibibytes:g} GiB in 256",
        [
            ("haulway", lambda: open_haulway(big)),
            ("torch mmap", lambda: open_torch(big)),
        ],
        {"torch mmap": 10},
    )
    yield (
        f"verify all CRCs, {gibibytes:g} GiB in 256",
        [
            ("haulway", lambda: verify(big)),
            ("zipfile.testzip", lambda: test_zip(big)),
            ("ceiling: crc32", Crc(big)),
        ],
        {"zipfile.testzip": 5, "ceiling: crc32": 0.6},
    )


def seconds_in_a_child(function):
    """The time one call takes in a fresh process, which has no memory to
    reuse from an earlier one, as when a program loads its model."""
    gc.collect()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        start = time.perf_counter()
        result = function()
        elapsed = time.perf_counter() - start
        os.write(writer, repr(elapsed).encode())
        os._exit(0 if result is not NotImplemented else 1)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError("a contender failed; its error is above")
    return float(text)


def seconds_here(function):
    gc.collect()
    start = time.perf_counter()
    result = function()
    elapsed = time.perf_counter() - start
    del result
    return elapsed


def measure(contenders, rounds, fresh):
    """Seconds by contender, one list entry a round."""
    seconds_of = seconds_in_a_child if fresh else seconds_here
    seconds = {name: [] for name, _ in contenders}
    for round_number in range(rounds + 1):
        for name, function in contenders:
            elapsed = seconds_of(function)
            if round_number > 0:
                seconds[name].append(elapsed)
    return seconds


def spread(values, digits):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f} - {high:.{digits}f}]"


def report(case, seconds, targets):
    """Prints one case; returns its rows."""
    print(f"\n{case}")
    print(f"  {'':<16} {'ms, median [min - max]':>30} "
          f"{'ratio to haulway':>26}  target")
    rows = []
    ours = seconds["haulway"]
    for name, times in seconds.items():
        ratios = [theirs / own for theirs, own in zip(times, ours)]
        ratio = statistics.median(ratios)
        target = targets.get(name)
        verdict = ""
        if target is not None:
            verdict = f"{target:g}x " + (
                "reached" if ratio >= target else "NOT reached"
            )
        print(
            f"  {name:<16} {spread([t * 1e3 for t in times], 1):>30} "
            f"{spread(ratios, 2) if name != 'haulway' else '':>26}  {verdict}"
        )
        rows.append(
            {
                "case": case,
                "contender": name,
                "seconds": times,
                "ratios": ratios,
                "target": target,
            }
        )
    return rows


def plot(rows, path):
    """A bar for each peer: how many times Haulway's time it took."""
    bars = [r for r in rows if r["contender"] != "haulway"]
    height = 26 * len(bars) + 60
    largest = max(statistics.median(r["ratios"]) for r in bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="900" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        '<text x="10" y="20" font-size="15">Time taken relative to Haulway '
        "(1 = the same, more = Haulway is faster)</text>",
    ]
    for i, row in enumerate(bars):
        ratio = statistics.median(row["ratios"])
        y = 40 + 26 * i
        width = max(2, 380 * ratio / largest)
        ceiling = row["contender"].startswith("ceiling")
        colour = "#999" if ceiling else "#2b6cb0"
        lines.append(
            f'<text x="440" y="{y + 13}" text-anchor="end">{row["case"]} - '
            f'{row["contender"]}</text>'
            f'<rect x="450" y="{y}" width="{width:.0f}" height="18" '
            f'fill="{colour}"/>'
            f'<text x="{455 + width:.0f}" y="{y + 13}">{ratio:.1f}x</text>'
        )
    lines.append("</svg>\n")
    path.write_text("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases that hold this text")
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--directory", help="where the files are written")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()

    cpus = len(os.sched_getaffinity(0))
    torch.set_num_threads(cpus)
    print(
        f"{platform.machine()}, {cpus} CPUs, Python "
        f"{platform.python_version()}, torch {torch.__version__}, "
        f"haulway {haulway.__version__}; warm page cache, "
        f"{options.rounds} rounds in alternation after one uncounted"
    )
    rows = []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for case, contenders, targets in cases(Path(directory), options.gib):
            if options.only not in case:
                continue
            fresh = case.startswith("load to owned memory")
            seconds = measure(contenders, options.rounds, fresh)
            rows += report(case, seconds, targets)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.plot:
        plot(rows, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
