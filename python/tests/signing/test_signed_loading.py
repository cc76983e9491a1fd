"""Models are compared with their signature in the pass that loads them."""

import io
import json
import os
import pickle
import shutil
import subprocess
import sys

import numpy
import pytest
import torch

import haulway
import haulway.delta
import haulway.safetensors
import haulway.torch
from http_server import FaultServer
from signed_models import flags, key

KEY = {"public_key": str(key("p256.pub"))}
FILES = 3


def values(number):
    # Larger than what is compared as soon as it is read.
    return {f"w{number}.{i}": numpy.full((400_000,), number * 10 + i, "f4")
            for i in range(2)}


def make(folder, shard_size=None, **options):
    """Makes a model of FILES files and an index, signed; returns its folder."""
    folder.mkdir()
    names = {}
    for number in range(FILES):
        name = f"model-{number + 1:05}-of-{FILES:05}.safetensors"
        haulway.save(values(number), folder / name)
        names.update(dict.fromkeys(values(number), name))
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": names}))
    (folder / "config.json").write_text("{}")
    haulway.sign(folder, folder / "model.sig", private_key=key("p256.pem"),
                 shard_size=shard_size, **options)
    return folder


@pytest.fixture(params=[None, 100_000], ids=["files", "shards"])
def model(request, tmp_path):
    return make(tmp_path / "model", request.param)


ALL = {name: value for number in range(FILES)
       for name, value in values(number).items()}


def same(found, wanted=None):
    wanted = ALL if wanted is None else wanted
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert numpy.array_equal(numpy.asarray(found[name]), value), name


def invert(path, at=-1):
    with open(path, "r+b") as file:
        file.seek(at, 2 if at < 0 else 0)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 255]))


def shard(model, number):
    return model / f"model-{number + 1:05}-of-{FILES:05}.safetensors"


def _open(path, **options):
    with haulway.open(path, "numpy", **options) as checkpoint:
        return dict(checkpoint)


def _load_into(path, **options):
    target = {name: numpy.zeros_like(value) for name, value in ALL.items()}
    haulway.load_into(target, path, **options)
    return target


def _shard(path, **options):
    halves = [haulway.shard(path, rank, 2, framework="numpy", **options)
              for rank in range(2)]
    return {name: numpy.concatenate([half[name] for half in halves])
            for name in halves[0]}


def _convert(path, **options):
    out = os.fspath(path) + ".npz"
    haulway.convert(path, out, **options)
    return haulway.load(out, "numpy")


CALLS = {
    "load": lambda path, **options: haulway.load(path, "numpy", **options),
    "load, torch": lambda path, **options: haulway.load(path, "torch", **options),
    "load, a part": lambda path, **options: haulway.load(
        path, "numpy", include="w*", **options),
    "load, shared": lambda path, **options: dict(haulway.load(
        path, "numpy", destination="shm", **options).object),
    "open": _open,
    "iterate": lambda path, **options: dict(
        haulway.iterate(path, "numpy", **options)),
    "load_into": _load_into,
    "shard": _shard,
    "convert": _convert,
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_takes_a_signature(model, name):
    call = CALLS[name]
    same(call(model, signature=model / "model.sig", **KEY))
    same(call(model, **KEY))  # model.sig in the folder.
    invert(shard(model, 1))
    with pytest.raises(haulway.MismatchError, match="00002-of-00003"):
        call(model, **KEY)
    with pytest.raises(haulway.SignatureError):
        call(model, public_key=str(key("other.pub")))


@pytest.mark.parametrize("name", CALLS)
def test_every_call_has_a_scope(model, name):
    """What is not read is compared on request; a missing file always is."""
    call = CALLS[name]
    invert(model / "config.json")
    is_whole = name in ("load", "load, torch", "load, shared", "load_into")
    for scope in ("read", "all", None):
        if scope == "read" or (scope is None and not is_whole):
            same(call(model, signature_scope=scope, **KEY))
        else:
            with pytest.raises(haulway.MismatchError, match="config.json"):
                call(model, signature_scope=scope, **KEY)
    os.remove(model / "config.json")
    with pytest.raises(haulway.MismatchError, match="config.json"):
        call(model, signature_scope="read", **KEY)


@pytest.mark.parametrize("verb", [
    ["load"], ["info"], ["ls"], ["cat", "w0.0"], ["convert", "out.npz"]])
def test_verbs_take_a_signature(run, model, verb):
    verb, *more = verb
    words = flags({"signature": model / "model.sig", **KEY})
    assert run(verb, model, *more, *words).returncode == 0
    run(verb, model, *more, *flags({**KEY, "public_key": key("p384.pub")}),
        code=1)
    run(verb, model, *more, "--public-key", model / "config.json", code=4)
    run(verb, model, *more, "--identity", "x", code=4)
    run(verb, model, *more, "--public-key", "missing.pub", code=2)
    invert(shard(model, 0), 5000)  # In w0.0, and in the header's shard.
    done = run(verb, model, *more, *words, "--json", code=1)
    error = json.loads(done.stdout.splitlines()[-1])["error"]
    assert error["code"] == "kMismatch" and "00001-of" in error["message"]


def test_the_environment_asks_for_a_signature(run, model, tmp_path):
    path = str(key("p256.pub"))
    env = {**os.environ, "HAULWAY_LOAD_REQUIRE_SIGNATURE": "1",
           "HAULWAY_LOAD_PUBLIC_KEY": path}
    assert run("load", model, env=env).returncode == 0
    haulway.save(values(0), tmp_path / "plain.safetensors")
    for verb in ("load", "info", "ls", "manifest", "plan", "map"):
        done = run(verb, "plain.safetensors", "--json", env=env, code=1)
        assert "plain.safetensors.sig" in done.stderr
    for words in ((model, "plain.safetensors"), ("plain.safetensors", model)):
        done = run("diff", *words, env=env, code=1)
        assert "plain.safetensors.sig" in done.stderr
    run("verify", "plain.safetensors", env=env)
    run("load", model, "--certificate-chain", key("root.pem"), env=env, code=1)
    invert(shard(model, 0))
    run("load", model, env=env, code=1)


def test_mappings_are_refused(run, model):
    for options in ({"io": "mmap"}, {"mmap": True}):
        with pytest.raises(haulway.InvalidArgumentError, match="mapping"):
            haulway.load(model, "numpy", **options, **KEY)
    run("load", model, "--io", "mmap", *flags(KEY), code=4)
    for way in ("pread", "snapshot", "direct", "uring"):
        try:
            same(haulway.load(model, "numpy", io=way, **KEY))
        except haulway.UnsupportedError as error:  # In a container.
            assert way == "uring" and "cannot set up io_uring" in str(error)


def test_what_was_compared_does_not_change(model):
    """The file changes after a tensor was read: other reads get what was
    compared, or an error."""
    with haulway.open(model, "numpy", **KEY) as checkpoint:
        first = checkpoint["w0.0"]
        for at in (-1, -1_700_000, 100):
            invert(shard(model, 0), at)
        assert (first == 0).all()
        try:
            assert (checkpoint["w0.1"] == 1).all()
        except haulway.MismatchError:
            pass


def test_a_header_that_changes_is_refused(model):
    with haulway.open(model, "numpy", **KEY) as checkpoint:
        data = shard(model, 0).read_bytes()
        shard(model, 0).write_bytes(
            data.replace(b'"w0.0"', b'"w0.9"', 1))
        with pytest.raises(haulway.MismatchError):
            checkpoint["w0.0"]
        same({name: checkpoint[name] for name in values(1)}, values(1))


def test_a_header_that_lies_is_refused(model):
    """Changed before opening, and mended before reading."""
    data = shard(model, 0).read_bytes()
    lie = data.replace(b'"F32"', b'"I32"', 1)
    shard(model, 0).write_bytes(lie)
    with haulway.open(model, "numpy", **KEY) as checkpoint:
        shard(model, 0).write_bytes(data)
        with pytest.raises(haulway.MismatchError, match="changed"):
            checkpoint["w0.0"]


PROGRAM = """
import sys, numpy, haulway
sys.path.insert(0, sys.argv[2])
way, key = sys.argv[3:5]
try:
    if way == "load":
        found = haulway.load(sys.argv[1], "numpy", public_key=key)
    elif way == "iterate":
        found = dict(haulway.iterate(sys.argv[1], "numpy", public_key=key))
    else:
        with haulway.open(sys.argv[1], "numpy", public_key=key) as model:
            found = dict(model)
except haulway.Error as error:
    print(error.code)
else:
    good = all((value == 10 * int(name[1]) + int(name[3])).all()
               for name, value in found.items())
    print("same" if good and len(found) == 6 else "OTHER")
"""


@pytest.mark.parametrize("way", ["load", "iterate", "open"])
@pytest.mark.parametrize("after", [False, True], ids=["changed", "mended"])
def test_a_file_that_changes_at_any_read_is_never_handed_out(
        preloaded, tmp_path, way, after):
    log = tmp_path / "calls"

    def loaded(at):
        model = tmp_path / f"model{at}"
        make(model, 1_000_000)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, model, os.path.dirname(__file__),
             way, key("p256.pub")], capture_output=True, text=True,
            env={**os.environ, "LD_PRELOAD": preloaded("change_at"),
                 "CHANGE_FILE": "00002-of-00003", "CHANGE_AT": str(at),
                 "CHANGE_LOG": str(log), "CHANGE_FROM": "9",
                 **({"CHANGE_AFTER": "1"} if after else {})})
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert loaded(0) == "same"
    count = int(log.read_text())
    assert count >= 3
    found = {at: loaded(at) for at in {1, 2, 3, count // 2, count - 1, count}}
    assert set(found.values()) <= {"kMismatch", "kCorrupt", "kTruncated", "same"}
    assert "kMismatch" in found.values()


def test_a_part_reads_the_shards_of_its_tensors(tmp_path):
    """The signature has a digest for each shard of a file."""
    model = make(tmp_path / "model", 100_000)
    for number in (0, 2):
        invert(shard(model, number))
    found = haulway.load(model, "numpy", include="w1.*", **KEY)
    same(found, values(1))
    invert(shard(model, 1))  # In the last tensor, w1.1.
    with haulway.open(model, "numpy", **KEY) as checkpoint:
        assert (checkpoint["w1.0"] == 10).all()
        with pytest.raises(haulway.MismatchError):
            checkpoint["w1.1"]


def test_files_are_compared_whole(tmp_path):
    model = make(tmp_path / "model")
    invert(shard(model, 1))
    with haulway.open(model, "numpy", **KEY) as checkpoint:
        with pytest.raises(haulway.MismatchError):
            checkpoint["w1.0"]


def test_a_policy_holds_for_every_call(tmp_path):
    model = make(tmp_path / "model")
    haulway.save(values(0), tmp_path / "a.safetensors")
    torch.save({"w": torch.zeros(3)}, tmp_path / "a.pt")
    data = (tmp_path / "a.safetensors").read_bytes()
    plain, pt = str(tmp_path / "a.safetensors"), str(tmp_path / "a.pt")
    calls = {
        **{name: lambda call=call: call(plain) for name, call in CALLS.items()},
        "bytes": lambda: haulway.load(data, "numpy"),
        "a file object": lambda: haulway.load(io.BytesIO(data), "numpy"),
        "an open file": lambda: haulway.load(open(plain, "rb"), "numpy"),
        "torch.load": lambda: haulway.torch.load(pt),
        "torch.load of a file": lambda: haulway.torch.load(open(pt, "rb")),
        "safe_open": lambda: haulway.safetensors.safe_open(plain, "np"),
        "load_file": lambda: haulway.safetensors.numpy.load_file(plain),
        "safetensors.load": lambda: haulway.safetensors.numpy.load(data),
        "an archive": lambda: haulway.archive.PyTorchFileReader(pt),
        "turned off": lambda: haulway.load(plain, require_signature=False),
        "follow": lambda: haulway.delta.follow(tmp_path),
        "apply": lambda: haulway.delta.apply(tmp_path, tmp_path),
        "diff": lambda: haulway.diff(plain, plain),
        "manifest": lambda: haulway.manifest(plain),
    }
    with haulway.config(load={"require_signature": True, **KEY}):
        for name, call in calls.items():
            with pytest.raises(haulway.SignatureError) as raised:
                call()
            assert "expected" in str(raised.value), name
        same(haulway.load(model, "numpy"))
        with haulway.safetensors.safe_open(shard(model, 1), "np") as file:
            same({name: file.get_tensor(name) for name in file.keys()}, values(1))
        assert haulway.scan(plain).safe and haulway.verify(plain)
        invert(shard(model, 1))
        with pytest.raises(haulway.MismatchError):
            with haulway.safetensors.safe_open(shard(model, 1), "np") as file:
                file.get_tensor("w1.0")
    with haulway.config(load={"require_signature": True}):
        with pytest.raises(haulway.SignatureError, match="who must have signed"):
            haulway.load(model, "numpy")


def test_the_verifier_nearest_to_the_call_counts(model):
    with haulway.config(load={"certificate_chain": [str(key("root.pem"))]}):
        same(haulway.load(model, "numpy", **KEY))
        with pytest.raises(haulway.SignatureError):
            haulway.load(model, "numpy")
        with pytest.raises(haulway.InvalidArgumentError, match="several"):
            haulway.load(model, "numpy", identity="x", **KEY)


def test_one_file_and_its_signature(tmp_path):
    path = tmp_path / "a.safetensors"
    haulway.save(values(0), path)
    haulway.sign(path, tmp_path / "a.safetensors.sig",
                 private_key=key("p256.pem"))
    same(haulway.load(path, "numpy", **KEY), values(0))
    os.rename(path, tmp_path / "b.safetensors")
    same(haulway.load(tmp_path / "b.safetensors", "numpy",
                      signature=tmp_path / "a.safetensors.sig", **KEY), values(0))
    with pytest.raises(haulway.SignatureError, match="not signed"):
        haulway.load(tmp_path / "b.safetensors", "numpy", **KEY)
    with pytest.raises(haulway.NotFoundError):
        haulway.load(tmp_path / "b.safetensors", signature="none.sig", **KEY)


def test_a_file_of_a_signed_folder(model):
    same(haulway.load(shard(model, 1), "numpy", **KEY), values(1))
    haulway.save(values(0), model.parent / "other.safetensors")
    with pytest.raises(haulway.MismatchError, match="outside"):
        haulway.load(model.parent / "other.safetensors", "numpy",
                     signature=model / "model.sig", **KEY)


def test_a_part_of_a_signed_pipeline(tmp_path, run):
    """A pipeline of diffusers is signed as a whole; its parts are opened."""
    pipeline = tmp_path / "pipe"
    for i, part in enumerate(("unet", "vae")):
        (pipeline / part).mkdir(parents=True)
        haulway.save(values(i), pipeline / part / "model.safetensors")
    haulway.save(values(0), pipeline / "model.safetensors")
    for signature in (pipeline / "model.sig", tmp_path / "away/model.sig"):
        signature.parent.mkdir(exist_ok=True)
        haulway.sign(pipeline, signature, private_key=key("p256.pem"))
    for name in ("unet", "unet/", "unet/model.safetensors"):
        same(haulway.load(f"{pipeline}/{name}", "numpy", **KEY), values(0))
        same(haulway.load(f"{pipeline}/{name}", "numpy", **KEY,
                          signature=pipeline / "model.sig"), values(0))
        run("verify", f"pipe/{name}", "--signature", "pipe/model.sig",
            "--public-key", KEY["public_key"])
    # In another folder, nobody says of what it is the signature.
    with pytest.raises(haulway.MismatchError, match="the signature lists it"):
        haulway.load(pipeline / "unet", "numpy", **KEY,
                     signature=tmp_path / "away/model.sig")
    with pytest.raises(haulway.SignatureError, match="not signed"):
        haulway.load(tmp_path / "away/..", "numpy", **KEY)
    shutil.copy(pipeline / "vae/model.safetensors", pipeline / "unet")
    for name in ("unet", "unet/model.safetensors"):
        with pytest.raises(haulway.MismatchError, match="unet/model.safetensors"):
            haulway.load(pipeline / name, "numpy", **KEY)
    # Another folder beside the parts is not of the pipeline.
    (pipeline / "lora").mkdir()
    haulway.save(values(0), pipeline / "lora/model.safetensors")
    with pytest.raises(haulway.SignatureError, match="not signed"):
        haulway.load(pipeline / "lora", "numpy", **KEY)


def test_an_open_checkpoint_can_be_pickled(model):
    with haulway.open(model, "numpy", **KEY) as checkpoint:
        again = pickle.loads(pickle.dumps(checkpoint))
    same(again)


@pytest.mark.parametrize(("name", "save"), [
    ("model.pt", lambda path: torch.save(
        {"w": torch.arange(600_000), "step": 3}, path)),
    ("model.npz", lambda path: haulway.save(
        {"w": numpy.arange(600_000), "n": numpy.ones(3)}, path)),
])
def test_other_formats(tmp_path, name, save):
    folder = tmp_path / "m"
    folder.mkdir()
    path = folder / name
    save(path)
    haulway.sign(folder, folder / "model.sig", private_key=key("p256.pem"))
    found = haulway.load(folder, "numpy", **KEY)
    assert (found["w"] == numpy.arange(600_000)).all()
    with haulway.open(path, "numpy", **KEY) as checkpoint:
        assert (checkpoint["w"] == numpy.arange(600_000)).all()
    invert(path, 3000)
    with pytest.raises(haulway.MismatchError):
        haulway.load(folder, "numpy", **KEY)


def test_a_dcp_directory(tmp_path):
    haulway.save(values(0), tmp_path / "a.safetensors")
    folder = tmp_path / "dcp"
    haulway.convert(tmp_path / "a.safetensors", folder, to="torch-dcp")
    haulway.sign(folder, folder / "model.sig", private_key=key("p256.pem"))
    same(haulway.load(folder, "numpy", **KEY), values(0))
    (part,) = folder.glob("*.distcp")
    invert(part, os.path.getsize(part) // 2)
    with pytest.raises(haulway.MismatchError, match=part.name):
        haulway.load(folder, "numpy", **KEY)


def test_a_url(model):
    def answer(request):
        path = model / request.target.lstrip("/")
        if not path.exists():
            return request.answer(404)
        request.serve(path.read_bytes())

    with FaultServer(answer) as server:
        url = server.url("/model.safetensors.index.json")
        same(haulway.load(url, "numpy", **KEY))
        same(dict(haulway.iterate(url, "numpy", **KEY)))
        invert(shard(model, 1))
        with pytest.raises(haulway.MismatchError, match="00002-of"):
            haulway.load(url, "numpy", **KEY)
        (model / "model.sig").unlink()
        with pytest.raises(haulway.SignatureError, match="not signed"):
            haulway.load(url, "numpy", **KEY)
