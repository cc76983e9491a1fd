"""HaulwayCheckpointIO in Lightning's Trainer and Fabric."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from haulway.lightning import HaulwayCheckpointIO


class Module(lightning.LightningModule):
    def __init__(self, hidden=4):
        super().__init__()
        self.save_hyperparameters()
        self.linear = torch.nn.Linear(4, hidden)

    def training_step(self, batch, index):
        return self.linear(batch).square().mean()

    def train_dataloader(self):
        torch.manual_seed(0)
        return torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


def trainer(io, folder, epochs, *callbacks):
    return lightning.Trainer(
        max_epochs=epochs, plugins=[io] if io else [], accelerator="cpu",
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, callbacks=list(callbacks),
        enable_checkpointing=bool(callbacks),
    )


def weights(module):
    return {name: one.clone() for name, one in module.state_dict().items()}


@pytest.mark.parametrize("io", [
    HaulwayCheckpointIO(durability="none"),
    AsyncCheckpointIO(HaulwayCheckpointIO()),
])
def test_a_trainer_saves_and_resumes_as_with_its_own(io, tmp_path):
    """Three epochs, the last after a resume, end with the same weights."""
    torch.manual_seed(1)
    module = Module(hidden=3)
    keep = ModelCheckpoint(dirpath=tmp_path / "ours", save_top_k=1, save_last=True)
    trainer(io, tmp_path, 2, keep).fit(module)
    files = sorted(os.listdir(tmp_path / "ours"))
    # The first file is removed.
    assert files == ["epoch=1-step=4.ckpt", "last.ckpt"]
    path = tmp_path / "ours" / "last.ckpt"
    stock = torch.load(path, weights_only=True)
    assert stock["hyper_parameters"] == {"hidden": 3} and stock["global_step"] == 4
    ends = []
    for other in (None, HaulwayCheckpointIO()):
        resumed = Module(hidden=3)
        run = trainer(other, tmp_path, 3)
        run.fit(resumed, ckpt_path=path)
        assert run.global_step == 6
        ends.append(weights(resumed))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    again = Module.load_from_checkpoint(path)
    assert again.hparams.hidden == 3


def test_what_a_trainer_of_its_own_wrote_is_loaded(tmp_path):
    module = Module()
    run = trainer(None, tmp_path, 1)
    run.fit(module)
    run.save_checkpoint(tmp_path / "stock.ckpt")
    ours = HaulwayCheckpointIO().load_checkpoint(tmp_path / "stock.ckpt")
    stock = torch.load(tmp_path / "stock.ckpt", weights_only=True)
    assert ours.keys() == stock.keys() and ours["loops"] == stock["loops"]
    assert str(ours) == str(stock)
    run = trainer(HaulwayCheckpointIO(), tmp_path, 1)
    run.fit(module)
    run.save_checkpoint(tmp_path / "ours.ckpt", storage_options={"threads": 1})
    with pytest.raises(TypeError, match="unexpected option"):
        run.save_checkpoint(tmp_path / "ours.ckpt", storage_options={"x": 1})


def test_fabric_saves_and_loads(tmp_path):
    fabric = lightning.Fabric(accelerator="cpu", plugins=[HaulwayCheckpointIO()])
    module = torch.nn.Linear(3, 2)
    fabric.save(tmp_path / "a.ckpt", {"model": module, "step": 7})
    other, state = torch.nn.Linear(3, 2), {"step": 0}
    state["model"] = other
    rest = fabric.load(tmp_path / "a.ckpt", state)
    assert state["step"] == 7 and not rest
    assert torch.equal(other.weight, module.weight)


def test_a_folder_of_a_sharded_strategy_is_loaded(tmp_path):
    """A folder that Lightning merges with its meta.pt; ours stores that under
    "meta"."""
    import torch.distributed.checkpoint as dcp
    from lightning.fabric.utilities.load import _load_distributed_checkpoint

    state = {"state_dict": torch.nn.Linear(4, 2).state_dict(),
             "optimizer_0": {"state": {"0": {"step": torch.tensor(3.0)}}}}
    dcp.save(state, checkpoint_id=tmp_path / "run.ckpt", no_dist=True)
    torch.save({"epoch": 3, "hyper_parameters": {"hidden": 4}},
               tmp_path / "run.ckpt" / "meta.pt")
    merged = _load_distributed_checkpoint(tmp_path / "run.ckpt")
    found = HaulwayCheckpointIO().load_checkpoint(tmp_path / "run.ckpt")
    assert {**found, **found.pop("meta")}.keys() - {"meta"} == merged.keys()
    assert merged["hyper_parameters"] == {"hidden": 4}
    for name, tensor in merged["state_dict"].items():
        assert torch.equal(found["state_dict"][name], tensor)
    assert found["optimizer_0"]["state"]["0"]["step"] == 3
    HaulwayCheckpointIO().remove_checkpoint(tmp_path / "run.ckpt")
    assert not (tmp_path / "run.ckpt").exists()


def test_the_package_of_pytorch_lightning_is_served_too():
    program = (
        "import pytorch_lightning\n"
        "from haulway.lightning import HaulwayCheckpointIO as IO\n"
        "t = pytorch_lightning.Trainer(plugins=[IO()], accelerator='cpu',\n"
        "                              logger=False)\n"
        "assert type(t.strategy.checkpoint_io) is IO\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_kill_within_a_save_leaves_the_old_checkpoint(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent("""
        import itertools, sys, torch, lightning
        from haulway.lightning import HaulwayCheckpointIO
        fabric = lightning.Fabric(accelerator="cpu", plugins=[HaulwayCheckpointIO()])
        for number in itertools.count():
            state = {"w": torch.full((1 << 22,), float(number)), "number": number}
            fabric.save("a.ckpt", state)
            print(number, flush=True)
        """))
    for kills in range(3):
        process = subprocess.Popen([sys.executable, program], cwd=tmp_path,
                                   stdout=subprocess.PIPE)
        for _ in range(2 + kills):  # The kill then hits the next save.
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = HaulwayCheckpointIO().load_checkpoint(tmp_path / "a.ckpt")
        assert found["w"].unique().tolist() == [found["number"]]
    assert pathlib.Path(tmp_path / "a.ckpt").exists()
