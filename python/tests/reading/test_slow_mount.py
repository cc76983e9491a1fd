"""Mounts of networks and of programs (FUSE): few and large requests, a file is
opened once and never mapped unless the caller says so."""

import pathlib

import pytest
import torch

import haulway
import haulway.safetensors
import haulway.safetensors.torch
import haulway.torch
from slow_mount import SlowMount

REQUEST = 128 << 10
FILES = {
    "large": {f"w{i}": torch.arange(1 << 18) + i for i in range(8)},
    "many": {f"w{i:04}": torch.full((2, 256), float(i)) for i in range(2000)},
}


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    mount = SlowMount(tmp_path_factory.mktemp("slow"))
    for name, tensors in FILES.items():
        for suffix in ("safetensors", "pt"):
            haulway.save(tensors, mount.files / f"{name}.{suffix}")
    mount.asked()
    yield mount
    mount.stop()


def by_safe_open(path):
    with haulway.safetensors.safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def by_open(path):
    with haulway.open(path, "torch") as file:
        return {name: file[name] for name in file}


def by_file_object(path):
    with open(path, "rb") as file:
        return haulway.load(file)


CALLS = {
    "load": haulway.load,
    "open": by_open,
    "iterate": lambda path: dict(haulway.iterate(path)),
    "file object": by_file_object,
    "torch.load": haulway.torch.load,
    "load_file": haulway.safetensors.torch.load_file,
    "safe_open": by_safe_open,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("call", CALLS)
def test_requests_are_few_and_large(mount, call, name):
    path = mount.at / f"{name}.safetensors"
    if call == "torch.load":
        path = path.with_suffix(".pt")
    found = CALLS[call](path)
    mappings = pathlib.Path("/proc/self/maps").read_text()
    asked = mount.asked()
    assert str(path) not in mappings
    assert found.keys() == FILES[name].keys()
    for key, tensor in FILES[name].items():
        assert torch.equal(found[key], tensor)
    size = path.stat().st_size
    # A file object was opened before, by the caller.
    assert asked.opens == (2 if call == "file object" else 1)
    # What is read before anything is known: the head, and an archive's end.
    assert asked.reads <= 1.1 * size / REQUEST + 8
    assert asked.read_bytes <= 1.1 * size + 8 * REQUEST


def test_the_reason_is_told(mount):
    stats = {}
    haulway.load(mount.at / "large.safetensors", stats=stats)
    assert stats["reason"] == "fuse is remote"
    mount.asked()


def test_a_mapping_is_made_for_who_asks(mount):
    path = mount.at / "large.safetensors"
    found = haulway.load(path, io="mmap")
    assert str(path) in pathlib.Path("/proc/self/maps").read_text()
    assert torch.equal(found["w3"], FILES["large"]["w3"])
    del found
    mount.asked()
