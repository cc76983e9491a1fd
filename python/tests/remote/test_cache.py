"""cache_dir: bytes read from URLs are kept for later reads."""

import hashlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest
import safetensors.torch
import torch

import haulway
from compare import same_tensors
from haulway import _haulway
from haulway._reading.source import open_source
from haulway._reading.streams import read_range
from http_server import FaultServer

MIB = 1 << 20


@pytest.fixture(scope="module")
def tensors():
    torch.manual_seed(1)
    return {f"layer.{i}": torch.randn(1000, 333 + i) for i in range(12)}


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "deep" / "cache"


def kept_bytes(cache):
    return sum(one.stat().st_blocks * 512 for one in cache.iterdir())


@pytest.mark.parametrize("ending", ["safetensors", "pt", "tensors"])
def test_a_second_opening_needs_one_request(
    nginx, tensors, tmp_path, cache, ending, monkeypatch
):
    monkeypatch.delenv("HAULWAY_SERIALIZATION_DEBUG", raising=False)
    path = tmp_path / f"m.{ending}"
    haulway.save(tensors, path)
    url = nginx.put(path.name, path)
    nginx.requests()
    with haulway.open(url, cache_dir=cache):
        assert len(nginx.requests()) <= (3 if ending == "pt" else 2)
    same_tensors(haulway.load(url, cache_dir=cache), tensors)
    nginx.requests()
    for _ in range(2):
        with haulway.open(url, cache_dir=cache) as checkpoint:
            same_tensors({name: checkpoint[name] for name in checkpoint}, tensors)
        assert len(nginx.requests()) == 1
    same_tensors(haulway.load(url, cache_dir=cache, verify=True), tensors)
    assert len(nginx.requests()) == 1
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert kept_bytes(cache) < path.stat().st_size + MIB


def test_a_part_is_kept_as_a_part(nginx, model, tensors, cache):
    url = nginx.put("m.safetensors", model)
    same_tensors(haulway.load(url, include="layer.3", cache_dir=cache),
         {"layer.3": tensors["layer.3"]})
    assert 0 < kept_bytes(cache) < 4 * MIB
    nginx.requests()
    same_tensors(haulway.load(url, include="layer.3", cache_dir=cache),
         {"layer.3": tensors["layer.3"]})
    assert len(nginx.requests()) == 1
    same_tensors(haulway.load(url, cache_dir=cache), tensors)


def test_a_new_version_is_read_and_takes_the_place_of_the_old(
    nginx, model, tensors, cache
):
    url = nginx.put("m.safetensors", model)
    same_tensors(haulway.load(url, cache_dir=cache), tensors)
    (before,) = cache.iterdir()
    changed = {name: tensor + 1 for name, tensor in tensors.items()}
    path = nginx.root / "m.safetensors"
    path.write_bytes(safetensors.torch.save(changed))
    os.utime(path, (1, 1_700_000_000))
    same_tensors(haulway.load(url, cache_dir=cache), changed)
    (after,) = cache.iterdir()
    assert before != after


def test_what_rots_is_fetched_again(nginx, model, tensors, cache):
    """Changed bytes, marks without bytes, and truncated files."""
    url = nginx.put("m.safetensors", model)
    same_tensors(haulway.load(url, cache_dir=cache), tensors)
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    for spoil in (
        lambda data: data[:MIB] + b"\1" * 5 + data[MIB + 5:],
        lambda data: data[:4096] + bytes(len(data) - 4096),
        lambda data: os.urandom(4096) + data[4096:],
        lambda data: bytes(len(data)),
        lambda data: data[:len(data) // 2],
        lambda data: b"",
    ):
        spoiled = spoil(whole)
        assert spoiled != whole
        kept.write_bytes(spoiled)
        nginx.requests()
        same_tensors(haulway.load(url, cache_dir=cache), tensors)
        assert len(nginx.requests()) > 1
        same_tensors(haulway.load(url, cache_dir=cache), tensors)
        assert len(nginx.requests()) == 1


def test_what_goes_while_it_is_used_is_no_fault(nginx, model, tensors, cache):
    url = nginx.put("m.safetensors", model)
    with haulway.open(url, cache_dir=cache) as checkpoint:
        names = list(checkpoint)
        first = {names[0]: checkpoint[names[0]]}
        for one in cache.iterdir():
            one.unlink()
        cache.rmdir()
        same_tensors({**first, **{n: checkpoint[n] for n in names[1:]}}, tensors)


def test_the_folder_holds_no_more_than_it_may(nginx, tensors, cache):
    urls = []
    for number in range(6):
        data = safetensors.torch.save({"w": torch.full((700_000,), number)})
        urls.append(nginx.put(f"{number}.safetensors", data))
    for _ in range(2):
        for number, url in enumerate(urls):
            found = haulway.load(url, cache_dir=cache, cache_size="16MiB")
            assert int(found["w"].sum()) == number * 700_000
            assert kept_bytes(cache) <= 17 * MIB
    # The most recent entries stay.
    nginx.requests()
    haulway.load(urls[-1], cache_dir=cache, cache_size="16MiB")
    assert len(nginx.requests()) == 1
    haulway.load(urls[0], cache_dir=cache, cache_size="16MiB")
    assert len(nginx.requests()) > 1
    # A file larger than the cache is still read.
    haulway.load(urls[2], cache_dir=cache, cache_size="2MiB")
    assert kept_bytes(cache) <= 3 * MIB


def test_two_urls_and_two_queries_are_two_objects(cache):
    def handle(request):
        number = float(request.target.rsplit("=", 1)[-1][0])
        data = safetensors.torch.save({"w": torch.full((500_000,), number)})
        request.serve(data, ETag='"same"')

    with FaultServer(handle) as server:
        for _ in range(2):
            for query in (
                "id=1", "id=2", "X-Amz-Signature=abc&id=1",
                "X-Goog-Date=1&X-Goog-Signature=abc&id=1",
                "sv=2024&se=1&sig=abc&id=2", "sv=2024&se=2&sig=def&id=2",
            ):
                url = server.url(f"/model?{query}")
                found = haulway.load(url, cache_dir=cache)
                assert found["w"][-1] == float(query[-1])
        # A signature in the URL does not make another object; the version of
        # Azure's service might.
        assert len(list(cache.iterdir())) == 3
        assert not any("abc" in one.name for one in cache.iterdir())


def test_what_nobody_checked_is_kept_apart(nginx, model, cache):
    nginx.put("m.safetensors", model)
    url = nginx.tls_url("m.safetensors")
    with pytest.warns(UserWarning, match="insecure"):
        haulway.load(url, cache_dir=cache, insecure=True)
    nginx.requests()
    haulway.load(url, cache_dir=cache, ca_file=nginx.ca)
    assert len(nginx.requests()) > 1
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"1"'}])
def test_what_cannot_be_recognised_is_not_kept(model, tensors, cache, headers):
    with FaultServer(lambda r: r.serve(model, **headers)) as server:
        for _ in range(2):
            same_tensors(haulway.load(server.url(), cache_dir=cache), tensors)
        assert not cache.exists()


def test_shards_are_kept_each(nginx, tensors, tmp_path, cache):
    haulway.save(tensors, tmp_path / "all.safetensors")
    haulway.convert(tmp_path / "all.safetensors",
                    tmp_path / "model.safetensors", shard="6MB")
    for path in tmp_path.glob("model*"):
        nginx.put(path.name, path)
    url = nginx.url("model.safetensors.index.json")
    same_tensors(haulway.load(url, cache_dir=cache), tensors)
    nginx.requests()
    same_tensors(haulway.load(url, cache_dir=cache), tensors)
    shards = len(list(tmp_path.glob("model-*")))
    assert shards > 2 and len(nginx.requests()) == shards + 1


LOAD = """
import sys, haulway, hashlib
found = haulway.load(sys.argv[1], "numpy", cache_dir=sys.argv[2])
digest = hashlib.sha256()
for name in sorted(found):
    digest.update(found[name].tobytes())
print(digest.hexdigest())
"""


def loading(url, cache, **options):
    return subprocess.Popen(
        [sys.executable, "-c", LOAD, url, str(cache)], stdout=subprocess.PIPE,
        text=True, **options,
    )


def digest_of(tensors):
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()


def test_processes_that_are_killed_leave_nothing_wrong(model, tensors, cache):
    """SIGKILL at 12 moments of reading; each following process continues."""
    expected = digest_of(tensors)
    served = threading.Semaphore(0)

    def handle(request):
        served.release()
        time.sleep(0.02)
        request.serve(model, ETag='"1"')

    with FaultServer(handle) as server:
        for moment in range(12):
            process = loading(server.url(), cache,
                              env={**os.environ, "HAULWAY_LOAD_CONNECTIONS": "1"})
            for _ in range(1 + moment % 4):
                # The file may already be complete.
                while process.poll() is None:
                    if served.acquire(timeout=0.02):
                        break
            time.sleep(0.004 * moment)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        process = loading(server.url(), cache)
        assert process.communicate(timeout=60)[0].strip() == expected
        before = len(server.requests)
        process = loading(server.url(), cache)
        assert process.communicate(timeout=60)[0].strip() == expected
        assert len(server.requests) == before + 1


def test_processes_share_it_at_the_same_time(nginx, model, tensors, cache):
    url = nginx.put("m.safetensors", model)
    expected = digest_of(tensors)
    running = [loading(url, cache) for _ in range(4)]
    for process in running:
        assert process.communicate(timeout=60)[0].strip() == expected
    nginx.requests()
    same_tensors(haulway.load(url, cache_dir=cache), tensors)
    assert len(nginx.requests()) == 1


@pytest.mark.usefixtures("bucket")
def test_objects_of_s3_are_kept_the_same(
    model, tensors, cache, endpoint, monkeypatch
):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S",
        "AWS_ENDPOINT_URL_S3": endpoint, "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    haulway.put(model, "s3://bkt/m.safetensors")
    asked = []
    for _ in range(2):
        source = open_source("s3://bkt/m.safetensors",
                             remote={"cache_dir": str(cache)})
        assert read_range(source, 0, source.size) == model
        asked.append(_haulway.source_stats(source)["requests"])
        (_,) = cache.iterdir()
    assert asked[0] > 1 and asked[1] == 1
    same_tensors(haulway.load("s3://bkt/m.safetensors", cache_dir=cache), tensors)


def test_the_command_and_the_environment_know_it(
    run, nginx, model, tmp_path, cache
):
    url = nginx.put("m.safetensors", model)
    nginx.requests()
    run("load", url, "--no-progress", "--cache-dir", cache, "--cache-size",
        "1GiB")
    assert len(nginx.requests()) > 1
    env = {**os.environ, "HAULWAY_LOAD_CACHE_DIR": str(cache)}
    run("load", url, "--no-progress", env=env)
    assert len(nginx.requests()) == 1
    process = subprocess.run(
        [sys.executable, "-c",
         f"import haulway; haulway.load({url!r}, 'numpy')"], env=env)
    assert process.returncode == 0 and len(nginx.requests()) == 1


def test_a_folder_that_cannot_be_is_said(nginx, model, tmp_path):
    url = nginx.put("m.safetensors", model)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot use the cache"):
        haulway.load(url, cache_dir=tmp_path / "file" / "below")
