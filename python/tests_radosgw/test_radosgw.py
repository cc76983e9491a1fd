"""S3 on a store that verifies every signature: R37 and R56 of docs/s3.md, and
parts of other items that only such a store can test."""

import concurrent.futures
import os

import boto3
import botocore.config
import pytest
import safetensors.torch
import torch

import haulway
from conftest import ACCESS_KEY, SECRET_KEY
from remote_servers import body_of

KEYS = [
    "plain", "a b+c=d:e@f,(g)*h~i%j", "%41%2F", "double//slash", "./dot/..",
    "q?x=1&y", "hash#1", "umlaut-\u00e4\u00f6", "e\u0301-combining",
    "\u4e2d\u6587", "\U0001f600", "quote'\"<>&`", "semi;colon|pipe\\{}^[]",
    "$!-_.", "deep/" * 20 + "k",
]
TENSORS = {"w": torch.arange(3_000_000), "b": torch.ones(7)}


@pytest.mark.parametrize("key", KEYS)
def test_keys_go_both_ways(s3, tmp_path, key):
    """R37."""
    data = os.urandom(1000)
    s3.put_object(Bucket="bkt", Key=f"theirs/{key}", Body=data)
    haulway.get(f"s3://bkt/theirs/{key}", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == data
    haulway.put(data, f"s3://bkt/ours/{key}")
    assert body_of(s3, f"ours/{key}") == data


def test_models_go_both_ways_in_parts(s3, tmp_path):
    haulway.save(TENSORS, "s3://bkt/m.safetensors")
    found = safetensors.torch.load(body_of(s3, "m.safetensors"))
    assert torch.equal(found["w"], TENSORS["w"])
    torch.save(TENSORS, tmp_path / "m.pt")
    s3.upload_file(str(tmp_path / "m.pt"), "bkt", "m.pt")
    found = haulway.load("s3://bkt/m.pt")
    assert torch.equal(found["w"], TENSORS["w"])
    with haulway.open("s3://bkt/m.pt") as checkpoint:
        assert torch.equal(checkpoint["b"], TENSORS["b"])


@pytest.mark.parametrize("more", [
    {}, {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_supported"},
])
@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("size", [0, 5, (20 << 20) + 7])
def test_objects_are_the_files(
    s3, gateway, tmp_path, monkeypatch, more, is_tls, size
):
    """R56."""
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    if is_tls:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", gateway.tls_url)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(gateway.ca))
    (tmp_path / "f").write_bytes(os.urandom(size))
    haulway.put(tmp_path / "f", "s3://bkt/f")
    data = (tmp_path / "f").read_bytes()
    assert body_of(s3, "f") == data
    haulway.get("s3://bkt/f", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == data
    assert "ContentEncoding" not in s3.head_object(Bucket="bkt", Key="f")


def test_bodies_may_go_unsigned(s3, tmp_path, monkeypatch):
    config = tmp_path / "config"
    config.write_text(
        "[default]\ns3 =\n  payload_signing_enabled = false\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    data = os.urandom((9 << 20) + 1)
    haulway.put(data, "s3://bkt/unsigned")
    assert body_of(s3, "unsigned") == data


@pytest.mark.parametrize("secret", ["wrong", SECRET_KEY[:-1]])
def test_wrong_secrets_are_refused_and_not_shown(s3, monkeypatch, secret):
    s3.put_object(Bucket="bkt", Key="k", Body=b"1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    for call in (lambda: haulway.load("s3://bkt/k"),
                 lambda: haulway.put(b"2", "s3://bkt/k")):
        with pytest.raises(haulway.Error, match="403") as caught:
            call()
        assert isinstance(caught.value, PermissionError)
        assert secret not in str(caught.value)
    assert body_of(s3, "k") == b"1"


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_presigned_urls_are_names(s3, gateway, tmp_path, version):
    data = safetensors.torch.save(TENSORS)
    s3.put_object(Bucket="bkt", Key="a b+c", Body=data)
    signer = boto3.client(
        "s3", endpoint_url=gateway.url, region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
        config=botocore.config.Config(signature_version=version),
    )
    url = signer.generate_presigned_url(
        "get_object", {"Bucket": "bkt", "Key": "a b+c"})
    assert torch.equal(haulway.load(url)["w"], TENSORS["w"])
    broken = url.replace("Signature=", "Signature=0")
    with pytest.raises(haulway.Error, match="403") as caught:
        haulway.load(broken)
    assert "Signature" not in str(caught.value)


def test_nothing_is_replaced_if_asked(s3):
    s3.put_object(Bucket="bkt", Key="old", Body=b"old")
    for data in (b"new", bytes(9 << 20)):
        with pytest.raises(haulway.Error, match="is there already"):
            haulway.put(data, "s3://bkt/old", clobber=False)
    assert body_of(s3, "old") == b"old"


def test_an_upload_that_fails_leaves_nothing(s3, tmp_path):
    (tmp_path / "f").write_bytes(bytes(40 << 20))
    with pytest.raises(KeyError):
        haulway.put(tmp_path / "f", "s3://bkt/half",
                    progress=lambda done, total: {}[done])
    assert not s3.list_multipart_uploads(Bucket="bkt").get("Uploads")
    with pytest.raises(haulway.Error, match="404"):
        haulway.load("s3://bkt/half")


def test_thousands_of_keys_are_listed(s3, tmp_path):
    """R57."""
    haulway.save(TENSORS, tmp_path / "m.safetensors")
    data = (tmp_path / "m.safetensors").read_bytes()
    keys = [f"l/{number:04}" for number in range(2500)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: s3.put_object(Bucket="bkt", Key=key), keys))
    odd = [f"l/{key}/m.safetensors" for key in [*KEYS, "new\nline", "//a//"]]
    for key in odd:
        s3.put_object(Bucket="bkt", Key=key, Body=data)
    names = haulway._haulway.list_files("s3://bkt/l/", {})
    assert names == [f"s3://bkt/{key}" for key in sorted(
        [*keys, *odd], key=lambda key: key.encode())]
    for key in odd:
        folder = f"s3://bkt/{key.removesuffix('m.safetensors')}"
        assert torch.equal(haulway.load(folder)["w"], TENSORS["w"])
