"""Seeds of the fuzzers of arithmetic: quantized models, models with rules, and
models with adapters."""

import json
import math
import struct

FLOAT = ("F32", 4)


def after_length(part):
    return struct.pack("<H", len(part)) + part


def safetensors_of(tensors, parts=None):
    """Returns a file with tensors of {name: ((dtype, bytes of one), shape)},
    filled with the beginning of `parts`, by name."""
    header, data = {}, b""
    for name, ((dtype, size), shape) in tensors.items():
        count = size * math.prod(shape)
        part = bytes(range(256)) * 4 if parts is None else parts[name]
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + count]}
        data += part[:count]
    front = json.dumps(header).encode()
    return struct.pack("<Q", len(front)) + front + data


def quantized_models():
    """Makes models of each quantization, with config.json before the file."""
    word, half, byte = ("I32", 4), ("F16", 2), ("U8", 1)
    kinds = (
        ({"quant_method": "fp8", "weight_block_size": [4, 4]},
         {"a.weight": (("F8_E4M3", 1), [6, 5]),
          "a.weight_scale_inv": (("F32", 4), [2, 2])}),
        ({"quant_method": "fp8"},
         {"a.weight": (("I8", 1), [2, 32]),
          "a.weight_scale_inv": (byte, [2, 2])}),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized",
          "config_groups": {"a": {"targets": ["re:a"],
                                  "weights": {"num_bits": 3}}}},
         {"a.weight_packed": (word, [2, 3]), "a.weight_scale": (half, [2, 4]),
          "a.weight_zero_point": (word, [1, 4])}),
        ({"quant_method": "compressed-tensors"},
         {"a.weight_packed": (byte, [2, 16]), "a.weight_scale": (byte, [2, 1])}),
        ({"quant_method": "gptq", "bits": 3},
         {"a.qweight": (word, [3, 32]), "a.qzeros": (word, [2, 3]),
          "a.scales": (half, [2, 32]), "a.g_idx": (word, [32])}),
        ({"quant_method": "awq"},
         {"a.qweight": (word, [6, 2]), "a.qzeros": (word, [3, 2]),
          "a.scales": (half, [3, 16])}),
        ({"quant_method": "mxfp4"},
         {"a_blocks": (byte, [2, 3, 1, 16]), "a_scales": (byte, [2, 3, 1])}),
        ({"quant_method": "modelopt"},
         {"a.weight": (byte, [2, 8]), "a.weight_scale": (("F8_E4M3", 1), [2, 1]),
          "a.weight_scale_2": (("F32", 4), [])}),
        ({"load_in_8bit": True},
         {"a.weight": (("I8", 1), [2, 3]), "a.SCB": (("F32", 4), [2])}),
    )
    numbers = bytes((7 * i + 3) & 0x3F for i in range(1 << 10))
    state = json.dumps({"shape": [3, 5], "blocksize": 4}).encode()
    kinds += ((
        {"load_in_4bit": True},
        {"a.weight": (byte, [8, 1]), "a.weight.absmax": (("F32", 4), [4]),
         "a.weight.quant_map": (("F32", 4), [16]),
         "a.weight.quant_state.bitsandbytes__nf4": (byte, [len(state)])},
    ),)
    for config, tensors in kinds:
        text = json.dumps({"quantization_config": config}).encode()
        parts = {name: state if "quant_state" in name else
                 bytes(1 << 16) if name.endswith("g_idx") else numbers
                 for name in tensors}
        yield after_length(text) + safetensors_of(tensors, parts)


def ruled_models():
    """Makes models with rules before them, one for each operation."""
    cut = "e.0.w e.1.w e.2.w q.w k.w".split()
    file = safetensors_of({name: (FLOAT, [4, 6]) for name in cut})
    sources = {"stack": "e.*.w", "concat": ["q.w", "k.w"]}
    targets = {"unstack": "q.*.w", "chunk": ["a.w", "b.w"],
               "split": ["a.w", "b.w"]}
    for operations in (
        [{"stack": {"dim": 1}}, {"transpose": {"dims": [0, 2, 1]}}],
        [{"unstack": {"dim": -1}}],
        [{"concat": {"dim": 1}}, {"reshape": {"shape": [-1, 3]}}],
        [{"chunk": {"dim": 1}}],
        [{"split": {"dim": 0, "sizes": ["2*heads-1", 1]}}],
        [{"permute_rope": {"heads": "(heads)"}}],
        [{"add": {"value": -1}}, {"scale": {"value": 0.5}}],
        [{"cast": {"dtype": "F16"}}],
    ):
        first = next(iter(operations[0]))
        rules = [
            {"source": sources.get(first, "q.w"),
             "target": targets.get(first, "made"), "ops": operations},
            {"rename": ["w$", "x"]}, {"source": "e.*.x", "target": "f.*.x"},
        ][:2 if first == "stack" else 3]
        text = json.dumps({"rules": rules}).encode()
        yield after_length(text) + file


def adapted_models():
    """Makes models with adapters before them, one for each kind of layer."""
    half = ("BF16", 2)
    model = safetensors_of({
        "m.q.weight": (FLOAT, [4, 6]), "m.q.bias": (FLOAT, [4]),
        "m.k.weight": (half, [6, 4]), "m.embed_tokens.weight": (half, [5, 4]),
        "m.conv.weight": (FLOAT, [4, 3, 2, 2])})
    q = {"q.lora_A.weight": (FLOAT, [2, 6]), "q.lora_B.weight": (FLOAT, [4, 2])}
    for config, factors in (
        ({}, q),
        ({"use_rslora": True, "rank_pattern": {"k": 1}, "alpha_pattern": {"q": 3}},
         {**q, "k.lora_A.weight": (half, [1, 4]),
          "k.lora_B.weight": (half, [6, 1])}),
        ({"use_dora": True}, {**q, "q.lora_magnitude_vector": (FLOAT, [4])}),
        ({"lora_bias": True}, {**q, "q.lora_B.bias": (FLOAT, [4])}),
        ({"fan_in_fan_out": True}, {"k.lora_A.weight": (FLOAT, [2, 6]),
                                    "k.lora_B.weight": (FLOAT, [4, 2])}),
        ({"use_dora": True, "fan_in_fan_out": True},
         {"k.lora_A.weight": (FLOAT, [2, 6]), "k.lora_B.weight": (FLOAT, [4, 2]),
          "k.lora_magnitude_vector": (FLOAT, [4])}),
        ({}, {"embed_tokens.lora_embedding_A": (FLOAT, [2, 5]),
              "embed_tokens.lora_embedding_B": (FLOAT, [4, 2]),
              "embed_tokens.base_layer.weight": (half, [5, 4])}),
        ({}, {"conv.lora_A.weight": (FLOAT, [2, 3, 2, 2]),
              "conv.lora_B.weight": (FLOAT, [4, 2, 1, 1])}),
        ({}, {"embed_tokens.modules_to_save.weight": (FLOAT, [5, 4]),
              "q.bias": (half, [4])}),
    ):
        text = json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4,
                           **config}).encode()
        adapter = safetensors_of(
            {f"base_model.model.m.{name}": one for name, one in factors.items()})
        yield after_length(text) + after_length(adapter) + model
