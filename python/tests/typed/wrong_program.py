"""Mistakes that type checkers must find: one a line that says so."""

import haulway
import haulway.safetensors.torch
import haulway.torch

haulway.load("x", thread=4)  # wrong
haulway.load("x", "tensorflow")  # wrong
haulway.open("x", io="fast")  # wrong
haulway.iterate("x", progress=print, verify="yes")  # wrong
haulway.scan("x", retries=3)  # wrong
haulway.attach("x", threads=1)  # wrong
haulway.shard("x", "0", 2)  # wrong
haulway.torch.load("x", verify=1.5)  # wrong
haulway.config.load.verfy = True  # wrong
haulway.lod("x")  # wrong
haulway.open("x", framework="numpy")["a"].requires_grad()  # wrong
haulway.save({}, "x", durability="half")  # wrong
haulway.safetensors.safe_open("x")  # wrong
haulway.safetensors.torch.load_file("x", backend="fast")  # wrong
