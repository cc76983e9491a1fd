"""Seeds for the fuzzers of what training leaves: rank files, and runs. For
make_fuzz_seeds.py.
"""

import hashlib
import io
import json
import pickle
import re
import struct
import tarfile
import zipfile


def rank_folders(testdata):
    """Yields folders of rank files as rank_files_fuzz takes them, and names."""
    with tarfile.open(testdata / "ranks/goldens.tar.xz") as archive:
        folders = {}
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            part = re.match(r"(.*)_world_size_|", name)[1]
            if member.isfile() and name.endswith(".pt"):
                data = archive.extractfile(member).read()
                folders.setdefault((folder, part), []).append((name, data))
    names = [name for files in folders.values() for name, _ in files]
    yield b"\x80" + "\n".join(names).encode()
    torch_files, zero, stage3, optim, first, model = 0, 1, 3, 4, 8, 16
    for (folder, part), files in folders.items():
        if folder.startswith("mc"):
            continue
        if part:
            yield b"\x80" + "\n".join(name for name, _ in files).encode()
        # Models come before optimizers, in the order of the ranks.
        parts = b"".join(rank_file(data) for _, data in sorted(
            files, key=lambda file: ("optim" in file[0] and not part, file[0])))
        kinds = (torch_files, first)
        if not part:
            is_stage3 = len(files) == 4
            kinds = (stage3, stage3 | optim) if is_stage3 else (
                zero, zero | optim, zero | model)
        for kind in kinds:
            yield bytes([kind]) + parts


def rank_file(data):
    """Returns a file of torch.save() as rank_files_fuzz takes it."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        by_name = {name.partition("/")[2]: archive.read(name)
                   for name in archive.namelist()}
    storages = [by_name[f"data/{i}"] for i in range(16) if f"data/{i}" in by_name]
    parts = [*storages, by_name["data.pkl"]]
    return bytes([len(storages)]) + b"".join(
        struct.pack("<H", len(part)) + part for part in parts)


def runs(metadata):
    """Yields the files of training runs, of each layout, whole and not."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [4],
                               "data_offsets": [0, 4]}}).encode()
    model = struct.pack("<Q", len(header)) + header + b"\1\2\3\4"
    digest = hashlib.sha256(model).hexdigest()
    pickled = io.BytesIO()
    with zipfile.ZipFile(pickled, "w") as archive:
        # A dict: global_step, dp_world_size, mp_world_size.
        archive.writestr("archive/data.pkl", pickle.dumps(
            {"global_step": 2, "dp_world_size": 1, "mp_world_size": 1}, 2))
        archive.writestr("archive/version", b"3\n")
    state = pickled.getvalue()

    def manifest(step, **more):
        return json.dumps({
            "version": 1, "step": step, "format": "safetensors",
            "created": "2026-11-29T08:00:00Z", **more,
            "files": {"model.safetensors": {"bytes": len(model),
                                            "sha256": digest}},
            "metadata": {"loss": 0.5}}).encode()

    index = json.dumps({"metadata": {}, "weight_map": {
        "w": "model-00001-of-00001.safetensors"}}).encode()
    trainer_state = b'{"global_step": 2, "log_history": [{"loss": NaN}]}'
    yield {"step-1/haulway.json": manifest(1), "step-1/model.safetensors": model,
           "step-2/haulway.json": manifest(2, save="save-0123456789abcdef"),
           "step-2/save-0123456789abcdef/model.safetensors": model,
           "step-3/save-1/model.safetensors": model}
    yield {"step-1/.metadata": metadata, "step-1/__0_0.distcp": b"",
           "step-2/model.safetensors.index.json": index,
           "step-2/model-00001-of-00001.safetensors": model,
           "step-10/model.safetensors.index.json": index}
    yield {"checkpoint-2/trainer_state.json": trainer_state,
           "checkpoint-2/model.safetensors": model,
           "checkpoint-2/rng_state_0.pth": state,
           "checkpoint-2/scheduler.pt": state,
           "checkpoint-2/optimizer.pt": state,
           "checkpoint-12/trainer_state.json": trainer_state}
    yield {"checkpoints/checkpoint_0/model.safetensors": model,
           "checkpoints/checkpoint_0/optimizer.bin": state,
           "checkpoints/checkpoint_0/random_states_0.pkl": state,
           "checkpoints/checkpoint_1/pytorch_model.bin": state}
    for name in ("iter_0000002", "release"):
        yield {"latest_checkpointed_iteration.txt": name[-1:].encode(),
               f"{name}/metadata.json": b'{"sharded_backend": "torch_dist"}',
               f"{name}/.metadata": metadata, f"{name}/common.pt": state,
               "iter_0000003/mp_rank_00_000/model_optim_rng.pt": state}
    yield {"latest_checkpointed_iteration.txt": b"2",
           "global_step_2/actor/model_world_size_1_rank_0.pt": state,
           "global_step_2/actor/extra_state_world_size_1_rank_0.pt": state,
           "global_step_3/critic/optim_world_size_2_rank_1.pt": state}
    for stage3 in ("", "zero_pp_rank_0_"):
        yield {"latest": b"global_step2\n",
               f"global_step2/{stage3}mp_rank_00_model_states.pt": state,
               "global_step2/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt": state,
               "tag7/mp_rank_00_model_states.pt": state}
    yield {"gpt-step=2-last.ckpt": state, "gpt-step=3.ckpt": state,
           "gpt-step=3-unfinished": b"-", "gpt-step=4/meta.pt": state}
    yield {"epoch=0-step=2.ckpt": state, "epoch=0-step=2-v1.ckpt": state,
           "last.ckpt": state, "hpc_ckpt_3.ckpt/meta.pt": state,
           "last-v2.ckpt/.metadata": metadata}
    yield {"2/_CHECKPOINT_METADATA": b'{"item_handlers": null}',
           "2/default/manifest.ocdbt": b"ocdbt", "2/commit_success.txt": b"-",
           "run_3/_CHECKPOINT_METADATA": b"{}", "run_3/d/x": b"y"}


def run_markers(metadata):
    """Yields runs as run_markers_fuzz takes them, and a manifest.

    metadata: a .metadata of torch.distributed.checkpoint.
    """
    for files in runs(metadata):
        yield b"".join(
            bytes([len(name)]) + name.encode()
            + struct.pack("<H", len(content)) + content
            for name, content in files.items())
    yield next(runs(metadata))["step-2/haulway.json"]
