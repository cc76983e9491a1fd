"""Hostile files and names must not make the workbench's verbs allocate too
much, hide losses, or show a secret."""

import resource
import struct
import subprocess
import zipfile
import zlib

import pytest
import torch

import haulway
from http_server import FaultServer


@pytest.mark.parametrize("words", [
    ["diff", "h.pt", "h.pt"], ["manifest", "h.pt"], ["ls", "--stats", "h.pt"],
    ["convert", "h.pt", "o.safetensors"], ["repair", "h.pt", "o.safetensors"],
], ids=lambda words: words[0])
def test_strides_of_zero_claim_no_exabyte(tmp_path, command, words):
    huge = torch.zeros(1).expand(1 << 58)
    torch.save({"huge": huge, "sound": torch.ones(2)}, tmp_path / "h.pt")
    limit = 1 << 30
    done = subprocess.run(
        [command, *words], cwd=tmp_path, timeout=60, capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_AS, (limit, limit)))
    repairs = words[0] == "repair"
    assert done.returncode == 1, done.stderr
    assert "repeats a storage of 4" in done.stdout + done.stderr
    assert (tmp_path / "o.safetensors").exists() == repairs


@pytest.mark.parametrize("words", [
    ["diff", "URL", "URL"], ["manifest", "URL"], ["repair", "URL", "o.pt"],
    ["verify", "URL"], ["ls", "--stats", "URL", "URL"],
], ids=lambda words: words[0])
def test_no_secret_of_a_url_is_shown(tmp_path, command, words):
    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt")
    held = (tmp_path / "m.pt").read_bytes()
    with FaultServer(lambda request: request.serve(held)) as server:
        url = server.url("/m.pt?query=secret").replace("//", "//user:password@")
        for options in [], ["--json"]:
            done = subprocess.run(
                [command, *(url if word == "URL" else word for word in words),
                 *options], cwd=tmp_path, timeout=60, capture_output=True,
                text=True)
            assert done.returncode == 0, done.stderr
            said = done.stdout + done.stderr
            assert "password" not in said and "secret" not in said, said
    done = subprocess.run(  # The server has ended.
        [command, *(url if word == "URL" else word for word in words)],
        cwd=tmp_path, timeout=60, capture_output=True, text=True)
    assert done.returncode == 2
    assert "127.0.0.1" in done.stderr
    assert "password" not in done.stderr and "secret" not in done.stderr


def test_parts_of_sparse_and_quantized_tensors_are_lost(tmp_path):
    """Like convert, repair refuses them: a part alone is another tensor."""
    torch.save({
        "sparse": torch.eye(3).to_sparse(), "sound": torch.ones(2),
        "quantized": torch.quantize_per_tensor(
            torch.ones(2), 0.1, 0, torch.qint8),
    }, tmp_path / "a.pt")
    report = haulway.repair(tmp_path / "a.pt", tmp_path / "o.pt")
    assert report.kept == ["sound"]
    lost = {one.name: one.why for one in report.lost}
    assert any(name.startswith("sparse.") for name in lost)
    for name, why in lost.items():
        kind = "quantized" if name == "quantized" else "sparse or nested"
        assert kind in why
    assert sorted(haulway.load(tmp_path / "o.pt", "torch")) == ["sound"]


def test_cat_says_what_is_wrong_with_a_record(tmp_path, command, run):
    torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [command, "cat", "a.pt", "version", "--raw"], cwd=tmp_path,
            stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "No space left" in done.stderr and "no tensor" not in done.stderr
    held = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "b.pt").write_bytes(held.replace(b"little", b"litt1e"))
    told = run("cat", "b.pt", "byteorder", "--raw", code=1).stderr
    assert "CRC" in told and "no tensor" not in told


def test_any_number_may_be_asked_of_cat(tmp_path, run):
    torch.save({"w": torch.arange(6).reshape(2, 3)}, tmp_path / "a.pt")
    most = (1 << 64) - 1
    said = run("cat", "a.pt", "w", "--head", most).stdout
    assert said == run("cat", "a.pt", "w", "--head", 6).stdout
    assert "5" in said


@pytest.mark.parametrize("signature", [b"PK\x07\x08", b""], ids=["signed", "bare"])
@pytest.mark.parametrize("numbers", ["<II", "<QQ"], ids=["32", "64"])
def test_descriptors_after_known_sizes_end_nothing(tmp_path, signature, numbers):
    """Bit 3 of a record whose header has its sizes: the next record follows
    both the data and the descriptor."""
    made = {f"w{i}": torch.full((64,), float(i)) for i in range(5)}
    torch.save(made, tmp_path / "a.pt")
    held = b""
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        for name in archive.namelist():
            data, text = archive.read(name), name.encode()
            held += struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 8, 0, 0, 0, 0,
                                len(data), len(data), len(text), 0)
            held += text + data + signature
            held += struct.pack("<I", zlib.crc32(data))
            held += struct.pack(numbers, len(data), len(data))
    (tmp_path / "cut.pt").write_bytes(held)
    report = haulway.repair(tmp_path / "cut.pt", tmp_path / "o.pt")
    assert sorted(report.kept) == sorted(made), report
    found = haulway.load(tmp_path / "o.pt", "torch")
    assert all(torch.equal(found[name], made[name]) for name in made)
