"""Adapters that cannot be merged are refused by name, and nothing is written;
models in several files, of other formats, and quantized ones.
"""

import json
import pickle
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

import haulway
from lora_models import check_near, merged, write_adapter, write_model
from quantized_cases import CASES, WEIGHT, same

MODULE = "model.layers.0.self_attn.q_proj"
KEY = f"base_model.model.{MODULE}"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("lora") / "model")


@pytest.fixture(scope="module")
def adapter(base):
    return write_adapter(base.parent / "adapter", base)


def rewritten(adapter, folder, config=None, drop=(), **tensors):
    """Writes the adapter with other fields and tensors. A tensor's name has "/"
    in place of the path of KEY."""
    found = json.loads((adapter / "adapter_config.json").read_text())
    kept = load_file(adapter / "adapter_model.safetensors")
    for ending in drop:
        del kept[KEY + ending]
    for name, tensor in tensors.items():
        kept[name.replace("/", KEY)] = tensor
    folder.mkdir()
    (folder / "adapter_config.json").write_text(
        json.dumps({**found, **(config or {})}))
    save_file(kept, folder / "adapter_model.safetensors")
    return folder


ONE = torch.ones(1)
# What is changed, the exit code, and words of the message.
REFUSED = {
    "no such module": (
        {"base_model.model.model.nothing.lora_A.weight": torch.ones(4, 64),
         "base_model.model.model.nothing.lora_B.weight": torch.ones(64, 4)},
        {}, (), 1, "model.nothing.weight"),
    "no such tensor": ({"base_model.model.model.other": ONE}, {}, (), 1,
                       "model.other"),
    "half of a pair": ({}, {}, [".lora_B.weight"], 1, "lora_B"),
    "inputs do not fit": ({"/.lora_A.weight": torch.ones(4, 63)}, {}, (), 1,
                          f"{MODULE}.lora_A.weight"),
    "outputs do not fit": ({"/.lora_B.weight": torch.ones(65, 4)}, {}, (), 1,
                           f"{MODULE}.lora_A.weight"),
    "ranks differ": ({"/.lora_B.weight": torch.ones(64, 5)}, {}, (), 1,
                     f"{MODULE}.lora_B.weight"),
    "rank is another": ({}, {"r": 5}, (), 1, "[5, ...]"),
    "rank of 0": ({}, {"r": 0}, (), 1, "'r'"),
    "a factor of one dimension": ({"/.lora_A.weight": torch.ones(4)}, {}, (), 1,
                                  f"{MODULE}.lora_A.weight"),
    "whole tensor of another shape": (
        {"base_model.model.lm_head.weight": torch.ones(3, 64)}, {}, (), 1,
        "lm_head.weight"),
    "whole numbers": ({"/.lora_A.weight": torch.ones(4, 64, dtype=torch.int32)},
                      {}, (), 2, f"{MODULE}.lora_A.weight"),
    "magnitudes are missing": ({}, {"use_dora": True}, (), 1,
                               "lora_magnitude_vector"),
    "magnitudes without use_dora": (
        {"/.lora_magnitude_vector": torch.ones(64)}, {}, (), 1,
        "lora_magnitude_vector"),
    "bias without a bias": (
        {"base_model.model.lm_head.lora_A.weight": torch.ones(4, 64),
         "base_model.model.lm_head.lora_B.weight": torch.ones(96, 4),
         "base_model.model.lm_head.lora_B.bias": torch.ones(96)},
        {}, (), 1, "lm_head.bias"),
    "other peft_type": ({}, {"peft_type": "IA3"}, (), 2, "IA3"),
    "no peft_type": ({}, {"peft_type": None}, (), 2, "peft_type"),
    "target_parameters": ({}, {"target_parameters": ["experts.down"]}, (), 2,
                          "target_parameters"),
    "alora": ({}, {"alora_invocation_tokens": [1]}, (), 2,
              "alora_invocation_tokens"),
    "qalora": ({}, {"use_qalora": True}, (), 2, "use_qalora"),
    "arrow": ({}, {"arrow_config": {"top_k": 2}}, (), 2, "arrow_config"),
    "layers are copied": ({}, {"layer_replication": [[0, 2]]}, (), 2,
                          "layer_replication"),
    "pissa": ({}, {"init_lora_weights": "pissa"}, (), 2, "pissa"),
    "a pattern that is none": ({}, {"rank_pattern": {"(": 4}}, (), 2, "("),
    "a key of another kind": ({"/.lora_E": torch.ones(4, 1)}, {}, (), 2,
                              f"{MODULE}.lora_E"),
    "kohya": ({"lora_unet_mid_block_to_q.lora_down.weight": torch.ones(4, 64)},
              {}, (), 2, "kohya"),
    "config is no object": ({}, None, (), 1, "adapter_config.json"),
}


def refused(base, adapter, tmp_path, command, code, *words):
    run = subprocess.run(
        [command, "convert", base, f"{tmp_path}/merged/", "--to", "safetensors",
         "--lora", adapter], capture_output=True, text=True)
    assert run.returncode == code, run.stderr
    assert not (tmp_path / "merged").exists()
    with pytest.raises(haulway.Error) as raised:
        haulway.load(base, lora=adapter)
    for word in words:
        assert word in run.stderr
        assert word in str(raised.value)


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what, base, adapter, tmp_path, command):
    tensors, config, drop, code, word = REFUSED[what]
    changed = rewritten(adapter, tmp_path / "changed", config, drop, **tensors)
    if config is None:
        (changed / "adapter_config.json").write_text("[]")
    refused(base, changed, tmp_path, command, code, word)


def test_missing_files(base, adapter, tmp_path, command):
    changed = rewritten(adapter, tmp_path / "changed")
    (changed / "adapter_config.json").unlink()
    refused(base, changed, tmp_path, command, 2, "adapter_config.json")
    refused(base, tmp_path / "nothing", tmp_path, command, 2, "nothing")
    (changed / "adapter_model.safetensors").unlink()
    refused(base, changed, tmp_path, command, 2, "adapter_model.safetensors")


def test_two_adapters_that_replace_one_tensor(base, tmp_path):
    saved = write_adapter(tmp_path / "saved", base, modules_to_save=["lm_head"])
    changing = write_adapter(tmp_path / "changing", base,
                             target_modules=["lm_head"])
    for other in (saved, changing):
        with pytest.raises(haulway.Error, match="lm_head"):
            haulway.load(base, lora=[saved, other])


@pytest.mark.parametrize("saved", [["lm_head"], ["embed_tokens"],
                                   ["embed_tokens", "lm_head"]])
def test_a_replaced_tensor_unties_the_model(saved, tmp_path):
    base = write_model(tmp_path / "tied", tied=True)
    adapter = write_adapter(tmp_path / "adapter", base, modules_to_save=saved)
    expected = merged(base, [(adapter, 1.0)])
    assert "lm_head.weight" in expected
    stored = load_file(base / "model.safetensors")
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"]
    check_near(haulway.load(base, lora=adapter), expected, stored)
    haulway.convert(base, f"{tmp_path}/merged/", "safetensors", lora=adapter)
    check_near(load_file(tmp_path / "merged/model.safetensors"), expected,
               stored)
    config = json.loads((base / "config.json").read_text())
    assert json.loads((tmp_path / "merged/config.json").read_text()) == {
        **config, "tie_word_embeddings": False}
    other = write_adapter(tmp_path / "other", base, target_modules=["lm_head"])
    with pytest.raises(haulway.UnsupportedError, match="lm_head"):
        haulway.load(base, lora=[adapter, other])


def test_a_tied_weight_that_is_stored_twice(tmp_path, command):
    base = write_model(tmp_path / "tied", tied=True)
    stored = load_file(base / "model.safetensors")
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"].clone()
    adapter = write_adapter(tmp_path / "adapter", base,
                            target_modules=["lm_head"])
    save_file(stored, base / "model.safetensors")
    refused(base, adapter, tmp_path, command, 2, "lm_head",
            "tie_word_embeddings")


def test_wrong_options(base, adapter, command):
    for wrong in (3, [3], [(adapter, "1")], [(adapter, float("nan"))],
                  {adapter: "1"}, {adapter: None}):
        with pytest.raises((haulway.Error, TypeError), match="lora.* expected"):
            haulway.load(base, lora=wrong)
    with pytest.raises(TypeError, match="a pair of a path and a weight"):
        haulway.load(base, lora=[(adapter, "1")])
    with pytest.raises(haulway.InvalidArgumentError, match="raw"):
        haulway.load(base, lora=adapter, raw=True)
    for wrong in (":1", f"{adapter}:inf"):
        run = subprocess.run([command, "convert", base, "m.safetensors",
                              "--lora", wrong], capture_output=True, text=True)
        assert run.returncode == 4
        assert "--lora: expected ADAPTER or ADAPTER:WEIGHT" in run.stderr
        assert run.stderr.count("--lora:") == 1


def test_paths_and_weights(base, adapter):
    plain = haulway.load(base, lora=[(adapter, 1)])
    for lora in (adapter, str(adapter), [adapter], (adapter, 1.0),
                 adapter / "adapter_model.safetensors"):
        found = haulway.load(base, lora=lora)
        assert all(torch.equal(found[name], plain[name]) for name in plain)
    half = haulway.load(base, lora=[(adapter, 0.5)])
    found = haulway.load(base, lora={adapter: 0.5})
    assert all(torch.equal(found[name], half[name]) for name in half)
    assert any(not torch.equal(found[name], plain[name]) for name in plain)
    none = haulway.load(base, lora=(adapter, 0))
    stored = load_file(base / "model.safetensors")
    assert all(torch.equal(none[name], stored[name]) for name in stored)


def test_include_selects_results(base, adapter):
    name = f"{MODULE}.weight"
    whole = haulway.load(base, lora=adapter)
    found = haulway.load(base, lora=adapter, include="*.q_proj.weight")
    assert len(found) == 2 and torch.equal(found[name], whole[name])


def test_several_shards(base, adapter, tmp_path):
    haulway.convert(base, f"{tmp_path}/shards/", "safetensors", shard=40_000)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    whole = haulway.load(base, lora=adapter)
    for found in (
        haulway.load(tmp_path / "shards", lora=adapter),
        haulway.load(tmp_path / "shards", lora=adapter,
                     include=[*whole]),
    ):
        assert set(found) == set(whole)
        assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_torch_files_keep_ties(base, adapter, tmp_path):
    stored = load_file(base / "model.safetensors")
    name = f"{MODULE}.weight"
    stored["same"] = stored[name]
    torch.save(stored, tmp_path / "model.pt")
    found = haulway.load(tmp_path / "model.pt", lora=adapter)
    assert found["same"].data_ptr() == found[name].data_ptr()
    assert torch.equal(found[name], haulway.load(base, lora=adapter)[name])
    stored["same"] = stored[name][3:5]
    torch.save(stored, tmp_path / "model.pt")
    with pytest.raises(haulway.UnsupportedError, match="shares memory"):
        haulway.load(tmp_path / "model.pt", lora=adapter)


def test_names_without_the_part_of_the_model(tmp_path):
    base = write_model(tmp_path / "gpt2", kind="gpt2")
    adapter = write_adapter(tmp_path / "adapter", base,
                            target_modules=["c_attn"], fan_in_fan_out=True)
    whole = haulway.load(base, lora=adapter)
    stored = load_file(base / "model.safetensors")
    save_file({name.removeprefix("transformer."): tensor
               for name, tensor in stored.items()}, tmp_path / "m.safetensors")
    found = haulway.load(tmp_path / "m.safetensors", lora=adapter)
    assert all(torch.equal(found[name.removeprefix("transformer.")], tensor)
               for name, tensor in whole.items())


def _of_weight(case, base, adapter, tmp_path):
    """Returns the adapter with the factors of a module of a quantized case."""
    module = f"base_model.model.{WEIGHT.removesuffix('.weight')}"
    rows, columns = case.expected[WEIGHT].shape
    torch.manual_seed(5)
    folder = tmp_path / "adapter"
    folder.mkdir()
    config = json.loads((adapter / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config))
    factors = {"A": torch.randn(4, columns) * .1, "B": torch.randn(rows, 4) * .1}
    save_file({f"{module}.lora_{name}.weight": factor
               for name, factor in factors.items()},
              folder / "adapter_model.safetensors")
    return folder, 2 * factors["B"] @ factors["A"]


@pytest.mark.parametrize("name", ["fp8", "gptq W4 g_idx none", "awq", "bnb nf4",
                                  "ct W4 dense"])
def test_quantized(name, base, adapter, tmp_path, command):
    case = next(one for one in CASES if one.name == name)
    model = case.write(tmp_path / "model")
    adapter, delta = _of_weight(case, base, adapter, tmp_path)
    refused(model, adapter, tmp_path, command, 2, "the option dequantize",
            f"quantized by {case.config['quant_method']}"
            if case.config else WEIGHT.removesuffix(".weight"))
    plain = haulway.load(model, dequantize=True)
    expected = dict(plain)
    expected[WEIGHT] = (plain[WEIGHT].float() + delta).to(plain[WEIGHT].dtype)
    found = haulway.load(model, dequantize=True, lora=adapter)
    check_near(found, expected, plain)
    with haulway.open(model, dequantize=True, lora=adapter) as opened:
        assert same(opened.get_slice(WEIGHT)[3:7], found[WEIGHT][3:7])
    done = haulway.convert(model, f"{tmp_path}/merged/", "safetensors",
                           dequantize=True, lora=adapter)
    assert (done.dequantized, done.merged) == (1, 1)
    written = haulway.load(tmp_path / "merged")
    assert all(same(written[name], found[name]) for name in found)
    assert "quantization_config" not in json.loads(
        (tmp_path / "merged/config.json").read_text())


def test_the_cast_comes_last(base, adapter):
    half = haulway.load(base, lora=adapter)
    wide = haulway.load(base, lora=adapter, dtype=torch.float32)
    assert all(torch.equal(wide[name], tensor.float())
               for name, tensor in half.items())


def test_merged_by_peft_of_an_older_file(base, adapter, tmp_path):
    """A file of torch, as peft wrote it before safetensors."""
    old = tmp_path / "old"
    old.mkdir()
    (old / "adapter_config.json").write_text(
        (adapter / "adapter_config.json").read_text())
    torch.save(load_file(adapter / "adapter_model.safetensors"),
               old / "adapter_model.bin")
    stored = load_file(base / "model.safetensors")
    check_near(haulway.load(base, lora=old), merged(base, [(adapter, 1.0)]),
               stored)


def test_over_http(base, adapter, nginx, tmp_path):
    for folder in (base, adapter):
        for file in folder.iterdir():
            nginx.put(f"{folder.name}/{file.name}", file)
    whole = haulway.load(base, lora=adapter)
    url = nginx.url("adapter/adapter_model.safetensors")
    for model in (base, nginx.url("model/model.safetensors")):
        found = haulway.load(model, lora=(url, 1))
        assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_another_process_merges_too(base, adapter):
    whole = haulway.load(base, lora=(adapter, 2))
    with haulway.open(base, lora=(adapter, 2)) as opened:
        again = pickle.loads(pickle.dumps(opened))
    with again:
        assert torch.equal(again[f"{MODULE}.weight"], whole[f"{MODULE}.weight"])


def test_a_signed_model(base, adapter, command):
    with pytest.raises(haulway.InvalidArgumentError, match="lora"):
        haulway.load(base, lora=adapter, public_key="key.pem",
                     require_signature=True)
