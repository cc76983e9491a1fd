"""Rank files in buckets and on web servers."""

import pytest

import haulway
from rank_goldens import expected, folder, found


@pytest.fixture
def uploaded(tmp_path, bucket, endpoint, monkeypatch):
    """Returns a function that puts a golden into the bucket."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_ENDPOINT_URL_S3": endpoint, "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)

    def upload(kind, acl="private"):
        for path in folder(kind).rglob("*"):
            if path.is_file():
                key = f"run/{path.relative_to(folder(kind))}"
                bucket.put_object(Bucket="bkt", Key=key, ACL=acl,
                                  Body=path.read_bytes())
        return "s3://bkt/run/"

    return upload


@pytest.mark.parametrize(("kind", "part"), [
    ("tpfsdp_4", "model"), ("fsdp2_4", "optim"), ("fsdp1_2", "model"),
    ("ds2_2", "model"), ("ds3_2", "model")])
def test_a_folder_of_a_bucket(kind, part, uploaded, tmp_path):
    url = uploaded(kind)
    assert found(url, part=part) == expected(kind, part)
    haulway.convert(url, tmp_path / "out.pt", part=part)
    assert found(tmp_path / "out.pt") == expected(kind, part)


def test_urls_of_a_web_server(uploaded, endpoint):
    """It lists no folders: the files are named."""
    uploaded("tpfsdp_4", acl="public-read")
    urls = [f"{endpoint}/bkt/run/model_world_size_4_rank_{rank}.pt"
            for rank in range(4)]
    with haulway.open(urls) as opened:
        assert opened.format == "torch-ranks"
        assert opened.get_slice("a.weight")[3:5].shape == (2, 6)
    assert found(urls) == expected("tpfsdp_4")
    with pytest.raises(haulway.MismatchError, match="rank 2 of 4 is missing"):
        haulway.open(urls[:2])
