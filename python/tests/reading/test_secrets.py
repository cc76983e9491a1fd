"""Keys, passphrases and tokens: every call that takes one checks its type and
length, names the wrong option, and does not show its value."""

import inspect
import io
import os

import numpy
import pytest

import haulway
import haulway.tensorizer
import signed_models
from haulway import _options
from haulway.tensorizer import (
    DecryptionParams,
    EncryptionParams,
    TensorDeserializer,
    TensorSerializer,
    stream_io,
)

KEY = bytes(range(32))
DATA = {"a": numpy.arange(6, dtype=numpy.float32)}

# Invalid keys, passphrases and tokens, and their messages. Each that is long
# enough contains "SECRET"; no message does.
WRONG = {
    "key": [
        (32, "key is int: expected 32 bytes, or 64 hexadecimal digits"),
        (True, "key is bool: expected 32 bytes"),
        (3.5, "key is float: expected 32 bytes"),
        (["SECRET"], "key is list: expected 32 bytes"),
        (object(), "key is object: expected 32 bytes"),
        (b"", "key has a wrong length: expected 32 bytes, found 0"),
        (b"SECRET", "key has a wrong length: expected 32 bytes, found 6"),
        (KEY + b"SECRET", "key has a wrong length: .* found 38"),
        (bytearray(31), "key has a wrong length: .* found 31"),
        (memoryview(bytes(33)), "key has a wrong length: .* found 33"),
        ("", "key has a wrong length: .* found 0"),
        ("00" * 31, "key has a wrong length: .* found 31"),
        ("SECRET", "key: expected 32 bytes, or 64 hexadecimal digits"),
    ],
    "passphrase": [
        (3, "passphrase is int: expected a str or bytes"),
        (True, "passphrase is bool: expected a str or bytes"),
        (["SECRET"], "passphrase is list: expected a str or bytes"),
        (object(), "passphrase is object: expected a str or bytes"),
        ("", "passphrase is empty: expected a str or bytes"),
        (b"", "passphrase is empty: expected a str or bytes"),
        ("SECRET\ud800", "passphrase: expected text that 'utf-8' can encode"),
    ],
    "bearer_token": [
        (3, "bearer_token is int: expected a str"),
        (b"SECRET", "bearer_token is bytes: expected a str"),
        ("", "bearer_token is empty: expected a token"),
        ("SECRET\r\nHost: x", "bearer_token: expected one line"),
        ("SECRET\0", "bearer_token: expected one line"),
        ("SECRET\u00e9", "bearer_token: expected one line"),
    ],
    "proxy": [
        (3, "proxy is int: expected a str"),
        (b"http://u:SECRET@host", "proxy is bytes: expected a str"),
    ],
    "headers": [
        (3, "headers is int: expected a dict of headers"),
        ({"X-Auth": b"SECRET"}, "headers holds what is no str"),
        ("SECRET", "headers: expected lines of the form NAME: VALUE"),
    ],
}

FILE, OUT, URL = "x.tensors", "new.tensors", "http://127.0.0.1:1/x.tensors"
# Every call of haulway.* that takes secrets, with one.
READS = {
    "convert": lambda **o: haulway.convert(FILE, OUT, **o),
    "diff": lambda **o: haulway.diff(FILE, FILE, **o),
    "edit": lambda **o: haulway.edit(FILE, set={"a": "b"}, **o),
    "get": lambda **o: haulway.get(URL, OUT, **o),
    "iterate": lambda **o: list(haulway.iterate(FILE, "numpy", **o)),
    "load": lambda **o: haulway.load(FILE, "numpy", **o),
    "load_into": lambda **o: haulway.load_into({}, FILE, **o),
    "manifest": lambda **o: haulway.manifest(FILE, **o),
    "open": lambda **o: haulway.open(FILE, "numpy", **o),
    "publish_file": lambda **o: haulway.publish_file(
        f"secrets-{os.getpid()}", FILE, framework="numpy", **o).close(),
    "plan_reads": lambda **o: haulway.plan_reads(FILE, **o),
    "repair": lambda **o: haulway.repair(FILE, OUT, **o),
    "scan": lambda **o: haulway.scan(FILE, **o),
    "shard": lambda **o: haulway.shard(FILE, 0, 1, framework="numpy", **o),
    "tensor_stats": lambda **o: haulway.tensor_stats(FILE, **o),
    "verify": lambda **o: haulway.verify(FILE, **o),
    "torch.load": lambda **o: _torch().load(FILE, **o),
}
WRITES = {
    "save": lambda **o: haulway.save(DATA, OUT, **o),
    "save_async": lambda **o: haulway.save_async(DATA, OUT, **o).result(),
    "save to a file object": lambda **o: haulway.save(
        DATA, io.BytesIO(), "tensorizer", **o),
    "save segments": lambda **o: haulway.save(
        DATA, OUT, layout="segments", **o),
    "append": lambda **o: haulway.edit("segments.tensors", append=DATA, **o),
}
REMOTE_ONLY = {
    "put": lambda **o: haulway.put(FILE, OUT, **o),
    "writer": lambda **o: haulway.writer("new.safetensors", **o),
    "latest": lambda **o: haulway.latest("run", **o),
    "prune": lambda **o: haulway.prune("run", 1, **o),
    "fsspec": lambda **o: _filesystem(**o),
}
# Options of the whole process and of a block.
CONFIGURED = {
    "config": lambda **o: haulway.config(load=o),
    "config.load": lambda **o: [
        setattr(haulway.config.load, *one) for one in o.items()],
}
SIGNS = {
    "sign": lambda **o: haulway.sign(
        FILE, "new.sig", private_key=signed_models.key("p256.pem"), **o),
}
TAKES = {"key": {**READS, **WRITES, **CONFIGURED},
         "passphrase": {**READS, **WRITES, **SIGNS, **CONFIGURED},
         "bearer_token": {**READS, **WRITES, **REMOTE_ONLY, **CONFIGURED}}
TAKES["proxy"] = TAKES["headers"] = TAKES["bearer_token"]


def _torch():
    import haulway.torch

    return haulway.torch


def _filesystem(**options):
    from haulway.fsspec import HaulwayFileSystem

    return HaulwayFileSystem(skip_instance_cache=True, **options)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    haulway.save(DATA, FILE, key=KEY)
    haulway.save(DATA, "segments.tensors", key=KEY, layout="segments")
    return tmp_path


def refused(call, words):
    with pytest.raises(haulway.InvalidArgumentError, match=words) as caught:
        call()
    shown, error = str(caught.value), caught.value
    is_type = " is " in shown and "empty" not in shown
    assert isinstance(error, haulway.ArgumentTypeError) == is_type
    while error is not None:  # The exception's causes must not show it, either.
        assert "SECRET" not in str(error)
        error = error.__cause__ or (
            None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize(
    "option, call",
    [(option, call) for option, calls in TAKES.items() for call in calls],
)
def test_wrong_secrets_are_refused_by_name(option, call, files):
    before = sorted(os.listdir())
    sizes = [os.path.getsize(name) for name in before]
    prefix = "" if call not in CONFIGURED else "load."
    for value, words in WRONG[option]:
        refused(lambda value=value: TAKES[option][call](**{option: value}),
                f"^{prefix}{words}")
    assert sorted(os.listdir()) == before
    assert [os.path.getsize(name) for name in before] == sizes


def test_every_call_that_takes_a_secret_is_tried():
    secrets = {name for name, option in _options.READING.items()
               if option.secret}
    assert secrets == TAKES.keys() == WRONG.keys()
    tried = {name for calls in TAKES.values() for name in calls}
    for name in haulway.__all__:
        call = getattr(haulway, name)
        if inspect.isfunction(call) and any(
            f"    {secret}: " in (call.__doc__ or "")
            or secret in inspect.signature(call).parameters
            for secret in secrets
        ):
            assert name in tried, name


@pytest.mark.parametrize("call", [*READS, *WRITES])
def test_a_key_beside_a_passphrase_is_refused(call, files):
    refused(lambda: {**READS, **WRITES}[call](key=KEY, passphrase="p"),
            "^both a key and a passphrase: expected one$")


@pytest.mark.parametrize("call", ["save", "save_async", "save segments"])
@pytest.mark.parametrize("given", [
    KEY, bytearray(KEY), memoryview(KEY), KEY.hex(), KEY.hex().upper(),
    KEY.hex(" "),
])
def test_saving_takes_the_keys_that_loading_takes(call, given, files):
    WRITES[call](key=given)
    for key in (KEY, given):
        assert (haulway.load(OUT, "numpy", key=key)["a"] == DATA["a"]).all()
    with pytest.raises(haulway.DecryptError):
        haulway.load(OUT, "numpy", key=bytes(32))
    params = EncryptionParams(given)
    assert params.key == DecryptionParams.from_key(given)._key == KEY


@pytest.mark.parametrize("given", [
    "wörd", "wörd".encode(), bytearray("wörd".encode()),
    memoryview("wörd".encode()),
])
def test_saving_takes_the_passphrases_that_loading_takes(given, files):
    haulway.save(DATA, OUT, passphrase=given)
    for word in ("wörd", given):
        found = haulway.load(OUT, "numpy", passphrase=word)
        assert (found["a"] == DATA["a"]).all()


@pytest.mark.parametrize("make", [
    EncryptionParams, DecryptionParams.from_key,
])
def test_keys_of_the_tensorizer_package_are_checked(make):
    for value, words in [*WRONG["key"], (None, "key is NoneType")]:
        refused(lambda value=value: make(value), f"^{words}")


@pytest.mark.parametrize("make", [
    EncryptionParams.from_string, DecryptionParams.from_string,
])
def test_passphrases_of_the_tensorizer_package_are_checked(make):
    for value, words in [*WRONG["passphrase"],
                         (None, "passphrase is NoneType")]:
        refused(lambda value=value: make(value),
                "^" + words.replace("passphrase", "source"))
    refused(lambda: make("SECRET", encoding="no such"),
            "^source: expected text that 'no such' can encode")
    refused(lambda: make("SECRETé", encoding="ascii"), "^source: expected text")


@pytest.mark.parametrize("salt, words", [
    (3, "salt is int: expected 16 bytes"),
    (b"SECRET", "salt has a wrong length: expected 16 bytes, found 6"),
    ("SECRET", "salt has a wrong length: expected 16 bytes, found 6"),
])
def test_salts_are_checked(salt, words):
    refused(lambda: EncryptionParams.from_string("p", salt=salt), f"^{words}")


@pytest.mark.parametrize("name", ["opslimit", "memlimit"])
@pytest.mark.parametrize("value", ["much", 1.5, -1, [3]])
def test_costs_are_checked(name, value):
    refused(lambda: EncryptionParams.from_string("p", **{name: value}),
            f"^{name}: expected a number")


def test_a_key_that_was_replaced_is_checked_again(files):
    params = EncryptionParams(KEY)
    params.key = 32
    refused(lambda: TensorSerializer(OUT, encryption=params),
            "^encryption.key is int: expected 32 bytes")
    params.key = KEY[:31]
    refused(lambda: TensorSerializer(OUT, encryption=params),
            "^encryption.key has a wrong length")
    assert not os.path.exists(OUT)
    for wrong in (KEY, "p", 3, DecryptionParams.from_key(KEY)):
        with pytest.raises(TypeError, match="encryption"):
            TensorSerializer(OUT, encryption=wrong)
    for wrong in (KEY, "p", 3, EncryptionParams(KEY)):
        with pytest.raises(TypeError, match="encryption"):
            TensorDeserializer(FILE, encryption=wrong)


@pytest.mark.parametrize("name", [
    "s3_access_key_id", "s3_secret_access_key", "s3_endpoint",
    "s3_region_name",
])
@pytest.mark.parametrize("value", [3, b"SECRET", ["SECRET"]])
def test_credentials_of_streams_are_checked(name, value, files):
    known = {"s3_access_key_id": "k", "s3_secret_access_key": "s"}
    words = f"^{name} is {type(value).__name__}: expected a str"
    for call, first in (
        (stream_io.open_stream, ("s3://bucket/key",)),
        (stream_io.s3_download, ("s3://bucket/key",)),
        (stream_io.s3_upload, (FILE, "s3://bucket/key")),
    ):
        refused(lambda call=call, first=first: call(
            *first, **{**known, name: value}), words)


def test_an_empty_variable_is_one_that_is_not_set(files, monkeypatch):
    for name in ("KEY", "PASSPHRASE", "BEARER_TOKEN", "CACHE_DIR"):
        monkeypatch.setenv(f"HAULWAY_LOAD_{name}", "")
        assert getattr(haulway.config.load, name.lower()) is None
    monkeypatch.setenv("HAULWAY_LOAD_KEY", KEY.hex())
    assert (haulway.load(FILE, "numpy")["a"] == DATA["a"]).all()
    monkeypatch.setenv("HAULWAY_LOAD_KEY", "SECRET")
    refused(lambda: haulway.load(FILE, "numpy"), "^HAULWAY_LOAD_KEY: expected")


# The command: an empty name comes from an unset variable of a script.
@pytest.mark.parametrize("option", ["--keyfile", "--passphrase-file",
                                    "--key-env"])
def test_the_command_refuses_an_empty_name(option, run, files):
    haulway.save(DATA, "plain.tensors")
    done = run("encrypt", "plain.tensors", OUT, option, "", code=4)
    assert option in done.stderr
    assert not os.path.exists(OUT)


@pytest.mark.parametrize("content, option, words", [
    (b"", "--keyfile", "neither 32 bytes nor 64 hexadecimal digits"),
    (b"k" * 31, "--keyfile", "neither 32 bytes nor 64 hexadecimal digits"),
    (b"0" * 63, "--keyfile", "neither 32 bytes nor 64 hexadecimal digits"),
    (b"", "--passphrase-file", "passphrase is empty"),
    (b"\n", "--passphrase-file", "passphrase is empty"),
    (b"k" * 70_000, "--keyfile", "too long"),
    (b"k" * 70_000, "--passphrase-file", "too long"),
    (None, "--keyfile", "too long"),  # A device without an end.
])
def test_the_command_checks_files_with_secrets(content, option, words, run,
                                               files):
    haulway.save(DATA, "plain.tensors")
    name = "/dev/zero"
    if content is not None:
        name = "secret"
        (files / name).write_bytes(content)
    done = run("encrypt", "plain.tensors", OUT, option, name, code=None,
               timeout=60)
    assert done.returncode not in (0, -6, -11)
    assert words in done.stderr
    assert not os.path.exists(OUT)
