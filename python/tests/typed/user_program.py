"""A user's program; test_typing.py gives it to type checkers."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np
import torch

import haulway
import haulway.safetensors
import haulway.torch
from haulway.archive import PyTorchFileReader, PyTorchFileWriter
from haulway.ipc import SharedMemoryArena, iterate_in_subprocess
from haulway.safetensors.torch import load_file, save_file
from haulway.tensorizer import TensorDeserializer, TensorSerializer


def largest(path: pathlib.Path) -> tuple[str, int]:
    with haulway.open(path, framework="numpy", io="pread") as checkpoint:
        name = max(checkpoint, key=lambda n: checkpoint.info(n).nbytes)
        array: np.ndarray = checkpoint[name]
        part = checkpoint.get_slice(name)[:2, ...]
        print(part.dtype, checkpoint.metadata.get("format"))
        return name, array.nbytes


def report(done: int, total: int) -> None:
    print(f"{done} of {total}")


def load(path: str, model: torch.nn.Module) -> list[str]:
    stats: dict[str, object] = {}
    state = haulway.load(path, "torch", include="model.*", verify=True,
                         threads=4, progress=report, stats=stats)
    for name, tensor in haulway.iterate(path, "torch", memory_budget="64MiB"):
        print(name, tensor.shape, state[name].device)
    rows = haulway.shard(path, 0, 2, framework="torch", dtype=torch.bfloat16)
    print(sum(tensor.numel() for tensor in rows.values()))
    shared = haulway.load(path, destination="shm", keep_meta=True)
    again = haulway.attach(shared.handle, "torch", keep_meta=True)
    print(again, haulway.plan_reads(path, slices={"a": slice(3)}).read_bytes)
    return haulway.load_into(model, path, strict=False).missing_keys


def store(state: dict[str, torch.Tensor], path: str) -> None:
    done = haulway.save(state, path, durability="none")
    future = haulway.save_async(state, path + ".2")
    print(done["seconds"], future.result(), future.done())
    haulway.torch.save(state, path)
    haulway.torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    with PyTorchFileWriter(path) as writer:
        writer.write_record("data.pkl", b"...")
    print(PyTorchFileReader(path).get_all_records())
    with TensorSerializer(path) as serializer:
        serializer.write_state_dict(state)
    with TensorDeserializer(path, device="cpu", lazy_load=True) as tensors:
        print(tensors["weight"].shape, tensors.total_tensor_bytes)


def by_the_names_of_safetensors(state: dict[str, torch.Tensor]) -> None:
    save_file(state, "x.safetensors", {"format": "pt"})
    print(load_file("x.safetensors", device="cpu", backend="pread").keys())
    with haulway.safetensors.install() as done, haulway.safetensors.safe_open(
        "x.safetensors", "pt"
    ) as file:
        file.read_ahead({"weight": (slice(0, 2), ...)})
        print(file.keys(), file.get_slice("weight").get_shape(), done.patched)


def batches() -> Iterator[np.ndarray]:
    yield np.zeros(3)


def check(path: str) -> bool:
    haulway.config.load.verify = True
    with haulway.config(load={"threads": 2}):
        try:
            verified = haulway.verify(path, passphrase="word")
        except haulway.CorruptError as error:
            print(error.code, error.byte)
            return False
    for batch in iterate_in_subprocess(batches, arena=SharedMemoryArena(1 << 20)):
        print(batch.sum())
    digests = haulway.manifest(path, include="layers.*", threads=2)
    same = haulway.diff(path, path + ".2", ignore_dtype=True, atol=1e-6)
    for name, numbers in haulway.tensor_stats(path).items():
        print(name, numbers and numbers.mean)
    print([sha256 for _, _, sha256 in digests.values()], same.changed)
    return bool(verified.ok) and bool(haulway.scan(path, lenient=True).safe)
