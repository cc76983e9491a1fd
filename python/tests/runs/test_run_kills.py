"""Loops that are killed leave whole checkpoints, and the next one goes on.

tools/crashtest_runs.py kills more of them.
"""

import errno
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import haulway
from killed_run import KilledRun

TESTS = pathlib.Path(__file__).resolve().parent.parent


def test_a_killed_loop_leaves_whole_checkpoints(tmp_path):
    counts = KilledRun(tmp_path / "kills", 7).kill_often(12)
    assert counts["kills"] == 12 and counts["steps"] > 0


@pytest.mark.parametrize("faults", [{}, {"POWER_CUT": "1"}],
                         ids=["kill", "power cut"])
def test_a_kill_at_any_call(faults, tmp_path, preloaded):
    """At each call that changes files: of a new step, of one that is there, and
    of a prune. After a loss of power, what was not synced is lost."""
    done = subprocess.run(
        [sys.executable, TESTS / "run_killed.py", tmp_path],
        env={**os.environ, "LD_PRELOAD": preloaded("kill_at"), **faults},
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for way, results in json.loads(done.stdout).items():
        killed = [one for one in results if one[0]]
        assert len(killed) > (2 if way == "prune" else 10)
        assert results[-1][0] is False
        for _, found, value, left in results:
            old, new = {"new": (2, 3), "again": (2, 2), "prune": (2, 2)}[way]
            assert found in (old, new) and left == []
            assert value in ((2, 3) if way == "new" else (
                (2, 20) if way == "again" else (2,)))
        assert results[-1][1] == (3 if way == "new" else 2)
        assert results[-1][2] == {"new": 3, "again": 20, "prune": 2}[way]


def test_an_error_of_any_call_is_told(tmp_path, preloaded):
    """A full disk, at each call that changes files."""
    done = subprocess.run(
        [sys.executable, TESTS / "run_killed.py", tmp_path, "fails"],
        env={**os.environ, "LD_PRELOAD": preloaded("kill_at"),
             "ERROR_AT": str(errno.ENOSPC)},
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for way, results in json.loads(done.stdout).items():
        told = [one for one in results if one[0]]
        assert len(told) > (0 if way == "prune" else 5), way
        for is_told, found, value, left in results:
            assert left == []
            if is_told and way != "prune":
                # The step may have its name already, when its folder is synced.
                assert (found, value) in ((2, 2), (3, 3), (2, 20))


@pytest.mark.parametrize("way", ["save", "writing"])
def test_files_are_on_the_disk_before_they_have_names(way, tmp_path, watched):
    code, error, calls = watched(
        "import sys, haulway, numpy\n"
        "with haulway.Checkpoints(sys.argv[1], format='safetensors') as run:\n"
        "    if sys.argv[2] == 'save':\n"
        "        run.save({'w': numpy.zeros(1000)}, 3)\n"
        "    else:\n"
        "        with run.writing(3) as folder:\n"
        "            open(folder + '/model.safetensors', 'w').write('x')\n",
        str(tmp_path / "run"), way)
    assert code == 0, error
    calls = [re.sub(r"tmp-[0-9a-f]+", "tmp", call.replace(str(tmp_path), ""))
             for call in calls]
    hidden = "/run/.step-3.tmp"
    manifest = calls.index(f"rename {hidden}/haulway.json")
    folder = calls.index(f"fsync {hidden}", manifest)
    named = calls.index("renameat2 /run/step-3")
    assert manifest < folder < named < calls.index("fsync /run"), calls
    # A file without a name, and then its name; or what the caller wrote.
    data = (calls.index(f"rename {hidden}/model.safetensors") - 1
            if way == "save" else calls.index(f"fsync {hidden}/model.safetensors"))
    assert data < manifest - 1, calls
    for at in (data, manifest - 1):
        assert calls[at].startswith(f"fsync {hidden}/"), calls


LOOPING = """
import sys
sys.path.insert(0, sys.argv[3])
import haulway, numpy
offset = int(sys.argv[2])
with haulway.Checkpoints(sys.argv[1], keep=2, format="safetensors") as run:
    print("ready", flush=True)
    for step in range(1, 61):
        run.save({"w": numpy.full(2000, step, "f4")}, step)
"""


def test_two_processes_save_and_prune_one_run(tmp_path):
    root = tmp_path / "run"
    with haulway.Checkpoints(root, format="safetensors") as run:
        run.save({"w": np.full(2000, 0, "f4")}, 0)
    loops = [subprocess.Popen(
        [sys.executable, "-c", LOOPING, root, str(number),
         os.path.dirname(os.path.dirname(haulway.__file__))],
        stdout=subprocess.PIPE) for number in range(2)]
    for loop in loops:
        loop.stdout.readline()
    newest, looks = 0, 0
    while any(loop.poll() is None for loop in loops):
        found = haulway.latest(root)
        assert found is not None and found.step >= newest, (found, newest)
        newest, looks = found.step, looks + 1
        haulway.prune(root, 2)
    assert [loop.wait() for loop in loops] == [0, 0]
    assert haulway.latest(root).step == 60 and looks > 5
    haulway.prune(root, 1)
    assert os.listdir(root) == ["step-60"]
    assert set(haulway.load(root / "step-60", "numpy")["w"]) == {60}
