"""haulway.save to tensorizer files, compared with the tensorizer package."""

import collections
import io
import os

import numpy
import pytest
import tensorizer
import torch
from test_tensorizer_differential import DTYPES, KEY, of

import haulway
import haulway.tensorizer


def theirs(path, obj, **options):
    serializer = tensorizer.TensorSerializer(str(path), **options)
    serializer.write_state_dict(obj)
    serializer.close()
    return path.read_bytes()


def nested():
    return {
        "a": {"b": [torch.arange(6.0).reshape(2, 3), torch.tensor(3)]},
        "a.b": torch.empty(0, 4),
        "é": {"1": torch.ones(3, dtype=torch.bfloat16).expand(2, 3)},
        "transposed": torch.arange(6).reshape(2, 3).T,
    }


def linear_net():
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 4)
    )
    net[2].weight = torch.nn.Parameter(net[0].weight.T.clone())
    return net


@pytest.mark.parametrize(
    "obj",
    [
        nested(),
        [torch.ones(2), [torch.zeros(1)]],
        {"meta": torch.empty(5, device="meta"), "real": torch.ones(2)},
        linear_net().state_dict(),
        {str(d): of(d) for d in DTYPES},
    ],
    ids=["nested", "list", "meta", "module", "dtypes"],
)
def test_the_bytes_are_the_references(tmp_path, obj):
    path = tmp_path / "ours.tensors"
    stats = haulway.save(obj, path)
    assert path.read_bytes() == theirs(tmp_path / "theirs", obj)
    assert stats["bytes"] == path.stat().st_size


def test_arrays_are_written_as_tensors_are(tmp_path):
    arrays = {
        name: numpy.arange(12).astype(name).reshape(3, 4)
        for name in "bool uint8 int16 float16 int32 float64 complex64".split()
    }
    tensors = {name: torch.from_numpy(a) for name, a in arrays.items()}
    path = tmp_path / "ours.tensors"
    haulway.save(arrays, path)
    assert path.read_bytes() == theirs(tmp_path / "theirs", tensors)
    haulway.save({"x": numpy.arange(6, dtype=">i4").reshape(2, 3).T}, path)
    assert haulway.load(path)["x"].tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("secret", ["key", "passphrase"])
def test_the_reference_reads_what_is_encrypted(tmp_path, secret):
    path = tmp_path / "secret.tensors"
    given = {"key": KEY, "passphrase": "open sesame"}[secret]
    obj = {"a": {"b": [torch.rand(1000)]}, "c": torch.rand(3)}
    haulway.save(obj, path, **{secret: given})
    params = (
        tensorizer.DecryptionParams.from_key(given)
        if secret == "key"
        else tensorizer.DecryptionParams.from_string(given)
    )
    with tensorizer.TensorDeserializer(
        str(path), device="cpu", verify_hash=True, encryption=params
    ) as read:
        assert torch.equal(read["a"]["b"][0], obj["a"]["b"][0])
    loaded = haulway.load(path, **{secret: given})
    assert torch.equal(loaded["c"], obj["c"])
    with pytest.raises(haulway.DecryptError):
        haulway.load(path, **{secret: given[:-1] + given[:1]})
    assert obj["c"].numpy().tobytes() not in path.read_bytes()


@pytest.mark.parametrize(
    "secrets",
    [
        {"key": b""},
        {"key": b"short"},
        {"passphrase": ""},
        {"key": KEY, "passphrase": "both"},
    ],
)
def test_wrong_secrets_are_refused(tmp_path, secrets):
    path = tmp_path / "x.tensors"
    with pytest.raises(ValueError) as caught:
        haulway.save({"a": torch.ones(1)}, path, **secrets)
    assert "short" not in str(caught.value)
    assert not path.exists()


@pytest.mark.parametrize("format", ["torch", "safetensors"])
def test_other_formats_take_no_key(tmp_path, format):
    with pytest.raises(ValueError, match="no encryption"):
        haulway.save({"a": torch.ones(1)}, tmp_path / "x", format, key=KEY)
    with pytest.raises(haulway.Error):
        haulway.save_async(
            {"a": torch.ones(1)}, tmp_path / "x", format, key=KEY
        )


@pytest.mark.parametrize(
    "obj, message",
    [
        (torch.ones(1), "dicts and lists of tensors: found Tensor"),
        ({"a": {"b": "text"}}, r"\['a'\]\['b'\] is str"),
        ({"a": [1]}, r"\['a'\]\[0\] is int"),
        ({1: torch.ones(1)}, "keys must be str, found int"),
        ({"": torch.ones(1)}, "name"),
        ({"a": torch.eye(2).to_sparse()}, "sparse"),
        ({"a": numpy.array(["x"])}, "dtype"),
        ({"a": torch.empty(2, dtype=torch.qint8, device="meta")}, "quantized"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(tmp_path, obj, message):
    path = tmp_path / "x.tensors"
    path.write_bytes(b"before")
    with pytest.raises(haulway.Error, match=message):
        haulway.save(obj, path)
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["x.tensors"]


def test_a_container_that_holds_itself_is_refused(tmp_path):
    obj = {"a": []}
    obj["a"].append(obj)
    with pytest.raises(ValueError, match="holds itself"):
        haulway.save(obj, tmp_path / "x.tensors")


def test_file_objects_durability_and_progress(tmp_path):
    obj = nested()
    stream = io.BytesIO()
    haulway.save(obj, stream, "tensorizer", threads=2)
    seen = []
    path = tmp_path / "x.tensors"
    haulway.save(obj, path, durability="none",
                 progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == stream.getvalue()
    assert seen and seen[-1][0] <= seen[-1][1] == path.stat().st_size

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        haulway.save(obj, tmp_path / "y.tensors", progress=stop)
    assert os.listdir(tmp_path) == ["x.tensors"]


def test_alignment_that_the_reference_reads(tmp_path):
    path = tmp_path / "x.tensors"
    haulway.save(nested(), path, alignment=4096)
    with haulway.open(path) as checkpoint:
        for name in checkpoint.keys():
            offset = checkpoint.info(name).offset
            assert offset is None or offset % 4096 == 0
    with tensorizer.TensorDeserializer(
        str(path), device="cpu", verify_hash=True
    ) as read:
        assert torch.equal(read["transposed"], nested()["transposed"])


def test_save_async_writes_what_was_there(tmp_path):
    path = tmp_path / "x.tensors"
    obj = collections.OrderedDict(
        a=torch.zeros(1000, 1000), b=numpy.zeros(1000), c=torch.zeros(4, 5).T
    )
    future = haulway.save_async(obj, path, key=KEY)
    for value in obj.values():
        value += 1
    assert future.result()["bytes"] == path.stat().st_size
    for value in haulway.load(path, key=KEY).values():
        assert not value.any()
    with pytest.raises(ValueError):
        haulway.save_async({"a": 1}, path).result()


def authentication(path, **secret):
    with haulway.open(path, **secret) as checkpoint:
        return checkpoint.container["authentication"]


@pytest.mark.parametrize("authenticate", [True, False])
def test_metadata_is_authenticated_if_wanted(tmp_path, authenticate):
    path = tmp_path / "x.tensors"
    haulway.save({"a": torch.ones(2, 3), "b": torch.ones(3, 2)}, path, key=KEY,
                 authenticate_metadata=authenticate)
    assert authentication(path, key=KEY) == (
        "checked" if authenticate else "none")
    assert authentication(path) == ("not checked" if authenticate else "none")
    # The reference notices neither the record nor the change.
    data = bytearray(path.read_bytes())
    at = data.index(b"\x01\x00a\x02\x03<f4")
    header = data.index(b"\x01\x00a\x03<f4", 73 + 262144)
    data[at + 6] = data[header + 5] = ord("i")
    path.write_bytes(data)
    params = tensorizer.DecryptionParams.from_key(KEY)
    with tensorizer.TensorDeserializer(
        str(path), device="cpu", encryption=params
    ) as read:
        assert read["a"].dtype == torch.int32
    if authenticate:
        with pytest.raises(haulway.DecryptError, match="not authentic"):
            haulway.load(path, key=KEY)
    else:
        haulway.load(path, key=KEY)


def test_every_reader_mode_of_the_reference_takes_the_record(tmp_path):
    path = tmp_path / "x.tensors"
    haulway.save({"a": torch.arange(4.0), "m": torch.empty(3, device="meta"),
                  "z": torch.empty(0), "l": [torch.ones(5)]}, path, key=KEY)
    params = tensorizer.DecryptionParams.from_key(KEY)
    for lazy in (False, True):
        for readers in (1, 3):
            with tensorizer.TensorDeserializer(
                str(path), device="cpu", encryption=params, lazy_load=lazy,
                num_readers=readers, verify_hash=True,
            ) as read:
                assert read.tree()["a"].tolist() == [0, 1, 2, 3]
