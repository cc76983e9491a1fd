"""haulway.tensorizer, and tensorizer files in haulway.open and load."""

import pickle

import numpy
import pytest
import tensorizer
import torch

import haulway
from haulway.tensorizer import (
    CryptographyError,
    DecryptionParams,
    EncryptionParams,
    HashMismatchError,
    TensorDeserializer,
    TensorSerializer,
    TensorType,
    stream_io,
)

KEY = bytes(range(32))
T = torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out.tensors"


def written(path, state, **options):
    serializer = TensorSerializer(path, **options)
    serializer.write_state_dict(state)
    serializer.close()
    return path


class Model(torch.nn.Module):
    def __init__(self, fill=0.5):
        super().__init__()
        self.p = torch.nn.Parameter(torch.full((3,), fill))
        self.register_buffer("kept", torch.arange(4))
        self.register_buffer("lost", torch.ones(2), persistent=False)
        self.inner = torch.nn.Linear(2, 2)


# haulway.open and haulway.load


def test_loads_what_was_nested(golden):
    loaded = haulway.load(golden("2.11.1_v1_nested"))
    assert list(loaded) == ["a", "é", "l"]
    assert torch.equal(loaded["a"][0], T)
    assert torch.equal(loaded["a"][1]["b"], 2 * T)
    assert isinstance(loaded["l"], list)


def test_opens_by_name(golden):
    with haulway.open(golden("2.11.1_v1_nested")) as checkpoint:
        assert checkpoint.format == "tensorizer"
        assert checkpoint.keys() == ["a.0", "a.1.b", "é", "l.0"]
        assert torch.equal(checkpoint["a.1.b"], 2 * T)
        assert torch.equal(checkpoint.get_slice("é")[1:], T[1:])
        assert checkpoint.tree()["a"][0].dtype == "F32"


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_meta_tensors_are_zeros(golden, framework):
    loaded = haulway.load(golden("2.11.1_v4_meta"), framework=framework)
    assert loaded["m"].shape == (2, 3)
    assert not loaded["m"].any()
    with haulway.open(golden("2.11.1_v4_meta"), framework) as checkpoint:
        assert not checkpoint["m"].any()
        assert checkpoint.info("m").kind == "meta"


def test_opaque_meta_tensor_that_the_reference_cannot_read(golden):
    loaded = haulway.load(golden("2.11.1_v4_meta_bf16"))
    assert loaded["m"].dtype == torch.bfloat16
    assert loaded["m"].shape == (2, 3)


@pytest.mark.parametrize("secret", [{"key": KEY}, {"passphrase": "test"}])
def test_keys(golden, secret):
    name = "2.11.1_v3_key" if "key" in secret else "2.11.1_v3_passphrase"
    path = golden(name)
    assert torch.equal(haulway.load(path, verify=True, **secret)["w"], T)
    with haulway.open(path, **secret) as checkpoint:
        assert torch.equal(checkpoint["w"], T)
    assert haulway.verify(path, **secret).ok
    with pytest.raises(haulway.DecryptError, match="expected a key"):
        haulway.load(path)
    with haulway.open(path) as checkpoint:
        assert checkpoint.info("w").shape == (3,)
    assert any("no key" in part.what for part in haulway.verify(path).unchecked)


def test_wrong_key(golden):
    path = golden("2.11.1_v3_key")
    for secret in ({"key": bytes(32)}, {"passphrase": "test"}):
        with pytest.raises(haulway.DecryptError):
            haulway.load(path, **secret)
    with pytest.raises(ValueError, match="32 bytes"):
        haulway.load(path, key=b"short")


def test_a_key_for_a_file_that_is_never_encrypted(small):
    with pytest.raises(haulway.DecryptError, match="never"):
        haulway.open(small, key=KEY)


# TensorDeserializer


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("readers", [None, 1, 4])
def test_reads_as_a_mapping(golden, lazy, readers):
    with TensorDeserializer(
        golden("2.11.1_v1_nested"), device="cpu", lazy_load=lazy,
        num_readers=readers, verify_hash=True,
    ) as tensors:
        assert list(tensors) == ["a", "é", "l"]
        assert len(tensors) == 3
        # B1: in reverse order of the file.
        assert torch.equal(tensors["l"][0], T)
        assert torch.equal(tensors["a"][1]["b"], 2 * T)
        assert 0 in tensors["a"] and "0" not in tensors["a"]
        assert True not in tensors["a"]
        assert isinstance(tensors["é"], torch.nn.Parameter)
        with pytest.raises(KeyError):
            tensors["b"]
        tree = tensors.tree()
        assert isinstance(tree["a"], list)
        assert torch.equal(tensors.tree(("a", 1))["b"], 2 * T)
        assert torch.equal(tensors.tree(("é",)), T)
        assert tensors.tree(("no",), default=7) == 7
        assert tensors.total_tensor_bytes == 48


def test_gaps_in_lists_are_not_closed(golden):
    # B16
    with TensorDeserializer(golden("2.11.1_v1_nested"), device="cpu") as t:
        tree = t.tree(filter_func=lambda name: name != ("a", 0))
        assert list(tree["a"]) == [1]


def test_filters(golden):
    path = golden("2.11.1_v1_nested")
    seen = []
    tensors = TensorDeserializer(
        path, "cpu", lambda name: seen.append(name) or name == "é")
    assert seen == [("a", 0), ("a", 1, "b"), "é", ("l", 0)]
    assert list(tensors) == ["é"]
    # B9: everything is filtered out.
    assert len(TensorDeserializer(path, "cpu", lambda name: False)) == 0


def test_read_tensors_goes_on_where_it_stopped(golden):
    with TensorDeserializer(golden("2.11.1_v1_module"), "cpu") as tensors:
        first = list(tensors.read_tensors(num_tensors=2))
        rest = list(tensors.read_tensors())
    assert [(i, kind, name) for i, kind, name, _ in first + rest] == [
        (0, TensorType.PARAM, ".p"),
        (0, TensorType.BUFFER, ".buf"),
        (0, TensorType.BUFFER, ".np"),
        (1, TensorType.PARAM, "a.weight"),
        (2, TensorType.PARAM, "b.weight"),
    ]


def test_read_numpy_arrays(golden):
    with TensorDeserializer(golden("2.11.1_v2_bf16"), "cpu") as tensors:
        with pytest.raises(ValueError, match="NumPy lacks"):
            list(tensors.read_numpy_arrays())
    with TensorDeserializer(golden("2.11.1_v2_bf16"), "cpu") as tensors:
        found = list(tensors.read_numpy_arrays(allow_raw_data=True))
    module, kind, name, array, opaque, dtype = found[0]
    assert (module, kind, name, opaque) == (0, 2, "w", True)
    assert dtype == "torch.bfloat16"
    assert array.view(numpy.uint16).tolist() == [0x3F80, 0x4000, 0x4040]


def test_dtype_casts_only_floating_point(target):
    # B8
    state = {"f": T, "i": torch.arange(3), "c": torch.ones(2).to(torch.cfloat)}
    written(target, state)
    tensors = TensorDeserializer(target, "cpu", dtype=torch.bfloat16)
    assert tensors["f"].dtype == torch.bfloat16
    assert tensors["i"].dtype == torch.int64
    assert tensors["c"].dtype == torch.complex64


def test_keys_of_the_reference(golden):
    path = golden("2.11.1_v3_key")
    right = DecryptionParams.from_key(KEY)
    assert torch.equal(TensorDeserializer(path, "cpu", encryption=right)["w"], T)
    for wrong in (
        None,
        DecryptionParams.from_key(bytes(32)),
        DecryptionParams.from_string("test"),
    ):
        with pytest.raises(CryptographyError):
            TensorDeserializer(path, "cpu", encryption=wrong)
    with pytest.raises(CryptographyError, match="predates"):
        TensorDeserializer(golden("2.11.1_v1_f32"), "cpu", encryption=right)
    with pytest.raises(CryptographyError, match="not flagged"):
        TensorDeserializer(golden("2.11.1_v4_meta"), "cpu", encryption=right)
    derived = EncryptionParams.from_string(
        "test", opslimit=1, memlimit=8192, salt=bytes(16))
    assert derived.key.hex().startswith("185d9543e6945bb3")
    # B15: no key is shown.
    assert "185d" not in repr(derived) and "\\x" not in repr(right)


def test_parameters_of_keys_are_checked():
    for make in (EncryptionParams, DecryptionParams.from_key):
        with pytest.raises(ValueError):
            make(b"short")
    with pytest.raises(ValueError):
        EncryptionParams.from_string("")
    with pytest.raises(ValueError):
        DecryptionParams.from_string("")
    with pytest.raises(ValueError):
        EncryptionParams.from_string("x", salt=b"short")
    with pytest.raises(TypeError):
        DecryptionParams.from_string(5)
    assert len(EncryptionParams.random().key) == 32


def test_bad_files(golden, tmp_path):
    bad = tmp_path / "bad"
    bad.write_bytes(b"not a tensorizer file at all")
    with pytest.raises(ValueError):
        TensorDeserializer(bad, "cpu")
    path = golden("2.11.1_v1_f32")
    data = bytearray(path.read_bytes())
    # B12: a truncated file.
    bad.write_bytes(data[:-10])
    with pytest.raises(ValueError):
        TensorDeserializer(bad, "cpu")
    data[262291] ^= 1
    bad.write_bytes(data)
    assert TensorDeserializer(bad, "cpu")["w"][0] != 1
    with pytest.raises(HashMismatchError):
        TensorDeserializer(bad, "cpu", verify_hash=True)


# TensorSerializer


@pytest.mark.parametrize("kind", ["path", "file", "bytes path", "fd"])
def test_writes_anywhere(tmp_path, kind):
    path = tmp_path / "folder" / "x.tensors"
    path.parent.mkdir()
    if kind == "path":
        written(path, {"w": T})
    elif kind == "bytes path":  # B11
        written(bytes(path), {"w": T})
    else:
        with open(path, "wb+") as file:
            written(file if kind == "file" else file.fileno(), {"w": T})
    assert torch.equal(haulway.load(path, verify=True)["w"], T)


def test_writes_what_the_reference_writes(golden, target):
    plain = golden("2.11.1_v1_f32").read_bytes()
    assert written(target, {"w": T}).read_bytes() == plain
    nested = golden("2.11.1_v1_nested").read_bytes()
    state = {"a": [T, {"b": 2 * T}], "é": T, "l": (T,)}
    assert written(target, state).read_bytes() == nested
    meta = golden("2.11.1_v4_meta").read_bytes()
    state = {"m": torch.empty(2, 3, device="meta"), "w": T}
    assert written(target, state).read_bytes() == meta


def test_round_trip_of_every_dtype(target):
    dtypes = [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32,
        torch.int64, torch.uint16, torch.uint32, torch.uint64, torch.float16,
        torch.float32, torch.float64, torch.bfloat16, torch.complex32,
        torch.complex64, torch.complex128, torch.float8_e5m2,
        torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.float8_e4m3fnuz,
    ]
    state = {}
    for dtype in dtypes:
        raw = torch.arange(96, dtype=torch.uint8)
        raw = raw % 2 if dtype == torch.bool else raw
        state[f"{dtype} full"] = raw.view(dtype)
        state[f"{dtype} empty"] = torch.empty(0, 3, dtype=dtype)
        state[f"{dtype} meta"] = torch.empty(2, dtype=dtype, device="meta")
    for params in (None, EncryptionParams(KEY)):
        written(target, state, encryption=params)
        secret = {} if params is None else {"key": KEY}
        loaded = haulway.load(target, verify=True, **secret)
        assert list(loaded) == list(state)
        for name, tensor in state.items():
            assert loaded[name].dtype == tensor.dtype
            assert loaded[name].shape == tensor.shape
            bits = loaded[name].view(torch.uint8)
            if tensor.is_meta:
                assert not bits.any()
            else:
                assert torch.equal(bits, tensor.view(torch.uint8))


@pytest.mark.parametrize("encrypted", [False, True])
def test_modules(target, encrypted):
    params = EncryptionParams.from_string("pass", 1, 8192)
    model = Model()
    serializer = TensorSerializer(
        target, encryption=params if encrypted else None)
    serializer.write_module(model)
    serializer.close()
    secret = DecryptionParams.from_string("pass") if encrypted else None
    with TensorDeserializer(target, "cpu", encryption=secret) as tensors:
        # B7: tensors of the root module are found, too.
        same, results = tensors.verify_module(model)
        assert same and len(results) == 5
        other = Model(fill=0.25)
        with torch.no_grad():
            other.inner.weight.copy_(model.inner.weight)
            other.inner.bias.copy_(model.inner.bias)
        same, results = tensors.verify_module(other)
        assert not same
        assert [name for name, ok in results if not ok] == [".p"]
        fresh = Model(fill=0.0)
        assert tensors.load_into_module(fresh) == 5
    for name, tensor in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor)
    # B17: buffers stay buffers, and keep their persistence.
    assert set(dict(fresh.named_buffers())) == {"kept", "lost"}
    assert "lost" not in fresh.state_dict()


def test_a_module_is_verified_after_it_was_loaded(target):
    # load_into_module() closes the file in both packages.
    serializer = TensorSerializer(target)
    serializer.write_module(Model())
    serializer.close()
    for library in (haulway.tensorizer, tensorizer):
        tensors = library.TensorDeserializer(target, device="cpu")
        size = tensors.total_tensor_bytes
        fresh = Model(fill=0.0)
        tensors.load_into_module(fresh)
        tensors.close()
        same, results = tensors.verify_module(fresh)
        # B7: the reference does not find the root's tensors.
        assert {name for name, ok in results if ok} >= {
            "inner.weight", "inner.bias"
        }
        assert tensors.total_tensor_bytes == size
        if library is haulway.tensorizer:
            assert same and len(results) == 5
        with torch.no_grad():
            fresh.inner.bias += 1
        assert ("inner.bias", False) in tensors.verify_module(fresh)[1]


def test_only_persistent_buffers(target):
    # B6: those of the root module are kept.
    serializer = TensorSerializer(target)
    serializer.write_module(Model(), include_non_persistent_buffers=False)
    serializer.close()
    assert list(haulway.load(target)) == [
        ".p", ".kept", "inner.weight", "inner.bias"
    ]


def test_empty_and_refused(target):
    # B10
    assert haulway.load(written(target, {})) == {}
    # B5
    with pytest.raises(TypeError):
        TensorSerializer(target).write_state_dict({"a": "text"})
    with pytest.raises(TypeError):
        TensorSerializer(target).write_state_dict({1: T})
    loop = {}
    loop["self"] = loop
    with pytest.raises(ValueError, match="itself"):
        TensorSerializer(target).write_state_dict(loop)
    with pytest.raises(ValueError):
        TensorSerializer(target).write_state_dict(
            {"q": torch.quantize_per_tensor(T, 1.0, 0, torch.qint8)})


def test_encrypting_leaves_the_callers_memory_alone(target):
    # B4: overlapping views.
    whole = torch.arange(3_000_000, dtype=torch.float32)
    before = whole.clone()
    state = {"a": whole, "b": whole[1:], "z": torch.empty(0)}  # B3
    written(target, state, encryption=EncryptionParams(KEY))
    assert torch.equal(whole, before)
    loaded = haulway.load(target, verify=True, key=KEY)
    assert torch.equal(loaded["a"], whole)
    assert torch.equal(loaded["b"], whole[1:])


def test_a_tensor_changed_after_it_was_written_is_stored_as_it_was(target):
    tensor = T.clone()
    serializer = TensorSerializer(target)
    serializer.write_state_dict({"w": tensor})
    tensor += 1
    serializer.close()
    assert torch.equal(TensorDeserializer(target, "cpu")["w"], T)


def test_write_tensor(target):
    serializer = TensorSerializer(target)
    serializer.write_tensor(3, "a", TensorType.PARAM, T)
    serializer.write_tensor(0, "b", TensorType.STATE_DICT, numpy.arange(4))
    assert serializer.total_tensor_bytes == 44
    serializer.close()
    found = list(TensorDeserializer(target, "cpu").read_tensors())
    assert [(f[0], f[1], f[2]) for f in found] == [(3, 0, "a"), (0, 2, "b")]


# stream_io


def test_streams(tmp_path):
    path = tmp_path / "new" / "data"
    with stream_io.open_stream(path, "wb+") as stream:
        stream.write(b"0123456789")
    with stream_io.open_stream(path, begin=2, end=6) as stream:
        assert stream.read() == b"2345"
        stream.seek(1)
        assert stream.read(2) == b"34"
        assert stream.seek(-1, 2) == 3
    with stream_io.open_stream(str(path)) as stream:
        assert stream.read() == b"0123456789"
    for bad in ({"begin": -1}, {"begin": 5, "end": 5}, {"begin": 5, "end": 2}):
        with pytest.raises(ValueError):
            stream_io.open_stream(path, **bad)


def test_errors_can_be_pickled(tmp_path):
    bad = tmp_path / "bad"
    bad.write_bytes(b"|TZR|")
    with pytest.raises(ValueError) as caught:
        TensorDeserializer(bad, "cpu")
    assert type(pickle.loads(pickle.dumps(caught.value))) is caught.type


def test_meta_tensors_are_kept_meta_if_wanted(target):
    written(target, {"m": torch.empty(2, 3, device="meta", dtype=torch.int8),
                     "w": torch.ones(2)})
    with TensorDeserializer(target, device="cpu", keep_meta=True) as tensors:
        assert tensors["m"].is_meta and tensors["m"].shape == (2, 3)
        assert tensors["m"].dtype == torch.int8
        assert tensors["w"].sum() == 2
    loaded = haulway.load(target, keep_meta=True)
    assert loaded["m"].is_meta and loaded["w"].sum() == 2
    with haulway.open(target, keep_meta=True) as checkpoint:
        assert checkpoint["m"].is_meta
    assert not haulway.load(target)["m"].is_meta
