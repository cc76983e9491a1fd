"""Kills saves over a DCP checkpoint at every call that changes files.

Run with kill_at.c preloaded: python dcp_killed.py FOLDER. Prints a JSON list of
(killed, state that torch's own reader finds, whether the next save left only
its own files) for each call.
"""

import ctypes
import json
import os
import pathlib
import re
import shutil
import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp

from haulway.torch.dcp import Writer

warnings.simplefilter("ignore")
FOLDER = pathlib.Path(sys.argv[1])
LIBRARY = ctypes.CDLL(None)


def state(number):
    return {"w": torch.full((50, 7), float(number)), "n": number,
            "v": torch.full((3,), number), "gone" if number == 1 else "new": 0}


def save(number, folder):
    dcp.save(state(number), storage_writer=Writer(folder, thread_count=2),
             no_dist=True)


def found(folder):
    """Returns the number of the state in a checkpoint, which must be
    complete."""
    for number in (1, 2):
        into = {key: value * 0 for key, value in state(number).items()}
        try:
            dcp.load(into, checkpoint_id=folder, no_dist=True)
        except BaseException:
            continue
        if repr(into) == repr(state(number)):
            return number
    return 0


def main():
    torch.set_num_threads(1)
    old, results = FOLDER / "old", []
    dcp.save(state(1), checkpoint_id=old, no_dist=True)
    for call in range(1000):
        target = FOLDER / "target"
        shutil.copytree(old, target)
        child = os.fork()
        if child == 0:
            LIBRARY.kill_at(ctypes.c_long(call))
            save(2, target)
            LIBRARY.kill_at(ctypes.c_long(-1))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status)
        number = found(target)
        save(2, target)
        files = sorted(os.listdir(target))
        tidy = len(files) == 3 and all(
            re.fullmatch(r"\.metadata|__0_[01]-[0-9a-f]{12}\.distcp", file)
            for file in files)
        results.append((killed, number, tidy))
        shutil.rmtree(target)
        if not killed:
            break
    print(json.dumps(results))


main()
