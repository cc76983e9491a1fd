"""A program that exits while it holds tensors prints nothing about it."""

import subprocess
import sys

import numpy as np
import pytest

import haulway

HELD = {
    "load": "t = haulway.load(path, 'torch')",
    "load numpy": "t = haulway.load(path, 'numpy')",
    "open": "c = haulway.open(path, 'torch'); t = c['a']; s = c.get_slice('a')",
    "open numpy": "c = haulway.open(path, 'numpy'); t = c['a']",
    "unmapped": "t = haulway.open(path, 'torch', mmap=False)['a']",
    "slice": "t = haulway.open(path, 'torch').get_slice('a')[1:]",
    "cast": "t = haulway.load(path, 'torch', dtype='F16')",
    "shared": "t = haulway.load(path, 'torch', destination='shm')\n"
              "u = haulway.attach(t.handle)",
    "iterate": "i = haulway.iterate(path, 'torch'); t = next(iter(i))",
    "shard": "t = haulway.shard(path, 0, 2, framework='torch')",
    "save": "f = haulway.save_async(haulway.load(path, 'torch'), path + '.copy')",
    "thread": "import threading\n"
              "h = []\n"
              "r = lambda: h.append(haulway.open(path, 'torch')['a'])\n"
              "w = threading.Thread(target=r); w.start(); w.join()",
    "atexit": "import atexit\n"
              "t = haulway.open(path, 'torch')['a']\n"
              "atexit.register(lambda: t.sum())",
    "cycle": "class Q: pass\n"
             "q = Q(); q.c = haulway.open(path, 'torch'); q.t = q.c['a']\n"
             "q.q = q",
}
# References that Python does not free at exit.
KEPT = {
    "builtins": "import builtins\nbuiltins.kept = haulway.open(path, 'torch')",
}


def run(code, path):
    done = subprocess.run(
        [sys.executable, "-c",
         f"import haulway, sys\npath = sys.argv[1]\n{code}", str(path)],
        capture_output=True, text=True, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(params=[".pt", ".safetensors"])
def path(request, tmp_path):
    path = tmp_path / f"x{request.param}"
    haulway.save({"a": np.arange(12, dtype="<f4").reshape(4, 3)}, path)
    return path


@pytest.mark.parametrize("held", HELD, ids=[*HELD])
def test_nothing_is_left(held, path):
    code = ("import haulway._haulway\nhaulway._haulway.warn_of_leaks(True)\n"
            + HELD[held])
    assert run(code, path) == ""


@pytest.mark.parametrize("held", KEPT, ids=[*KEPT])
def test_what_the_program_keeps_is_its_own(held, path):
    assert run(KEPT[held], path) == ""
