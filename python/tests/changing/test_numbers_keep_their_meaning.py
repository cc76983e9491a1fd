"""Nothing that casts touches a quantized weight whose scales are tensors beside
it: every call and verb that takes a dtype, with every known layout."""

import inspect
import json
import os
import re
import subprocess

import numpy
import pytest
import safetensors.numpy

import haulway
from haulway import _haulway

LAYOUTS = _haulway.scaled_layouts()
CODED = ["float8_e4m3fn", "uint8", "int32"]
CASES = [(weight, scales, dtype) for weight, scales, is_coded in LAYOUTS
         for dtype in (CODED if is_coded else CODED + ["bfloat16"])]
DTYPES = {"float8_e4m3fn": ("F8_E4M3", 1), "uint8": ("U8", 1),
          "int32": ("I32", 4), "bfloat16": ("BF16", 2), "float32": ("F32", 4)}


def write(path, tensors):
    """Writes a safetensors file of zeros: dtypes by name."""
    header, at = {}, 0
    for name, dtype in tensors.items():
        named, item = DTYPES[dtype]
        header[name] = {"dtype": named, "shape": [2, 4],
                        "data_offsets": [at, at + 8 * item]}
        at += 8 * item
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))
    return path


def into(path, dtype):
    """Loads into arrays of another dtype, as a host loads into its model."""
    with haulway.open(path) as file:
        targets = {name: numpy.zeros((2, 4), "float64") for name in file}
    haulway.load_into(targets, path)


# Every public call that takes a dtype, and what casts to that of its target.
CALLS = {
    "load": lambda path, out, dtype: haulway.load(path, "numpy", dtype=dtype),
    "shard": lambda path, out, dtype: haulway.shard(
        path, 0, 1, framework="numpy", dtype=dtype),
    "convert": lambda path, out, dtype: haulway.convert(path, out, dtype=dtype),
    "edit": lambda path, out, dtype: haulway.edit(path, out=out, dtype=dtype),
    "bulk": lambda path, out, dtype: check_bulk(path, out, dtype),
}
# The same of the command.
VERBS = {
    "convert": lambda path, out: (path, out, "--dtype", "f16"),
    "edit": lambda path, out: (path, "-o", out, "--dtype", "f16"),
}


def check_bulk(path, out, dtype):
    report = haulway.bulk("convert", [path], options={
        "out": out.parent / "bulk", "to": "safetensors", "dtype": dtype})
    (one,) = report.results()
    raise haulway.UnsupportedError(one["error"]["message"], "kUnsupported")


def test_no_call_is_forgotten(command):
    takes = {name for name in haulway.__all__
             if inspect.isfunction(getattr(haulway, name))
             and "dtype" in inspect.signature(getattr(haulway, name)).parameters}
    assert takes == CALLS.keys() - {"bulk"}
    said = subprocess.run([command, "--help"], capture_output=True, text=True)
    verbs = set(re.findall(r"^  ([a-z-]+) ", said.stdout, re.MULTILINE))
    assert {"convert", "edit"} <= verbs
    found = set()
    for verb in verbs - {"bulk"}:
        said = subprocess.run([command, verb, "--help"], capture_output=True,
                              text=True)
        if "--dtype" in said.stdout:
            found.add(verb)
    assert found == VERBS.keys()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("weight, scales, dtype", CASES)
def test_no_call_casts_what_has_scales(tmp_path, call, weight, scales, dtype):
    path = write(tmp_path / "q.safetensors", {
        f"m.w{weight}": dtype, f"m.w{scales}": "float32", "n.weight": "float32"})
    before = path.read_bytes()
    out = tmp_path / "out.safetensors"
    with pytest.raises(haulway.UnsupportedError) as caught:
        CALLS[call](path, out, "f16")
    assert f"'m.w{weight}'" in str(caught.value)
    assert "quantized" in str(caught.value)
    assert "; in '" in str(caught.value)
    assert len(set(said := str(caught.value).split("; "))) == len(said)
    assert path.read_bytes() == before
    assert not out.exists() and not list(tmp_path.glob("bulk/*.safetensors"))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("weight, scales, is_coded", LAYOUTS)
def test_no_verb_casts_what_has_scales(tmp_path, run, verb, weight, scales,
                                       is_coded):
    path = write(tmp_path / "q.safetensors", {
        f"m.w{weight}": "uint8", f"m.w{scales}": "float32"})
    done = run(verb, *VERBS[verb](path, "out.safetensors"), code=2)
    assert f"'m.w{weight}'" in done.stderr and "quantized" in done.stderr
    assert os.listdir(tmp_path) == ["q.safetensors"]


def test_a_weight_and_its_scales_in_two_shards(tmp_path, run):
    write(tmp_path / "a.safetensors", {"m.weight": "float8_e4m3fn"})
    write(tmp_path / "b.safetensors", {"m.weight_scale_inv": "float32"})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({
        "weight_map": {"m.weight": "a.safetensors",
                       "m.weight_scale_inv": "b.safetensors"}}))
    done = run("convert", tmp_path, "out.safetensors", "--dtype", "bf16", code=2)
    assert "'m.weight_scale_inv'" in done.stderr
    # Choosing the weight alone does not make it another number.
    done = run("convert", tmp_path, "out.safetensors", "--dtype", "bf16",
               "--include", "m.weight", code=2)
    assert "'m.weight_scale_inv'" in done.stderr


def test_targets_of_another_dtype_are_refused(tmp_path):
    path = write(tmp_path / "q.safetensors", {
        "m.weight": "uint8", "m.weight_scale": "float32"})
    with pytest.raises(haulway.UnsupportedError, match="quantized"):
        into(path, "float64")


@pytest.mark.parametrize("name", ["m.weight", "m.weight_scale_inv"])
def test_neither_is_cast_by_its_name(tmp_path, run, name):
    path = write(tmp_path / "q.safetensors", {
        "m.weight": "float8_e4m3fn", "m.weight_scale_inv": "float32",
        "n.weight": "float32"})
    run("edit", path, "-o", "out.safetensors", "--set-dtype", f"{name}=f16",
        code=2)
    # Other tensors are cast by their names, and copies are what they were.
    run("edit", path, "-o", "out.safetensors", "--set-dtype", "n.*=f16")
    run("convert", path, "copy.safetensors")
    run("convert", path, "rest.safetensors", "--dtype", "f16", "--exclude", "m.*")
    assert (safetensors.numpy.load_file(tmp_path / "rest.safetensors")["n.weight"]
            .dtype == numpy.float16)


def test_what_only_looks_like_scales_is_cast(tmp_path):
    path = write(tmp_path / "a.safetensors", {
        # A norm, a model's own scale, and a plain file of FP8.
        "norm.weight": "bfloat16", "norm.scale": "float32",
        "logit_scale": "float32", "head.weight": "float8_e4m3fn"})
    found = haulway.load(path, "numpy", dtype="f32")
    assert {str(one.dtype) for one in found.values()} == {"float32"}
