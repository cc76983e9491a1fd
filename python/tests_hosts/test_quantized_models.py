"""What a quantized model becomes is a model of transformers with the logits that
transformers' own dequantization gives.
"""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import haulway

BLOCK = 32
TOKENS = torch.arange(1, 9)[None]


def logits(folder, **more):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, **more)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        return model.eval()(TOKENS).logits


def quantize(model, folder, shard, config, weights_of):
    """Saves a model, then replaces weights by weights_of(name, weight)."""
    model.save_pretrained(folder, max_shard_size=shard)
    for file in folder.glob("*.safetensors"):
        tensors = {}
        for name, weight in load_file(file).items():
            tensors.update(weights_of(name, weight) or {name: weight})
        save_file(tensors, file, metadata={"format": "pt"})
    for index in folder.glob("*.safetensors.index.json"):
        found = json.loads(index.read_text())
        found["weight_map"] = {
            name: file.name for file in folder.glob("*.safetensors")
            for name in load_file(file)
        }
        index.write_text(json.dumps(found))
    path = folder / "config.json"
    path.write_text(json.dumps({
        **json.loads(path.read_text()), "quantization_config": config}))


def fp8_of(name, weight):
    if not name.endswith("_proj.weight"):
        return None
    rows, columns = weight.shape
    tiles = weight.float().reshape(
        rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    scale = tiles.abs().amax((1, 3)) / 448
    codes = (tiles / scale[:, None, :, None]).reshape(rows, columns)
    return {name: codes.to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}


@pytest.mark.parametrize("shard", ["5GB", "20KB"])
def test_fp8(tmp_path, shard):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, vocab_size=64,
        dtype=torch.bfloat16)).to(torch.bfloat16)
    source = tmp_path / "fp8"
    quantize(model, source, shard, {
        "quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK],
        "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"],
    }, fp8_of)
    haulway.convert(source, f"{tmp_path}/plain/", "safetensors",
                    dequantize=True, shard=shard)
    found = logits(tmp_path / "plain")
    expected = logits(source, quantization_config=transformers.FineGrainedFP8Config(
        dequantize=True, weight_block_size=(BLOCK, BLOCK),
        modules_to_not_convert=["lm_head"]))
    assert torch.equal(found, expected)
    assert torch.isfinite(found).all() and found.std() > 0.01


E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6])


def mxfp4_of(name, weight):
    """gpt-oss stores stacked experts as [experts, out, in / 32, 16] of pairs."""
    if not name.endswith(("gate_up_proj", "down_proj")):
        return None
    groups = weight.float().transpose(1, 2).unflatten(2, (-1, 32))
    exponent = torch.floor(torch.log2(groups.abs().amax(-1))) - 2
    scaled = groups / torch.exp2(exponent)[..., None]
    codes = (scaled.abs()[..., None] - E2M1).abs().argmin(-1)
    codes = (codes + 8 * (scaled < 0)).to(torch.uint8)
    return {
        f"{name}_blocks": codes[..., 0::2] | codes[..., 1::2] << 4,
        f"{name}_scales": (exponent + 127).to(torch.uint8),
    }


def test_mxfp4_of_gpt_oss(tmp_path):
    torch.manual_seed(1)
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, vocab_size=64,
        num_local_experts=4, num_experts_per_tok=2, sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
    )).to(torch.bfloat16)
    source = tmp_path / "mxfp4"
    quantize(model, source, "5GB", {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["lm_head", "model.embed_tokens"],
    }, mxfp4_of)
    haulway.convert(source, f"{tmp_path}/plain/", "safetensors", dequantize=True)
    found = logits(tmp_path / "plain")
    expected = logits(
        source, quantization_config=transformers.Mxfp4Config(dequantize=True))
    assert torch.equal(found, expected)
    assert torch.isfinite(found).all() and found.std() > 0.01
