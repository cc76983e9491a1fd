"""Checkpoints of training runs, as ten programs leave them on the disk."""

import json
import os
import shutil
import tempfile

import torch
import torch.distributed.checkpoint as dcp

import haulway


def state(step):
    return {"w": torch.full((64,), float(step)), "step": step}


def put(path, content=None):
    """Writes JSON, text, or a small checkpoint of torch's by the name's
    ending."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if str(path).endswith(".safetensors"):
        haulway.save({"w": torch.ones(8)}, path, "safetensors")
    elif str(path).endswith(".json"):
        with open(path, "w") as file:
            json.dump(content or {}, file)
    elif isinstance(content, str):
        with open(path, "w") as file:
            file.write(content)
    else:
        torch.save({"x": torch.ones(8)} if content is None else content, path)


_made = []


def put_dcp(folder):
    """Writes a directory of torch.distributed.checkpoint."""
    if not _made:
        _made.append(tempfile.mkdtemp())
        dcp.save({"w": torch.ones(16)}, no_dist=True,
                 storage_writer=dcp.FileSystemWriter(_made[0]))
    shutil.copytree(_made[0], folder, dirs_exist_ok=True)


def own(root, step):
    with haulway.Checkpoints(root, keep=0) as run:
        return run.save(state(step), step).path


def torchtitan(root, step):
    put_dcp(root / f"step-{step}")
    return root / f"step-{step}"


def trainer(root, step):
    folder = root / f"checkpoint-{step}"
    put(folder / "config.json")
    put(folder / "model.safetensors")
    put(folder / "training_args.bin")
    put(folder / "optimizer.pt")
    put(folder / "scheduler.pt")
    put(folder / "rng_state_0.pth")
    put(folder / "rng_state_1.pth")
    # Python writes a loss that is not a number as JSON has none.
    put(folder / "trainer_state.json", {
        "global_step": step, "log_history": [{"loss": float("nan")}]})
    return folder


def accelerate(root, step):
    folder = root / "checkpoints" / f"checkpoint_{step}"
    put(folder / "model.safetensors")
    put(folder / "optimizer.bin")
    put(folder / "scheduler.bin")
    put(folder / "random_states_0.pkl")
    return folder


def megatron(root, step):
    folder = root / f"iter_{step:07}"
    put_dcp(folder)
    put(folder / "common.pt")
    put(folder / "metadata.json", {
        "sharded_backend": "torch_dist", "sharded_backend_version": 1})
    put(root / "latest_checkpointed_iteration.txt", str(step))
    return folder


def verl(root, step):
    folder = root / f"global_step_{step}"
    for rank in range(2):
        for kind in ("model", "optim", "extra_state"):
            put(folder / "actor" / f"{kind}_world_size_2_rank_{rank}.pt")
    put(folder / "actor" / "fsdp_config.json")
    put(folder / "data.pt")
    put(root / "latest_checkpointed_iteration.txt", str(step))
    return folder


def deepspeed(root, step):
    folder = root / f"global_step{step}"
    put(folder / "mp_rank_00_model_states.pt", {
        "module": {"w": torch.ones(8)}, "optimizer": None,
        "dp_world_size": 2, "mp_world_size": 1})
    for rank in range(2):
        put(folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    put(root / "latest", f"global_step{step}")
    return folder


def nemo(root, step):
    path = root / f"gpt--val_loss=1.50-step={step}-consumed=8.0-last.ckpt"
    put(path, {"state_dict": {"w": torch.ones(8)}, "global_step": step})
    return path


def lightning(root, step):
    path = root / f"epoch=0-step={step}.ckpt"
    put(path, {"state_dict": {"w": torch.ones(8)}, "global_step": step})
    return path


def orbax(root, step):
    folder = root / str(step)
    put(folder / "_CHECKPOINT_METADATA", '{"item_handlers": null}')
    put(folder / "default" / "manifest.ocdbt", "ocdbt")
    return folder


LAYOUTS = {
    "haulway": own, "torchtitan": torchtitan, "trainer": trainer,
    "accelerate": accelerate, "megatron": megatron, "verl": verl,
    "deepspeed": deepspeed, "nemo": nemo, "lightning": lightning,
    "orbax": orbax,
}
# What each writes last, or what shows that it did not end.
LAST = {
    "haulway": "haulway.json", "torchtitan": ".metadata",
    "trainer": "trainer_state.json", "accelerate": "random_states_0.pkl",
    "megatron": "metadata.json", "verl": "actor/model_world_size_2_rank_1.pt",
    "deepspeed": "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "orbax": "_CHECKPOINT_METADATA",
}
# A file whose end is cut off, or damaged, is told.
DATA = {
    "haulway": "model.pt", "torchtitan": "__0_0.distcp",
    "trainer": "model.safetensors", "accelerate": "optimizer.bin",
    "megatron": "__0_0.distcp", "verl": "actor/optim_world_size_2_rank_0.pt",
    "deepspeed": "mp_rank_00_model_states.pt", "nemo": "", "lightning": "",
}


def cut(path, to=0.5):
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.truncate(int(size * to))


def flip(path, at=0.5):
    """Changes a byte of the file."""
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        data[int(len(data) * at)] ^= 0x40
        file.seek(0)
        file.write(data)
