#!/usr/bin/env python3
"""Loads checkpoints to a GPU and compares them with what torch has there."""

import pathlib
import sys
import tempfile
import time

import torch

import haulway


def check(path):
    """Compares every tensor, and returns the bytes and both times."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    wanted = torch.load(path, map_location="cuda:0", weights_only=True)
    torch.cuda.synchronize()
    theirs = time.perf_counter() - start
    start = time.perf_counter()
    found = haulway.load(path, device="cuda:0")
    ours = time.perf_counter() - start
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].device == tensor.device, name
        assert found[name].dtype == tensor.dtype, name
        assert found[name].stride() == tensor.stride(), name
        assert torch.equal(found[name], tensor), name
    # Usable by kernels, and by streams other than the current one.
    with torch.cuda.stream(torch.cuda.Stream()):
        assert (found["f32"] * 2 == wanted["f32"] * 2).all()
    tied = found["tied"].untyped_storage().data_ptr()
    assert tied == found["f32"].untyped_storage().data_ptr()
    return sum(t.nbytes for t in wanted.values()), ours, theirs


def main():
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.pt"
        large = torch.randn(64 << 20)
        state = {
            "f32": large,
            "tied": large[5:1000],
            "bf16": torch.randn(1000, 1000).to(torch.bfloat16).t(),
            "bool": torch.ones(7, dtype=torch.bool),
            "empty": torch.empty(0, 3),
            **{f"small.{i}": torch.full((3,), i) for i in range(1000)},
        }
        torch.save(state, path)
        for _ in range(3):
            nbytes, ours, theirs = check(path)
            print(f"{nbytes / 1e9:.2f} GB to the GPU: haulway {ours:.3f} s, "
                  f"torch.load {theirs:.3f} s")
        part = haulway.load(path, include="small.1*", device="cuda:0")
        assert part["small.17"].tolist() == [17, 17, 17]
        free = torch.cuda.mem_get_info()[0]
        loaded = haulway.load(path, device="cuda:0")
        assert torch.cuda.mem_get_info()[0] < free - large.nbytes // 2
        del loaded
        assert torch.cuda.mem_get_info()[0] >= free - (16 << 20), "freed"
        try:
            haulway.load(path, device=f"cuda:{torch.cuda.device_count()}")
        except FileNotFoundError as error:
            print(error)
        else:
            sys.exit("a GPU that is not there was found")
    print("everything passed")


if __name__ == "__main__":
    main()
