"""Versions of weights, written as the trainers' own code writes them, and the
receiver of SGLang, as its behaviour is documented."""

import hashlib
import json
import pathlib
import shutil
import zlib

import blake3
import numpy as np
import safetensors.torch
import torch
import xxhash
import zstandard

SUMS = {
    "xxh3-128": lambda data: xxhash.xxh3_128(data).hexdigest(),
    "blake3": lambda data: blake3.blake3(data).hexdigest(),
    "adler32": lambda data: f"{zlib.adler32(data):08x}",
}
GOLDENS = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "delta"
INDEX = "model.safetensors.index.json"


def bytes_of(tensor):
    """Returns a tensor's bytes as a safetensors file holds them."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(found, expected):
    """Returns whether two dicts of tensors are equal bit for bit."""
    return found.keys() == expected.keys() and all(
        found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        and bytes_of(found[name]) == bytes_of(tensor)
        for name, tensor in expected.items())


def model(seed=0, size=4000):
    """Returns the tensors of a small model."""
    torch.manual_seed(seed)
    return {
        "a.weight": torch.randn(size // 40, 40).bfloat16(),
        "b.weight": torch.randn(size // 2).half().reshape(-1, 4),
        "c.scale": torch.randn(16),
        "d.codes": torch.randint(-100, 100, (size,), dtype=torch.int8),
        "e.fp8": torch.randn(size).to(torch.float8_e4m3fn),
        "f.frozen": torch.randn(64),
        "g.step": torch.tensor(7),
        "h.empty": torch.empty(0, 3),
    }


def step(state, seed, share=0.05, keep=("f.frozen",)):
    """Returns a copy in which a share of the elements changed by one bit."""
    generator = np.random.default_rng(seed)
    after = {}
    for name, tensor in state.items():
        data = np.frombuffer(bytes_of(tensor), np.uint8).copy()
        item = tensor.element_size()
        count = data.size // item
        if count and name not in keep:
            chosen = generator.random(count) < share
            chosen[int(generator.integers(count))] = True
            data.reshape(count, item)[chosen, 0] ^= 1
        after[name] = torch.frombuffer(data, dtype=tensor.dtype).reshape(
            tensor.shape) if data.size else tensor.clone()
    return after


def save_full(folder, state, shards=1, metadata=None):
    """Writes a full checkpoint."""
    folder.mkdir(parents=True)
    weight_map = {}
    names = sorted(state)
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: state[name] for name in names[i::shards]}
        safetensors.torch.save_file(part, folder / file, {"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))
    total = sum(t.numel() * t.element_size() for t in state.values())
    (folder / INDEX).write_text(json.dumps({
        "metadata": {"total_size": total, **(metadata or {})},
        "weight_map": weight_map}))
    return folder


def content(before, after, encoding):
    """Returns what the frame of a changed tensor holds."""
    before, after = (np.frombuffer(data, np.uint8) for data in (before, after))
    if encoding == "xor":
        return (before ^ after).tobytes()
    (at,) = np.nonzero(before != after)
    return (np.uint32(at.size).tobytes() + at.astype("<u4").tobytes()
            + after[at].tobytes())


def compress(data, **options):
    return zstandard.ZstdCompressor(**{"level": 1, **options}).compress(data)


def save_shard(path, frames, sums):
    safetensors.torch.save_file(
        {name: torch.from_numpy(np.frombuffer(frame, np.uint8).copy())
         for name, frame in frames.items()}, path, sums or None)


def save_delta(folder, before, after, version, base=None, *, encoding="xor",
               checksum="xxh3-128", shards=1, frame=compress):
    """Writes a delta; a number is written as six digits. Returns its folder."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    if base is None:
        base = version - 1
    digits = [f"{v:06}" if isinstance(v, int) else v for v in (version, base)]
    changed = [name for name in sorted(after)
               if bytes_of(before[name]) != bytes_of(after[name])]
    weight_map = {}
    for i in range(min(shards, len(changed))):
        file = f"model-{i:05}-of-{shards:05}.safetensors"
        part = changed[i::shards]
        save_shard(
            folder / file,
            {name: frame(content(bytes_of(before[name]), bytes_of(after[name]),
                                 encoding)) for name in part},
            {name: SUMS[checksum](bytes_of(after[name])) for name in part})
        weight_map.update(dict.fromkeys(part, file))
    (folder / INDEX).write_text(json.dumps({
        "metadata": {
            "version": digits[0], "base_version": digits[1],
            "delta_encoding": encoding, "compression_format": "zstd",
            "checksum_format": checksum},
        "weight_map": weight_map}))
    return folder


def read_index(folder):
    return json.loads((folder / INDEX).read_text())


def write_index(folder, index):
    (folder / INDEX).write_text(json.dumps(index))


def chain(root, count=3, seed=0, size=4000, **options):
    """Writes root/base and root/run with `count` deltas. Returns the states,
    of the base first."""
    states = [model(seed, size)]
    save_full(root / "base", states[0], shards=2)
    for version in range(1, count + 1):
        states.append(step(states[-1], seed + version))
        save_delta(root / "run" / f"weight_v{version:06}", states[-2],
                   states[-1], version, **options)
    return states


def receive(local, source, target):
    """Pulls versions as SGLang's receiver does. `local` holds the checkpoint of
    version 0, or of the last version pulled.

    A full version replaces all files. Raises ValueError for a wrong checksum or
    order.
    """
    state = local / ".weight_sync" / "state.json"
    state.parent.mkdir(exist_ok=True)
    have = int(json.loads(state.read_text())["version"]) if state.exists() else 0
    while have < target:
        folder = source / f"weight_v{have + 1:06}"
        metadata = read_index(folder)["metadata"]
        if "delta_encoding" not in metadata:
            for path in local.iterdir():
                if path.is_file():
                    path.unlink()
            shutil.copytree(folder, local, dirs_exist_ok=True)
            have += 1
        else:
            if int(metadata["base_version"]) != have:
                raise ValueError("another base")
            have = int(metadata["version"])
            _apply(local, folder, metadata)
        state.write_text(json.dumps({"version": f"{have:06}"}))


def _apply(local, folder, metadata):
    files = {}  # Tensor -> (file, offset, bytes)
    for path in local.glob("*.safetensors"):
        head, start = _header(path)
        for name, facts in head.items():
            if name != "__metadata__":
                begin, end = facts["data_offsets"]
                files[name] = (path, start + begin, end - begin)
    for path in sorted(folder.glob("*.safetensors")):
        head, start = _header(path)
        raw = path.read_bytes()
        for name, facts in head.items():
            if name == "__metadata__":
                continue
            begin, end = facts["data_offsets"]
            frame = raw[start + begin:start + end]
            target, offset, size = files[name]
            whole = bytearray(target.read_bytes())
            old = np.frombuffer(bytes(whole[offset:offset + size]), np.uint8)
            decoder = zstandard.ZstdDecompressor()
            if metadata["delta_encoding"] == "xor":
                with decoder.stream_reader(frame) as stream:
                    new = old ^ np.frombuffer(stream.read(size), np.uint8)
            else:
                data = decoder.decompress(frame)
                count = int(np.frombuffer(data, "<u4", 1)[0])
                at = np.frombuffer(data, "<u4", count, 4)
                new = old.copy()
                new[at] = np.frombuffer(data, np.uint8, count, 4 + 4 * count)
            whole[offset:offset + size] = new.tobytes()
            found = SUMS[metadata["checksum_format"]](new.tobytes())
            if found != head["__metadata__"].get(name):
                raise ValueError(f"checksum of {name}")
            target.write_bytes(whole)


def _header(path):
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8:8 + length]), 8 + length


def expected_of(name):
    """Returns what a golden set holds: {folder: {tensor: (dtype, shape,
    sha256)}}."""
    facts = json.loads((GOLDENS / name / "expected.json").read_text())
    return {
        folder: {tensor: (one["dtype"], tuple(one["shape"]), one["sha256"])
                 for tensor, one in tensors.items()}
        for folder, tensors in facts.items()}


def digests(state):
    """Returns what haulway.manifest() returns, of tensors in memory."""
    return {name: hashlib.sha256(bytes_of(tensor)).hexdigest()
            for name, tensor in state.items()}
