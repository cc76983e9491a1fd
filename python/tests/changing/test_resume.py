"""Conversions that are interrupted and go on."""

import json
import os
import random
import re
import shutil

import numpy as np
import pytest

import haulway
from haulway import InvalidArgumentError, UnavailableError, UnsupportedError
from quantized_cases import CASES

HIDDEN = ".haulway-convert"
SHARDS = 4


def write_model(folder, seed=0):
    """Writes a model of four shards."""
    folder.mkdir()
    draw = np.random.default_rng(seed)
    with haulway.writer(folder / "model.safetensors", shard=40_000) as out:
        for i in range(2 * SHARDS):
            out.add(f"layer.{i}.weight",
                    draw.standard_normal((50, 100)).astype("f4"))
        out.commit()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


@pytest.fixture
def source(tmp_path):
    return write_model(tmp_path / "source")


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def convert(source, target, **options):
    options = {"to": "safetensors", "shard": 20_000, "dtype": "bf16",
               "resume": True, **options}
    return haulway.convert(source, f"{target}/", **options)


def interrupt(source, target, whole=2, **options):
    """Converts until some of the new files are whole."""
    def stop(done, total):
        if len(journal(target)) >= whole:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, target, progress=stop, threads=1, **options)
    assert len(journal(target)) >= whole


def journal(target):
    path = target / HIDDEN / "journal"
    return path.read_text().splitlines() if path.exists() else []


def test_a_killed_conversion_goes_on(source, tmp_path, command, preloaded, run):
    words = ("convert", source, f"{tmp_path}/out/", "--to", "safetensors", "--dtype",
             "bf16", "--shard", "20KB", "--threads", "2", "--json")
    run(*words)
    expected = files_of(tmp_path / "out")
    assert len(expected) == SHARDS + 2
    shutil.rmtree(tmp_path / "out")
    told = tmp_path / "calls"
    killing = {**os.environ, "LD_PRELOAD": preloaded("kill_at")}
    run(*words, "--resume", env={**killing, "KILL_AT": "1000000",
                                 "CALLS_TO": str(told)})
    assert files_of(tmp_path / "out") == expected
    counts = set()
    calls = int(told.read_text())
    chosen = sorted(random.Random(1).sample(range(calls), min(calls, 40)))
    for call in chosen:
        shutil.rmtree(tmp_path / "out")
        run(*words, "--resume", code=-9, env={**killing, "KILL_AT": str(call)})
        found = files_of_set(tmp_path / "out")
        done = json.loads(run(*words, "--resume").stdout)
        assert files_of(tmp_path / "out") == expected, call
        counts.add(len(done["resumed"]))
        # What had a name was that of the new model.
        assert all(expected[name] == one for name, one in found.items()), call
    assert {0, 1, 2, 3} <= counts


def files_of_set(folder):
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*")} \
        if folder.exists() else {}


def test_what_is_kept_is_not_read_again(source, tmp_path):
    interrupt(source, tmp_path / "out")
    kept = len(journal(tmp_path / "out"))
    report = convert(source, tmp_path / "out")
    assert len(report.resumed) == kept
    assert report.written_bytes < report.bytes
    convert(source, tmp_path / "whole", resume=False)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


@pytest.mark.parametrize("to", ["torch", "gguf"])
def test_formats(source, tmp_path, to):
    metadata = {"general.architecture": "llama"} if to == "gguf" else None
    options = {"to": to, "dtype": "f16", "metadata": metadata}
    convert(source, tmp_path / "whole", resume=False, **options)
    interrupt(source, tmp_path / "out", **options)
    assert convert(source, tmp_path / "out", **options).resumed
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_proof(source, tmp_path):
    interrupt(source, tmp_path / "out")
    report = convert(source, tmp_path / "out", proof=True)
    assert report.resumed
    assert len(report.proof) == 2 * SHARDS


OTHERS = {
    "dtype": {"dtype": "f16"},
    "size": {"shard": 40_000},
    "tensors": {"exclude": "layer.0.*"},
    "names": {"rename": {"layer": "block"}},
    "swapped": {"rename": lambda name: re.sub(
        "[01]", lambda found: str(1 - int(found[0])), name)},
    "metadata": {"metadata": {"a": "b"}},
    "format": {"to": "torch"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_options_are_refused(source, tmp_path, name):
    interrupt(source, tmp_path / "out")
    before = files_of(tmp_path / "out" / HIDDEN)
    with pytest.raises(InvalidArgumentError, match="interrupted conversion") as info:
        convert(source, tmp_path / "out", **OTHERS[name])
    assert f"; of {tmp_path}/out/" in str(info.value)
    assert files_of(tmp_path / "out" / HIDDEN) == before
    # Without resume it starts anew.
    convert(source, tmp_path / "out", resume=False, **OTHERS[name])
    assert not (tmp_path / "out" / HIDDEN).exists()


def rules(value):
    """Rules that add a number to each weight."""
    return [{"source": "weight", "target": "weight",
             "ops": [{"add": {"value": value}}]}]


def test_rules(source, tmp_path):
    interrupt(source, tmp_path / "out", rules=rules(1))
    with pytest.raises(InvalidArgumentError, match="interrupted conversion"):
        convert(source, tmp_path / "out", rules=rules(2))
    assert convert(source, tmp_path / "out", rules=rules(1)).resumed
    convert(source, tmp_path / "whole", resume=False, rules=rules(1))
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    with pytest.raises(UnsupportedError, match="'apply'"):
        convert(source, tmp_path / "out", rules=[
            {"source": "weight", "target": "weight", "apply": list}])


def test_threads_and_budgets_may_differ(source, tmp_path):
    interrupt(source, tmp_path / "out")
    assert convert(source, tmp_path / "out", threads=2, memory_budget=0,
                   verify=False, durability="none").resumed


def test_another_source_is_refused(source, tmp_path):
    interrupt(source, tmp_path / "out")
    write_model(tmp_path / "other", seed=1)
    with pytest.raises(InvalidArgumentError, match="another checkpoint"):
        convert(tmp_path / "other", tmp_path / "out")
    shard = next(source.glob("model-00003*"))
    written = shard.stat()
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(written.st_atime_ns, written.st_mtime_ns))
    with pytest.raises(InvalidArgumentError, match="another checkpoint"):
        convert(source, tmp_path / "out")


def test_a_damaged_file_is_written_again(source, tmp_path):
    interrupt(source, tmp_path / "out")
    kept = sorted((tmp_path / "out" / HIDDEN).glob("model-*"))
    data = bytearray(kept[1].read_bytes())
    data[-1] ^= 1
    kept[1].write_bytes(data)
    assert len(convert(source, tmp_path / "out").resumed) == 1
    convert(source, tmp_path / "whole", resume=False)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_a_cut_or_wild_journal_keeps_less(source, tmp_path):
    interrupt(source, tmp_path / "out")
    shutil.copytree(tmp_path / "out", tmp_path / "kept")
    convert(source, tmp_path / "whole", resume=False)
    text = (tmp_path / "kept" / HIDDEN / "journal").read_bytes()
    draw = random.Random(1)
    changed = [text[:draw.randrange(len(text))] for _ in range(20)]
    for _ in range(20):
        wild = bytearray(text)
        wild[draw.randrange(len(wild))] = draw.randrange(256)
        changed.append(bytes(wild))
    for one in changed:
        shutil.rmtree(tmp_path / "out")
        shutil.copytree(tmp_path / "kept", tmp_path / "out")
        (tmp_path / "out" / HIDDEN / "journal").write_bytes(one)
        try:
            convert(source, tmp_path / "out")
        except InvalidArgumentError as error:
            assert "interrupted conversion" in str(error)
            continue
        assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_two_at_once(source, tmp_path):
    def again(done, total):
        with pytest.raises(UnavailableError, match="another process"):
            convert(source, tmp_path / "out")
        # It does not remove what is kept, either.
        convert(source, tmp_path / "out", resume=False)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out", progress=again)
    assert (tmp_path / "out" / HIDDEN / "journal").exists()


def test_any_write_into_the_folder_removes_it(source, tmp_path):
    interrupt(source, tmp_path / "out")
    with haulway.writer(tmp_path / "out/x.safetensors", shard=100) as out:
        for name in "ab":
            out.add(name, np.zeros(100))
        out.commit()
    assert not (tmp_path / "out" / HIDDEN).exists()


def test_a_link_leads_nowhere(source, tmp_path):
    """Files of others, below a link of that name, are neither used nor removed."""
    others = tmp_path / "others"
    others.mkdir()
    (others / "journal").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / HIDDEN).symlink_to(others)
    with pytest.raises(haulway.PermissionDeniedError, match="no folder of this user"):
        convert(source, tmp_path / "out")
    convert(source, tmp_path / "out", resume=False)
    assert (others / "journal").read_text() == "mine"


def test_computed_weights(tmp_path):
    case = next(one for one in CASES if one.name == "fp8 edges")
    source = case.write(tmp_path / "model")
    options = {"dequantize": True, "dtype": None, "shard": 1}
    convert(source, tmp_path / "whole", resume=False, **options)
    interrupt(source, tmp_path / "out", whole=1, **options)
    assert convert(source, tmp_path / "out", **options).resumed
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    # What config.json declares is part of the source.
    shutil.rmtree(tmp_path / "out")
    interrupt(source, tmp_path / "out", whole=1, **options)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"]["more"] = 1
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidArgumentError, match="another checkpoint"):
        convert(source, tmp_path / "out", **options)


def test_from_a_server(source, tmp_path, nginx):
    for path in source.iterdir():
        nginx.put(f"resumed/{path.name}", path)
    url = nginx.url("resumed/")
    interrupt(url, tmp_path / "out")
    assert convert(url, tmp_path / "out").resumed
    convert(source, tmp_path / "whole", resume=False)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    interrupt(url, tmp_path / "new")
    changed = write_model(tmp_path / "changed", seed=2)
    for path in changed.iterdir():
        nginx.put(f"resumed/{path.name}", path)
        # Its ETags count seconds.
        os.utime(nginx.root / "resumed" / path.name, (1, 1_700_000_000))
    with pytest.raises(InvalidArgumentError, match="another checkpoint"):
        convert(url, tmp_path / "new")


def test_what_cannot_be_resumed(source, tmp_path):
    with pytest.raises(UnsupportedError, match="local folder cannot be resumed"):
        haulway.convert(source, tmp_path / "one.safetensors", resume=True)
    with pytest.raises(UnsupportedError, match="torch-dcp"):
        convert(source, tmp_path / "out", to="torch-dcp", dtype=None)
    whole = (source / "model-00001-of-00004.safetensors").read_bytes()
    with pytest.raises(UnsupportedError, match="nothing tells whether it changes"):
        convert(whole, tmp_path / "out")
    assert not (tmp_path / "out").exists()
