"""What the processes of a training leave on disk: the cases of
bench/training_bench.py for compressed directories, rank files and steps of a
run.

    python bench/training_state.py merge FOLDER OUT
    python bench/training_state.py write FOLDER RANKS TENSORS ROWS

The first is the usual merge of rank files, the second writes such files.
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint._extension import ZStandard

import haulway
from haulway.torch.dcp import LoadPlanner, Reader, Writer
from side_by_side import Fact

COLUMNS = 1024


def weights(gib):
    torch.manual_seed(0)
    return {f"w{i}": (torch.randn(int(gib * (1 << 23))) * 0.02).bfloat16()
            for i in range(64)}


def compressed(folder, state):
    """Yields loads and durable saves of weights that zstd compresses."""
    def theirs(target):
        dcp.save(state, no_dist=True, storage_writer=dcp.FileSystemWriter(
            target, _extensions=[ZStandard()]))

    def ours(target):
        dcp.save(state, no_dist=True,
                 storage_writer=Writer(target, compress="zstd"))

    into = {name: torch.empty_like(one) for name, one in state.items()}
    theirs(folder / "read")
    yield "dcp.load, zstd", [
        ("haulway", lambda: dcp.load(
            into, storage_reader=Reader(folder / "read"),
            planner=LoadPlanner(), no_dist=True)),
        ("torch", lambda: dcp.load(
            into, checkpoint_id=folder / "read", no_dist=True)),
    ]
    yield "dcp.save, zstd, durable", [
        ("haulway", lambda: ours(folder / "ours")),
        ("torch", lambda: theirs(folder / "theirs")),
    ]


def write_ranks(folder, world, tensors, rows):
    """Writes rank files of DTensors of `rows` rows, cut along the rows."""
    folder.mkdir()
    subprocess.run([sys.executable, __file__, "write", folder, str(world),
                    str(tensors), str(rows)], check=True)


def write(folder, world, tensors, rows):
    """Writes the files of all ranks, each in a group that only seems to be."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for rank in range(world):
        dist.init_process_group("fake", store=FakeStore(), rank=rank,
                                world_size=world)
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
        torch.save(
            {f"w{i}": DTensor.from_local(torch.randn(rows // world, COLUMNS),
                                         mesh, [Shard(0)])
             for i in range(tensors)},
            f"{folder}/model_world_size_{world}_rank_{rank}.pt")
        dist.destroy_process_group()


def merge(folder, out):
    """Merges rank files as the scripts of many projects do."""
    import torch.distributed.tensor  # noqa: F401

    states = [torch.load(path, weights_only=True) for path in
              sorted(Path(folder).glob("model_world_size_*.pt"))]
    save_file({name: torch.cat([one[name]._local_tensor for one in states])
               for name in states[0]}, out)


def merging(folder, gib):
    """Returns the merge of 4 rank files, both as commands."""
    write_ranks(folder, 4, 64, int(gib * (1 << 30) / 64 / COLUMNS / 4))
    out = folder.parent
    command = Path(sys.executable).with_name("haulway")
    return [
        ("haulway", lambda: subprocess.run(
            [command, "convert", folder, out / "ours.safetensors",
             "--overwrite", "--no-sync"], check=True,
            stdout=subprocess.DEVNULL)),
        ("torch.load, cat, save_file", lambda: subprocess.run(
            [sys.executable, __file__, "merge", folder,
             out / "theirs.safetensors"], check=True)),
    ]


def one_row(folder):
    """Returns what is read of 64 rank files for one row of one tensor."""
    def read_so_far():
        with open("/proc/self/io") as file:
            return int(file.readline().split()[1])

    write_ranks(folder, 64, 4, 640)
    row = COLUMNS * 4
    with haulway.open(folder, mmap=False) as checkpoint:
        part = checkpoint.get_slice("w2")
        before = read_so_far()
        part[77:78]
        read = read_so_far() - before
    # The frame of its record is read too, once, and /proc/self/io itself.
    return Fact("one row of a tensor of 64 rank files, of 4,096 bytes",
                f"{read:,} bytes", "its bytes and a frame",
                row <= read < row + 1024)


class RunStore(http.server.ThreadingHTTPServer):
    """A store with a run of 1,000 checkpoints, of which only the newest could
    be read. `seen` has the requests: True for a page of the listing, or the
    name of a file."""

    COUNT = 1000
    PAGE = 1000  # Keys in an answer, as S3's.

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _StoreAnswers)
        self.seen = []
        sha256 = "0" * 64
        self.manifest = json.dumps({
            "version": 1, "step": self.COUNT, "format": "pt", "save": "save-0",
            "files": {"model.pt": {"bytes": 1 << 30, "sha256": sha256}},
        }).encode()
        self.keys = sorted(
            (f"run/step-{step}/{name}", size) for step in range(1, 1 + self.COUNT)
            for name, size in (("haulway.json", len(self.manifest)),
                               ("save-0/model.pt", 1 << 30)))
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _StoreAnswers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        store, url = self.server, urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if "list-type" not in query:
            store.seen.append(url.path)
            return self._send(store.manifest)
        store.seen.append(True)
        begin = int(query.get("continuation-token", 0))
        end = begin + store.PAGE
        more = "true" if end < len(store.keys) else "false"
        contents = "".join(
            f"<Contents><Key>{key}</Key><Size>{size}</Size></Contents>"
            for key, size in store.keys[begin:end])
        return self._send((
            f"<ListBucketResult><IsTruncated>{more}</IsTruncated>"
            f"<NextContinuationToken>{end}</NextContinuationToken>"
            f"{contents}</ListBucketResult>").encode())

    def _send(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def newest_of_many():
    """Returns what is asked of a store for the newest of 1,000 checkpoints."""
    with RunStore() as store:
        os.environ.update(
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{store.server_port}",
            AWS_ACCESS_KEY_ID="AKID", AWS_SECRET_ACCESS_KEY="s3cret",
            AWS_REGION="us-east-1")
        began = time.perf_counter()
        found = haulway.latest("s3://bkt/run", verified="sizes")
        seconds = time.perf_counter() - began
        pages = store.seen.count(True)
        others = {one for one in store.seen if one is not True}
        store.shutdown()
    return Fact(
        "latest of 1,000 checkpoints in a store",
        f"{pages} pages of the listing, {len(others)} file, {seconds:.2f} s",
        "one listing and the newest manifest",
        found.step == store.COUNT and pages == 2
        and others == {"/bkt/run/step-1000/haulway.json"})


def saving_steps(folder, gib):
    """Compares durable saves of steps of a run with those of files."""
    state = {f"w{i}": torch.randn(int(gib * (1 << 22))) for i in range(64)}
    run = haulway.Checkpoints(folder / "run", keep=2)
    steps = iter(range(1_000_000))
    return [
        ("haulway", lambda: run.save(state, next(steps))),
        ("haulway.save", lambda: haulway.save(state, folder / "plain.pt")),
    ]


def cases(directory, gib):
    for what, contenders in compressed(directory / "zstd", weights(gib / 4)):
        yield (f"{what}, {gib / 4:g} GiB of BF16 in 64", contenders,
               {"torch": 2})
    yield (f"merge 4 rank files of {gib:g} GiB, as a command",
           merging(directory / "ranks", gib),
           {"torch.load, cat, save_file": 10})
    (directory / "steps").mkdir()
    yield (f"save of a step, durable, {gib:g} GiB",
           saving_steps(directory / "steps", gib),
           {"haulway.save": 1 / 1.05})


def facts(directory):
    yield one_row(directory / "many_ranks")
    yield newest_of_many()


if __name__ == "__main__":
    if sys.argv[1] == "merge":
        merge(*sys.argv[2:])
    else:
        write(sys.argv[2], *map(int, sys.argv[3:]))
