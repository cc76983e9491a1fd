"""Small models of transformers, adapters of peft, and what peft makes of both."""

import contextlib
import functools
import os
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"

import peft
import torch
import transformers
from safetensors.torch import load_file

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@functools.cache
def _model(kind, tied):
    """Returns a model with random weights in 32 bits."""
    torch.manual_seed(3)
    if kind == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=96, n_embd=64, n_layer=2, n_head=2, n_positions=32))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=80,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        tie_word_embeddings=tied, attention_bias=True))


def write_model(folder, kind="llama", dtype=torch.bfloat16, tied=False, **saving):
    """Saves a model, and a file of a tokenizer."""
    model = _model(kind, tied)
    # A copy that leaves the model in 32 bits as it is.
    made = type(model)(model.config).to(dtype)
    made.load_state_dict(model.state_dict())
    for name, bias in made.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(bias.data)
    made.save_pretrained(folder, **saving)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def _load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")


def write_adapter(folder, base, seed=0, dtype=None, **config):
    """Saves an adapter for a model, with random numbers."""
    config = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM",
              "target_modules": ["q_proj", "down_proj"], **config}
    model = peft.get_peft_model(_load(base), peft.LoraConfig(**config))
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "modules_to_save" in name or name.endswith("bias") or (
                "lora_" in name and "magnitude" not in name):
            parameter.data = torch.randn_like(parameter) * 0.1
        elif "magnitude" in name:
            parameter.data *= 1 + torch.rand_like(parameter)
        if dtype is not None and "lora_" in name:
            parameter.data = parameter.data.to(dtype)
    model.save_pretrained(folder)
    return folder


def merged(base, adapters):
    """Returns the tensors of the model into which peft merges adapters, given as
    pairs of a folder and a weight."""
    model = None
    names = [f"a{i}" for i in range(len(adapters))]
    for name, (adapter, weight) in zip(names, adapters):
        if model is None:
            model = peft.PeftModel.from_pretrained(
                _load(base), adapter, adapter_name=name)
        else:
            model.load_adapter(adapter, adapter_name=name)
        for module in model.modules():
            if isinstance(module, peft.tuners.lora.LoraLayer):
                with contextlib.suppress(KeyError):
                    module.scaling[name] *= weight
    folder = f"{adapters[0][0]}-merged"
    model.merge_and_unload(adapter_names=names).save_pretrained(folder)
    try:
        return load_file(f"{folder}/model.safetensors")
    finally:
        shutil.rmtree(folder)


def _unit(numbers, bits):
    """Returns the distance between numbers of that size with so many bits."""
    return torch.exp2(torch.floor(torch.log2(numbers)) - bits)


def check_near(found, expected, base, units=1):
    """Checks tensors as exactly as sums in another order allow: those of an
    adapter to a unit in the last place, all others bit for bit.

    base: the tensors before merging.
    units: units in the last place of halves, by which results may differ.
    """
    assert set(found) == set(expected)
    for name, wanted in expected.items():
        got = found[name]
        assert got.dtype == wanted.dtype and got.shape == wanted.shape, name
        if torch.equal(got, wanted):
            continue
        assert torch.equal(got.isnan(), wanted.isnan()), name
        got, wanted = got.nan_to_num(), wanted.nan_to_num()
        assert not torch.equal(wanted, base[name]), name
        difference = (got.double() - wanted.double()).abs()
        size = torch.stack([base[name].nan_to_num().abs().double(),
                            wanted.abs().double(),
                            wanted.abs().double().mean().expand(wanted.shape)])
        size = size.amax(0)
        if wanted.dtype == torch.float32:
            assert (difference <= size * 2.0**-21).all(), name
            continue
        bits = 7 if wanted.dtype == torch.bfloat16 else 10
        assert (difference <= units * _unit(size, bits)).all(), name
        if units == 1:
            assert (difference != 0).double().mean() <= 0.02, name
