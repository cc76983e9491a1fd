"""Tensorizer files: Haulway and the tensorizer package in turn, same files.

Every case runs each contender once per round, in alternation, after one round
that is not counted, so files that are read are in the page cache (warm). Each
call is made in a process of its own, since fresh memory is much of the time.
Ratios are formed round by round: peer seconds / Haulway seconds.

    scripts/bench tensorizer [--rounds N] [--only CASE] [--megabytes N]
                             [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

MIB = 1 << 20
KEY = bytes(range(32))
TENSORS = 256


def state(megabytes):
    each = megabytes * MIB // TENSORS // 4
    generator = torch.Generator().manual_seed(1)
    return {
        f"layer.{i}.weight": torch.rand(each, generator=generator)
        for i in range(TENSORS)
    }


def package_of(name):
    return importlib.import_module(
        "haulway.tensorizer" if name == "haulway" else "tensorizer"
    )


def write(contender, path, megabytes, encrypted):
    package = package_of(contender)
    tensors = state(megabytes)
    params = package.EncryptionParams(KEY) if encrypted else None
    Path(path).unlink(missing_ok=True)
    start = time.perf_counter()
    serializer = package.TensorSerializer(str(path), encryption=params)
    serializer.write_state_dict(tensors)
    serializer.close()
    return time.perf_counter() - start


def read(contender, path, verify, encrypted, readers):
    package = package_of(contender)
    params = package.DecryptionParams.from_key(KEY) if encrypted else None
    start = time.perf_counter()
    with package.TensorDeserializer(
        str(path), device="cpu", verify_hash=verify, encryption=params,
        num_readers=readers,
    ) as tensors:
        loaded = dict(tensors.items())
    seconds = time.perf_counter() - start
    assert len(loaded) == TENSORS
    return seconds


def listing(contender, path):
    if contender == "haulway":
        import haulway

        start = time.perf_counter()
        with haulway.open(path) as checkpoint:
            count = len(checkpoint.keys())
    else:
        package = package_of(contender)
        start = time.perf_counter()
        with package.TensorDeserializer(
            str(path), device="cpu", lazy_load=True
        ) as tensors:
            count = len(list(tensors.keys()))
    seconds = time.perf_counter() - start
    assert count >= 100_000
    return seconds


def digest(megabytes):
    """SHA-256 of the same bytes on two threads: no hashing writer is faster."""
    import hashlib
    import threading

    tensors = [t.numpy().data for t in state(megabytes).values()]

    def work(part):
        for tensor in part:
            hashlib.sha256(tensor).digest()

    threads = [
        threading.Thread(target=work, args=(tensors[i::2],)) for i in range(2)
    ]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def _child(pipe, function, arguments):
    pipe.send(function(*arguments))


def measured(function, *arguments):
    """Seconds that `function` returns in a process of its own."""
    mine, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=_child, args=(theirs, function, arguments)
    )
    child.start()
    theirs.close()
    try:
        return mine.recv()
    finally:
        child.join()


def cases(directory, megabytes):
    """Name -> {contender: a call that returns seconds}."""
    plain, secret = directory / "plain", directory / "secret"
    many = directory / "many"
    measured(write, "haulway", plain, megabytes, False)
    measured(write, "haulway", secret, megabytes, True)
    measured(write_many, many)

    def each(call):
        return {
            name: lambda name=name: call(name)
            for name in ("haulway", "tensorizer")
        }

    def reads(path, verify, encrypted):
        calls = each(
            lambda name: measured(read, name, path, verify, encrypted, None)
        )
        calls["tensorizer, 2 readers"] = lambda: measured(
            read, "tensorizer", path, verify, encrypted, 2
        )
        return calls

    return {
        "write": {
            **each(lambda name: measured(
                write, name, directory / name, megabytes, False)),
            "sha256 alone, 2 threads": lambda: measured(digest, megabytes),
        },
        "write-encrypted": each(lambda name: measured(
            write, name, directory / name, megabytes, True)),
        "load": reads(plain, False, False),
        "load-verify": reads(plain, True, False),
        "load-encrypted": reads(secret, False, True),
        "list-100000": each(lambda name: measured(listing, name, many)),
    }


def write_many(path):
    """100,000 tensors, which the reference cannot write but reads."""
    import haulway.tensorizer

    one = torch.zeros(1)
    serializer = haulway.tensorizer.TensorSerializer(str(path))
    serializer.write_state_dict(
        {f"model.layers.{i // 10}.block.{i % 10}.weight": one
         for i in range(100_000)}
    )
    serializer.close()
    return 0.0


def run(name, calls, rounds):
    seconds = {contender: [] for contender in calls}
    for number in range(rounds + 1):
        for contender, call in calls.items():
            spent = call()
            if number > 0:
                seconds[contender].append(spent)
    rows = []
    for contender, spent in seconds.items():
        ratios = [p / h for p, h in zip(spent, seconds["haulway"])]
        rows.append({
            "case": name,
            "contender": contender,
            "seconds": statistics.median(spent),
            "best": min(spent),
            "ratio": statistics.median(ratios),
        })
        print(
            f"{name:16} {contender:26} {rows[-1]['seconds']:8.4f} s"
            f"  best {rows[-1]['best']:8.4f} s  ratio {rows[-1]['ratio']:6.2f}",
            flush=True,
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append")
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--directory")
    parser.add_argument("--json")
    options = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, "
        f"{options.megabytes} MiB in {TENSORS} tensors, "
        f"{options.rounds} rounds"
    )
    rows = []
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        for name, calls in cases(Path(folder), options.megabytes).items():
            if not options.only or name in options.only:
                rows += run(name, calls, options.rounds)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
