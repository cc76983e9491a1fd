"""The weight transfer engine of vLLM, with a stand-in for vLLM's base and
factory, whose signatures tests_hosts/test_vllm_wheel.py compares."""

import importlib
import pathlib
import sys
import types

import pytest
import torch

import haulway
import haulway.delta
import haulway.vllm

STUB = pathlib.Path(__file__).parents[1] / "vllm_stub"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.got, self.reloads = {}, []

    def load_weights(self, weights):
        for name, tensor in weights:
            self.got[name] = tensor.clone()


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.syspath_prepend(str(STUB))
    haulway.vllm._registered.clear()
    haulway.vllm.register()
    haulway.vllm.register()
    factory = importlib.import_module("vllm.distributed.weight_transfer.factory")
    made = factory.WeightTransferEngineFactory.create_engine(
        types.SimpleNamespace(backend="haulway"),
        types.SimpleNamespace(model_config="config"), torch.device("cpu"), Model(),
    )
    assert not made.__abstractmethods__
    yield made
    for name in [*sys.modules]:
        if name.partition(".")[0] == "vllm" or name in (
                "haulway._vllm_loader", "haulway._vllm_weights"):
            del sys.modules[name]


@pytest.fixture
def run(tmp_path):
    """Returns the states of versions 0, 1 and 2 of a run, and its folder."""
    state = {"a": torch.randn(300, 8).bfloat16(), "b": torch.arange(5),
             "c": torch.tensor(1.5)}
    states = [state]
    haulway.save(state, tmp_path / "base.safetensors")
    for number in (1, 2):
        state = {name: tensor.clone() for name, tensor in state.items()}
        state["a"][number] += 1
        state["c"] += 1
        haulway.save(state, tmp_path / f"{number}.safetensors")
        older = f"{number - 1}.safetensors" if number > 1 else "base.safetensors"
        haulway.delta.write(
            tmp_path / older, tmp_path / f"{number}.safetensors",
            tmp_path / f"run/weight_v{number:06}",
            version=number, base_version=number - 1)
        states.append(state)
    return states, tmp_path


def same(got, state):
    assert got.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(got[name], tensor), name
        assert got[name].dtype == tensor.dtype


def updated(engine, **update):
    engine.start_weight_update()
    engine.update_weights(update)
    engine.finish_weight_update()


def test_versions_are_loaded_by_number_and_by_path(engine, run):
    states, folder = run
    engine.init_transfer_engine(engine.parse_init_info(
        {"url": str(folder / "run"), "base": str(folder / "base.safetensors"),
         "threads": 1, "memory_budget": "1MiB"}))
    for number in (1, 2):
        updated(engine, version=number)
        same(engine.model.got, states[number])
    updated(engine, path=str(folder / "run/weight_v000001"))
    same(engine.model.got, states[1])
    # Any checkpoint will do.
    updated(engine, path=str(folder / "base.safetensors"))
    same(engine.model.got, states[0])
    assert engine.model.reloads == ["begun", "ended"] * 4
    engine.shutdown()


def test_what_cannot_be_loaded_is_said(engine, run):
    _, folder = run
    for update in ({}, {"path": "x", "version": 1}):
        with pytest.raises(ValueError, match="expected path or version"):
            engine.update_weights(update)
    with pytest.raises(ValueError, match="has no url"):
        engine.update_weights({"version": 1})
    engine.init_transfer_engine(
        engine.parse_init_info({"url": str(folder / "run")}))
    with pytest.raises(ValueError, match="no whole version 3: it has 1, 2"):
        engine.update_weights({"version": 3})
    with pytest.raises(haulway.NotFoundError, match="base"):
        engine.update_weights({"version": 1})
    shard = next((folder / "run/weight_v000002").glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(ValueError, match="no whole version 2: it has 1"):
        engine.update_weights({"version": 2})
    assert engine.model.got == {}


def test_a_changed_frame_reaches_no_model(engine, run):
    _, folder = run
    shard = next((folder / "run/weight_v000001").glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(data)
    engine.init_transfer_engine(engine.parse_init_info(
        {"url": str(folder / "run"), "base": str(folder / "base.safetensors")}))
    with pytest.raises(haulway.Error, match="weight_v000001"):
        engine.update_weights({"version": 1})
