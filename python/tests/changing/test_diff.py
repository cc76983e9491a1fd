"""haulway.diff and the command, checked against differences that torch
computes."""

import json
import math
import re
import subprocess
import sys

import gguf
import numpy
import pytest
import safetensors.torch
import torch

import haulway

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32,
    torch.uint64, torch.bool, torch.complex64, torch.complex128,
]


def tensors():
    torch.manual_seed(5)
    return {
        "layer.0.weight": torch.randn(17, 5),
        "half": torch.randn(3, 1, 2).half(),
        "count": torch.arange(7),
        "flags": torch.tensor([True, False, True]),
        "empty": torch.empty(0, 3),
        "large": torch.randn(700, 1000),
        "odd \N{SNOWMAN}\n name": torch.ones(1),
    }


@pytest.mark.parametrize("ending", [".pt", ".safetensors", ".tensors", ".npz"])
def test_what_is_equal_in_another_format_is_equal(tmp_path, ending, run):
    made = {k: v for k, v in tensors().items() if "\n" not in k}
    a, b = tmp_path / "a.pt", tmp_path / f"b{ending}"
    torch.save(made, a)
    haulway.save(made, b)
    report = haulway.diff(a, b)
    assert report and report.equal, report
    assert (report.added, report.removed, report.changed) == ([], [], [])
    assert report.same == len(made)
    assert haulway.diff(b, a)
    said = json.loads(run("diff", a, b, "--json").stdout)
    assert said["equal"] is True and said["same"] == len(made)


def test_keys_are_compared_by_what_they_are(tmp_path):
    torch.save(tensors(), tmp_path / "a.pt")
    safetensors.torch.save_file(tensors(), tmp_path / "b.safetensors")
    assert haulway.diff(tmp_path / "a.pt", tmp_path / "b.safetensors")


def test_all_that_differs_is_told(tmp_path, run):
    old, new = tensors(), tensors()
    del new["half"]
    new["fresh"] = torch.ones(2)
    new["count"] = new["count"].int()
    new["flags"] = torch.tensor([True, False])
    new["large"][699, 999] += 2
    torch.save(old, tmp_path / "a.pt")
    safetensors.torch.save_file(new, tmp_path / "b.safetensors")
    report = haulway.diff(tmp_path / "a.pt", tmp_path / "b.safetensors")
    assert not report
    assert report.added == ["fresh"] and report.removed == ["half"]
    assert [(c.name, c.what) for c in report.changed] == [
        ("count", "dtype"), ("flags", "shape"), ("large", "bytes")]
    large = report.changed[2]
    assert large.differing == 1 and large.elements == 700_000
    expected = (new["large"].double() - old["large"].double()).abs()
    assert large.max_abs == expected.max().item()
    assert math.isclose(large.mean_abs, expected.mean().item(), rel_tol=1e-6)
    said = run("diff", tmp_path / "a.pt", tmp_path / "b.safetensors",
               "--json", code=1)
    said = json.loads(said.stdout)
    assert said["changed"] == [
        {**c.to_dict(),
         "a": {"dtype": c.a.dtype, "shape": list(c.a.shape)},
         "b": {"dtype": c.b.dtype, "shape": list(c.b.shape)}}
        for c in report.changed]
    text = run("diff", tmp_path / "a.pt", tmp_path / "b.safetensors", code=1)
    for line in ("- half", "+ fresh", "~ large", "I64 [7] -> I32 [7]"):
        assert line in text.stdout, text.stdout
    quiet = run("diff", tmp_path / "a.pt", tmp_path / "b.safetensors", "-q",
                code=1)
    assert quiet.stdout == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_those_of_torch(tmp_path, dtype):
    torch.manual_seed(7)
    pair = []
    for _ in range(2):
        wide = torch.randn(3000, dtype=torch.float64) * 50
        if dtype.is_complex:
            wide = torch.complex(wide, torch.randn(3000, dtype=torch.float64))
        elif not dtype.is_floating_point:
            wide = wide.abs() if not dtype.is_signed else wide
        if dtype == torch.bool:
            wide = torch.randint(2, (3000,))
        pair.append(wide.to(dtype))
    a, b = pair
    torch.save({"t": a}, tmp_path / "a.pt")
    torch.save({"t": b}, tmp_path / "b.pt")
    [changed] = haulway.diff(tmp_path / "a.pt", tmp_path / "b.pt").changed
    wide = torch.complex128 if dtype.is_complex else torch.float64
    apart = (a.to(wide) - b.to(wide)).abs()
    assert changed.max_abs == apart.max().item()
    assert math.isclose(changed.mean_abs, apart.mean().item(), rel_tol=1e-12)
    assert changed.differing == (apart > 0).sum().item()
    assert changed.nan == changed.inf == 0


def test_large_integers_are_exact(tmp_path):
    a = torch.tensor([2**62, -2**63, 2**53 + 1])
    numpy.savez(tmp_path / "a.npz", t=a.numpy())
    numpy.savez(tmp_path / "b.npz", t=a.numpy() + numpy.array([1, 0, 0]))
    [changed] = haulway.diff(tmp_path / "a.npz", tmp_path / "b.npz").changed
    assert (changed.max_abs, changed.differing) == (1, 1)


def test_what_is_no_number_is_counted_in_all_of_a_changed_tensor(tmp_path):
    a = torch.zeros(1_000_000)
    a[0] = a[700_000] = float("nan")  # Lies in several of the compared pieces.
    a[1] = float("inf")
    b = a.clone()
    b[999_999] = float("-inf")
    b[5] = 1
    b[6] = float("nan")
    torch.save({"t": a}, tmp_path / "a.pt")
    torch.save({"t": b}, tmp_path / "b.pt")
    [changed] = haulway.diff(tmp_path / "a.pt", tmp_path / "b.pt").changed
    assert (changed.nan, changed.inf, changed.differing) == (3, 2, 3)
    assert changed.max_abs == 1
    assert haulway.diff(tmp_path / "a.pt", tmp_path / "a.pt")


def test_tolerance_and_dtypes(tmp_path, run):
    torch.manual_seed(2)
    a, b = tmp_path / "a.pt", tmp_path / "b.safetensors"
    weight = torch.randn(300, 999)
    torch.save({"w": weight, "n": torch.arange(5)}, a)
    haulway.convert(a, b, dtype="bf16")
    assert [c.what for c in haulway.diff(a, b).changed] == ["dtype"]
    [changed] = haulway.diff(a, b, ignore_dtype=True).changed
    apart = (weight - weight.bfloat16().float()).abs()
    assert changed.max_abs == apart.max().item()
    assert haulway.diff(a, b, ignore_dtype=True, rtol=0.01)
    assert not haulway.diff(a, b, ignore_dtype=True, atol=1e-9)
    run("diff", a, b, "--ignore-dtype", "--rtol", "0.01")
    run("diff", a, b, "--ignore-dtype", "--atol", "1e-9", code=1)
    assert not haulway.diff(a, b, ignore_dtype=True, atol=numpy.float32(1e-9))
    for wrong in (-1, float("nan"), "1", True, None, 1j, numpy.bool_(True)):
        with pytest.raises(
            haulway.InvalidArgumentError,
            match=re.escape(f"atol: expected a number of 0 or more, found {wrong!r}"),
        ):
            haulway.diff(a, b, atol=wrong)


@pytest.mark.parametrize("a, b", [
    (numpy.int64([2**53 + 1]), numpy.uint64([2**53])),
    (numpy.int64([2**53 + 1]), numpy.float64([2**53])),
    (numpy.float64([2**64]), numpy.uint64([2**64 - 1])),
    (numpy.int64([-1]), numpy.uint64([2**64 - 1])),
    (numpy.int64([0]), numpy.float32([math.inf])),
    (numpy.float16([math.nan]), numpy.uint64([0])),
])
def test_large_integers_of_two_dtypes_are_compared_exactly(tmp_path, a, b):
    numpy.savez(tmp_path / "a.npz", x=a)
    numpy.savez(tmp_path / "b.npz", x=b)
    [changed] = haulway.diff(tmp_path / "a.npz", tmp_path / "b.npz",
                             ignore_dtype=True).changed
    assert changed.differing == 1
    if numpy.isfinite(a[0]) and numpy.isfinite(b[0]):
        assert changed.max_abs == float(abs(int(a[0]) - int(b[0])))


def test_views_and_signs_are_compared_as_they_read(tmp_path):
    base = torch.randn(40, 30)
    both = torch.randn(5, dtype=torch.complex64)
    torch.save({"t": base.t(), "part": base[3:7, ::2], "c": both.conj()},
               tmp_path / "a.pt")
    dense = {"t": base.t().contiguous(), "part": base[3:7, ::2].contiguous(),
             "c": both.conj().resolve_conj()}
    torch.save(dense, tmp_path / "b.pt")
    assert haulway.diff(tmp_path / "a.pt", tmp_path / "b.pt")


def test_names_are_chosen(tmp_path, run):
    torch.save({"a": torch.ones(2), "b": torch.ones(2)}, tmp_path / "a.pt")
    torch.save({"a": torch.ones(2), "b": torch.zeros(2)}, tmp_path / "b.pt")
    assert haulway.diff(tmp_path / "a.pt", tmp_path / "b.pt", include="a")
    assert haulway.diff(tmp_path / "a.pt", tmp_path / "b.pt", exclude="b")
    with pytest.raises(haulway.NotFoundError, match="'c' matches no name"):
        haulway.diff(tmp_path / "a.pt", tmp_path / "b.pt", include="c")
    run("diff", "a.pt", "b.pt", "--include", "a")
    run("diff", "a.pt", "b.pt", "--include", "c", code=3)
    run("diff", "a.pt", "none.pt", code=2)


def test_one_array_needs_no_name(tmp_path):
    numpy.save(tmp_path / "a.npy", numpy.arange(9))
    numpy.savez(tmp_path / "b.npz", nine=numpy.arange(9))
    assert haulway.diff(tmp_path / "a.npy", tmp_path / "b.npz")


def diff_within(folder, mebibytes, a, b, check):
    """Compares two files in a process that may allocate only `mebibytes` more
    of address space."""
    program = (
        "import resource, sys, haulway\n"
        "import haulway._reading.compare, haulway._haulway\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        f"most = used + ({mebibytes} << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "report = haulway.diff(*sys.argv[1:], threads=2)\n"
        f"{check}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder / a), str(folder / b)],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_memory_is_bounded(tmp_path):
    """Two files of 384 MiB in an address space that cannot hold either."""
    with haulway.writer(tmp_path / "a.safetensors", durability="none") as out:
        part = out.add_part("w", "F32", (96, 1 << 20))
        for row in range(96):
            part.write(numpy.full(1 << 20, row, "f4"))
        out.commit()
    haulway.convert(tmp_path / "a.safetensors", tmp_path / "b.pt",
                    durability="none")
    diff_within(tmp_path, 200, "a.safetensors", "b.pt", "assert report")


def test_blocks_of_gguf_are_compared_by_their_elements(tmp_path, run):
    """Q8_0 and its original differ in dtype, not in shape."""
    made = numpy.arange(128, dtype="f4").reshape(2, 64)
    for name, kind in (("a", None), ("b", gguf.GGMLQuantizationType.Q8_0)):
        writer = gguf.GGUFWriter(tmp_path / f"{name}.gguf", "llama")
        held = made if kind is None else gguf.quantize(made, kind)
        writer.add_tensor("w", held, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    report = haulway.diff(tmp_path / "a.gguf", tmp_path / "b.gguf")
    changed, = report.changed
    assert changed.what == "dtype"
    said = json.loads(run("diff", "a.gguf", "b.gguf", "--json", code=1).stdout)
    changed, = said["changed"]
    assert changed["a"]["shape"] == changed["b"]["shape"] == [2, 64]


def test_what_differs_is_let_go_of_again(tmp_path):
    """Compressed arrays are inflated completely: two at a time, not all at
    once."""
    for name, last in (("a", 0), ("b", 1)):
        made = {f"w{i}": numpy.zeros(8 << 20, "f4") for i in range(10)}
        for array in made.values():
            array[0] = last
        numpy.savez_compressed(tmp_path / f"{name}.npz", **made)
    # Four of 32 MiB, plus the address space that thread stacks and heaps
    # reserve, 136 MiB; all arrays would take 640 MiB.
    diff_within(tmp_path, 352, "a.npz", "b.npz",
                "assert len(report.changed) == 10, report")


@pytest.mark.parametrize("option", ["--atol", "--rtol"])
@pytest.mark.parametrize("value", ["nan", "-nan", "NAN", "-1"])
def test_a_tolerance_is_a_number(option, value, run, tmp_path):
    """With NaN, no difference would be too large."""
    haulway.save({"w": torch.ones(3)}, tmp_path / "a.safetensors")
    haulway.save({"w": torch.zeros(3)}, tmp_path / "b.safetensors")
    run("diff", "a.safetensors", "b.safetensors", f"{option}={value}", code=4)
    run("diff", "a.safetensors", "b.safetensors", f"{option}=0.5", code=1)
    run("diff", "a.safetensors", "b.safetensors", "--atol", "1", code=0)


def quantized(scale=0.5, point=1, dtype=torch.qint8):
    return torch.quantize_per_tensor(torch.arange(4.0) * scale, scale, point, dtype)


def test_the_scale_of_a_quantized_tensor_is_compared(tmp_path):
    same = {"q": quantized(), "w": torch.ones(1)}
    torch.save(same, tmp_path / "a.pt")
    torch.save(same, tmp_path / "b.pt")
    assert haulway.diff(tmp_path / "a.pt", tmp_path / "b.pt")
    others = {"scale": quantized(0.25), "dtype": quantized(0.5, 1, torch.qint32)}
    assert torch.equal(others["scale"].int_repr(), same["q"].int_repr())
    for what, other in others.items():
        torch.save({**same, "q": other}, tmp_path / "b.pt")
        report = haulway.diff(tmp_path / "a.pt", tmp_path / "b.pt")
        assert not report and report.same == 1
        assert [(one.name, one.what) for one in report.changed] == [
            ("q", "bytes" if what == "scale" else "dtype")]
    per_channel = [
        torch.quantize_per_channel(torch.ones(2, 2), torch.tensor([0.5, 0.5]),
                                   torch.tensor([0, 0]), axis, torch.qint8)
        for axis in (0, 1)
    ]
    for name, tensor in zip("ab", per_channel):
        torch.save({"q": tensor}, tmp_path / f"{name}.pt")
    report = haulway.diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert [(one.name, one.what) for one in report.changed] == [("q", "bytes")]
