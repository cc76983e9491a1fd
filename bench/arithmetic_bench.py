"""Plain weights of quantized ones: Haulway, gguf-py and torch.

A GGUF file has one tensor of random blocks, whose result as F32 has a quarter of
the given size (--gib). gguf-py maps the file and dequantizes; Haulway loads it
with dequantize. A folder has FP8 weights of 4096 x 4096 with a scale for each
block of 128 x 128, whose result as BF16 has that size; torch loads it with
safetensors and multiplies. The same folder is converted to BF16; what reads it
and writes files of the result's size, without arithmetic, is beside it. A model
of transformers in BF16 has that size too, and an adapter of rank 64 for all
linear layers of its blocks; peft loads both, merges and saves, Haulway converts
with lora. Files are in the page cache. Each contender has one thread, then two;
gguf-py has only one. Every load takes memory that is new to the process; how long
that takes without a load is the limit of each.

    scripts/bench arithmetic [--rounds N] [--only CASE] [--gib N] [--json FILE]
                             [--record]
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path

import gguf
import numpy
import peft
import safetensors.torch
import torch
import transformers

import haulway
from haulway import _haulway
from side_by_side import MIB, in_two_threads, main

COLUMNS = 4096
# What loading should be faster by than gguf-py, by type.
TYPES = {"Q4_0": 10, "Q4_K": 10, "Q6_K": 10, "IQ4_XS": 10, "Q8_0": 8, "Q2_K": 8,
         "MXFP4": 8, "IQ2_XS": None, "IQ3_S": None}
FP8 = 4
FP8_WRITTEN = 0.8
LORA = 3
PIECE = 4 * MIB


def write_gguf(path, kind, gib):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    rows = int(gib * (1 << 30)) // 4 // COLUMNS
    random = numpy.random.default_rng(0)
    blocks = random.integers(0, 64, (rows, COLUMNS // elements * size), "u1")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("weight", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_fp8(folder, gib):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "dtype": "bfloat16", "quantization_config": {
            "quant_method": "fp8", "weight_block_size": [128, 128]}}))
    tensors = {}
    for i in range(max(int(gib * 1024) // 32, 1)):
        codes = torch.randint(0, 120, (4096, 4096), dtype=torch.uint8)
        tensors[f"{i}.weight"] = codes.view(torch.float8_e4m3fn)
        tensors[f"{i}.weight_scale_inv"] = torch.rand(32, 32)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


def write_model(folder, gib):
    """Writes a model in BF16 and an adapter for it."""
    # The linear layers of a block have 2**27 bytes.
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=2048, intermediate_size=8192,
        num_hidden_layers=max(round(gib * 8), 1), num_attention_heads=16,
        num_key_value_heads=16)
    transformers.LlamaForCausalLM(config).bfloat16().save_pretrained(
        folder / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "model", dtype="auto")
    peft.get_peft_model(model, peft.LoraConfig(
        r=64, target_modules="all-linear", init_lora_weights=False,
        task_type="CAUSAL_LM")).save_pretrained(folder / "adapter")


def with_peft(folder, threads):
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "model", dtype="auto")
    model = peft.PeftModel.from_pretrained(model, folder / "adapter")
    model.merge_and_unload().save_pretrained(folder / "peft")


def with_torch(folder, threads):
    torch.set_num_threads(threads)
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    made = {}
    for name, tensor in stored.items():
        if name.endswith("_scale_inv"):
            continue
        scales = stored[f"{name}_scale_inv"]
        wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
        made[name] = (tensor.float() * wide).bfloat16()
    return made


def read_and_write(folder, threads):
    """Reads the file of FP8 weights, and writes each piece twice, in space that
    is reserved before, which is faster."""
    source = folder / "model.safetensors"
    size = source.stat().st_size
    offsets = range(0, size, PIECE)
    (folder / "written").unlink(missing_ok=True)
    into = os.open(folder / "written", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.posix_fallocate(into, 0, 2 * size)
    file = os.open(source, os.O_RDONLY)
    local = threading.local()

    def copy(offset):
        piece = local.__dict__.setdefault("piece", bytearray(PIECE))
        read = memoryview(piece)[:os.preadv(file, [piece], offset)]
        os.pwritev(into, [read, read], 2 * offset)

    if threads == 1:
        for offset in offsets:
            copy(offset)
    else:
        in_two_threads(copy, offsets)
    os.close(file)
    os.close(into)


def new_memory(gib):
    return numpy.full(int(gib * (1 << 30)) // 4, 1, "f4")


def with_gguf(path):
    (tensor,) = gguf.GGUFReader(path).tensors
    with numpy.errstate(all="ignore"):
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def cases(directory: Path, options):
    """Yields (case, [(contender, function), ...], targets); Haulway first."""
    gib = options.gib / 4

    def ours(path, framework, threads):
        return lambda: haulway.load(path, framework, dequantize=True,
                                    threads=threads)

    for name, target in TYPES.items():
        path = directory / f"{name}.gguf"
        write_gguf(path, gguf.GGMLQuantizationType[name], gib)
        for threads in (1, 2):
            yield (f"{name}, {gib:g} GiB of F32, threads: {threads}",
                   [("haulway", ours(path, "numpy", threads)),
                    ("gguf-py", lambda path=path: with_gguf(path)),
                    ("limit: new memory", lambda: new_memory(gib))],
                   {} if target is None else {"gguf-py": target})
        path.unlink()
    folder = directory / "fp8"
    write_fp8(folder, gib)
    for threads in (1, 2):
        yield (f"FP8 blocks, {gib:g} GiB of BF16, threads: {threads}",
               [("haulway", ours(folder, "torch", threads)),
                ("safetensors and torch",
                 lambda threads=threads: with_torch(folder, threads)),
                ("limit: new memory", lambda: new_memory(gib))],
               {"safetensors and torch": FP8})
    for threads in (1, 2):
        yield (f"FP8 blocks to a folder of {gib:g} GiB of BF16, "
               f"threads: {threads}",
               [("haulway", lambda threads=threads: haulway.convert(
                   folder, f"{folder}/haulway/", "safetensors", dequantize=True,
                   durability="none", threads=threads)),
                ("read and write",
                 lambda threads=threads: read_and_write(folder, threads))],
               {"read and write": FP8_WRITTEN})
    shutil.rmtree(folder)
    folder = directory / "lora"
    write_model(folder, gib)
    for threads in (1, 2):
        yield (f"LoRA of rank 64, {gib:g} GiB of BF16, threads: {threads}",
               [("haulway", lambda threads=threads: haulway.convert(
                   folder / "model", f"{folder}/haulway/", "safetensors",
                   lora=folder / "adapter", durability="none",
                   threads=threads)),
                ("peft", lambda threads=threads: with_peft(folder, threads))],
               {"peft": LORA})


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], cases, name="arithmetic",
                  before=_haulway.clear_memory_pool))
