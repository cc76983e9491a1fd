"""Kills saves into a run, and prunes of one, at every call that changes files.

Run with kill_at.c preloaded: python run_killed.py FOLDER [fails]. Prints for
each way a list of (killed, step of the newest good checkpoint, its content,
names that the next save left), one for each call. With "fails", the calls fail,
and the first value says whether that was told.
"""

import ctypes
import json
import os
import pathlib
import shutil
import sys

import numpy as np

import haulway

TOLD, UNTOLD = 7, 8  # Exit codes of a call that failed.
FOLDER = pathlib.Path(sys.argv[1])
LIBRARY = ctypes.CDLL(None)


def save(root, step, value, keep=0):
    with haulway.Checkpoints(root, keep=keep, format="safetensors") as run:
        run.save({"w": np.full(3000, value, "f4")}, step)


WAYS = {
    "new": lambda root: save(root, 3, 3),
    "again": lambda root: save(root, 2, 20),
    "prune": lambda root: haulway.prune(root, 1),
}


def once(way, call):
    target = FOLDER / "target"
    shutil.copytree(FOLDER / "old", target)
    child = os.fork()
    if child == 0:
        LIBRARY.kill_at(ctypes.c_long(call))
        try:
            refused = getattr(WAYS[way](target), "refused", [])
        except haulway.Error:
            refused = ["all"]
        is_made = LIBRARY.calls_left() < 0
        LIBRARY.kill_at(ctypes.c_long(-1))
        os._exit(TOLD if refused else UNTOLD if is_made else 0)
    _, status = os.waitpid(child, 0)
    found = haulway.latest(target)
    for one in haulway.Checkpoints(target, keep=0).list():
        assert one.good, (way, call, one)
    [value] = set(haulway.load(found.path, "numpy")["w"].tolist())
    save(target, 9, 9, keep=1)
    left = sorted(set(os.listdir(target)) - {"step-9"})
    shutil.rmtree(target)
    is_over = status == 0
    if sys.argv[2:] == ["fails"]:
        return os.WEXITSTATUS(status) == TOLD, found.step, value, left, is_over
    return os.WIFSIGNALED(status), found.step, value, left, is_over


def main():
    for step in (1, 2):
        save(FOLDER / "old", step, step)
    results = {}
    for way in WAYS:
        results[way] = []
        is_over = False
        while not is_over:
            *result, is_over = once(way, len(results[way]))
            results[way].append(result)
    print(json.dumps(results))


main()
