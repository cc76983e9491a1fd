"""Prints, draws and records the results of bench/arena_bench.py, and its
goals."""

from __future__ import annotations

from pathlib import Path

from record import RATIO, measured, write

DOCS = Path(__file__).resolve().parent.parent / "docs"
KINDS = ("bytes", "arrays")
PEERS = ("spdl queue", "spdl ring", "spdl pool")
OURS = ("plain", "ring", "pool", "arena")
BARE = ("bare copy", "on 2 threads")
MIB = 1 << 20


class Table:
    """Rows by case, kind and contender; None if one was not measured."""

    def __init__(self, rows):
        self.rows = {
            (r["case"], r["kind"], r["contender"]): r for r in rows
        }
        self.sizes = {
            r["case"]: r["bytes"] for r in rows if r["kind"] in KINDS
        }

    def value(self, case, kind, contender, what="item_us"):
        row = self.rows.get((case, kind, contender))
        return None if row is None else row.get(what)

    def best_peer(self, case, kind, what="item_us"):
        found = [self.value(case, kind, peer, what) for peer in PEERS]
        found = [value for value in found if value is not None]
        return min(found) if found else None


def goal(name, target, measured, reached):
    return {"goal": name, "target": target, "measured": measured,
            "reached": bool(reached)}


def at_least(table, name, case, kind, factor, contender="arena", peer=None):
    ours = table.value(case, kind, contender)
    theirs = (table.value(case, kind, peer) if peer
              else table.best_peer(case, kind))
    if ours is None or theirs is None:
        return
    copies = [table.value(case, kind, name) for name in BARE]
    bare = ""
    if all(copies):
        bare = "; the bare copy {:.1f}, on 2 threads {:.1f}".format(*copies)
    yield goal(f"{name}, {kind}", f"{factor:g}x {peer or 'the best of SPDL'}",
               f"{theirs / ours:.1f}x ({ours:.1f} us, SPDL {theirs:.1f}{bare})",
               theirs >= factor * ours)


def at_most(name, target, value, limit, unit="us"):
    if value is not None:
        yield goal(name, target, f"{value:.3g} {unit}", value <= limit)


def small_goals(table, kind):
    for case in ("100 B", "5 kB"):
        yield from at_least(table, case, case, kind, 5)
        yield from at_most(f"{case}, {kind}", "5 us",
                           table.value(case, kind, "arena"), 5)
    yield from at_least(table, "64 KiB", "64 KiB", kind, 4)


def large_goals(table, kind):
    yield from at_least(table, "1 MiB zero-copy", "1 MiB", kind, 1.5)
    ours = table.value("1 MiB", kind, "arena")
    copy = table.value("1 MiB", kind, "copy")
    if ours and copy:
        yield from at_most(f"1 MiB zero-copy, {kind}", "1.3x a copy of it",
                           ours / copy, 1.3, f"x ({copy:.1f} us)")
    yield from at_least(table, "16 MiB zero-copy", "16 MiB", kind, 2)
    yield from at_least(table, "1 MiB copied out", "1 MiB", kind, 5, "ring",
                        "spdl ring")


def comparison_goals(table):
    ratios, cpu = [], []
    for case, size in table.sizes.items():
        for kind in KINDS:
            queue = table.value(case, kind, "spdl queue")
            for contender in OURS:
                ours = table.value(case, kind, contender)
                if queue and ours:
                    ratios.append((queue / ours, case, kind, contender))
            ours = table.value(case, kind, "arena", "cpu_us")
            theirs = table.best_peer(case, kind, "cpu_us")
            if ours and theirs:
                per_mib = MIB / size
                cpu.append((theirs / ours, case, kind, ours * per_mib,
                            theirs * per_mib))
    if ratios:
        ratio, case, kind, contender = min(ratios)
        yield goal("any size", "never slower than the plain queue",
                   f"{ratio:.1f}x at the least: {case} of {kind}, {contender}",
                   ratio >= 1)
    if cpu:
        ratio, case, kind, ours, theirs = min(cpu)
        yield goal("CPU per MiB, both processes", "below SPDL's least",
                   f"{ours:.0f} against {theirs:.0f} us where it is closest: "
                   f"{case} of {kind}", ratio > 1)


def evaluate(rows):
    """Returns each goal with its result, as far as it was measured."""
    table = Table(rows)
    goals = []
    for kind in KINDS:
        goals += small_goals(table, kind)
    for kind in KINDS:
        goals += large_goals(table, kind)
    goals += at_most("1 MiB, loans", "10 us",
                     table.value("1 MiB", "loans", "loan"), 10)
    plain = table.value("100,000 ints", "ints", "pickle, here")
    if plain:
        for name, what in (("arena", "from a worker"),
                           ("offload, here", "within a process")):
            ours = table.value("100,000 ints", "ints", name)
            goals += at_most(f"100,000 ints {what}", "1.3x pickling it here",
                             ours / plain, 1.3, f"x ({plain:.0f} us)")
    goals += comparison_goals(table)
    goals += at_most("fixed cost of a pass", "200 us",
                     table.value("a pass of one item", "pass", "arena",
                                 "p50_us"), 200)
    return goals


def show_goals(goals):
    print("\nTo reach")
    for one in goals:
        verdict = "reached" if one["reached"] else "NOT reached"
        print(f"  {one['goal']:<28} {one['target']:<34} {one['measured']:<58} "
              f"{verdict}")


def show(case, rows):
    table = Table(rows)
    first = rows[0]
    best = table.best_peer(first["case"], first["kind"])
    print(f"\n{case}")
    columns = ("item_us", "median_us", "p50_us", "p99_us", "first_us", "cpu_us")
    titles = ("us an item", "median", "p50", "p99", "first", "cpu us")
    print(f"  {'':<14}" + "".join(f"{title:>11}" for title in titles)
          + "  against the best of SPDL")
    for row in rows:
        cells = "".join(
            f"{row[column]:>11.1f}" if column in row else f"{'':>11}"
            for column in columns
        )
        name = row["contender"]
        ratio = ""
        if best and name in (*OURS, "loan"):
            ratio = f"  {best / row['item_us']:.2f}x"
        print(f"  {name:<14}{cells}{ratio}", flush=True)


def plot(rows, path):
    """Draws time and processor time over size for each transport."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = (
        ("bytes", "item_us", "us an item, bytes"),
        ("arrays", "item_us", "us an item, NumPy arrays"),
        ("bytes", "cpu_us", "CPU us an item, both processes, bytes"),
    )
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.6), sharey=True)
    for axis, (kind, what, title) in zip(axes, panels):
        for name in (*PEERS, *OURS, "copy"):
            line = [
                (r["bytes"], r[what]) for r in rows
                if r["kind"] == kind and r["contender"] == name and what in r
            ]
            if line:
                axis.loglog(
                    *zip(*line), label=name, linewidth=1.4, markersize=4,
                    marker=None if name == "copy" else "o",
                    color="black" if name == "copy" else None,
                    linestyle={"s": "--", "c": ":"}.get(name[0], "-"),
                )
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("bytes of an item")
        axis.grid(True, which="major", alpha=0.25)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def tables(rows, goals):
    """Returns the tables of the record: the goals, and the times of each
    item."""
    yield {"columns": ["item", "to reach", "measured", "verdict"],
           "rows": [[one["goal"], one["target"], one["measured"],
                     "reached" if one["reached"] else "**not reached**"]
                    for one in goals]}
    table = Table(rows)
    lines = []
    for case in table.sizes:
        for kind in KINDS:
            ours = table.value(case, kind, "arena")
            best = table.best_peer(case, kind)
            if ours is None or best is None:
                continue
            values = [
                *(table.value(case, kind, peer) for peer in PEERS), ours,
                best / ours, table.value(case, kind, "arena", "p50_us"),
                table.value(case, kind, "arena", "p99_us"),
                table.best_peer(case, kind, "cpu_us"),
                table.value(case, kind, "arena", "cpu_us")]
            lines.append([f"{case} of {kind}", *(
                None if value is None else measured([value]) for value in values)])
    yield {"title": "Microseconds an item; CPU is that of both processes",
           "columns": ["item", "SPDL queue", "SPDL ring", "SPDL pool", "arena",
                       RATIO, "arena p50", "arena p99", "CPU, best of SPDL",
                       "CPU, arena"],
           "rows": lines}


def write_down(where, rows, goals):
    """Writes the record and renews the figure."""
    plot(rows, DOCS / "figures" / "arena.png")
    write("arena", f"{where}.", list(tables(rows, goals)))
