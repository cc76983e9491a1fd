"""One contender's first call in its own process.

    python bench/first_call.py NAME PATH STARTED [MIB]

Imports what the contender needs, calls it, and calls it again. Prints a JSON
object of seconds: `load`, of the first call; `process`, from STARTED, the
time.perf_counter() of its parent just before it started this process (the clock
is system-wide), to the last byte used; `second`, of the second call, after the
result of the first was freed; `import`, of the imports. A load ends with
reading one byte of every page. A save writes tensors of MIB to PATH.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from pathlib import Path

import load_ceilings
import load_peers

KEY = bytes(range(32))
COUNT = 256


def haulway_load(framework="torch", **options):
    if framework == "torch":
        import torch  # noqa: F401  (What needs it anyway has imported it.)

    import haulway

    touch = load_peers.touch if framework == "torch" else touch_arrays
    load = haulway.load
    return lambda path: touch(load(path, framework, **options))


def touch_arrays(arrays):
    for array in arrays.values():
        array.reshape(-1).view("uint8")[::4096].sum()
    return arrays


def haulway_torch_load():
    import torch  # noqa: F401

    import haulway.torch

    load = haulway.torch.load
    return lambda path: load_peers.touch(load(path))


def tensorizer_load(package, verify=False, encrypted=False, readers=None):
    """Returns a program that reads; `package` is the reference or
    haulway.tensorizer."""
    import torch  # noqa: F401

    module = importlib.import_module(package)
    options = {} if readers is None else {"num_readers": readers}
    if verify:
        options["verify_hash"] = True
    if encrypted:
        options["encryption"] = module.DecryptionParams.from_key(KEY)

    def load(path):
        with module.TensorDeserializer(path, device="cpu", **options) as tensors:
            return load_peers.touch(dict(tensors.items()))

    return load


def peer(name, *modules):
    for module in modules:
        importlib.import_module(module)
    return {row[0]: row[2] for row in load_peers.PEERS}[name]


def ceiling(read, huge):
    return lambda path: read(Path(path), huge)


def tensors_to_save(mebibytes):
    import torch

    elements = mebibytes * (1 << 20) // COUNT // 4
    return {
        f"model.layers.{i // 8}.block.{i % 8}.weight": torch.full(
            (elements,), float(i)
        )
        for i in range(COUNT)
    }


def anew(save):
    """Writes to a name that does not exist; the tensors are made before."""

    def prepare():
        tensors = tensors_to_save(int(sys.argv[4]))
        write = save()

        def call(path):
            Path(path).unlink(missing_ok=True)
            start = time.perf_counter()
            result = write(tensors, path)
            seconds = time.perf_counter() - start
            if hasattr(result, "result"):
                result.result()  # Includes work in the background.
            return seconds

        return call

    return prepare


def haulway_save(**options):
    import haulway

    return lambda tensors, path: haulway.save(
        tensors, path, durability="none", **options
    )


def haulway_save_async():
    import haulway

    return lambda tensors, path: haulway.save_async(
        tensors, path, format="torch", durability="none"
    )


def torch_save():
    import torch

    return torch.save


def safetensors_save():
    import safetensors.torch

    return safetensors.torch.save_file


OURS = "haulway.tensorizer"
CALLS = {
    "haulway": haulway_load,
    "haulway .pt": haulway_torch_load,
    "haulway .tensors": haulway_load,
    "haulway numpy": lambda: haulway_load("numpy"),
    "haulway pread": lambda: haulway_load(io="pread"),
    "haulway .pt pread": lambda: haulway_load(io="pread"),
    "haulway .tensors pread": lambda: haulway_load(io="pread"),
    "torch.load": lambda: peer("torch.load", "torch"),
    "torch.load mmap": lambda: peer("torch.load mmap", "torch"),
    "safetensors mmap": lambda: peer("safetensors mmap", "safetensors.torch"),
    "safetensors pread": lambda: peer("safetensors pread", "safetensors.torch"),
    "tensorizer": lambda: tensorizer_load("tensorizer"),
    "tensorizer, 4 readers": lambda: tensorizer_load("tensorizer", readers=4),
    "fastsafetensors": lambda: peer(
        "fastsafetensors", "torch", "fastsafetensors"
    ),
    "Run:ai streamer": lambda: peer(
        "Run:ai streamer", "torch", "runai_model_streamer"
    ),
    "ceiling: pread, huge pages": lambda: ceiling(
        load_ceilings.pread_fresh, True
    ),
    "ceiling: pread, 4 KiB pages": lambda: ceiling(
        load_ceilings.pread_fresh, False
    ),
    "ceiling: O_DIRECT, huge pages": lambda: ceiling(
        load_ceilings.direct_fresh, True
    ),
    "ceiling: O_DIRECT, 4 KiB pages": lambda: ceiling(
        load_ceilings.direct_fresh, False
    ),
    "haulway verified": lambda: tensorizer_load(OURS, verify=True),
    "haulway encrypted": lambda: tensorizer_load(OURS, encrypted=True),
    "tensorizer verified": lambda: tensorizer_load("tensorizer", verify=True),
    "tensorizer verified, 4 readers": lambda: tensorizer_load(
        "tensorizer", verify=True, readers=4
    ),
    "tensorizer encrypted": lambda: tensorizer_load(
        "tensorizer", encrypted=True
    ),
    "tensorizer encrypted, 4 readers": lambda: tensorizer_load(
        "tensorizer", encrypted=True, readers=4
    ),
    "haulway save .pt": anew(lambda: haulway_save(format="torch")),
    "haulway save": anew(lambda: haulway_save(format="safetensors")),
    "haulway save_async": anew(haulway_save_async),
    "torch.save": anew(torch_save),
    "safetensors save": anew(safetensors_save),
}


def main():
    name, path, started = sys.argv[1], sys.argv[2], float(sys.argv[3])
    begin = time.perf_counter()
    call = CALLS[name]()
    # torch's own first operation is not part of a loader's time.
    if "torch" in sys.modules:
        load_peers.touch({"one": sys.modules["torch"].zeros(4096)})
    ready = time.perf_counter()
    seconds = {"import": ready - begin}
    for which in ("load", "second"):
        start = time.perf_counter()
        result = call(path)
        end = time.perf_counter()
        own_clock = isinstance(result, float)
        seconds[which] = result if own_clock else end - start
        seconds.setdefault("process", end - started)
        del result
        gc.collect()
    print(json.dumps(seconds), flush=True)
    # The contender's exit handlers are not part of the measurement.
    os._exit(0)


if __name__ == "__main__":
    main()
