"""Mistakes that type checkers must find, one per marked line."""

import io

import numpy as np
import torch

import haulway
import haulway.distributed
import haulway.lightning
import haulway.safetensors.numpy
import haulway.safetensors.torch
import haulway.tensorizer
import haulway.torch
import haulway.torch.dcp
from haulway import archive, ipc

state = {"w": torch.zeros(3)}

# Reading

haulway.load("x", thread=4)  # wrong
haulway.load("x", "tensorflow")  # wrong
haulway.load("x", "numpy", device="cuda:0")  # wrong
haulway.load("x", destination="shm", device="cuda:0")  # wrong
haulway.load("x", "jax", destination="shm")  # wrong
haulway.load("x", include=3)  # wrong
haulway.load("x", "torch", include="*")["w"].astype("f4")  # wrong
haulway.load("x", "numpy", exclude="*")["w"].detach()  # wrong
haulway.load(7)  # wrong
haulway.load(io.StringIO("x"))  # wrong
haulway.open("x", io="fast")  # wrong
haulway.open("x", stats=[])  # wrong
haulway.open("x", framework="numpy")["a"].requires_grad()  # wrong
haulway.open("x", framework="torch")["a"].astype("f4")  # wrong
haulway.open("x").get_slice(3)  # wrong
haulway.open("x", "numpy")["a"] = np.zeros(3)  # wrong
haulway.iterate("x", progress=print, verify="yes")  # wrong
haulway.iterate("x", order="random")  # wrong
haulway.scan("x", retries=3)  # wrong
haulway.verify("x", manifest=3)  # wrong
haulway.attach("x", threads=1)  # wrong
haulway.shard("x", "0", 2)  # wrong
haulway.plan_reads("x", slices=["w"])  # wrong
haulway.load_into([torch.zeros(3)], "x")  # wrong
haulway.diff("x", "y", atol="1e-3")  # wrong
haulway.get("https://host/x", "y", overwrite=True)  # wrong
haulway.distributed.load("x", retries="3")  # wrong
haulway.torch.load("x", verify=1.5)  # wrong
haulway.torch.load("x", weights_only="yes")  # wrong
haulway.lod("x")  # wrong

# Writing

haulway.save({}, "x", durability="half")  # wrong
haulway.save(state, "x", "hdf5")  # wrong
haulway.save(state, "x", "safetensors", compute_crc32=True)  # wrong
haulway.save(state, "x", "safetensors", key=b"0" * 32)  # wrong
haulway.save(state, "x", "torch", metadata={"a": "b"})  # wrong
haulway.save(state, "x", "tensorizer", layout="columns")  # wrong
haulway.save([torch.zeros(3)], "x", "gguf")  # wrong
haulway.save({3: torch.zeros(3)}, "x", "npz")  # wrong
haulway.save_async(state, "x", "npy", compact=True)  # wrong
haulway.save_async(state, io.BytesIO())  # wrong
haulway.convert("x", "y", "safetensors", compact=True)  # wrong
haulway.convert("x", "y", "torch", alignment=64)  # wrong
haulway.convert("x", "y", rename=3)  # wrong
haulway.writer("x", "torch", metadata={"a": "b"})  # wrong
haulway.writer("x").add("w")  # wrong
haulway.edit("x", drop=3)  # wrong
haulway.edit("x", room="none")  # wrong
haulway.repair("x", "y", to="hdf5")  # wrong
haulway.put("x", "s3://b/x", shard="5GB")  # wrong
haulway.plan(state, durability="none")  # wrong
haulway.torch.save(state, "x", durability="none")  # wrong

# Configuring and sharing

haulway.config.load.verfy = True  # wrong
haulway.config.save.threads = "4"  # wrong
haulway.config(thread=4)  # wrong
haulway.publish("a", state, keep="1")  # wrong
haulway.subscribe("a", timeout="1")  # wrong
haulway.publish_buffer("a", 1.5)  # wrong

# Workers

ipc.run_in_subprocess(list, buffer=5)  # wrong
ipc.run_in_subprocess(list, bufer=None)  # wrong
ipc.run_in_subprocess(5)  # wrong
ipc.iterate_in_subprocess(list, timeout="1")  # wrong
ipc.iterate_in_subprocesses([list], arena=ipc.SharedMemoryArena(1))  # wrong
ipc.iterate_in_program(["program"], initializer=print)  # wrong
ipc.SharedMemoryArena("1 GiB")  # wrong
ipc.SharedMemoryArena(1 << 20, bytes_as="str")  # wrong
ipc.SharedMemorySegmentPool(1 << 20)  # wrong
ipc.register_handler(5)  # wrong
ipc.DataLoader([1, 2], batch_size="3")  # wrong

# Names of other packages

haulway.safetensors.safe_open("x")  # wrong
haulway.safetensors.torch.load_file("x", backend="fast")  # wrong
haulway.safetensors.torch.save_file(["w"], "x")  # wrong
haulway.safetensors.numpy.save_file({"w": torch.zeros(3)}, "x")  # wrong
haulway.tensorizer.TensorSerializer("x", encryption=b"key")  # wrong
haulway.tensorizer.TensorDeserializer("x", dtype="float32")  # wrong
archive.PyTorchFileReader("x").get_record(3)  # wrong
archive.PyTorchFileWriter("x", threads="4")  # wrong
haulway.torch.dcp.Reader("x", io="fast")  # wrong
haulway.torch.dcp.Writer("x", timeout="1")  # wrong
haulway.lightning.HaulwayCheckpointIO(durability="half")  # wrong
