"""Files without code, as users' programs write them.

`files()` yields a label, the bytes, the expected verdict, and perhaps the name
of the file. The verdict is SAFE except for formats that can hold code and are
not examined, and for pickles that name classes other than plain data, which the
caller may allow. `reports()` yields scan's results.
"""

import argparse
import collections
import datetime
import decimal
import fractions
import functools
import gzip
import io
import json
import pathlib
import pickle
import sqlite3
import struct
import types
import uuid
import zipfile

import gguf
import joblib
import numpy
import PIL.Image
import safetensors.torch
import torch

import haulway
from scan_cases import tarred, zipped

SAFE, UNSAFE, UNKNOWN = "SAFE", "UNSAFE", "UNKNOWN"


def saved(value, **options):
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def _model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4),
        torch.nn.Linear(9, 5), torch.nn.LSTM(5, 6, 2),
        torch.nn.Embedding(7, 8), torch.nn.TransformerEncoderLayer(8, 2))


def _loss(optimizer, model, given):
    optimizer.zero_grad()
    loss = model(given).sum()
    loss.backward()
    return loss


def optimizers():
    for name in sorted(dir(torch.optim)):
        kind = getattr(torch.optim, name)
        if (not isinstance(kind, type) or kind is torch.optim.Optimizer
                or not issubclass(kind, torch.optim.Optimizer)):
            continue
        sparse = name == "SparseAdam"
        model = torch.nn.Embedding(9, 4, sparse=True) if sparse \
            else torch.nn.Linear(4, 3, bias=name != "Muon")
        optimizer = kind(model.parameters())
        given = torch.tensor([1, 2]) if sparse else torch.ones(2, 4)
        for _ in range(2):
            optimizer.step(functools.partial(_loss, optimizer, model, given))
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
        yield f"optim {name}", {"optimizer": optimizer.state_dict(),
                                "scheduler": scheduler.state_dict()}


def values():
    """Values that users pass to torch.save()."""
    model = _model()
    state = model.state_dict()
    yield "state dict", state
    yield "state dict as a dict", dict(state)
    yield "parameters", list(model.parameters())
    yield "half", {k: v.half() for k, v in state.items()}
    for dtype in sorted({v for v in vars(torch).values()
                         if isinstance(v, torch.dtype)}, key=str):
        try:
            yield f"dtype {dtype}", torch.zeros(3, dtype=dtype)
        except Exception:
            yield f"dtype {dtype}", dtype
    yield "views", {"a": state["2.weight"], "b": state["2.weight"].t(),
                    "c": state["2.weight"][1:, ::2]}
    yield "devices", [torch.device("cpu"), torch.device("cuda", 1), torch.Size(
        (1, 2)), torch.float16, torch.strided]
    yield "meta", torch.empty(3, device="meta")
    yield "sparse coo", torch.eye(3).to_sparse()
    for layout in ("csr", "csc"):
        yield f"sparse {layout}", getattr(torch.eye(4), f"to_sparse_{layout}")()
    yield "sparse bsr", torch.eye(4).to_sparse_bsr((2, 2))
    yield "quantized", torch.quantize_per_tensor(torch.ones(3), 0.1, 1,
                                                 torch.qint8)
    yield "quantized by channel", torch.quantize_per_channel(
        torch.ones(2, 3), torch.ones(2), torch.zeros(2), 0, torch.quint8)
    yield "nested", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    yield "nested jagged", torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged)
    yield "storage", torch.ones(3).untyped_storage()
    yield "conjugate", torch.ones(3, dtype=torch.complex64).conj()
    hooked = torch.nn.Parameter(torch.ones(2))
    hooked.note = "x"
    yield "parameter with attributes", hooked
    yield "training", {
        "epoch": 3, "global_step": 10**12, "best": 1.5, "name": "model",
        "args": {"lr": 1e-3, "layers": [1, 2], "flag": True, "none": None},
        "state_dict": state, "rng": torch.get_rng_state(),
        "numpy_rng": numpy.random.get_state(),
        "loss": numpy.float32(0.5), "losses": numpy.arange(4.0),
        "time": datetime.datetime(2026, 1, 2, 3, 4, 5),
        "took": datetime.timedelta(seconds=3),
        "counts": collections.Counter("abc"), "set": {1, 2},
        "default": collections.defaultdict(list, a=[1]),
        "deque": collections.deque([1], 3), "complex": 1j, "bytes": b"x",
        "range": range(3), "slice": slice(1, 2)}
    yield "namespace", {"args": argparse.Namespace(lr=1, path=pathlib.Path("a")),
                        "more": types.SimpleNamespace(a=1)}
    yield "numbers", [decimal.Decimal("1.5"), fractions.Fraction(1, 3),
                      uuid.UUID(int=5)]
    yield "lightning", {
        "pytorch-lightning_version": "2.4.0", "epoch": 1, "global_step": 2,
        "state_dict": state, "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {
            "best_model_path": "x.ckpt", "current_score": torch.tensor(1.0)}},
        "optimizer_states": [], "lr_schedulers": [],
        "hparams_name": "kwargs",
        "hyper_parameters": collections.OrderedDict(lr=0.1)}


def arrays():
    yield "f8", numpy.arange(9.0)
    yield "objects", numpy.array([{"a": 1}, "b", None], dtype=object)
    yield "strings", numpy.array(["x", "yy"])
    yield "times", numpy.array(["2026-01-01"], dtype="M8[D]")
    yield "fortran", numpy.ones((3, 4), order="F")


def _sklearn_like():
    """The parameters of an estimator, without its class."""
    return {"coef_": numpy.ones((2, 3)), "classes_": numpy.array(["a", "b"]),
            "n_iter_": numpy.int64(7), "params": {"C": 1.0, "penalty": "l2"},
            "feature_names": numpy.array(["x", "y"], dtype=object),
            "scores": [0.5, numpy.float64(0.25)], "fitted": True}


def _image(kind):
    out = io.BytesIO()
    PIL.Image.fromarray(numpy.arange(3 * 16 * 16, dtype="u1").reshape(
        16, 16, 3)).save(out, kind)
    return out.getvalue()


def _sentencepiece():
    """sentencepiece_model.proto: pieces, then the trainer's settings."""
    def field(number, data):
        return bytes([number << 3 | 2, len(data)]) + data

    return b"".join(
        field(1, field(1, piece.encode()) + b"\x15" + struct.pack("<f", -i)
              + b"\x18\x01")
        for i, piece in enumerate(("<unk>", "\u2581the", "a", "{{"))
    ) + field(2, b"\x18\x02") + field(3, field(1, b"nmt_nfkc"))


def _database(folder):
    path = folder / "x.sqlite"
    path.unlink(missing_ok=True)
    base = sqlite3.connect(path)
    base.execute("create table t (a integer, b text)")
    base.executemany("insert into t values (?, ?)",
                     [(i, "word" * i) for i in range(50)])
    base.commit()
    base.close()
    return path.read_bytes()


# Configurations that name classes of their own libraries.
CONFIGURATIONS = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "",
         "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling",
         "type": "sentence_transformers.sentence_transformer.modules.pooling"
                 ".Pooling"}],
    "2_Dense/config.json": {
        "in_features": 768, "out_features": 512, "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh"},
    "config_sentence_transformers.json": {
        "__version__": {"sentence_transformers": "3.0.1", "pytorch": "2.13.0"},
        "prompts": {"query": "Represent: "}, "default_prompt_name": None,
        "model_type": "SentenceTransformer", "similarity_fn_name": "cosine"},
    "model_index.json": {
        "_class_name": "StableDiffusionPipeline", "_diffusers_version": "0.42.1",
        "feature_extractor": ["transformers", "CLIPImageProcessor"],
        "image_encoder": [None, None], "requires_safety_checker": True,
        "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
        "scheduler": ["diffusers", "PNDMScheduler"],
        "unet": ["diffusers", "UNet2DConditionModel"]},
    "unet/config.json": {
        "_class_name": "UNet2DConditionModel", "_diffusers_version": "0.42.1",
        "act_fn": "silu", "block_out_channels": [320, 640],
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"]},
    "adapter_config.json": {
        "auto_mapping": {"base_model_class": "BertModel", "parent_library":
                         "transformers.models.bert.modeling_bert"},
        "base_model_name_or_path": "bert-base-cased", "peft_type": "LORA",
        "megatron_config": None, "megatron_core": "megatron.core",
        "target_modules": ["query", "encoder.layer"], "task_type": None},
    "gpt2/config.json": {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
        "_attn_implementation": "sdpa", "torch_dtype": "float16",
        "model_type": "gpt2", "transformers_version": "4.57.0.dev0"},
    "vocab.json": {"type": 1, "class": 2, "lc": 3, "download": 4, "__class__": 5,
                   "template": 6, "target": 7},
    "configuration.json": {"framework": "pytorch", "task": "text-generation",
                           "allow_remote": False},
}


def _skops():
    """A fitted estimator as skops 0.16 writes it."""
    def node(loader, module, name, **more):
        return {"__class__": name, "__module__": module, "__loader__": loader,
                **more}

    array = io.BytesIO()
    numpy.save(array, numpy.ones(3))
    attributes = node(
        "DictNode", "builtins", "dict",
        key_types=node("ListNode", "builtins", "list",
                       content=[node("TypeNode", "builtins", "str")] * 2),
        content={"fit_intercept": node("JsonNode", "builtins", "str",
                                       content="true", is_json=True),
                 "coef_": node("NdArrayNode", "numpy", "ndarray", type="numpy",
                               file="1.npy")})
    model = node("ObjectNode", "sklearn.linear_model._base", "LinearRegression",
                 content=attributes, protocol=2, _skops_version="0.16.0")
    return zipped({"1.npy": array.getvalue(),
                   "schema.json": json.dumps(model, indent=2).encode()})


# The chat template of many models.
CHATML = """{% for message in messages %}{% if loop.first and \
messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a helpful \
assistant<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' \
+ message['content'] | trim + '<|im_end|>' + '\\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def files(folder):
    """Yields (name, bytes, verdict); some files are made in `folder`."""
    for name, value in [*values(), *optimizers()]:
        for protocol in (2, 4):
            for is_zip in (True, False):
                form = "zip" if is_zip else "old"
                try:
                    data = saved(value, pickle_protocol=protocol,
                                 _use_new_zipfile_serialization=is_zip)
                except Exception:
                    continue  # torch cannot save it in this form.
                yield f"torch {form} p{protocol}: {name}", data, SAFE
    yield "torch: a whole module", saved(_model()), UNSAFE
    # pickle names whatever module refers to torch in its attributes.
    yield "torch: a memory format", saved(
        torch.contiguous_format, pickle_protocol=4), UNSAFE
    for name, value in arrays():
        out = io.BytesIO()
        numpy.save(out, value)
        yield f"npy: {name}", out.getvalue(), SAFE
        for protocol in range(6):
            yield (f"pickle p{protocol}: {name}", pickle.dumps(value, protocol),
                   SAFE)
    rows = numpy.zeros(3, [("a", "f4"), ("b", "S3")])
    out = io.BytesIO()
    numpy.save(out, rows)
    yield "npy: fields", out.getvalue(), SAFE
    yield "pickle: fields", pickle.dumps(rows), SAFE
    yield ("pickle: fields of objects",
           pickle.dumps(numpy.zeros(2, [("a", "O")])), UNKNOWN)
    yield "pickle: masked array", pickle.dumps(numpy.ma.ones(3)), UNSAFE
    yield "pickle: recarray", pickle.dumps(rows.view(numpy.recarray)), UNSAFE
    for save in (numpy.savez, numpy.savez_compressed):
        out = io.BytesIO()
        save(out, **dict(arrays()))
        yield save.__name__, out.getvalue(), SAFE
    flat = {key: value for key, value in _sklearn_like().items()
            if key != "feature_names"}
    for compress in (0, ("zlib", 3), ("gzip", 3), ("bz2", 3), ("lzma", 3)):
        for name, value in (("joblib", flat), ("joblib of objects",
                                               _sklearn_like())):
            out = io.BytesIO()
            joblib.dump(value, out, compress=compress)
            inflated = compress == 0 or compress[0] in ("zlib", "gzip")
            yield (f"{name} {compress and compress[0]}", out.getvalue(),
                   SAFE if inflated and value is flat else UNKNOWN)
    yield "safetensors", safetensors.torch.save(
        {"a": torch.ones(3, 4), "b": torch.zeros(2, dtype=torch.bfloat16)},
        {"format": "pt"}), SAFE
    path = folder / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_chat_template(CHATML)
    writer.add_tensor("a", numpy.ones((2, 32), "f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    yield "gguf", path.read_bytes(), SAFE
    script = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), script)
    yield "torchscript", script.getvalue(), SAFE
    for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP"):
        yield f"image {kind}", _image(kind), SAFE
    yield "image TIFF", _image("TIFF"), UNKNOWN
    yield "sqlite", _database(folder), SAFE
    texts = {
        "notes.txt": "Some words.\n\nMore of them, (c) 2026.\n",
        "config.json": json.dumps({"model_type": "bert", "layers": 12}),
        "tokenizer.json": json.dumps({"vocab": {f"t{i}": i for i in range(
            9999)}, "merges": [["a", "b"]]}),
        "tokenizer_config.json": json.dumps(
            {"model_max_length": 10**30, "clean": float("nan")}, indent=2),
        "chat/tokenizer_config.json": json.dumps({"chat_template": CHATML}),
        "chat_template.jinja": CHATML,
        "model.safetensors.index.json": json.dumps(
            {"metadata": {"total_size": 1}, "weight_map": {
                "a": "x.gguf"}}),
        "rows.jsonl": '{"a": 1}\n{"a": [2, "x"]}\n',
        "README.md": "---\nlicense: mit\ntags:\n- a\n---\n# Model!\n\n"
                     "```python\nimport torch\n```\n!pip install x\n"
                     "![an image](https://example.com/python.png)\n",
        "LICENSE": "Copyright 2026 Somebody\nAll rights reserved\n",
        "data.csv": "a,d\n1,2\n", "intro.txt": "It is\nso\n",
        "x.yaml": "a: 1\nb: !!str 2\nc: 'now!'\n",
        "merges.txt": "#version: 0.2\ni n\nt h\n",
        "vocab.txt": "[PAD]\n(\nc\nd\n",
        "x.xml": "<?xml version='1.0'?><a/>",
        "empty": "", "newline.txt": "\n", "letter.txt": "N",
        "letters.txt": "Nc\n", "numbers.txt": "0\n1\n2\n",
        "x.log": "(2026-01-01) INFO: started\n" * 99,
        ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n",
        ".gitignore": "*.pyc\n", "latest": "global_step100",
        "0123456789abcdef0123456789abcdef01234567": "# A model\n",
        "pointer.txt": "version https://git-lfs.github.com/spec/v1\n"
                       "oid sha256:" + "0" * 64 + "\nsize 12345\n",
    }
    texts.update((name, json.dumps(value))
                 for name, value in CONFIGURATIONS.items())
    for name, value in texts.items():
        yield f"text: {name}", value.encode(), SAFE, name
    yield "skops", _skops(), SAFE
    for text in ("Some words.\n\nMore of them, (c) 2026.\n", '{"a": [1]}',
                 "", "\n", "# A model - of 2026\n\nIt is small; it is (c).\n"):
        yield f"bytes: {text[:9]!r}", text.encode(), SAFE
    # Files that could be run, or imported by an unpickler, but are harmless.
    for name, value in {
        "copyright.txt": "copyright (c) 2026 Somebody\nAll rights reserved\n",
        "c.csv": "c,d\n1,2\n", "x.html": "<!doctype html>", "x.pdf": "%PDF-1",
        "words": "some words\n", "utf-16.txt": "words".encode("utf-16"),
    }.items():
        data = value if isinstance(value, bytes) else value.encode()
        yield f"text: {name}", data, UNKNOWN, name
    plain = {name: value.encode() for name, value in texts.items()}
    yield "zip of texts", zipped(plain, zipfile.ZIP_DEFLATED), SAFE
    yield "tar of texts", tarred(plain), SAFE
    yield "tar.gz of texts", gzip.compress(tarred(plain)), SAFE
    yield "wav", (b"RIFF" + struct.pack("<I", 136) + b"WAVEfmt "
                  + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
                  + b"data" + struct.pack("<I", 100) + bytes(100)), SAFE
    yield "sentencepiece", _sentencepiece(), SAFE
    yield "sentencepiece cut", _sentencepiece()[:-1], UNKNOWN
    yield "protobuf", b"\x08\x96\x01\x12\x07testing" * 9, UNKNOWN
    yield "zeros", bytes(9999), SAFE
    goldens = pathlib.Path(__file__).parents[2] / "testdata" / "golden"
    for path in sorted(goldens.glob("*.gz")):
        yield f"golden {path.name}", gzip.decompress(path.read_bytes()), SAFE


def reports(folder):
    """Yields (label, report, expected verdict) of all files()."""
    for label, data, verdict, *names in files(folder):
        if not names:
            yield label, haulway.scan(data), verdict
            continue
        path = folder / names[0]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        yield label, haulway.scan(path), verdict
        path.unlink()
