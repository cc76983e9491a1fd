"""Loading checkpoints to a GPU: Haulway and its peers in alternation.

Each contender loads in its own process, which has created the device context
before the clock starts, and frees the result of the previous call. First calls
and the best of the later calls are reported separately. A call ends when every
byte is in device tensors that outlive the reader. Cold: the file is not in the
page cache when the call starts.

    scripts/bench gpu [--gib N] [--rounds N] [--only CASE] [--directory DIR]
                      [--json FILE] [--record]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record

DEVICE = "cuda:0"
os.environ.setdefault("RUNAI_STREAMER_LOG_LEVEL", "ERROR")
os.environ.setdefault("FASTSAFETENSORS_NO_LIBTORCH_WARN", "1")


def haulway_load(path):
    import haulway

    return haulway.load(path, device=DEVICE)


def haulway_verified(path):
    import haulway

    return haulway.load(path, device=DEVICE, verify=True)


def haulway_load_file(path):
    from haulway.safetensors.torch import load_file

    return load_file(path, device=DEVICE)


def haulway_safe_open(path):
    from haulway.safetensors import safe_open

    with safe_open(path, "pt", device=DEVICE) as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def haulway_torch_load(path):
    import haulway.torch

    return haulway.torch.load(path, map_location=DEVICE)


def torch_load(path):
    import torch

    return torch.load(path, map_location=DEVICE)


def torch_mmap(path):
    import torch

    return torch.load(path, map_location=DEVICE, mmap=True)


def safetensors_load_file(path):
    from safetensors.torch import load_file

    return load_file(path, device=DEVICE)


def safetensors_safe_open(path):
    from safetensors import safe_open

    with safe_open(path, "pt", device=DEVICE) as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def fastsafetensors_load(path):
    from fastsafetensors import fastsafe_open

    with fastsafe_open(str(path), device=DEVICE, nogds=True) as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}


def runai_load(path):
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(str(path))
        return {name: t.to(DEVICE) for name, t in streamer.get_tensors()}


def instanttensor_load(path):
    from instanttensor import safe_open

    with safe_open([str(path)], framework="pt", device=0) as file:
        return {name: t.clone() for name, t in file.tensors()}


# By the file's extension; Haulway first.
CONTENDERS = {
    ".safetensors": [
        ("haulway", haulway_load),
        ("haulway load_file", haulway_load_file),
        ("haulway safe_open", haulway_safe_open),
        ("safetensors load_file", safetensors_load_file),
        ("safetensors safe_open", safetensors_safe_open),
        ("fastsafetensors", fastsafetensors_load),
        ("Run:ai streamer", runai_load),
        ("InstantTensor", instanttensor_load),
    ],
    ".pt": [
        ("haulway", haulway_load),
        ("haulway verify", haulway_verified),
        ("haulway.torch.load", haulway_torch_load),
        ("torch.load", torch_load),
        ("torch.load mmap", torch_mmap),
    ],
}


def call(name, path, calls):
    """Prints the seconds of each call in this process."""
    import torch

    torch.ones(1, device=DEVICE)
    torch.cuda.synchronize()
    load = dict(CONTENDERS[path.suffix])[name]
    seconds, result = [], None
    for _ in range(calls):
        del result
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = load(path)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    device = {str(tensor.device) for tensor in result.values()}
    assert device == {DEVICE}, device
    print(json.dumps(seconds))


def write(path, shapes):
    """Writes bf16 tensors with random bytes that repeat after 32 MiB."""
    code = (
        "import sys, json, torch, haulway\n"
        "g = torch.Generator().manual_seed(1)\n"
        "tile = torch.randint(0, 15000, (16 << 20,), generator=g,\n"
        "                     dtype=torch.int16)\n"
        "def made(shape):\n"
        "    many = torch.Size(shape).numel()\n"
        "    times = -(-many // tile.numel())\n"
        "    flat = tile.repeat(times)[:many] if times > 1 else tile[:many]\n"
        "    return flat.clone().view(torch.bfloat16).view(shape)\n"
        "shapes = json.load(sys.stdin)\n"
        "haulway.save({f'layer.{i}.weight': made(s)\n"
        "              for i, s in enumerate(shapes)}, sys.argv[1],\n"
        "             durability='none')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True,
                   input=json.dumps(shapes), text=True)


def cases(gib):
    """Yields (name, suffix, shapes of bf16, whether the page cache is cold,
    calls)."""
    rows = int(gib * 256)  # 4 MiB per row.
    blocks = [(1024, 2048 * 16)] * (rows // 16)
    many = [(1024, 2)] * 20_000
    for suffix in CONTENDERS:
        yield f"{gib:g} GiB, {suffix}, warm", suffix, blocks, False, 4
        yield f"{gib:g} GiB, {suffix}, cold", suffix, blocks, True, 1
        yield f"20,000 tensors of 4 KiB, {suffix}, warm", suffix, many, False, 4


def run(name, path, calls, cold):
    with open(path, "rb", buffering=0) as file:
        if cold:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while not cold and file.read(16 << 20):
            pass
    done = subprocess.run(
        [sys.executable, __file__, "--call", name, str(path), str(calls)],
        capture_output=True, text=True,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        print(f"  left out: {name}: {lines[-1][:200]}")
        return None
    return json.loads(done.stdout)


def describe():
    import torch

    free, total = torch.cuda.mem_get_info()
    return (f"{torch.cuda.get_device_name()}, {total >> 30} GiB, "
            f"torch {torch.__version__}, {os.cpu_count()} CPUs")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--directory")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", action="store_true",
                        help="write the figures to bench/results/ and docs/")
    parser.add_argument("--call", nargs=3)
    options = parser.parse_args()
    if options.call:
        name, path, calls = options.call
        return call(name, Path(path), int(calls))
    print(describe())
    rows = []
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        for case, suffix, shapes, cold, calls in cases(options.gib):
            if options.only not in case:
                continue
            path = Path(folder) / f"model{suffix}"
            write(path, shapes)
            size = path.stat().st_size
            print(f"\n{case}: {size / 1e9:.2f} GB", flush=True)
            seconds = {name: [] for name, _ in CONTENDERS[suffix]}
            for _ in range(options.rounds):
                for name in [*seconds]:
                    got = run(name, path, calls, cold)
                    if got is None:
                        del seconds[name]
                        continue
                    seconds[name].append(got)
                    print(f"    {name}: "
                          + ", ".join(f"{s * 1e3:.1f}" for s in got) + " ms",
                          flush=True)
            path.unlink()
            rows += report(case, size, seconds)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    if options.record:
        write_down(rows, options)
    return 0


def write_down(rows, options):
    """Writes the record: the medians of first calls and of the best later ones."""
    record.write("gpu", f"{describe()}; {options.gib:g} GiB, {options.rounds} "
                 "rounds; medians.", [{
                     "columns": ["case", "contender", "first call, ms",
                                 "later call, ms"],
                     "rows": [[row["case"], row["contender"], *milliseconds(row)]
                              for row in rows]}])


def milliseconds(row):
    """Returns the cells of the first call and of the best later one."""
    later = [1e3 * min(calls[1:]) for calls in row["seconds"] if len(calls) > 1]
    yield record.measured([1e3 * calls[0] for calls in row["seconds"]])
    yield record.measured(later) if later else None


def report(case, size, seconds):
    """Prints medians of first calls and of the best later ones."""
    print(f"  {'':<24}{'first, ms':>12}{'ratio':>8}{'GB/s':>8}"
          f"{'later, ms':>12}{'ratio':>8}{'GB/s':>8}")
    rows, ours = [], None
    for name, calls in seconds.items():
        first = statistics.median(c[0] for c in calls)
        later = [min(c[1:]) for c in calls if len(c) > 1]
        later = statistics.median(later) if later else None
        ours = ours or (first, later)
        line = (f"  {name:<24}{first * 1e3:>12.1f}{first / ours[0]:>8.2f}"
                f"{size / first / 1e9:>8.1f}")
        if later:
            line += (f"{later * 1e3:>12.1f}{later / ours[1]:>8.2f}"
                     f"{size / later / 1e9:>8.1f}")
        print(line, flush=True)
        rows.append({"case": case, "contender": name, "seconds": calls})
    return rows


if __name__ == "__main__":
    sys.exit(main())
