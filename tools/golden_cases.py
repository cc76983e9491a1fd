"""The checkpoints of testdata/golden/, as bytes, for make_goldens.py."""

import collections
import dataclasses
import io
import typing
import zipfile

import torch
from torch import nn
from torch.utils.serialization import config

from torch_containers import (
    archive,
    big_endian,
    python2_strings,
    records_of,
    replaced,
    saved,
    tar,
)

V2 = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16",
    "int8", "uint8", "bool", "complex64", "complex128",
)
V3 = (
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn_x2", "uint16", "uint32", "uint64",
    "complex32", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2",
)


@dataclasses.dataclass
class Case:
    """A checkpoint. `expected` is its content if torch.load cannot read it."""

    name: str
    data: bytes
    origin: str
    encoding: str = "utf-8"
    expected: typing.Any = None


def filled(dtype, count=12):
    """Returns `count` elements whose bytes all differ (0 and 1 for bool)."""
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    raw = torch.arange(count * dtype.itemsize).mul(37).add(11)
    raw = (raw % (2 if dtype is torch.bool else 256)).to(torch.uint8)
    storage = raw.untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, (count,), (1,))


def configured(made, **settings):
    with config.patch({f"save.{name}": v for name, v in settings.items()}):
        return saved(made)


def layouts():
    base = filled("float32", 24)
    return {
        "whole": base.view(4, 6),
        "transposed": base.as_strided((6, 4), (1, 6)),
        "sliced": base.as_strided((3, 2), (6, 2), 1),
        "expanded": base.as_strided((5, 4), (0, 1), 3),
        "overlapping": base.as_strided((4, 3), (1, 1), 2),
        "scalar": base.as_strided((), (), 5),
        "last": base[23],
        "empty": base.as_strided((0, 3), (3, 1)),
        "empty_at_the_end": base[24:],
        "again": base.view(4, 6),
    }


def shared_weights():
    weight = nn.Parameter(torch.arange(6.0).view(2, 3))
    shared = [weight.detach()[1]]
    return {"embed": weight, "head": weight, "row": shared, "row again": shared}


def parameters():
    noted = nn.Parameter(torch.arange(3.0))
    noted.scale = torch.full((2,), 0.5)
    noted.note = "kept"
    tensor = torch.arange(4)
    tensor.origin = {"from": torch.ones(1)}
    return {
        "trained": nn.Parameter(torch.arange(4.0)),
        "frozen": nn.Parameter(torch.arange(4), requires_grad=False),
        "tensor": torch.arange(2.0, requires_grad=True),
        "parameter with attributes": noted,
        "tensor with attributes": tensor,
    }


def quantized():
    data = torch.linspace(-2, 2, 12).view(3, 4)
    made = {
        str(dtype)[6:]: torch.quantize_per_tensor(data, 0.1, 3, dtype)
        for dtype in (torch.qint8, torch.quint8, torch.qint32)
    }
    scales = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64)
    made["per_channel"] = torch.quantize_per_channel(
        data, scales, torch.tensor([0, 1, 2]), 0, torch.qint8)
    made["float_qparams"] = torch.quantize_per_channel(
        data, scales.float(), torch.tensor([0.0, 1.0, 2.0]), 0, torch.quint8)
    return made


def sparse():
    data = torch.eye(4)
    repeated = torch.sparse_coo_tensor(
        [[0, 0, 1], [1, 1, 2]], [1.0, 2.0, 3.0], (3, 4))
    return {
        "coo": data.to_sparse(), "coo_repeated": repeated,
        "csr": data.to_sparse_csr(), "csc": data.to_sparse_csc(),
        "bsr": data.to_sparse_bsr((2, 2)), "bsc": data.to_sparse_bsc((2, 2)),
    }


def complex_views():
    base = torch.tensor([1 + 2j, 3 - 1j, 4j])
    return {
        "plain": base, "conjugate": base.conj(),
        "negative": base.clone().conj().imag, "real": base.clone().real,
    }


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(3, 3, dtype=torch.bool).tril())


def optimizers(make):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    steps = make(model.parameters())
    for _ in range(2):
        model(torch.randn(5, 3)).sum().backward()
        steps.step()
    return {"model": model.state_dict(), "optimizer": steps.state_dict()}


def data():
    loop = [torch.ones(1)]
    loop.append(loop)
    return {
        "none": None, "bools": [True, False],
        "ints": [0, -1, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**31,
                 2**62, 2**63, -(2**63), 2**100, -(2**100)],
        "floats": [0.0, -0.0, 1.5, float("inf"), 1e-320],
        "complex": complex(1.5, -2),
        "strings": ["", "ascii", "h\xe9llo", "\u65e5\u672c", "\U0001f600",
                    "a\0b"],
        "bytes": [b"\0\xff", bytes(range(256))], "bytearray": bytearray(b"abc"),
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, torch.ones(2))],
        "nested": {"a": {"b": [{"c": torch.arange(3)}]}}, "set": {1},
        "counter": collections.Counter("hello"),
        "ordered": collections.OrderedDict([("z", 1), ("a", torch.ones(2))]),
        "keys": {1: torch.ones(1), "1x": torch.zeros(1)}, "loop": loop,
        "size": torch.Size([2, 3]), "dtype": torch.float32,
        "device": torch.device("cuda", 1),
        "storage": torch.arange(4).untyped_storage(),
    }


def large_data():
    """Returns many elements: SETITEMS in batches, LONG_BINPUT, wide lengths."""
    return {"list": list(range(2500)),
            "dict": {str(i): i for i in range(1100)}, "text": "x" * 300,
            "tensor": torch.ones(1)}


class Reduced:
    """Pickled as the call that it was made with."""

    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


def storage_of(tensor):
    return tensor._typed_storage()


def old_forms():
    return {
        "rebuild_tensor": Reduced(
            torch._utils._rebuild_tensor,
            (storage_of(torch.arange(6.0)), 1, (2, 2), (2, 1))),
        "reduced": Reduced(
            torch.FloatTensor, (),
            (storage_of(torch.arange(8.0)), 2, (2, 3), (3, 1))),
        "reduced_long": Reduced(
            torch.LongTensor, (), (storage_of(torch.arange(4)), 0, (4,), (1,))),
        "wrapped": Reduced(
            torch._tensor._rebuild_from_type_v2,
            (torch._utils._rebuild_tensor_v2, torch.Tensor,
             (storage_of(torch.arange(3.0)), 0, (3,), (1,), False,
              collections.OrderedDict()), {})),
    }


def escapes():
    return {
        "dotted.key": torch.ones(1), "control\x1b[31m\n": torch.ones(2),
        "back\\slash": torch.ones(3), "caf\xe9 \u65e5": torch.ones(4),
        "": torch.ones(5), "quote\"": torch.ones(6),
    }


def example():
    """The worked example of docs/formats/torch.md, torch 1.13's ex.pt."""
    made = collections.OrderedDict(
        w=torch.tensor([1.0, 2.0, 3.0]), e=torch.empty(0),
        b=torch.arange(40, dtype=torch.uint8))
    records = dict(records_of(saved(made)))
    names = ("data.pkl", "data/0", "data/1", "data/2", "version")
    return archive("ex", [(name, records[name]) for name in names])


def rezipped(written, method, folder="archive"):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as to:
        for name, content in records_of(written):
            info = zipfile.ZipInfo(f"{folder}/{name}")
            info.compress_type = method
            to.writestr(info, content)
    return out.getvalue()


def by_file_order(names):
    """Sorts records as torch 1.6 to 2.6 does: by keys as text."""
    keys = sorted(name for name in names if name.startswith("data/"))
    rest = [name for name in names if not name.startswith("data/")]
    return ["data.pkl", *(["byteorder"] if "byteorder" in rest else []), *keys,
            *(name for name in rest if name not in ("data.pkl", "byteorder"))]


def pickle_last(names):
    keys = [name for name in names if name.startswith("data/")]
    return [*keys, "data.pkl", *(n for n in names
                                 if n not in keys and n != "data.pkl")]


NEW = {".format_version": None, ".storage_alignment": None}
OLD = {**NEW, "byteorder": None, ".data/serialization_id": None}


def pointer_keys(written):
    """Replaces keys by decimal addresses, as in torch 1.4 and 1.5."""
    records = dict(records_of(written))
    key = b"X" + (1).to_bytes(4, "little") + b"0"
    pointer = b"94387226731232"
    assert records["data.pkl"].count(key) == 1
    return archive("archive", [
        ("data.pkl", records["data.pkl"].replace(
            key, b"X" + len(pointer).to_bytes(4, "little") + pointer)),
        (f"data/{pointer.decode()}", records["data/0"]),
        ("version", b"2\n"),
    ])


def legacy(made, **settings):
    return saved(made, _use_new_zipfile_serialization=False, **settings)


def scripted():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.register_buffer("steps", torch.arange(4))

        def forward(self, x):
            return self.linear(x)

    torch.manual_seed(5)
    module = Small()
    out = io.BytesIO()
    torch.jit.save(torch.jit.trace(module, torch.ones(1, 3)), out)
    # In the file's order: the module's own, then those of its submodules.
    return out.getvalue(), dict(module.named_buffers()) | dict(
        module.named_parameters())


def packaged(made):
    out = io.BytesIO()
    with torch.package.PackageExporter(out) as to:
        to.extern("**")
        to.save_pickle("model", "weights.pkl", made)
    return out.getvalue()


def dtype_cases():
    save = "torch.save"
    yield Case("dtypes_v2", saved({n: filled(n) for n in V2}), save)
    yield Case("dtypes_v3", saved({n: filled(n) for n in V3}), save)
    yield Case("dtypes_v2_legacy", legacy({n: filled(n) for n in V2}),
               "torch.save, legacy container")
    yield Case("dtypes_v3_views", saved(
        {n: [filled(n)[1:7:2], filled(n).view(3, 4).T] for n in V3}), save)
    both = (layouts, shared_weights, parameters, quantized, sparse)
    for make in (*both, complex_views, data, large_data, escapes):
        yield Case(make.__name__, saved(make()), save)
    for make in both:
        yield Case(f"{make.__name__}_legacy", legacy(make()),
                   "torch.save, legacy container")
    yield Case("nested", saved(torch.nested.nested_tensor(
        [torch.arange(3.0), torch.arange(5.0)])), save)
    yield Case("meta", saved({
        "m": torch.empty(3, 4, device="meta"),
        "strided": torch.empty(4, 3, device="meta", dtype=torch.bfloat16).T,
    }), save)
    yield Case("bare_tensor", saved(torch.arange(3)), save)
    yield Case("bare_list", saved([torch.arange(3), (torch.ones(1),)]), save)
    yield Case("empty", saved({}), save)
    torch.manual_seed(3)
    yield Case("module", saved(Model().state_dict()), f"{save} of a state dict")
    torch.manual_seed(3)
    yield Case("module_legacy", legacy(Model().state_dict()),
               "torch.save of a state dict, legacy container")
    yield Case("adamw", saved(optimizers(torch.optim.AdamW)), save)
    yield Case("sgd", saved(optimizers(
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))), save)
    yield Case("old_forms", saved(old_forms()), f"{save} of old pickled forms")
    yield Case("old_forms_legacy", legacy(old_forms()),
               "torch.save of old pickled forms, legacy container")


def container_cases():
    base = {"w": filled("float32"), "v": filled("int16")[3:9],
            "e": torch.empty(0)}
    written = saved(base)
    for alignment in (1, 64, 4096):
        yield Case(f"align_{alignment}",
                   configured(base, storage_alignment=alignment),
                   f"torch.save, storage_alignment={alignment}")
    yield Case("no_crc", configured(base, compute_crc32=False),
               "torch.save, compute_crc32=False")
    for protocol in (3, 4, 5):
        yield Case(f"protocol_{protocol}",
                   saved(data() | base, pickle_protocol=protocol),
                   f"torch.save, pickle_protocol={protocol}")
    # Protocol 0 stores persistent ids as text: torch cannot load its own file.
    yield Case("protocol_1_legacy", legacy(base, pickle_protocol=1),
               "torch.save, legacy, pickle_protocol=1")
    many = {f"t{i}": torch.full((2,), float(i)) for i in range(12)}
    yield Case("torch_1_6", replaced(saved(many), OLD, order=by_file_order),
               "records of torch 1.6 to 2.0: storages 0, 1, 10, 11, 2, ...")
    yield Case("torch_2_1", replaced(saved(many), NEW, order=by_file_order),
               "records of torch 2.1 to 2.6")
    yield Case("torch_1_5", pointer_keys(saved({"w": filled("float32")})),
               "records of torch 1.5: an address as key, version 2")
    yield Case("pickle_last",
               replaced(written, NEW, order=pickle_last),
               "record order of C++ torch::pickle_save")
    yield Case("example", example(), "the worked example of the format's page")
    yield Case("rezipped", rezipped(written, zipfile.ZIP_STORED),
               "torch.save, zipped again by Python's zipfile")
    yield Case("deflated", rezipped(written, zipfile.ZIP_DEFLATED),
               "torch.save, zipped again with compression")


def other_cases():
    v2 = {n: filled(n) for n in V2}
    v3 = {n: filled(n) for n in V3}
    yield Case("big_endian", big_endian(
        saved(v2), {str(i): n for i, n in enumerate(V2)}),
        "payloads and byteorder record as a big-endian machine writes them",
        expected=v2)
    yield Case("big_endian_v3", big_endian(
        saved(v3), {str(i): n for i, n in enumerate(V3)}),
        "the same; torch.load forgets to swap these types", expected=v3)
    text = {"w": filled("float32"), "name": "abc", "nested": {"k": [1, "x"]}}
    records = dict(records_of(saved(text)))
    yield Case("python2", replaced(
        saved(text), {"data.pkl": python2_strings(records["data.pkl"])}),
        "strings of the pickle as Python 2 wrote them")
    out = io.BytesIO()
    for made in ({"a": filled("float32")}, {"b": filled("int64")}):
        out.write(legacy(made))
    yield Case("two_objects_legacy", out.getvalue(),
               "two torch.save calls, legacy, into one stream")
    kept = torch.arange(10.0)
    yield Case("tar", tar(
        made := {"w": kept.view(2, 5), "t": kept.view(2, 5).T,
                 "i": torch.arange(3)},
        [(1, torch.FloatStorage, kept.numpy().tobytes(), 10),
         (2, torch.LongStorage, made["i"].numpy().tobytes(), 3)],
        [(11, 1, torch.FloatTensor, made["w"]),
         (12, 1, torch.FloatTensor, made["t"]),
         (13, 2, torch.LongTensor, made["i"])]),
        "written by hand as torch 0.1.9 did; torch.load takes it")
    content, weights = scripted()
    yield Case("torchscript", content, "torch.jit.trace and torch.jit.save",
               expected=weights)
    made = {"w": filled("float32"), "t": filled("int16").view(3, 4).T}
    yield Case("package", packaged(made), "torch.package.PackageExporter",
               expected={"model/weights.pkl": made})


def CASES():
    yield from dtype_cases()
    yield from container_cases()
    yield from other_cases()
