"""Callbacks of transformers' Trainer and Lightning's: what a killed save leaves
is not resumed from."""

import json
import os
import pathlib

import lightning
import pytest
import torch
import transformers
from safetensors import SafetensorError

import haulway
from haulway.lightning import HaulwayCheckpoint
from haulway.transformers import CheckpointCallback


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.arange(8) + index % 8
        return {"input_ids": ids, "labels": ids}


def trainer(folder, steps, *callbacks):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, vocab_size=32))
    return transformers.Trainer(
        model, transformers.TrainingArguments(
            str(folder), max_steps=steps, save_steps=2, save_total_limit=3,
            per_device_train_batch_size=2, report_to=[], use_cpu=True,
            disable_tqdm=True, lr_scheduler_type="constant"),
        train_dataset=Numbers(), callbacks=list(callbacks))


def weights(module):
    return {name: one.clone() for name, one in module.state_dict().items()}


def test_a_trainer_resumes_from_the_newest_whole_checkpoint(tmp_path):
    whole = trainer(tmp_path / "whole", 8)
    whole.train()
    folder = tmp_path / "run"
    trainer(folder, 6, CheckpointCallback(durability="none")).train()
    for step in (2, 4, 6):
        stored = json.loads((folder / f"checkpoint-{step}/haulway.json").read_text())
        assert stored["step"] == step and "optimizer.pt" in stored["files"]
        assert "trainer_state.json" in stored["files"]
    # A save that was killed left a folder without its state, and half a model.
    half = folder / "checkpoint-8"
    half.mkdir()
    data = (folder / "checkpoint-6/model.safetensors").read_bytes()
    (half / "model.safetensors").write_bytes(data[: len(data) // 2])
    assert transformers.trainer_utils.get_last_checkpoint(folder) == str(half)
    with pytest.raises((ValueError, OSError, RuntimeError, SafetensorError)):
        trainer(folder, 8).train(resume_from_checkpoint=True)
    latest = haulway.latest(folder)
    assert latest.step == 6 and latest.path == str(folder / "checkpoint-6")
    assert latest.skipped[0].path == str(half)
    resumed = trainer(folder, 8, CheckpointCallback())
    resumed.train(resume_from_checkpoint=latest.path)
    assert resumed.state.global_step == 8
    for name, one in weights(resumed.model).items():
        assert torch.equal(one, weights(whole.model)[name]), name
    assert haulway.latest(folder).step == 8
    # A byte that changed is seen by the manifest.
    path = folder / "checkpoint-8/scheduler.pt"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    assert haulway.latest(folder).step == 6


def test_a_checkpoint_that_is_not_whole_gets_no_manifest(tmp_path):
    class Losing(transformers.TrainerCallback):
        def on_save(self, args, state, control, **others):
            os.remove(pathlib.Path(args.output_dir, f"checkpoint-{state.global_step}",
                                   "trainer_state.json"))

    with pytest.warns(RuntimeWarning, match="lacks trainer_state.json"):
        trainer(tmp_path, 2, Losing(), CheckpointCallback()).train()
    assert not (tmp_path / "checkpoint-2/haulway.json").exists()


def test_the_callbacks_are_of_their_hosts():
    assert isinstance(CheckpointCallback(), transformers.TrainerCallback)
    assert isinstance(CheckpointCallback(), CheckpointCallback)
    saving = HaulwayCheckpoint("run")
    assert isinstance(saving, lightning.pytorch.callbacks.Callback)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def training_step(self, batch, index):
        return self.linear(batch).square().mean()

    def train_dataloader(self):
        torch.manual_seed(0)
        # All batches are the same, whatever the order after resuming.
        return torch.utils.data.DataLoader(torch.randn(1, 4).expand(24, 4),
                                           batch_size=4)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


def fit(folder, steps, *callbacks, path=None):
    torch.manual_seed(1)
    module = Module()
    lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False,
        enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, callbacks=list(callbacks),
        enable_checkpointing=False).fit(module, ckpt_path=path)
    return module


def test_lightning_saves_and_resumes(tmp_path):
    whole = fit(tmp_path, 9)
    saving = HaulwayCheckpoint(tmp_path / "run", keep=2, every_n_train_steps=2)
    fit(tmp_path, 5, saving)
    assert [entry.step for entry in saving.run.list()] == [4, 5]
    # Half a step, as a killed process leaves it.
    (tmp_path / "run/.step-6.tmp-0").mkdir()
    (tmp_path / "run/step-6").mkdir()
    (tmp_path / "run/step-6/model.ckpt").write_bytes(b"PK")
    saving = HaulwayCheckpoint(tmp_path / "run", keep=2, every_n_train_steps=2)
    latest = saving.run.latest()
    assert latest.step == 5 and latest.metadata == {"epoch": 1}
    assert latest.skipped[0].step == 6
    resumed = fit(tmp_path, 9, saving, path=latest.path)
    for name, one in weights(resumed).items():
        assert torch.equal(one, weights(whole)[name]), name
    assert haulway.latest(tmp_path / "run").step == 9
