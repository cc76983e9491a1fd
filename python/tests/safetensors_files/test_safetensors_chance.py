"""Random files and slices, and those for which the package and
haulway.safetensors once differed."""

import json
import re

import pytest
import safetensors
import safetensors.torch
import torch
from test_safetensors import build

import haulway.safetensors
import haulway.safetensors.numpy
import haulway.safetensors.torch
import safetensors_chance
from chance import cases
from safetensors_chance import CALLS, said


def test_files_made_by_chance_have_the_packages_verdict_and_words(tmp_path):
    for seed in range(cases(5000)):
        found = safetensors_chance.disagreement(seed, tmp_path / "x")
        assert found is None, (seed, safetensors_chance.file_of(seed), *found)


def test_slices_made_by_chance_are_the_packages(tmp_path):
    for seed in range(cases(2000)):
        found = safetensors_chance.slice_disagreement(seed, tmp_path / "x")
        assert found is None, (seed, *found)


def test_files_made_by_chance_are_refused_for_every_reason():
    words = set()
    for seed in range(5000):
        data = safetensors_chance.file_of(seed)
        code, why = said(safetensors.deserialize, data)
        if code != "ok":
            # Remove names, numbers and positions.
            why = re.sub(r"`[^`]*`|\d+|\".*\"", "", why, flags=re.DOTALL)
            words.add(why.split(", expected")[0])
    assert len(words) >= 35, words


def packed(shape, nbytes, dtype="F4"):
    return build({"a": {
        "dtype": dtype, "shape": shape, "data_offsets": [0, nbytes],
    }}, bytes(range(nbytes)))


@pytest.mark.parametrize("shape, nbytes", [
    ([3, 8, 1], 12), ([4, 1], 2), ([0, 3], 0), ([2, 3], 3),
])
def test_pairs_that_cross_rows_are_refused_by_torch(tmp_path, shape, nbytes):
    path = tmp_path / "x"
    path.write_bytes(packed(shape, nbytes))
    why = said(safetensors.torch.load_file, path)
    assert "divisible by 2" in why[1]
    assert said(haulway.safetensors.torch.load_file, path) == why
    assert said(haulway.safetensors.torch.load, path.read_bytes()) == why
    for backend in ("mmap", "pread", "auto"):
        with haulway.safetensors.safe_open(path, "pt", backend=backend) as file:
            assert file.get_slice("a").get_shape() == shape
            assert said(file.get_tensor, "a") == why
            assert said(lambda part: part[...], file.get_slice("a")) == why
            assert why[1] in said(file.read_ahead, {"a": (...,)})[1]


def test_slices_of_pairs_count_pairs(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(packed([4, 4], 8))
    for backend in ("mmap", "pread", "auto", "direct"):
        with haulway.safetensors.safe_open(path, "pt", backend=backend) as file:
            part = file.get_slice("a")
            assert part[1:3, 1].view(torch.uint8).tolist() == [3, 5]
            assert part[3].view(torch.uint8).tolist() == [6, 7]
            assert said(lambda part: part[0, 2], part)[0] != "ok"


def test_the_first_tensor_that_cannot_be_held_is_named(tmp_path):
    path = tmp_path / "x"
    sizes = {"F8_E5M2": 4, "F8_E4M3": 4, "F6_E2M3": 3}  # For four elements.
    for order in (list(sizes), list(reversed(sizes))):
        header, at = {}, 0
        for name in order:
            header[name] = {"dtype": name, "shape": [4],
                            "data_offsets": [at, at + sizes[name]]}
            at += sizes[name]
        path.write_bytes(build(header, bytes(at)))
        for call in ("numpy.load_file", "torch.load_file"):
            ours, theirs = (
                said(CALLS[call], module, None, path)
                for module in (haulway.safetensors, safetensors)
            )
            assert ours == theirs and theirs[0] != "ok"


def file_of(text, data=b""):
    text = text.encode()
    return len(text).to_bytes(8, "little") + text + data


def test_a_tensor_as_a_list_has_its_shape():
    data = file_of('{"a":["F4",[2,4],[0,4]]}', bytes(4))
    assert haulway.safetensors.deserialize(data) == safetensors.deserialize(data)


def test_numbers_out_of_range_are_refused_where_they_are_ignored():
    entry = '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":%s}}'
    for number in ("1e400", "-1e400", "9" * 400, "[1,1e309]", '{"y":1e999}'):
        data = file_of(entry % number, b"\1")
        ours, theirs = (
            said(module.deserialize, data)
            for module in (haulway.safetensors, safetensors)
        )
        assert "number out of range" in theirs[1] and ours == theirs
    for number in ("1e308", "1e-400", "9" * 300, "-0.0", "18446744073709551616"):
        data = file_of(entry % number, b"\1")
        assert haulway.safetensors.deserialize(data) == (
            safetensors.deserialize(data)
        )


@pytest.mark.parametrize("number", [
    "18446744073709553999.75", "1844674407370955161.99", "9223372036854775.8e1",
    "184467440737095516159.3", "0.3000000000000000444", "123456789e-310", "1e-400",
    "7205759403792793.5e22", "0." + "0" * 320 + "1", "2.2250738585072011e-308",
    "1.7976931348623157e308", "1.7976931348623159e308", "1" + "0" * 308,
    "99999999999999999999e288", "99999999999999999999e290",
])
def test_numbers_are_rounded_as_the_package_does(number):
    ours, theirs = (
        said(module.deserialize, file_of(f'{{"a":{number}}}'))
        for module in (haulway.safetensors, safetensors)
    )
    assert ours == theirs and theirs[0] != "ok"


@pytest.mark.parametrize("text", [
    "a\ufeffb", "\u200b", "e\u0301", "\x85", "\xa0", "\u2028", "\U000e0001",
    'x", expected y', "\u00e9", "\U0001f600",
])
def test_text_is_quoted_with_what_is_not_seen_by_numbers(text):
    for header in (json.dumps(text, ensure_ascii=False),
                   json.dumps({"a": text}, ensure_ascii=False),
                   json.dumps({"a": {"dtype": "U8", "shape": text,
                                     "data_offsets": [0, 1]}}),
                   json.dumps({"a": {"dtype": text}}, ensure_ascii=False)):
        ours, theirs = (
            said(module.deserialize, file_of(header))
            for module in (haulway.safetensors, safetensors)
        )
        assert ours == theirs and theirs[0] != "ok"


def test_slices_with_steps_are_dense(tmp_path):
    path = tmp_path / "x"
    haulway.safetensors.torch.save_file({"a": torch.arange(4.0)}, path)
    with haulway.safetensors.safe_open(path, "pt", backend="pread") as file:
        part = file.get_slice("a")[3::2]
    assert part.stride() == (1,) and part.view(torch.int32).numel() == 1
