"""haulway ls --tree and --stats, cat --head, and haulway.tensor_stats, compared
with NumPy."""

import json
import math
import subprocess
import sys

import numpy
import pytest
import torch

import haulway


def tensors():
    torch.manual_seed(8)
    made = {f"layers.{i}.{part}": torch.randn(4, 5)
            for i in (0, 1, 10) for part in ("w", "b")}
    made["head"] = torch.randn(600_000) + 1e6
    made["count"] = torch.arange(10)
    made["half"] = torch.randn(50).half()
    made["b16"] = torch.randn(50).bfloat16()
    made["f8"] = torch.randn(50).to(torch.float8_e4m3fn)
    made["flags"] = torch.tensor([True, False])
    made["c"] = torch.complex(torch.randn(3), torch.randn(3))
    made["t"] = torch.randn(3, 4).t()
    made["none"] = torch.empty(0)
    made["bad"] = torch.tensor([1.0, math.nan, math.inf, -math.inf, 3.0])
    return made


def expected(tensor):
    wide = tensor.to(torch.complex128 if tensor.is_complex()
                     else torch.float64).numpy()
    wide = abs(wide) if tensor.is_complex() else wide
    finite = wide[numpy.isfinite(wide)]
    return {
        "nan": int(numpy.isnan(wide).sum()), "inf": int(numpy.isinf(wide).sum()),
        **{name: float(getattr(finite, name)()) if finite.size else 0.0
           for name in ("min", "max", "mean", "std")},
    }


@pytest.fixture
def model(tmp_path):
    torch.save(tensors(), tmp_path / "m.pt")
    return tmp_path / "m.pt"


@pytest.mark.parametrize("threads", [1, 3])
def test_stats_are_numpys(model, run, threads):
    found = haulway.tensor_stats(model, threads=threads)
    assert sorted(found) == sorted(tensors())
    said = json.loads(run("ls", model, "--stats", "--json", "--threads",
                          threads).stdout)
    rows = {row["name"]: row["stats"] for row in said["tensors"]}
    for name, tensor in tensors().items():
        wanted = expected(tensor)
        assert found[name].elements == tensor.numel()
        for field, value in wanted.items():
            assert getattr(found[name], field) == pytest.approx(
                value, rel=1e-9), (name, field)
            assert rows[name][field] == getattr(found[name], field)


def test_stats_are_printed(model, run):
    text = run("ls", model, "--stats", "--include", "bad").stdout
    row = text.splitlines()[1].split()
    assert row == ["bad", "F32", "[5]", "1", "3", "2", "1", "1", "2"]
    assert list(haulway.tensor_stats(model, include="h*")) == ["head", "half"]


def test_what_has_no_numbers_has_no_stats(tmp_path, run):
    torch.save({"m": torch.empty(3, device="meta"), "x": torch.ones(1)},
               tmp_path / "m.pt")
    found = haulway.tensor_stats(tmp_path / "m.pt", keep_meta=True)
    assert found["m"] is None and found["x"].max == 1


def test_stats_need_little_memory(tmp_path):
    with haulway.writer(tmp_path / "a.safetensors", durability="none") as out:
        part = out.add_part("w", "F32", (64, 1 << 20))
        for row in range(64):
            part.write(numpy.full(1 << 20, row, "f4"))
        out.commit()
    program = (
        "import resource, sys, haulway\n"
        "import haulway._reading.compare, haulway._haulway\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "most = used + (128 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "found = haulway.tensor_stats(sys.argv[1], threads=2)['w']\n"
        "assert found.max == 63 and abs(found.mean - 31.5) < 1e-9\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "a.safetensors")],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_tree_has_sizes_and_counts(model, run):
    said = run("ls", model, "--tree", "--include", "layers.*").stdout
    lines = said.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == [
        "layers", "0", "b", "w", "1", "b", "w", "10", "b", "w"]
    assert lines[0].split() == ["layers", "480", "B", "6", "tensors"]
    assert "F32 [4, 5]" in lines[2]
    flat = run("ls", model, "--tree", "--depth", "1", "--include", "layers.*")
    assert len(flat.stdout.splitlines()) == 2
    said = json.loads(run("ls", model, "--tree", "--json", "--include",
                          "layers.*").stdout)
    assert said["modules"] == [
        {"name": "", "tensors": 6, "nbytes": 480},
        {"name": "layers", "tensors": 6, "nbytes": 480},
        *({"name": f"layers.{i}", "tensors": 2, "nbytes": 160}
          for i in (0, 1, 10)),
    ]


def test_a_module_may_be_a_tensor_too(tmp_path, run):
    torch.save({"a": torch.ones(2), "a.b": torch.ones(3)}, tmp_path / "m.pt")
    haulway.convert(tmp_path / "m.pt", tmp_path / "m.safetensors")
    said = json.loads(run("ls", "m.safetensors", "--tree", "--json").stdout)
    assert said["modules"] == [
        {"name": "", "tensors": 2, "nbytes": 20},
        {"name": "a", "tensors": 2, "nbytes": 20},
    ]


@pytest.mark.parametrize("count", [1, 4, 5, 6, 19, 20, 100])
@pytest.mark.parametrize("shape", [(20,), (4, 5), (2, 2, 5), (1, 20, 1)])
def test_the_head_is_the_first_elements(tmp_path, run, shape, count):
    whole = torch.arange(20).reshape(shape)
    turned = whole.permute(*reversed(range(len(shape))))
    torch.save({"w": whole, "t": turned}, tmp_path / "m.pt")
    for name, tensor in (("w", whole), ("t", turned)):
        out = run("cat", "m.pt", name, "--head", count, "--out", "h.npy")
        assert out.stdout == ""
        head = numpy.load(tmp_path / "h.npy")
        assert head.tolist() == tensor.flatten()[:count].tolist()


def test_the_head_is_printed_in_full(tmp_path, run):
    torch.save({"w": torch.arange(5000), "s": torch.tensor(7)}, tmp_path / "m.pt")
    said = run("cat", "m.pt", "w", "--head", 2000).stdout
    assert "1999" in said and "..." not in said
    assert run("cat", "m.pt", "s", "--head", 3).stdout.strip() == "[7]"
    run("cat", "m.pt", "w", "--head", 3, "--slice", "0:1", code=4)
    run("cat", "m.pt", "w", "--head", 0, code=4)
