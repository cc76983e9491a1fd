"""s3:// names that end in a slash behave like folders of the file system."""

import json
import urllib.parse

import numpy as np
import pytest

import haulway
from haulway.fsspec import HaulwayFileSystem
from remote_servers import ScriptedServer, store

TENSORS = {"a": np.arange(4, dtype="f4"), "b": np.ones(3, "f4")}
ODD = ["a b+c=d&e", "ü/é", "100%", "q?x#y", "k?versionId=7", "<&>\"'",
       "日本"]


@pytest.fixture(autouse=True)
def who_asks(monkeypatch, endpoint):
    for name, value in (("ACCESS_KEY_ID", "AKID"), ("REGION", "us-east-1"),
                        ("SECRET_ACCESS_KEY", "s3cret"),
                        ("ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.fixture
def model(bucket, tmp_path):
    """A model of two shards below "m/", beside other files."""
    paths = {}
    for name, tensor in TENSORS.items():
        paths[name] = f"{name}.safetensors"
        haulway.save({name: tensor}, tmp_path / paths[name])
        bucket.upload_file(str(tmp_path / paths[name]), "bkt",
                           f"m/{paths[name]}")
    index = json.dumps({"metadata": {}, "weight_map": paths})
    for key, body in (("m/model.safetensors.index.json", index), ("m/", ""),
                      ("m/config.json", "{}"), ("m2/x.pt", "no"),
                      ("m/below/notes.txt", "text")):
        bucket.put_object(Bucket="bkt", Key=key, Body=body.encode())
    return "s3://bkt/m/"


def same(found):
    assert sorted(found) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert np.array_equal(found[name], tensor)


def test_a_folder_opens_by_its_checkpoint(model, tmp_path):
    same(haulway.load(model, "numpy"))
    with haulway.open(model) as checkpoint:
        assert sorted(checkpoint.keys()) == ["a", "b"]
    haulway.convert(model, tmp_path / "out.npz")
    same(haulway.load(tmp_path / "out.npz", "numpy"))
    with pytest.raises(haulway.InvalidArgumentError, match="is a folder"):
        haulway.get(model, tmp_path / "index.json")
    haulway.get(f"{model}model.safetensors.index.json", tmp_path / "index.json")
    assert "weight_map" in (tmp_path / "index.json").read_text()


def test_each_verb_takes_a_folder(run, model):
    listed = json.loads(run("ls", model, "--json").stdout)
    assert [one["name"] for one in listed["tensors"]] == ["a", "b"]
    assert listed["file"] == f"{model}model.safetensors.index.json"
    assert run("cat", model, "b").stdout.split() == ["[1,", "1,", "1]"]
    assert json.loads(run("load", model, "--json").stdout)["tensor_bytes"] == 28
    run("convert", model, "out.npz")
    said = {one["file"]: one for one in map(
        json.loads, run("verify", model, "--json").stdout.splitlines())}
    assert {name.removeprefix(model): one["ok"] for name, one in said.items()} \
        == {"a.safetensors": True, "b.safetensors": True, "config.json": None,
            "below/notes.txt": None, "model.safetensors.index.json": True}
    scanned = [json.loads(line)["file"] for line in run(
        "scan", model, "--json", code=None).stdout.splitlines()]
    assert sorted(scanned) == sorted(said)


def test_python_looks_into_every_object(model):
    report = haulway.verify(model)
    assert report.ok and len(report.files) == 5
    assert len(haulway.scan(model).files) == 5
    files = HaulwayFileSystem()
    assert sorted(files.ls(f"haulway://{model}", detail=False)) == sorted(
        model + name for name in ("a.safetensors", "b.safetensors", "below/",
                                  "config.json", "model.safetensors.index.json"))
    assert f"{model}below/notes.txt" in files.find(f"haulway://{model}")


def test_an_index_of_a_url_is_scanned_with_its_shards(run, model):
    done = run("scan", f"{model}model.safetensors.index.json", "--json",
               code=None)
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["file"].removeprefix(model) for one in reports] == [
        "model.safetensors.index.json", "a.safetensors", "b.safetensors"]
    assert [one["verdict"] for one in reports[1:]] == ["SAFE", "SAFE"]


def test_a_folder_without_a_checkpoint_says_so(run, bucket):
    bucket.put_object(Bucket="bkt", Key="e/config.json", Body=b"{}")
    for name in ("s3://bkt/e/", "s3://bkt/none/"):
        with pytest.raises(haulway.NotFoundError, match="no checkpoint"):
            haulway.load(name, "numpy")
    with pytest.raises(haulway.NotFoundError, match="404"):
        haulway.load("s3://nobody/", "numpy")
    bucket.put_object(Bucket="bkt", Key="e/1.pt", Body=b"")
    bucket.put_object(Bucket="bkt", Key="e/2.pt", Body=b"")
    with pytest.raises(haulway.Error, match="several checkpoints.*1.pt.*2.pt"):
        haulway.load("s3://bkt/e/", "numpy")


def test_odd_keys_are_listed_and_open(bucket, tmp_path):
    haulway.save(TENSORS, tmp_path / "x.npz")
    data = (tmp_path / "x.npz").read_bytes()
    for name in ODD:
        bucket.put_object(Bucket="bkt", Key=f"l/{name}/x.npz", Body=data)
    names = haulway._haulway.list_files("s3://bkt/l/", {})
    assert {name.removesuffix("?versionId=") for name in names} == {
        f"s3://bkt/l/{name}/x.npz" for name in ODD}
    for name in names:
        same(haulway.load(name, "numpy"))
        folder = name.removesuffix("?versionId=").removesuffix("x.npz")
        if "?versionId=" not in name:
            same(haulway.load(folder, "numpy"))
    assert haulway.verify(f"s3://bkt/l/{ODD[0]}/").ok


def page(keys, more="<IsTruncated>false</IsTruncated>"):
    listed = "".join(f"<Contents><Key>{key}</Key></Contents>" for key in keys)
    return f"<ListBucketResult>{listed}{more}</ListBucketResult>"


MORE = ("<IsTruncated>true</IsTruncated>"
        "<NextContinuationToken>{}</NextContinuationToken>")


def listing(*pages):
    """Returns a store with these pages of keys, the last one repeated, and the
    requests it got."""
    asked = []

    def answer(head, body):
        text = pages[min(len(asked), len(pages) - 1)].encode()
        asked.append(head.split()[1].decode())
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (
            len(text), text)

    return ScriptedServer(store(answer)), asked


@pytest.fixture
def listed(monkeypatch):
    """Lists s3://bkt/m/ in a store that answers with these pages."""
    def listed(*pages):
        server, asked = listing(*pages)
        with server:
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3",
                               f"http://127.0.0.1:{server.port}")
            return haulway._haulway.list_files("s3://bkt/m/", {}), asked

    return listed


def test_thousands_of_keys_come_by_pages(listed):
    """2,500 keys, encoded by "encoding-type=url"."""
    keys = [f"m/{i:04} ü<&>" for i in range(2500)]
    pages = [page(map(urllib.parse.quote_plus, keys[i:i + 1000]),
                  "<EncodingType>url</EncodingType>" + MORE.format(i))
             for i in (0, 1000, 2000)]
    pages[-1] = pages[-1].replace(">true<", ">false<")
    names, asked = listed(*pages)
    assert names == [f"s3://bkt/{key}" for key in keys]
    assert len(asked) == 3


def test_pages_follow_each_other(listed):
    names, asked = listed(
        page(["m/2", "m/1"], MORE.format("a+/=&amp;")),
        page([], MORE.format("2")), page(["m/3", "m/2"]))
    assert names == [f"s3://bkt/m/{i}" for i in (1, 2, 3)]
    assert "continuation-token=a%2B%2F%3D%26&" in asked[1]
    assert "continuation-token=2&" in asked[2]


@pytest.mark.parametrize("pages, what", [
    ([page(["m/1"])[:-9]], "has no end"),
    ([""], "has no end"),
    (["<Error><Code>No</Code></Error>"], "has no end"),
    ([page(["m/1"], "<IsTruncated>true</IsTruncated>")], "without end"),
    ([page(["m/1"], "<IsTruncated>true</IsTruncated><NextContinuationToken>1"
           "</NextContinuationToken>")], "without end"),
    ([page(["other/1"])], "'other/1', which is not below it"),
    ([page(["../m/1"])], "which is not below it"),
])
def test_lists_that_lie_are_refused(listed, pages, what):
    with pytest.raises(haulway.CorruptError, match=what):
        listed(*pages)


def test_who_may_not_list_is_told(monkeypatch):
    def refuse(head, body):
        return (b"HTTP/1.1 403 No\r\nContent-Length: 40\r\n\r\n"
                b"<Error><Code>AccessDenied</Code></Error>")

    with ScriptedServer(store(refuse)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3",
                           f"http://127.0.0.1:{server.port}")
        with pytest.raises(haulway.PermissionDeniedError, match="403"):
            haulway.open("s3://bkt/m/")


def test_a_secret_of_a_url_is_not_in_a_report(nginx, run, tmp_path):
    haulway.save(TENSORS, tmp_path / "x.npz")
    nginx.put("x.npz", tmp_path / "x.npz")
    url = nginx.url("x.npz").replace("://", "://me:passw0rd@")
    done = run("scan", f"{url}?X-Amz-Signature=s3cret", code=None)
    assert "SAFE" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr
    assert "passw0rd" not in done.stdout + done.stderr
    report = haulway.scan(f"{url}?X-Amz-Signature=s3cret")
    assert "s3cret" not in str(report)


def test_scan_trusts_whom_it_is_told_to(nginx, run, tmp_path, monkeypatch):
    for name in ("CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    haulway.save(TENSORS, tmp_path / "x.npz")
    nginx.put("x.npz", tmp_path / "x.npz")
    url = nginx.tls_url("x.npz")
    assert "certificate" in run("scan", url, code=None).stderr
    assert "SAFE" in run("scan", url, "--ca-file", nginx.ca, code=None).stdout
    assert haulway.scan(url, ca_file=str(nginx.ca)).safe


def test_a_store_may_list_keys_as_they_come(run, monkeypatch, tmp_path):
    """As directory buckets do."""
    haulway.save(TENSORS, tmp_path / "x.pt")
    data = (tmp_path / "x.pt").read_bytes()
    keys = ["m/c.pt", "m/b/y.pt", "m/a.pt", "m/b/x.pt", "m/0.pt"]

    def answer(head, body):
        target = head.split()[1].decode()
        if "list-type=2" not in target:
            return (b"HTTP/1.1 200 X\r\nContent-Length: %d\r\n\r\n%s"
                    % (len(data), data))
        listed = "".join(f"<Contents><Key>{key}</Key></Contents>" for key in keys)
        text = f"<ListBucketResult>{listed}</ListBucketResult>".encode()
        return (b"HTTP/1.1 200 X\r\nContent-Length: %d\r\n\r\n%s"
                % (len(text), text))

    with ScriptedServer(store(answer)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3",
                           f"http://127.0.0.1:{server.port}")
        names = sorted(f"s3://bkt/{key}" for key in keys)
        told = haulway._haulway.list_files("s3://bkt/m/", {})
        assert told == names
        for verb in ("verify", "scan"):
            done = run(verb, "s3://bkt/m/", "--json")
            files = [json.loads(line)["file"]
                     for line in done.stdout.splitlines()]
            assert sorted(name for name in files if name.endswith(".pt")) == names
        for verb in ("verify", "scan", "info", "manifest"):
            report = haulway.bulk(verb, "s3://bkt/m/", jobs=1)
            assert sorted(one["input"] for one in report.results()) == names
