"""A fork while another thread imports what its first call needs."""

import ast
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import haulway

# Runs `call` on a thread for the first time. Whenever the thread begins to import a
# module, the process forks, and the child makes the same call.
PROGRAM = """
import importlib.abc, os, signal, sys, threading, time
sys.path[:0] = {path!r}
import haulway
{before}
file, new = sys.argv[1:]


def call():
    {call}


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is caller and name.count(".") < 3:
            if not forking.is_set():
                forking.set()
                time.sleep(0.03)
        return None


def work():
    try:
        call()
    except BaseException as error:
        wrong.append(error)
    over.set()
    forking.set()


wrong, children = [], []
forking, over = threading.Event(), threading.Event()
caller = threading.Thread(target=work)
sys.meta_path.insert(0, Finder())
caller.start()
while not over.is_set():
    forking.wait()
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            call()
        except BaseException as error:
            sys.stderr.write(repr(error))
            os._exit(1)
        os._exit(0)
    children.append(child)
    forking.clear()
caller.join()
ends = [os.waitpid(child, 0)[1] for child in children]
assert not wrong, wrong
assert not any(ends), ends
print(len(ends))
"""

FIRST_CALLS = {
    "all names": "[getattr(haulway, name) for name in haulway.__all__]",
    "load numpy": "haulway.load(file, 'numpy')",
    "load torch": "haulway.load(file)",
    "load cast": "haulway.load(file, dtype='bf16')",
    "load_into": "haulway.load_into({{'w': numpy.ones(3)}}, file)",
    "open": "haulway.open(file)['w']",
    "iterate": "list(haulway.iterate(file, 'numpy'))",
    "publish_file": "haulway.publish_file(f'fork-{{os.getpid()}}', file)",
    "save": "haulway.save({{'w': numpy.ones(3)}},"
            " new + str(os.getpid()))",
    "save_async": "haulway.save_async({{'w': numpy.ones(3)}},"
                  " new + str(os.getpid())).result()",
    "verify": "haulway.verify(file)",
    "scan": "haulway.scan(file)",
    "diff": "haulway.diff(file, file)",
    "safetensors": "haulway.safetensors.torch.load_file(file)",
    "torch": "haulway.torch.load",
    # Not iterated: torch holds a lock while it draws the loader's seed, and a child
    # that is forked in that moment waits for it for ever.
    "DataLoader": "haulway.ipc.DataLoader([1, 2])",
    "wrong argument": "try: haulway.load(file, lenint=True)\n"
                      "    except TypeError: pass",
}


@pytest.mark.parametrize("call", FIRST_CALLS)
def test_a_child_makes_its_first_call(call, tmp_path):
    file = tmp_path / "x.safetensors"
    haulway.save({"w": np.ones(3)}, file)
    code = FIRST_CALLS[call].format()
    before = "import numpy" if "numpy." in code else ""
    program = PROGRAM.format(path=sys.path, before=before, call=code)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program,
         file, tmp_path / "new.pt"],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr


HANDLED = """
import importlib.abc, signal, sys
import haulway


def handler(number, frame):
    busy.append(True)
    try:
        haulway.load(sys.argv[1], sys.argv[2])
    except Exception as error:
        told.append(str(error))
    else:
        told.append("")
    busy.pop()


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if not busy:
            signal.raise_signal(signal.SIGUSR1)
        return None


told, busy = [], []
signal.signal(signal.SIGUSR1, handler)
sys.meta_path.insert(0, Finder())
haulway.load(sys.argv[1], sys.argv[2])
del sys.meta_path[0]
signal.raise_signal(signal.SIGUSR1)
assert told.pop() == ""
assert told and all("the signal handler handler() has" in one for one in told), told
"""


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_signal_handler_in_the_first_call_is_told_why(framework, tmp_path):
    file = tmp_path / "x.safetensors"
    haulway.save({"w": np.ones(3)}, file)
    subprocess.run([sys.executable, "-c", HANDLED, file, framework], check=True,
                   timeout=300)


def test_every_import_in_a_function_holds_the_lock():
    def unlocked(node, is_in_function=False):
        for child in ast.iter_child_nodes(node):
            if (isinstance(child, ast.With)
                    and ast.unparse(child.items[0]) == "importing"):
                continue
            if is_in_function and isinstance(child, (ast.Import, ast.ImportFrom)):
                yield child.lineno
            yield from unlocked(child, is_in_function or isinstance(
                child, (ast.FunctionDef, ast.AsyncFunctionDef)))

    folder = pathlib.Path(haulway.__file__).parent
    found = {
        str(path.relative_to(folder)): [*unlocked(ast.parse(path.read_text()))]
        for path in folder.rglob("*.py") if path.name != "_importing.py"
    }
    assert not {path: lines for path, lines in found.items() if lines}
