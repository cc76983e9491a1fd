"""Random safetensors files, most of them broken, and the results of the package
and of haulway.safetensors for each."""

import json
import random
import re

import safetensors
import safetensors.numpy
import safetensors.torch

import haulway.safetensors
import haulway.safetensors.numpy
import haulway.safetensors.torch

BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32,
    "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}
NAMES = ["a", "b", "w.0", "w.1", "", "ä", "\U0001f600", "a\n\"\\b", "\x7f",
         "__metadata_", "layers.0.weight"]
# Values in place of a number, a text, a list or an object.
VALUES = [
    "0", "1", "2", "4", "8", "-1", "-0", "-0.0", "1.0", "2.5", "1e2", "1e15",
    "1e16", "1e400", "01", "1.", "-", "4294967296", "9223372036854775807",
    "18446744073709551615", "18446744073709551616", "-9223372036854775808",
    "-9223372036854775809", "null", "true", "false", "nul", "[]", "{}", "[0]",
    "[0,4]", "[4,0]", "[0,4,8]", "[[0,4]]", '""', '"U8"', '"u8"', '"F32"',
    '"F4"', '{"U8":null}', '{"U8":1}', '{"U8":null,"I8":null}', '{"x":null}',
    '["U8",[4],[0,4]]', '["U8",[4]]', '{"dtype":"U8"}', "[1,2,]", '{"a":1,}',
    '"\\ud800"', '"\\u0061"', '"\\x"', "[" * 130 + "]" * 130, "NaN", "Infinity",
    "1e-5", "123456789012345678.5", '"\u00e9"', "'a'",
]
# Bytes that are inserted at random.
PIECES = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u", b"\\ud83d", b" ",
    b"\n", b"\t", b"\r", b"\0", b"\x1f", b"\x7f", b"\x80", b"\xff", b"\xc3",
    b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x92", b"\xef\xbb\xbf", b"0", b"9",
    b"-", b".", b"e", b"+", b"null", b"true", b'"a":', b'"__metadata__":{}',
    b'"__metadata__":{"k":"v"},', b"//", b'"dtype"', b'"shape"',
    b'"data_offsets"', b",,", b"{}", b"[]", b'""',
]


def entries(chance):
    """Returns tensors that tile the data after the header, as names and JSON
    texts, and the number of bytes."""
    rows, end = [], 0
    for name in chance.sample(NAMES, chance.randrange(4)):
        dtype = chance.choice(list(BITS))
        shape = [chance.choice((0, 1, 2, 3, 4, 8))
                 for _ in range(chance.randrange(4))]
        bits = BITS[dtype]
        for size in shape:
            bits *= size
        begin, end = end, end + bits // 8
        rows.append((name, {
            "dtype": json.dumps(dtype), "shape": json.dumps(shape),
            "data_offsets": json.dumps([begin, end]),
        }))
    return rows, end


def object_of(pairs, chance):
    """Returns a JSON object of names and JSON texts, sometimes with spaces."""
    comma, colon = chance.choice(((",", ":"), (", ", ": "), (",\n", " : ")))
    return "{" + comma.join(
        json.dumps(name, ensure_ascii=chance.random() < 0.3) + colon + text
        for name, text in pairs
    ) + "}"


def spoil_entry(info, chance):
    """Changes the description of a tensor: its fields, as JSON texts."""
    field = chance.choice(list(info))
    kind = chance.randrange(9)
    if kind == 0:
        del info[field]
    elif kind == 1:
        info[chance.choice(("x", "Dtype", "shape ", "stride"))] = (
            chance.choice(VALUES)
        )
    elif kind == 2:
        numbers = re.sub(
            r"\d+",
            lambda found: chance.choice((found[0], chance.choice(VALUES))),
            info[field],
        )
        info[field] = numbers
    elif kind < 6:
        moved = ("shape", "data_offsets", "data_offsets")[kind - 3]
        info[moved] = re.sub(
            r"\d+",
            lambda found: str(max(0, int(found[0]) + chance.choice((0, 1, -1)))),
            info[moved],
        )
    elif kind == 6:
        info["dtype"] = json.dumps(chance.choice(list(BITS)))
    else:
        info[field] = chance.choice(VALUES)


def header(chance):
    """Returns (text of a header, number of bytes that it claims to follow)."""
    rows, data_bytes = entries(chance)
    for _, info in rows:
        if chance.random() < 0.25:
            spoil_entry(info, chance)
    pairs = []
    for name, info in rows:
        fields = list(info.items())
        if chance.random() < 0.2:
            chance.shuffle(fields)
        if chance.random() < 0.03:
            fields.append(chance.choice(fields or [("dtype", '"U8"')]))
        if chance.random() < 0.05:
            pairs.append((name, "[" + ",".join(t for _, t in fields) + "]"))
        else:
            pairs.append((name, object_of(fields, chance)))
    if chance.random() < 0.1:
        pairs.append((chance.choice(NAMES), chance.choice(VALUES)))
    if pairs and chance.random() < 0.1:
        pairs.append(chance.choice(pairs))
    if chance.random() < 0.4:
        noted = {chance.choice(NAMES): chance.choice(("", "v", "ä\n"))
                 for _ in range(chance.randrange(3))}
        text = json.dumps(noted)
        if chance.random() < 0.2:
            text = chance.choice(VALUES)
        pairs.insert(0, ("__metadata__", text))
    if chance.random() < 0.2:
        chance.shuffle(pairs)
    return object_of(pairs, chance), data_bytes


def spoiled(text, chance):
    """Returns the bytes with a few of them changed."""
    data = bytearray(text)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(6)
        if kind == 0 and at < len(data):
            data[at] = chance.randrange(256)
        elif kind == 1 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            del data[at : at + chance.choice((1, 1, 2, 5, 20))]
        elif kind == 3:
            data[at:at] = chance.choice(PIECES)
        elif kind == 4:
            length = chance.randrange(1, 30)
            start = chance.randrange(len(data) + 1)
            data[at:at] = data[start : start + length]
        else:
            del data[at:]
    return bytes(data)


def file_of(seed):
    """Returns the bytes of a file."""
    chance = random.Random(seed)
    text, data_bytes = header(chance)
    text = text.encode("utf-8", "surrogatepass")
    if chance.random() < 0.35:
        text = spoiled(text, chance)
    if chance.random() < 0.7:
        text += b" " * (-len(text) % 8)
    if chance.random() < 0.1:
        text = chance.choice((b" ", b"\n\t", b"\0", b"\xef\xbb\xbf")) + text
    if chance.random() < 0.1:
        text += chance.choice((b" ", b"\n", b"\0", b"}", b"{}", b","))
    length = len(text)
    if chance.random() < 0.05:
        length = chance.choice((
            0, 1, length - 1, length + 1, length + data_bytes, 100_000_000,
            100_000_001, 2**63, 2**64 - 1,
        ))
    data = bytes(chance.randrange(256) for _ in range(data_bytes))
    if chance.random() < 0.05:
        data = chance.choice((data[:-1], data + b"\0", b""))
    whole = max(0, length).to_bytes(8, "little") + text + data
    if chance.random() < 0.01:
        whole = whole[: chance.randrange(12)]
    return whole


def said(function, *arguments):
    try:
        return "ok", function(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)


def of_tensor(tensor):
    """Returns what two equal tensors, of torch or NumPy, have in common."""
    if hasattr(tensor, "untyped_storage"):
        import torch

        flat = tensor.contiguous().reshape(-1)
        data = bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""
    else:
        data = tensor.tobytes()
    return str(tensor.dtype), tuple(tensor.shape), data


def by_name(tensors):
    return {name: of_tensor(tensor) for name, tensor in tensors.items()}


def deserialized(module, data, _path):
    return sorted(
        ((name, said_of["shape"], said_of["dtype"], bytes(said_of["data"]))
         for name, said_of in module.deserialize(data)),
        key=lambda row: row[0],
    )


def opened(module, framework, path):
    """Returns everything that safe_open reports, and each tensor."""
    with module.safe_open(path, framework) as file:
        names = file.keys()
        rows = {}
        for name in names:
            part = file.get_slice(name)
            tensor = said(file.get_tensor, name)
            if tensor[0] == "ok":
                tensor = of_tensor(tensor[1])
            rows[name] = part.get_shape(), part.get_dtype(), tensor
        # The package orders empty tensors at one offset at random.
        return names, sorted(file.offset_keys()), file.metadata(), rows


CALLS = {
    "deserialize": deserialized,
    "numpy.load": lambda module, data, _: by_name(module.numpy.load(data)),
    "torch.load": lambda module, data, _: by_name(module.torch.load(data)),
    "numpy.load_file": lambda module, _, path: by_name(
        module.numpy.load_file(path)
    ),
    "torch.load_file": lambda module, _, path: by_name(
        module.torch.load_file(path)
    ),
    "safe_open np": lambda module, _, path: opened(module, "np", path),
    "safe_open pt": lambda module, _, path: opened(module, "pt", path),
}
# How often to repeat a call whose message may be random.
ASKED = 24


def disagreement(seed, path):
    """Returns (call, the package's result, haulway's result) for the first call
    in which they differ, or None.

    path: of a file to write.
    """
    data = file_of(seed)
    path.write_bytes(data)
    for name, call in CALLS.items():
        ours = said(call, haulway.safetensors, data, path)
        theirs = said(call, safetensors, data, path)
        if name == "torch.load" and theirs[0] == "KeyError":
            # For bytes, the package supports fewer dtypes than for files.
            call = CALLS["torch.load_file"]
            theirs = said(call, safetensors, data, path)
        if ours == theirs:
            continue
        if "is more than tensors can have" in ours[1]:
            safetensors.deserialize(data)
            continue  # A dimension of 2^63 beside a zero; see docs.
        # For tensors at equal offsets the package's order, and thus the fault
        # it finds first, is random.
        every = [said(call, safetensors, data, path) for _ in range(ASKED)]
        if ours not in every:
            return name, theirs, ours
    return None


def index_of(chance):
    """Returns an index that a user might put between brackets."""
    def item():
        kind = chance.randrange(8)
        if kind < 3:
            return chance.randrange(-5, 6)
        if kind == 3:
            return chance.choice((None, True, [], [0, 1], 1.5, 2**31, -2**63))
        if kind == 4:
            return ...
        ends = [chance.choice((0, 1, 2, 3, 4, 9, -1)) for _ in range(2)]
        ends.sort()  # The package fails with an internal error for others.
        start, stop = (chance.choice((end, end, None)) for end in ends)
        step = chance.choice((None, None, None, 1, 2, 3, 0, -1))
        return slice(start, stop, step)

    count = chance.randrange(5)
    if count == 1 and chance.random() < 0.7:
        return item()
    return tuple(item() for _ in range(count))


def sliced(module, path, framework, backend, index):
    with module.safe_open(path, framework, backend=backend) as file:
        return of_tensor(file.get_slice("a")[index])


def slice_disagreement(seed, path):
    """Returns (index, the package's result, haulway's result) for the first
    slice of a random tensor in which they differ, or None."""
    chance = random.Random(seed)
    dtype = chance.choice(("U8", "I16", "F32", "I64", "BF16", "F6_E2M3"))
    shape = [chance.choice((0, 1, 2, 3, 4)) for _ in range(chance.randrange(4))]
    bits = BITS[dtype]
    for size in shape:
        bits *= size
    if bits % 8:
        return None
    text = json.dumps({"a": {
        "dtype": dtype, "shape": shape, "data_offsets": [0, bits // 8],
    }}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text
                     + chance.randbytes(bits // 8))
    index = index_of(chance)
    for framework in ("np", "pt"):
        for backend in ("mmap", "pread"):
            ours, theirs = (
                said(sliced, module, path, framework, backend, index)
                for module in (haulway.safetensors, safetensors)
            )
            # Argument errors of the binding are not compared.
            if theirs[0] == "TypeError":
                ours, theirs = ours[0], theirs[0]
            if ours != theirs:
                asked = framework, backend, dtype, shape, index
                return asked, theirs, ours
    return None
