"""torch.save and torch.load through tensorizer files, compared with the
reference."""

import asyncio
import inspect
import io
import os
import pickle
import threading

import pytest
import tensorizer
import tensorizer.torch_compat as theirs
import torch
from test_tensorizer_differential import DTYPES, KEY, bits, of

import haulway
import haulway.tensorizer
from haulway.tensorizer import torch_compat as ours

PACKAGES = {"ours": ours, "theirs": theirs}


def transformer():
    """A model with tied weights, buffers of both kinds, and two dtypes."""
    model = torch.nn.Module()
    model.embedding = torch.nn.Embedding(20, 16)
    model.block = torch.nn.TransformerEncoderLayer(16, 2, 32)
    model.norm = torch.nn.BatchNorm1d(16).to(torch.bfloat16)
    model.head = torch.nn.Linear(16, 20, bias=False)
    model.head.weight = model.embedding.weight
    model.register_buffer("mask", torch.ones(4, 4).tril())
    model.register_buffer("cache", torch.zeros(3), persistent=False)
    return model


def objects():
    base = torch.arange(12.0)
    return {
        "base": base,
        "view": base[2:8].reshape(2, 3),
        "bits": base.view(torch.int32)[1:],
        "parameter": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
        "meta": torch.empty(3, device="meta"),
        "empty": torch.empty(0, 2),
        "untyped": torch.arange(4, dtype=torch.uint8).untyped_storage(),
        "typed": torch.arange(4).storage(),
        "dtypes": [of(d, seed=i) for i, d in enumerate(DTYPES)],
        "text": ["x", 5, None],
    }


def check(found):
    expected = objects()
    for name in ("base", "view", "bits", "parameter"):
        assert torch.equal(found[name], expected[name])
    assert isinstance(found["parameter"], torch.nn.Parameter)
    found["base"][2] = 77
    assert found["view"][0, 0] == 77
    assert found["bits"][1] == torch.tensor(77.0).view(torch.int32)
    assert found["meta"].is_meta and found["meta"].shape == (3,)
    assert found["empty"].shape == (0, 2)
    assert found["untyped"].tolist() == [0, 1, 2, 3]
    assert found["typed"].tolist() == [0, 1, 2, 3]
    for one, other in zip(found["dtypes"], expected["dtypes"]):
        assert one.dtype == other.dtype and torch.equal(bits(one), bits(other))
    assert found["text"] == ["x", 5, None]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("writer", PACKAGES)
@pytest.mark.parametrize("reader", PACKAGES)
def test_what_one_writes_the_other_reads(here, writer, reader, new):
    with PACKAGES[writer].tensorizer_saving():
        torch.save(objects(), "x.pt", _use_new_zipfile_serialization=new)
    with PACKAGES[reader].tensorizer_loading(device="cpu"):
        check(torch.load("x.pt", weights_only=False))


def test_the_bytes_are_the_references(here):
    for name, package in PACKAGES.items():
        os.mkdir(name)
        with package.tensorizer_saving():
            torch.save(objects(), f"{name}/x.pt")
    for file in ("x.pt", "x.pt.tensors"):
        assert (here / "ours" / file).read_bytes() == (
            here / "theirs" / file
        ).read_bytes()


@pytest.mark.parametrize("reader", PACKAGES)
def test_modules_keep_their_tied_weights(here, reader):
    model = transformer().eval()
    with ours.tensorizer_saving():
        torch.save(model, "m.pt")
    assert os.path.getsize("m.pt") < os.path.getsize("m.pt.tensors") - 262144
    with PACKAGES[reader].tensorizer_loading(device="cpu"):
        loaded = torch.load("m.pt", weights_only=False)
    assert loaded.head.weight is loaded.embedding.weight
    for one, other in zip(model.buffers(), loaded.buffers()):
        assert torch.equal(one, other)
    x = torch.rand(3, 2, 16)
    assert torch.equal(model.block(x), loaded.block(x))


@pytest.mark.parametrize("secret", ["key", "passphrase"])
@pytest.mark.parametrize("reader", PACKAGES)
def test_arguments_of_the_serializer_are_passed_on(here, secret, reader):
    package = haulway.tensorizer
    if secret == "key":
        how = package.EncryptionParams(KEY)
    else:
        how = package.EncryptionParams.from_string(
            "phrase", opslimit=1, memlimit=8192)
    with ours.tensorizer_saving(encryption=how, limit_cpu_concurrency=1):
        torch.save(objects(), "x.pt")
    package = {"ours": haulway.tensorizer, "theirs": tensorizer}[reader]
    if secret == "key":
        how = package.DecryptionParams.from_key(KEY)
    else:
        how = package.DecryptionParams.from_string("phrase")
    with PACKAGES[reader].tensorizer_loading(
        device="cpu", encryption=how, verify_hash=True
    ):
        check(torch.load("x.pt", weights_only=False))
    with ours.tensorizer_loading(device="cpu"):
        with pytest.raises(haulway.DecryptError):
            torch.load("x.pt", weights_only=False)


def test_signatures_stay_and_are_restored(here):
    save, load = torch.save, torch.load
    signatures = inspect.signature(save), inspect.signature(load)
    with ours.tensorizer_saving(), ours.tensorizer_loading():
        assert (
            inspect.signature(torch.save), inspect.signature(torch.load)
        ) == signatures
        assert torch.save is not save and torch.load is not load
        with pytest.raises(TypeError):
            torch.save()
    assert torch.save is save and torch.load is load
    with pytest.raises(RuntimeError, match="inside"):
        with ours.tensorizer_saving():
            raise RuntimeError("inside")
    assert torch.save is save
    for name in ("tensorizer_saving", "tensorizer_loading"):
        mine, reference = (
            inspect.signature(getattr(package, name)).parameters
            for package in (ours, theirs)
        )
        assert list(mine) == list(reference)
        for one, other in zip(mine.values(), reference.values()):
            assert (one.kind, one.default) == (other.kind, other.default)


def test_weights_only_is_refused_or_suppressed(here):
    with ours.tensorizer_saving():
        torch.save(objects(), "x.pt")
    with ours.tensorizer_loading(device="cpu"):
        with pytest.raises(RuntimeError, match="weights_only"):
            torch.load("x.pt", weights_only=True)
    with ours.tensorizer_loading(device="cpu", suppress_weights_only=True):
        check(torch.load("x.pt", weights_only=True))
    with pytest.raises(AssertionError, match="TensorizerPickler"):
        torch.load("x.pt", weights_only=False)


def test_targets(here):
    seen = []

    def by(f):
        seen.append(f)
        return "elsewhere"

    with ours.tensorizer_saving(by):
        torch.save([torch.ones(3)], "x.pt")
    with ours.tensorizer_loading(by, device="cpu"):
        assert torch.load("x.pt", weights_only=False)[0].sum() == 3
    assert seen == ["x.pt", "x.pt"] and sorted(os.listdir()) == [
        "elsewhere", "x.pt"
    ]
    stream, checkpoint = io.BytesIO(), io.BytesIO()
    with ours.tensorizer_saving(stream):
        torch.save([torch.ones(3)], checkpoint)
    stream.seek(0)
    checkpoint.seek(0)
    with ours.tensorizer_loading(stream, device="cpu"):
        assert torch.load(checkpoint, weights_only=False)[0].sum() == 3
    with ours.tensorizer_saving(), open(here / "named.pt", "wb") as file:
        torch.save([torch.ones(3)], file)
    assert os.path.exists("named.pt.tensors")
    with ours.tensorizer_saving():
        torch.save([torch.ones(3)], here / "path.pt")
    assert os.path.exists("path.pt.tensors")


def test_without_a_place_the_tensors_stay(here):
    for target in (lambda f: None, None):
        stream = io.BytesIO()
        with ours.tensorizer_saving(target):
            if target is None:
                with pytest.warns(UserWarning, match="no name"):
                    torch.save([torch.ones(3)], stream)
            else:
                torch.save([torch.ones(3)], stream)
        stream.seek(0)
        with ours.tensorizer_loading(lambda f: None):
            assert torch.load(stream, weights_only=True)[0].sum() == 3


def test_without_tensors_there_is_no_second_file(here):
    with ours.tensorizer_saving():
        torch.save({"a": 1, "m": torch.empty(2, device="meta")}, "x.pt")
    assert os.listdir() == ["x.pt"]
    with ours.tensorizer_loading():
        assert torch.load("x.pt", weights_only=False)["a"] == 1


def test_ordinary_checkpoints_are_loaded_too(here):
    torch.save([torch.ones(3)], "x.pt")
    with ours.tensorizer_loading():
        assert torch.load("x.pt", weights_only=False)[0].sum() == 3
        assert torch.load("x.pt")[0].sum() == 3


def test_the_innermost_context_counts(here):
    with ours.tensorizer_saving("outer"), ours.tensorizer_loading("wrong"):
        with ours.tensorizer_saving("inner"):
            torch.save([torch.ones(1)], "x.pt")
        assert sorted(os.listdir()) == ["inner", "x.pt"]
        torch.save([torch.ones(2)], "y.pt")
        assert os.path.exists("outer")
        with ours.tensorizer_loading("inner", device="cpu"):
            assert len(torch.load("x.pt", weights_only=False)[0]) == 1


def test_functions_instead_of_files(here):
    kept = {}

    def keep(file_obj, tensors, kwargs):
        kept.update(file=file_obj, tensors=list(tensors), kwargs=kwargs)

    with ours.tensorizer_saving("name", save_func=keep, some=1):
        torch.save([torch.arange(3.0), torch.arange(3)], "x.pt")
    assert kept["file"] == "name" and kept["kwargs"] == {"some": 1}
    assert [t.dtype for t in kept["tensors"]] == [torch.uint8] * 2
    assert os.listdir() == ["x.pt"]
    with ours.tensorizer_loading(
        "name", load_func=lambda file_obj, kwargs: iter(kept["tensors"])
    ):
        assert torch.load("x.pt", weights_only=False)[0].tolist() == [0, 1, 2]


def test_threads_do_not_see_each_others_contexts(here):
    entered, done = threading.Event(), threading.Event()
    failures = []

    def inside():
        try:
            with ours.tensorizer_saving("thread"):
                entered.set()
                assert done.wait(60)
                torch.save([torch.ones(2)], "inside.pt")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=inside)
    thread.start()
    assert entered.wait(60)
    torch.save([torch.ones(2)], "outside.pt")
    with ours.tensorizer_saving("main"):
        torch.save([torch.ones(2)], "own.pt")
    assert not os.path.exists("thread")
    done.set()
    thread.join()
    assert not failures and os.path.exists("thread")
    assert torch.load("outside.pt")[0].sum() == 2
    assert torch.save.__module__ == "torch.serialization"


def test_tasks_do_not_see_each_others_contexts(here):
    async def one(name, others):
        with ours.tensorizer_saving(name):
            others.release()
            async with others:
                await asyncio.sleep(0)
            torch.save([torch.ones(len(name))], f"{name}.pt")

    async def both():
        turn = asyncio.Semaphore(0)
        await asyncio.gather(one("a", turn), one("bb", turn))
        torch.save([torch.ones(3)], "none.pt")

    asyncio.run(both())
    for name in ("a", "bb"):
        with ours.tensorizer_loading(name, device="cpu"):
            loaded = torch.load(f"{name}.pt", weights_only=False)
        assert loaded[0].sum() == len(name)
    assert torch.load("none.pt")[0].sum() == 3


def test_what_is_missing_or_wrong_is_said(here):
    with ours.tensorizer_saving():
        torch.save([torch.ones(2), torch.ones(3)], "x.pt")
    os.rename("x.pt.tensors", "moved")
    with ours.tensorizer_loading(device="cpu"):
        with pytest.raises(FileNotFoundError, match="x.pt.tensors"):
            torch.load("x.pt", weights_only=False)
    with ours.tensorizer_loading("fewer", device="cpu"):
        haulway.save([torch.ones(2)], "fewer", "tensorizer")
        with pytest.raises(haulway.CorruptError, match="storage 1"):
            torch.load("x.pt", weights_only=False)
        haulway.save({"a": torch.ones(2)}, "fewer", "tensorizer")
        with pytest.raises(haulway.CorruptError, match="list"):
            torch.load("x.pt", weights_only=False)


def test_a_failed_save_writes_no_tensors(here):
    with ours.tensorizer_saving():
        with pytest.raises((AttributeError, pickle.PicklingError)):
            torch.save([torch.ones(2), lambda: 0], "x.pt")
    assert not os.path.exists("x.pt.tensors")


def test_location_of_the_map(here):
    with ours.tensorizer_saving():
        torch.save([torch.ones(2)], "x.pt")
    with ours.tensorizer_loading():
        loaded = torch.load("x.pt", map_location="meta", weights_only=False)
        assert loaded[0].is_meta
