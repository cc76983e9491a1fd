"""Batches and weights between processes on a machine with a GPU."""

import os
import uuid

import torch

import haulway
import haulway.ipc
from conftest import check


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.full((1000,), i), {"label": i}


def test_batches_arrive_in_pinned_memory():
    for kind in (torch.utils.data.DataLoader, haulway.ipc.DataLoader):
        seen = 0
        for batch, label in kind(Numbers(), batch_size=4, num_workers=2,
                                 pin_memory=True):
            assert batch.is_pinned() and label["label"].is_pinned()
            there = batch.to("cuda:0", non_blocking=True)
            torch.cuda.synchronize()
            assert torch.equal(there.cpu(), batch)
            seen += len(batch)
        assert seen == 32


def test_publish_from_the_gpu_and_take_to_it(state):
    name = f"gpu-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    there = {k: v.cuda() for k, v in state.items()}
    published = haulway.publish(name, there)
    with haulway.subscribe(name, timeout=10) as reader:
        check({k: v.cuda() for k, v in reader.state.items()}, state)
    published.close()


def test_published_and_shared_memory_goes_to_the_gpu(files, state):
    shared = haulway.load(files / "model.safetensors", destination="shm")
    found = haulway.attach(shared.handle)
    check({k: found[k].cuda() for k in state}, state)
