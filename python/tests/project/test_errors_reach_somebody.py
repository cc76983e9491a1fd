"""An error reaches somebody: what the package does in the background is never lost.

What a row of a table names is done in a program of its own. Its error is raised by a
call of the program, or printed at its end with an exit code that is not 0.
"""

import ast
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import arena_workers
import haulway
from haulway import ipc
from signed_models import key

ARRAYS = {"w": np.arange(3000.0)}


def run(program, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c",
         "import sys, haulway, numpy\n" + program, *map(str, arguments)],
        capture_output=True, text=True, timeout=120, **options,
    )


# save_async


LOST = "haulway.save_async({'w': numpy.ones(3)}, sys.argv[1])\n"


@pytest.fixture
def nowhere(tmp_path):
    """A path in a folder that is missing, which only the write finds out."""
    return tmp_path / "none" / "x.pt"


def test_the_end_of_the_process_tells_what_nobody_took(nowhere):
    done = run(LOST, nowhere)
    assert done.returncode == 1
    assert done.stderr.startswith("haulway: the background save of ")
    assert "none/x.pt' failed: " in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("code", "ends_with"), [
    ("", 1), ("sys.exit(3)", 3), ("raise ValueError", 1),
    ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
])
def test_an_exit_code_of_the_program_stays(code, ends_with, nowhere):
    assert run(LOST + code, nowhere).returncode == ends_with


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_of_multiprocessing_ends_with_1(method, nowhere, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, sys\nimport haulway, numpy\n"
        "def save(path):\n"
        "    haulway.save_async({'w': numpy.ones(3)}, path)\n"
        "if __name__ == '__main__':\n"
        f"    process = multiprocessing.get_context({method!r}).Process(\n"
        "        target=save, args=(sys.argv[1],))\n"
        "    process.start()\n"
        "    process.join()\n"
        "    print(process.exitcode)\n"
    )
    done = subprocess.run([sys.executable, program, nowhere], capture_output=True,
                          text=True, timeout=120)
    assert done.stdout == "1\n" and "the background save of" in done.stderr
    assert done.returncode == 0


TAKEN = {
    "result": "try:\n    f.result()\nexcept OSError:\n    pass",
    "exception": "assert f.exception()",
    "callback": "f.add_done_callback(lambda f: f.exception())",
    "await": "import asyncio\nasync def main():\n"
             "    try:\n        await asyncio.wrap_future(f)\n"
             "    except OSError:\n        pass\nasyncio.run(main())",
    "the next call": "try:\n    haulway.save_async([numpy.ones(1)], 'x.pt')\n"
                     "except OSError:\n    pass",
}


@pytest.mark.parametrize("how", TAKEN)
def test_what_was_taken_is_told_once(how, nowhere):
    done = run(f"f = {LOST}{TAKEN[how]}", nowhere)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_next_call_of_the_thread_raises(nowhere, tmp_path):
    future = haulway.save_async(ARRAYS, nowhere)
    path = tmp_path / "y.pt"
    with pytest.raises(FileNotFoundError,
                       match=r"none/x.pt', whose future .*y.pt' is not saved"):
        haulway.save_async(ARRAYS, path)
    assert not path.exists()
    with pytest.raises(FileNotFoundError) as caught:
        future.result()
    assert "not saved" not in str(caught.value)
    haulway.save_async(ARRAYS, path).result()


def test_the_next_call_of_the_path_raises_on_any_thread(nowhere, tmp_path):
    raised = []

    def on_a_thread(path):
        def save():
            try:
                haulway.save_async(ARRAYS, path)
            except FileNotFoundError as error:
                raised.append(error)

        thread = threading.Thread(target=save)
        thread.start()
        thread.join()

    haulway.save_async(ARRAYS, nowhere)
    on_a_thread(tmp_path / "y.pt")
    assert not raised
    on_a_thread(nowhere)
    assert len(raised) == 1
    haulway.save_async(ARRAYS, tmp_path / "y.pt").result()


SLOW = ("import time\n"
        "haulway.save_async({'w': numpy.ones(9)}, sys.argv[1],\n"
        "                   progress=lambda *_: time.sleep(1.5))\n")


def test_the_end_of_the_process_says_what_it_waits_for(tmp_path):
    path = tmp_path / "x.pt"
    done = run(SLOW, path)
    assert done.returncode == 0
    assert done.stderr.startswith("haulway: waiting for the background save of '")
    assert haulway.verify(path).ok


def test_the_end_of_the_process_can_be_interrupted(tmp_path):
    begin = ("import os, signal, threading\n"
             "threading.Timer(2.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n")
    done = run(begin + SLOW.replace("1.5", "20"), tmp_path / "x.pt")
    assert done.returncode != 0 and "is not awaited" in done.stderr


def test_a_forked_child_is_told_whose_save_it_is(tmp_path):
    done = run(
        "import os, time\n"
        "f = haulway.save_async({'w': numpy.ones(9)}, sys.argv[1],\n"
        "                       progress=lambda *_: time.sleep(0.5))\n"
        "if not (child := os.fork()):\n"
        "    try:\n"
        "        f.result()\n"
        "    except haulway.UnavailableError as error:\n"
        "        os._exit('runs in process' not in str(error))\n"
        "    os._exit(2)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "f.result()\n", tmp_path / "x.pt",
    )
    assert done.returncode == 0, done.stderr


# progress


class Wrong(Exception):
    pass


def wrong(*_):
    raise Wrong


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "saved.safetensors"
    haulway.save(ARRAYS, path)
    return path


def write(file, new):
    with haulway.writer(new, progress=wrong) as writer:
        writer.add("w", ARRAYS["w"])
        writer.commit()


# Each public call with `progress`, of a saved file and a new path.
WITH_PROGRESS = {
    "load": lambda file, new: haulway.load(file, "numpy", progress=wrong),
    "load_into": lambda file, new: haulway.load_into(
        {"w": np.zeros(3000)}, file, progress=wrong),
    "open": lambda file, new: haulway.open(
        file, "numpy", mmap=False, progress=wrong)["w"],
    "iterate": lambda file, new: list(
        haulway.iterate(file, "numpy", progress=wrong)),
    "shard": lambda file, new: haulway.shard(
        file, 0, 1, framework="numpy", progress=wrong),
    "publish_file": lambda file, new: haulway.publish_file(
        f"wrong-{os.getpid()}", file, framework="numpy", progress=wrong),
    "verify": lambda file, new: haulway.verify(file, progress=wrong),
    "manifest": lambda file, new: haulway.manifest(file, progress=wrong),
    "diff": lambda file, new: haulway.diff(file, file, progress=wrong),
    "tensor_stats": lambda file, new: haulway.tensor_stats(file, progress=wrong),
    "repair": lambda file, new: haulway.repair(file, new, progress=wrong),
    "sign": lambda file, new: haulway.sign(
        file, new, private_key=key("p256.pem"), progress=wrong),
    "save": lambda file, new: haulway.save(ARRAYS, new, progress=wrong),
    "save_async": lambda file, new: haulway.save_async(
        ARRAYS, new, progress=wrong).result(),
    "convert": lambda file, new: haulway.convert(file, new, progress=wrong),
    "writer": write,
    "edit": lambda file, new: haulway.edit(
        file, out=new, set={"a": "b"}, progress=wrong),
    "get": lambda file, new: haulway.get(file, new, progress=wrong),
    "put": lambda file, new: haulway.put(file, new, progress=wrong),
    "bulk": lambda file, new: haulway.bulk("verify", file, progress=wrong),
}


def test_the_table_has_every_call_with_progress():
    stub = pathlib.Path(haulway.__file__).with_suffix(".pyi")
    tree = ast.parse(stub.read_text()).body
    options = {}
    for one in tree:
        if isinstance(one, ast.ClassDef):
            options[one.name] = "progress" in ast.unparse(one) or any(
                options.get(ast.unparse(base)) for base in one.bases)

    def has(call):
        kwarg = call.args.kwarg and ast.unparse(call.args.kwarg.annotation)
        return any(one.arg == "progress" for one in call.args.kwonlyargs) or (
            kwarg and options.get(kwarg.removeprefix("Unpack[").rstrip("]")))

    assert WITH_PROGRESS.keys() == {
        one.name for one in tree if isinstance(one, ast.FunctionDef) and has(one)}


@pytest.mark.parametrize("call", WITH_PROGRESS)
def test_an_error_of_a_progress_function_is_raised(call, saved, tmp_path):
    with pytest.raises(Wrong):
        WITH_PROGRESS[call](saved, tmp_path / "new.safetensors")


# Workers


IN_PROGRAM = f"""
import sys
sys.path[:0] = {sys.path!r}
import test_errors_reach_somebody as here
here.ipc.serve_program(here.{{}}, sys.argv[1])
"""


def of_broadcast(fn):
    with ipc.broadcast_from_subprocess(
        fn, 1, arena=ipc.SharedMemoryArena(1 << 20)
    ) as broadcast:
        yield from broadcast.consumers[0]


WITH_WORKER = {
    "iterate_in_subprocess": ipc.iterate_in_subprocess,
    "iterate_in_subprocesses": lambda fn: ipc.iterate_in_subprocesses([fn, fn]),
    "run_in_subprocess": ipc.run_in_subprocess,
    "iterate_in_program": lambda fn: ipc.iterate_in_program(
        [sys.executable, "-c", IN_PROGRAM.format(fn.__name__)],
        arena=ipc.SharedMemoryArena(1 << 20)),
    "broadcast_from_subprocess": of_broadcast,
}


def fails():
    return arena_workers.fails_after(3)


def dies():
    return arena_workers.killed(3)


def test_the_table_has_every_call_with_a_worker():
    assert WITH_WORKER.keys() == {
        name for name in ipc.__all__ if "_in_" in name or "_from_" in name}


@pytest.mark.parametrize("call", WITH_WORKER)
@pytest.mark.parametrize("end", [fails, dies])
def test_an_error_of_a_worker_is_raised(end, call):
    with pytest.raises((ipc.WorkerError, ipc.WorkerDied)):
        for _ in WITH_WORKER[call](end):
            pass
