"""The presets of rules give what transformers has in memory, and what its own
loader of GGUF files gives.
"""

import json
import subprocess

import gguf
import numpy
import pytest
import torch
import transformers
from safetensors.torch import load_file, save, save_file
from transformers.core_model_loading import Concatenate, MergeModulelist, PermuteForRope
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

import haulway

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 96, "head_dim": 8,
         "intermediate_size": 48, "max_position_embeddings": 64}


def experts(kind):
    torch.manual_seed(1)
    if kind == "mixtral":
        config = transformers.MixtralConfig(num_local_experts=12, **SIZES)
    else:
        config = transformers.Qwen3MoeConfig(
            num_experts=12, moe_intermediate_size=16, num_experts_per_tok=2,
            **SIZES)
    return transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16).eval()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(10)[None]).logits


def renamed(state):
    """The names of experts in memory, whatever the block is called on disk."""
    return {name.replace("block_sparse_moe", "mlp"): tensor
            for name, tensor in state.items()}


def equal(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
def test_stacked_experts_are_those_of_the_loaded_model(kind, tmp_path, command):
    model = experts(kind)
    model.save_pretrained(tmp_path / "saved")
    stored = load_file(tmp_path / "saved/model.safetensors")
    assert any(".experts.11." in name for name in stored)
    run = subprocess.run(
        [command, "convert", tmp_path / "saved", f"{tmp_path}/stacked/", "--to",
         "safetensors", "--rules", "stack-experts", "--json"],
        capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["ruled"] == 4
    equal(renamed(load_file(tmp_path / "stacked/model.safetensors")),
          model.state_dict())
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "stacked", dtype=torch.bfloat16)
    assert torch.equal(logits(loaded), logits(model))
    back = haulway.load(tmp_path / "stacked", rules="split-experts")
    if kind == "qwen3_moe":
        equal(back, stored)
    else:
        assert len(back) == len(stored)


def test_operations_are_those_of_transformers():
    generator = torch.Generator().manual_seed(1)
    gate = [torch.randn(6, 5, generator=generator) for _ in range(11)]
    up = [torch.randn(6, 5, generator=generator) for _ in range(11)]
    names = ["gate", "up"]
    merged = MergeModulelist(dim=0).convert(
        {"gate": list(gate), "up": list(up)}, names, ["all"])
    expected = Concatenate(dim=1).convert(merged, names, ["all"])["all"]
    tensors = {f"mlp.experts.{i}.{name}_proj.weight": one
               for name, many in (("gate", gate), ("up", up))
               for i, one in enumerate(many)}
    tensors["mlp.experts.0.down_proj.weight"] = gate[0].clone()
    tensors["q.weight"] = gate[0].repeat(4, 1)
    config = transformers.LlamaConfig(num_attention_heads=2)
    rope = PermuteForRope().convert(
        {"q.weight": tensors["q.weight"]}, ["q.weight"], ["q.weight"],
        config=config)["q.weight"]
    found = haulway.load(
        save(tensors), rules=[
            {"source": ["mlp.experts.*.gate_proj.weight",
                        "mlp.experts.*.up_proj.weight"], "target": "all",
             "ops": [{"stack": {"dim": 0}}, {"concat": {"dim": 1}}]},
            {"source": "q.weight", "target": "q.weight",
             "ops": [{"permute_rope": {"heads": 2}}]}])
    assert torch.equal(found["all"], expected)
    assert torch.equal(found["q.weight"], rope)


def test_experts_of_fp8_are_refused_unless_they_are_dequantized(
        tmp_path, command):
    folder = tmp_path / "fp8"
    folder.mkdir()
    tensors = {}
    for i in range(3):
        for name in ("gate", "up", "down"):
            key = f"model.layers.0.mlp.experts.{i}.{name}_proj.weight"
            tensors[key] = torch.ones(8, 8).to(torch.float8_e4m3fn)
            tensors[f"{key}_scale_inv"] = torch.full((1, 1), 1.5 + i)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({
        "dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8",
                                "weight_block_size": [128, 128]}}))
    words = ["convert", folder, f"{tmp_path}/out/", "--to", "safetensors",
             "--rules", "stack-experts"]
    run = subprocess.run([command, *words], capture_output=True, text=True)
    assert run.returncode == 2
    for word in ("fp8", "the option dequantize", "mlp.experts.0.gate_proj.weight"):
        assert word in run.stderr
    assert not (tmp_path / "out").exists()
    subprocess.run([command, *words, "--dequantize"], check=True)
    found = load_file(tmp_path / "out/model.safetensors")
    stacked = found["model.layers.0.mlp.experts.gate_up_proj"]
    assert stacked.shape == (3, 16, 8)
    assert stacked[2, 0, 0] == 3.5
    raw = haulway.load(folder, rules="stack-experts", raw=True)
    assert (raw["model.layers.0.mlp.experts.down_proj"].dtype
            == torch.float8_e4m3fn)


# GGUF

Q8_0, F16, F32 = (
    gguf.GGMLQuantizationType[name] for name in ("Q8_0", "F16", "F32"))
HIDDEN, HEADS, KV_HEADS, LAYERS, WORDS, INNER = 256, 8, 4, 2, 64, 512


def gguf_model(path, kind, *, tied=False, extra=(), heads=True):
    """Writes a model of an architecture as llama.cpp names its tensors."""
    random = numpy.random.default_rng(7)
    writer = gguf.GGUFWriter(path, kind)
    writer.add_uint32(f"{kind}.block_count", LAYERS)
    writer.add_uint32(f"{kind}.embedding_length", HIDDEN)
    writer.add_uint32(f"{kind}.feed_forward_length", INNER)
    writer.add_uint32(f"{kind}.context_length", 64)
    writer.add_float32(f"{kind}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_uint32(f"{kind}.attention.head_count", HEADS)
    if heads:
        writer.add_uint32(f"{kind}.attention.head_count_kv", KV_HEADS)

    def add(name, *shape, dtype=F32):
        data = random.standard_normal(shape).astype("f4")
        writer.add_tensor(name, gguf.quants.quantize(data, dtype),
                          raw_dtype=dtype)

    size = HIDDEN // HEADS
    rows = KV_HEADS if heads else HEADS
    add("token_embd.weight", WORDS, HIDDEN, dtype=Q8_0)
    add("output_norm.weight", HIDDEN)
    if not tied:
        add("output.weight", WORDS, HIDDEN, dtype=F16)
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        add(f"{at}.attn_norm.weight", HIDDEN)
        add(f"{at}.ffn_norm.weight", HIDDEN)
        add(f"{at}.attn_q.weight", HIDDEN, HIDDEN, dtype=Q8_0)
        add(f"{at}.attn_k.weight", rows * size, HIDDEN, dtype=F16)
        add(f"{at}.attn_v.weight", rows * size, HIDDEN, dtype=Q8_0)
        add(f"{at}.attn_output.weight", HIDDEN, HIDDEN, dtype=Q8_0)
        add(f"{at}.ffn_gate.weight", INNER, HIDDEN, dtype=Q8_0)
        add(f"{at}.ffn_up.weight", INNER, HIDDEN, dtype=F16)
        add(f"{at}.ffn_down.weight", HIDDEN, INNER, dtype=Q8_0)
        if kind == "qwen2":
            for name, count in (("q", HIDDEN), ("k", rows * size),
                                ("v", rows * size)):
                add(f"{at}.attn_{name}.bias", count)
        if kind == "qwen3":
            add(f"{at}.attn_q_norm.weight", size)
            add(f"{at}.attn_k_norm.weight", size)
        if kind == "gemma2":
            add(f"{at}.post_attention_norm.weight", HIDDEN)
            add(f"{at}.post_ffw_norm.weight", HIDDEN)
    for name in extra:
        add(name, 16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


CLASSES = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config,
           "qwen3": transformers.Qwen3Config,
           "gemma2": transformers.Gemma2Config}


def by_transformers(path, kind):
    """The tensors of transformers' loader of GGUF files."""
    config = CLASSES[kind](
        hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
        head_dim=HIDDEN // HEADS, vocab_size=WORDS, tie_word_embeddings=False)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return load_gguf_checkpoint(
        str(path), return_tensors=True, model_to_load=model)["tensors"]


@pytest.mark.parametrize("kind", CLASSES)
def test_gguf_to_hf(kind, tmp_path, command):
    # Gemma's head has the weights of its embeddings.
    path = gguf_model(tmp_path / "m.gguf", kind, tied=kind == "gemma2")
    expected = {name: torch.as_tensor(tensor).float()
                for name, tensor in by_transformers(path, kind).items()}
    found = haulway.load(path, rules="gguf-to-hf", dequantize=True)
    equal(found, expected)
    subprocess.run([command, "convert", path, tmp_path / "m.safetensors",
                    "--rules", "gguf-to-hf", "--dequantize"], check=True)
    equal(load_file(tmp_path / "m.safetensors"), expected)
    half = haulway.load(path, rules="gguf-to-hf", dequantize=True, dtype="bf16")
    for name, tensor in half.items():
        if "norm" not in name or kind != "gemma2":
            assert torch.equal(tensor, expected[name].bfloat16()), name


def test_gguf_to_hf_without_what_may_be_missing(tmp_path):
    path = gguf_model(tmp_path / "m.gguf", "llama", tied=True, heads=False,
                      extra=["rope_freqs.weight"])
    found = haulway.load(path, rules="gguf-to-hf", dequantize=True)
    assert not {name for name in found if not name.startswith("model.")}
    plain = haulway.load(path, dequantize=True)["blk.0.attn_k.weight"]
    split = plain.reshape(HEADS, HIDDEN // HEADS // 2, 2, HIDDEN)
    assert torch.equal(found["model.layers.0.self_attn.k_proj.weight"],
                       split.transpose(1, 2).reshape(HIDDEN, HIDDEN))


@pytest.mark.parametrize("kind, extra, dequantize, words", [
    ("phi3", [], True, "the architecture 'phi3'"),
    ("llama", ["blk.0.ffn_gate_exps.weight"], True,
     "blk.0.ffn_gate_exps.weight"),
    ("llama", [], False, "the option dequantize"),
])
def test_gguf_to_hf_refuses(kind, extra, dequantize, words, tmp_path, command):
    path = gguf_model(tmp_path / "m.gguf", kind, extra=extra)
    with pytest.raises(haulway.UnsupportedError, match=words):
        haulway.load(path, rules="gguf-to-hf", dequantize=dequantize)
    run = subprocess.run(
        [command, "convert", path, tmp_path / "m.safetensors", "--rules",
         "gguf-to-hf", *(["--dequantize"] if dequantize else [])],
        capture_output=True, text=True)
    assert run.returncode == 2
    assert words in run.stderr
    assert not (tmp_path / "m.safetensors").exists()


def test_presets_that_match_nothing(tmp_path, command):
    save_file({"a.weight": torch.ones(2)}, tmp_path / "m.safetensors")
    for preset, code in (("stack-experts", 3), ("split-experts", 3),
                         ("gguf-to-hf", 2), ("stack-expert", 2)):
        run = subprocess.run(
            [command, "convert", tmp_path / "m.safetensors",
             tmp_path / "out.safetensors", "--rules", preset],
            capture_output=True, text=True)
        assert run.returncode == code, run.stderr
        assert preset in run.stderr
    assert "did you mean 'stack-experts'?" in run.stderr


ROWS = {"gate_up_proj": torch.ones(2, 8, 6), "down_proj": torch.ones(2, 6, 4)}
TURNED = {name: tensor.transpose(1, 2).contiguous()
          for name, tensor in ROWS.items()}
OTHERS = {
    "gpt_oss": ({"model_type": "gpt_oss"}, ROWS, "model_type 'gpt_oss'"),
    "transposed": (None, TURNED, "mlp.experts.gate_up_proj'"),
    "transposed, as wide as long": (
        {"model_type": "x"}, {"gate_up_proj": torch.ones(2, 8, 8),
                              "down_proj": torch.ones(2, 4, 8)},
        "mlp.experts.gate_up_proj'"),
    "biases": (None, {**ROWS, "gate_up_proj_bias": torch.ones(2, 8)},
               "mlp.experts.gate_up_proj_bias'"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_experts_of_another_layout_are_not_split(kind, tmp_path, run):
    config, tensors, word = OTHERS[kind]
    folder = tmp_path / "m"
    folder.mkdir()
    save_file({f"model.layers.0.mlp.experts.{name}": tensor
               for name, tensor in tensors.items()}, folder / "model.safetensors")
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    done = run("convert", "m", "out/", "--to", "safetensors", "--rules",
               "split-experts", code=2)
    for text in ("do not know this layout of experts", word):
        assert text in done.stderr
    assert not (tmp_path / "out").exists()
    with pytest.raises(haulway.UnsupportedError, match=word):
        haulway.load(folder, rules="split-experts")
