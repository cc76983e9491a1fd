"""DCP directories at s3:// and http:// URLs, for every verb that reads them."""

import pytest
import torch
import torch.distributed.checkpoint as dcp

import haulway
from haulway.torch.dcp import LoadPlanner, Reader, Writer

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")

STATE = {"model": {"w": torch.arange(300_000.0).reshape(300, 1000),
                   "b": torch.arange(7)}, "step": 3}


@pytest.fixture(params=["s3", "http"])
def directory(request, tmp_path, bucket, endpoint, monkeypatch):
    """Returns the URL of a checkpoint that Writer saved to a bucket."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_ENDPOINT_URL_S3": endpoint, "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    dcp.save(STATE, storage_writer=Writer("s3://bkt/step"), no_dist=True)
    if request.param == "s3":
        return "s3://bkt/step"
    for key in keys(bucket):
        bucket.put_object_acl(Bucket="bkt", Key=key, ACL="public-read")
    return f"{endpoint}/bkt/step"


def keys(bucket):
    return [one["Key"] for one in bucket.list_objects_v2(
        Bucket="bkt", Prefix="step/")["Contents"]]


def test_every_verb_reads_a_directory_at_a_url(directory, tmp_path):
    url = f"{directory}/.metadata"
    with haulway.open(url) as checkpoint:
        assert checkpoint.format == "torch-dcp"
        rows = checkpoint.get_slice("model.w")[100:102]
    assert rows.equal(STATE["model"]["w"][100:102])
    state = haulway.load(url, verify=True)
    assert state["model"]["w"].equal(STATE["model"]["w"]) and state["step"] == 3
    report = haulway.verify(url)
    assert report.ok and report.checked_bytes > 1_200_000
    assert haulway.scan(url).safe
    haulway.convert(url, tmp_path / "m.safetensors", include=["model.*"])
    found = haulway.load(tmp_path / "m.safetensors")
    assert found["model.b"].equal(STATE["model"]["b"])
    assert haulway.manifest(url)["model.w"] == (
        haulway.manifest(tmp_path / "m.safetensors")["model.w"])


def test_torch_loads_from_a_url(directory):
    into = {"model": {"w": torch.zeros(300, 1000),
                      "b": torch.zeros(7, dtype=torch.int64)}, "step": 0}
    dcp.load(into, storage_reader=Reader(directory), planner=LoadPlanner(),
             no_dist=True)
    assert into["model"]["w"].equal(STATE["model"]["w"]) and into["step"] == 3


def test_a_prefix_of_a_bucket_is_a_directory(directory):
    assert haulway.load(f"{directory}/")["step"] == 3
    if directory.startswith("http"):  # An http server cannot list files.
        return
    assert haulway.verify(f"{directory}/").ok
    haulway.convert(f"{directory}/", "s3://bkt/whole.safetensors",
                    include=["model.*"])
    assert haulway.load("s3://bkt/whole.safetensors")["model.b"].tolist() == (
        list(range(7)))


def test_a_flipped_bit_at_a_url_is_found(directory, bucket):
    (key,) = [one for one in keys(bucket) if one.endswith(".distcp")]
    data = bytearray(bucket.get_object(Bucket="bkt", Key=key)["Body"].read())
    data[data.index(STATE["model"]["w"].numpy().tobytes()) + 5] ^= 1
    bucket.put_object(Bucket="bkt", Key=key, Body=bytes(data),
                      ACL="public-read")
    assert not haulway.verify(f"{directory}/.metadata").ok
    with pytest.raises(haulway.MismatchError, match=r"model\.w"):
        haulway.load(f"{directory}/.metadata", verify=True)
