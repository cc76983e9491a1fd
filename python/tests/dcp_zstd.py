"""Makes DCP directories whose items an extension of torch compressed, and
damages them."""

import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
import zstandard
from torch.distributed.checkpoint import FileSystemWriter

ZStandard = pytest.importorskip(
    "torch.distributed.checkpoint._extension",
    reason="torch 2.6 has no extensions").ZStandard

NAME = "stream.zstd/1"


def state():
    """Returns tensors that compress well, badly and not at all, large and
    small ones, in several orders of elements, and values."""
    torch.manual_seed(7)
    return {
        "model": {
            "rows": torch.randn(900, 1000).bfloat16(),
            "ramp": torch.arange(400_000, dtype=torch.int32).reshape(800, 500),
            "turned": torch.randn(70, 50).t(),
            "one": torch.tensor(2.5), "none": torch.zeros(0, 4),
            "zeros": torch.zeros(3_000_000),
        },
        "step": 7, "groups": [{"lr": 0.5, "params": [0, 1]}],
    }


def save(state, folder, extensions=1, **options):
    """Saves as torch does, through the extension as often as is said."""
    dcp.save(state, no_dist=True, storage_writer=FileSystemWriter(
        folder, _extensions=[ZStandard() for _ in range(extensions)], **options))


def items(folder):
    """Returns the places of items by name, those of one chunk each."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    return {index.fqn: info for index, info in metadata.storage_data.items()}


def change(folder, edit):
    """Changes the metadata: `edit` gets torch's object."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    edit(metadata)
    path.write_bytes(pickle.dumps(metadata))


def describe(folder, names):
    """Says that other extensions transformed all items."""
    def edit(metadata):
        for info in metadata.storage_data.values():
            info.transform_descriptors = names
    change(folder, edit)


def replace(folder, name, edit):
    """Replaces the stored bytes of an item by edit(them)."""
    place = items(folder)[name]
    path = folder / place.relative_path
    data = path.read_bytes()
    new = edit(data[place.offset:place.offset + place.length])
    path.write_bytes(data + new)

    def moved(metadata):
        for index, info in metadata.storage_data.items():
            if index.fqn == name:
                info.offset, info.length = len(data), len(new)
    change(folder, moved)


def unpacked(frame):
    return zstandard.ZstdDecompressor().stream_reader(frame).read()


def packed(data):
    return zstandard.ZstdCompressor().compress(data)
