"""The processes of bench/training_bench.py: a rank of a group, and a server of
limited bandwidth."""

from __future__ import annotations

import http.server
import json
import re
import sys
import threading
import time
from pathlib import Path


def rank(url, store, number, world):
    """Loads together with the other ranks, and reports the result."""
    import torch.distributed as dist

    import haulway.distributed

    dist.init_process_group(
        "gloo", rank=int(number), world_size=int(world),
        store=dist.FileStore(store, int(world)))
    dist.barrier()
    stats = {}
    haulway.distributed.load(url, stats=stats)
    print(json.dumps(stats), flush=True)
    dist.barrier()
    dist.destroy_process_group()


class Bucket:
    """Limits the bytes per second of all clients together."""

    def __init__(self, rate):
        self._rate, self._lock, self._next = rate, threading.Lock(), 0.0

    def take(self, count):
        with self._lock:
            self._next = max(self._next, time.monotonic()) + count / self._rate
            until = self._next
        time.sleep(max(0, until - time.monotonic()))


def serve(file, rate):
    """Serves ranges of a file on a port that is printed."""
    data, bucket = Path(file).read_bytes(), Bucket(int(rate))

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):  # noqa: N802
            self._answer(b"", 200, len(data))

        def do_GET(self):  # noqa: N802
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)",
                                 self.headers.get("Range", ""))
            if not asked:
                return self._answer(data, 200, len(data))
            first, last = int(asked[1]), min(int(asked[2]), len(data) - 1)
            body = memoryview(data)[first:last + 1]
            self._answer(body, 206, len(body),
                         f"bytes {first}-{last}/{len(data)}")

        def _answer(self, body, status, length, said=None):
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", '"1"')
            if said:
                self.send_header("Content-Range", said)
            self.end_headers()
            for at in range(0, len(body), 256 << 10):
                piece = body[at:at + (256 << 10)]
                bucket.take(len(piece))
                self.wfile.write(piece)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    {"rank": rank, "serve": serve}[sys.argv[1]](*sys.argv[2:])
