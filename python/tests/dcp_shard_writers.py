"""Three gloo processes that save their shards as safetensors files; see
training/test_dcp_shard_folders.py."""

import pathlib
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from gloo_group import join
from haulway.torch.dcp import SafetensorsWriter

ROWS = torch.arange(60.0).reshape(10, 6)


def main(folder):
    _, world = join()
    mesh = init_device_mesh("cpu", (world,))
    state = {
        "rows": distribute_tensor(ROWS, mesh, [Shard(0)]),
        "columns": distribute_tensor(ROWS.bfloat16(), mesh, [Shard(1)]),
        "same": distribute_tensor(ROWS[0].clone(), mesh, [Replicate()]),
    }
    mapping = {"rows": 1, "columns": 2, "same": 2}
    for name, writer in (("theirs", HuggingFaceStorageWriter),
                         ("ours", SafetensorsWriter)):
        for kind, to_files in (("one", None), ("two", mapping)):
            dcp.save(state, storage_writer=writer(
                f"{folder}/{name}-{kind}", fqn_to_index_mapping=to_files,
                save_distributed=True))
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(
        f"{folder}/joined", save_distributed=True, enable_consolidation=True))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
