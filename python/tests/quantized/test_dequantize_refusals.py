"""What is damaged or not known is refused by name, and nothing is written."""

import json
import subprocess

import pytest
import torch

import haulway
from quantized_cases import CASES, ROOT, WEIGHT

CASE = {case.name: case for case in CASES}


def said(text, tmp_path):
    """Returns a message without paths, which have the names of cases."""
    return text.replace(str(tmp_path), "")


def refused(case, tmp_path, command, code, *words):
    """Checks that opening and converting fail with these words."""
    model = case.write(tmp_path / "model")
    run = subprocess.run(
        [command, "convert", model, f"{tmp_path}/plain/", "--to", "safetensors",
         "--dequantize"], capture_output=True, text=True)
    assert run.returncode == code, run.stderr
    for word in words:
        assert word in said(run.stderr, tmp_path)
    assert not (tmp_path / "plain").exists()
    with pytest.raises(haulway.Error) as raised:
        haulway.load(model, dequantize=True)
    for word in words:
        assert word in said(str(raised.value), tmp_path)


def changed(name, config=None, drop=(), **tensors):
    case = CASE[name]
    made = type(case)(case.name, case.config, case.tensors, {}, case.dtype,
                      case.others)
    made.tensors = {key: value for key, value in case.tensors.items()
                    if key.rpartition(".")[2] not in drop}
    for key, value in tensors.items():
        made.tensors[f"{ROOT}.{key}"] = value
    if config:
        made.config = {**case.config, **config}
    return made


INT = torch.int32
DAMAGED = {
    "scale is missing": (changed("fp8", drop=["weight_scale_inv"]), WEIGHT),
    "weight is missing": (changed("fp8", drop=["weight"]),
                          f"{WEIGHT}_scale_inv"),
    "weight is plain": (changed("fp8", weight=torch.ones(256, 256)), WEIGHT),
    "grid does not fit": (
        changed("fp8", weight_scale_inv=torch.ones(3, 2)),
        f"{WEIGHT}_scale_inv"),
    "scale is whole numbers": (
        changed("fp8", weight_scale_inv=torch.ones(2, 2, dtype=INT)),
        f"{WEIGHT}_scale_inv"),
    "qzeros are missing": (changed("gptq W4 g_idx none", drop=["qzeros"]),
                           f"{ROOT}.qzeros"),
    "qweight is missing": (changed("gptq W4 g_idx none", drop=["qweight"]),
                           f"{ROOT}.qzeros"),
    "g_idx out of range": (
        changed("gptq W4 g_idx plain",
                g_idx=torch.full((96,), 99, dtype=INT)), "group 99"),
    "g_idx negative": (
        changed("gptq W4 g_idx plain",
                g_idx=torch.full((96,), -1, dtype=INT)), "group -1"),
    "g_idx too short": (
        changed("gptq W4 g_idx plain", g_idx=torch.zeros(5, dtype=INT)),
        f"{ROOT}.g_idx"),
    "group size does not divide": (
        changed("gptq W4 g_idx none", config={"group_size": 33}),
        f"{ROOT}.scales"),
    "bits do not fit": (changed("gptq W4 g_idx none", config={"bits": 3}),
                        ROOT),
    "shape is huge": (
        changed("ct W4 dense", weight_shape=torch.tensor([37, 2**40])),
        f"{WEIGHT}_packed"),
    "shape is negative": (
        changed("ct W4 dense", weight_shape=torch.tensor([37, -1])),
        f"{WEIGHT}_shape"),
    "shape of three numbers": (
        changed("ct W4 dense", weight_shape=torch.tensor([37, 224, 1])),
        f"{WEIGHT}_shape"),
    "shape is missing": (changed("ct W4 dense", drop=["weight_shape"]),
                         f"{WEIGHT}_packed"),
    "zero points do not fit": (
        changed("ct W4 dense",
                weight_zero_point=torch.zeros(4, 7, dtype=INT)),
        f"{WEIGHT}_zero_point"),
    "global scale of two": (
        changed("ct nvfp4", weight_global_scale=torch.ones(2)),
        f"{WEIGHT}_global_scale"),
    "second scale is missing": (
        changed("modelopt nvfp4", drop=["weight_scale_2"]),
        f"{WEIGHT}_scale_2"),
    "zero points are missing": (
        changed("ct W4 dense", config={"config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {
                "num_bits": 4, "symmetric": False}}}},
            drop=["weight_zero_point"]), f"{WEIGHT}_zero_point"),
    "g_idx is missing": (
        changed("gptq W4 g_idx none", config={"desc_act": True}),
        f"{ROOT}.g_idx"),
    "SCB is missing": (changed("bnb int8", drop=["SCB"]), WEIGHT),
    "absmax is missing": (changed("bnb nf4", drop=["absmax"]), WEIGHT),
    "absmax is too short": (
        changed("bnb nf4", **{"weight.absmax": torch.ones(3)}),
        f"{WEIGHT}.absmax"),
}


def state(**values):
    given = {"quant_type": "nf4", "blocksize": 64, "dtype": "float16",
             "shape": [96, 128], **values}
    text = json.dumps(given).encode()
    return {"weight.quant_state.bitsandbytes__nf4":
            torch.tensor(list(text), dtype=torch.uint8)}


STATE = f"{WEIGHT}.quant_state.bitsandbytes__nf4"
DAMAGED |= {
    "block size of 0": (changed("bnb nf4", **state(blocksize=0)), STATE),
    "shape of 2^40": (changed("bnb nf4", **state(shape=[2**40])), WEIGHT),
    "shape overflows": (changed("bnb nf4", **state(shape=[2**62, 2**62])),
                        WEIGHT),
    "state is no JSON": (
        changed("bnb nf4", **{"weight.quant_state.bitsandbytes__nf4":
                              torch.zeros(9, dtype=torch.uint8)}), STATE),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged(what, tmp_path, command):
    case, name = DAMAGED[what]
    refused(case, tmp_path, command, 1, name)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype", "text_config"])
@pytest.mark.parametrize("word", ["int8", "float23", "complex64"])
def test_a_dtype_that_weights_cannot_have(key, word, tmp_path, run):
    model = CASE["fp8"].write(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    del config["dtype"]
    config[key] = {"dtype": word} if key == "text_config" else word
    (model / "config.json").write_text(json.dumps(config))
    done = run("convert", "model", "plain/", "--to", "safetensors",
               "--dequantize", code=1)
    assert f"dtype '{word}'" in done.stderr and "config.json" in done.stderr
    assert not (tmp_path / "plain").exists()
    with pytest.raises(haulway.CorruptError, match="config.json"):
        haulway.load(model, dequantize=True)
    # Who names a dtype needs none, and neither does who reads what is stored.
    named = haulway.load(model, dequantize=True, dtype="bf16")
    assert named[WEIGHT].dtype == torch.bfloat16
    assert haulway.load(model) and run("info", "model")


UNKNOWN = {
    "aqlm": (changed("fp8", config={"quant_method": "aqlm"}), "aqlm"),
    "gemv": (changed("awq", config={"version": "gemv"}), "gemv"),
    "marlin-24": (changed("ct W4 dense", config={"format": "marlin-24"}),
                  "marlin-24"),
    "W4A8_AWQ": (changed("modelopt fp8", config={"quant_algo": "W4A8_AWQ"}),
                 "W4A8_AWQ"),
    "5 bits": (changed("gptq W4 g_idx none", config={"bits": 5}), "5 bits"),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_unknown(what, tmp_path, command):
    case, word = UNKNOWN[what]
    refused(case, tmp_path, command, 2, word)


def test_undeclared(tmp_path, command):
    case = changed("awq")
    case.config = None
    refused(case, tmp_path, command, 2, ROOT, "config.json")


@pytest.mark.parametrize("name", [
    "fp8", "fbgemm", "ct float torch.bfloat16", "ct W4 dense", "ct nvfp4",
    "gptq W4 g_idx none", "awq", "mxfp4 of 3 experts, 40 outputs",
    "modelopt nvfp4", "bnb nf4", "bnb int8",
])
def test_casts(name, tmp_path, command):
    case = CASE[name]
    model = case.write(tmp_path / "model")
    method = (case.config or {"quant_method": "modelopt"})["quant_method"]
    words = ["the option dequantize", method]

    def check(message):
        for word in words:
            assert word in said(message, tmp_path)

    run = subprocess.run(
        [command, "convert", model, f"{tmp_path}/cast/", "--to", "safetensors",
         "--dtype", "f32"], capture_output=True, text=True)
    assert run.returncode == 2
    check(run.stderr)
    assert not (tmp_path / "cast").exists()
    with pytest.raises(haulway.UnsupportedError) as raised:
        haulway.load(model, dtype="f32")
    check(str(raised.value))
    haulway.convert(model, f"{tmp_path}/raw/", "safetensors", dtype="f32",
                    raw=True)
    found = haulway.load(tmp_path / "raw")
    assert set(found) == set(case.tensors)
    for key, tensor in case.tensors.items():
        expected = tensor.float() if tensor.is_floating_point() else tensor
        assert torch.equal(found[key].nan_to_num(), expected.nan_to_num())
    with pytest.raises(haulway.InvalidArgumentError):
        haulway.load(model, dequantize=True, raw=True)


def test_the_folder_of_the_model_is_not_written_to(tmp_path):
    case = CASE["gptq W4 g_idx none"]
    model = case.write(tmp_path / "model")
    (model / "model.safetensors").rename(model / "gptq_model.safetensors")
    before = sorted(file.name for file in model.iterdir())
    with pytest.raises(haulway.InvalidArgumentError):
        haulway.convert(model, f"{model}/", "safetensors", dequantize=True)
    assert sorted(file.name for file in model.iterdir()) == before
