"""The haulway command on tensorizer files."""

import gzip
import json
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

import haulway
from haulway.tensorizer import TensorSerializer

GOLDEN = pathlib.Path(__file__).parents[2] / "testdata/golden/tensorizer"
KEY = bytes(range(32))


@pytest.fixture
def run(tmp_path):
    beside = pathlib.Path(sys.executable).with_name("haulway")
    found = str(beside) if beside.exists() else shutil.which("haulway")
    assert found, "pip install . brings the command"

    def run(*arguments, code=0, env=None):
        done = subprocess.run(
            [found, *map(str, arguments)], capture_output=True, text=True,
            cwd=tmp_path, env=env,
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        return done

    return run


@pytest.fixture
def golden(tmp_path):
    def unpack(name):
        path = tmp_path / f"{name}.tensors"
        path.write_bytes(gzip.decompress(
            (GOLDEN / f"{name}.tensors.gz").read_bytes()))
        return path
    return unpack


@pytest.fixture
def keyfile(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(KEY)
    return path


def test_ls(run, golden):
    done = run("ls", golden("2.11.1_v1_nested"), "--json")
    tensors = json.loads(done.stdout)["tensors"]
    assert [t["name"] for t in tensors] == ["a.0", "a.1.b", "é", "l.0"]
    assert tensors[0]["offset"] == 262298
    tensors = json.loads(run("ls", golden("2.11.1_v4_key_meta"), "--json").stdout)
    assert [(t["kind"], t["offset"]) for t in tensors["tensors"]] == [
        ("meta", None), ("dense", None)
    ]


def test_info(run, golden):
    found = json.loads(run("info", golden("pr170_f32"), "--json").stdout)
    assert found["format"] == "tensorizer"
    assert found["container"]["layout"] == "segments"
    assert found["container"]["encrypted"] is False


def test_cat_needs_the_key(run, golden, keyfile):
    path = golden("2.11.1_v3_key")
    assert "expected a key" in run("cat", path, "w", code=1).stderr
    done = run("cat", path, "w", "--keyfile", keyfile)
    assert done.stdout.split() == ["1", "2", "3"] or "1" in done.stdout


def test_verify(run, golden, keyfile):
    path = golden("2.11.1_v3_key")
    report = json.loads(run("verify", path, "--json").stdout)
    assert report["ok"] and len(report["unchecked"]) == 2
    report = json.loads(
        run("verify", path, "--json", "--keyfile", keyfile).stdout)
    assert report["ok"] and len(report["unchecked"]) == 1
    data = bytearray(path.read_bytes())
    data[262361] ^= 1
    path.write_bytes(data)
    done = run("verify", path, "--json", "--keyfile", keyfile, code=1)
    assert json.loads(done.stdout)["findings"][0]["code"] == "kAuth"


def test_encrypt_and_decrypt(run, golden, keyfile, tmp_path):
    plain = golden("2.11.1_v1_module")
    secret, back = tmp_path / "secret.tensors", tmp_path / "back.tensors"
    done = run("encrypt", plain, secret, "--keyfile", keyfile, "--json")
    found = json.loads(done.stdout)
    assert found["tensors"] == 5
    assert found["bytes"] == secret.stat().st_size
    assert haulway.verify(secret, key=KEY).ok
    run("decrypt", secret, back, "--keyfile", keyfile)
    assert back.read_bytes() == plain.read_bytes()
    # An encrypted file is not encrypted again unread.
    done = run("encrypt", secret, back, "--keyfile", keyfile, code=1)
    assert "expected a key, found none" in done.stderr
    assert back.read_bytes() == plain.read_bytes()


def test_keys_come_from_files_and_the_environment(run, golden, tmp_path):
    plain = golden("2.11.1_v1_f32")
    secret, back = tmp_path / "secret.tensors", tmp_path / "back.tensors"
    phrase = tmp_path / "phrase"
    phrase.write_text("correct horse\n")
    run("encrypt", plain, secret, "--passphrase-file", phrase)
    run("decrypt", secret, back, "--passphrase-file", phrase)
    assert back.read_bytes() == plain.read_bytes()
    assert haulway.load(secret, passphrase="correct horse")["w"][0] == 1

    environment = {"THE_KEY": KEY.hex()}
    run("encrypt", plain, secret, "--key-env", "THE_KEY", env=environment)
    assert haulway.load(secret, key=KEY)["w"][0] == 1
    run("encrypt", plain, secret, code=4)
    run("encrypt", plain, secret, "--keyfile", phrase, code=2)
    done = run("decrypt", secret, back, "--passphrase-file", phrase, code=1)
    assert "horse" not in done.stderr


def test_load(run, tmp_path):
    path = tmp_path / "x.tensors"
    serializer = TensorSerializer(path)
    serializer.write_state_dict({"w": torch.arange(1_000_000)})
    serializer.close()
    done = run("load", path, "--verify", "--json", "--no-progress")
    assert json.loads(done.stdout)["tensor_bytes"] == 8_000_000
