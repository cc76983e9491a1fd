"""Checkpoints of every kind, as functions that make the object to save."""

import collections

import torch
from torch import nn

from torch_versions import config, dtypes

V2 = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool, torch.complex64, torch.complex128,
]
V3 = [
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz, *dtypes("float8_e8m0fnu", "float4_e2m1fn_x2"),
    torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.bits8,
    torch.bits16, torch.bits1x8, torch.bits2x4, torch.bits4x2,
]


def filled(count, dtype):
    """Returns `count` elements of every bit pattern (0 and 1 for bool)."""
    item = torch.empty(0, dtype=dtype).element_size()
    raw = torch.arange(count * item, dtype=torch.int64).mul(37).add(11)
    raw = raw % 2 if dtype is torch.bool else raw % 256
    storage = raw.to(torch.uint8).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, (count,), (1,))


LAYOUTS = {
    "whole": lambda t: t.view(4, 6) if t.numel() else t,
    "scalar": lambda t: t.as_strided((), (), 5),
    "empty": lambda t: t.as_strided((0, 3), (3, 1)),
    "transposed": lambda t: t.as_strided((6, 4), (1, 6)),
    "sliced": lambda t: t.as_strided((3, 2), (6, 2), 1),
    "expanded": lambda t: t.as_strided((5, 4), (0, 1), 3),
    "tied": lambda t: [t, {"again": t}],
    "views": lambda t: (t[2:9], t, t[::3], t[5:]),
}


def layouts():
    for dtype in V2 + V3:
        for name, make in LAYOUTS.items():
            yield (
                f"{str(dtype)[6:]}-{name}",
                lambda dtype=dtype, make=make: make(filled(24, dtype)),
            )


def with_attributes():
    tensor = torch.ones(3)
    tensor.note = {"made": "here"}
    parameter = nn.Parameter(torch.ones(2))
    parameter.scale = 3.5
    return tensor, parameter


def quantized(scheme):
    data = torch.linspace(-2, 2, 12).view(3, 4)
    if scheme == "tensor":
        return [
            torch.quantize_per_tensor(data, 0.1, 3, dtype)
            for dtype in (torch.qint8, torch.quint8, torch.qint32)
        ]
    return torch.quantize_per_channel(
        data, torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2]), 0,
        torch.qint8,
    )


def sparse(layout):
    data = torch.eye(4)
    if layout == "coo":
        return data.to_sparse(), torch.sparse_coo_tensor(
            [[0, 0, 1], [1, 1, 2]], [1.0, 2.0, 3.0], (3, 4)
        )
    if layout in ("bsr", "bsc"):
        return getattr(data, f"to_sparse_{layout}")((2, 2))
    return getattr(data, f"to_sparse_{layout}")()


def module(make):
    torch.manual_seed(3)
    return make().state_dict()


def optimizer(make):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    steps = make(model.parameters())
    for _ in range(2):
        model(torch.randn(5, 3)).sum().backward()
        steps.step()
    return {"model": model.state_dict(), "optimizer": steps.state_dict()}


def data():
    shared = [1, 2]
    return {
        "none": None,
        "bools": [True, False],
        "ints": [0, 1, -1, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**31,
                 2**62, 2**63, -(2**63), 2**100, -(2**100)],
        "floats": [0.0, -0.0, 1.5, float("inf"), float("-inf"), 1e-320],
        "complex": complex(1.5, -2),
        "strings": ["", "ascii", "h\xe9llo", "\u65e5\u672c", "\U0001f600", "a\0b"],
        "bytes": [b"", b"\0\xff", bytes(range(256))],
        "bytearray": bytearray(b"abc"),
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
        "nested": {"a": {"b": {"c": [{"d": torch.arange(3)}]}}},
        "set": {1, 2, "x"},
        "counter": collections.Counter("hello"),
        "ordered": collections.OrderedDict([("z", 1), ("a", torch.ones(2))]),
        "keys": {1: "int", 2.5: "float", True + 1: "two", (1, "t"): "tuple"},
        "shared": [shared, shared],
        "size": torch.Size([2, 3]),
        "dtype": torch.float32,
        "device": torch.device("cpu"),
    }


def cyclic():
    loop = [torch.ones(1)]
    loop.append(loop)
    return {"loop": loop}


OBJECTS = {
    "data": data,
    "dots": lambda: {"a.b": torch.ones(1), "a": {"b": torch.zeros(2)}},
    "controls": lambda: {"a\x1b[31m\n": torch.ones(1), "b\\": torch.ones(2)},
    "bare-tensor": lambda: torch.arange(6.0),
    "bare-list": lambda: [torch.arange(6.0), torch.arange(3)],
    "empty-dict": dict,
    "none": lambda: None,
    "parameter": lambda: nn.Parameter(torch.arange(4.0)),
    "frozen-parameter": lambda: nn.Parameter(torch.arange(4.0), False),
    "requires-grad": lambda: torch.arange(4.0, requires_grad=True),
    "attributes": with_attributes,
    "conjugate": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    "meta": lambda: {"m": torch.empty(3, 4, device="meta")},
    "quantized": lambda: quantized("tensor"),
    "quantized-channel": lambda: quantized("channel"),
    "nested": lambda: torch.nested.nested_tensor(
        [torch.arange(3.0), torch.arange(5.0)]
    ),
    "linear": lambda: module(lambda: nn.Linear(5, 3)),
    "transformer": lambda: module(
        lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    ),
    "lstm": lambda: module(lambda: nn.LSTM(4, 8, 2)),
    "convolution": lambda: module(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    ),
    "adamw": lambda: optimizer(torch.optim.AdamW),
    "sgd": lambda: optimizer(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "many": lambda: {f"t{i}": torch.full((3,), float(i)) for i in range(1200)},
    "large": lambda: {"w": torch.arange(3_000_000, dtype=torch.int32)},
    **{f"sparse-{name}": (lambda name=name: sparse(name))
       for name in ("coo", "csr", "csc", "bsr", "bsc")},
}
# torch.load fails, or its result cannot be compared.
NOT_LEGACY = {"meta", "nested"}


def save_with(**settings):
    def save(made, path):
        with config.save.patch(**settings) if hasattr(config.save, "patch") \
                else config.patch({f"save.{k}": v for k, v in settings.items()}):
            torch.save(made, path)
    return save


WAYS = {
    "zip": torch.save,
    "legacy": lambda made, path: torch.save(
        made, path, _use_new_zipfile_serialization=False
    ),
}
MORE_WAYS = {
    "no-crc": save_with(compute_crc32=False),
    "align-4096": save_with(storage_alignment=4096),
    "align-1": save_with(storage_alignment=1),
}


def cases():
    """Yields (name, make, save)."""
    for name, make in [*layouts(), *OBJECTS.items()]:
        for way, save in WAYS.items():
            if way == "legacy" and name in NOT_LEGACY:
                continue
            yield f"{name}-{way}", make, save
    for name in ("data", "transformer", "adamw", "many", "empty-dict"):
        for way, save in MORE_WAYS.items():
            yield f"{name}-{way}", OBJECTS[name], save
