"""The programs of examples/python/: each works as described, in few lines."""

import contextlib
import json
import os
import pickle
import re
import subprocess
import sys
import urllib.error
import urllib.request

import numpy
import pytest
import torch

import haulway
from page_code import ROOT

EXAMPLES = ROOT / "examples/python"


def example(name, *words, code=0, **options):
    """Runs an example to its end; returns its output."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, words)], text=True,
        capture_output=True, timeout=300, **options,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout


@contextlib.contextmanager
def serving(name, *words):
    """Runs an example that serves; returns its URL."""
    process = subprocess.Popen([sys.executable, EXAMPLES / name, *words],
                               stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        yield url
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def fetch(url, data=None):
    with urllib.request.urlopen(url, data, timeout=60) as answer:
        return answer.read()


def test_they_are_short_and_listed():
    text = (EXAMPLES / "README.md").read_text()
    programs = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert len(programs) + len(list(EXAMPLES.glob("*.ipynb"))) >= 10
    for name in programs:
        assert len((EXAMPLES / name).read_text().splitlines()) < 60, name
    listed = re.findall(r"^\| \[([\w.]+)\]\(\1\) ", text, re.MULTILINE)
    assert sorted(listed) == sorted(
        [*programs, *(path.name for path in EXAMPLES.glob("*.ipynb"))])


def test_each_has_a_test():
    tests = open(__file__).read()
    for path in EXAMPLES.iterdir():
        if path.suffix in (".py", ".ipynb"):
            assert f'"{path.name}"' in tests, path.name


def test_a_server_swaps_its_model():
    name = f"test-swap-{os.getpid()}"

    def publish(scale):
        weight = numpy.eye(3) * scale
        return haulway.publish(name, {"weight": weight, "bias": numpy.ones(3)})

    with publish(1), serving("swap_server.py", name) as url:
        asked = json.dumps([1, 2, 3]).encode()
        assert json.loads(fetch(url, asked)) == {
            "version": 1, "result": [2.0, 3.0, 4.0]}
        publish(10)
        while json.loads(fetch(url))["version"] < 2:
            pass
        assert json.loads(fetch(url, asked)) == {
            "version": 2, "result": [11.0, 21.0, 31.0]}


def test_a_trainer_resumes(tmp_path):
    whole = example("train_and_resume.py", tmp_path / "whole.pt", 60)
    first = example("train_and_resume.py", tmp_path / "parts.pt", 45)
    assert "resumed" not in first
    second = example("train_and_resume.py", tmp_path / "parts.pt", 60)
    assert second == f"resumed at step 40\n{whole}"
    one, other = (torch.load(tmp_path / name) for name in ("whole.pt", "parts.pt"))
    assert one["step"] == other["step"] == 60
    for name, tensor in one["model"].items():
        assert torch.equal(tensor, other["model"][name])


class Attack:
    def __reduce__(self):
        return os.system, ("true",)


def test_a_registry_is_scanned(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    known = tmp_path / "known.json"
    torch.save({"weight": torch.ones(3)}, folder / "good.pt")
    words = folder, "--known", known
    assert example("scan_registry.py", *words) == "1 SAFE, 0 UNKNOWN, 0 UNSAFE\n"
    (folder / "bad.bin").write_bytes(pickle.dumps(Attack()))
    (folder / "odd.bin").write_bytes(b"\x89HDF\r\n\x1a\n")
    said = example("scan_registry.py", *words, code=1)
    assert said.startswith("UNSAFE bad.bin ")
    assert "\nUNKNOWN odd.bin " in said
    assert said.endswith("\n1 SAFE, 1 UNKNOWN, 1 UNSAFE\n")
    (folder / "bad.bin").unlink()
    example("scan_registry.py", *words, code=2)
    # Only SAFE files are recorded.
    (kept,) = json.loads(known.read_text()).values()
    assert [each.split()[1] for each in kept] == ["good.pt"]


def test_a_pipeline_reads_everything(tmp_path):
    for i in range(11):
        numpy.save(tmp_path / f"{i:02}.npy", numpy.full((8, 8, 3), i * 20, "u1"))
    said = example("data_pipeline.py", tmp_path, 3)
    assert said == "11 pictures of (8, 8, 3), mean 0.3922\n"  # 100 / 255


def test_rollout_workers_follow_the_trainer():
    said = example("rollout_workers.py", 40)
    found = re.fullmatch(r"lever 9 with ([01]\.\d+), from version (\d+)\n", said)
    assert found and float(found[1]) > 0.5 and int(found[2]) > 10, said


def test_a_service_converts(tmp_path):
    torch.save({"weight": torch.ones(4, 4)}, tmp_path / "model.pt")
    with serving("converter_service.py") as url:
        body = (tmp_path / "model.pt").read_bytes()
        answer = fetch(f"{url}?to=safetensors&dtype=bf16", body)
        loaded = haulway.load(answer)
        assert loaded["weight"].dtype == torch.bfloat16
        assert loaded["weight"].sum() == 16
        for bad in (pickle.dumps(Attack()), body[:200], b"\0" * 99):
            with pytest.raises(urllib.error.HTTPError) as error:
                fetch(url, bad)
            assert error.value.code == 422


def test_checkpoints_are_averaged(tmp_path):
    for i, name in enumerate(("a.pt", "b.safetensors", "c.pt")):
        haulway.save({"weight": torch.full((3,), float(i)),
                      "count": torch.tensor(7)}, tmp_path / name)
    said = example("average_checkpoints.py", "mean.safetensors", "a.pt",
                   "b.safetensors", "c.pt", cwd=tmp_path)
    assert said == "2 tensors of 3 checkpoints\n"
    mean = haulway.load(tmp_path / "mean.safetensors")
    assert mean["weight"].tolist() == [1, 1, 1] and mean["count"] == 7
    haulway.save({"other": torch.ones(1)}, tmp_path / "other.pt")
    example("average_checkpoints.py", "bad.pt", "a.pt", "other.pt",
            cwd=tmp_path, code=1)
    assert not (tmp_path / "bad.pt").exists()


def test_a_mirror_proves_its_copy(nginx, tmp_path, run):
    model = nginx.root / "model.safetensors"
    manifest = nginx.root / "model.safetensors.manifest.json"
    url, folder = f"http://127.0.0.1:{nginx.port}/{model.name}", tmp_path / "mirror"
    haulway.save({"weight": torch.ones(100)}, model)
    assert "digests" not in example("mirror_model.py", url, folder)
    manifest.write_text(run("manifest", model, "--json").stdout)
    assert "1 digests agree" in example("mirror_model.py", url, folder)
    haulway.save({"weight": torch.zeros(100)}, model)
    example("mirror_model.py", url, folder, code=1)
    # The old copy is still there.
    assert haulway.load(folder / model.name)["weight"].sum() == 100
    assert [path.name for path in folder.iterdir()] == [model.name]


def test_ranks_load_their_rows(tmp_path):
    haulway.save({"weight": torch.randn(64, 1024), "bias": torch.ones(64)},
                 tmp_path / "model.safetensors")
    said = example("load_ranks.py", tmp_path / "model.safetensors", 4)
    read = json.loads(re.fullmatch(r"2 tensors, 4 ranks read (.*) bytes\n", said)[1])
    whole = 64 * 1024 * 4
    assert all(one < whole / 3 for one in read)


def test_the_notebook_runs(tmp_path):
    notebook = json.loads((EXAMPLES / "look_inside.ipynb").read_text())
    assert notebook["nbformat"] == 4
    cells = ["".join(cell["source"]) for cell in notebook["cells"]
             if cell["cell_type"] == "code"]
    # A notebook shows the value of a cell's last line.
    text = "\n".join(cells[:-1]) + """
assert verified.ok and scanned.verdict == "SAFE"
assert len(checkpoint) == 4
assert haulway.manifest(path) == haulway.manifest("model.safetensors")
""" + cells[-1]
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("F32") == 4 and done.stdout.count("NaN 0") == 4
