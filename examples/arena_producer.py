"""A worker for a C++ program; see arena_consumer.cc.

    ./arena_consumer python3 arena_producer.py
"""

import sys

import numpy

from haulway.ipc import serve_program


class Batches:
    def __iter__(self):
        for i in range(5):
            yield {
                "index": i,
                "name": f"batch {i}",
                "image": numpy.full((64, 64), i, numpy.float32),
                "small": numpy.arange(4, dtype=numpy.float32),
            }


serve_program(Batches, sys.argv[-1])
