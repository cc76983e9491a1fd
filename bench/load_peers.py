"""Other loaders of checkpoints, one function each. A function ends with every
byte in the process's memory, or touched there. Each imports only what it needs,
so that bench/first_call.py can time a process that uses nothing else."""

from __future__ import annotations

import importlib
import os
import traceback
from pathlib import Path

# Without messages, and with the authors' recommended settings.
os.environ.setdefault("RUNAI_STREAMER_LOG_LEVEL", "ERROR")
os.environ.setdefault("FASTSAFETENSORS_NO_LIBTORCH_WARN", "1")


def touch(tensors):
    """Reads a byte of every page, as a user of mapped tensors will."""
    import torch

    for tensor in tensors.values():
        tensor.contiguous().view(-1).view(torch.uint8)[::4096].sum()
    return tensors


def torch_load(path):
    import torch

    return torch.load(path)


def torch_mmap(path):
    import torch

    return touch(torch.load(path, mmap=True))


def safetensors_mmap(path):
    import safetensors.torch

    return touch(safetensors.torch.load_file(path))


def safetensors_pread(path):
    import safetensors.torch

    return safetensors.torch.load_file(path, backend="pread")


def tensorizer_load(path):
    from tensorizer import TensorDeserializer

    with TensorDeserializer(str(path), device="cpu", num_readers=4) as tensors:
        return dict(tensors.items())


def fastsafetensors_load(path):
    from fastsafetensors import fastsafe_open

    with fastsafe_open(str(path), device="cpu", nogds=True) as file:
        # Its tensors are invalid once the file is closed.
        return {name: file.get_tensor(name).clone() for name in file.keys()}


def fastsafetensors_view(path):
    from fastsafetensors import fastsafe_open

    with fastsafe_open(str(path), device="cpu", nogds=True) as file:
        touch({name: file.get_tensor(name) for name in file.keys()})


def runai_load(path):
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(str(path))
        return touch(dict(streamer.get_tensors()))


# Name, suffix of its file, function, module that must be importable.
PEERS = [
    ("torch.load", ".pt", torch_load, "torch"),
    ("torch.load mmap", ".pt", torch_mmap, "torch"),
    ("safetensors mmap", ".safetensors", safetensors_mmap, "safetensors"),
    ("safetensors pread", ".safetensors", safetensors_pread, "safetensors"),
    ("tensorizer, 4 readers", ".tensors", tensorizer_load, "tensorizer"),
    ("fastsafetensors", ".safetensors", fastsafetensors_view, "fastsafetensors"),
    ("Run:ai streamer", ".safetensors", runai_load, "runai_model_streamer"),
]


def works(load, path):
    """Returns whether a peer loads a file; tried in its own process."""
    child = os.fork()
    if child == 0:
        try:
            load(path)
        except BaseException:  # The reason does not matter; it is shown.
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return status == 0


def usable_peers(files: dict[str, Path]):
    """Returns the peers that can load `files`, by suffix; prints why others
    cannot."""
    peers = []
    for name, suffix, load, module in PEERS:
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"  left out: {name}: {error}")
            continue
        if not works(load, files[suffix]):
            print(f"  left out: {name}: it failed, as shown above")
            continue
        peers.append((name, suffix, load))
    return peers


def slice_safetensors(path, name, rows):
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.get_slice(name)[:rows].clone()
