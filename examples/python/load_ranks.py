"""Tensor parallelism without a framework: each process reads only its rows.

    python load_ranks.py CHECKPOINT WORLD

Starts WORLD processes. Each loads its part of dimension 0 of every tensor and
multiplies with it; the parts together are the product with the whole.
"""

import multiprocessing
import sys

import numpy

import haulway


def work(path, rank, world, results):
    stats = {}
    part = haulway.shard(path, rank, world, framework="numpy", stats=stats)
    sums = {name: tensor.sum(axis=tuple(range(1, tensor.ndim)))
            for name, tensor in part.items()}
    results.put((rank, sums, stats["read_bytes"]))


def main(path, world):
    results = multiprocessing.Queue()
    processes = [multiprocessing.Process(target=work, args=(path, rank, world, results))
                 for rank in range(world)]
    for process in processes:
        process.start()
    parts = sorted((results.get(timeout=60) for _ in processes), key=lambda one: one[0])
    for process in processes:
        process.join(60)
    whole = haulway.load(path, framework="numpy")
    for name, tensor in whole.items():
        got = numpy.concatenate([sums[name] for _, sums, _ in parts])
        assert numpy.allclose(got, tensor.sum(axis=tuple(range(1, tensor.ndim)))), name
    read = [read for _, _, read in parts]
    print(f"{len(whole)} tensors, {world} ranks read {read} bytes")


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main(sys.argv[1], int(sys.argv[2]))
