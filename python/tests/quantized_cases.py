"""Small quantized models of every kind, with the plain weights that they mean.

The plain weights follow from formulas in torch, element by element, as the
packages that write such models have them. Numbers are random but for codes and
scales that are special: infinities, NaNs, subnormals.
"""

import json

import torch
from safetensors.torch import save_file

E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6,
                     -0., -.5, -1, -1.5, -2, -3, -4, -6])
BLOCK = [128, 128]
ROOT = "model.layers.0.mlp.up_proj"
WEIGHT = f"{ROOT}.weight"


class Case:
    """A model: its config.json, its tensors, and what they become."""

    def __init__(self, name, config, tensors, expected, dtype="bfloat16",
                 others=()):
        self.name = name
        self.config = config
        self.tensors = {"model.norm.weight": torch.ones(8, dtype=torch.bfloat16),
                        **tensors}
        self.expected = {
            "model.norm.weight": self.tensors["model.norm.weight"], **expected
        }
        self.dtype = dtype
        self.others = dict(others)

    def write(self, folder):
        """Writes the model; returns the folder."""
        folder.mkdir()
        config = {"model_type": "llama", "dtype": self.dtype}
        if self.config is not None:
            config["quantization_config"] = self.config
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer.json").write_text("{}")
        for name, text in self.others.items():
            (folder / name).write_text(text)
        save_file(self.tensors, folder / "model.safetensors",
                  metadata={"format": "pt"})
        return folder

    def __repr__(self):
        return self.name


def same(found, expected):
    """Returns whether tensors have the same bits, but for the sign of a zero
    and the payload of a NaN."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    both_nan = torch.isnan(found) & torch.isnan(expected)
    return bool(((found == expected) | both_nan).all())


def _random(generator, *shape):
    return torch.randn(*shape, generator=generator)


def _codes(generator, *shape, least=0, most=256):
    return torch.randint(least, most, shape, generator=generator,
                         dtype=torch.int32)


def _bytes(generator, *shape):
    return _codes(generator, *shape).to(torch.uint8)


def _f8(generator, *shape):
    """Every code of E4M3 but NaN is likely."""
    return _bytes(generator, *shape).view(torch.float8_e4m3fn)


def _spread(grid, rows, columns, block):
    """A grid of scales, one for each element."""
    wide = grid.repeat_interleave(block[0], -2)[..., :rows, :]
    return wide.repeat_interleave(block[1], -1)[..., :columns]


def _unpack_e2m1(packed):
    raw = packed.view(torch.uint8).to(torch.int64)
    pairs = torch.stack([E2M1[raw & 15], E2M1[raw >> 4]], -1)
    return pairs.reshape(*raw.shape[:-1], -1)


def _pack(values, bits, dense=True):
    """Packs rows of numbers from 0 on into words of 32 bits."""
    per = 32 // bits
    rows = []
    for row in values.tolist():
        if dense:
            number = sum(value << (bits * i) for i, value in enumerate(row))
            words = -(-len(row) * bits // 32)
        else:
            words = -(-len(row) // per)
            number = sum(value << (i // per * 32 + i % per * bits)
                         for i, value in enumerate(row))
        rows.append([(number >> (32 * w)) & 0xFFFFFFFF for w in range(words)])
    packed = torch.tensor(rows, dtype=torch.int64)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def _ct(form, **weights):
    return {"quant_method": "compressed-tensors", "format": form,
            "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"],
                                          "weights": weights}}}


def fp8():
    g = torch.Generator().manual_seed(1)
    config = {"quant_method": "fp8", "weight_block_size": BLOCK}

    def case(name, weight, scale, block, suffix="_scale_inv", config=config,
             wide=None, more=(), out=torch.bfloat16, dtype="bfloat16"):
        rows, columns = weight.shape[-2:]
        scales = scale.float() if wide is None else wide
        plain = weight.float() * _spread(scales, rows, columns, block)
        name_of = suffix if suffix.startswith(".") else f".weight{suffix}"
        return Case(name, config,
                    {WEIGHT: weight, ROOT + name_of: scale, **dict(more)},
                    {WEIGHT: plain.to(out)}, dtype)

    yield case("fp8", _f8(g, 256, 256), _random(g, 2, 2).abs(), BLOCK)
    yield case("fp8 edges", _f8(g, 200, 136), _random(g, 2, 2), BLOCK)
    yield case("fp8 long rows", _f8(g, 3, 5000), _random(g, 1, 40), BLOCK)
    yield case("fp8 one row", _f8(g, 1, 77), _random(g, 1, 1), BLOCK)
    yield case("fp8 BF16 scales", _f8(g, 130, 129),
               _random(g, 2, 2).bfloat16(), BLOCK)
    yield case("fp8 F16 result", _f8(g, 130, 129), _random(g, 2, 2), BLOCK,
               out=torch.float16, dtype="float16")
    exponents = torch.tensor([[0, 255], [100, 130]], dtype=torch.uint8)
    yield case("fp8 E8M0", _f8(g, 256, 250),
               exponents.view(torch.float8_e8m0fnu), BLOCK,
               wide=torch.tensor([[2.0**-127, torch.nan],
                                  [2.0**-27, 8.0]]))
    special = torch.tensor([[torch.inf, torch.nan], [-0.0, 1e-45]])
    yield case("fp8 wild scales", _f8(g, 256, 250), special, BLOCK)
    yield case("fp8 undeclared", _f8(g, 140, 260), _random(g, 2, 3), BLOCK,
               config=None)
    yield Case(
        "fp8 whole tensor", {"quant_method": "fp8"},
        {WEIGHT: (w := _f8(g, 30, 50)), f"{WEIGHT}_scale_inv":
         (s := torch.tensor(0.37)), f"{ROOT}.activation_scale":
         torch.tensor(1.0)},
        {WEIGHT: (w.float() * s).bfloat16()})
    yield case("fp8 .scale", _f8(g, 256, 130), _random(g, 2, 2), BLOCK,
               suffix=".scale")
    yield Case("fp8 of Mistral", {"quant_method": "fp8"},
               {WEIGHT: (w := _f8(g, 30, 50)),
                f"{ROOT}.qscale_weight": (s := torch.tensor([2.5])),
                f"{ROOT}.qscale_act": torch.tensor([1.0])},
               {WEIGHT: (w.float() * s).bfloat16()})
    stacked = _f8(g, 3, 200, 136)
    grid = _random(g, 3, 2, 2)
    yield Case("fp8 stacked", config,
               {"experts.gate_up_proj": stacked,
                "experts.gate_up_proj_scale_inv": grid},
               {"experts.gate_up_proj": (stacked.float() * _spread(
                   grid, 200, 136, BLOCK)).bfloat16()})
    yield case("fp8 1x32 blocks in a folder of 128x128", _f8(g, 64, 96),
               _random(g, 64, 3), (1, 32))
    packed = _bytes(g, 64, 48).view(torch.int8)
    exponents = _codes(g, 64, 3, least=100, most=150).to(torch.uint8)
    yield Case("fp4 experts", config,
               {WEIGHT: packed,
                f"{WEIGHT}_scale_inv": exponents.view(torch.float8_e8m0fnu)},
               {WEIGHT: (_unpack_e2m1(packed) * _spread(
                   torch.exp2(exponents.float() - 127), 64, 96,
                   (1, 32))).bfloat16()})
    exponents = _codes(g, 64, 4, least=0, most=256).to(torch.uint8)
    exponents[0, :2] = torch.tensor([0, 255])
    yield case("mxfp8", _f8(g, 64, 128), exponents, (1, 32),
               config={"quant_method": "mxfp8"},
               wide=torch.pow(torch.tensor(2.0, dtype=torch.float64),
                              exponents.double() - 127).float())
    yield case("fbgemm", _f8(g, 40, 30), _random(g, 40, 1), (1, 30),
               suffix="_scale", config={"quant_method": "fbgemm_fp8"},
               more={f"{ROOT}.input_scale_ub": torch.tensor([1200.0])}.items())


def compressed():
    g = torch.Generator().manual_seed(2)

    def rounded(product, through, out=torch.bfloat16):
        return product.to(through).to(out)

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        weight, scale = _f8(g, 96, 70), _random(g, 96, 1).to(dtype)
        yield Case(f"ct float {dtype}", _ct("float-quantized", num_bits=8),
                   {WEIGHT: weight, f"{WEIGHT}_scale": scale},
                   {WEIGHT: rounded(weight.float() * scale.float(), dtype)})
    weight, scale = _f8(g, 200, 130), _random(g, 2, 2).half()
    yield Case("ct float blocks", _ct("float-quantized", num_bits=8,
                                      block_structure=BLOCK),
               {WEIGHT: weight, f"{WEIGHT}_scale": scale},
               {WEIGHT: rounded(weight.float() * _spread(
                   scale.float(), 200, 130, BLOCK), torch.float16)})
    weight = _bytes(g, 50, 33).view(torch.int8)
    zero = _codes(g, 50, 1, least=-128, most=128).to(torch.int8)
    scale = _random(g, 50, 1).half()
    yield Case("ct int8 asymmetric", _ct("int-quantized", num_bits=8),
               {WEIGHT: weight, f"{WEIGHT}_scale": scale,
                f"{WEIGHT}_zero_point": zero,
                f"{ROOT}.input_scale": torch.ones(1)},
               {WEIGHT: rounded((weight.float() - zero.float())
                                * scale.float(), torch.float16)})
    scale = _random(g, 1).bfloat16()
    yield Case("ct int8 tensor", _ct("int-quantized", num_bits=8),
               {WEIGHT: weight, f"{WEIGHT}_scale": scale},
               {WEIGHT: rounded(weight.float() * scale.float(),
                                torch.bfloat16)})
    for bits in range(1, 9):
        for dense in (True, False):
            if not dense and 32 % bits == 0:
                continue
            values = _codes(g, 37, 224, most=1 << bits)
            zeros = _codes(g, 37, 7, most=1 << bits)
            scale = _random(g, 37, 7).bfloat16()
            middle = 1 << (bits - 1)
            number = values.float() - middle - _spread(
                zeros.float() - middle, 37, 224, (1, 32))
            tensors = {f"{WEIGHT}_packed": _pack(values, bits, dense),
                       f"{WEIGHT}_scale": scale,
                       f"{WEIGHT}_shape": torch.tensor([37, 224])}
            if dense:
                tensors[f"{WEIGHT}_zero_point"] = _pack(
                    zeros.T, bits).T.contiguous()
            else:
                number = values.float() - middle
            yield Case(
                f"ct W{bits} {'dense' if dense else 'in words'}",
                _ct("pack-quantized", num_bits=bits, group_size=32), tensors,
                {WEIGHT: rounded(number * _spread(scale.float(), 37, 224,
                                                  (1, 32)), torch.bfloat16)})
    values = _codes(g, 20, 250, most=16)
    scale = _random(g, 20, 1).half()
    yield Case("ct W4 channels, 250 columns",
               _ct("pack-quantized", num_bits=4),
               {f"{WEIGHT}_packed": _pack(values, 4), f"{WEIGHT}_scale": scale,
                f"{WEIGHT}_shape": torch.tensor([20, 250])},
               {WEIGHT: rounded((values.float() - 8) * scale.float(),
                                torch.float16)})
    for used in (True, False):
        values = _codes(g, 20, 64, most=16)
        scale = _random(g, 20, 4).bfloat16()
        group = torch.arange(64)[torch.randperm(64, generator=g)] // 16
        stored = group if used else torch.full((64,), -1)
        wide = scale.float()[:, group if used else torch.arange(64) // 16]
        yield Case(f"ct W4 g_idx {used}",
                   _ct("pack-quantized", num_bits=4, group_size=16),
                   {f"{WEIGHT}_packed": _pack(values, 4),
                    f"{WEIGHT}_scale": scale,
                    f"{WEIGHT}_shape": torch.tensor([20, 64]),
                    f"{WEIGHT}_g_idx": stored.to(torch.int32)},
                   {WEIGHT: rounded((values.float() - 8) * wide,
                                    torch.bfloat16)})
    packed, scale = _bytes(g, 30, 48), _f8(g, 30, 6)
    whole = torch.tensor([1234.5])
    yield Case("ct nvfp4", _ct("nvfp4-pack-quantized", num_bits=4,
                               group_size=16),
               {f"{WEIGHT}_packed": packed, f"{WEIGHT}_scale": scale,
                f"{WEIGHT}_global_scale": whole,
                f"{ROOT}.input_global_scale": torch.ones(1)},
               {WEIGHT: rounded(_unpack_e2m1(packed) * _spread(
                   scale.float() / whole, 30, 96, (1, 16)), torch.bfloat16)})
    exponents = _codes(g, 30, 3, least=90, most=160).to(torch.uint8)
    wide = _spread(torch.exp2(exponents.float() - 127), 30, 96, (1, 32))
    yield Case("ct mxfp4", _ct("mxfp4-pack-quantized", num_bits=4,
                               group_size=32),
               {f"{WEIGHT}_packed": packed, f"{WEIGHT}_scale": exponents},
               {WEIGHT: rounded(_unpack_e2m1(packed) * wide, torch.bfloat16)})
    weight = _f8(g, 30, 96)
    yield Case("ct mxfp8", _ct("mxfp8-quantized", num_bits=8, group_size=32),
               {WEIGHT: weight, f"{WEIGHT}_scale": exponents},
               {WEIGHT: rounded(weight.float() * wide, torch.bfloat16)})
    codes = _codes(g, 30, 96, most=64).to(torch.int64)
    exponent, mantissa = codes >> 3 & 3, codes & 7
    numbers = torch.where(exponent == 0, mantissa / 8,
                          (1 + mantissa / 8) * 2.0**(exponent - 1))
    numbers = torch.where(codes >= 32, -numbers, numbers).float()
    quads = codes.reshape(30, 24, 4)
    threes = sum(quads[..., i] << (6 * i) for i in range(4))
    packed = torch.stack([threes >> (8 * i) & 255 for i in range(3)], -1)
    yield Case("ct mxfp6", _ct("mxfp6-pack-quantized", num_bits=6,
                               group_size=32),
               {f"{WEIGHT}_packed": packed.reshape(30, 72).to(torch.uint8),
                f"{WEIGHT}_scale": exponents},
               {WEIGHT: rounded(numbers * wide, torch.bfloat16)})


def gptq_and_awq():
    g = torch.Generator().manual_seed(3)
    columns, rows = 96, 64
    for bits in (2, 3, 4, 8):
        for version in ("gptq", "gptq_v2"):
            for order in ("none", "plain", "shuffled"):
                values = _codes(g, columns, rows, most=1 << bits)
                zeros = _codes(g, 3, rows, most=1 << bits)
                scales = _random(g, 3, rows).half()
                group = torch.arange(columns) // 32
                if order == "shuffled":
                    group = group[torch.randperm(columns, generator=g)]
                added = 1 if version == "gptq" else 0
                number = values - (zeros + added)[group]
                plain = (number.float() * scales.float()[group]).half().T
                tensors = {f"{ROOT}.qweight": _pack(values.T, bits).T.contiguous(),
                           f"{ROOT}.qzeros": _pack(zeros, bits),
                           f"{ROOT}.scales": scales,
                           f"{ROOT}.bias": torch.ones(rows)}
                if order != "none":
                    tensors[f"{ROOT}.g_idx"] = group.to(torch.int32)
                yield Case(
                    f"{version} W{bits} g_idx {order}",
                    {"quant_method": "gptq", "bits": bits, "group_size": 32,
                     "checkpoint_format": version},
                    tensors,
                    {WEIGHT: plain.contiguous(), f"{ROOT}.bias": torch.ones(rows)},
                    "float16")
    values = _codes(g, 50, rows, most=16)
    zeros, scales = _codes(g, 1, rows, most=16), _random(g, 1, rows).half()
    # One group of all.
    padded = torch.cat([values, torch.zeros(6, rows, dtype=torch.int32)])
    plain = ((padded - zeros - 1).float() * scales.float()).half().T
    yield Case("gptq one group, BF16 result",
               {"quant_method": "gptq", "bits": 4, "group_size": -1},
               {f"{ROOT}.qweight": _pack(padded.T, 4).T.contiguous(),
                f"{ROOT}.qzeros": _pack(zeros, 4), f"{ROOT}.scales": scales},
               {WEIGHT: plain.bfloat16().contiguous()})
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack_awq(values):
        eight = values.reshape(values.shape[0], -1, 8)[..., order]
        return _pack(eight.reshape(values.shape[0], -1), 4)

    values, zeros = _codes(g, columns, rows, most=16), _codes(g, 3, rows, most=16)
    scales = _random(g, 3, rows).half()
    group = torch.arange(columns) // 32
    plain = ((values - zeros[group]).float() * scales.float()[group]).half().T
    yield Case("awq", {"quant_method": "awq", "bits": 4, "group_size": 32,
                       "version": "GEMM"},
               {f"{ROOT}.qweight": pack_awq(values),
                f"{ROOT}.qzeros": pack_awq(zeros), f"{ROOT}.scales": scales},
               {WEIGHT: plain.contiguous()}, "float16")


def four_bit_floats():
    g = torch.Generator().manual_seed(4)
    for experts, outputs, groups in ((3, 40, 2), (1, 7, 1), (2, 1100, 3)):
        blocks = _bytes(g, experts, outputs, groups, 16)
        scales = _codes(g, experts, outputs, groups, least=100,
                        most=150).to(torch.uint8)
        scales.view(-1)[:3] = torch.tensor([0, 1, 255])
        values = _unpack_e2m1(blocks).double()
        wide = torch.pow(2.0, scales.double() - 127).unsqueeze(-1)
        plain = (values * wide).float().reshape(experts, outputs, groups * 32)
        name = "model.layers.0.mlp.experts.gate_up_proj"
        yield Case(f"mxfp4 of {experts} experts, {outputs} outputs",
                   {"quant_method": "mxfp4"},
                   {f"{name}_blocks": blocks, f"{name}_scales": scales,
                    f"{name}_bias": torch.zeros(2)},
                   {name: plain.transpose(1, 2).contiguous().bfloat16(),
                    f"{name}_bias": torch.zeros(2)})
    packed, scale = _bytes(g, 30, 48), _f8(g, 30, 6)
    whole = torch.tensor(0.00321)
    modelopt = {"hf_quant_config.json": json.dumps(
        {"producer": {"name": "modelopt"},
         "quantization": {"quant_algo": "NVFP4"}})}
    yield Case("modelopt nvfp4", None,
               {WEIGHT: packed, f"{WEIGHT}_scale": scale,
                f"{WEIGHT}_scale_2": whole,
                f"{ROOT}.input_scale": torch.tensor(1.0),
                "model.layers.0.self_attn.k_proj.k_scale": torch.ones(1)},
               {WEIGHT: (_unpack_e2m1(packed) * _spread(
                   scale.float() * whole, 30, 96, (1, 16))).bfloat16()},
               others=modelopt)
    weight = _f8(g, 30, 40)
    yield Case("modelopt fp8",
               {"quant_method": "modelopt", "quant_algo": "FP8"},
               {WEIGHT: weight, f"{WEIGHT}_scale": whole,
                f"{ROOT}.input_scale": torch.tensor(1.0)},
               {WEIGHT: (weight.float() * whole).bfloat16()})


def bitsandbytes():
    g = torch.Generator().manual_seed(5)

    def four(name, shape, block, kind, nested):
        count = torch.Size(shape).numel()
        codes = _codes(g, count + count % 2, most=16)
        packed = (codes[::2] << 4 | codes[1::2]).to(torch.uint8)
        table = _random(g, 16)
        blocks = -(-count // block)
        tensors = {WEIGHT: packed.reshape(-1, 1), f"{WEIGHT}.quant_map": table}
        state = {"quant_type": kind, "blocksize": block, "dtype": "float16",
                 "shape": list(shape)}
        if nested:
            stored = _bytes(g, blocks)
            inner, numbers = _random(g, -(-blocks // 3)), _random(g, 256)
            state |= {"nested_blocksize": 3, "nested_dtype": "float32",
                      "nested_offset": 0.123456789}
            absmax = numbers[stored.long()] * inner.repeat_interleave(3)[:blocks]
            absmax = absmax + torch.tensor(0.123456789)
            tensors |= {f"{WEIGHT}.absmax": stored,
                        f"{WEIGHT}.nested_absmax": inner,
                        f"{WEIGHT}.nested_quant_map": numbers}
        else:
            absmax = _random(g, blocks)
            tensors[f"{WEIGHT}.absmax"] = absmax
        text = json.dumps(state).encode()
        tensors[f"{WEIGHT}.quant_state.bitsandbytes__{kind}"] = torch.tensor(
            list(text), dtype=torch.uint8)
        flat = table[codes.long()[:count]] * absmax.repeat_interleave(block)[:count]
        return Case(name, {"quant_method": "bitsandbytes", "load_in_4bit": True},
                    tensors, {WEIGHT: flat.reshape(shape).half().bfloat16()})

    yield four("bnb nf4", (96, 128), 64, "nf4", False)
    yield four("bnb nf4 nested", (96, 128), 64, "nf4", True)
    yield four("bnb fp4, a short block", (30, 50), 128, "fp4", True)
    yield four("bnb nf4, an odd number", (7, 9), 64, "nf4", False)
    yield four("bnb nf4, blocks of 4096", (3, 5000), 4096, "nf4", False)
    weight, scale = _bytes(g, 64, 96).view(torch.int8), _random(g, 64)
    yield Case("bnb int8", {"quant_method": "bitsandbytes",
                            "load_in_8bit": True},
               {WEIGHT: weight, f"{ROOT}.SCB": scale,
                f"{ROOT}.weight_format": torch.tensor(0, dtype=torch.uint8)},
               {WEIGHT: (weight.float() * scale[:, None]
                         * torch.tensor(7.874015718698502e-3)).bfloat16()})


CASES = [*fp8(), *compressed(), *gptq_and_awq(), *four_bit_floats(),
         *bitsandbytes()]
