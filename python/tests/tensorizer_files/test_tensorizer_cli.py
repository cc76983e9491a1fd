"""The haulway command on tensorizer files."""

import json
import shutil
import subprocess

import pytest
import torch

import haulway
from haulway.tensorizer import TensorSerializer

KEY = bytes(range(32))


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
    # Encrypting an encrypted file again needs its key.
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


def test_what_was_not_checked_is_said(run, golden, keyfile, tmp_path):
    path = golden("2.11.1_v3_key")
    report = json.loads(run("verify", path, "--json").stdout)
    assert [part["needs_key"] for part in report["unchecked"]] == [False, True]
    done = run("verify", path)
    assert "not checked without the key: 1 part, 12 B" in done.stdout
    done = run("verify", path, "--keyfile", keyfile)
    assert "without the key" not in done.stdout
    # Every part of a file in segments has a checksum.
    assert "0 B without a checksum" in run(
        "verify", golden("segments_f32")).stdout


@pytest.mark.parametrize("flags, with_key, without", [
    ([], "checked", "not checked"),
    (["--authenticate"], "checked", "not checked"),
    (["--no-authenticate"], "none", "none"),
])
def test_metadata_is_authenticated_as_asked(
    run, golden, keyfile, tmp_path, flags, with_key, without
):
    secret = tmp_path / "secret.tensors"
    run("encrypt", golden("2.11.1_v1_module"), secret, "--keyfile", keyfile,
        *flags)
    for key, expected in ((["--keyfile", keyfile], with_key), ([], without)):
        info = json.loads(run("info", secret, *key, "--json").stdout)
        assert info["container"]["authentication"] == expected
        report = json.loads(run("verify", secret, *key, "--json").stdout)
        assert report["authentication"] == expected
        done = run("verify", secret, *key)
        assert f"authentication of the metadata: {expected}" in done.stdout
        assert run("ls", secret, *key, "--json").stdout
        with haulway.open(secret, key=KEY if key else None) as checkpoint:
            assert checkpoint.container["authentication"] == expected
        found = haulway.verify(secret, key=KEY if key else None)
        assert found.authentication == expected


def test_authentication_flags_exclude_each_other(run, golden, keyfile):
    path = golden("2.11.1_v1_f32")
    run("encrypt", path, "x", "--keyfile", keyfile, "--authenticate",
        "--no-authenticate", code=4)
    # Segments are edited in place, and have no such record.
    done = run("encrypt", golden("segments_f32"), "x", "--keyfile", keyfile,
               "--authenticate", code=2)
    assert "metadata in segments is not authenticated" in done.stderr
    report = json.loads(run("verify", path, "--json").stdout)
    assert report["authentication"] is None


def test_a_changed_name_is_told_to_who_has_the_key(
    run, golden, keyfile, tmp_path
):
    secret = tmp_path / "secret.tensors"
    run("encrypt", golden("2.11.1_v1_f32"), secret, "--keyfile", keyfile)
    data = bytearray(secret.read_bytes())
    for at in (75, data.index(b"\x01\x00w\x03<f4", 262217) + 2):
        assert data[at] == ord("w")
        data[at] = ord("v")
    secret.write_bytes(data)
    assert json.loads(run("ls", secret, "--json").stdout)["tensors"][0][
        "name"] == "v"
    for verb in ("ls", "info", "verify", "load"):
        done = run(verb, secret, "--keyfile", keyfile, code=1)
        assert "metadata is not authentic" in done.stderr + done.stdout


@pytest.mark.parametrize("name", [
    "segments_notes", "segments_key", "segments_full", "pr170_f32",
    "pr170_key_meta", "2.11.1_v4_meta",
])
def test_files_in_segments_stay_so(run, golden, keyfile, tmp_path, name):
    path, out = golden(name), tmp_path / "out.tensors"
    key = ["--keyfile", keyfile]
    if "key" in name:
        run("decrypt", path, out, *key)
        key = []
    else:
        run("encrypt", path, out, *key)
    old, new = (
        json.loads(run("info", file, "--json").stdout) for file in (path, out)
    )
    for fact in ("layout", "segments_version", "tensors", "meta_tensors"):
        assert new["container"].get(fact) == old["container"].get(fact)
    assert new["container"]["encrypted"] != old["container"]["encrypted"]
    assert new.get("metadata") == old.get("metadata")
    assert json.loads(run("verify", out, *key, "--json").stdout)["ok"]


def test_two_files(run, tmp_path, keyfile):
    path, out = tmp_path / "x.tensors", tmp_path / "y.tensors"
    haulway.save({"w": torch.arange(5.0), "m": torch.empty(2, device="meta")},
                 path, layout="segments", data_file="x.data")
    info = json.loads(run("info", path, "--json").stdout)
    assert info["container"]["data_file"] == "x.data"
    tensors = json.loads(run("ls", path, "--json").stdout)["tensors"]
    assert [(t["file"], t["offset"]) for t in tensors] == [
        ("x.data", 0), ("x.data", None)
    ]
    assert json.loads(run("verify", path, "--json").stdout)["ok"]
    assert "3" in run("cat", path, "w").stdout
    run("load", path, "--verify")
    run("encrypt", path, out, "--keyfile", keyfile)
    assert torch.equal(haulway.load(out, key=KEY)["w"], torch.arange(5.0))
    (tmp_path / "x.data").write_bytes(b"")
    for verb in ("ls", "info", "load"):
        done = run(verb, path, code=1)
        assert "data file is too short" in done.stderr
    (tmp_path / "x.data").unlink()
    done = run("ls", path, code=2)
    assert "data file 'x.data'" in done.stderr


@pytest.mark.parametrize("name", ["2.11.1_v1_nested", "segments_f32"])
def test_a_file_that_was_cut_is_found_without_hashing(run, golden, name):
    path = golden(name)
    data = path.read_bytes()
    for size in (len(data) - 1, len(data) - 9, len(data) - 20, 100, 5, 0):
        path.write_bytes(data[:size])
        done = run("ls", path, code=1 if size >= 5 else None)
        assert done.stderr.count("\n") == 1
        if size > 5:
            assert run("verify", path, code=1).stdout.startswith("FAILED")
            found = json.loads(run("verify", path, "--json", code=1).stdout)
            assert found["findings"][0]["code"] == "kTruncated"


def test_ls_says_why_there_is_no_offset(run, golden):
    listed = run("ls", golden("2.11.1_v4_key_meta")).stdout.splitlines()
    assert listed[1].split()[-2:] == ["meta", "m"]
    assert listed[2].split()[-2:] == ["encrypted", "w"]


def test_no_message_shows_a_key(run, golden, tmp_path):
    secrets = {"key": KEY.hex(), "phrase": "correct horse battery"}
    for name, text in secrets.items():
        (tmp_path / name).write_text(text)
    wrong = bytes(reversed(KEY)).hex()
    (tmp_path / "wrong").write_text(wrong)
    (tmp_path / "odd").write_text(wrong[:-1])
    path = golden("2.11.1_v3_key")
    out = tmp_path / "out"
    said = ""
    for where in (["--keyfile", "key"], ["--keyfile", "wrong"],
                  ["--keyfile", "odd"], ["--passphrase-file", "phrase"],
                  ["--key-env", "SECRET"]):
        for command in (["verify", path], ["info", path], ["cat", path, "w"],
                        ["load", path], ["decrypt", path, out],
                        ["ls", path], ["encrypt", path, out]):
            for json_too in ([], ["--json"]):
                done = run(*command, *where, *json_too, code=None,
                           env={"SECRET": wrong})
                said += done.stdout + done.stderr
    for secret in (*secrets.values(), wrong, wrong[:-1]):
        assert secret not in said
    # The command line never accepts a key itself.
    for option in ("--key", "--passphrase"):
        done = run("decrypt", path, out, option, wrong, code=4)
    assert wrong not in run("decrypt", path, out, "--key=" + wrong,
                            code=4).stderr


def test_progress_on_a_terminal(run, command, tmp_path, keyfile):
    script = shutil.which("script")
    assert script, "util-linux brings it"
    path = tmp_path / "x.tensors"
    haulway.save({"w": torch.zeros(3_000_000)}, path)
    done = subprocess.run(
        [script, "-qec", f"{command} verify {path}", "/dev/null"],
        capture_output=True, text=True, env={"TERM": "xterm", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0
    assert "100% | 11.4 MiB/11.4 MiB" in done.stdout
    # The progress line is erased at the end.
    assert done.stdout.index("\x1b[K") < done.stdout.index("OK")
    plain = run("verify", path)
    assert "%" not in plain.stdout + plain.stderr
