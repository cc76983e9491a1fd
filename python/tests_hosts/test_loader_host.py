"""haulway.ipc.DataLoader in place of torch's, in Lightning, transformers'
Trainer and accelerate."""

import accelerate
import lightning
import pytest
import torch
import transformers
from torch.utils.data import Dataset
from torch.utils.data.dataloader import DataLoader as TorchLoader

import haulway.ipc
from haulway.ipc import StatefulDataLoader, _loader


class Noise(Dataset):
    """Samples that workers draw at random: other seeds give other weights."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        x = torch.rand(4) + index
        return {"x": x, "labels": x.sum()}


class Module(lightning.LightningModule):
    def __init__(self, loader):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
        self.loader = loader
        self.seen = []

    def forward(self, x, labels=None):
        loss = (self.linear(x).squeeze(-1) - labels).square().mean()
        return {"loss": loss}

    def training_step(self, batch, index):
        self.seen.append(round(float(batch["x"][0, 0].floor())))
        return self(**batch)["loss"]

    def train_dataloader(self):
        return self.loader()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def stock():
    return torch.utils.data.DataLoader(Noise(), batch_size=4, shuffle=True,
                                       num_workers=2)


def by_lightning(folder):
    module = Module(stock)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
        default_root_dir=folder)
    trainer.fit(module)
    return module.linear


def by_transformers(folder):
    module = Module(None)
    arguments = transformers.TrainingArguments(
        folder, num_train_epochs=2, per_device_train_batch_size=4, use_cpu=True,
        dataloader_num_workers=2, report_to=[], disable_tqdm=True,
        save_strategy="no", dataloader_pin_memory=False)
    transformers.Trainer(module, arguments, train_dataset=Noise()).train()
    return module.linear


def by_accelerate(folder):
    accelerator = accelerate.Accelerator(cpu=True)
    module, loader = accelerator.prepare(torch.nn.Linear(4, 1), stock())
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    for batch in (one for _ in range(2) for one in loader):
        optimizer.zero_grad()
        accelerator.backward(
            (module(batch["x"]).squeeze(-1) - batch["labels"]).square().mean())
        optimizer.step()
    return module


@pytest.mark.parametrize("train", [by_lightning, by_transformers, by_accelerate])
def test_a_program_trains_to_the_same_weights(train, tmp_path, monkeypatch):
    made = []

    class Seen(_loader.ArenaIterator):
        def __init__(self, loader):
            made.append(loader)
            super().__init__(loader)

    monkeypatch.setattr(_loader, "ArenaIterator", Seen)
    ends = []
    for is_ours in False, True:
        if is_ours:
            haulway.ipc.install()
        torch.manual_seed(3)
        try:
            ends.append(train(tmp_path))
        finally:
            haulway.ipc.uninstall()
        assert len(made) == (2 if is_ours else 0)
    assert torch.equal(ends[0].weight, ends[1].weight)
    assert torch.utils.data.DataLoader is TorchLoader


def test_lightning_goes_on_within_an_epoch(tmp_path):
    """Lightning asks a loader with a state for it, and restores it."""
    def loader():
        return StatefulDataLoader(Noise(), batch_size=2, shuffle=True,
                                  num_workers=2)

    def trainer(steps):
        return lightning.Trainer(
            max_steps=steps, accelerator="cpu", logger=False,
            enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, default_root_dir=tmp_path)

    torch.manual_seed(9)
    first = Module(loader)
    run = trainer(4)
    run.fit(first)
    run.save_checkpoint(tmp_path / "a.ckpt")
    torch.manual_seed(1)
    second = Module(loader)
    trainer(6).fit(second, ckpt_path=tmp_path / "a.ckpt", weights_only=False)
    assert sorted(set(first.seen)) == sorted(first.seen)
    assert len(second.seen) == 2 and not set(first.seen) & set(second.seen)
