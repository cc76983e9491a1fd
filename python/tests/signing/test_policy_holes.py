"""What must not switch the check of signatures off."""

import io
import shutil

import numpy
import pytest
import torch

import haulway
import haulway.torch
import signed_models

POLICY = {"require_signature": True, "public_key": str(signed_models.key("p256.pub"))}


@pytest.fixture
def unsigned(tmp_path):
    path = tmp_path / "m.pt"
    haulway.save({"w": numpy.ones(3)}, path)
    return path


@pytest.mark.parametrize("words", [
    ["--public-key", ""], ["--signature", ""], ["--identity", ""],
    ["--certificate-chain", ""], ["--trusted-root", ""], ["--issuer", ""],
], ids=" ".join)
@pytest.mark.parametrize("verb", ["load", "cat", "verify", "convert"])
def test_an_empty_value_is_refused(run, unsigned, tmp_path, verb, words):
    more = {"cat": ["w"], "convert": [tmp_path / "x.npz"]}.get(verb, [])
    done = run(verb, unsigned, *more, *words, code=4)
    assert words[0] in done.stderr and not (tmp_path / "x.npz").exists()


@pytest.mark.parametrize("word", ["1", "True", "YES", "on", "y", "enabled", " 1"])
def test_a_word_that_nobody_knows_requires_a_signature(run, unsigned, word,
                                                       monkeypatch):
    monkeypatch.setenv("HAULWAY_LOAD_REQUIRE_SIGNATURE", word)
    assert "signature is required" in run("load", unsigned, code=1).stderr


@pytest.mark.parametrize("word", ["0", "False", "no", "OFF", ""])
def test_a_word_that_says_no_requires_none(run, unsigned, word, monkeypatch):
    monkeypatch.setenv("HAULWAY_LOAD_REQUIRE_SIGNATURE", word)
    run("load", unsigned)


def test_in_torchs_place_nothing_is_left_to_torch(unsigned, tmp_path):
    model = tmp_path / "signed.pt"
    shutil.copy(unsigned, model)
    haulway.sign(model, f"{model}.sig", private_key=signed_models.key("p256.pem"))
    with haulway.torch.install() as done:
        with haulway.config(load=POLICY):
            assert torch.load(model)["w"].tolist() == [1, 1, 1]
            before = done.counts["torch_load"]
            with pytest.raises(haulway.SignatureError):
                torch.load(unsigned)
            with pytest.raises(haulway.SignatureError), open(unsigned, "rb") as file:
                torch.load(file)
            with pytest.raises(haulway.SignatureError):
                torch.load(io.BytesIO(unsigned.read_bytes()))
            data = bytearray(model.read_bytes())
            data[-30] ^= 1
            model.write_bytes(data)
            with pytest.raises(haulway.Error, match="signed"):
                torch.load(model, weights_only=False)
            assert done.counts["torch_load"] == before
        assert torch.load(unsigned)["w"].tolist() == [1, 1, 1]
