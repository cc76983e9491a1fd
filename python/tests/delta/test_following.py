"""haulway.delta.follow: versions of a run as they become whole."""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

import haulway
import haulway.delta
from delta_versions import GOLDENS, INDEX, chain, save_full


@pytest.fixture
def source(tmp_path):
    """Returns a folder of four deltas."""
    chain(tmp_path, count=4, shards=2)
    return tmp_path / "run"


def numbers(following, count):
    return [one.number for one in itertools.islice(following, count)]


def follow(url, timeout=5, **options):
    return haulway.delta.follow(url, timeout=timeout, **options)


def put(source, target, number):
    """Puts a version there in one step."""
    hidden = target / f".hidden{number}"
    shutil.copytree(source / f"weight_v{number:06}", hidden)
    hidden.rename(target / f"weight_v{number:06}")


def test_versions_that_are_there_come_first(source):
    assert numbers(follow(source), 4) == [1, 2, 3, 4]
    assert numbers(follow(source, newer_than=2), 2) == [3, 4]
    with pytest.raises(haulway.TimedOutError, match="0.1 seconds"):
        next(follow(source, 0.1, newer_than=4))
    following = follow(source, 0.05)
    assert numbers(following, 4) == [1, 2, 3, 4]
    for _ in range(2):  # It may be asked again.
        with pytest.raises(haulway.TimedOutError):
            next(following)
    found = next(follow(source, newer_than=1))
    (listed,) = [one for one in haulway.delta.versions(source) if one.number == 2]
    assert vars(found) == vars(listed)


@pytest.mark.parametrize("seed", range(8))
def test_a_version_comes_when_it_is_whole_whatever_the_order(source, tmp_path,
                                                             seed):
    # All files of all versions appear in random order, parts of them in two
    # steps: nothing comes early, and everything in order.
    draw = random.Random(seed)
    target = tmp_path / "target"
    target.mkdir()
    files = [path for path in source.rglob("*") if path.is_file()]
    draw.shuffle(files)
    following = follow(target, 0, newer_than=0, poll=0.01)
    there, came = {}, []
    for path in files:
        name = path.relative_to(source)
        data = path.read_bytes()
        (target / name).parent.mkdir(exist_ok=True)
        for part in ((data[:draw.randrange(len(data))], data)
                     if draw.random() < 0.5 else (data,)):
            (target / name).write_bytes(part)
            if part is data:
                there.setdefault(name.parent.name, set()).add(name.name)
            while True:
                try:
                    came.append(next(following).number)
                except haulway.TimedOutError:
                    break
            whole = [n for n in range(1, 5) if there.get(f"weight_v{n:06}") == set(
                os.listdir(source / f"weight_v{n:06}"))]
            expected = list(itertools.takewhile(
                whole.__contains__, range(1, 5)))
            assert came == expected
    assert came == [1, 2, 3, 4]


def test_what_is_incomplete_holds_back_what_follows(source):
    folder = source / "weight_v000002"
    shard = sorted(folder.glob("*.safetensors"))[0]
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    following = follow(source, 0.05)
    assert next(following).number == 1
    with pytest.raises(haulway.TimedOutError):
        next(following)
    shard.write_bytes(data)
    index = (folder / INDEX).read_bytes()
    (folder / INDEX).write_bytes(index[:-1])
    with pytest.raises(haulway.TimedOutError):
        next(following)
    (folder / INDEX).write_bytes(index)
    assert numbers(following, 3) == [2, 3, 4]


def test_a_version_is_noticed_at_once(source, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    waits = []
    following = follow(target, 10, newer_than=0, poll=60)
    appeared = {}

    def publish():
        for number in (1, 2, 3, 4):
            time.sleep(0.15)
            if number % 2:
                put(source, target, number)
            else:  # As trainers do: a folder, its shards, then the index.
                name = f"weight_v{number:06}"
                (target / name).mkdir()
                for file in sorted(os.listdir(source / name),
                                   key=lambda file: file == INDEX):
                    time.sleep(0.02)
                    shutil.copy(source / name / file, target / name / "new.tmp")
                    (target / name / "new.tmp").rename(target / name / file)
            appeared[number] = time.monotonic()

    thread = threading.Thread(target=publish)
    thread.start()
    for number in (1, 2, 3, 4):
        assert next(following).number == number
        seen = time.monotonic()
        while number not in appeared:
            time.sleep(0)
        waits.append(seen - appeared[number])
    thread.join()
    # One listing may meet a busy machine.
    assert sorted(waits)[1] < 0.05, waits


def test_the_folder_may_come_later(source, tmp_path):
    target = tmp_path / "target"
    following = follow(target, 0.05, poll=0.01)
    with pytest.raises(haulway.TimedOutError):
        next(following)
    target.mkdir()
    put(source, target, 1)
    assert next(following).number == 1


def test_a_run_that_was_pruned(source, tmp_path):
    states = chain(tmp_path / "other", count=3)
    run = tmp_path / "other" / "run"
    save_full(run / "weight_v000004", states[-1], 1, {"version": "000004"})
    following = follow(run, 0.2)
    assert next(following).number == 1
    shutil.rmtree(run / "weight_v000003")
    assert next(following).number == 2
    # Version 3 may come within a second.
    with pytest.raises(haulway.TimedOutError):
        next(following)
    for number in (1, 2):
        shutil.rmtree(run / f"weight_v{number:06}")
    assert next(following).number == 4
    assert next(follow(run)).number == 4
    assert next(follow(run, newer_than=1)).number == 4


def run_with_a_full_version(root, gone):
    """Returns a run of seven versions, of which 6 is full, without some."""
    states = chain(root, count=7)
    run = root / "run"
    shutil.rmtree(run / "weight_v000006")
    save_full(run / "weight_v000006", states[6], 1, {"version": "000006"})
    for number in gone:
        shutil.rmtree(run / f"weight_v{number:06}")
    return run


def test_a_run_that_is_half_pruned(tmp_path):
    # The newest of the versions before a full one went first.
    run = run_with_a_full_version(tmp_path, (4, 5))
    following = follow(run)
    assert numbers(following, 5) == [1, 2, 3, 6, 7]
    with pytest.raises(haulway.TimedOutError):
        next(follow(run, 0.1, newer_than=7))
    for newer_than in (2, 3, 4):
        expected = [n for n in (1, 2, 3, 6, 7) if n > newer_than]
        assert numbers(follow(run, newer_than=newer_than),
                       len(expected)) == expected
    # What is left of a version holds back nothing, either.
    (run / "weight_v000003" / INDEX).unlink()
    assert numbers(follow(run), 4) == [1, 2, 6, 7]
    (run / "latest").write_text("weight_v000005")
    with pytest.raises(haulway.TimedOutError):
        next(follow(run, 1.5, newer_than=2))


def test_what_a_run_misses_is_said(tmp_path):
    run = run_with_a_full_version(tmp_path / "first", (1, 2, 6, 7))
    full = run_with_a_full_version(tmp_path / "second", ())
    following = follow(run)
    for _ in range(2):
        with pytest.raises(haulway.NotFoundError,
                           match="(?s)'000002' is not here.*full.*first/run"):
            next(following)
    with pytest.raises(haulway.NotFoundError, match="'000002' is not here"):
        next(follow(run, newer_than=1))
    put(full, run, 6)
    assert next(following).number == 6


def test_a_first_version_waits_for_those_before_it(source, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    following = follow(target, 0.1)
    with pytest.raises(haulway.TimedOutError):
        next(following)
    golden = GOLDENS / "miles-xor-blake3-full" / "run"
    put(golden, target, 3)  # A full one.
    with pytest.raises(haulway.TimedOutError):
        next(following)
    put(golden, target, 1)
    assert next(following).number == 1
    with pytest.raises(haulway.TimedOutError):
        next(following)
    put(golden, target, 2)
    assert numbers(following, 2) == [2, 3]
    # A run may begin with any number.
    other = tmp_path / "other"
    other.mkdir()
    following = follow(other, 0.1)
    with pytest.raises(haulway.TimedOutError):
        next(following)
    put(golden, other, 3)
    assert next(follow(other)).number == 3
    began = time.monotonic()
    following = follow(tmp_path / "third", 3)
    os.mkdir(tmp_path / "third")
    threading.Timer(0.1, put, (golden, tmp_path / "third", 3)).start()
    assert next(following).number == 3
    assert time.monotonic() - began > 0.9


@pytest.mark.parametrize("within", ["", "updates"])
def test_nothing_beyond_latest(source, tmp_path, within):
    target = tmp_path / "target"
    (target / within).mkdir(parents=True)
    for number in (1, 2, 3, 4):
        put(source, target / within, number)
    (target / "latest").write_text("")
    following = follow(target, 0.1, poll=0.02)
    with pytest.raises(haulway.TimedOutError, match="'latest' holds back"):
        next(following)
    (target / "latest").write_text("run-7/weight_v000002\n")
    assert numbers(following, 2) == [1, 2]
    with pytest.raises(haulway.TimedOutError):
        next(following)
    (target / "latest").write_text("000003")
    assert next(following).number == 3
    (target / "latest").unlink()
    assert next(following).number == 4
    with pytest.raises(haulway.TimedOutError, match="seconds; of"):
        next(following)


def test_of_a_bucket(bucket, endpoint, source, monkeypatch):
    for name, value in (("AWS_ACCESS_KEY_ID", "AKID"),
                        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
                        ("AWS_REGION", "us-east-1"),
                        ("AWS_ENDPOINT_URL_S3", endpoint)):
        monkeypatch.setenv(name, value)

    def put_object(path):
        bucket.upload_file(str(path), "bkt", f"run/{path.relative_to(source)}")

    following = follow("s3://bkt/run", 0.1, newer_than=0, poll=0.02)
    with pytest.raises(haulway.TimedOutError):
        next(following)
    files = [path for path in source.rglob("*") if path.is_file()]
    random.Random(4).shuffle(files)
    last = {n: max(files.index(path) for path in files
                   if path.parent.name == f"weight_v{n:06}") for n in range(1, 5)}
    came = []
    for i, path in enumerate(files):
        put_object(path)
        whole = [n for n in range(1, 5) if last[n] <= i]
        expected = list(itertools.takewhile(whole.__contains__, range(1, 5)))
        while len(came) < len(expected):
            came.append(next(following).number)
        assert came == expected
        if i in last.values():
            with pytest.raises(haulway.TimedOutError):
                next(following)
    assert came == [1, 2, 3, 4]
    bucket.put_object(Bucket="bkt", Key="run/latest", Body=b"weight_v000002")
    assert numbers(follow("s3://bkt/run/"), 2) == [1, 2]
    with pytest.raises(haulway.TimedOutError):
        next(follow("s3://bkt/run/", 0.1, newer_than=2))


@pytest.mark.parametrize("url", ["{folder}", "s3://bkt/run"])
def test_ctrl_c_ends_the_wait(tmp_path, endpoint, url):
    program = ("import haulway.delta, sys\nprint('waits', flush=True)\n"
               "next(haulway.delta.follow(sys.argv[1]))")
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "AKID",
                   "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1",
                   "AWS_ENDPOINT_URL_S3": endpoint}
    process = subprocess.Popen(
        [sys.executable, "-c", program, url.format(folder=tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment)
    try:
        assert process.stdout.readline() == "waits\n"
        time.sleep(0.5)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=10)
        assert time.monotonic() - began < 1
        assert "KeyboardInterrupt" in error
    finally:
        process.kill()


def test_arguments(tmp_path):
    for wrong in ({"newer_than": -1}, {"poll": 0}, {"timeout": -1}):
        with pytest.raises(haulway.InvalidArgumentError):
            haulway.delta.follow(tmp_path, **wrong)
    for wrong in ({"newer_than": "1"}, {"poll": "1"}, {"no_such": 1}):
        with pytest.raises(TypeError):
            haulway.delta.follow(tmp_path, **wrong)
    with pytest.raises(haulway.UnsupportedError):
        haulway.delta.follow("http://127.0.0.1:1/run/")
