"""haulway.vllm with a stub of the parts of vLLM that it uses.

python/tests_hosts/test_vllm_wheel.py compares the stub's signatures with the
real package.
"""

import importlib
import pathlib
import re
import subprocess
import sys
import types

import pytest
import torch

import haulway
import haulway.delta
import haulway.vllm

STUB = pathlib.Path(__file__).parents[1] / "vllm_stub"


@pytest.fixture
def vllm(monkeypatch):
    """Returns the stub's loaders with Haulway's registered."""
    monkeypatch.syspath_prepend(str(STUB))
    loaders = importlib.import_module("vllm.model_executor.model_loader")
    haulway.vllm.register()
    yield loaders
    for name in [*sys.modules]:
        if name.partition(".")[0] == "vllm" or name == "haulway._vllm_loader":
            del sys.modules[name]


def config(extra=(), **fields):
    return types.SimpleNamespace(**{
        "load_format": "haulway", "model_loader_extra_config": dict(extra),
        "use_tqdm_on_load": False, "safetensors_load_strategy": None, **fields,
    })


def model_at(path, **fields):
    return types.SimpleNamespace(model=str(path), revision=None, **fields)


class Model(torch.nn.Module):
    def __init__(self, names):
        super().__init__()
        self.got = {}
        self.names = names

    def named_parameters(self):
        return [(name, None) for name in self.names]

    def load_weights(self, weights):
        self.got.update(weights)
        return set(self.got)


SHARDS = {
    f"model-{i:05}-of-00010.safetensors":
        {f"layer.{i}.weight": torch.full((64, 8), float(i))}
    for i in (1, 2, 10)
}
NAMES = [name for shard in SHARDS.values() for name in shard]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "m").mkdir()
    for name, shard in reversed(SHARDS.items()):
        haulway.save(shard, tmp_path / "m" / name)
    return tmp_path / "m"


def test_the_entry_point_registers_the_format_once(vllm):
    text = (STUB.parents[2] / "pyproject.toml").read_text()
    section = text.partition('[project.entry-points."vllm.general_plugins"]')[2]
    assert re.match(r'\s*haulway = "haulway.vllm:register"\n', section)
    haulway.vllm.register()
    assert vllm.CALLS == ["haulway"]
    loader = vllm.get_model_loader(config())
    assert type(loader).__name__ == "HaulwayModelLoader"
    assert not loader.__abstractmethods__
    # Only if the variable is set.
    assert vllm.LOADERS["runai_streamer"] is vllm.BaseModelLoader


def test_another_name_is_taken_only_if_that_is_said(vllm, monkeypatch):
    monkeypatch.setenv("HAULWAY_VLLM_TAKE_OVER", "1")
    haulway.vllm._registered.clear()
    importlib.import_module(
        "vllm.distributed.weight_transfer.factory"
    ).WeightTransferEngineFactory._registry.clear()
    haulway.vllm.register()
    assert vllm.LOADERS["runai_streamer"] is vllm.LOADERS["haulway"]


def test_weights_come_in_order_and_stay(vllm, folder):
    loader = vllm.get_model_loader(config({"threads": 2, "io": "pread",
                                           "memory_limit": 1}))
    kept = list(loader.get_all_weights(model_at(folder), Model(NAMES)))
    assert [name for name, _ in kept] == NAMES
    for i, (_, tensor) in zip((1, 2, 10), kept):
        assert torch.equal(tensor, torch.full((64, 8), float(i)))
    assert len({tensor.data_ptr() for _, tensor in kept}) == 3
    assert loader.counter_before_loading_weights > 0
    assert loader.download_model(model_at(folder)) is None
    assert loader.load_config.load_format == "haulway"


def test_weights_that_are_missing_are_named(vllm, folder):
    loader = vllm.get_model_loader(config())
    loader.load_weights(Model(NAMES), model_at(folder))
    with pytest.raises(ValueError, match="not initialized .*'extra'"):
        loader.load_weights(Model([*NAMES, "extra"]), model_at(folder))
    with pytest.raises(RuntimeError, match="Cannot find any model weights"):
        loader.load_weights(Model(NAMES), model_at(folder.parent))


def test_reloading_reads_the_path_of_now(vllm, folder, tmp_path):
    (tmp_path / "n").mkdir()
    torch.save({"layer.1.weight": torch.ones(3)}, tmp_path / "n" / "x.bin")
    loader, where = vllm.get_model_loader(config()), model_at(folder)
    assert len(list(loader.get_all_weights(where, Model([])))) == 3
    where.model = str(tmp_path / "n")
    ((name, tensor),) = loader.get_all_weights(where, Model([]))
    assert name == "layer.1.weight" and tensor.tolist() == [1, 1, 1]


def test_bytes_of_other_experts_are_not_read(vllm, tmp_path):
    experts = {f"m.experts.{i}.w": torch.full((1 << 18,), float(i)) for i in range(8)}
    path = tmp_path / "a.safetensors"
    haulway.save(experts, path)
    loader = vllm.get_model_loader(config({"io": "direct"}))
    loader.local_expert_ids = {2, 5}
    stats = {}
    loader._options["stats"] = stats
    got = dict(loader.get_all_weights(model_at(tmp_path), Model([])))
    assert list(got) == ["m.experts.2.w", "m.experts.5.w"]
    assert got["m.experts.5.w"].unique().tolist() == [5]
    assert stats["read_bytes"] < 2.1 * (1 << 20)


def test_the_bar_is_vllms(vllm, folder, capfd):
    loader = vllm.get_model_loader(config(use_tqdm_on_load=True))
    list(loader.get_all_weights(model_at(folder), Model([])))
    said = capfd.readouterr().err
    assert "Loading safetensors checkpoint shards: 100% Completed | 3/3" in said


def test_weights_may_be_elsewhere(vllm, folder, tmp_path, nginx):
    (tmp_path / "config").mkdir()
    path = next(folder.glob("*-00002-*"))
    url = nginx.put("m.safetensors", path.read_bytes())
    loader = vllm.get_model_loader(config({"uri": url}))
    got = dict(loader.get_all_weights(model_at(tmp_path / "config"), Model([])))
    assert list(got) == ["layer.2.weight"]
    # A path that replaces the model's has its own weights.
    assert len(list(loader.get_all_weights(model_at(folder), Model([])))) == 3
    # vLLM's own argument takes precedence.
    loader = vllm.get_model_loader(config({"uri": "http://localhost:1/none"}))
    where = model_at(tmp_path / "config", model_weights=url)
    assert len(list(loader.get_all_weights(where, Model([])))) == 1


def test_a_version_of_weights_is_loaded(vllm, tmp_path):
    state = {name: tensor for shard in SHARDS.values()
             for name, tensor in shard.items()}
    after = {**state, NAMES[1]: state[NAMES[1]] + 1}
    base, version = tmp_path / "base.safetensors", tmp_path / "run/weight_v000001"
    haulway.save(state, base)
    haulway.save(after, tmp_path / "after.safetensors")
    haulway.delta.write(base, tmp_path / "after.safetensors", version,
                        version=1, base_version=0)
    same = haulway.delta.write(
        version, version, tmp_path / "run/weight_v000002", version=2,
        base_version=1, base=base).path  # It has no file but the index.
    (tmp_path / "config").mkdir()
    for extra, model in (({}, version), ({}, same),
                         ({"uri": str(version)}, tmp_path / "config")):
        loader = vllm.get_model_loader(config({**extra, "base": str(base)}))
        model = model_at(model)
        assert loader.download_model(model) is None
        kept = list(loader.get_all_weights(model, Model(NAMES)))
        assert sorted(name for name, _ in kept) == sorted(NAMES)
        assert all(torch.equal(tensor, after[name]) for name, tensor in kept)
        assert len({tensor.data_ptr() for _, tensor in kept}) == 3
    with pytest.raises(haulway.NotFoundError, match="'000000'.*option base"):
        list(vllm.get_model_loader(config()).get_all_weights(
            model_at(version), Model(NAMES)))
    next(version.glob("*.safetensors")).write_bytes(b"")
    with pytest.raises(haulway.Error, match="weight_v000001"):
        list(loader.get_all_weights(model_at(version), Model(NAMES)))


def test_what_a_model_asks_for_is_heeded(vllm, folder):
    loader, model = vllm.get_model_loader(config()), Model([])
    model.is_unused_checkpoint_weight = lambda name: "model-00010" in name
    Source = type(loader).Source
    model.secondary_weights = [Source(str(folder), None, prefix="second.")]
    got = [name for name, _ in loader.get_all_weights(model_at(folder), model)]
    assert got == NAMES[:2] + [f"second.{name}" for name in NAMES]
    model.allow_patterns_overrides = ["*-00001-*.safetensors"]
    got = [name for name, _ in loader.get_all_weights(model_at(folder), model)]
    assert got == NAMES[:1] + [f"second.{name}" for name in NAMES]
    loader._encoder_only_lm_prefixes = ("lm",)
    with pytest.raises(RuntimeError, match="mm-encoder-only leaves no weight"):
        list(loader.get_all_weights(model_at(folder), model))
    loader = vllm.get_model_loader(config(safetensors_load_strategy="torchao"))
    ((name, _),) = loader.get_all_weights(model_at(folder), Model([]))
    assert name == "as vLLM does"


@pytest.mark.parametrize("extra, said", [
    ({"nope": 1, "io": "auto"}, "haulway has nope: expected base, device_direct, "
     "enable_weights_track, io, memory_limit, threads, uri, verify"),
    ({"threads": -1}, "threads"), ({"io": "fast"}, "io: expected .auto."),
    ({"memory_limit": "x"}, "memory_limit"), ({"uri": 3}, "uri is 3: expected a str"),
    ({"device_direct": 1}, "device_direct is 1: expected a bool"),
])
def test_keys_are_checked(vllm, extra, said):
    with pytest.raises(ValueError, match=said):
        vllm.get_model_loader(config(extra))
    with pytest.raises(ValueError, match="must be a dict"):
        vllm.get_model_loader(config(model_loader_extra_config=3))


def test_the_package_that_is_missing_is_named():
    done = subprocess.run(
        [sys.executable, "-c",
         "import sys, haulway.vllm\n"
         "assert not {'torch', 'vllm'} & set(sys.modules)\n"
         "sys.modules['vllm'] = None\n"
         "haulway.vllm.register()\n"],
        capture_output=True, text=True,
    )
    assert "ModuleNotFoundError: haulway.vllm needs the package vllm (tried " \
        "with 0.33.0), which is not installed" in done.stderr
