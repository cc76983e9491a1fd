"""Packed and scale dtypes (f4, f6, e8m0, int4 as bytes) through every call."""

import json
import struct

import pytest
import torch

import haulway

CODES = torch.arange(16, dtype=torch.uint8).reshape(4, 4)
STATE = {
    "f4": CODES.clone().view(torch.float4_e2m1fn_x2),
    "e8m0": (CODES + 120).view(torch.float8_e8m0fnu),
    "int4": CODES,  # Two per byte, as quantizers write them.
}
FORMATS = ["safetensors", "pt", "tensors"]


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("format", FORMATS)
def test_they_are_saved_loaded_cut_and_converted(tmp_path, format):
    path = tmp_path / f"m.{format}"
    haulway.save(STATE, path)
    found = haulway.load(path)
    arrays = haulway.load(path, "numpy")
    with haulway.open(path) as checkpoint:
        assert {name: checkpoint.info(name).dtype for name in STATE} == {
            "f4": "F4_E2M1X2", "e8m0": "F8_E8M0", "int4": "U8"}
        for name, tensor in STATE.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(bits(found[name]), bits(tensor))
            assert arrays[name].view("u1").tolist() == bits(tensor).tolist()
            part = checkpoint.get_slice(name)[1:3]
            assert torch.equal(bits(part), bits(tensor[1:3]))
    digests = haulway.manifest(path)
    for other in FORMATS:
        converted = tmp_path / f"converted.{other}"
        haulway.convert(path, converted)
        assert haulway.diff(path, converted)
        assert haulway.manifest(converted) == digests
        converted.unlink()
    changed = {**STATE, "f4": (CODES + 1).view(torch.float4_e2m1fn_x2)}
    haulway.save(changed, tmp_path / f"changed.{format}")
    report = haulway.diff(path, tmp_path / f"changed.{format}")
    assert not report and [one.name for one in report.changed] == ["f4"]


@pytest.mark.parametrize("format", ["gguf", "npz"])
def test_formats_that_lack_them_name_them(tmp_path, format):
    haulway.save({"e8m0": STATE["e8m0"]}, tmp_path / "m.pt")
    with pytest.raises(haulway.UnsupportedError,
                       match="has no dtype F8_E8M0: .*; in 'e8m0'"):
        haulway.convert(tmp_path / "m.pt", tmp_path / f"m.{format}")
    assert not (tmp_path / f"m.{format}").exists()


def test_f6_is_read_as_bytes_where_safetensors_has_it(tmp_path):
    entries = {
        name: {"dtype": dtype, "shape": [4, 4], "data_offsets": [at, at + 12]}
        for name, dtype, at in (("a", "F6_E2M3", 0), ("b", "F6_E3M2", 12))
    }
    header = json.dumps(entries).encode()
    path, again = tmp_path / "m.safetensors", tmp_path / "again.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(range(24)))
    arrays = haulway.load(path, "numpy")
    # Four elements in three bytes.
    assert arrays["b"].tobytes() == bytes(range(12, 24))
    with haulway.open(path, "numpy") as checkpoint:
        assert checkpoint.info("a").dtype == "F6_E2M3X4"
        assert checkpoint.get_slice("a")[1:3].tobytes() == bytes(range(3, 9))
    haulway.convert(path, again)
    assert haulway.diff(path, again)
    for call in (lambda: haulway.load(path),
                 lambda: haulway.convert(path, tmp_path / "m.pt")):
        with pytest.raises(haulway.UnsupportedError, match="F6_E2M3X4"):
            call()
