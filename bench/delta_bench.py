"""Versions of weights: Haulway and what trainers and servers use.

A model of BF16 tensors of 32 MiB, and a version in which 2 % of the elements
changed by their lowest bit. "slime's encoder" takes the xor in NumPy, compresses
it with zstandard at level 1, sums the new bytes with XXH3, and writes
safetensors. "SGLang's receiver" decompresses 2 MiB at a time, combines them with
the mapped file, and sums them. Both are written after descriptions of these
programs, with a thread for each processor. Files are in the page cache, nothing
is synced, and the target of a receiver is copied anew before each call. Haulway
keeps no memory from one call to the next.

    scripts/bench delta [--rounds N] [--only CASE] [--gib N] [--json FILE]
                        [--record]
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy
import safetensors.torch
import torch
import xxhash
import zstandard

import haulway
import haulway.delta
from haulway import _haulway
from side_by_side import MIB, Fact, Measured, main

INDEX = "model.safetensors.index.json"
CHUNK = 2 * MIB
NAME = "model-00000-of-00001.safetensors"
NO_SYNC = {"durability": "none"}


def bytes_of(tensor):
    return tensor.reshape(-1).view(torch.uint8).numpy()


def models(gib):
    """Returns the model before and after a step."""
    rng = numpy.random.default_rng(0)
    count = max(int(gib * 1024) // 32, 1)
    before, after = {}, {}
    for i in range(count):
        old = rng.integers(0, 1 << 16, 16 * MIB, dtype=numpy.uint16)
        new = old ^ (rng.random(old.size) < 0.02).astype(numpy.uint16)
        for state, array in ((before, old), (after, new)):
            state[f"layer.{i}.weight"] = torch.from_numpy(
                array.view(numpy.int16)).view(torch.bfloat16).reshape(-1, 4096)
    return before, after


def save_index(folder, metadata, names, file):
    (folder / INDEX).write_text(json.dumps(
        {"metadata": metadata, "weight_map": dict.fromkeys(names, file)}))


def encode(before, after, folder, pool):
    """Writes a version as slime does."""
    def one(name):
        new = bytes_of(after[name])
        mask = bytes_of(before[name]) ^ new
        frame = zstandard.ZstdCompressor(level=1).compress(mask)
        return name, frame, xxhash.xxh3_128(new).hexdigest()

    made = list(pool.map(one, after))
    folder.mkdir(parents=True)
    safetensors.torch.save_file(
        {name: torch.from_numpy(numpy.frombuffer(frame, numpy.uint8).copy())
         for name, frame, _ in made},
        folder / NAME, {name: digest for name, _, digest in made})
    save_index(folder, {
        "version": "000001", "base_version": "000000",
        "delta_encoding": "xor", "compression_format": "zstd",
        "checksum_format": "xxh3-128"}, after, NAME)


def header(path):
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(size)), 8 + size


def receive(target, version, pool):
    """Applies a version as SGLang's receiver does."""
    places, start = header(target / "model.safetensors")
    memory = numpy.memmap(target / "model.safetensors", numpy.uint8, "r+")
    facts, first = header(version / NAME)
    frames = numpy.memmap(version / NAME, numpy.uint8, "r")

    def one(name):
        begin, end = facts[name]["data_offsets"]
        at, last = (start + place for place in places[name]["data_offsets"])
        digest = xxhash.xxh3_128()
        stream = zstandard.ZstdDecompressor().stream_reader(
            memoryview(frames)[first + begin:first + end])
        while at < last:
            mask = numpy.frombuffer(stream.read(min(CHUNK, last - at)),
                                    numpy.uint8)
            view = memory[at:at + mask.size]
            numpy.bitwise_xor(view, mask, out=view)
            digest.update(view)
            at += mask.size
        assert digest.hexdigest() == facts["__metadata__"][name]

    list(pool.map(one, [name for name in facts if name != "__metadata__"]))


class Files:
    """The files of a run below a folder."""

    def __init__(self, folder, gib):
        self.folder = folder
        self.before, self.after = models(gib)
        for name, state in (("base", self.before), ("patched", self.after)):
            (folder / name).mkdir()
            haulway.save(state, folder / name / "model.safetensors", **NO_SYNC)
        self.pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
        self.ours = self.write("ours")
        self.theirs = self.encode("theirs")

    def new(self, name):
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return self.folder / name / "weight_v000001"

    def write(self, name):
        folder = self.new(name)
        haulway.delta.write(
            self.folder / "base", self.folder / "patched", folder, version=1,
            base_version=0, **NO_SYNC)
        return folder

    def encode(self, name):
        folder = self.new(name)
        encode(self.before, self.after, folder, self.pool)
        return folder

    def target(self):
        """Copies the base, and returns the copy."""
        target = self.folder / "target"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.folder / "base", target)
        return target


def cases(directory: Path, options):
    """Yields (case, [(contender, function), ...], targets); Haulway first."""
    files = Files(directory, options.gib)
    size = f"{options.gib:g} GiB"

    def timed(apply, version):
        def run():
            target = files.target()
            start = time.perf_counter()
            apply(target, version)
            return Measured(time.perf_counter() - start)
        return run

    def ours(target, version):
        haulway.delta.apply(target, version.parent, start=0, **NO_SYNC)

    def theirs(target, version):
        receive(target, version, files.pool)

    def load_ours():
        haulway.load(files.ours, base=files.folder / "base", io="pread")

    def load_full():
        haulway.load(files.folder / "patched", io="pread")

    def pull_and_load():
        target = files.target()
        start = time.perf_counter()
        receive(target, files.theirs, files.pool)
        haulway.load(target, io="pread")
        return Measured(time.perf_counter() - start)

    yield (f"write a version of {size}",
           [("haulway", lambda: files.write("written")),
            ("slime's encoder", lambda: files.encode("encoded"))],
           {"slime's encoder": 3})
    yield (f"apply a version of {size}",
           [("haulway", timed(ours, files.ours)),
            ("SGLang's receiver", timed(theirs, files.ours)),
            ("SGLang's receiver, slime's frames", timed(theirs, files.theirs))],
           {"SGLang's receiver": 1.2, "SGLang's receiver, slime's frames": 2})
    yield (f"apply a version of {size} that slime's encoder wrote",
           [("haulway", timed(ours, files.theirs)),
            ("SGLang's receiver", timed(theirs, files.theirs))],
           {"SGLang's receiver": 1.2})
    yield (f"load a version of {size} into private memory",
           [("haulway", load_ours),
            ("load a full checkpoint", load_full),
            ("SGLang's receiver, then a load", pull_and_load)],
           {"load a full checkpoint": 1 / 1.3,
            "SGLang's receiver, then a load": 1})


def facts(directory: Path, options):
    """Yields how small versions are."""
    tensors = sum(path.stat().st_size
                  for path in directory.glob("base/*.safetensors"))
    for name, wanted in (("ours", 60), ("theirs", 40)):
        made = directory / name / "weight_v000001" / NAME
        ratio = tensors / made.stat().st_size
        who = "haulway" if name == "ours" else "slime's encoder"
        yield Fact(f"size of a version that {who} wrote", f"{ratio:.1f}x smaller",
                   f"{wanted}x", ratio >= wanted)


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], cases, name="delta", facts=facts,
                  before=_haulway.clear_memory_pool))
