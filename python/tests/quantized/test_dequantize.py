"""Quantized models become the plain weights that their formulas give, in every
call that reads them.
"""

import json
import subprocess

import pytest
import torch

import haulway
from quantized_cases import CASES, WEIGHT, same


def check(found, case):
    assert set(found) == set(case.expected)
    for name, expected in case.expected.items():
        assert same(found[name], expected), name


@pytest.fixture(params=CASES, ids=repr)
def case(request):
    return request.param


def test_load_open_and_iterate(case, tmp_path):
    model = case.write(tmp_path / "model")
    check(haulway.load(model, dequantize=True), case)
    check(dict(haulway.iterate(model, dequantize=True)), case)
    with haulway.open(model, dequantize=True) as opened:
        check(opened, case)
        for name, expected in case.expected.items():
            info = opened.info(name)
            assert tuple(info.shape) == tuple(expected.shape)
            part = opened.get_slice(name)
            middle = expected.shape[0] // 2
            assert same(part[middle:], expected[middle:])
            assert same(part[..., 1:4], expected[..., 1:4])
    check(haulway.load(model, dequantize=True, io="pread", threads=1), case)


def test_convert_writes_a_model(case, tmp_path):
    model = case.write(tmp_path / "model")
    before = {file.name: file.read_bytes() for file in model.iterdir()}
    done = haulway.convert(model, f"{tmp_path}/plain/", "safetensors",
                           dequantize=True, proof=True)
    plain = tmp_path / "plain"
    check(haulway.load(plain), case)
    assert done.dequantized == 1
    quantized = set(case.tensors) - {WEIGHT}
    assert set(done.dropped) == quantized - set(case.expected) - {
        name for name in quantized
        if name.endswith(("qweight", "_packed", "_blocks"))
    }
    config = json.loads((plain / "config.json").read_text())
    assert config == {"model_type": "llama", "dtype": case.dtype}
    assert (plain / "tokenizer.json").read_text() == "{}"
    assert not (plain / "hf_quant_config.json").exists()
    assert {file.name: file.read_bytes() for file in model.iterdir()} == before


def test_dtype_of_the_result_is_rounded_to_once(tmp_path):
    case = next(one for one in CASES if one.name == "fp8")
    model = case.write(tmp_path / "model")
    exact = haulway.load(model, dequantize=True, dtype=torch.float32)[WEIGHT]
    half = haulway.load(model, dequantize=True, dtype=torch.float16)[WEIGHT]
    assert same(half, exact.half())
    assert not same(half, exact.bfloat16().half())
    haulway.convert(model, f"{tmp_path}/half/", "safetensors", dtype="f16",
                    dequantize=True)
    found = haulway.load(tmp_path / "half")
    assert same(found[WEIGHT], half)
    assert found["model.norm.weight"].dtype == torch.float16
    config = json.loads((tmp_path / "half/config.json").read_text())
    assert config["dtype"] == "float16"


def test_scales_may_lie_in_another_shard(tmp_path):
    from safetensors.torch import save_file

    case = next(one for one in CASES if one.name == "fp8 edges")
    model = case.write(tmp_path / "model")
    (model / "model.safetensors").unlink()
    names = sorted(case.tensors)
    shards = {name: f"model-0000{i + 1}-of-0000{len(names)}.safetensors"
              for i, name in enumerate(names)}
    for name, file in shards.items():
        save_file({name: case.tensors[name]}, model / file)
    check(haulway.load(model, dequantize=True), case)
    (model / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": shards}))
    check(haulway.load(model, dequantize=True), case)
    found = haulway.load(model, dequantize=True, include=WEIGHT)
    assert set(found) == {WEIGHT} and same(found[WEIGHT], case.expected[WEIGHT])
    done = haulway.convert(model, f"{tmp_path}/plain/", "safetensors",
                           dequantize=True, shard="50k")
    assert len(done.files) == 3 and done.files[-1].endswith(".index.json")
    check(haulway.load(tmp_path / "plain"), case)


def test_a_checkpoint_of_torch(tmp_path):
    case = next(one for one in CASES if one.name == "gptq W4 g_idx shuffled")
    model = case.write(tmp_path / "model")
    (model / "model.safetensors").unlink()
    torch.save(case.tensors, model / "pytorch_model.bin")
    check(haulway.load(model, dequantize=True), case)


def test_a_plain_model_is_not_changed(tmp_path):
    from safetensors.torch import save_file

    tensors = {"a.weight": torch.ones(3, 4), "layer_scale": torch.ones(4)}
    save_file(tensors, tmp_path / "model.safetensors")
    found = haulway.load(tmp_path / "model.safetensors", dequantize=True)
    assert set(found) == set(tensors)
    done = haulway.convert(tmp_path / "model.safetensors",
                           tmp_path / "out.safetensors", dequantize=True)
    assert done.dequantized == 0 and done.quantization is None


def test_the_command(tmp_path, command):
    case = next(one for one in CASES if one.name == "awq")
    model = case.write(tmp_path / "model")
    run = subprocess.run(
        [command, "convert", model, f"{tmp_path}/plain/", "--to", "safetensors",
         "--dequantize", "--json"], check=True, capture_output=True)
    done = json.loads(run.stdout)
    assert done["quantization"] == "awq" and done["dequantized"] == 1
    check(haulway.load(tmp_path / "plain"), case)
    info = json.loads(subprocess.run(
        [command, "info", model, "--json"], check=True, capture_output=True
    ).stdout)
    assert info["quantization"] == {"method": "awq", "format": "GEMM",
                                    "weights": 1}
    plain = json.loads(subprocess.run(
        [command, "info", tmp_path / "plain", "--json"], check=True,
        capture_output=True).stdout)
    assert plain["quantization"] is None
    rows = json.loads(subprocess.run(
        [command, "ls", model, "--dequantize", "--json"], check=True,
        capture_output=True).stdout)["tensors"]
    assert {row["name"]: row["dtype"] for row in rows}[WEIGHT] == "F16"
