"""Checkpoints over networks: Haulway and its peers in turn, all on this
machine.

nginx serves the files to load; "20 ms" means that it waits that long before it
answers each request. Uploads go to a server that discards them. The ceilings
are of curl, which keeps nothing, with several concurrent ranges or parts.

    scripts/bench remote [--rounds N] [--only CASE] [--gib G]
                         [--directory DIR] [--json FILE] [--record]
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import redis
import tensorizer
import torch

import haulway
from remote_servers import MIB, Nginx, redis_server, upload_server
from side_by_side import Measured, main

DELAY = 0.02
_CONNECTIONS = 8
_READERS = (2, 8)
_UPLOADED_PART = 16 * MIB
# Packages that conflict with those of the tests; scripts/bench installs them.
_S3FS = Path(__file__).resolve().parent.parent / "build" / "s3fs"


def tensors_of(total: int, count: int):
    generator = torch.Generator().manual_seed(1)
    return {
        f"layer.{i}.weight": torch.rand(total // count // 4,
                                        generator=generator)
        for i in range(count)
    }


def curl(*words):
    subprocess.run(["curl", "-sSf", "--no-progress-meter", *map(str, words)],
                   check=True, stdout=subprocess.DEVNULL)


def curl_down(url, size, *words):
    """Downloads in parallel to /dev/null."""
    step = -(-size // _CONNECTIONS)
    transfers = []
    for begin in range(0, size, step):
        transfers += ["--next"] if transfers else []
        transfers += [*words, "-sSf", "-o", os.devnull, "-r",
                      f"{begin}-{min(begin + step, size) - 1}", url]
    curl("-Z", "--parallel-immediate", "--parallel-max", _CONNECTIONS,
         *transfers)


def curl_up(url, parts):
    transfers = []
    for number, part in enumerate(parts):
        transfers += ["--next"] if transfers else []
        transfers += ["-sSf", "-H", "Expect:", "-o", os.devnull, "-T", part,
                      f"{url}/{number}"]
    curl("-Z", "--parallel-immediate", "--parallel-max", _CONNECTIONS,
         *transfers)


def tensorizer_load(url, readers):
    with tensorizer.TensorDeserializer(
        url, device="cpu", num_readers=readers
    ) as found:
        return dict(found.items())


def fsspec_load(url, size):
    """Downloads with 64 concurrent ranges; does not make tensors."""
    import fsspec

    files = fsspec.filesystem("http")
    step = -(-size // 64)
    starts = list(range(0, size, step))
    ends = [min(start + step, size) for start in starts]
    return files.cat_ranges([url] * len(starts), starts, ends,
                            on_error="raise")


def first_tensor(url, name):
    with haulway.open(url) as checkpoint:
        return checkpoint[name]


def load_into(path, url):
    """Loads into existing tensors: without the cost of new memory."""
    there = {}

    def load():
        if not there:
            there.update((name, tensor.clone()) for name, tensor
                         in haulway.load(path, "torch").items())
        haulway.load_into(there, url)

    return load


def loads(nginx, name, readers=()):
    """Yields the cases of one file with their targets."""
    url, size = nginx.url(name), (nginx.root / name).stat().st_size
    contenders = [("haulway", lambda: haulway.load(url, "torch"))]
    targets = {}
    for count in readers:
        contenders.append((f"tensorizer, {count} readers",
                           functools.partial(tensorizer_load, url, count)))
        targets[contenders[-1][0]] = 4
    if importlib.util.find_spec("aiohttp"):
        contenders.append(("fsspec cat_ranges",
                           lambda: fsspec_load(url, size)))
        targets["fsspec cat_ranges"] = 2
    contenders.append(("haulway, load_into",
                       load_into(nginx.root / name, url)))
    contenders.append(("ceiling: curl", lambda: curl_down(url, size)))
    targets["ceiling: curl"] = 0.9
    return contenders, targets


def redis_cases(port, tensors, directory):
    path = directory / "redis.tensors"
    haulway.save(tensors, path, durability="none")
    url = f"redis://127.0.0.1:{port}"
    client = redis.Redis(port=port)
    source = tensorizer.TensorDeserializer(str(path), device="cpu",
                                           lazy_load=True)

    def put_ours():
        haulway.put(path, f"{url}/ours", overwrite=True)

    def put_theirs():
        source.to_redis(client, "theirs", force=True)

    size = f"{path.stat().st_size / MIB:.0f} MiB"
    yield f"Redis, write {size}", [
        ("haulway", put_ours), ("tensorizer", put_theirs),
    ], {"tensorizer": 1.5}
    put_ours()
    yield f"Redis, read {size}", [
        ("haulway", lambda: haulway.load(f"{url}/ours", "torch")),
        ("tensorizer", lambda: tensorizer_load(f"{url}/ours", 1)),
    ], {"tensorizer": 1.5}
    client.flushall()


def s3_peer(what, who, name, size):
    """Runs a peer in its own process, with its packages; returns the seconds it
    prints."""
    packages = os.pathsep.join([str(_S3FS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("s3_peer.py"), what, who,
         str(name), str(size)], check=True, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": packages} if who == "s3fs" else None)
    return Measured(done.stdout)


def s3_peers(what, name, size, targets):
    """Yields name and function of each installed peer in `targets`."""
    there = {
        "s3fs": (_S3FS / "s3fs").exists(),
        "runai": importlib.util.find_spec("runai_model_streamer_s3"),
    }
    for peer in targets:
        who = "runai" if peer.startswith("Run:ai") else peer
        if there[who]:
            yield peer, functools.partial(s3_peer, what, who, name, size)


@contextlib.contextmanager
def store(endpoint):
    """Makes s3:// URLs refer to the endpoint within the block."""
    before = dict(os.environ)
    os.environ.update(
        AWS_ACCESS_KEY_ID="A", AWS_SECRET_ACCESS_KEY="S",
        AWS_ENDPOINT_URL_S3=endpoint, AWS_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def s3_load_cases(nginx, name):
    """Uses nginx as a store without authentication."""
    size = (nginx.root / name).stat().st_size
    targets = {"s3fs": 2, "Run:ai streamer": 1}
    with store(nginx.url("").rstrip("/")):
        yield f"{name[1:]}, load from S3", [
            ("haulway", lambda: haulway.load(f"s3://bucket/{name}", "torch")),
            *s3_peers("get", name, size, targets),
            ("ceiling: curl", lambda: curl_down(nginx.url(name), size)),
        ], {**targets, "ceiling: curl": 0.9}


def put_unsigned(path, config):
    os.environ["AWS_CONFIG_FILE"] = str(config)
    try:
        haulway.put(path, "s3://bucket/key")
    finally:
        del os.environ["AWS_CONFIG_FILE"]


def upload_cases(endpoint, path):
    folder = path.parent / "parts"
    folder.mkdir()
    parts = []
    with open(path, "rb") as file:
        while piece := file.read(_UPLOADED_PART):
            parts.append(folder / str(len(parts)))
            parts[-1].write_bytes(piece)
    config = folder / "config"
    config.write_text("[default]\ns3 =\n  payload_signing_enabled = false\n")
    size = f"{path.stat().st_size / (1 << 30):.2g} GiB"
    ceiling = ("ceiling: curl", lambda: curl_up(f"{endpoint}/bucket", parts))
    yield f"S3, put {size}", [
        ("haulway", lambda: haulway.put(path, "s3://bucket/key")), ceiling,
        *s3_peers("put", path, path.stat().st_size, ["s3fs"]),
    ], {"ceiling: curl": 0.8}
    yield f"S3, put {size}, bodies unsigned", [
        ("haulway", lambda: put_unsigned(path, config)), ceiling,
    ], {"ceiling: curl": 0.8}
    program = ("import sys, haulway; haulway.put(*sys.argv[1:]); "
               "print(open('/proc/self/status').read())")
    done = subprocess.run(
        [sys.executable, "-c", program, path, "s3://bucket/key"], check=True,
        capture_output=True, text=True)
    most = int(re.search(r"VmHWM:\s+([0-9]+) kB", done.stdout)[1])
    print(f"  memory of a process that puts it: {most // 1024} MiB")


def cases(directory, options):
    total = int(options.gib * (1 << 30))
    tensors = tensors_of(total, 256)
    with contextlib.ExitStack() as stack:
        nginx = stack.enter_context(Nginx(directory, DELAY).serving())
        for name in ("m.tensors", "m.safetensors", "m.pt"):
            haulway.save(tensors, nginx.root / name, durability="none")
        tensors = None
        size = (nginx.root / "m.safetensors").stat().st_size
        for name, readers in (
            ("m.tensors", _READERS), ("m.safetensors", ()), ("m.pt", ()),
        ):
            contenders, targets = loads(nginx, name, readers)
            yield f"{name[1:]}, load by http", contenders, targets
            late, soon = (
                functools.partial(haulway.load, url, "torch")
                for url in (nginx.late_url(name), nginx.url(name))
            )
            yield f"{name[1:]}, with 20 ms a request", [
                ("haulway", late), ("haulway, without", soon),
            ], {"haulway, without": round(1 / 1.3, 2)}
        tls = nginx.tls_url("m.safetensors")
        yield ".safetensors, load by https", [
            ("haulway",
             lambda: haulway.load(tls, "torch", ca_file=str(nginx.ca))),
            ("ceiling: curl",
             lambda: curl_down(tls, size, "--cacert", nginx.ca)),
        ], {"ceiling: curl": 0.8}
        haulway.save(tensors_of(total, 10_000), nginx.root / "many.pt",
                     durability="none")
        many = nginx.url("many.pt")
        many_size = (nginx.root / "many.pt").stat().st_size
        yield "one tensor of 10,000 in a .pt", [
            ("haulway", lambda: first_tensor(many, "layer.7000.weight")),
            ("download by curl", lambda: curl_down(many, many_size)),
        ], {"download by curl": 50}
        (nginx.root / "many.pt").unlink()
        yield from s3_load_cases(nginx, "m.safetensors")
        endpoint = stack.enter_context(upload_server())
        with store(endpoint):
            yield from upload_cases(endpoint, nginx.root / "m.safetensors")
        port = stack.enter_context(redis_server(directory))
        yield from redis_cases(port, tensors_of(total // 4, 64), directory)


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], cases, name="remote", rounds=3))
