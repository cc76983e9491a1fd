"""A pipeline: workers read and normalise pictures, the program averages them.

    python data_pipeline.py FOLDER [WORKERS]

Each worker process takes every Nth .npy file of the folder and yields batches.
Arrays arrive in this process as views of shared memory, in the order of the
files.
"""

import functools
import pathlib
import sys

import numpy

from haulway.ipc import SharedMemoryArena, iterate_in_subprocesses

BATCH = 4


def batches(paths):
    """Runs in a worker."""
    for begin in range(0, len(paths), BATCH):
        some = paths[begin:begin + BATCH]
        pictures = [numpy.load(path).astype(numpy.float32) / 255 for path in some]
        yield {"names": some, "pictures": numpy.stack(pictures)}


def main(folder, workers):
    paths = sorted(map(str, pathlib.Path(folder).glob("*.npy")))
    source = iterate_in_subprocesses(
        [functools.partial(batches, paths[i::workers]) for i in range(workers)],
        arena=lambda: SharedMemoryArena(64 << 20),
    )
    total, count = 0.0, 0
    for batch in source:
        # The batch is not copied.
        total = total + batch["pictures"].sum(axis=0)
        count += len(batch["names"])
    mean = total / count
    print(f"{count} pictures of {mean.shape}, mean {mean.mean():.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2)
