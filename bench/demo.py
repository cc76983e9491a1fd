"""The main results in two minutes, Haulway beside its peers.

Every call runs in its own process, which has already imported what it needs. A
load ends with reading one byte of every page. Rounds are repeated until the
time is over; at least one is completed. Figures are medians, with minimum and
maximum beside them. "warm": the file was just read. "cold": the page cache was
emptied before the call.

    scripts/demo [--seconds N] [--mib N] [--plot FILE] [--json FILE]
                 [--directory FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from first_bench import HERE, seconds_of_call, write_files
from load_bench import evict, warm
from side_by_side import MIB, describe

WIDTH = 34
MANY = 50_000


class Case(NamedTuple):
    title: str
    contenders: list  # (label, call), Haulway first. A call returns seconds.
    note: str = ""


def other_call(name, mib, path):
    done = subprocess.run(
        # torch's queue leaves semaphores, about which Python's tracker warns.
        [sys.executable, "-W", "ignore", HERE / "demo_call.py", name, str(mib), path],
        stdout=subprocess.PIPE, check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def write_many(path):
    """Writes a .pt of MANY small tensors in its own process."""
    subprocess.run([
        sys.executable, "-c", "import sys, torch\n"
        "torch.save({f'layers.{i}.weight': torch.zeros(16)\n"
        "            for i in range(int(sys.argv[2]))}, sys.argv[1])",
        path, str(MANY)], check=True)
    return path


def cases(folder, mib):
    files = write_files(folder, mib * MIB)
    many = write_many(folder / "many.pt")

    def loading(before, label, name, suffix):
        def call():
            before([files[suffix]])
            return seconds_of_call(name, files[suffix], mib * MIB)
        return label, call

    def saving(label, name):
        def call():
            (folder / "saved").unlink(missing_ok=True)
            return seconds_of_call(name, folder / "saved", mib * MIB)
        return label, call

    def other(label, name, path=""):
        return label, lambda: other_call(name, mib, path)

    size = f"{mib} MiB"
    yield Case(f"load a .pt of {size}, warm", [
        loading(warm, "haulway.torch.load", "haulway .pt", ".pt"),
        loading(warm, "torch.load, mmap=True", "torch.load mmap", ".pt"),
        loading(warm, "torch.load", "torch.load", ".pt"),
    ], "haulway maps the file where it can keep its contents; torch.load copies")
    yield Case(f"load a .safetensors of {size} into private memory, warm", [
        loading(warm, 'haulway.load, io="pread"', "haulway pread", ".safetensors"),
        loading(warm, "safetensors, read", "safetensors pread", ".safetensors"),
    ], "mapped, both take the same")
    yield Case(f"load a .pt of {size}, cold", [
        loading(evict, "haulway.torch.load", "haulway .pt", ".pt"),
        loading(evict, "torch.load, mmap=True", "torch.load mmap", ".pt"),
        loading(evict, "torch.load", "torch.load", ".pt"),
    ], "the disk is the limit of all")
    yield Case(f"save {size} as .pt, to the page cache", [
        saving("haulway.save", "haulway save .pt"),
        saving("torch.save", "torch.save"),
    ], 'haulway with durability="none", as torch does not wait for the disk')
    yield Case(f"open a .pt of {MANY:,} tensors and list them, warm", [
        other("haulway.open", "list, haulway", many),
        other("torch.load, mmap=True", "list, torch", many),
    ])
    yield Case("an array of 1 MiB from a worker process", [
        other("haulway.ipc, an arena", "items, haulway"),
        other("multiprocessing.Queue", "items, queue"),
    ])
    yield Case("a batch of 1 MiB by a DataLoader with two workers", [
        other("haulway.ipc.DataLoader", "batches, haulway"),
        other("torch.utils.data.DataLoader", "batches, torch"),
    ])
    yield Case(f"a new version of {size} for another process", [
        other("haulway.publish", "version, haulway"),
        other("torch's queue, shared memory", "version, queue"),
        other("torch.save and torch.load, a file", "version, file",
              folder / "version.pt"),
    ])


def measure(found, seconds):
    """Runs rounds over all cases until the time is over; returns seconds by
    case and label."""
    times = [{label: [] for label, _ in case.contenders} for case in found]
    end = time.monotonic() + seconds
    failed, rounds = set(), 0
    while True:
        for case, seen in zip(found, times):
            if rounds and time.monotonic() > end:
                return times, rounds
            for label, call in case.contenders:
                if (case.title, label) not in failed:
                    took = call()
                    if took is None:
                        failed.add((case.title, label))
                    else:
                        seen[label].append(took["load"])
            print(".", end="", file=sys.stderr, flush=True)
        rounds += 1


def shown(seconds):
    for unit, factor in ("s", 1), ("ms", 1e3):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def rows(found, times):
    """Yields a dict for each contender that was measured."""
    for case, seen in zip(found, times):
        ours = next(iter(seen.values()))
        for label, values in seen.items():
            if values:
                middle = statistics.median(values)
                yield {"case": case.title, "note": case.note, "contender": label,
                       "seconds": values, "median": middle,
                       "ratio": middle / statistics.median(ours) if ours else None}


def text(results):
    """Returns bars for a terminal; a case's longest bar has the full width."""
    lines, case = [], None
    for row in results:
        if row["case"] != case:
            case = row["case"]
            longest = max(each["median"] for each in results if each["case"] == case)
            lines += ["", case + (f" ({row['note']})" if row["note"] else "")]
        bar = "#" * max(1, round(WIDTH * row["median"] / longest))
        ratio = "" if row["ratio"] in (1, None) else f"{row['ratio']:.2g}x"
        spread = f"[{shown(min(row['seconds']))} - {shown(max(row['seconds']))}]"
        lines.append(f"  {row['contender']:<34}{shown(row['median']):>8}  "
                     f"{ratio:>6}  {bar:<{WIDTH}}  {spread}")
    return "\n".join(lines)


def plot(results, path, where):
    """Draws a panel for each case, with a bar for each contender."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    titles = list(dict.fromkeys(row["case"] for row in results))
    groups = [[row for row in results if row["case"] == title] for title in titles]
    figure, panels = pyplot.subplots(
        len(groups), figsize=(9, 0.5 * len(results) + 0.6 * len(groups)),
        height_ratios=[len(group) for group in groups], layout="constrained",
    )
    for axes, title, group in zip(panels, titles, groups):
        labels = [row["contender"] for row in group]
        middles = [row["median"] * 1e3 for row in group]
        colours = ["#2b6cb0"] + ["#a0aec0"] * (len(group) - 1)
        axes.barh(labels, middles, color=colours, xerr=[
            [middle - min(row["seconds"]) * 1e3 for middle, row in zip(middles, group)],
            [max(row["seconds"]) * 1e3 - middle for middle, row in zip(middles, group)],
        ], error_kw={"ecolor": "#444444", "lw": 0.8})
        for row in group:
            ratio = "" if row["ratio"] in (1, None) else f"  {row['ratio']:.2g}x"
            axes.annotate(f"{shown(row['median'])}{ratio}",
                          (max(row["seconds"]) * 1e3, row["contender"]),
                          xytext=(4, 0), textcoords="offset points", va="center",
                          fontsize=8)
        axes.set_title(title, fontsize=9, loc="left")
        axes.invert_yaxis()
        axes.margins(x=0.2)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(f"milliseconds, less is better; median, least and most\n{where}",
                     fontsize=8)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=90,
                        help="after which no case is begun again")
    parser.add_argument("--mib", type=int, default=256, help="size of the files")
    parser.add_argument("--plot", type=Path, default=Path("build/demo.svg"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--directory", help="where files are written")
    options = parser.parse_args()
    print(__doc__.split("\n\n    ")[0] + f"\n\n{describe()}", flush=True)
    folder = Path(tempfile.mkdtemp(dir=options.directory))
    try:
        found = list(cases(folder, options.mib))
        times, rounds = measure(found, options.seconds)
    finally:
        shutil.rmtree(folder)
    results = list(rows(found, times))
    print("\n" + text(results))
    for case, seen in zip(found, times):
        for label in (label for label, values in seen.items() if not values):
            print(f"\nleft out, because it failed here: {label}, {case.title}")
    print(f"\n{rounds} whole round{'s' if rounds > 1 else ''}. More, and how it is "
          "measured: docs/performance.md, docs/benchmarks.md")
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    plot(results, options.plot, f"{describe()}; "
         f"{rounds} round{'s' if rounds > 1 else ''}")
    print(f"The plot: {options.plot}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(any(seen.values()) for seen in times) else 1


if __name__ == "__main__":
    sys.exit(main())
