"""Quantized models at URLs: what is computed is the same."""

import pytest

import haulway
from quantized_cases import CASES, WEIGHT, same

NAMES = ("fp8 edges", "gptq W4 g_idx shuffled", "bnb nf4")


@pytest.fixture(params=NAMES)
def case(request):
    return next(one for one in CASES if one.name == request.param)


def check(url, case, tmp_path):
    found = haulway.load(url, dequantize=True)
    assert set(found) == set(case.expected)
    assert all(same(found[name], case.expected[name]) for name in found)
    with haulway.open(url, dequantize=True) as opened:
        part = opened.get_slice(WEIGHT)[3:5]
    assert same(part, case.expected[WEIGHT][3:5])
    haulway.convert(url, f"{tmp_path}/plain/", "safetensors", dequantize=True)
    found = haulway.load(tmp_path / "plain")
    assert all(same(found[name], case.expected[name]) for name in case.expected)
    assert "quantization_config" not in (tmp_path / "plain/config.json").read_text()


def test_over_http(case, nginx, tmp_path):
    folder = f"m{NAMES.index(case.name)}"
    for file in case.write(tmp_path / "model").iterdir():
        nginx.put(f"{folder}/{file.name}", file)
    url = nginx.url(f"{folder}/model.safetensors")
    check(url, case, tmp_path)
    with pytest.raises(haulway.Error, match="dequantize"):
        haulway.load(url, dtype="f32")


def test_in_a_bucket(case, bucket, endpoint, monkeypatch, tmp_path):
    for name, value in (("AWS_ACCESS_KEY_ID", "AKID"),
                        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
                        ("AWS_REGION", "us-east-1"),
                        ("AWS_ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(name, value)
    for file in case.write(tmp_path / "model").iterdir():
        bucket.upload_file(str(file), "bkt", f"m/{file.name}")
    check("s3://bkt/m/", case, tmp_path)


