"""Conversions with arithmetic need their memory budget, and not the model's
memory.
"""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

EXPERTS = "model.layers.0.mlp.experts"


def quantized(folder):
    save_file({"w.weight": torch.zeros(10_000, 8000, dtype=torch.float8_e4m3fn),
               "w.weight_scale_inv": torch.ones(79, 63)},
              folder / "model.safetensors")
    return ["--dequantize"]


def adapted(folder):
    save_file({"w.weight": torch.zeros(6000, 5000)}, folder / "model.safetensors")
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": 4, "lora_alpha": 4}))
    save_file({"base_model.model.w.lora_A.weight": torch.ones(4, 5000),
               "base_model.model.w.lora_B.weight": torch.ones(6000, 4)},
              adapter / "adapter_model.safetensors")
    return ["--lora", adapter]


def of_experts(folder):
    save_file({f"{EXPERTS}.{i}.{name}_proj.weight": torch.zeros(1024, 1536)
               for i in range(8) for name in ("gate", "up", "down")},
              folder / "model.safetensors")
    return ["--rules", "stack-experts"]


def of_stacked_experts(folder):
    save_file({f"{EXPERTS}.gate_up_proj": torch.zeros(8, 2048, 1536),
               f"{EXPERTS}.down_proj": torch.zeros(8, 1536, 1024)},
              folder / "model.safetensors")
    return ["--rules", "split-experts"]


def transposed(folder):
    save_file({"w": torch.zeros(6000, 5000)}, folder / "model.safetensors")
    (folder / "rules.json").write_text(json.dumps({"rules": [
        {"source": "w", "target": "w",
         "ops": [{"transpose": {"dims": [0, 1]}}, {"cast": {"dtype": "bf16"}}]}]}))
    return ["--rules", folder / "rules.json"]


# The peak of a child begins with that of its parent, which is small here.
PARENT = """
import os, sys
pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, used = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss)
"""


@pytest.mark.parametrize("make", [
    quantized, adapted, of_experts, of_stacked_experts, transposed])
def test_memory_stays_near_the_budget(make, tmp_path, command):
    options = make(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", PARENT, command, "convert",
         tmp_path / "model.safetensors", tmp_path / "new.safetensors",
         "--memory-budget", "16MiB", "--threads", "2", *options],
        capture_output=True, text=True)
    code, peak = ran.stdout.split()[-2:]
    assert code == "0", ran.stderr
    assert int(peak) < 64 << 10  # KiB; the models have 80 MB and more.
