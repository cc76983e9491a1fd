"""haulway.convert and the command: converts every format to every other and
compares with what torch, safetensors and tensorizer read."""

import json
import os
import re
import subprocess
import sys

import gguf
import numpy
import pytest
import safetensors
import safetensors.torch
import torch
from huggingface_hub import split_torch_state_dict_into_shards

import haulway
from needed_metadata import needed

FORMATS = {"torch": ".pt", "safetensors": ".safetensors",
           "tensorizer": ".tensors"}


def tensors():
    torch.manual_seed(3)
    made = {
        "layer.0.weight": torch.randn(17, 5),
        "layer.0.bias": torch.randn(5).to(torch.bfloat16),
        "half": torch.randn(3, 1, 2).half(),
        "double": torch.randn(4, dtype=torch.float64),
        "count": torch.arange(7),
        "bytes": torch.arange(256, dtype=torch.uint8),
        "flags": torch.tensor([True, False, True]),
        "complex": torch.randn(3, dtype=torch.complex64),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "odd \N{SNOWMAN} name": torch.ones(1),
        "large": torch.randn(700, 1000),
    }
    return made


def read(path, format):
    """Reads a file with the format's own library."""
    if format == "torch":
        return torch.load(path, weights_only=True)
    if format == "safetensors":
        return safetensors.torch.load_file(path)
    return dict(haulway.load(path, verify=True))


def same(a, b):
    assert sorted(a) == sorted(b)
    for name, tensor in a.items():
        assert b[name].dtype == tensor.dtype, name
        assert b[name].shape == tensor.shape, name
        assert torch.equal(b[name], tensor), name


# Values that every writable format can hold.
PLAIN = {
    "w.0": numpy.arange(600, dtype="f4").reshape(20, 30), "half":
    numpy.ones((3, 32), "f2"), "count": numpy.arange(9), "big":
    numpy.arange(300_000, dtype="f8"), "small": numpy.arange(5, dtype="i1"),
}
WRITTEN = ["torch", "safetensors", "tensorizer", "gguf", "npz"]


def read_plain(path, format):
    """Reads a file with the format's own library; returns a dict by name."""
    if format == "npz":
        return dict(numpy.load(path))
    if format == "gguf":
        reader = gguf.GGUFReader(path)
        return {t.name: t.data for t in reader.tensors}
    return {name: t.numpy() for name, t in read(path, format).items()}


@pytest.mark.parametrize("new", WRITTEN)
@pytest.mark.parametrize("old", WRITTEN)
def test_what_all_formats_hold_goes_from_each_to_each(tmp_path, old, new):
    haulway.save(PLAIN, tmp_path / "old", old, **needed(old))
    report = haulway.convert(
        tmp_path / "old", tmp_path / "new", new, proof=True, **needed(new)
    )
    found = read_plain(tmp_path / "new", new)
    assert sorted(found) == sorted(PLAIN)
    for name, array in PLAIN.items():
        assert found[name].dtype == array.dtype, name
        assert numpy.array_equal(found[name], array), name
    assert len(report.proof) == len(PLAIN)


def test_values_of_metadata_are_kept_or_told(tmp_path):
    metadata = {"general.architecture": "x", "n": 7, "flags": [True, False]}
    haulway.save(PLAIN, tmp_path / "a.gguf", metadata=metadata)
    haulway.convert(tmp_path / "a.gguf", tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (
        tmp_path / "b.gguf").read_bytes()
    report = haulway.convert(tmp_path / "a.gguf", tmp_path / "b.safetensors")
    assert [row.name for row in report.left_out] == ["n", "flags"]
    assert haulway.open(tmp_path / "b.safetensors").metadata == {
        "format": "pt", "general.architecture": "x"
    }


@pytest.mark.parametrize("new", FORMATS)
@pytest.mark.parametrize("old", FORMATS)
def test_every_format_as_every_other(tmp_path, old, new):
    old_path = tmp_path / f"old{FORMATS[old]}"
    new_path = tmp_path / f"new{FORMATS[new]}"
    haulway.save(tensors(), old_path)
    report = haulway.convert(old_path, new_path, proof=True)
    same(tensors(), read(new_path, new))
    assert report.tensors == len(tensors())
    assert report.files == [str(new_path)]
    assert report.bytes == new_path.stat().st_size
    assert [row.name for row in report.proof] == sorted(tensors())
    assert sorted(os.listdir(tmp_path)) == sorted(
        {old_path.name, new_path.name}
    )


def test_the_proof_is_the_digest_of_the_elements(tmp_path):
    import hashlib

    state = {"turned": torch.arange(6.0).reshape(2, 3).t(),
             "half": torch.arange(4.0)}
    torch.save(state, tmp_path / "a.pt")
    report = haulway.convert(
        tmp_path / "a.pt", tmp_path / "a.safetensors", proof=True, dtype="f16"
    )
    for row in report.proof:
        data = state[row.name].half().contiguous().numpy().tobytes()
        assert row.sha256 == hashlib.sha256(data).hexdigest()


def test_torch_to_safetensors_is_what_save_file_writes(tmp_path):
    torch.save(tensors(), tmp_path / "a.pt")
    haulway.convert(tmp_path / "a.pt", tmp_path / "a.safetensors")
    safetensors.torch.save_file(
        tensors(), tmp_path / "b.safetensors", metadata={"format": "pt"}
    )
    assert (tmp_path / "a.safetensors").read_bytes() == (
        tmp_path / "b.safetensors").read_bytes()


def test_safetensors_to_torch_is_what_torch_writes(tmp_path):
    safetensors.torch.save_file(tensors(), tmp_path / "a.safetensors")
    (tmp_path / "new").mkdir()
    haulway.convert(tmp_path / "a.safetensors", tmp_path / "new" / "a.pt")
    with safetensors.safe_open(tmp_path / "a.safetensors", "pt") as opened:
        names = list(opened.offset_keys())
    torch.save({name: tensors()[name] for name in names}, tmp_path / "a.pt")
    assert (tmp_path / "new" / "a.pt").read_bytes() == (
        tmp_path / "a.pt").read_bytes()


@pytest.mark.parametrize("new", FORMATS)
@pytest.mark.parametrize("dtype", ["bf16", "F16", "float32", torch.float64,
                                   torch.float8_e4m3fn])
def test_dtype_changes_floating_tensors_only(tmp_path, dtype, new):
    torch.save(tensors(), tmp_path / "a.pt")
    path = tmp_path / f"b{FORMATS[new]}"
    haulway.convert(tmp_path / "a.pt", path, dtype=dtype)
    to = {"bf16": torch.bfloat16, "F16": torch.float16,
          "float32": torch.float32}.get(dtype, dtype)
    wanted = {
        name: t.to(to) if t.is_floating_point() else t
        for name, t in tensors().items()
    }
    found = read(path, new)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name].float() if tensor.dtype.itemsize == 1
                           and tensor.is_floating_point() else found[name],
                           tensor.float() if tensor.dtype.itemsize == 1
                           and tensor.is_floating_point() else tensor), name


def test_a_dtype_that_is_no_floating_one_is_refused(tmp_path):
    torch.save(tensors(), tmp_path / "a.pt")
    for dtype in ("I32", torch.bool, numpy.int8):
        with pytest.raises(haulway.Error, match="not a floating-point one"):
            haulway.convert(tmp_path / "a.pt", tmp_path / "b.pt", dtype=dtype)
    assert os.listdir(tmp_path) == ["a.pt"]


def test_views_come_out_as_they_are_seen(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    complex_ = torch.randn(5, dtype=torch.complex64)
    state = {
        "turned": base.t(), "conj": complex_.conj(),
        "neg": complex_.clone().conj().imag,
        "ints": torch._neg_view(torch.arange(6).reshape(2, 3)).t(),
        "bytes": torch._neg_view(torch.tensor([0, 1, 255], dtype=torch.uint8)),
        "step": torch.arange(20)[3::4], "wide": torch.ones(1).expand(3, 2),
        "five": torch.arange(120.0).reshape(2, 3, 4, 5).permute(3, 1, 0, 2),
    }
    torch.save(state, tmp_path / "a.pt")
    for format, suffix in FORMATS.items():
        path = tmp_path / f"b{suffix}"
        haulway.convert(tmp_path / "a.pt", path, memory_budget=1 << 20)
        same({name: t.resolve_conj().resolve_neg()
              for name, t in state.items()}, read(path, format))


def test_large_strided_tensors_come_in_blocks(tmp_path):
    state = {"w": torch.randn(1500, 2000).t(),
             "v": torch.randn(3, 700, 900).permute(1, 2, 0)}
    torch.save(state, tmp_path / "a.pt")
    haulway.convert(tmp_path / "a.pt", tmp_path / "b.safetensors",
                    memory_budget="1MiB", threads=2)
    same(state, read(tmp_path / "b.safetensors", "safetensors"))


def tied():
    base = torch.randn(8, 4)
    return {"z.first": base, "a.second": base.detach(), "other": torch.ones(2)}


def test_ties_are_kept_where_the_format_can(tmp_path):
    torch.save(tied(), tmp_path / "a.pt")
    haulway.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    loaded = torch.load(tmp_path / "b.pt", weights_only=True)
    assert (loaded["z.first"].data_ptr() == loaded["a.second"].data_ptr())
    same(tied().keys() and loaded, torch.load(tmp_path / "a.pt"))
    haulway.convert(tmp_path / "a.pt", tmp_path / "c.pt", dtype="bf16")
    loaded = torch.load(tmp_path / "c.pt", weights_only=True)
    assert (loaded["z.first"].data_ptr() == loaded["a.second"].data_ptr())
    assert loaded["z.first"].dtype == torch.bfloat16


@pytest.mark.parametrize("ties", ["keep", "error"])
def test_ties_are_refused_and_named_where_it_cannot(tmp_path, ties):
    torch.save(tied(), tmp_path / "a.pt")
    for suffix in (".safetensors", ".tensors"):
        with pytest.raises(haulway.UnsupportedError,
                           match="'a.second', 'z.first'"):
            haulway.convert(tmp_path / "a.pt", tmp_path / f"b{suffix}",
                            ties=ties)
    assert os.listdir(tmp_path) == ["a.pt"]


def test_dropped_ties_are_those_that_huggingface_drops(tmp_path):
    torch.save(tied(), tmp_path / "a.pt")
    report = haulway.convert(
        tmp_path / "a.pt", tmp_path / "b.safetensors", ties="drop"
    )
    loaded = safetensors.torch.load_file(tmp_path / "b.safetensors")
    module = torch.nn.Module()
    for name, tensor in tied().items():
        module.register_buffer(name.replace(".", "_"), tensor)
    state = tied()
    gone = safetensors.torch._remove_duplicate_names(state)
    assert sorted(set(state) - {n for ns in gone.values() for n in ns}) == (
        sorted(loaded))
    assert [vars(row) for row in report.ties] == [
        {"name": "z.first", "with": "a.second", "done": "dropped"}
    ]


def test_what_overlaps_and_differs_is_not_dropped(tmp_path):
    base = torch.arange(8.0)
    torch.save({"all": base, "part": base[2:4]}, tmp_path / "a.pt")
    with pytest.raises(haulway.UnsupportedError, match="not the same tensor"):
        haulway.convert(tmp_path / "a.pt", tmp_path / "b.safetensors",
                        ties="drop")
    report = haulway.convert(tmp_path / "a.pt", tmp_path / "b.safetensors",
                             ties="copy")
    same({"all": base, "part": base[2:4]},
         read(tmp_path / "b.safetensors", "safetensors"))
    assert [(row.name, row.done) for row in report.ties] == [
        ("part", "copied")
    ]


def test_what_stays_behind_takes_no_bytes_along(tmp_path):
    base = torch.zeros(1 << 20)
    torch.save({"a": base[:10], "b": base[10:]}, tmp_path / "a.pt")
    haulway.convert(tmp_path / "a.pt", tmp_path / "b.pt", include="a")
    assert (tmp_path / "b.pt").stat().st_size < 10_000
    torch.save({"a": base[:10]}, tmp_path / "a.pt")
    haulway.convert(tmp_path / "a.pt", tmp_path / "c.pt")
    assert (tmp_path / "c.pt").stat().st_size > 4 << 20
    haulway.convert(tmp_path / "a.pt", tmp_path / "d.pt", compact=True)
    assert (tmp_path / "d.pt").stat().st_size < 10_000


def test_names_are_chosen_and_changed(tmp_path):
    torch.save(tensors(), tmp_path / "a.pt")
    haulway.convert(
        tmp_path / "a.pt", tmp_path / "b.safetensors", include="layer.*",
        exclude="*.bias", rename=[(r"^layer\.(\d+)", r"h.\1")],
    )
    loaded = safetensors.torch.load_file(tmp_path / "b.safetensors")
    assert list(loaded) == ["h.0.weight"]
    haulway.convert(tmp_path / "a.pt", tmp_path / "b.safetensors",
                    rename=str.upper)
    assert "LAYER.0.WEIGHT" in safetensors.torch.load_file(
        tmp_path / "b.safetensors")
    for rename in ({"(": ""}, 5, [1]):
        with pytest.raises(haulway.Error, match="rename: (expected|not a regular)"):
            haulway.convert(tmp_path / "a.pt", tmp_path / "c.pt",
                            rename=rename)
    with pytest.raises(haulway.Error, match="two tensors are named 'x'"):
        haulway.convert(tmp_path / "a.pt", tmp_path / "c.pt",
                        rename=lambda name: "x")
    with pytest.raises(ZeroDivisionError):
        haulway.convert(tmp_path / "a.pt", tmp_path / "c.pt",
                        rename=lambda name: 1 / 0)
    for wrong in (lambda name: 5, lambda name: name + "\udc80"):
        with pytest.raises(haulway.Error, match="a name is "):
            haulway.convert(tmp_path / "a.pt", tmp_path / "c.pt", rename=wrong)
    with pytest.raises(haulway.NotFoundError, match="no tensor is chosen"):
        haulway.convert(tmp_path / "a.pt", tmp_path / "c.pt", include="half",
                        exclude="h*")
    assert sorted(os.listdir(tmp_path)) == ["a.pt", "b.safetensors"]


def test_what_is_no_tensor_is_told(tmp_path):
    torch.save(
        {"model": {"w": torch.ones(2)}, "step": 3, "note": "x",
         "groups": [{"lr": 0.1}], "state": {0: {"exp": torch.zeros(2)}}},
        tmp_path / "a.pt",
    )
    report = haulway.convert(tmp_path / "a.pt", tmp_path / "b.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "b.safetensors")
    assert sorted(loaded) == ["model.w", "state.0.exp"]
    assert sorted(row.name for row in report.left_out) == [
        "groups.0.lr", "note", "step", "the key of state.0"
    ]
    report = haulway.convert(tmp_path / "a.pt", tmp_path / "b.safetensors",
                             include=["model.*", "note"])
    assert [row.name for row in report.left_out] == ["note"]


@pytest.mark.parametrize(
    "value, message",
    [
        (torch.ones(2, device="meta"), "a meta tensor"),
        (torch.eye(3).to_sparse(), "a sparse or nested tensor"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
         "a quantized tensor"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(tmp_path, value, message):
    torch.save({"good": torch.ones(1), "bad": value}, tmp_path / "a.pt")
    with pytest.raises(haulway.UnsupportedError, match=f"{message}.*'bad"):
        haulway.convert(tmp_path / "a.pt", tmp_path / "b.safetensors")
    assert os.listdir(tmp_path) == ["a.pt"]
    haulway.convert(tmp_path / "a.pt", tmp_path / "b.safetensors",
                    exclude="bad*")
    assert list(read(tmp_path / "b.safetensors", "safetensors")) == ["good"]


def test_metadata_is_kept_or_told(tmp_path):
    safetensors.torch.save_file(
        {"a": torch.ones(1)}, tmp_path / "a.safetensors", {"k": "v"}
    )
    haulway.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert haulway.open(tmp_path / "b.safetensors").metadata == {"k": "v"}
    report = haulway.convert(tmp_path / "a.safetensors", tmp_path / "b.pt")
    assert [row.name for row in report.left_out] == ["k"]


@pytest.mark.parametrize("size", [100, 5000, "2MB", "5GB"])
@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_shards_are_those_of_huggingface_hub(tmp_path, size, suffix):
    state = {**tensors(), **{f"n.{i}": torch.ones(i + 1) for i in range(40)}}
    if suffix == ".bin":
        state["again"] = state["large"].detach()
    torch.save(state, tmp_path / "a.pt")
    stem = "pytorch_model" if suffix == ".bin" else "model"
    out = tmp_path / "out"
    out.mkdir()
    report = haulway.convert(tmp_path / "a.pt", out / f"{stem}{suffix}",
                             shard=size)
    split = split_torch_state_dict_into_shards(
        state, filename_pattern=f"{stem}{{suffix}}{suffix}",
        max_shard_size=size,
    )
    files = dict(split.filename_to_tensors)
    index = f"{stem}{suffix}.index.json"
    assert sorted(os.listdir(out)) == sorted(
        [*files, index] if split.is_sharded else files
    )
    for file, names in files.items():
        format = "torch" if suffix == ".bin" else "safetensors"
        same({name: state[name] for name in names}, read(out / file, format))
    if split.is_sharded:
        assert report.files[-1] == str(out / index)
        assert (out / index).read_text() == json.dumps(
            {"metadata": split.metadata,
             "weight_map": split.tensor_to_filename}, indent=2)
    if suffix == ".safetensors" and split.is_sharded:
        same(state, haulway.load(out / index))


def test_shards_become_one_file(tmp_path):
    torch.save(tensors(), tmp_path / "a.pt")
    haulway.convert(tmp_path / "a.pt", tmp_path / "b.safetensors", shard=5000)
    report = haulway.convert(tmp_path / "b.safetensors.index.json",
                             tmp_path / "c.safetensors")
    same(tensors(), read(tmp_path / "c.safetensors", "safetensors"))
    assert haulway.open(tmp_path / "c.safetensors").metadata == {
        "format": "pt"
    }
    assert report.left_out == []


def test_a_damaged_file_is_not_converted(tmp_path):
    path = tmp_path / "a.pt"
    for state in ({"w": torch.ones(400_000)},
                  {"w": torch.ones(400_000), "v": torch.ones(400, 1000).t()}):
        torch.save(state, path)
        data = bytearray(path.read_bytes())
        at = data.rindex(b"\x00\x00\x80\x3f" * 50)
        data[at + 2] ^= 1
        path.write_bytes(data)
        for suffix in FORMATS.values():
            with pytest.raises(haulway.MismatchError):
                haulway.convert(path, tmp_path / f"b{suffix}")
        assert os.listdir(tmp_path) == ["a.pt"]


def test_an_encrypted_file_is_read_with_its_key(tmp_path):
    key = bytes(range(32))
    haulway.save(tensors(), tmp_path / "a.tensors", key=key)
    haulway.convert(tmp_path / "a.tensors", tmp_path / "b.pt", key=key,
                    proof=True)
    same(tensors(), read(tmp_path / "b.pt", "torch"))
    with pytest.raises(haulway.Error):
        haulway.convert(tmp_path / "a.tensors", tmp_path / "c.pt")
    assert not (tmp_path / "c.pt").exists()


def test_a_file_is_not_converted_onto_itself(tmp_path):
    torch.save(tensors(), tmp_path / "a.pt")
    with pytest.raises(haulway.Error, match="onto itself"):
        haulway.convert(tmp_path / "a.pt", tmp_path / "a.pt", dtype="bf16")


def test_a_shard_of_the_source_is_not_written(tmp_path):
    haulway.save({f"t{i}": torch.full((1000,), i) for i in range(4)},
                 tmp_path / "m.pt")
    haulway.convert(tmp_path / "m.pt", tmp_path / "m.safetensors", shard=16_000)
    index = tmp_path / "m.safetensors.index.json"
    shard = min(tmp_path.glob("m-*"))
    os.link(shard, tmp_path / "linked.safetensors")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for out, options in (
        (shard, {}), (tmp_path / "linked.safetensors", {}),
        (tmp_path / "m.safetensors", {"shard": 16_000}),
    ):
        with pytest.raises(haulway.InvalidArgumentError, match="is read: "):
            haulway.convert(index, out, **options)
    with pytest.raises(haulway.InvalidArgumentError, match="is read: "):
        haulway.repair(index, shard)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_old_file_stays_where_converting_fails(tmp_path):
    torch.save(tied(), tmp_path / "a.pt")
    (tmp_path / "b.safetensors").write_bytes(b"old")

    def stop(done, total):
        raise KeyError("enough")

    with pytest.raises(KeyError):
        haulway.convert(tmp_path / "a.pt", tmp_path / "b.safetensors",
                        ties="copy", progress=stop)
    assert (tmp_path / "b.safetensors").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["a.pt", "b.safetensors"]


def test_progress_counts_up_to_all_of_it(tmp_path):
    torch.save(tensors(), tmp_path / "a.pt")
    seen = []
    haulway.convert(tmp_path / "a.pt", tmp_path / "b.safetensors", shard=9000,
                    progress=lambda *counts: seen.append(counts))
    assert seen == sorted(seen)
    assert len({total for _, total in seen}) == 1
    assert seen[-1][0] == seen[-1][1]


PEAK = """
import sys, haulway
before = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
haulway.convert(sys.argv[1], sys.argv[2], memory_budget="32MiB", threads=2,
                dtype=sys.argv[3] or None, ties="copy")
after = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
print(after - before)
"""


@pytest.mark.parametrize("dtype", ["", "bf16"])
@pytest.mark.parametrize("suffix", [".safetensors", ".tensors", ".pt"])
def test_memory_stays_in_its_budget(tmp_path, suffix, dtype):
    big = torch.zeros(6000, 5000)  # One tensor of 120 MB.
    torch.save({"big": big, "turned": big.t()[:3000]}, tmp_path / "a.pt")
    ran = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path / "a.pt",
         tmp_path / f"b{suffix}", dtype],
        capture_output=True, text=True, check=True,
    )
    assert int(ran.stdout) < 64 << 10  # KiB


def test_the_command_converts(tmp_path, run):
    torch.save(tied(), tmp_path / "a.pt")
    done = run("convert", tmp_path / "a.pt", tmp_path / "b.safetensors",
               "--ties", "drop", "--dtype", "bf16", "--rename",
               r"^(other)=x.\1", "--json", "--proof", tmp_path / "proof.json")
    report = json.loads(done.stdout)
    assert report["tensors"] == 2
    assert report["files"] == [str(tmp_path / "b.safetensors")]
    assert report["bytes"] == (tmp_path / "b.safetensors").stat().st_size
    assert [row["name"] for row in report["ties"]] == ["z.first"]
    proof = json.loads((tmp_path / "proof.json").read_text())
    assert proof["proof"] == report["proof"]
    assert [row["name"] for row in report["proof"]] == ["a.second", "x.other"]
    loaded = safetensors.torch.load_file(tmp_path / "b.safetensors")
    assert loaded["a.second"].dtype == torch.bfloat16


def test_the_command_says_what_is_wrong(tmp_path, run):
    torch.save(tied(), tmp_path / "a.pt")
    source, target = tmp_path / "a.pt", tmp_path / "b.safetensors"
    for words, code in [
        ((source, target), 2),
        ((source, target, "--include", "other", "--exclude", "o*"), 3),
        ((source, target, "--to", "torch"), 2),
        ((source, tmp_path / "b.h5"), 2),
        ((source, tmp_path / "b"), 2),
        ((source, tmp_path / "b.model"), 2),
        ((source, target, "--ties", "some"), 4),
        ((source, target, "--dtype", "zz"), 4),
        ((source, target, "--to", "zz"), 4),
        ((source, target, "--to", "onnx"), 4),
        ((source, target, "--shard", "5 apples"), 4),
        ((source, target, "--rename", "(=x", "--ties", "drop"), 4),
        ((source, target, "--dtype", "I8", "--ties", "drop"), 4),
        ((tmp_path / "none.pt", target), 2),
        ((source,), 4),
    ]:
        done = run("convert", *words, code=code)
        assert done.stderr
    assert os.listdir(tmp_path) == ["a.pt"]


@pytest.mark.parametrize("change", [haulway.convert, haulway.repair])
def test_a_name_without_a_known_ending_needs_a_format(tmp_path, change):
    torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    for name in ("b", "b.model", "b.pt.1"):
        with pytest.raises(haulway.InvalidArgumentError, match=r"expected one of "
                           r"\.pt .*\.safetensors .*, or the name of a format"):
            change(tmp_path / "a.pt", tmp_path / name)
    assert os.listdir(tmp_path) == ["a.pt"]
    change(tmp_path / "a.pt", tmp_path / "b", to="safetensors")
    assert read(tmp_path / "b", "safetensors")["w"].tolist() == [1, 1, 1]


def test_the_command_prints_what_was_left_out(tmp_path, run):
    torch.save({**tied(), "step": 3}, tmp_path / "a.pt")
    done = run("convert", tmp_path / "a.pt", tmp_path / "b.safetensors",
               "--ties", "drop", "--shard", "100B")
    assert "2 tensors" in done.stdout and "3 files" in done.stdout
    assert "dropped z.first: it shares memory with a.second" in done.stdout
    assert "left out step: a number, which is no tensor" in done.stdout


@pytest.mark.parametrize("pattern, replacement", [
    (r"^layer\.(\d+)\.", r"h\1."), (r"\bweight$", "w"), ("a", "b"),
    (r"(?P<kind>weight|bias)", r"<\g<kind>>"), (r"x*", "-"), (r"[^\w.]", "_"),
    ("(?i)LAYER", "l"), (r"\.", r"\\"),
])
def test_the_command_and_python_rename_alike(tmp_path, run, pattern, replacement):
    names = [name for name in tensors() if name != "large"]
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({name: torch.ones(1) for name in names}, path)
    wanted = sorted(re.sub(pattern, replacement, name) for name in names)
    haulway.convert(path, tmp_path / "b.safetensors", rename={pattern: replacement})
    run("convert", path, "c.safetensors", "--rename", f"{pattern}={replacement}")
    compiled = {re.compile(pattern): replacement}
    haulway.convert(path, tmp_path / "d.safetensors", rename=compiled)
    for name in "bcd":
        with haulway.open(tmp_path / f"{name}.safetensors") as made:
            assert sorted(made) == wanted, name


@pytest.mark.parametrize("pattern, replacement, why", [
    ("(", "", "missing"), ("(?=a)", "", "invalid perl operator"),
    ("a", r"\1", "has no group '1'"), ("a", r"\d", "means nothing"),
])
def test_what_is_no_renaming_says_why(tmp_path, run, pattern, replacement, why):
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"a": torch.ones(1)}, path)
    with pytest.raises(haulway.InvalidArgumentError, match=f"rename: .*{why}"):
        haulway.convert(path, tmp_path / "b.pt", rename={pattern: replacement})
    done = run("convert", path, "b.pt", "--rename", f"{pattern}={replacement}",
               code=4)
    assert why in done.stderr
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_a_folder_gets_the_names_of_huggingface(tmp_path, run):
    state = {f"layers.{i}.w": torch.full((1000,), float(i)) for i in range(6)}
    source = tmp_path / "old.pt"
    torch.save(state, source)
    model = tmp_path / "model"
    done = haulway.convert(source, f"{model}/", "safetensors", shard=9000)
    shards = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(os.listdir(model)) == [*shards, "model.safetensors.index.json"]
    assert done.removed == []
    (model / "config.json").write_text("{}")
    (model / "model-1-of-3.safetensors").write_bytes(b"")
    done = json.loads(run("convert", source, model, "--to", "safetensors",
                          "--json").stdout)
    assert done["files"] == [f"{model}/model.safetensors"]
    assert [os.path.basename(path) for path in done["removed"]] == [
        "model.safetensors.index.json", *reversed(shards)]
    assert sorted(os.listdir(model)) == [
        "config.json", "model-1-of-3.safetensors", "model.safetensors"]
    same(state, safetensors.torch.load_file(model / "model.safetensors"))
    haulway.convert(source, model, "torch")
    same(state, torch.load(model / "pytorch_model.bin"))
    done = run("convert", source, model, "--to", "safetensors", "--shard", "9000")
    assert (f"removed {model}/model.safetensors: a file of an older checkpoint"
            in done.stdout)


def test_a_folder_with_the_source_or_without_a_format_is_refused(tmp_path, run):
    state = {f"{i}": torch.full((1000,), float(i)) for i in range(4)}
    model = tmp_path / "model"
    model.mkdir()
    torch.save(state, tmp_path / "a.pt")
    haulway.convert(tmp_path / "a.pt", model, "safetensors", shard=9000)
    before = {path: path.read_bytes() for path in model.iterdir()}
    for source in (model, model / "model.safetensors.index.json"):
        with pytest.raises(haulway.InvalidArgumentError, match="another folder"):
            haulway.convert(source, model, "safetensors")
    run("convert", tmp_path / "a.pt", model, code=2)
    with pytest.raises(haulway.InvalidArgumentError, match="which format"):
        haulway.convert(tmp_path / "a.pt", f"{tmp_path}/new/")
    assert {path: path.read_bytes() for path in model.iterdir()} == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("target", ["b.pt", "b.safetensors", "b.npz"])
def test_equal_names_in_different_shards(target, tmp_path):
    torch.save({"a": torch.zeros(100), "b": torch.ones(100)}, tmp_path / "a.pt")
    for shard in (None, 400):
        with pytest.raises(haulway.InvalidArgumentError,
                           match="two tensors are named 'x'"):
            haulway.convert(tmp_path / "a.pt", tmp_path / target, shard=shard,
                            rename={"^[ab]$": "x"})
    assert os.listdir(tmp_path) == ["a.pt"]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e4m3fnuz",
                                   "float8_e5m2fnuz", "bfloat16"])
def test_a_strided_negative_view_is_cast_after_it_is_negated(dtype, tmp_path):
    numbers = torch.complex(torch.arange(4.0), torch.arange(4.0) - 1)
    view = numbers.conj().imag
    assert view.is_neg() and not view.is_contiguous()
    torch.save({"v": view}, tmp_path / "a.pt")
    haulway.convert(tmp_path / "a.pt", tmp_path / "b.safetensors", dtype=dtype)
    found = haulway.load(tmp_path / "b.safetensors")["v"]
    expected = view.resolve_neg().to(getattr(torch, dtype))
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("before", [
    {}, {"losses": [0.5] * 100_100}, {"s.t.indices": torch.ones(1)},
], ids=["alone", "after many numbers", "with an equal name"])
@pytest.mark.parametrize("key", ["s", 1.5, (1, "b"), None])
def test_no_part_of_a_sparse_tensor_is_written(key, before, tmp_path):
    sparse = torch.eye(3).to_sparse()
    torch.save({**before, key: {"t": sparse}, "w": torch.ones(2)},
               tmp_path / "a.pt")
    with pytest.raises(haulway.UnsupportedError, match="sparse"):
        haulway.convert(tmp_path / "a.pt", tmp_path / "b.safetensors")
    report = haulway.repair(tmp_path / "a.pt", tmp_path / "b.safetensors")
    assert len(report.lost) == 2
    assert all("sparse" in one.why for one in report.lost)



def test_a_report_that_is_cut_says_so(tmp_path):
    torch.save({"losses": [0.5] * 100_101, "w": torch.ones(2)}, tmp_path / "a.pt")
    done = haulway.convert(tmp_path / "a.pt", tmp_path / "b.safetensors")
    assert len(done.left_out) == 100_001
    assert done.left_out[-1].why == "101 more, which are not listed"


def test_metadata_of_gguf_keeps_its_type(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_uint32("llama.context_length", 2048)
    writer.add_float32("llama.scale", 0.5)
    writer.add_key_value("ids", [1, 2], gguf.GGUFValueType.ARRAY,
                         gguf.GGUFValueType.UINT16)
    writer.add_tensor("w", numpy.ones(3, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    haulway.convert(tmp_path / "a.gguf", tmp_path / "b.gguf", metadata={
        "llama.context_length": 4096, "llama.scale": 0.1, "ids": [3]})
    fields = gguf.GGUFReader(tmp_path / "b.gguf").fields
    types = gguf.GGUFValueType
    assert fields["llama.context_length"].types == [types.UINT32]
    assert fields["llama.context_length"].contents() == 4096
    assert fields["llama.scale"].types == [types.FLOAT32]
    assert fields["ids"].types == [types.ARRAY, types.UINT16]
    with pytest.raises(haulway.InvalidArgumentError, match="type 'u32'"):
        haulway.convert(tmp_path / "a.gguf", tmp_path / "c.gguf",
                        metadata={"llama.context_length": -1})


def test_standard_output_is_one_file(run, tmp_path):
    haulway.save({"a": torch.zeros(100), "b": torch.ones(100)},
                 tmp_path / "a.safetensors")
    done = run("convert", "a.safetensors", "-", "--to", "safetensors",
               "--shard", "400", code=2)
    assert "'-' cannot be 2 files" in done.stderr
    done = run("convert", "a.safetensors", "-", "--to", "torch-dcp", code=2)
    assert "'-' cannot be a directory" in done.stderr
    assert os.listdir(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize("change", [
    lambda path, out: haulway.convert(path, out),
    lambda path, out: haulway.edit(path, dtype="f16", out=out),
    lambda path, out: haulway.repair(path, out),
])
def test_requires_grad_goes_along(tmp_path, change):
    state = {"w": torch.ones(3, requires_grad=True), "b": torch.zeros(2),
             "v": torch.ones(2, dtype=torch.float64, requires_grad=True)}
    torch.save(state, tmp_path / "a.pt")
    change(tmp_path / "a.pt", tmp_path / "b.pt")
    found = torch.load(tmp_path / "b.pt", weights_only=True)
    assert {name: one.requires_grad for name, one in found.items()} == {
        name: one.requires_grad for name, one in state.items()}


FRAMEWORK = {"w": numpy.ones(3, "float32")}


@pytest.mark.parametrize("ending", ["pt", "npz", "tensors", "gguf", "dcp/"])
@pytest.mark.parametrize("metadata, wanted", [
    (None, "pt"), ({"by": "me"}, "pt"), ({"format": "mlx"}, "mlx"),
])
def test_transformers_reads_every_safetensors_file(tmp_path, ending, metadata,
                                                   wanted):
    options = {"metadata": {"general.architecture": "x"}} if (
        ending == "gguf") else {}
    path = tmp_path / f"a.{ending}"
    if ending == "dcp/":
        haulway.save(FRAMEWORK, tmp_path / "a.pt")
        haulway.convert(tmp_path / "a.pt", path, to="torch-dcp")
    else:
        haulway.save(FRAMEWORK, path, **options)
    options = {} if metadata is None else {"metadata": metadata}
    haulway.convert(path, tmp_path / "b.safetensors", **options)
    with safetensors.safe_open(tmp_path / "b.safetensors", "np") as file:
        assert file.metadata()["format"] == wanted
        assert (metadata or {}).items() <= file.metadata().items()
    # A copy is a copy.
    haulway.convert(tmp_path / "b.safetensors", tmp_path / "c.safetensors")
    with safetensors.safe_open(tmp_path / "c.safetensors", "np") as file:
        assert file.metadata()["format"] == wanted


def test_saving_and_writing_torchs_tensors_note_the_framework(tmp_path):
    haulway.save({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    haulway.save({"w": torch.ones(2)}, tmp_path / "b.safetensors",
                 metadata={"by": "me"})
    with haulway.writer(tmp_path / "c.safetensors") as out:
        out.add("w", torch.ones(2))
        out.commit()
    for name in "abc":
        with safetensors.safe_open(tmp_path / f"{name}.safetensors", "pt") as file:
            assert file.metadata()["format"] == "pt"
