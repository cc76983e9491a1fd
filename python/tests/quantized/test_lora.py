"""Adapters are merged into the weights that peft's merge_and_unload gives, in
every call that reads them.
"""

import json
import shutil
import subprocess

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

import haulway
from lora_models import check_near, merged, write_adapter, write_model

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
       "down_proj"]
Q = "model.layers.0.self_attn.q_proj.weight"

# The model, the adapters, and by how many units results may differ.
CASES = {
    "plain": ({}, [{"target_modules": ALL}], 1),
    "F32": ({"dtype": torch.float32}, [{}], 1),
    "F16": ({"dtype": torch.float16}, [{}], 1),
    "adapter in BF16": ({}, [{"dtype": torch.bfloat16}], 1),
    "rslora": ({}, [{"use_rslora": True, "r": 3, "lora_alpha": 7}], 1),
    "patterns": ({}, [{
        "target_modules": ALL,
        "rank_pattern": {"q_proj": 7, r"layers\.1\.mlp\.up_proj": 2},
        "alpha_pattern": {"self_attn.(q|k)_proj": 32, "1.mlp.up_proj": 1}}], 1),
    "dora": ({}, [{"use_dora": True}], 3),
    "dora in F32": ({"dtype": torch.float32}, [{"use_dora": True}], 1),
    "lora_bias": ({}, [{"target_modules": ["q_proj"], "lora_bias": True}], 1),
    "bias all": ({}, [{"target_modules": ["q_proj"], "bias": "all"}], 1),
    "bias lora_only": (
        {}, [{"target_modules": ["q_proj"], "bias": "lora_only"}], 1),
    "embeddings": (
        {}, [{"target_modules": ["embed_tokens", "lm_head", "v_proj"]}], 1),
    "embeddings, dora": (
        {}, [{"target_modules": ["embed_tokens", "q_proj"], "use_dora": True}],
        3),
    "modules_to_save": ({}, [{"modules_to_save": ["lm_head", "norm"]}], 1),
    "tied embeddings": (
        {"tied": True}, [{"target_modules": ["embed_tokens", "q_proj"]}], 1),
    "tied head": (
        {"tied": True}, [{"target_modules": ["lm_head", "q_proj"]}], 1),
    "gpt2": ({"kind": "gpt2"}, [{
        "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}], 1),
    "gpt2, squares only": ({"kind": "gpt2"}, [{
        "target_modules": r".*attn\.c_proj", "fan_in_fan_out": True}], 1),
    "gpt2, dora, wte": ({"kind": "gpt2"}, [{
        "target_modules": ["c_attn", "c_proj", "wte"], "fan_in_fan_out": True,
        "use_dora": True}], 3),
    "two adapters": ({}, [{"target_modules": ALL}, {"r": 9}], 1),
    "three of several kinds": ({}, [
        {"target_modules": ["embed_tokens", "q_proj"]},
        {"use_dora": True, "target_modules": ["k_proj"]}, {"r": 1}], 3),
}
WEIGHTS = (0.5, -1.25, 3.0)


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """Yields (model, adapters with weights, peft's result, units)."""
    model, configs, units = CASES[request.param]
    folder = tmp_path_factory.mktemp("lora")
    base = write_model(folder / "model", **model)
    one = len(configs) == 1
    adapters = [
        (write_adapter(folder / f"adapter{i}", base, seed=i, **config),
         1.0 if one else WEIGHTS[i])
        for i, config in enumerate(configs)
    ]
    yield base, adapters, merged(base, adapters), units
    shutil.rmtree(folder)


def same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def test_load_open_and_iterate(case):
    base, adapters, expected, units = case
    stored = load_file(base / "model.safetensors")
    found = haulway.load(base, lora=adapters)
    check_near(found, expected, stored, units)
    same(dict(haulway.iterate(base, lora=adapters)), found)
    same(haulway.load(base, lora=adapters, threads=1, io="pread"), found)
    with haulway.open(base, lora=adapters) as opened:
        same(opened, found)
        for name, tensor in found.items():
            part = opened.get_slice(name)
            middle = tensor.shape[0] // 2
            assert torch.equal(part[middle:], tensor[middle:])
            assert torch.equal(part[middle], tensor[middle])
            assert torch.equal(part[..., 5:40], tensor[..., 5:40])


def test_convert_writes_a_model(case, tmp_path, command):
    base, adapters, _, _ = case
    before = {file.name: file.read_bytes() for file in base.iterdir()}
    expected = haulway.load(base, lora=adapters)
    stored = load_file(base / "model.safetensors")
    changed = [name for name, tensor in expected.items()
               if not torch.equal(tensor, stored[name])]
    for threads, budget in ((1, "1MiB"), (3, "64MiB")):
        done = haulway.convert(
            base, f"{tmp_path}/{threads}/", "safetensors", lora=adapters,
            threads=threads, memory_budget=budget, proof=True)
        assert done.merged >= len(changed)
        same(load_file(tmp_path / f"{threads}/model.safetensors"), expected)
        assert {file.name for file in (tmp_path / f"{threads}").iterdir()} == {
            "model.safetensors", "config.json", "generation_config.json",
            "tokenizer.json"}
        config = json.loads((tmp_path / f"{threads}/config.json").read_text())
        assert config == json.loads((base / "config.json").read_text())
    words = [word for adapter, weight in adapters
             for word in ("--lora", f"{adapter}:{weight}")]
    run = subprocess.run(
        [command, "convert", base, f"{tmp_path}/command/", "--to",
         "safetensors", "--json", *words], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["merged"] == done.merged
    assert ((tmp_path / "command/model.safetensors").read_bytes()
            == (tmp_path / "1/model.safetensors").read_bytes())
    assert {file.name: file.read_bytes() for file in base.iterdir()} == before


@pytest.mark.parametrize("use_dora", [False, True])
def test_convolutions(use_dora, tmp_path):
    def model():
        return torch.nn.Sequential(
            torch.nn.Conv2d(6, 10, 3), torch.nn.Conv2d(10, 4, 1),
            torch.nn.Conv1d(4, 5, 3)).bfloat16()

    torch.manual_seed(1)
    base = model()
    stored = base.state_dict()
    save_file(stored, tmp_path / "model.safetensors")
    stored = {name: tensor.clone() for name, tensor in stored.items()}
    adapted = peft.get_peft_model(base, peft.LoraConfig(
        r=2, target_modules=["0", "1", "2"], init_lora_weights=False,
        use_dora=use_dora))
    adapted.save_pretrained(tmp_path / "adapter")
    fresh = model()
    fresh.load_state_dict(stored)
    expected = peft.PeftModel.from_pretrained(
        fresh, tmp_path / "adapter").merge_and_unload().state_dict()
    found = haulway.load(tmp_path / "model.safetensors",
                         lora=tmp_path / "adapter")
    check_near(found, expected, stored, 3 if use_dora else 1)
