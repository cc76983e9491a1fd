"""Writes sets of files in Python, each in a process that is forked from one that
has imported what it needs: that takes milliseconds and not seconds.

`python set_writers.py SOCKET`, with kill_at.c preloaded, forks a process for each
request: (way, arguments, the variables of kill_at.c); see start().
"""

import contextlib
import ctypes
import functools
import gc
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parent
MOST = 1 << 40  # More calls than anyone makes.


class Process:
    """A process that the server forked, as a subprocess.Popen."""

    def __init__(self, told):
        self._told = os.fdopen(told)
        self.pid = int(self._told.readline())
        self.returncode = None

    def poll(self, timeout=0):
        if self.returncode is None and select.select(
                [self._told], [], [], timeout)[0]:
            self.returncode = int(self._told.readline())
            self._told.close()
        return self.returncode

    def wait(self, timeout):
        if self.poll(timeout) is None:
            os.kill(self.pid, signal.SIGKILL)
            raise TimeoutError(f"a writer has not ended after {timeout} s")
        return self.returncode

    def send_signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)


@functools.cache
def _server(library):
    """Starts the server; it ends when this process does. Returns its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "LD_PRELOAD": str(library),
                   "OMP_NUM_THREADS": "1"}
    with theirs:
        subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return ours


def start(library, way, arguments, environment):
    """Starts a process that writes a set.

    library: kill_at.c, as built for the first call.
    way: the name of a function below.
    """
    reading, writing = os.pipe()
    request = json.dumps((way, [str(one) for one in arguments], environment))
    socket.send_fds(_server(library), [request.encode()], [writing])
    os.close(writing)
    return Process(reading)


def serve(requests):
    ways = _ways()
    library = ctypes.CDLL(None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, files, _, _ = socket.recv_fds(requests, 1 << 16, 1)
        if not request:
            break
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            writer = os.fork()
            if writer == 0:
                os.close(files[0])
                _write(library, ways, *json.loads(request))
            os.write(files[0], b"%d\n" % writer)
            code = os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1])
            os.write(files[0], b"%d\n" % code)
            os._exit(0)
        os.close(files[0])


def _write(library, ways, way, arguments, environment):
    code = 1
    try:
        library.kill_with(int(environment.get("KILL_WITH", signal.SIGKILL)))
        library.fail_with(int(environment.get("ERROR_AT", 0)))
        most = int(environment.get("KILL_AT", -1))
        library.kill_at(ctypes.c_long(most))
        ways[way](*arguments)
        left = library.calls_left()
        library.kill_at(ctypes.c_long(-1))
        if told := environment.get("CALLS_TO"):
            pathlib.Path(told).write_text(str(most - left))
        code = 0
    except Exception:
        pass  # Its traceback holds what is to be removed.
    finally:
        gc.collect()
        os._exit(code)


def _ways():
    """Returns the functions that write model `number` into a folder."""
    import numpy
    import torch
    import torch.distributed.checkpoint as dcp

    import haulway
    import haulway.delta
    import haulway.torch.dcp
    from sets_of_files import BASE, ITEMS, SHARD, TENSORS, source

    def arrays(number):
        return {f"layer.{i}": numpy.full(ITEMS, float(number), "f4")
                for i in range(TENSORS)}

    def tensors(number):
        return {name: torch.from_numpy(array)
                for name, array in arrays(number).items()}

    def writer(out, number, name):
        with haulway.writer(f"{out}/{name}", shard=SHARD) as file:
            for key, array in arrays(number).items():
                file.add(key, array)
            file.commit()

    def save_dcp(out, number, kind, distributed="False"):
        more = {} if kind == "Writer" else {
            "fqn_to_index_mapping": {
                f"layer.{i}": 1 + i // 2 for i in range(TENSORS)},
            "save_distributed": distributed == "True"}
        dcp.save(tensors(number), no_dist=True,
                 storage_writer=getattr(haulway.torch.dcp, kind)(out, **more))

    def checkpoints(out, number, form):
        with haulway.Checkpoints(out, keep=0, format=form) as run:
            run.save(tensors(number), 1)

    def publish(out, number, full_every):
        with haulway.delta.publisher(
            out, source(pathlib.Path(out).parent, BASE), shard=SHARD,
            full_every=int(full_every),
        ) as publisher:
            publisher.publish(arrays(number))

    def segments(out, number):
        haulway.save(arrays(number), f"{out}/model.tensors", layout="segments",
                     data_file=f"model-{os.getpid()}.data")

    return {one.__name__: one for one in (
        writer, save_dcp, checkpoints, publish, segments)}


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
