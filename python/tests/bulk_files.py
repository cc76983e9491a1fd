"""Files for the tests of haulway.bulk, and faulty workers."""

import os

import numpy

import haulway

# Imported by every Python process that a test with faults starts. A worker dies
# on killer.pt, dies the first time on once.pt, and hangs on waits.pt.
FAULTS = """
import os, signal, sys
real = os.stat
def stat(path, *rest, **named):
    last = os.path.basename(path) if isinstance(path, str) else ""
    if "haulway._bulk.run" in sys.modules:  # It hands out the work.
        return real(path, *rest, **named)
    if last == "killer.pt":
        os.kill(os.getpid(), signal.SIGKILL)
    if last == "once.pt":
        try:
            os.close(os.open(path + ".killed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    if last == "waits.pt":
        signal.pause()
    return real(path, *rest, **named)
os.stat = stat
"""


def make_files(folder, count=3, suffix=".pt"):
    """Makes small checkpoints; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for i in range(count):
        path = folder / f"model-{i:03}{suffix}"
        haulway.save({"weight": numpy.full(4, i, numpy.float32)}, path)
        paths.append(str(path))
    return paths


def damage(path):
    """Flips a bit in the tensor of the second file from make_files()."""
    data = bytearray(open(path, "rb").read())
    at = data.index(b"\x00\x00\x80?" * 4)  # Four float32 ones.
    data[at] ^= 1
    with open(path, "wb") as file:
        file.write(data)


def add_faults(folder, monkeypatch):
    """Adds FAULTS to workers started from now on."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(FAULTS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    )
