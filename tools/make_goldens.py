#!/usr/bin/env python3
"""Writes testdata/golden/: small checkpoints, and their content.

Every NAME.pt (or NAME.pt.gz, if that is smaller) has a NAME.json with the
content that PyTorch reads: one line for each tensor, so that a test needs
neither PyTorch nor a JSON parser. The facts come from torch.load and the bytes
of its storages, never from Haulway. Run with PyTorch 2.13.

    tools/make_goldens.py [FOLDER]
"""

import gzip
import hashlib
import json
import pathlib
import pickle
import re
import sys
import tempfile
import types
import warnings
import zlib

import numpy
import torch

from golden_cases import CASES
from torch_containers import records_of

ROOT = pathlib.Path(__file__).resolve().parent.parent

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bool": "BOOL", "complex32": "C32", "complex64": "C64",
    "complex128": "C128", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4_E2M1X2", "qint8": "QI8", "quint8": "QU8",
    "qint32": "QI32", "quint4x2": "QU4X2", "quint2x4": "QU2X4",
    "bits8": "BITS8", "bits16": "BITS16", "bits1x8": "BITS1X8",
    "bits2x4": "BITS2X4", "bits4x2": "BITS4X2",
}
COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def load_file(data, **settings):
    """Calls torch.load() on a real file: it accepts tars from no other
    source."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return torch.load(file, **settings)


def loaded_with_keys(data, encoding):
    """Returns the object of torch.load, and the key of each storage by its
    address.

    Runs the whole unpickler: only for files that this tool made.
    """
    keys = {}
    alive = []

    class Unpickler(pickle._Unpickler):
        @property
        def persistent_load(self):
            return self._load_noting_the_key

        @persistent_load.setter
        def persistent_load(self, load):
            self._load = load

        def _load_noting_the_key(self, pid):
            found = self._load(pid)
            if isinstance(found, torch.storage.TypedStorage):
                keys[found._untyped_storage._cdata] = pid[2]
                alive.append(found)
            return found

    module = types.ModuleType("noting")
    module.Unpickler = Unpickler
    module.load = pickle.load
    made = load_file(
        data, weights_only=False, pickle_module=module, encoding=encoding
    )
    return made, keys, alive


def dense_bytes(storage, dtype, shape, strides, offset):
    """Returns the elements in row-major order, as stored."""
    item = dtype.itemsize
    if 0 in shape:
        return b""
    raw = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    elements = numpy.ndarray(
        tuple(shape), f"V{item}", raw, offset * item,
        [stride * item for stride in strides],
    )
    return numpy.ascontiguousarray(elements).tobytes()


class Lister:
    """Lists the tensors of an object under the names Haulway gives them."""

    def __init__(self, keys):
        self.keys = keys
        self.tensors = []
        self.rows = {}
        self.visited = set()

    @staticmethod
    def join(parent, part):
        return f"{parent}.{part}" if parent else str(part)

    @staticmethod
    def component(key):
        if isinstance(key, str):
            # As Escape() in base/text.h: control bytes and backslashes.
            return "".join(
                "".join(f"\\x{b:02x}" for b in c.encode())
                if ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0
                else "\\\\" if c == "\\" else c
                for c in key
            )
        return str(key)

    def visit(self, value, path=""):
        if isinstance(value, torch.Tensor):
            self.visit_tensor(value, path)
            return
        if isinstance(
            value, (torch.storage.TypedStorage, torch.UntypedStorage)
        ):
            self.visit_storage(value, path)
            return
        if not isinstance(value, (dict, list, tuple)):
            return
        if id(value) in self.visited:
            return
        self.visited.add(id(value))
        items = (
            value.items() if isinstance(value, dict) else enumerate(value)
        )
        for key, item in items:
            self.visit(item, self.join(path, self.component(key)))

    def visit_tensor(self, tensor, path):
        if tensor.is_nested:
            parts = zip(
                ("buffer", "sizes", "strides", "storage_offsets"),
                (tensor.values(), tensor._nested_tensor_size(),
                 tensor._nested_tensor_strides(),
                 tensor._nested_tensor_storage_offsets()),
            )
        elif tensor.layout is torch.sparse_coo:
            parts = [("indices", tensor._indices()),
                     ("values", tensor._values())]
        elif tensor.layout in COMPRESSED:
            parts = [
                (name, getattr(tensor, name)())
                for name in (*COMPRESSED[tensor.layout], "values")
            ]
        else:
            parts = []
            self.add_tensor(tensor, path)
        for name, part in parts:
            self.visit_tensor(part, self.join(path, name))
        if tensor.is_quantized and tensor.qscheme() in (
            torch.per_channel_affine, torch.per_channel_affine_float_qparams
        ):
            self.visit_tensor(
                tensor.q_per_channel_scales(), self.join(path, "scales"))
            self.visit_tensor(
                tensor.q_per_channel_zero_points(),
                self.join(path, "zero_points"))
        for name, value in getattr(tensor, "__dict__", {}).items():
            self.visit(value, self.join(path, name))

    def row(self, storage):
        return self.rows.setdefault(storage._cdata, len(self.rows))

    def add(self, path, kind, dtype, shape, strides, offset, storage, flags):
        line = {
            "name": path or "tensor",
            "kind": kind,
            "dtype": DTYPES[str(dtype).removeprefix("torch.")],
            "shape": list(shape),
            "strides": list(strides),
            "storage_offset": offset,
            "storage": None,
            **dict(zip(("requires_grad", "conj", "neg"), flags)),
            "crc32": None,
            "sha256": None,
        }
        if storage is not None:
            data = dense_bytes(storage, dtype, shape, strides, offset)
            line["storage"] = self.row(storage)
            line["crc32"] = zlib.crc32(data)
            line["sha256"] = hashlib.sha256(data).hexdigest()
            key = self.keys.get(storage._cdata)
            if key is not None and len(key) < 8:
                line["key"] = key  # Longer keys are addresses.
        self.tensors.append(line)

    def add_tensor(self, tensor, path):
        is_meta = tensor.device.type == "meta"
        self.add(
            path, "meta" if is_meta else "dense", tensor.dtype, tensor.shape,
            tensor.stride(), tensor.storage_offset(),
            None if is_meta else tensor.untyped_storage(),
            (tensor.requires_grad, tensor.is_conj(), tensor.is_neg()),
        )

    def visit_storage(self, storage, path):
        dtype = torch.uint8
        if isinstance(storage, torch.storage.TypedStorage):
            dtype, storage = storage.dtype, storage._untyped_storage
        self.add(
            path, "storage", dtype, (storage.nbytes() // dtype.itemsize,), (1,),
            0, storage, (False, False, False),
        )


def torch_says(data, encoding):
    """Returns "loads", or why torch.load(weights_only=True) fails."""
    try:
        load_file(data, weights_only=True, encoding=encoding)
    except Exception as error:
        text = str(error)
        reason = re.search(r"WeightsUnpickler error:\s*(.*)", text)
        reason = reason.group(1) if reason else text.strip().split("\n")[0]
        return f"{type(error).__name__}: {reason}"[:160]
    return "loads"


def format_of(data):
    if data[:2] == b"PK":
        names = [name for name, _ in records_of(data)]
        if "constants.pkl" in names:
            return "torchscript"
        if ".data/python_version" in names or ".data/extern_modules" in names:
            return "torch-package"
        return "torch"
    return "torch-tar" if data[257:262] == b"ustar" else "torch-legacy"


def container_facts(data):
    if data[:2] != b"PK":
        return {}
    records = dict(records_of(data))
    texts = {
        "version": records.get(".data/version", records.get("version")),
        "format_version": records.get(".format_version"),
        "alignment": records.get(".storage_alignment"),
        "byteorder": records.get("byteorder"),
        "serialization_id": records.get(".data/serialization_id"),
    }
    facts = {
        name: None if text is None else text.decode().strip()
        for name, text in texts.items()
    }
    facts["records"] = str(len(records))
    return facts


def described(case):
    """Returns the lines of a case's JSON file."""
    data = case.data
    if case.expected is not None:
        made, keys, alive = case.expected, {}, []
    else:
        made, keys, alive = loaded_with_keys(data, case.encoding)
    lister = Lister(keys)
    lister.visit(made)
    says = torch_says(data, case.encoding)
    head = {
        "origin": case.origin,
        "format": format_of(data),
        "encoding": case.encoding,
        "bytes": len(data),
        "torch": says,
    }
    lines = ["{"]
    lines += [f" {json.dumps(k)}: {json.dumps(v)}," for k, v in head.items()]
    lines.append(' "container": {')
    lines.append(",\n".join(
        f"  {json.dumps(name)}: {json.dumps(value)}"
        for name, value in container_facts(data).items()
    ))
    lines += [" },", ' "tensors": [']
    tensors = [
        json.dumps(t, ensure_ascii=False, separators=(",", ":"))
        for t in lister.tensors
    ]
    lines += [",\n".join(tensors), " ]", "}"]
    del alive
    return "\n".join(lines) + "\n"


def write(folder, case):
    packed = gzip.compress(case.data, 9, mtime=0)
    for suffix, content in ((".pt", case.data), (".pt.gz", packed)):
        path = folder / f"{case.name}{suffix}"
        keep = (len(packed) < len(case.data)) == (suffix == ".pt.gz")
        path.write_bytes(content) if keep else path.unlink(missing_ok=True)
    (folder / f"{case.name}.json").write_text(described(case))


def write_readme(folder):
    """Writes a table of all files from the JSON files."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        facts = json.loads(path.read_text())
        says = facts["torch"].replace("|", "\\|")
        rows.append(
            f"| `{path.stem}` | {facts['format']} | {facts['origin']} "
            f"| {len(facts['tensors'])} | {says} |"
        )
    (folder / "README.md").write_text(
        "# Golden checkpoints\n\n"
        f"Written by `tools/make_goldens.py` with PyTorch {torch.__version__}"
        ", this table too.\n\n"
        "| file | format | origin | tensors "
        "| torch.load(weights_only=True) |\n"
        "|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1
                          else ROOT / "testdata" / "golden")
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    for case in CASES():
        try:
            write(folder, case)
        except Exception as error:
            raise RuntimeError(f"golden {case.name}") from error
    write_readme(folder)
    total = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{len(list(folder.glob('*.json')))} checkpoints, {total} bytes")


if __name__ == "__main__":
    main()
