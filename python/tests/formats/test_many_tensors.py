"""What every verb takes for each tensor of a file that has very many."""

import json
import struct
import subprocess
import sys

import pytest

COUNT = 50_000
NAME = "model.layers.{:07}.weight"

# Most bytes of memory for each tensor, beside the size of the file, of a verb
# that does no more than open the file, and of others.
OPENED = {"safetensors": 450, "tensors": 520, "pt": 1200}
VERBS = {
    "info": (["info", "{}"], 0),
    "ls": (["ls", "{}"], 250),
    "ls as JSON": (["ls", "{}", "--json"], 150),
    "verify": (["verify", "{}"], 260),
    "manifest": (["manifest", "{}"], 220),
    "diff": (["diff", "{}", "{}"], 1650),
    "cat": (["cat", "{}", NAME.format(7)], 50),
    "plan": (["plan", "{}"], 820),
    "load": (["load", "{}"], 50),
    "edit": (["edit", "{}", "--drop", NAME.format(7), "-o", "{out}.{suffix}"], 1500),
    "convert to pt": (["convert", "{}", "{out}.pt"], 1050),
    "convert to safetensors": (["convert", "{}", "{out}.safetensors"], 850),
    "convert to tensors": (["convert", "{}", "{out}.tensors"], 1500),
    "convert to npz": (["convert", "{}", "{out}.npz"], 880),
}

# A child's peak memory starts at its parent's, so it gets a small parent.
PARENT = """
import os, sys
pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, used = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss << 10, file=sys.stderr)
"""


def peak(command, *arguments):
    done = subprocess.run(
        [sys.executable, "-S", "-c", PARENT, command, *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    *said, last = done.stderr.splitlines()
    code, used = map(int, last.split())
    assert code == 0, said
    return used


def write(path, count):
    header = {"__metadata__": {"format": "pt"}}
    for i in range(count):
        header[NAME.format(i)] = {
            "dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8 * count))


@pytest.fixture(scope="module")
def files(command, tmp_path_factory):
    """Returns a file of few tensors and one of many, by suffix."""
    folder = tmp_path_factory.mktemp("many")
    made = {}
    for name, count in ("few", 10), ("many", COUNT):
        first = folder / f"{name}.safetensors"
        write(first, count)
        for suffix in OPENED:
            path = first.with_suffix(f".{suffix}")
            if path != first:
                peak(command, "convert", first, path)
            made.setdefault(suffix, []).append(path)
    return made


@pytest.mark.parametrize("suffix", OPENED)
def test_memory_of_a_tensor(suffix, files, command, tmp_path):
    few, many = files[suffix]
    too_much = {}
    for verb, (words, more) in VERBS.items():
        used = [
            peak(command, *(
                word.format(path, out=tmp_path / f"{path.stem} {verb}",
                            suffix=suffix)
                if "{" in word else word for word in words))
            for path in (few, many)]
        each = (used[1] - used[0] - many.stat().st_size) / COUNT
        if each > OPENED[suffix] + more:
            too_much[verb] = f"{each:.0f} > {OPENED[suffix] + more}"
    assert not too_much, too_much
